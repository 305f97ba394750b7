//! `tandem model`: what is in a model file, and files with random weights.

use crate::failure::Failure;
use crate::status::bytes;
use crate::trace;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use tandem_engine::gguf::{self, Gguf, TensorInfo, ValueType};
use tandem_engine::synth::{Quant, Size, Synth};
use tandem_engine::trim_draft::{self, TrimDraft};

/// Longest array shown whole.
const WHOLE_ARRAY: usize = 64;
/// Longest text shown for a person, characters.
const SHOWN: usize = 72;

/// Looks into model files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Checks a GGUF file and lists what it holds: keys, tensors, sizes.
    Inspect {
        /// The file.
        #[arg(value_name = "FILE.gguf")]
        file: PathBuf,
        /// Print one JSON object: `file`, `bytes`, `parameters`, `metadata` (arrays of more than
        /// 64 elements as type and length), `types` (tensors and bytes by element type), `tensors`.
        #[arg(long)]
        json: bool,
    },
    /// Writes a random-weight model of a given shape, with real tensor names.
    Synth {
        /// Family.
        #[arg(long, value_enum, default_value = "qwen35")]
        arch: Arch,
        /// Shape.
        #[arg(long, value_enum)]
        size: SynthSize,
        /// Type of the matrices (q4_0 and q4_k keep some in Q6_K, as llama.cpp does).
        #[arg(long, value_enum)]
        quant: SynthQuant,
        /// Take the vocabulary of this GGUF file.
        #[arg(long, value_name = "VOCAB.gguf")]
        tokenizer: Option<PathBuf>,
        /// Equal seeds write equal files.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The file to write.
        #[arg(value_name = "OUT.gguf")]
        out: PathBuf,
    },
    /// Adds the draft matrix: the rows of the output matrix that MTP drafts are chosen from.
    ///
    /// Special and byte tokens, the first CJK tokens, then the tokens of the traces' answers and
    /// prompts, most frequent first. Kept in keys (tandem.draft.ids, tandem.draft.type) and bytes
    /// behind the last tensor, which other readers of GGUF pass over.
    TrimDraft {
        /// The model.
        #[arg(value_name = "IN.gguf")]
        input: PathBuf,
        /// The file to write; may be the same.
        #[arg(value_name = "OUT.gguf")]
        out: PathBuf,
        /// Rows of the draft matrix.
        #[arg(long, default_value_t = trim_draft::ROWS)]
        rows: usize,
        /// Traces whose tokens it must know.
        #[arg(long, value_name = "TRACE", num_args = 1..)]
        corpus: Vec<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Arch {
    Qwen35,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SynthSize {
    #[value(name = "tiny")]
    Tiny,
    #[value(name = "0.8b")]
    B0_8,
    #[value(name = "2b")]
    B2,
    #[value(name = "4b")]
    B4,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SynthQuant {
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_k")]
    Q4K,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    match &args.command {
        Command::Inspect { file, json } => inspect(file, *json, out),
        Command::TrimDraft { input, out: path, rows, corpus } => trim(input, path, *rows, corpus, out),
        Command::Synth { arch: Arch::Qwen35, size, quant, tokenizer, seed, out: path } => {
            let synth = Synth {
                size: match size {
                    SynthSize::Tiny => Size::Tiny,
                    SynthSize::B0_8 => Size::B0_8,
                    SynthSize::B2 => Size::B2,
                    SynthSize::B4 => Size::B4,
                },
                quant: match quant {
                    SynthQuant::F16 => Quant::F16,
                    SynthQuant::Q8_0 => Quant::Q8_0,
                    SynthQuant::Q4_0 => Quant::Q4_0,
                    SynthQuant::Q4K => Quant::Q4K,
                },
                tokenizer: tokenizer.clone(),
                seed: *seed,
            };
            let written = synth.write(path).map_err(|e| Failure::Usage(e.to_string()))?;
            writeln!(out, "wrote {} ({})", path.display(), bytes(written))?;
            Ok(())
        }
    }
}

fn trim(
    input: &Path,
    path: &Path,
    rows: usize,
    corpus: &[PathBuf],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut texts = Vec::new();
    for file in corpus {
        for recorded in trace::read(file, None)? {
            texts.extend(recorded.expect);
            strings(&recorded.body["messages"], &mut texts);
        }
    }
    let trimmed = TrimDraft { rows, corpus: &texts }.write(input, path);
    let trimmed = trimmed.map_err(|error| Failure::Usage(error.to_string()))?;
    writeln!(
        out,
        "wrote {} ({}), a draft matrix of {} rows ({}) in it",
        path.display(),
        bytes(trimmed.file),
        trimmed.rows,
        bytes(trimmed.matrix)
    )?;
    Ok(())
}

/// All texts of a message list.
fn strings(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| strings(value, texts)),
        Value::Object(fields) => fields.values().for_each(|value| strings(value, texts)),
        _ => {}
    }
}

fn inspect(path: &Path, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let gguf = Gguf::open(path).map_err(|source| Failure::Model { path: path.to_owned(), source })?;
    if json {
        writeln!(out, "{}", report(path, &gguf))?;
        return Ok(());
    }
    writeln!(out, "{}: {}, {} parameters", path.display(), bytes(file_bytes(&gguf)), parameters(&gguf))?;
    writeln!(out, "\n{} keys", gguf.meta().keys().len())?;
    for (key, value) in metadata(&gguf) {
        writeln!(out, "  {key} = {}", shorten(&value.to_string()))?;
    }
    writeln!(out, "\n{} tensors", gguf.tensors().len())?;
    let widest = gguf.tensors().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    for tensor in gguf.tensors() {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        writeln!(
            out,
            "  {:widest$}  {:6}  {:>10}  {}",
            tensor.name,
            tensor.dtype.name(),
            bytes(tensor.bytes as u64),
            shape.join(" x ")
        )?;
    }
    writeln!(out, "\nby element type")?;
    for (name, (count, size)) in types(&gguf) {
        writeln!(out, "  {name:6}  {count} tensors, {}", bytes(size))?;
    }
    Ok(())
}

fn report(path: &Path, gguf: &Gguf) -> Value {
    let tensor = |tensor: &TensorInfo| {
        json!({
            "name": tensor.name, "type": tensor.dtype.name(), "shape": tensor.shape,
            "offset": tensor.offset, "bytes": tensor.bytes
        })
    };
    let types: Map<String, Value> = types(gguf)
        .into_iter()
        .map(|(name, (tensors, bytes))| (name.to_owned(), json!({"tensors": tensors, "bytes": bytes})))
        .collect();
    json!({
        "file": path.display().to_string(),
        "bytes": file_bytes(gguf),
        "parameters": parameters(gguf),
        "metadata": metadata(gguf),
        "types": types,
        "tensors": gguf.tensors().map(tensor).collect::<Vec<_>>(),
    })
}

fn file_bytes(gguf: &Gguf) -> u64 {
    AsRef::<[u8]>::as_ref(&*gguf.map()).len() as u64
}

fn parameters(gguf: &Gguf) -> u64 {
    gguf.tensors().map(|tensor| tensor.elements() as u64).sum()
}

fn types(gguf: &Gguf) -> BTreeMap<&'static str, (u64, u64)> {
    let mut types = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (count, bytes) = types.entry(tensor.dtype.name()).or_insert((0, 0));
        *count += 1;
        *bytes += tensor.bytes as u64;
    }
    types
}

fn metadata(gguf: &Gguf) -> Map<String, Value> {
    gguf.meta().keys().map(|key| (key.to_owned(), value_of(gguf, key))).collect()
}

fn value_of(gguf: &Gguf, key: &str) -> Value {
    let scalar = |value: gguf::Value<'_>| match value {
        gguf::Value::Unsigned(n) => n.into(),
        gguf::Value::Signed(n) => n.into(),
        gguf::Value::Float(x) => x.into(),
        gguf::Value::Bool(b) => b.into(),
        gguf::Value::String(text) => text.into(),
        gguf::Value::Array(array) => json!({"array": array.element().to_string(), "length": array.len()}),
    };
    match gguf.meta().get(key) {
        Some(gguf::Value::Array(array)) if array.len() <= WHOLE_ARRAY => match array.element() {
            ValueType::String => match gguf.meta().strings(key) {
                // A string that is no UTF-8 was refused when the file was opened.
                Ok(strings) => strings.flatten().map(Value::from).collect(),
                Err(_) => scalar(gguf::Value::Array(array)),
            },
            ValueType::Array => scalar(gguf::Value::Array(array)),
            _ => array.scalars().map(scalar).collect(),
        },
        Some(value) => scalar(value),
        None => Value::Null,
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}
