//! The vocabulary as the grammar library wants it.

use std::sync::Arc;

use toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use crate::tokenizer::{TokenKind, Tokenizer};

/// Longest token in the trie, bytes; longer ones are never allowed. The trie's format
/// holds a depth in ten bits.
const MAX_TOKEN_BYTES: usize = 512;
/// Most bytes of all tokens together; the trie's format holds a subtree's size in 22 bits.
const MAX_TOTAL_BYTES: usize = (1 << 22) - 1;

/// A trie of all tokens and the tokenizer itself, which turns forced text into tokens.
pub(super) struct GrammarVocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl GrammarVocabulary {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, GrammarError> {
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32).map(|id| word(&tokenizer, id)).collect();
        let total: usize = words.iter().map(Vec::len).sum();
        if total > MAX_TOTAL_BYTES {
            return Err(GrammarError::Vocabulary {
                reason: format!("its tokens take {total} bytes, the limit is {MAX_TOTAL_BYTES}"),
            });
        }
        let info = TokRxInfo::new(words.len() as u32, tokenizer.eos());
        let trie = TokTrie::from(&info, &words);
        Ok(Self { tokenizer, trie })
    }
}

/// What a token stands for in the trie. Added tokens with a meaning of their own get
/// the library's mark for special tokens, a byte no text has, so that no text in a
/// schema matches them: inside JSON strings the model spells them out.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if bytes.len() > MAX_TOKEN_BYTES {
        return Vec::new();
    }
    if tokenizer.is_marker(id) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
    }
    match tokenizer.kind(id) {
        TokenKind::Unused => Vec::new(),
        _ => bytes.to_vec(),
    }
}

impl TokenizerEnv for GrammarVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.tokenizer.encode_exact(text).unwrap_or_else(|_| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
