//! `chat`, llama.cpp's placement: made for conversations that grow at the end.
#![no_std]

use tandem_policy::{BoundaryKind, PlaceRequest, Placement, Positions};

/// Distances from the prompt's end at which state is saved.
const BEFORE_END: [u32; 2] = [4, 516];

/// Earlier user messages are saved only this far past the last save.
const EVERY: u32 = 8192;

/// Saves 4 and 516 tokens before the prompt's end and where the last user
/// message begins; at earlier user messages only every 8,192 tokens. Evicts the
/// least recently used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat;

impl Placement for Chat {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        for distance in BEFORE_END {
            if let Some(p) = request.prompt.checked_sub(distance)
                && p > request.restored
            {
                positions.push(p);
            }
        }
        let last = request.last_user_message();
        let mut saved = request.restored;
        for b in request.boundaries {
            if b.kind != BoundaryKind::USER || b.token <= request.restored {
                continue;
            }
            if Some(b.token) == last || b.token - saved > EVERY {
                positions.push(b.token);
                saved = b.token;
            }
        }
    }
}

tandem_policy::export_placement!(Chat);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{Boundary, Cost};

    fn placed(restored: u32, prompt: u32, users: &[u32]) -> Positions {
        let mut boundaries = [Boundary { token: 0, kind: BoundaryKind::USER }; 8];
        for (b, &token) in boundaries.iter_mut().zip(users) {
            b.token = token;
        }
        let request = PlaceRequest {
            prompt,
            shared: restored,
            restored,
            kept: &[],
            cap: 8,
            bytes_left: u64::MAX,
            checkpoint_bytes: 1,
            cost: Cost::PHONE,
            pass_limit: 512,
            max_saves: 6,
            boundaries: &boundaries[..users.len()],
        };
        let mut positions = Positions::new();
        Chat.place(&request, &mut positions);
        positions.clamp(&request);
        positions
    }

    #[test]
    fn saves_near_the_end_and_at_the_last_user_message() {
        assert_eq!(placed(0, 1000, &[3, 300]).as_slice(), [300, 484, 996]);
        assert_eq!(placed(0, 500, &[3]).as_slice(), [3, 496]);
        assert_eq!(placed(0, 2, &[]).as_slice(), []);
    }

    #[test]
    fn what_lies_before_the_restored_state_is_not_saved_again() {
        assert_eq!(placed(600, 1000, &[3, 300]).as_slice(), [996]);
    }

    #[test]
    fn earlier_user_messages_are_saved_only_far_apart() {
        assert_eq!(
            placed(0, 30_000, &[3, 5000, 9000, 20_000, 29_000]).as_slice(),
            [9000, 20_000, 29_000, 29_484, 29_996]
        );
    }
}
