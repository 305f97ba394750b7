//! The token list: text, bytes and kind of every id.

use std::collections::HashMap;

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;

use super::{TokenizerError, alphabet};
use crate::gguf::Metadata;

/// Most tokens a vocabulary may have.
const MAX_TOKENS: usize = 1 << 20;
/// Longest token, bytes as written in the file.
const MAX_TOKEN_BYTES: usize = 4096;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// The sort of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Made by merges from bytes.
    Normal,
    /// Added, with a meaning of its own; not part of an answer's text.
    Control,
    /// Added, part of an answer's text.
    UserDefined,
    /// Padding of the vocabulary; never encoded and never allowed.
    Unused,
}

/// All tokens. Their bytes lie back to back in one buffer.
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Control and user-defined tokens by text.
    added: HashMap<String, u32>,
}

impl Vocabulary {
    pub(super) fn from_metadata(meta: &Metadata) -> Result<Self, TokenizerError> {
        let tokens = meta.strings(TOKENS)?;
        let count = tokens.len();
        if count == 0 || count > MAX_TOKENS {
            return Err(TokenizerError::VocabularySize { count, limit: MAX_TOKENS });
        }
        let types = meta.opt_i32s(TYPES)?.unwrap_or_else(|| vec![1; count]);
        if types.len() != count {
            return Err(TokenizerError::Length { key: TYPES, actual: types.len(), expected: count });
        }
        let mut vocabulary = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(count),
            kinds: Vec::with_capacity(count),
            added: HashMap::new(),
        };
        for ((id, text), value) in (0u32..).zip(tokens).zip(types) {
            let text = text?;
            if text.is_empty() || text.len() > MAX_TOKEN_BYTES {
                return Err(TokenizerError::TokenLength { id, bytes: text.len(), limit: MAX_TOKEN_BYTES });
            }
            vocabulary.push(id, text, value)?;
        }
        vocabulary.check_bytes()?;
        Ok(vocabulary)
    }

    fn push(&mut self, id: u32, text: &str, type_value: i32) -> Result<(), TokenizerError> {
        let kind = match type_value {
            // Byte tokens belong to SentencePiece; in this kind they are as good as normal.
            1 | 6 => TokenKind::Normal,
            2 | 3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            value => return Err(TokenizerError::TokenType { id, value }),
        };
        // Text outside the alphabet stands for itself, as the reference decoder has it.
        match (kind, alphabet::bytes_of(text)) {
            (TokenKind::Normal, Some(bytes)) => self.bytes.extend(bytes),
            _ => self.bytes.extend(text.as_bytes()),
        }
        if matches!(kind, TokenKind::Control | TokenKind::UserDefined)
            && let Some(first) = self.added.insert(text.to_owned(), id)
        {
            return Err(TokenizerError::DuplicateToken { first, second: id, text: text.to_owned() });
        }
        // Bounded by the header limit of the file, far below 4 GiB.
        self.ends.push(self.bytes.len() as u32);
        self.kinds.push(kind);
        Ok(())
    }

    fn check_bytes(&self) -> Result<(), TokenizerError> {
        let mut seen = [false; 256];
        for id in 0..self.len() as u32 {
            if let (TokenKind::Normal, &[byte]) = (self.kind(id), self.bytes(id)) {
                seen[usize::from(byte)] = true;
            }
        }
        match (0..=255u8).find(|&b| !seen[usize::from(b)]) {
            Some(byte) => Err(TokenizerError::MissingByte { byte }),
            None => Ok(()),
        }
    }

    /// The merge model over the normal tokens; added ones are never reached by merging.
    pub(super) fn bpe(&self, meta: &Metadata, ignore_merges: bool) -> Result<BPE, TokenizerError> {
        let mut ids: AHashMap<String, u32> = AHashMap::with_capacity(self.len());
        for (id, text) in (0u32..).zip(meta.strings(TOKENS)?) {
            let text = text?;
            if self.kind(id) == TokenKind::Normal
                && let Some(first) = ids.insert(text.to_owned(), id)
            {
                return Err(TokenizerError::DuplicateToken { first, second: id, text: text.to_owned() });
            }
        }
        let mut merges = Vec::new();
        for (index, text) in meta.strings(MERGES)?.enumerate() {
            let text = text?;
            let pair = text
                .split_once(' ')
                .filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '))
                .ok_or_else(|| TokenizerError::MergeForm { index, text: text.to_owned() })?;
            merges.push((pair.0.to_owned(), pair.1.to_owned()));
        }
        BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(ignore_merges)
            .build()
            .map_err(|error| TokenizerError::Merge { reason: error.to_string() })
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    /// The text of an added token.
    pub(super) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.bytes(id)).unwrap_or("")
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// Ids of control and user-defined tokens, in order.
    pub(super) fn added(&self) -> impl Iterator<Item = u32> {
        let mut ids: Vec<u32> = self.added.values().copied().collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.added.get(text).copied()
    }

    pub(super) fn is_marker(&self, id: u32) -> bool {
        match self.kind(id) {
            TokenKind::Control => true,
            TokenKind::UserDefined => !self.text(id).chars().all(char::is_whitespace),
            TokenKind::Normal | TokenKind::Unused => false,
        }
    }
}
