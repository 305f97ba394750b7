//! Whether a draft pays: what drafts of each kind are worth to a client, and what columns
//! cost the device.
//!
//! Both are measured as it goes. A draft is added to a pass where it raises the pass's tokens
//! a millisecond: `chance / cost > tokens / time`, with what the pass has so far on the right.
//! Where nothing pays nothing is drafted; now and then one is, to see whether that changed.

/// Weight of an observation against what was known.
const WEIGHT: f64 = 0.15;
/// Drafting is tried again after this many passes without.
const PATIENCE: u32 = 64;
/// The MTP block runs along again after this many requests without.
const ABSENCE: u32 = 8;
/// Deepest MTP draft that is told apart.
const DEEPEST: usize = 8;

/// Where a draft comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The schema: it cannot be rejected unless a draft before it is.
    Schema,
    /// The text so far, by a match of so many tokens.
    Lookup(usize),
    /// The MTP block, so many steps after the last hidden row of the model.
    Mtp(usize),
}

/// How often one client's drafts were right.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    lookup: [f64; 3],
    mtp: [f64; DEEPEST],
    quiet_lookup: u32,
    quiet_mtp: u32,
    absent: u32,
}

impl Default for Rates {
    fn default() -> Self {
        // Of a first guess; a dozen drafts later it hardly counts.
        Rates {
            lookup: [0.35, 0.55, 0.75],
            mtp: std::array::from_fn(|depth| 0.8 * 0.85f64.powi(depth as i32)),
            quiet_lookup: 0,
            quiet_mtp: 0,
            absent: 0,
        }
    }
}

impl Rates {
    /// Where a client starts that is new to an engine which has seen `all` drafts: mostly
    /// there, not so low that its first drafts are never tried.
    pub(crate) fn of_newcomer(all: &Rates) -> Self {
        let mut rates = Rates::default();
        let pairs = rates.lookup.iter_mut().chain(&mut rates.mtp).zip(all.lookup.iter().chain(&all.mtp));
        for (own, seen) in pairs {
            *own += 0.7 * (seen - *own);
        }
        rates
    }

    fn slot(&mut self, source: Source) -> Option<&mut f64> {
        match source {
            Source::Schema => None,
            Source::Lookup(length) => Some(&mut self.lookup[length.clamp(1, 3) - 1]),
            Source::Mtp(depth) => Some(&mut self.mtp[depth.clamp(1, DEEPEST) - 1]),
        }
    }

    /// The chance that a draft is accepted if those before it are.
    pub(crate) fn chance(&mut self, source: Source) -> f64 {
        self.slot(source).map_or(1.0, |rate| *rate)
    }

    /// Whether the MTP block should run along with a request's tokens: where its first draft
    /// pays, and now and then to see whether it would.
    pub(crate) fn wants_mtp(&mut self, costs: &Costs) -> bool {
        if self.chance(Source::Mtp(1)) > costs.of(1) {
            self.absent = 0;
            return true;
        }
        self.absent += 1;
        if self.absent < ABSENCE {
            return false;
        }
        self.absent = 0;
        true
    }

    /// Records that a draft was verified.
    pub(crate) fn note(&mut self, source: Source, accepted: bool) {
        if let Some(rate) = self.slot(source) {
            *rate += WEIGHT * (f64::from(u8::from(accepted)) - *rate);
        }
        match source {
            Source::Schema => {}
            Source::Lookup(_) => self.quiet_lookup = 0,
            Source::Mtp(_) => self.quiet_mtp = 0,
        }
    }

    /// Records that a draft of the kind was to be had and did not pay. True where it is to be
    /// tried all the same.
    pub(crate) fn passed_over(&mut self, source: Source) -> bool {
        let quiet = match source {
            Source::Schema => return false,
            Source::Lookup(_) => &mut self.quiet_lookup,
            Source::Mtp(_) => &mut self.quiet_mtp,
        };
        *quiet += 1;
        if *quiet < PATIENCE {
            return false;
        }
        *quiet = 0;
        true
    }
}

/// What passes cost, in passes of one column.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// Milliseconds of a pass of one column; 0 before the first.
    pass: f64,
    /// One more column.
    column: f64,
    /// One step of the MTP block.
    step: f64,
}

impl Default for Costs {
    fn default() -> Self {
        // The paper's phone: four columns cost 1.27 passes; a step is a layer and the head.
        Costs { pass: 0.0, column: 0.09, step: 0.12 }
    }
}

/// Moves an average; a machine that stalls once says little.
fn learn(average: &mut f64, seen: f64) {
    let seen = seen.clamp(*average / 4.0, *average * 4.0);
    *average += WEIGHT * (seen - *average);
}

impl Costs {
    /// Records a decode pass.
    pub(crate) fn note_pass(&mut self, columns: usize, ms: f64) {
        let more = columns.saturating_sub(1) as f64;
        let one = ms / (1.0 + self.column * more);
        if self.pass == 0.0 {
            self.pass = one;
            return;
        }
        if columns == 1 {
            learn(&mut self.pass, ms);
        } else {
            learn(&mut self.column, ((ms / self.pass - 1.0) / more).clamp(0.01, 0.5));
            // Passes of one column may become rare; the machine drifts.
            learn(&mut self.pass, one);
        }
    }

    /// Records a step of the MTP block that served `columns` sequences.
    pub(crate) fn note_step(&mut self, columns: usize, ms: f64) {
        if self.pass > 0.0 && columns > 0 {
            learn(&mut self.step, (ms / self.pass / columns as f64).clamp(0.01, 0.5));
        }
    }

    /// One more column, and steps of the MTP block for it.
    pub(crate) fn of(&self, steps: usize) -> f64 {
        self.column + self.step * steps as f64
    }

    /// A pass of so many columns.
    pub(crate) fn pass(&self, columns: usize) -> f64 {
        1.0 + self.column * columns.saturating_sub(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_is_seen() {
        let mut rates = Rates::default();
        for _ in 0..40 {
            rates.note(Source::Mtp(1), false);
            rates.note(Source::Lookup(9), true);
        }
        assert!(rates.chance(Source::Mtp(1)) < 0.01);
        assert!(rates.chance(Source::Lookup(3)) > 0.99);
        assert_eq!(rates.chance(Source::Schema), 1.0);
    }

    #[test]
    fn a_newcomer_starts_near_what_others_got() {
        let mut all = Rates::default();
        for _ in 0..40 {
            all.note(Source::Mtp(1), false);
        }
        let mut rates = Rates::of_newcomer(&all);
        assert!((0.2..0.3).contains(&rates.chance(Source::Mtp(1))));
        assert_eq!(rates.chance(Source::Mtp(2)), Rates::default().chance(Source::Mtp(2)));
    }

    #[test]
    fn what_does_not_pay_is_tried_again_now_and_then() {
        let mut rates = Rates::default();
        let tried = (0..PATIENCE * 3).filter(|_| rates.passed_over(Source::Mtp(1))).count();
        assert_eq!(tried, 3);
    }

    #[test]
    fn the_mtp_block_runs_along_where_it_pays_and_else_now_and_then() {
        let (mut rates, costs) = (Rates::default(), Costs::default());
        assert!((0..20).all(|_| rates.wants_mtp(&costs)));
        for _ in 0..40 {
            rates.note(Source::Mtp(1), false);
        }
        assert_eq!((0..80).filter(|_| rates.wants_mtp(&costs)).count(), 10);
    }

    #[test]
    fn costs_follow_the_device() {
        let mut costs = Costs::default();
        for _ in 0..200 {
            costs.note_pass(1, 10.0);
            costs.note_pass(4, 16.0);
            costs.note_step(1, 3.0);
        }
        assert!((costs.pass(4) - 1.6).abs() < 0.1, "{costs:?}");
        assert!((costs.of(1) - 0.5).abs() < 0.1, "{costs:?}");
        costs.note_pass(1, 10_000.0);
        assert!(costs.pass < 20.0, "one stall: {costs:?}");
    }
}
