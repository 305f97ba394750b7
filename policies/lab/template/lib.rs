//! `NAME`: a placement policy for Tandem.
//!
//! It saves where this prompt parted from the last one, and where the last user
//! message begins. Change `place` to try an idea; `tandem policy simulate`
//! tells what it is worth on a recorded trace.
#![no_std]

use tandem_policy::{Observation, PlaceRequest, Placement, Positions};

/// The policy's state for one slot. A slot serves one client.
#[derive(Debug, Default)]
pub struct Policy {
    requests: u32,
}

impl Placement for Policy {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        // Most wanted first; what is not in (restored, prompt] is dropped by the host.
        positions.push(request.shared);
        if let Some(start) = request.last_user_message() {
            positions.push(start);
        }
    }

    fn observe(&mut self, _seen: &Observation<'_>) {
        self.requests += 1;
    }
}

tandem_policy::export_placement!(Policy);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{Boundary, BoundaryKind, Cost};

    #[test]
    fn saves_at_the_parting_and_at_the_last_user_message() {
        let request = PlaceRequest {
            prompt: 600,
            shared: 340,
            restored: 0,
            kept: &[],
            cap: 8,
            bytes_left: u64::MAX,
            checkpoint_bytes: 50 << 20,
            cost: Cost::PHONE,
            pass_limit: 512,
            max_saves: 6,
            boundaries: &[Boundary { token: 320, kind: BoundaryKind::USER }],
        };
        let mut positions = Positions::new();
        Policy::default().place(&request, &mut positions);
        positions.clamp(&request);
        assert_eq!(positions.as_slice(), [320, 340]);
    }
}
