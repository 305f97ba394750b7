//! Splitting text into words before BPE, by the name in `tokenizer.ggml.pre`.

use std::ops::Range;

use fancy_regex::Regex;

use super::TokenizerError;

/// How one family splits text.
struct Family {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after another: each cuts the pieces of the one before into its
    /// matches and what lies between.
    patterns: &'static [&'static str],
    /// Whether the family's own tokenizer normalises to NFC first (GGUF does not say).
    nfc: bool,
    /// Whether a word that is a token as it stands is taken without merging.
    ignore_merges: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The first two are checked against the families' own tokenizers (the shared
/// fixtures and golden prompts); the others follow llama.cpp's table.
const FAMILIES: [Family; 5] = [
    Family {
        names: &["qwen35"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: true,
        ignore_merges: false,
    },
    Family {
        names: &["qwen2"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: true,
        ignore_merges: false,
    },
    Family {
        names: &["lfm2", "llama-bpe", "llama3"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: true,
    },
    Family {
        names: &["refact", "starcoder", "smollm"],
        patterns: &[r"\p{N}", GPT2],
        nfc: false,
        ignore_merges: false,
    },
    Family { names: &["gpt-2"], patterns: &[GPT2], nfc: false, ignore_merges: false },
];

/// The names in `tokenizer.ggml.pre` this engine knows.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names.iter().copied())
}

/// The splitter of one family.
pub(super) struct PreTokenizer {
    family: &'static Family,
    patterns: Vec<Regex>,
}

impl PreTokenizer {
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        let unsupported = || TokenizerError::UnsupportedPre {
            pre: name.to_owned(),
            supported: supported().collect::<Vec<_>>().join(", "),
        };
        let family = FAMILIES.iter().find(|f| f.names.contains(&name)).ok_or_else(unsupported)?;
        let patterns = family
            .patterns
            .iter()
            .map(|pattern| Regex::new(pattern))
            .collect::<Result<_, _>>()
            .map_err(|error| TokenizerError::Split { at: 0, reason: error.to_string() })?;
        Ok(Self { family, patterns })
    }

    pub(super) fn name(&self) -> &'static str {
        self.family.names[0]
    }

    pub(super) fn nfc(&self) -> bool {
        self.family.nfc
    }

    pub(super) fn ignore_merges(&self) -> bool {
        self.family.ignore_merges
    }

    /// Calls `word` with the byte range of every word of `text`, in order; together
    /// they cover it.
    pub(super) fn split(
        &self,
        text: &str,
        word: &mut dyn FnMut(Range<usize>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        self.split_by(0, text, 0, word)
    }

    fn split_by(
        &self,
        stage: usize,
        text: &str,
        start: usize,
        word: &mut dyn FnMut(Range<usize>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let Some(pattern) = self.patterns.get(stage) else {
            return word(start..start + text.len());
        };
        let mut at = 0;
        for found in pattern.find_iter(text) {
            let found =
                found.map_err(|error| TokenizerError::Split { at: start + at, reason: error.to_string() })?;
            if found.start() > at {
                self.split_by(stage + 1, &text[at..found.start()], start + at, word)?;
            }
            if !found.as_str().is_empty() {
                self.split_by(stage + 1, found.as_str(), start + found.start(), word)?;
            }
            at = found.end();
        }
        if at < text.len() {
            self.split_by(stage + 1, &text[at..], start + at, word)?;
        }
        Ok(())
    }
}
