//! The batch planner: lays the tokens of a prompt that are left to process into passes.
//!
//! Pass ends lie on absolute multiples of 64, the grid of the chunked recurrence, except
//! the last, which is the prompt's end. A save does not end a pass, unless `in_pass_saves`
//! is off.

use tandem_program::op::CHUNK;

/// Most tokens of a pass that does not end on the grid.
pub const PASS_LIMIT: u32 = 512;
/// Most tokens of a pass that ends on the grid.
pub const GRID_PASS_LIMIT: u32 = PASS_LIMIT + CHUNK - 1;
/// Tokens before the prompt's end at which llama.cpp's server ends a batch.
const PEER_ENDS: [u32; 2] = [516, 4];

/// How passes are laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planner {
    /// The fewest passes; else llama.cpp's ends, 516 and 4 before the prompt's end.
    pub consolidate: bool,
    /// Saves inside passes; else each save ends one.
    pub in_pass_saves: bool,
}

/// Tokens `start .. end` of the prompt, in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPass {
    /// First token.
    pub start: u32,
    /// One past the last.
    pub end: u32,
    /// Positions in `(start, end]` whose state is to be saved, ascending.
    pub saves: Vec<u32>,
}

impl Planner {
    /// Passes over the tokens `restored .. prompt`, given sorted save positions in
    /// `(restored, prompt]`.
    pub fn plan(&self, restored: u32, prompt: u32, saves: &[u32]) -> Vec<PlannedPass> {
        let mut stops: Vec<u32> = Vec::new();
        if !self.in_pass_saves {
            stops.extend_from_slice(saves);
        }
        if !self.consolidate {
            stops.extend(PEER_ENDS.iter().filter_map(|back| prompt.checked_sub(*back)));
        }
        stops.push(prompt);
        stops.retain(|s| *s > restored && *s <= prompt);
        stops.sort_unstable();
        stops.dedup();
        let mut passes = Vec::new();
        let mut start = restored;
        for stop in stops {
            while start < stop {
                let end = self.end(start, stop);
                let inside = saves.iter().copied().filter(|s| *s > start && *s <= end).collect();
                passes.push(PlannedPass { start, end, saves: inside });
                start = end;
            }
        }
        passes
    }

    fn end(&self, start: u32, stop: u32) -> u32 {
        let limit = if stop.is_multiple_of(CHUNK) { GRID_PASS_LIMIT } else { PASS_LIMIT };
        if stop - start <= limit {
            return stop;
        }
        if self.consolidate {
            (start + GRID_PASS_LIMIT).min(stop) / CHUNK * CHUNK
        } else {
            start + PASS_LIMIT
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Planner = Planner { consolidate: true, in_pass_saves: true };

    fn ends(planner: Planner, restored: u32, prompt: u32, saves: &[u32]) -> Vec<u32> {
        planner.plan(restored, prompt, saves).iter().map(|p| p.end).collect()
    }

    #[test]
    fn six_hundred_tokens_take_the_stock_ends_or_two_passes() {
        let stock = Planner { consolidate: false, in_pass_saves: true };
        assert_eq!(ends(stock, 0, 600, &[]), [84, 596, 600]);
        assert_eq!(ends(OURS, 0, 600, &[]), [512, 600]);
    }

    #[test]
    fn saves_end_passes_only_where_that_is_switched_on() {
        let off = Planner { consolidate: true, in_pass_saves: false };
        assert_eq!(ends(OURS, 0, 400, &[100, 300]), [400]);
        assert_eq!(ends(off, 0, 400, &[100, 300]), [100, 300, 400]);
        assert_eq!(OURS.plan(0, 400, &[100, 300])[0].saves, [100, 300]);
    }

    #[test]
    fn every_plan_covers_its_tokens_on_the_grid_in_the_fewest_passes() {
        for restored in 0..200 {
            for prompt in restored + 1..restored + 1400 {
                let passes = OURS.plan(restored, prompt, &[]);
                let mut at = restored;
                for p in &passes {
                    assert_eq!(p.start, at);
                    assert!(p.end > p.start);
                    let len = p.end - p.start;
                    assert!(len <= PASS_LIMIT || (len <= GRID_PASS_LIMIT && p.end % CHUNK == 0));
                    assert!(p.end == prompt || p.end % CHUNK == 0);
                    at = p.end;
                }
                assert_eq!(at, prompt);
                let fewest = (prompt - restored).div_ceil(GRID_PASS_LIMIT) as usize;
                assert!(passes.len() <= fewest + 1, "{restored}..{prompt}: {passes:?}");
            }
        }
    }
}
