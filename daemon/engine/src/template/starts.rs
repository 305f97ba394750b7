//! Finds where messages start in a rendered text, whatever the template.
//!
//! For each message the first of these that knows is taken:
//!
//! 1. the end of the message before it: its content's mark, and behind that the text
//!    its role puts there (`<|im_end|>\n`), learned once a role from a rendering that
//!    stops after such a message;
//! 2. the content's own mark, and before that what another message of its role has
//!    there (`<|im_start|>user\n`);
//! 3. a rendering that stops before it, if the text begins with exactly that (tried
//!    a few times only, so that long conversations stay cheap);
//! 4. the last control token before its content that every start found so far begins
//!    with.

use std::collections::HashMap;

use super::marks::Marked;
use super::{MessageStart, Role};

/// Renderings at most for the third way.
const MAX_PROBES: usize = 4;

/// A rendering of the first so many messages, marked or not; none if it fails.
type Prefix<'a> = dyn Fn(usize, bool) -> Option<String> + 'a;

/// The search in one rendered text.
pub(super) struct Search<'a> {
    text: &'a str,
    marks: Marked,
    openers: &'a [String],
    /// What a role puts behind its content.
    tails: HashMap<Role, Option<String>>,
    /// What a role puts before its content.
    heads: HashMap<Role, &'a str>,
    probes: usize,
    /// By message.
    found: Vec<Option<usize>>,
}

impl<'a> Search<'a> {
    /// `marked` is the same rendering with marked contents.
    pub(super) fn new(text: &'a str, marked: Option<&str>, openers: &'a [String]) -> Self {
        // Marks must be invisible to the template, or their places mean nothing.
        let marks = marked.map(Marked::parse).filter(|marks| marks.text == text);
        Self {
            text,
            marks: marks.unwrap_or_default(),
            openers,
            tails: HashMap::new(),
            heads: HashMap::new(),
            probes: MAX_PROBES,
            found: Vec::new(),
        }
    }

    /// Looks for the next message, `index`. `before` is the role of the one before it.
    pub(super) fn find(&mut self, index: usize, before: Option<Role>, role: Role, prefix: &Prefix<'_>) {
        let at = before.and_then(|before| {
            self.by_tail(index, before, prefix)
                .or_else(|| self.by_head(index, role))
                .or_else(|| self.by_prefix(index, prefix))
        });
        if let (Some(at), Some(&content)) = (at, self.marks.starts.get(&index))
            && at < content
        {
            self.heads.entry(role).or_insert(&self.text[at..content]);
        }
        self.found.push(at);
    }

    /// All starts, in order. `body` is the text without the opening of the answer.
    pub(super) fn finish(mut self, roles: &[Role], body: Option<&str>) -> Vec<MessageStart> {
        let answer =
            body.filter(|body| body.len() < self.text.len() && self.text.starts_with(body)).map(str::len);
        if let Some(opener) = self.opener(answer) {
            self.fill_by_opener(opener);
        }
        if let (Some(first), Some(&role)) = (self.found.first(), roles.first())
            && first.is_none()
        {
            // Nothing says where the first message starts behind a preamble of the
            // template's own, unless a later message of its role showed its opening.
            self.found[0] = Some(self.by_head(0, role).unwrap_or(0));
        }
        let messages = self.found.iter().zip(roles).map(|(&at, &role)| (at, role));
        let mut floor = 0;
        messages
            .chain([(answer, Role::Assistant)])
            .filter_map(|(at, role)| {
                let at = at.filter(|&at| at >= floor)?;
                floor = at;
                Some(MessageStart { at, role })
            })
            .collect()
    }

    fn by_tail(&mut self, index: usize, before: Role, prefix: &Prefix<'_>) -> Option<usize> {
        let text = self.text;
        let &end = self.marks.ends.get(&(index - 1))?;
        let learn = || prefix(index, true).and_then(|p| Marked::parse(&p).tail(index - 1));
        let tail = self.tails.entry(before).or_insert_with(learn).as_ref()?;
        text[end..].starts_with(tail.as_str()).then_some(end + tail.len())
    }

    fn by_head(&self, index: usize, role: Role) -> Option<usize> {
        let &content = self.marks.starts.get(&index)?;
        let head = self.heads.get(&role)?;
        self.text[..content].ends_with(head).then_some(content - head.len())
    }

    fn by_prefix(&mut self, index: usize, prefix: &Prefix<'_>) -> Option<usize> {
        self.probes = self.probes.checked_sub(1)?;
        let prefix = prefix(index, false)?;
        self.text.starts_with(&prefix).then_some(prefix.len())
    }

    /// The control token that every start found so far begins with.
    fn opener(&self, answer: Option<usize>) -> Option<&'a str> {
        let mut starts = self.found.iter().copied().flatten().chain(answer).peekable();
        let first = *starts.peek()?;
        let opener = self
            .openers
            .iter()
            .filter(|opener| self.text[first..].starts_with(opener.as_str()))
            .max_by_key(|opener| opener.len())?;
        starts.all(|at| self.text[at..].starts_with(opener.as_str())).then_some(opener)
    }

    /// Request texts are guarded, so an opener in the text is the template's own.
    fn fill_by_opener(&mut self, opener: &str) {
        let mut floor = 0;
        for index in 0..self.found.len() {
            let content = self.marks.starts.get(&index).copied();
            if let (None, Some(content)) = (self.found[index], content)
                && floor <= content
            {
                let at = self.text[floor..content].rfind(opener);
                self.found[index] = at.map(|at| floor + at);
            }
            floor = content.into_iter().chain(self.found[index]).fold(floor, usize::max);
        }
    }
}
