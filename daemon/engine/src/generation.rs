//! One answer in the making: from a prompt's last logits to its end.

use crate::grammar::Constraint;
use crate::request::{DraftCounts, EngineError, Event, Finish, Request, Stats, Token};
use crate::sampler::{Sampler, top_logprobs};
use crate::speculation::Source;
use crate::tokenizer::{PendingText, TokenKind, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Where the schema allows at most one of this many tokens of the vocabulary, their rows are
/// fewer bytes than the whole matrix by far.
const FEW: usize = 8;

/// What an answer needs of a request, and how far it is. Knows no device.
pub(crate) struct Generation {
    sampler: Sampler,
    constraint: Option<Constraint>,
    forced: Option<VecDeque<u32>>,
    stop: Vec<String>,
    limit: u32,
    top_logprobs: usize,
    first_logprobs_only: bool,
    answer: Vec<u32>,
    pending: PendingText,
    held: String,
    began: Instant,
    /// The answer ended with its last token, which decoding then does not feed.
    ended_by_token: bool,
    /// Tokens looked at beyond the answer, see [`Generation::look_past`].
    ahead: Vec<u32>,
    pub(crate) stats: Stats,
}

/// What the choice of a token needs of the output matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: only one token is allowed.
    Nothing,
    /// These rows: no other token is allowed.
    Rows(Arc<[u32]>),
    /// All rows.
    Whole,
}

/// Logits to choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// The tokens the logits are of; all in order where `None`.
    pub(crate) ids: Option<&'a [u32]>,
    pub(crate) logits: &'a [f32],
}

/// What the next pass must do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Feed this token.
    Feed(u32),
    /// Nothing: the answer is over.
    Over,
}

enum Choice {
    Token(u32),
    /// The answer is over; by this end marker, where the model chose.
    End(Option<u32>),
}

impl Generation {
    /// `limit` is the most tokens the answer may have, context and request considered.
    pub(crate) fn new(
        request: &Request,
        constraint: Option<Constraint>,
        forced: Option<Vec<u32>>,
        limit: u32,
    ) -> Self {
        Generation {
            sampler: Sampler::new(request.sampling.clone()),
            constraint,
            forced: forced.map(VecDeque::from),
            stop: request.stop.clone(),
            limit,
            top_logprobs: usize::from(request.top_logprobs),
            first_logprobs_only: request.first_logprobs_only,
            answer: Vec::new(),
            pending: PendingText::default(),
            held: String::new(),
            began: Instant::now(),
            ended_by_token: false,
            ahead: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Tokens of the answer.
    pub(crate) fn answer(&self) -> &[u32] {
        &self.answer
    }

    /// Tokens of the answer that decoding one by one has fed when it chooses the next, or ends.
    pub(crate) fn fed(&self) -> usize {
        self.answer.len() - usize::from(self.ended_by_token)
    }

    fn counts(&mut self, source: Source) -> &mut DraftCounts {
        match source {
            Source::Schema => &mut self.stats.drafts.schema,
            Source::Lookup(_) => &mut self.stats.drafts.lookup,
            Source::Mtp(_) => &mut self.stats.drafts.mtp,
        }
    }

    /// Counts a draft that went through the model.
    pub(crate) fn drafted_one(&mut self, source: Source) {
        self.counts(source).drafted += 1;
    }

    /// Drafts so far.
    pub(crate) fn drafted(&self) -> DraftCounts {
        let d = &self.stats.drafts;
        DraftCounts {
            drafted: d.schema.drafted + d.lookup.drafted + d.mtp.drafted,
            accepted: d.schema.accepted + d.lookup.accepted + d.mtp.accepted,
        }
    }

    /// Whether the likeliest tokens are reported at a place of the answer.
    fn reports(&self, place: usize) -> bool {
        self.top_logprobs > 0 && (place == 0 || !self.first_logprobs_only)
    }

    /// What the choice of the next token, past those looked at, needs; `forced` tells that it
    /// is known. Without `restricted` always the whole row.
    pub(crate) fn need(&mut self, restricted: bool, forced: bool, tokenizer: &Tokenizer) -> Need {
        if !restricted || self.reports(self.answer.len() + self.ahead.len()) {
            return Need::Whole;
        }
        if forced {
            return Need::Nothing;
        }
        // An error comes up again where the token is chosen, and is told there.
        let Some(Ok(mask)) = self.constraint.as_mut().map(Constraint::mask) else { return Need::Whole };
        let count = mask.count();
        if count > tokenizer.vocab_size() / FEW {
            return Need::Whole;
        }
        let rows: Arc<[u32]> = mask.iter().filter(|id| tokenizer.kind(*id) != TokenKind::Unused).collect();
        if rows.len() <= 1 { Need::Nothing } else { Need::Rows(rows) }
    }

    /// The token that the schema forces next, past those looked at.
    pub(crate) fn forced(&mut self, tokenizer: &Tokenizer) -> Option<u32> {
        let constraint = self.constraint.as_mut()?;
        let id = match constraint.forced_tokens().first() {
            Some(id) => *id,
            None => constraint.mask().ok()?.single()?,
        };
        let may = tokenizer.kind(id) != TokenKind::Unused && !tokenizer.is_end(id);
        let recorded = self.forced.as_ref().is_none_or(|f| f.get(self.ahead.len()) == Some(&id));
        (may && recorded).then_some(id)
    }

    /// As [`Generation::forced`], where its logits are of no use to anybody either.
    pub(crate) fn known(&mut self, tokenizer: &Tokenizer) -> Option<u32> {
        if self.reports(self.answer.len() + self.ahead.len()) {
            return None;
        }
        self.forced(tokenizer)
    }

    /// Takes the tokens that must come next, if any. Gives them, or `None` where the answer
    /// ended with one of them.
    pub(crate) fn take_known(&mut self, tokenizer: &Tokenizer, events: &mut Vec<Event>) -> Option<Vec<u32>> {
        let mut taken = Vec::new();
        while let Some(id) = self.known(tokenizer) {
            if let Some(forced) = &mut self.forced {
                forced.pop_front();
            }
            self.stats.drafts.schema.drafted += 1;
            self.stats.drafts.schema.accepted += 1;
            match self.append(id, None, tokenizer, events) {
                Ok(Ok(id)) => taken.push(id),
                Ok(Err(finish)) => {
                    self.end(finish, events);
                    return None;
                }
                Err(error) => {
                    events.push(Event::Failed(error));
                    return None;
                }
            }
        }
        Some(taken)
    }

    /// Whether a draft may come next, past those looked at.
    pub(crate) fn may_follow(&mut self, id: u32, tokenizer: &Tokenizer) -> bool {
        let real = tokenizer.kind(id) != TokenKind::Unused && !tokenizer.is_end(id);
        real && self.constraint.as_mut().is_none_or(|c| c.allowed(id).unwrap_or(false))
    }

    /// The tokens allowed next, past those looked at; all where `None`.
    pub(crate) fn allowed(&mut self) -> Option<Arc<crate::grammar::TokenMask>> {
        self.constraint.as_mut().and_then(|c| c.mask().ok())
    }

    /// Looks past a token that may come next. False where nothing could follow it: then it
    /// need not go through the model at all.
    pub(crate) fn look_past(&mut self, id: u32) -> bool {
        let place = self.answer.len() + self.ahead.len();
        let last = place + 1 >= self.limit as usize
            || self.forced.as_ref().is_some_and(|f| f.len() <= self.ahead.len() + 1);
        if last {
            return false;
        }
        if let Some(constraint) = &mut self.constraint
            && (constraint.foresee(id).is_err() || constraint.is_complete())
        {
            return false;
        }
        self.ahead.push(id);
        true
    }

    /// Ends looking ahead.
    pub(crate) fn look_back(&mut self) {
        self.ahead.clear();
        // An error comes up again where the token is chosen, and is told there.
        if let Some(Err(_)) = self.constraint.as_mut().map(Constraint::return_back) {}
    }

    /// Takes the logits that follow all tokens so far, none where only one may follow, and
    /// chooses one. `draft` is what was expected.
    pub(crate) fn take(
        &mut self,
        row: Option<Row<'_>>,
        draft: Option<(Source, u32)>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Next {
        let next = match self.choose(row, tokenizer) {
            Ok(Choice::Token(id)) => {
                if let Some((source, _)) = draft.filter(|(_, draft)| *draft == id) {
                    self.counts(source).accepted += 1;
                }
                self.append(id, row, tokenizer, events)
            }
            Ok(Choice::End(marker)) => {
                // Text held back for a stop string that did not come goes with the end marker.
                let text = self.release(true) + &self.pending.rest();
                if let Some(id) = marker.filter(|_| !text.is_empty()) {
                    events.push(Event::Token(Token { id, text, top_logprobs: None }));
                }
                Ok(Err(Finish::Stop))
            }
            Err(error) => Err(error),
        };
        match next {
            Ok(Ok(id)) => Next::Feed(id),
            Ok(Err(finish)) => self.end(finish, events),
            Err(error) => {
                events.push(Event::Failed(error));
                Next::Over
            }
        }
    }

    fn choose(&mut self, row: Option<Row<'_>>, tokenizer: &Tokenizer) -> Result<Choice, EngineError> {
        if let Some(forced) = &mut self.forced {
            return Ok(forced.pop_front().map_or(Choice::End(None), Choice::Token));
        }
        if row.is_none()
            && let Some(id) = self.known(tokenizer)
        {
            return Ok(Choice::Token(id));
        }
        // Rows that pad the vocabulary stand for nothing.
        let real = |id: u32| tokenizer.kind(id) != TokenKind::Unused;
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?;
        let may = |id: u32| mask.as_ref().is_none_or(|m| m.is_allowed(id)) && real(id);
        let candidates: Vec<(u32, f32)> = match row {
            Some(Row { ids: Some(ids), logits }) => ids.iter().copied().zip(logits.iter().copied()).collect(),
            Some(Row { ids: None, logits }) => {
                (0u32..).zip(logits.iter().copied()).filter(|(id, _)| may(*id)).collect()
            }
            // One token at most: its logit would not matter.
            None => mask.iter().flat_map(|m| m.iter()).filter(|id| real(*id)).map(|id| (id, 0.0)).collect(),
        };
        let chosen = self.sampler.choose_among(candidates, &self.answer);
        let id = chosen.ok_or(EngineError::NothingAllowed { tokens: self.answer.len() })?;
        Ok(if tokenizer.is_end(id) { Choice::End(Some(id)) } else { Choice::Token(id) })
    }

    /// Adds a token to the answer: it is to be fed next, or the answer ends with it.
    fn append(
        &mut self,
        id: u32,
        row: Option<Row<'_>>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<Result<u32, Finish>, EngineError> {
        if let Some(constraint) = &mut self.constraint {
            let committed = constraint.commit(id);
            if self.forced.is_none() {
                committed?;
            } else if committed.is_err() || constraint.is_complete() {
                // A recorded answer is fed whatever the schema; it drafts as long as it fits.
                self.constraint = None;
            }
        }
        let wanted = self.reports(self.answer.len());
        let top_logprobs = row.filter(|_| wanted).map(|r| top_logprobs(r.logits, self.top_logprobs));
        self.answer.push(id);
        self.stats.decode_tokens += 1;
        if tokenizer.kind(id) != TokenKind::Control {
            self.held.push_str(&self.pending.push(tokenizer.token_bytes(id)));
        }
        let stopped = self.cut_at_stop();
        let finish = if stopped {
            Some(Finish::Stop)
        } else if self.forced.is_none() && self.constraint.as_ref().is_some_and(Constraint::is_complete) {
            Some(Finish::Schema)
        } else if self.forced.as_ref().is_some_and(VecDeque::is_empty) {
            Some(Finish::Stop)
        } else {
            (self.answer.len() as u32 >= self.limit).then_some(Finish::Length)
        };
        self.ended_by_token = finish.is_some();
        let mut text = self.release(finish.is_some());
        if finish.is_some() && !stopped {
            text.push_str(&self.pending.rest());
        }
        events.push(Event::Token(Token { id, text, top_logprobs }));
        Ok(finish.map_or(Ok(id), Err))
    }

    /// Cuts the held text in front of the first stop string in it.
    fn cut_at_stop(&mut self) -> bool {
        match self.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            Some(at) => {
                self.held.truncate(at);
                true
            }
            None => false,
        }
    }

    /// The held text that cannot become part of a stop string any more (all of it at the end).
    fn release(&mut self, all: bool) -> String {
        let keep = if all { 0 } else { self.stop.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0) };
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the answer.
    pub(crate) fn end(&mut self, finish: Finish, events: &mut Vec<Event>) -> Next {
        self.stats.ms = self.began.elapsed().as_secs_f64() * 1e3;
        let drafts = self.drafted();
        (self.stats.drafted, self.stats.accepted) = (drafts.drafted, drafts.accepted);
        events.push(Event::Done { finish, stats: self.stats.clone() });
        Next::Over
    }
}

/// Bytes at the end of `text` that begin `stop`, all of it excepted.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len()).rev().find(|n| stop.is_char_boundary(*n) && text.ends_with(&stop[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_may_begin_a_stop_string_is_held_back() {
        assert_eq!(overlap("abc", "cde"), 1);
        assert_eq!(overlap("abcd", "cde"), 2);
        assert_eq!(overlap("abcde", "cde"), 0);
        assert_eq!(overlap("x", "y"), 0);
        assert_eq!(overlap("é", "éa"), 2);
    }
}
