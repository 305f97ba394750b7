//! What a pass carries of one sequence behind its certain tokens: drafts, and how they are
//! found.
//!
//! ```text
//! columns   c0  c1 │ s  s  m  m  s      c: certain   s: forced by the schema   m: may be rejected
//! planes           ▲     ▲  ▲     ▲     a state before every column that may be rejected, and at
//!                                       the end
//! choices          ?     ?  ?     ?     logits where there is a choice, of the allowed rows only
//! ```

use crate::executor::DraftOutput;
use crate::generation::{Generation, Need};
use crate::lookup;
use crate::pass::DraftHead;
use crate::speculation::{Costs, Rates, Source};
use crate::switches::Switches;
use crate::tokenizer::Tokenizer;

/// Most columns of a sequence in a pass, certain ones included.
pub(crate) const COLUMNS: usize = 8;

/// The columns of one sequence in a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    /// The certain tokens, then the drafts.
    pub(crate) tokens: Vec<u32>,
    /// How many are certain. None behind a prompt, whose last token is.
    pub(crate) certain: usize,
    /// Where the drafts come from.
    pub(crate) sources: Vec<Source>,
    /// What the choice at each draft's place needs, and that behind the last column. Empty
    /// where certain tokens are left over.
    pub(crate) needs: Vec<Need>,
    /// Certain tokens that had no room.
    pub(crate) rest: Vec<u32>,
}

impl Chain {
    /// Draft `at`, where it comes from and its token.
    pub(crate) fn draft(&self, at: usize) -> Option<(Source, u32)> {
        Some((*self.sources.get(at)?, *self.tokens.get(self.certain + at)?))
    }

    /// Whether column `at` may be rejected though all before it are accepted.
    fn may_fail(&self, at: usize) -> bool {
        let source = at.checked_sub(self.certain).and_then(|draft| self.sources.get(draft));
        source.is_some_and(|s| *s != Source::Schema)
    }

    /// Numbers of columns after which a state must be kept, but for none and all of them.
    pub(crate) fn planes(&self) -> Vec<usize> {
        (1..self.tokens.len()).filter(|at| self.may_fail(*at)).collect()
    }

    /// Leaves the columns from `at` on, a draft's, out of the pass.
    pub(crate) fn cut(&mut self, at: usize) {
        let drafts = at.saturating_sub(self.certain);
        self.tokens.truncate(at);
        self.sources.truncate(drafts);
        self.needs.truncate(drafts + 1);
    }
}

/// What drafting goes by.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) switches: &'a Switches,
    pub(crate) costs: &'a Costs,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Tokens of the draft matrix's rows, where MTP drafts come from one.
    pub(crate) draft_ids: Option<&'a [u32]>,
}

/// A step of the MTP block that a drafter waits for.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The column whose token it takes.
    pub(crate) column: usize,
    /// The hidden row that the step before left; `None` for the first.
    pub(crate) hidden: Option<Vec<f32>>,
    pub(crate) head: DraftHead,
}

/// How far the MTP block is in a chain.
#[derive(Debug, Default)]
struct Cursor {
    /// Steps made, one a column from the first on.
    steps: usize,
    hidden: Option<Vec<f32>>,
    /// The rows asked of the step in flight; `None` for those of [`DraftHead::Whole`].
    rows: Option<std::sync::Arc<[u32]>>,
    /// What it drafts for the place behind the last column.
    draft: Option<u32>,
}

/// Finds the drafts of one chain.
#[derive(Debug)]
pub(crate) struct Drafter {
    chain: Chain,
    columns: usize,
    /// Drafts that may still be added though they may be rejected.
    left: usize,
    text: Vec<u32>,
    mtp: Option<Cursor>,
    /// The chance that all columns so far are accepted.
    reach: f64,
    /// Tokens the pass is expected to give, and its time.
    expected: f64,
    time: f64,
    over: bool,
}

impl Drafter {
    /// `certain` tokens are to be fed, of which `columns` fit. `mtp` says whether the MTP
    /// block may draft: the live state is that before the first of them.
    pub(crate) fn new(
        prompt: &[u32],
        generation: &Generation,
        certain: Vec<u32>,
        columns: usize,
        mtp: bool,
        terms: Terms<'_>,
    ) -> Self {
        let mut tokens = certain;
        let rest = tokens.split_off(tokens.len().min(columns));
        let (switches, lookup) = (terms.switches, terms.switches.lookup_drafts);
        let text = if lookup { [prompt, generation.answer()].concat() } else { Vec::new() };
        Drafter {
            over: !rest.is_empty(),
            columns,
            left: if switches.speculate { usize::from(switches.drafts) } else { 0 },
            text,
            mtp: (mtp && switches.drafts_with_mtp()).then(Cursor::default),
            reach: 1.0,
            expected: 1.0,
            time: terms.costs.pass(tokens.len()),
            chain: Chain { certain: tokens.len(), tokens, rest, ..Chain::default() },
        }
    }

    /// Adds drafts until one needs a step of the MTP block, which [`Drafter::stepped`] brings.
    /// `None` once the chain is complete.
    pub(crate) fn advance(
        &mut self,
        generation: &mut Generation,
        rates: &mut Rates,
        terms: Terms<'_>,
    ) -> Option<Step> {
        while !self.over {
            let switches = terms.switches;
            let full = self.chain.tokens.len() >= self.columns;
            let forced = if switches.speculate && switches.schema_drafts && !full {
                generation.forced(terms.tokenizer)
            } else {
                None
            };
            let need = generation.need(switches.restricted_head, forced.is_some(), terms.tokenizer);
            if let Some(id) = forced {
                self.push(id, Source::Schema, need, generation, rates, terms);
                continue;
            }
            match self.choose(full, generation, rates, terms) {
                Some((Source::Mtp(_), None)) => return Some(self.step(need)),
                Some((source, Some(id))) => self.push(id, source, need, generation, rates, terms),
                _ => {
                    self.chain.needs.push(need);
                    self.over = true;
                }
            }
        }
        None
    }

    /// The best draft that pays, with its token where that is known already.
    fn choose(
        &self,
        full: bool,
        generation: &mut Generation,
        rates: &mut Rates,
        terms: Terms<'_>,
    ) -> Option<(Source, Option<u32>)> {
        if full || self.left == 0 {
            return None;
        }
        let costs = terms.costs;
        let mut best: Option<(f64, Source, Option<u32>)> = None;
        let mut passed_over = None;
        let mut weigh = |source: Source, id: Option<u32>, cost: f64| {
            let gain = self.reach * rates.chance(source) / cost;
            if gain > self.expected / self.time {
                if best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, source, id));
                }
            } else if self.reach == 1.0 && rates.passed_over(source) {
                passed_over = Some((source, id));
            }
        };
        if terms.switches.lookup_drafts
            && let Some((id, length)) = lookup::find(&self.text)
            && generation.may_follow(id, terms.tokenizer)
        {
            weigh(Source::Lookup(length), Some(id), costs.of(0));
        }
        if let Some(cursor) = &self.mtp {
            let steps = self.chain.tokens.len() - cursor.steps;
            weigh(Source::Mtp(cursor.steps + steps), cursor.draft, costs.of(steps));
        }
        best.map(|(_, source, id)| (source, id)).or(passed_over)
    }

    fn push(
        &mut self,
        id: u32,
        source: Source,
        need: Need,
        generation: &mut Generation,
        rates: &mut Rates,
        terms: Terms<'_>,
    ) {
        self.chain.needs.push(need);
        if !generation.look_past(id) {
            self.over = true;
            return;
        }
        self.chain.tokens.push(id);
        self.chain.sources.push(source);
        self.text.push(id);
        if source != Source::Schema {
            self.left -= 1;
        }
        self.reach *= rates.chance(source);
        self.expected += self.reach;
        self.time += terms.costs.of(0);
        if let Some(cursor) = &mut self.mtp {
            cursor.draft = None;
        }
    }

    /// The next step towards a draft behind the last column.
    fn step(&mut self, need: Need) -> Step {
        let columns = self.chain.tokens.len();
        let Some(cursor) = &mut self.mtp else {
            return Step { column: 0, hidden: None, head: DraftHead::None };
        };
        cursor.rows = match need {
            Need::Rows(rows) => Some(rows),
            _ => None,
        };
        let head = match &cursor.rows {
            _ if cursor.steps + 1 < columns => DraftHead::None,
            Some(rows) => DraftHead::Rows(std::sync::Arc::clone(rows)),
            None => DraftHead::Whole,
        };
        Step { column: cursor.steps, hidden: cursor.hidden.take(), head }
    }

    /// Takes what the step brought; nothing where the model cannot draft. `rates` are the client's and
    /// those of all.
    pub(crate) fn stepped(
        &mut self,
        output: Option<DraftOutput>,
        generation: &mut Generation,
        rates: [&mut Rates; 2],
        terms: Terms<'_>,
    ) {
        let (Some(output), Some(mut cursor)) = (output, self.mtp.take()) else { return };
        cursor.steps += 1;
        cursor.hidden = Some(output.hidden);
        self.time += terms.costs.of(1) - terms.costs.of(0);
        if let Some(logits) = output.logits {
            let ids = cursor.rows.as_deref().or(terms.draft_ids);
            let of = |row: usize| ids.map_or(row as u32, |ids| ids[row]);
            let mut best: Option<(u32, f32)> = None;
            let allowed = generation.allowed();
            for (row, logit) in logits.iter().enumerate() {
                let id = of(row);
                let may = allowed.as_ref().is_none_or(|mask| mask.is_allowed(id));
                if may && best.is_none_or(|(_, most)| *logit > most) {
                    best = Some((id, *logit));
                }
            }
            let id = best.map(|(id, _)| id).filter(|id| generation.may_follow(*id, terms.tokenizer));
            if id.is_none() {
                // It would draft the answer's end, or nothing that is allowed: paid for all the same.
                for rates in rates {
                    rates.note(Source::Mtp(cursor.steps), false);
                }
                return;
            }
            cursor.draft = id;
        }
        self.mtp = Some(cursor);
    }

    /// The token of a column so far.
    pub(crate) fn token(&self, column: usize) -> u32 {
        self.chain.tokens[column]
    }

    /// The chain, once [`Drafter::advance`] has given `None`.
    pub(crate) fn finish(self, generation: &mut Generation) -> Chain {
        generation.look_back();
        self.chain
    }
}
