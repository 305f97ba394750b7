//! `divergence`, the Tandem paper's rule: save where this prompt parts from the
//! last one. The next prompt of the same agent tends to part there again.
#![no_std]

use tandem_policy::{PlaceRequest, Placement, Positions};

/// Tokens that a save must win over the restored state.
pub const DEFAULT_THRESHOLD: u32 = 32;

/// At most one save a request, at the shared prefix L, when L lies before the
/// prompt's end and before any image and at least `threshold` tokens past the
/// restored state. Evicts the least recently used.
#[derive(Clone, Copy, Debug)]
pub struct Divergence {
    threshold: u32,
}

impl Divergence {
    /// With another threshold, in tokens.
    #[must_use]
    pub const fn with_threshold(threshold: u32) -> Self {
        Self { threshold }
    }
}

impl Default for Divergence {
    fn default() -> Self {
        Self::with_threshold(DEFAULT_THRESHOLD)
    }
}

impl Placement for Divergence {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        let shared = request.shared;
        // An image that starts exactly at L is not part of the saved state.
        if shared < request.prompt
            && shared <= request.first_image()
            && shared.saturating_sub(request.restored) >= self.threshold.max(1)
        {
            positions.push(shared);
        }
    }
}

tandem_policy::export_placement!(Divergence);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{Boundary, BoundaryKind, Cost};

    fn placed(shared: u32, restored: u32, prompt: u32, boundaries: &[Boundary]) -> Positions {
        let mut positions = Positions::new();
        Divergence::default().place(
            &PlaceRequest {
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
                boundaries,
            },
            &mut positions,
        );
        positions
    }

    #[test]
    fn saves_where_the_prompts_part_and_nowhere_else() {
        assert_eq!(placed(309, 0, 648, &[]).as_slice(), [309]);
        assert_eq!(placed(0, 0, 648, &[]).as_slice(), []);
        assert_eq!(placed(648, 0, 648, &[]).as_slice(), []);
    }

    #[test]
    fn a_gain_below_the_threshold_is_not_worth_a_save() {
        assert_eq!(placed(331, 300, 648, &[]).as_slice(), []);
        assert_eq!(placed(332, 300, 648, &[]).as_slice(), [332]);
    }

    #[test]
    fn never_saves_past_the_start_of_an_image() {
        let image = [Boundary { token: 100, kind: BoundaryKind::IMAGE }];
        assert_eq!(placed(100, 0, 648, &image).as_slice(), [100]);
        assert_eq!(placed(101, 0, 648, &image).as_slice(), []);
    }
}
