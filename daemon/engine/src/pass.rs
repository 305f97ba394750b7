//! A pass: token columns of one or more sequences that go through the model together.

use crate::state::{KvCache, State};
use std::sync::Arc;
use tandem_program::{BufferId, DType, Tensor};

/// What kind of columns a segment holds. Decides the form of the recurrence, never the
/// number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Prompt tokens: chunked recurrence.
    Prefill,
    /// The last accepted token and its drafts: per token.
    Decode,
}

/// Consecutive columns of one sequence.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Prefill or decode.
    pub kind: Kind,
    /// Token ids, all below the vocabulary's size.
    pub tokens: Vec<u32>,
    /// Absolute position of the first.
    pub position: u32,
    /// The sequence's cache; holds the cells before `position`.
    pub kv: KvCache,
    /// The recurrent state before the first column.
    pub state: Arc<State>,
    /// States to write: after which column, and where to. The pass's end, saves inside it,
    /// and planes to roll back to are all entries here.
    pub states: Vec<(u32, Arc<State>)>,
    /// Columns whose logits are wanted.
    pub logits: Vec<u32>,
    /// MTP entries whose logits are wanted, by the column that carries the entry's token:
    /// column `c` stands for entry `position + c - 1`.
    pub mtp_logits: Vec<u32>,
}

/// Segments that run together. At most one prefill segment a sequence.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// In column order.
    pub segments: Vec<Segment>,
}

impl Pass {
    /// Columns of all segments.
    pub fn columns(&self) -> u32 {
        self.segments.iter().map(|s| s.tokens.len() as u32).sum()
    }
}

/// Where a lowered pass leaves its results, and what must be uploaded before it runs.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// Values the program reads.
    pub uploads: Vec<(Tensor, Vec<f32>)>,
    /// `[wanted x vocabulary]`, segment by segment, in the order asked.
    pub logits: Option<Tensor>,
    /// As `logits`, for the MTP block.
    pub mtp_logits: Option<Tensor>,
}

/// Scratch memory of a pass: hands out f32 tensors of one buffer, front to back.
#[derive(Clone, Debug)]
pub struct Arena {
    buffer: BufferId,
    used: u64,
    peak: u64,
}

impl Arena {
    /// An arena over `buffer`. It may be asked for more than the buffer holds; the caller
    /// compares [`Arena::peak`] with its size before the program runs.
    pub fn new(buffer: BufferId) -> Self {
        Arena { buffer, used: 0, peak: 0 }
    }

    /// A fresh dense tensor.
    pub fn take(&mut self, rows: u32, width: u32) -> Tensor {
        let tensor = Tensor::dense(self.buffer, self.used, DType::F32, rows, width);
        self.used += (u64::from(rows) * u64::from(width) * 4).next_multiple_of(64);
        self.peak = self.peak.max(self.used);
        tensor
    }

    /// A place to come back to.
    pub fn mark(&self) -> u64 {
        self.used
    }

    /// Forgets everything taken since `mark`.
    pub fn release(&mut self, mark: u64) {
        self.used = mark;
    }

    /// Bytes needed at most so far.
    pub fn peak(&self) -> u64 {
        self.peak
    }
}
