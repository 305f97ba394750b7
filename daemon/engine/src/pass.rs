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
    /// Columns whose logits are wanted, all rows of the output matrix.
    pub logits: Vec<u32>,
    /// Columns of which some rows are wanted only (the restricted output head), and which.
    pub restricted: Vec<(u32, Arc<[u32]>)>,
    /// Whether the MTP block runs over the segment.
    pub mtp: bool,
    /// MTP entries whose logits are wanted, by the column that carries the entry's token:
    /// column `c` stands for entry `position + c - 1`.
    pub mtp_logits: Vec<u32>,
}

impl Segment {
    /// A segment of which nothing is wanted yet but its cells.
    pub fn new(kind: Kind, tokens: Vec<u32>, position: u32, kv: KvCache, state: Arc<State>) -> Self {
        Segment {
            kind,
            tokens,
            position,
            kv,
            state,
            states: Vec::new(),
            logits: Vec::new(),
            restricted: Vec::new(),
            mtp: false,
            mtp_logits: Vec::new(),
        }
    }
}

/// Segments that run together. Several of one sequence follow each other: a later one may
/// start from a state that an earlier one writes.
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
    /// `[1 x rows]` each, segment by segment, in the order asked.
    pub restricted: Vec<Tensor>,
    /// As `logits`, for the MTP block.
    pub mtp_logits: Option<Tensor>,
}

/// One step of the MTP block alone, to draft: a column a sequence.
///
/// Its cells are provisional where the hidden row is the block's own: the pass that verifies
/// the drafts carries the same tokens and writes the true entries over them.
#[derive(Clone, Debug)]
pub struct DraftColumn {
    /// The token whose successor is drafted.
    pub token: u32,
    /// Its absolute position, at least 1; the entry is the one before.
    pub position: u32,
    /// The sequence's cache; holds the MTP cells before the entry.
    pub kv: KvCache,
    /// The sequence's state before the token.
    pub state: Arc<State>,
    /// The hidden row of the position before: the one kept with `state`, or this, which the
    /// step before left.
    pub hidden: Option<Vec<f32>>,
    /// What is wanted of the output matrix.
    pub head: DraftHead,
}

/// Rows of the output matrix that a draft is chosen from.
#[derive(Clone, Debug)]
pub enum DraftHead {
    /// None: the entry is made for the steps after it.
    None,
    /// Those of the draft matrix, where the file has one and it is switched on, else all.
    Whole,
    /// These of the whole matrix.
    Rows(Arc<[u32]>),
}

/// Where a lowered draft step leaves its results.
#[derive(Clone, Debug, Default)]
pub struct LoweredDraft {
    /// Values the program reads.
    pub uploads: Vec<(Tensor, Vec<f32>)>,
    /// `[columns x hidden]`: what the next step takes for the hidden row.
    pub hidden: Option<Tensor>,
    /// `[1 x rows]`, a column that has a head.
    pub logits: Vec<Option<Tensor>>,
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
