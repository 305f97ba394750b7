//! `sparse`: a few checkpoints, placed by dynamic programming over the
//! distribution of shared prefix lengths seen so far.
#![no_std]

use tandem_policy::{Kept, MAX_POINTS, PlaceRequest, Placement, Point, Positions, choose_saves, least_loss};

/// Shared prefix lengths remembered.
const HISTORY: usize = 96;

/// Expects the next shared prefix to be one of those seen before, in tokens
/// from the prompt's start, each as likely as it was frequent; saves where that
/// leaves the least to compute again. Knows nothing of lines and messages.
#[derive(Clone, Debug)]
pub struct Sparse {
    seen: [u32; HISTORY],
    count: usize,
    points: [Point; MAX_POINTS],
    used: usize,
}

impl Default for Sparse {
    fn default() -> Self {
        Self { seen: [0; HISTORY], count: 0, points: [Point { position: 0, mass: 0.0 }; MAX_POINTS], used: 0 }
    }
}

impl Sparse {
    fn forecast(&mut self, prompt: u32) {
        let held = self.count.min(HISTORY);
        let mut sorted = self.seen;
        sorted[..held].sort_unstable();
        self.used = 0;
        for &position in sorted[..held].iter().filter(|&&p| p <= prompt) {
            let mass = 1.0 / held as f32;
            match self.points[..self.used].last_mut() {
                Some(last) if last.position == position => last.mass += mass,
                _ => {
                    self.points[self.used] = Point { position, mass };
                    self.used += 1;
                }
            }
        }
    }
}

impl Placement for Sparse {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        if request.shared > 0 {
            self.seen[self.count % HISTORY] = request.shared;
            self.count += 1;
        }
        self.forecast(request.prompt);
        let price = request.cost.per_save as f32 / request.cost.per_token.max(1) as f32;
        choose_saves(
            &self.points[..self.used],
            request.restored,
            request.max_saves.min(request.cap) as usize,
            price,
            positions,
        );
    }

    fn evict(&mut self, kept: &[Kept], incoming: u32) -> usize {
        least_loss(&self.points[..self.used], kept, incoming)
    }
}

tandem_policy::export_placement!(Sparse);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::Cost;

    fn place(policy: &mut Sparse, shared: u32, restored: u32) -> Positions {
        let request = PlaceRequest {
            prompt: 600,
            shared,
            restored,
            kept: &[],
            cap: 8,
            bytes_left: u64::MAX,
            checkpoint_bytes: 1,
            cost: Cost::PHONE,
            pass_limit: 512,
            max_saves: 2,
            boundaries: &[],
        };
        let mut positions = Positions::new();
        policy.place(&request, &mut positions);
        positions
    }

    #[test]
    fn nothing_is_saved_before_anything_was_shared() {
        assert_eq!(place(&mut Sparse::default(), 0, 0).as_slice(), []);
    }

    #[test]
    fn the_frequent_lengths_are_saved_and_the_rare_ones_are_not() {
        let mut policy = Sparse::default();
        for shared in [300, 400, 300, 390, 300, 400, 400] {
            place(&mut policy, shared, 0);
        }
        assert_eq!(place(&mut policy, 300, 0).as_slice(), [300, 390]);
    }

    #[test]
    fn more_requests_than_are_remembered_do_no_harm() {
        let mut policy = Sparse::default();
        for shared in 1..500 {
            place(&mut policy, shared, 0);
        }
        assert!(policy.used <= MAX_POINTS);
    }
}
