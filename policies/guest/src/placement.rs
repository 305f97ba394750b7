//! The placement contract: where recurrent state is saved.

use crate::Positions;

/// One checkpoint that the slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Tokens that went into the state.
    pub position: u32,
    /// Requests since this checkpoint was saved or last restored; 0 is the current one.
    pub age: u32,
    /// How often it was restored.
    pub hits: u32,
    /// Size of the state in bytes.
    pub bytes: u64,
}

/// What a [`Boundary`] marks. A code, not an enum: later hosts may add values,
/// and a policy ignores the ones that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryKind(pub u8);

impl BoundaryKind {
    /// A message begins that is not a user's (system, assistant, tool).
    pub const MESSAGE: Self = Self(0);
    /// A user's message begins.
    pub const USER: Self = Self(1);
    /// A line begins: the token before it holds a newline.
    pub const LINE: Self = Self(2);
    /// An image begins.
    pub const IMAGE: Self = Self(3);
}

/// A place in the prompt that the template or the text marks. The state after
/// `token` tokens is the state just before the marked place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Tokens before the marked place.
    pub token: u32,
    /// What begins there.
    pub kind: BoundaryKind,
}

/// What work costs on this device, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// One more prompt token in a pass.
    pub per_token: u64,
    /// One more pass.
    pub per_pass: u64,
    /// One more saved state.
    pub per_save: u64,
}

impl Cost {
    /// The phone of the paper: 1.30 ms a token, 86 ms a pass, a 50 MiB copy a save.
    pub const PHONE: Self = Self { per_token: 1_300_000, per_pass: 86_000_000, per_save: 2_000_000 };
}

/// The question of one request.
#[derive(Clone, Copy, Debug)]
pub struct PlaceRequest<'a> {
    /// N: tokens in the prompt.
    pub prompt: u32,
    /// L: tokens shared with what the slot's cache holds (the last prompt and its answer).
    pub shared: u32,
    /// R, at most L: where the state was restored; 0 when nothing was.
    pub restored: u32,
    /// Checkpoints held now, sorted by position, all at or before L.
    pub kept: &'a [Kept],
    /// Most checkpoints that the slot may hold.
    pub cap: u32,
    /// Bytes that the daemon's budget still allows.
    pub bytes_left: u64,
    /// Size of one checkpoint of this model in bytes.
    pub checkpoint_bytes: u64,
    /// What tokens, passes and saves cost here.
    pub cost: Cost,
    /// Most tokens in one pass.
    pub pass_limit: u32,
    /// Most positions that will be taken from the answer.
    pub max_saves: u32,
    /// Sorted by token; at most [`MAX_BOUNDARIES`](crate::MAX_BOUNDARIES).
    pub boundaries: &'a [Boundary],
}

impl PlaceRequest<'_> {
    /// Where the first image begins, or the prompt's end if there is none.
    #[must_use]
    pub fn first_image(&self) -> u32 {
        self.boundaries
            .iter()
            .find(|b| b.kind == BoundaryKind::IMAGE)
            .map_or(self.prompt, |b| b.token.min(self.prompt))
    }

    /// Where the last user message begins.
    #[must_use]
    pub fn last_user_message(&self) -> Option<u32> {
        self.boundaries.iter().rev().find(|b| b.kind == BoundaryKind::USER).map(|b| b.token)
    }
}

/// What came of one request.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// N: tokens in the prompt.
    pub prompt: u32,
    /// L: tokens shared with what the slot's cache held.
    pub shared: u32,
    /// R: where the state was restored.
    pub restored: u32,
    /// Tokens generated after the prompt.
    pub answer: u32,
    /// Positions that were saved, sorted.
    pub saved: &'a [u32],
}

/// Decides where recurrent state is saved in one slot.
///
/// One instance serves one slot. A position `p` means the state after the first
/// `p` tokens of the prompt; `p` may be the prompt's length. The live state
/// after an answer is kept by the engine itself and needs no save.
pub trait Placement {
    /// Asked once a request, after the restore and before the first pass; on
    /// the first request of a slot too. Pushes positions, most wanted first.
    /// What is not in (restored, prompt] or exceeds `max_saves` is dropped.
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions);

    /// Asked when a save at `incoming` finds the slot full. `kept` is sorted by
    /// position and not empty. Answers the index to drop; `kept.len()` means
    /// that the new one is not worth it. Default: the least recently used.
    fn evict(&mut self, kept: &[Kept], incoming: u32) -> usize {
        let _ = incoming;
        least_recently_used(kept)
    }

    /// Told once a request, when it is over. Default: nothing.
    fn observe(&mut self, seen: &Observation<'_>) {
        let _ = seen;
    }
}

impl<P: Placement + ?Sized> Placement for &mut P {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        (**self).place(request, positions);
    }
    fn evict(&mut self, kept: &[Kept], incoming: u32) -> usize {
        (**self).evict(kept, incoming)
    }
    fn observe(&mut self, seen: &Observation<'_>) {
        (**self).observe(seen);
    }
}

/// Index of the checkpoint that was not used for longest; of several, the earliest.
#[must_use]
pub fn least_recently_used(kept: &[Kept]) -> usize {
    let mut oldest = 0;
    for (i, k) in kept.iter().enumerate() {
        if k.age > kept[oldest].age {
            oldest = i;
        }
    }
    oldest
}
