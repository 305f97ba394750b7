//! The numeric door: token ids in, a safetensors file of logits out.

use crate::failure::Failure;
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use tandem_sdk::{Client, Error};

/// Reads a JSON list of prompts, each a list of token ids.
pub(crate) fn read_prompts(path: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::read(path))?;
    prompts_of(&text).map_err(|reason| Failure::content(path, reason))
}

fn prompts_of(text: &str) -> Result<Vec<Vec<u32>>, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
    let prompts = value.as_array().ok_or("no list of prompts, each a list of token ids")?;
    if prompts.is_empty() {
        return Err("the list of prompts is empty".into());
    }
    prompts.iter().enumerate().map(|(index, prompt)| ids_of(index, prompt)).collect()
}

fn ids_of(index: usize, prompt: &Value) -> Result<Vec<u32>, String> {
    let ids = prompt.as_array().ok_or_else(|| format!("prompt {index} is no list of token ids"))?;
    if ids.is_empty() {
        return Err(format!("prompt {index} is empty; a prompt needs one token at least"));
    }
    let id = |(at, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("prompt {index}: {value} at position {at} is no token id"))
    };
    ids.iter().enumerate().map(id).collect()
}

/// One tensor of the output.
struct Tensor {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Asks for the logits of each prompt and writes them to `file`.
pub(crate) fn write(
    client: &Client,
    source: &Path,
    prompts: &[Vec<u32>],
    all_positions: bool,
    file: &Path,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut tensors = Vec::with_capacity(prompts.len());
    // A request a prompt: none is too large for the ring because there are many.
    for (index, prompt) in prompts.iter().enumerate() {
        let what = || format!("{}, prompt {index}", source.display());
        let rows = client.logits(vec![prompt.clone()], all_positions);
        let rows = rows.map_err(|error| Failure::OneOf { what: what(), source: own(error) })?;
        let expected = if all_positions { prompt.len() } else { 1 };
        let width = rows.first().map_or(0, |row| row.values.len());
        if rows.len() != expected || rows.iter().any(|row| row.values.len() != width) {
            let text = format!("{} rows of logits came, {expected} of one width were due", rows.len());
            return Err(Failure::OneOf { what: what(), source: Error::Protocol(text) });
        }
        let shape = if all_positions { vec![expected, width] } else { vec![width] };
        let bytes = rows.iter().flat_map(|row| row.values.iter().flat_map(|v| v.to_le_bytes())).collect();
        tensors.push((format!("logits.{index}"), Tensor { shape, bytes }));
    }
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    serialize_to_file(views, None, file).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => Failure::write(file)(source),
        error => Failure::Encode(error.to_string()),
    })?;
    if json {
        let shapes: serde_json::Map<String, Value> =
            tensors.iter().map(|(name, tensor)| (name.clone(), json!(tensor.shape))).collect();
        writeln!(out, "{}", json!({"file": file.display().to_string(), "tensors": shapes}))?;
    } else {
        writeln!(out, "wrote {} tensors to {}", tensors.len(), file.display())?;
    }
    Ok(())
}

/// The daemon counts prompts within its request, which has one here.
fn own(error: Error) -> Error {
    match error {
        Error::Failed { code, message, retry_after } => {
            let message = message.strip_prefix("prompt 0: ").map(str::to_owned).unwrap_or(message);
            Error::Failed { code, message, retry_after }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_lists_of_ids_is_read() {
        assert_eq!(prompts_of("[[1, 2], [248319]]").unwrap(), [vec![1, 2], vec![248_319]]);
    }

    #[test]
    fn what_is_no_token_id_is_named_with_prompt_and_position() {
        for (text, words) in [
            ("[[1],[2,-3]]", vec!["prompt 1", "-3", "position 1"]),
            ("[[4294967296]]", vec!["prompt 0", "4294967296", "position 0"]),
            ("[[1.5]]", vec!["prompt 0", "1.5"]),
            ("[[1],\"x\"]", vec!["prompt 1", "no list"]),
            ("[[]]", vec!["prompt 0", "empty"]),
            ("[]", vec!["empty"]),
            ("{}", vec!["no list"]),
            ("[[1]", vec!["no JSON", "line 1"]),
        ] {
            let error = prompts_of(text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
        }
    }
}
