//! The answer of a placement policy, without an allocation.

use crate::PlaceRequest;

/// Positions to save, most wanted first. Holds [`Positions::CAPACITY`]; what is
/// pushed past that is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    items: [u32; Self::CAPACITY],
    len: usize,
}

impl Default for Positions {
    fn default() -> Self {
        Self::new()
    }
}

impl Positions {
    /// Most positions of one answer.
    pub const CAPACITY: usize = 64;

    /// An empty answer: save nowhere.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: [0; Self::CAPACITY], len: 0 }
    }

    /// Adds a position; false when the answer is full.
    pub fn push(&mut self, position: u32) -> bool {
        let Some(slot) = self.items.get_mut(self.len) else {
            return false;
        };
        *slot = position;
        self.len += 1;
        true
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The positions in the order of their pushes, or sorted after [`Self::clamp`].
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.items[..self.len]
    }

    /// Drops what `request` does not allow: positions at or before the restored
    /// one or past the prompt, repeated ones, and, from the back, more than
    /// `max_saves`. Then sorts. Returns how many were dropped.
    pub fn clamp(&mut self, request: &PlaceRequest<'_>) -> usize {
        let before = self.len;
        let limit = (request.max_saves as usize).min(Self::CAPACITY);
        let mut taken = 0;
        for i in 0..before {
            let p = self.items[i];
            let fits = p > request.restored && p <= request.prompt;
            if fits && taken < limit && !self.items[..taken].contains(&p) {
                self.items[taken] = p;
                taken += 1;
            }
        }
        self.len = taken;
        self.items[..taken].sort_unstable();
        before - taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;

    fn request(restored: u32, prompt: u32, max_saves: u32) -> PlaceRequest<'static> {
        PlaceRequest {
            prompt,
            shared: restored,
            restored,
            kept: &[],
            cap: 8,
            bytes_left: u64::MAX,
            checkpoint_bytes: 1,
            cost: Cost::PHONE,
            pass_limit: 512,
            max_saves,
            boundaries: &[],
        }
    }

    #[test]
    fn clamping_keeps_the_most_wanted_that_fit_and_sorts_them() {
        let mut p = Positions::new();
        for x in [90, 10, 200, 90, 100, 50, 60] {
            p.push(x);
        }
        assert_eq!(p.clamp(&request(10, 100, 3)), 4);
        assert_eq!(p.as_slice(), [50, 90, 100]);
    }

    #[test]
    fn a_full_answer_refuses_more() {
        let mut p = Positions::new();
        for x in 0..Positions::CAPACITY as u32 {
            assert!(p.push(x));
        }
        assert!(!p.push(7));
        assert_eq!(p.as_slice().len(), Positions::CAPACITY);
        p.clamp(&request(0, 1000, u32::MAX));
        assert_eq!(p.as_slice().len(), Positions::CAPACITY - 1);
    }
}
