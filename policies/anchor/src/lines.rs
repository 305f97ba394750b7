//! The skeleton of a prompt: where its lines and messages begin.

use tandem_policy::{BoundaryKind, MAX_BOUNDARIES, PlaceRequest};

/// Messages looked at, counted from the prompt's end.
const MESSAGES: usize = 64;

/// Longest prompt looked at, in tokens: positions and their differences fit an `i32`.
const LONGEST: u32 = 1 << 30;

/// Where a position lies, counted in every way that may repeat in the next prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Line, counted from the front.
    pub(crate) line: i32,
    /// Lines from this one to the prompt's end.
    pub(crate) from_end: i32,
    /// Messages from this one to the prompt's end.
    pub(crate) message: i32,
    /// Line within its message.
    pub(crate) in_message: i32,
    /// Tokens since the line's start.
    pub(crate) after_start: i32,
    /// Tokens to the next line's start.
    pub(crate) before_end: i32,
}

impl Spot {
    pub(crate) const ZERO: Self =
        Self { line: 0, from_end: 0, message: 0, in_message: 0, after_start: 0, before_end: 0 };
}

/// Line and message starts of one prompt. A message start is a line start.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    starts: [u32; MAX_BOUNDARIES],
    count: usize,
    /// Line numbers of the last message starts, the last message first.
    messages: [u32; MESSAGES],
    message_count: usize,
    /// Tokens in the prompt.
    pub(crate) prompt: u32,
}

impl Lines {
    pub(crate) const fn new() -> Self {
        Self { starts: [0; MAX_BOUNDARIES], count: 0, messages: [0; MESSAGES], message_count: 0, prompt: 0 }
    }

    /// Reads the skeleton of `request`'s prompt.
    pub(crate) fn read(&mut self, request: &PlaceRequest<'_>) {
        self.prompt = request.prompt.min(LONGEST);
        // The prompt's start is a line's start, also when nothing marks it.
        self.starts[0] = 0;
        self.count = 1;
        for b in request.boundaries {
            let known = b.kind <= BoundaryKind::LINE;
            let new = self.starts[self.count - 1] < b.token;
            if known && new && b.token < self.prompt && self.count < MAX_BOUNDARIES {
                self.starts[self.count] = b.token;
                self.count += 1;
            }
        }
        self.message_count = 0;
        for b in request.boundaries.iter().rev() {
            let message = b.kind == BoundaryKind::USER || b.kind == BoundaryKind::MESSAGE;
            if message && b.token < self.prompt && self.message_count < MESSAGES {
                self.messages[self.message_count] = self.line_of(b.token) as u32;
                self.message_count += 1;
            }
        }
    }

    /// True where both have the same lines up to `position`.
    pub(crate) fn agrees(&self, other: &Self, position: u32) -> bool {
        let line = self.line_of(position);
        self.prompt > 0 && line == other.line_of(position) && self.starts[..=line] == other.starts[..=line]
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn message_count(&self) -> usize {
        self.message_count
    }

    /// Where line `line` begins; the prompt's end for the line after the last.
    pub(crate) fn start(&self, line: usize) -> u32 {
        if line < self.count { self.starts[line] } else { self.prompt }
    }

    /// Line of the message start that is `from_end` messages from the end.
    pub(crate) fn message_line(&self, from_end: usize) -> usize {
        self.messages[from_end] as usize
    }

    /// The last line that begins at or before `position`.
    pub(crate) fn line_of(&self, position: u32) -> usize {
        self.starts[..self.count].partition_point(|&s| s <= position).saturating_sub(1)
    }

    pub(crate) fn spot(&self, position: u32) -> Spot {
        let line = self.line_of(position);
        let message = self.messages[..self.message_count].iter().position(|&m| m as usize <= line);
        let (message, first) = match message {
            Some(m) => (m as i32, self.messages[m] as usize),
            None => (self.message_count as i32, 0),
        };
        Spot {
            line: line as i32,
            from_end: (self.count - line.min(self.count)) as i32,
            message,
            in_message: (line - first) as i32,
            after_start: position as i32 - self.start(line).min(position) as i32,
            before_end: self.start(line + 1) as i32 - position as i32,
        }
    }

    /// The position `after_start` tokens into `line`, if the line has it.
    pub(crate) fn past_start(&self, line: i32, after_start: i32) -> Option<u32> {
        let line = usize::try_from(line).ok().filter(|&l| l < self.count)?;
        let position = self.start(line) as i32 + after_start;
        (position <= self.start(line + 1) as i32).then_some(position as u32)
    }

    /// The position `before_end` tokens before the line after `line`, if the line has it.
    pub(crate) fn short_of_end(&self, line: i32, before_end: i32) -> Option<u32> {
        let line = usize::try_from(line).ok().filter(|&l| l < self.count)?;
        let position = self.start(line + 1) as i32 - before_end;
        (position >= self.start(line) as i32).then_some(position as u32)
    }
}
