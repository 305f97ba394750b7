//! Random-weight model files of a given shape: for benchmarks, fuzzing and tests that need
//! real sizes or a real vocabulary, but no sense in the answers.
//!
//! Tensor names, shapes, keys and types are those of llama.cpp's converter, so other GGUF
//! readers load the files too. Blocks are drawn directly in their quantized form.

mod blocks;
mod shape;

pub use shape::{Quant, Size};

use crate::gguf::{Gguf, GgufError, GgufWriter, WriteError};
use blocks::Blocks;
use shape::{Shape, Values, qwen35};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// What to write.
#[derive(Clone, Debug)]
pub struct Synth {
    /// Shape.
    pub size: Size,
    /// Type of the matrices.
    pub quant: Quant,
    /// File whose vocabulary to take (`tokenizer.*` keys); a byte vocabulary where `None`.
    pub tokenizer: Option<PathBuf>,
    /// Equal seeds write equal files.
    pub seed: u64,
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The vocabulary file.
    #[error("vocabulary {}: {source}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// The vocabulary has more tokens than the shape has rows.
    #[error("the vocabulary has {tokens} tokens, this shape has {rows} rows for them")]
    TooManyTokens {
        /// Tokens in the vocabulary.
        tokens: usize,
        /// Rows of the shape.
        rows: usize,
    },
    /// The file to write.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: WriteError,
    },
}

/// Rows that real Qwen3.5 files pad their vocabulary to.
const REAL_ROWS: usize = 248_320;
/// Rows of the tiny shape with the byte vocabulary.
const TINY_ROWS: usize = 512;
const CHATML: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

impl Synth {
    /// Writes the file; gives its size in bytes.
    pub fn write(&self, path: &Path) -> Result<u64, SynthError> {
        let mut writer = GgufWriter::new();
        let rows = self.vocabulary(&mut writer)?;
        let shape = Shape::of(self.size, rows);
        let tensors = qwen35(&shape, self.quant, &mut writer);
        let fail = |source| SynthError::Write { path: path.into(), source };
        for t in &tensors {
            writer.tensor(&t.name, t.dtype, &t.shape).map_err(fail)?;
        }
        let file = std::fs::File::create(path).map_err(|e| fail(e.into()))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut next = tensors.iter();
        let mut data = |_: &str, out: &mut dyn Write| match next.next() {
            Some(t) => {
                let elements = t.shape.iter().product();
                let mut blocks = Blocks::new(self.seed, &t.name);
                match t.values {
                    Values::Constant(value) => blocks.constant(elements, value, out),
                    Values::Uniform(low, high) => blocks.uniform(elements, low, high, out),
                    Values::Normal(deviation) => blocks.normal(t.dtype, elements, deviation, out),
                }
            }
            None => Ok(()),
        };
        writer.write(&mut out, &mut data).map_err(fail)?;
        let file = out.into_inner().map_err(|e| fail(e.into_error().into()))?;
        file.metadata().map(|m| m.len()).map_err(|e| fail(e.into()))
    }

    /// Writes the `tokenizer.*` keys; gives the rows of the embedding.
    fn vocabulary(&self, writer: &mut GgufWriter) -> Result<usize, SynthError> {
        let (mut tokens, mut types) = match &self.tokenizer {
            Some(path) => {
                let fail = |source| SynthError::Vocabulary { path: path.clone(), source };
                let file = Gguf::open(path).map_err(fail)?;
                writer.copy_keys(&file, |key| key.starts_with("tokenizer."));
                let meta = file.meta();
                let texts = meta.strings("tokenizer.ggml.tokens").map_err(fail)?;
                let tokens =
                    texts.map(|t| t.map(str::to_owned)).collect::<Result<Vec<_>, _>>().map_err(fail)?;
                (tokens, meta.i32s("tokenizer.ggml.token_type").map_err(fail)?)
            }
            None => byte_vocabulary(writer),
        };
        let rows = if self.tokenizer.is_none() && self.size == Size::Tiny { TINY_ROWS } else { REAL_ROWS };
        if tokens.len() > rows {
            return Err(SynthError::TooManyTokens { tokens: tokens.len(), rows });
        }
        // As the converter pads: unused tokens up to the embedding's rows.
        const UNUSED: i32 = 5;
        tokens.extend((tokens.len()..rows).map(|i| format!("[PAD{i}]")));
        types.resize(rows, UNUSED);
        writer.strings("tokenizer.ggml.tokens", &tokens).i32s("tokenizer.ggml.token_type", &types);
        Ok(rows)
    }
}

/// The 256 bytes in byte-level BPE's letters, and ChatML's markers.
fn byte_vocabulary(writer: &mut GgufWriter) -> (Vec<String>, Vec<i32>) {
    let mut shifted = 0;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| match b {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(b),
            _ => {
                shifted += 1;
                char::from_u32(0xff + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
        })
        .map(String::from)
        .collect();
    let mut types = vec![1; tokens.len()];
    let markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let first = tokens.len() as u32;
    tokens.extend(markers.map(String::from));
    types.extend([3; 3]);
    writer
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "qwen35")
        .strings::<&str>("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.eos_token_id", first + 2)
        .u32("tokenizer.ggml.padding_token_id", first)
        .bool("tokenizer.ggml.add_bos_token", false)
        .str("tokenizer.chat_template", CHATML);
    (tokens, types)
}
