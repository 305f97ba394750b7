//! Keeps request texts from becoming special tokens.
//!
//! A marker such as `<|im_end|>` is recognised in the rendered text by its characters.
//! A request text could hold one whole, or supply a part that the template's own text
//! or another request text completes. [`Guard`] puts the character U+FDD0
//!
//! - after every character that begins some marker (`<`),
//! - before every character that ends some marker (`>`),
//! - inside a text that is exactly what some marker has between the two (`think`,
//!   which a template that writes `<{{ name }}>` would complete).
//!
//! A marker match that takes its first or its last character from a request text is so
//! broken, and one that takes both from the template needs the third rule. After the
//! markers are cut out of the rendered text the guards are removed, before
//! normalisation and splitting, so ordinary text keeps its ids. A vocabulary's markers
//! of a single character cannot be broken this way and are not recognised in prompts.
//!
//! The one exception: in an *assistant's* message, user-defined markers (`<think>`,
//! `<tool_call>`) stay as they are. They are what the model itself wrote in an earlier
//! answer, templates look for them to drop old thoughts, and the cached prefix holds
//! them as tokens. Control tokens are guarded there too.
//!
//! U+FDD0 to U+FDEF are noncharacters, set aside by Unicode for such internal use; in
//! request texts they are removed first.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::TemplateError;
use crate::tokenizer::{TokenKind, Tokenizer};

/// The guard character.
pub(super) const GUARD: char = '\u{fdd0}';

/// Whether a character is one of the private ones.
pub(super) fn is_private(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// `text` with all guards removed.
pub(crate) fn without_guards(text: &str) -> Cow<'_, str> {
    if text.contains(GUARD) { Cow::Owned(text.replace(GUARD, "")) } else { Cow::Borrowed(text) }
}

/// Guards texts for one vocabulary's markers.
#[derive(Debug)]
pub struct Guard {
    /// Characters that begin some marker; a handful, so a list is the fastest set.
    firsts: Vec<char>,
    lasts: Vec<char>,
    inners: HashSet<String>,
    /// User-defined markers, which an assistant's text may hold.
    user_defined: Option<AhoCorasick>,
}

impl Guard {
    /// For the markers of `tokenizer`.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let mut guard =
            Self { firsts: Vec::new(), lasts: Vec::new(), inners: HashSet::new(), user_defined: None };
        let mut user_defined = Vec::new();
        for (text, id) in tokenizer.markers() {
            let mut chars = text.chars();
            guard.firsts.extend(chars.next());
            guard.lasts.extend(chars.next_back());
            guard.inners.insert(chars.as_str().to_owned());
            if tokenizer.kind(id) == TokenKind::UserDefined {
                user_defined.push(text);
            }
        }
        guard.inners.remove("");
        for ends in [&mut guard.firsts, &mut guard.lasts] {
            ends.sort_unstable();
            ends.dedup();
        }
        if !user_defined.is_empty() {
            let matcher = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(user_defined)
                .map_err(|error| TemplateError::Markers { reason: error.to_string() })?;
            guard.user_defined = Some(matcher);
        }
        Ok(guard)
    }

    /// A request text, guarded.
    pub fn text(&self, text: &str) -> String {
        let clean: Cow<'_, str> = if text.contains(is_private) {
            Cow::Owned(text.chars().filter(|&c| !is_private(c)).collect())
        } else {
            Cow::Borrowed(text)
        };
        let mut out = String::with_capacity(clean.len());
        self.push(&clean, &mut out);
        out
    }

    /// An assistant's text, guarded except for user-defined markers.
    pub fn assistant_text(&self, text: &str) -> String {
        let Some(matcher) = &self.user_defined else { return self.text(text) };
        let clean: String = text.chars().filter(|&c| !is_private(c)).collect();
        let mut out = String::with_capacity(clean.len());
        let mut at = 0;
        for found in matcher.find_iter(&clean) {
            self.push(&clean[at..found.start()], &mut out);
            out.push_str(&clean[found.range()]);
            at = found.end();
        }
        self.push(&clean[at..], &mut out);
        out
    }

    fn push(&self, text: &str, out: &mut String) {
        let start = out.len();
        for c in text.chars() {
            if self.lasts.contains(&c) && !out[start..].ends_with(GUARD) {
                out.push(GUARD);
            }
            out.push(c);
            if self.firsts.contains(&c) {
                out.push(GUARD);
            }
        }
        if self.inners.contains(text.trim())
            && let Some((at, c)) =
                out[start..].char_indices().find(|(_, c)| !c.is_whitespace() && *c != GUARD)
        {
            out.insert(start + at + c.len_utf8(), GUARD);
        }
    }
}
