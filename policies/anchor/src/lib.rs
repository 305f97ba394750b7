//! `anchor`: saves ahead of time where the next prompt will most likely part
//! from this one.
//!
//! Prompts of one agent part at places that repeat when they are counted in
//! lines and messages: behind the fixed rules, at the first history line that
//! moved, at the newest message. The policy remembers the partings of its slot,
//! counts each in several ways (lines from the front, from the end, within the
//! message counted from the end, since the last parting; tokens from the line's
//! start or end), learns which way of counting this client follows, and saves
//! the few positions that leave the least expected tokens to compute again.
#![no_std]

mod forecast;
mod lines;

use forecast::{Forecast, Memory};
use lines::Lines;
use tandem_policy::{Kept, PlaceRequest, Placement, Positions, choose_saves, least_loss};

/// The policy's state for one slot.
#[derive(Clone, Debug)]
pub struct Anchor {
    memory: Memory,
    /// Skeletons of the prompt being placed and of the one before, in turn.
    skeletons: [Lines; 2],
    turn: usize,
    forecast: Forecast,
}

impl Anchor {
    /// A policy that has seen nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            memory: Memory::new(),
            skeletons: [Lines::new(), Lines::new()],
            turn: 0,
            forecast: Forecast::new(),
        }
    }
}

impl Default for Anchor {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement for Anchor {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        self.turn ^= 1;
        let [even, odd] = &mut self.skeletons;
        let (lines, before) = if self.turn == 0 { (even, &*odd) } else { (odd, &*even) };
        lines.read(request);
        let lines = &*lines;
        let shared = request.shared.min(lines.prompt);
        if shared > 0 {
            // The slot may have gone on from an older prompt than the one before, out of the
            // prompt cache. Then only the new prompt is known to begin with what was shared.
            let from = if before.agrees(lines, shared) { before } else { lines };
            self.memory.learn(from, shared.min(from.prompt));
        }
        self.forecast.make(&self.memory, lines, shared);
        let price = request.cost.per_save as f32 / request.cost.per_token.max(1) as f32;
        choose_saves(
            self.forecast.points(),
            request.restored,
            request.max_saves.min(request.cap) as usize,
            price,
            positions,
        );
    }

    fn evict(&mut self, kept: &[Kept], incoming: u32) -> usize {
        least_loss(self.forecast.points(), kept, incoming)
    }
}

tandem_policy::export_placement!(Anchor);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{Boundary, BoundaryKind, Cost};

    fn place(policy: &mut Anchor, shared: u32, restored: u32, lines: &[u32], prompt: u32) -> Positions {
        let mut boundaries = [Boundary { token: 0, kind: BoundaryKind::LINE }; 64];
        for (b, &token) in boundaries.iter_mut().zip(lines) {
            b.token = token;
        }
        let request = PlaceRequest {
            prompt,
            shared,
            restored,
            kept: &[],
            cap: 8,
            bytes_left: u64::MAX,
            checkpoint_bytes: 1,
            cost: Cost::PHONE,
            pass_limit: 512,
            max_saves: 6,
            boundaries: &boundaries[..lines.len()],
        };
        let mut positions = Positions::new();
        policy.place(&request, &mut positions);
        let pushed = positions.as_slice().len();
        assert_eq!(positions.clamp(&request), 0, "it only answers what the host takes");
        assert_eq!(positions.as_slice().len(), pushed);
        positions
    }

    #[test]
    fn the_first_request_is_saved_ahead_of_any_experience() {
        let mut policy = Anchor::new();
        let positions = place(&mut policy, 0, 0, &[0, 100, 200, 300, 400], 500);
        assert!(positions.as_slice().len() >= 4, "{:?}", positions.as_slice());
    }

    #[test]
    fn a_parting_is_expected_at_the_same_line_although_earlier_lines_changed_length() {
        let mut policy = Anchor::new();
        place(&mut policy, 0, 0, &[0, 100, 200, 300], 400);
        for _ in 0..3 {
            place(&mut policy, 203, 0, &[0, 100, 200, 300], 400);
        }
        let moved = place(&mut policy, 203, 0, &[0, 130, 240, 350], 450);
        assert!(moved.as_slice().contains(&243), "{:?}", moved.as_slice());
    }

    #[test]
    fn a_parting_at_a_line_end_follows_the_line_end() {
        let mut policy = Anchor::new();
        place(&mut policy, 0, 0, &[0, 100, 110, 200], 400);
        place(&mut policy, 109, 0, &[0, 100, 117, 200], 400);
        place(&mut policy, 116, 0, &[0, 100, 105, 200], 400);
        let next = place(&mut policy, 104, 0, &[0, 100, 123, 200], 400);
        assert!(next.as_slice().contains(&122), "{:?}", next.as_slice());
    }

    #[test]
    fn extreme_numbers_do_no_harm() {
        let mut policy = Anchor::new();
        for (shared, restored, prompt) in [
            (0, 0, 0),
            (0, 0, 1),
            (u32::MAX, u32::MAX, u32::MAX),
            (u32::MAX, 0, u32::MAX),
            (5, 9, 3),
            (u32::MAX, 0, 2),
        ] {
            place(&mut policy, shared, restored, &[0, 1, 7, u32::MAX - 1, u32::MAX], prompt);
            assert!(policy.evict(&[], u32::MAX) == 0);
        }
    }
}
