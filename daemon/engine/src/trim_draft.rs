//! Adds the draft matrix to a model file; see [`crate::model::draft_matrix`].

use crate::gguf::{Gguf, GgufError, GgufWriter, TensorInfo, WriteError};
use crate::model::draft_matrix::{IDS_KEY, TYPE_KEY};
use crate::model::{ModelError, qwen35};
use crate::tokenizer::{TokenKind, Tokenizer, TokenizerError};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Of the rows, this many in 32,768 go to the first CJK tokens.
const CJK_ROWS: usize = 8_000;
/// The usual number of rows.
pub const ROWS: usize = 32_768;

/// Which tokens the draft matrix gets, by these in turn until `rows` are there: special and
/// byte tokens; the first CJK tokens; the corpus's tokens, most frequent first; the others by id.
#[derive(Clone, Debug)]
pub struct TrimDraft<'a> {
    /// Rows of the matrix; all of the vocabulary's where it has fewer.
    pub rows: usize,
    /// Texts like those that will be drafted: answers, and prompts that are copied from.
    pub corpus: &'a [String],
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// Rows of the draft matrix.
    pub rows: usize,
    /// Their size, bytes.
    pub matrix: u64,
    /// Size of the file, bytes.
    pub file: u64,
}

/// Why a draft matrix cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// The model file cannot be read.
    #[error("model {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// The model is none that this engine runs.
    #[error("model {}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelError,
    },
    /// Its vocabulary, or a text of the corpus.
    #[error("model {}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TokenizerError,
    },
    /// Nothing would use the matrix.
    #[error("model {} has no MTP block, so nothing would draft with a draft matrix", path.display())]
    NoMtp {
        /// The file.
        path: PathBuf,
    },
    /// Too few rows.
    #[error(
        "{rows} rows are too few: special and byte tokens alone are {least}; give --rows {least} or more"
    )]
    Rows {
        /// Rows asked for.
        rows: usize,
        /// The fewest.
        least: usize,
    },
    /// The new file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: WriteError,
    },
}

impl TrimDraft<'_> {
    /// Writes `output`: the model of `input` with a draft matrix, in place of one it may have.
    /// The two may be the same path.
    pub fn write(&self, input: &Path, output: &Path) -> Result<Trimmed, TrimError> {
        let path = || input.to_owned();
        let gguf = Gguf::open(input).map_err(|source| TrimError::Read { path: path(), source })?;
        let model = |source: ModelError| TrimError::Model { path: path(), source };
        let architecture = gguf.meta().str("general.architecture").map_err(|e| model(e.into()))?;
        if architecture != "qwen35" {
            return Err(model(ModelError::Architecture { found: architecture.into() }));
        }
        let config = qwen35::Config::read(&gguf).map_err(model)?;
        if !config.mtp {
            return Err(TrimError::NoMtp { path: path() });
        }
        let own = format!("blk.{}.nextn.shared_head_head.weight", config.recurrent.len());
        let names = [own.as_str(), "output.weight", "token_embd.weight"];
        let head = names.into_iter().find_map(|name| gguf.tensor(name));
        let head = head
            .ok_or_else(|| model(GgufError::MissingTensor { tensor: "token_embd.weight".into() }.into()))?;
        let ids = self.ids(input, &gguf, head)?;
        let partial = PathBuf::from(format!("{}.partial", output.display()));
        let written = write(&gguf, head, &ids, &partial)
            .and_then(|written| std::fs::rename(&partial, output).map(|()| written).map_err(Into::into));
        written.map_err(|source| {
            // What is left of it is of no use; that it cannot be removed is no news either.
            let _ = std::fs::remove_file(&partial);
            TrimError::Write { path: output.to_owned(), source }
        })
    }

    fn ids(&self, input: &Path, gguf: &Gguf, head: &TensorInfo) -> Result<Vec<u32>, TrimError> {
        let fail = |source| TrimError::Tokenizer { path: input.to_owned(), source };
        let tokenizer = Tokenizer::from_gguf(gguf).map_err(fail)?;
        let all = 0..tokenizer.vocab_size().min(head.rows()) as u32;
        let real = |id: &u32| tokenizer.kind(*id) != TokenKind::Unused;
        let mut chosen: BTreeSet<u32> = all
            .clone()
            .filter(real)
            .filter(|id| tokenizer.is_marker(*id) || tokenizer.token_bytes(*id).len() == 1)
            .collect();
        if chosen.len() > self.rows {
            return Err(TrimError::Rows { rows: self.rows, least: chosen.len() });
        }
        let cjk = all.clone().filter(real).filter(|id| is_cjk(tokenizer.token_bytes(*id)));
        let cjk: Vec<u32> = cjk.take((CJK_ROWS * self.rows).div_ceil(ROWS)).collect();
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for text in self.corpus {
            for id in tokenizer.encode(text, false).map_err(fail)? {
                *counts.entry(id).or_default() += 1;
            }
        }
        let mut frequent: Vec<(u32, u64)> = counts.into_iter().filter(|(id, _)| real(id)).collect();
        frequent.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let others = all.clone().filter(real);
        for id in cjk.into_iter().chain(frequent.into_iter().map(|(id, _)| id)).chain(others) {
            if chosen.len() >= self.rows {
                break;
            }
            if all.contains(&id) {
                chosen.insert(id);
            }
        }
        Ok(chosen.into_iter().collect())
    }
}

fn is_cjk(bytes: &[u8]) -> bool {
    let of = |c: char| matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}');
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().any(of))
}

fn write(gguf: &Gguf, head: &TensorInfo, ids: &[u32], path: &Path) -> Result<Trimmed, WriteError> {
    let mut writer = GgufWriter::new();
    writer.copy_keys(gguf, |key| key != IDS_KEY && key != TYPE_KEY);
    writer.u32s(IDS_KEY, ids).str(TYPE_KEY, head.dtype.name());
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.dtype, &tensor.shape)?;
    }
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    writer.write(&mut out, |name, out| {
        // Every name comes from this file.
        gguf.tensor(name).map_or(Ok(()), |tensor| out.write_all(gguf.data(tensor)))
    })?;
    let (data, row) = (gguf.data(head), head.bytes / head.rows());
    for id in ids {
        out.write_all(&data[*id as usize * row..][..row])?;
    }
    let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    Ok(Trimmed { rows: ids.len(), matrix: (row * ids.len()) as u64, file: file.metadata()?.len() })
}
