//! Model families: what a GGUF file says a model is, and how a pass over it is lowered to
//! a program.
//!
//! Each family is a folder with the same three files: `config` (the file's keys, checked),
//! `weights` (the file's tensors, checked against the config) and `lower` (a pass becomes
//! ops). A new family is a new folder and a line in [`load`].

pub mod draft_matrix;
pub mod layout;
pub mod qwen35;

pub use draft_matrix::DraftMatrix;
pub use layout::{KvLayer, RecurrentLayer, StateLayout};

use crate::gguf::{Gguf, GgufError};
use crate::pass::{Arena, DraftColumn, Lowered, LoweredDraft, Pass};
use crate::switches::Switches;
use tandem_program::{BufferId, DeviceError, Program};

/// Sizes every family has.
#[derive(Clone, Debug)]
pub struct Dims {
    /// Architecture name in the file.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Rows of the output matrix: ids from 0 up to this.
    pub vocabulary: u32,
    /// Tokens of context the model was made for.
    pub context: u32,
    /// Layers, without a draft block.
    pub layers: u32,
    /// Whether the file has a multi-token-prediction block.
    pub mtp: bool,
}

/// A loaded model: knows its shapes and weights, holds no sequence.
pub trait Family: Send {
    /// Its sizes.
    fn dims(&self) -> &Dims;

    /// What a sequence of it must keep.
    fn layout(&self) -> &StateLayout;

    /// Appends the ops of a pass to `program`.
    ///
    /// Every column's logits depend on its own sequence only, so segments of several
    /// sequences share products.
    fn lower(&self, pass: &Pass, switches: &Switches, arena: &mut Arena, program: &mut Program) -> Lowered;

    /// Appends the ops of one step of the MTP block, at least one column; `None` where the
    /// model has no such block.
    fn lower_draft(
        &self,
        columns: &[DraftColumn],
        switches: &Switches,
        arena: &mut Arena,
        program: &mut Program,
    ) -> Option<LoweredDraft>;

    /// Token ids of the draft matrix's rows, where the file has one.
    fn draft_ids(&self) -> Option<&[u32]>;
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is no good GGUF, or lacks a key or tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// An architecture this engine does not know.
    #[error("architecture {found:?} is not supported; this engine runs: qwen35")]
    Architecture {
        /// The file's `general.architecture`.
        found: String,
    },
    /// A key's value that the model cannot have.
    #[error("{key} is {value}, but {need}")]
    Config {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What would do.
        need: String,
    },
    /// The device refused the weights.
    #[error("the device could not take the weights: {0}")]
    Device(#[from] DeviceError),
}

/// Reads the model of a file whose mapping the device knows as `weights`.
pub fn load(gguf: &Gguf, weights: BufferId) -> Result<Box<dyn Family>, ModelError> {
    match gguf.meta().str("general.architecture")? {
        "qwen35" => Ok(Box::new(qwen35::Qwen35::load(gguf, weights)?)),
        other => Err(ModelError::Architecture { found: other.into() }),
    }
}
