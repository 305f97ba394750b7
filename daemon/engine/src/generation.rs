//! One answer in the making: from a prompt's last logits to its end.

use crate::grammar::Constraint;
use crate::request::{EngineError, Event, Finish, Request, Stats, Token};
use crate::sampler::{Sampler, top_logprobs};
use crate::tokenizer::{PendingText, TokenKind, Tokenizer};
use std::collections::VecDeque;
use std::time::Instant;

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
    accepted: Instant,
    pub(crate) stats: Stats,
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
            constraint: constraint.filter(|_| forced.is_none()),
            forced: forced.map(VecDeque::from),
            stop: request.stop.clone(),
            limit,
            top_logprobs: usize::from(request.top_logprobs),
            first_logprobs_only: request.first_logprobs_only,
            answer: Vec::new(),
            pending: PendingText::default(),
            held: String::new(),
            accepted: Instant::now(),
            stats: Stats::default(),
        }
    }

    /// Takes the logits that follow all tokens so far and chooses one.
    pub(crate) fn take(&mut self, logits: &[f32], tokenizer: &Tokenizer, events: &mut Vec<Event>) -> Next {
        let next = match self.choose(logits, tokenizer) {
            Ok(Choice::Token(id)) => self.append(id, logits, tokenizer, events),
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

    fn choose(&mut self, logits: &[f32], tokenizer: &Tokenizer) -> Result<Choice, EngineError> {
        if let Some(forced) = &mut self.forced {
            return Ok(forced.pop_front().map_or(Choice::End(None), Choice::Token));
        }
        // Rows that pad the vocabulary stand for nothing.
        let real = |id| tokenizer.kind(id) != TokenKind::Unused;
        let chosen = match &mut self.constraint {
            Some(constraint) => {
                let mask = constraint.mask()?;
                self.sampler.choose(logits, &self.answer, |id| mask.is_allowed(id) && real(id))
            }
            None => self.sampler.choose(logits, &self.answer, real),
        };
        let id = chosen.ok_or(EngineError::NothingAllowed { tokens: self.answer.len() })?;
        Ok(if tokenizer.is_end(id) { Choice::End(Some(id)) } else { Choice::Token(id) })
    }

    /// Adds a token to the answer: it is to be fed next, or the answer ends with it.
    fn append(
        &mut self,
        id: u32,
        logits: &[f32],
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<Result<u32, Finish>, EngineError> {
        if let Some(constraint) = &mut self.constraint {
            constraint.commit(id)?;
        }
        let wanted = self.top_logprobs > 0 && (self.answer.is_empty() || !self.first_logprobs_only);
        let top_logprobs = wanted.then(|| top_logprobs(logits, self.top_logprobs));
        self.answer.push(id);
        self.stats.decode_tokens += 1;
        if tokenizer.kind(id) != TokenKind::Control {
            self.held.push_str(&self.pending.push(tokenizer.token_bytes(id)));
        }
        let stopped = self.cut_at_stop();
        let finish = if stopped {
            Some(Finish::Stop)
        } else if self.constraint.as_ref().is_some_and(Constraint::is_complete) {
            Some(Finish::Schema)
        } else if self.forced.as_ref().is_some_and(VecDeque::is_empty) {
            Some(Finish::Stop)
        } else {
            (self.answer.len() as u32 >= self.limit).then_some(Finish::Length)
        };
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
        self.stats.ms = self.accepted.elapsed().as_secs_f64() * 1e3;
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
