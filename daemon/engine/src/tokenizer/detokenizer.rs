//! Text from token ids that arrive one by one.

use super::{TokenKind, Tokenizer};

/// Turns ids into text as they come; a character that is split over tokens is given
/// out with the token that completes it. Control tokens give no text.
#[derive(Debug, Clone)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    pending: PendingText,
}

impl<'a> Detokenizer<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, pending: PendingText::default() }
    }

    /// The text `id` completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.kind(id) == TokenKind::Control {
            return String::new();
        }
        self.pending.push(self.tokenizer.token_bytes(id))
    }

    /// What is left at the end: U+FFFD if a character was never completed.
    pub fn finish(self) -> String {
        self.pending.rest()
    }
}

/// Bytes of a character whose end has not come yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingText {
    bytes: Vec<u8>,
}

impl PendingText {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.bytes.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            // At the very end an incomplete character may still be completed.
            let at_end = done + invalid.len() == self.bytes.len();
            if at_end && is_incomplete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.bytes.drain(..done);
        text
    }
}

impl PendingText {
    /// What is left at the end: U+FFFD if a character was never completed.
    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Whether more bytes could make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
