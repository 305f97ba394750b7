//! The draft matrix: the rows of the output matrix that drafts are chosen from.
//!
//! A draft needs no full vocabulary: what is accepted is the target's choice anyway. `tandem
//! model trim-draft` copies the rows of some tokens into the model file:
//!
//! ```text
//! tandem.draft.ids   u32[rows]  token of each row, ascending
//! tandem.draft.type  string     element type of the rows, such as "Q6_K"
//! behind the last tensor's data, at the next multiple of 32: the rows, one after the other
//! ```
//!
//! The rows are no tensor of the file, because llama.cpp refuses files that hold a tensor its
//! model class does not know; keys and bytes that it does not know it passes over.

use super::ModelError;
use crate::gguf::{DEFAULT_ALIGNMENT, DType, Gguf};

/// Key of the rows' token ids.
pub const IDS_KEY: &str = "tandem.draft.ids";
/// Key of the rows' element type.
pub const TYPE_KEY: &str = "tandem.draft.type";

/// Where the draft matrix lies in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftMatrix {
    /// Bytes from the file's start.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Token of each row, ascending.
    pub ids: Vec<u32>,
}

impl DraftMatrix {
    /// Where the rows begin: behind all tensors.
    pub fn place(gguf: &Gguf) -> u64 {
        let end = gguf.tensors().map(|t| (t.offset + t.bytes) as u64).max().unwrap_or(0);
        end.next_multiple_of(DEFAULT_ALIGNMENT.into())
    }

    /// The matrix of a file, checked: `hidden` values a row, ids below `vocabulary`. `None`
    /// where the file has none.
    pub fn read(gguf: &Gguf, hidden: u32, vocabulary: u32) -> Result<Option<Self>, ModelError> {
        let meta = gguf.meta();
        if !meta.contains(IDS_KEY) {
            return Ok(None);
        }
        let refuse =
            |key: &str, value: String, need: String| Err(ModelError::Config { key: key.into(), value, need });
        let ids = meta.u32s(IDS_KEY)?;
        if ids.is_empty() {
            return refuse(IDS_KEY, "empty".into(), "a draft matrix has at least one row".into());
        }
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
            let value = format!("{} before {}", pair[0], pair[1]);
            return refuse(IDS_KEY, value, "ids must be ascending, each once".into());
        }
        if let Some(id) = ids.iter().find(|id| **id >= vocabulary) {
            let need = format!("the output matrix has only {vocabulary} rows");
            return refuse(IDS_KEY, format!("id {id}"), need);
        }
        let name = meta.str(TYPE_KEY)?;
        let Some(dtype) = DType::ALL.into_iter().find(|t| t.name() == name) else {
            let known = DType::ALL.map(DType::name).join(", ");
            return refuse(TYPE_KEY, format!("{name:?}"), format!("the types are {known}"));
        };
        let Some(row) = dtype.bytes_of(hidden.into()) else {
            let need = format!("rows of {hidden} values are no whole blocks of it");
            return refuse(TYPE_KEY, name.into(), need);
        };
        let offset = Self::place(gguf);
        let size = AsRef::<[u8]>::as_ref(&*gguf.map()).len() as u64;
        let bytes = size.saturating_sub(offset);
        let need = row * ids.len() as u64;
        if bytes != need {
            let value = format!("{} rows of {name}, {need} bytes", ids.len());
            let text = format!(
                "{bytes} bytes follow the last tensor; write the file again with `tandem model trim-draft`"
            );
            return refuse(IDS_KEY, value, text);
        }
        Ok(Some(DraftMatrix { offset, dtype, ids }))
    }
}
