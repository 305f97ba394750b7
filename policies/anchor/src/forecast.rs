//! How likely the next prompt parts from this one at which position.

use crate::lines::{Lines, Spot};
use tandem_policy::{MAX_POINTS, Point};

/// Partings remembered.
const HISTORY: usize = 64;

/// Ways to count lines (front, end, message, last parting) times ends of a line to measure from.
const VIEWS: usize = 8;

/// Groups of lines before the last parting, lines just past it, and groups of lines after those.
const RESTARTS: usize = 8;
const NEAR: usize = 8;
const FAR: usize = 12;

// The constants below were found by a random search over the traces of the test
// set and forty made-up ones of other layouts, then rounded: their neighbours
// differ by less than half a token a request.

/// What a parting counts less for every request since.
const DECAY: f32 = 0.99;
/// What a parting counts more when the one before it lay in the line of the newest one.
const SAME_LINE: f32 = 3.0;
/// The same, on top, when it lay at the same place of that line.
const SAME_PLACE: f32 = 4.0;
/// How fast a view's credit falls with the tokens between its forecast and the parting.
const NEAR_MISS: f32 = 0.25;
/// What remains of a view's old credit after each parting.
const KEEP_TRUST: f32 = 0.25;
/// Weight of the newest parting in the share of surprises.
const SURPRISE_RATE: f32 = 0.25;
/// Probability taken from the memory's forecast for each unit of surprise.
const DOUBT: f32 = 0.02;
/// Shares of what the memory does not expect: lines by length, lines just past
/// the last parting, message starts.
const BY_LENGTH: f32 = 0.1;
const BY_NEARNESS: f32 = 8.0;
const BY_MESSAGE: f32 = 0.5;
/// Part of a line's share that goes to its last token: lines are more often
/// continued by other ones than rewritten.
const LINE_END: f32 = 0.9;
/// Probability of a parting before the last one that nothing announced, as when
/// a new task begins. It keeps old checkpoints from being dropped.
const RESTART: f32 = 0.03;

const EPSILON: f32 = 1e-6;

/// One parting seen: where it lay in the prompt before it, and what went before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parting {
    spot: Spot,
    /// Lines since the parting before.
    advance: i32,
    /// The parting before.
    context: Spot,
}

impl Parting {
    /// Where `view` expects this parting to happen again in `lines`, after a parting at `last`.
    fn again(&self, view: usize, lines: &Lines, last: &Spot) -> Option<u32> {
        let s = &self.spot;
        let line = match view / 2 {
            0 => s.line,
            1 => lines.count() as i32 - s.from_end,
            2 => {
                let message = usize::try_from(s.message).ok()?;
                if message >= lines.message_count() {
                    return None;
                }
                lines.message_line(message) as i32 + s.in_message
            }
            _ => last.line + self.advance,
        };
        if view.is_multiple_of(2) {
            lines.past_start(line, s.after_start)
        } else {
            lines.short_of_end(line, s.before_end)
        }
    }
}

/// What is remembered of this slot's partings.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    ring: [Parting; HISTORY],
    seen: usize,
    trust: [f32; VIEWS],
    /// Share of the partings that no view had expected.
    surprise: f32,
    last: Spot,
}

impl Memory {
    pub(crate) const fn new() -> Self {
        Self {
            ring: [Parting { spot: Spot::ZERO, advance: 0, context: Spot::ZERO }; HISTORY],
            seen: 0,
            trust: [1.0; VIEWS],
            surprise: 0.5,
            last: Spot::ZERO,
        }
    }

    fn recent(&self) -> impl Iterator<Item = (usize, &Parting)> {
        let held = self.seen.min(HISTORY);
        (0..held).map(move |age| (age, &self.ring[(self.seen - 1 - age) % HISTORY]))
    }

    /// How much each remembered parting counts now, the newest first, and their sum.
    fn weights(&self) -> ([f32; HISTORY], f32) {
        let mut weights = [0.0; HISTORY];
        let mut total = 0.0;
        let mut decay = 1.0;
        for (age, parting) in self.recent() {
            let (then, now) = (&parting.context, &self.last);
            let mut w = decay;
            if then.line == now.line {
                w *= SAME_LINE;
                if then.after_start == now.after_start || then.before_end == now.before_end {
                    w *= SAME_PLACE;
                }
            }
            weights[age] = w;
            total += w;
            decay *= DECAY;
        }
        (weights, total)
    }

    /// Learns that the prompt after `lines` parted from it at `position`.
    pub(crate) fn learn(&mut self, lines: &Lines, position: u32) {
        let spot = lines.spot(position);
        if self.seen > 0 {
            let mut hit = [0.0f32; VIEWS];
            let (weights, total) = self.weights();
            for (age, parting) in self.recent() {
                for (view, hit) in hit.iter_mut().enumerate() {
                    if let Some(p) = parting.again(view, lines, &self.last)
                        && p <= position
                    {
                        let near = 1.0 + NEAR_MISS * (position - p) as f32;
                        *hit += weights[age] / (near * near);
                    }
                }
            }
            let mut best = 0.0f32;
            for (trust, hit) in self.trust.iter_mut().zip(hit) {
                let likely = hit / total.max(EPSILON);
                best = best.max(likely);
                *trust = (*trust * KEEP_TRUST + likely).max(EPSILON);
            }
            self.surprise += SURPRISE_RATE * ((1.0 - best) - self.surprise);
        }
        self.ring[self.seen % HISTORY] =
            Parting { spot, advance: spot.line - self.last.line, context: self.last };
        self.seen += 1;
        self.last = spot;
    }
}

/// Positions of one prompt at which the next may part, sorted, with their probability.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    points: [Point; MAX_POINTS],
    count: usize,
}

impl Forecast {
    pub(crate) const fn new() -> Self {
        Self { points: [Point { position: 0, mass: 0.0 }; MAX_POINTS], count: 0 }
    }

    pub(crate) fn points(&self) -> &[Point] {
        &self.points[..self.count]
    }

    /// Adds mass at a position; what finds no room goes to the point just before it.
    fn add(&mut self, position: u32, mass: f32) {
        let at = self.points[..self.count].partition_point(|p| p.position < position);
        if at < self.count && self.points[at].position == position {
            self.points[at].mass += mass;
        } else if self.count < MAX_POINTS {
            self.points.copy_within(at..self.count, at + 1);
            self.points[at] = Point { position, mass };
            self.count += 1;
        } else {
            self.points[at.max(1) - 1].mass += mass;
        }
    }

    /// Forecasts where the prompt after `lines` parts from it, `shared` being
    /// where `lines` parted from the prompt before.
    pub(crate) fn make(&mut self, memory: &Memory, lines: &Lines, shared: u32) {
        self.count = 0;
        let mut expected = 0.0;
        if memory.seen > 0 {
            let trusted: f32 = memory.trust.iter().map(|w| w * w).sum();
            let (weights, total) = memory.weights();
            let share = (1.0 - memory.surprise * DOUBT) / (trusted * total).max(EPSILON);
            for (age, parting) in memory.recent() {
                for view in 0..VIEWS {
                    if let Some(p) = parting.again(view, lines, &memory.last)
                        && p > 0
                        && p <= lines.prompt
                    {
                        let trust = memory.trust[view] * memory.trust[view];
                        let mass = weights[age] * trust * share;
                        self.add(p, mass);
                        expected += mass;
                    }
                }
            }
        }
        self.hedge(memory, lines, shared, 1.0 - expected);
    }

    /// Spreads `mass` over what the partings so far say nothing about.
    fn hedge(&mut self, memory: &Memory, lines: &Lines, shared: u32, mass: f32) {
        if lines.prompt == 0 {
            return;
        }
        let count = lines.count();
        let from = if memory.seen > 0 { lines.line_of(shared) } else { 0 };
        let nearness = if memory.seen > 0 { BY_NEARNESS } else { 0.0 };
        let mut messages = 0.0;
        for m in 0..lines.message_count() {
            messages += f32::from(u8::from(lines.start(lines.message_line(m)) > 0));
        }
        let begun = lines.start(from).max(1) as f32;
        let rest = lines.prompt.saturating_sub(lines.start(from)).max(1) as f32;
        let message = if messages > 0.0 { BY_MESSAGE } else { 0.0 };
        let scale = mass / (message + nearness + BY_LENGTH);
        // Lines by their length: those before the last parting (a new task), those after it.
        let mut line = 0;
        let early = from.div_ceil(RESTARTS).max(1);
        let late = (count - from.min(count)).saturating_sub(NEAR).div_ceil(FAR).max(1);
        while line < count {
            let group = if line < from {
                early.min(from - line)
            } else if line < from + NEAR {
                1
            } else {
                late
            };
            let end = (line + group).min(count);
            let (a, b) = (lines.start(line), lines.start(end));
            let length = (b - a) as f32;
            if line < from {
                self.add(a + 1, RESTART * 0.5 * length / begun);
            } else {
                let mut m = scale * BY_LENGTH * length / rest;
                let far = (line - from) as f32;
                m += scale * nearness * group as f32 / ((1.0 + far) * (2.0 + far));
                self.add((a + 1).min(b), m * (1.0 - LINE_END));
                self.add(b - 1, m * LINE_END);
            }
            line = end;
        }
        for m in 0..lines.message_count() {
            let start = lines.start(lines.message_line(m));
            if start > 0 {
                self.add(start, scale * message / messages);
                if start < shared {
                    self.add(start, RESTART * 0.5 / messages);
                }
            }
        }
    }
}
