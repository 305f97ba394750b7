//! Private marks around message contents, to find them in rendered text.
//!
//! A mark is U+FDD1 (content starts) or U+FDD2 (content ends), the message's index in
//! hexadecimal digits U+FDE0 to U+FDEF, and U+FDD3. Marks lie inside the content's
//! outer white space, so that a template's `trim` finds what it would find without.

use std::collections::HashMap;

const START: char = '\u{fdd1}';
const END: char = '\u{fdd2}';
const STOP: char = '\u{fdd3}';
const DIGIT_ZERO: u32 = 0xfde0;

/// `content` with marks for message `index`.
pub(super) fn marked(content: &str, index: usize) -> String {
    let inner = content.trim();
    if inner.is_empty() {
        return content.to_owned();
    }
    let before = content.len() - content.trim_start().len();
    let mut out = String::with_capacity(content.len() + 48);
    out.push_str(&content[..before]);
    push_mark(&mut out, START, index);
    out.push_str(inner);
    push_mark(&mut out, END, index);
    out.push_str(&content[before + inner.len()..]);
    out
}

fn push_mark(out: &mut String, kind: char, index: usize) {
    out.push(kind);
    let hex = format!("{index:x}");
    let digits = hex.chars().filter_map(|c| c.to_digit(16));
    out.extend(digits.filter_map(|d| char::from_u32(DIGIT_ZERO + d)));
    out.push(STOP);
}

/// A rendered text with its marks taken out. A template may drop either mark of a
/// content (with an old thought, say) and keep the other.
#[derive(Debug, Default)]
pub(super) struct Marked {
    pub(super) text: String,
    /// Where each message's content first starts.
    pub(super) starts: HashMap<usize, usize>,
    /// Where each message's content first ends.
    pub(super) ends: HashMap<usize, usize>,
}

impl Marked {
    pub(super) fn parse(rendered: &str) -> Self {
        let mut marked = Self { text: String::with_capacity(rendered.len()), ..Self::default() };
        let mut rest = rendered;
        while let Some(at) = rest.find([START, END]) {
            marked.text.push_str(&rest[..at]);
            rest = &rest[at..];
            let is_start = rest.starts_with(START);
            let mut chars = rest.chars();
            chars.next();
            let mut index = 0usize;
            for c in chars.by_ref() {
                match u32::from(c).checked_sub(DIGIT_ZERO) {
                    Some(digit @ 0..16) => index = index.wrapping_mul(16) + digit as usize,
                    _ => break,
                }
            }
            rest = chars.as_str();
            let places = if is_start { &mut marked.starts } else { &mut marked.ends };
            places.entry(index).or_insert(marked.text.len());
        }
        marked.text.push_str(rest);
        marked
    }

    /// What stands behind the content of message `index`, to the end.
    pub(super) fn tail(&self, index: usize) -> Option<String> {
        self.ends.get(&index).map(|&end| self.text[end..].to_owned())
    }
}
