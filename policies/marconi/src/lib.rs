//! `marconi`, after the Marconi paper: save where a prompt branches from the
//! cached sequence; when full, evict by recency and compute saved per byte.
#![no_std]

use tandem_policy::{Kept, PlaceRequest, Placement, Positions};

/// Weight of compute saved per byte against recency.
const EFFICIENCY: f32 = 1.0;

/// Saves at every branch point. A checkpoint's worth is its recency plus the
/// tokens that it alone saves per byte, each scaled to its greatest value in
/// the slot; the least worth goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marconi;

impl Placement for Marconi {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        if request.shared > request.restored && request.shared < request.prompt {
            positions.push(request.shared);
        }
    }

    fn evict(&mut self, kept: &[Kept], _incoming: u32) -> usize {
        let per_byte = |i: usize| {
            let before = if i == 0 { 0 } else { kept[i - 1].position };
            (kept[i].position.saturating_sub(before)) as f32 / kept[i].bytes.max(1) as f32
        };
        let most = (0..kept.len()).map(per_byte).fold(0.0, f32::max);
        let mut least = (f32::INFINITY, 0);
        for (i, k) in kept.iter().enumerate() {
            let recency = 1.0 / (1.0 + k.age as f32);
            let saved = if most > 0.0 { per_byte(i) / most } else { 0.0 };
            let worth = recency + EFFICIENCY * saved;
            if worth < least.0 {
                least = (worth, i);
            }
        }
        least.1
    }
}

tandem_policy::export_placement!(Marconi);

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(position: u32, age: u32) -> Kept {
        Kept { position, age, hits: 0, bytes: 50 }
    }

    #[test]
    fn of_equally_recent_checkpoints_the_one_that_saves_least_goes() {
        let held = [kept(300, 2), kept(310, 2), kept(600, 2)];
        assert_eq!(Marconi.evict(&held, 700), 1);
    }

    #[test]
    fn of_equally_saving_checkpoints_the_oldest_goes() {
        let held = [kept(100, 1), kept(200, 9), kept(300, 0)];
        assert_eq!(Marconi.evict(&held, 700), 1);
    }
}
