//! The tokenizer of a GGUF file: byte-level BPE with special tokens.
//!
//! Encoding a text goes through four steps, as the Hugging Face runtime does it:
//!
//! 1. added tokens are found in the raw text (leftmost, longest) and cut out;
//! 2. what lies between is normalised (NFC where the model's family does it);
//! 3. a regular expression splits it into words (`pre`);
//! 4. each word's bytes, written in the byte alphabet, are merged by BPE.
//!
//! Added tokens are of two sorts. *Markers* carry authority: control tokens
//! (`<|im_start|>`) and user-defined tokens with visible text (`<think>`,
//! `<tool_call>`). They are recognised only where the caller says the text may hold
//! them; see [`crate::template`] for how message contents are kept apart. *Plain*
//! added tokens are runs of white space; they are always recognised.

mod alphabet;
mod detokenizer;
mod error;
pub mod pre;
mod vocabulary;

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::{Model, NormalizedString, Normalizer};

use crate::gguf::Gguf;
pub use detokenizer::Detokenizer;
pub(crate) use detokenizer::PendingText;
pub use error::TokenizerError;
pub use vocabulary::TokenKind;
use vocabulary::Vocabulary;

/// Longest text encoded in one call, bytes.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// Texts of control tokens that end an answer in the families this engine serves,
/// besides the ones the file's keys name.
const END_TEXTS: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

/// Encodes text to token ids and back. Immutable after construction.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: BPE,
    pre: pre::PreTokenizer,
    /// Markers and plain added tokens.
    all_added: AddedTokens,
    /// Plain added tokens only.
    plain_added: AddedTokens,
    eos: u32,
    ends: Vec<u32>,
    bos: Option<u32>,
    add_bos: bool,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// Builds the tokenizer from a file's `tokenizer.*` keys.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let meta = gguf.meta();
        let kind = meta.str("tokenizer.ggml.model")?;
        if kind != "gpt2" {
            return Err(TokenizerError::UnsupportedModel { model: kind.to_owned() });
        }
        let pre = pre::PreTokenizer::named(meta.str("tokenizer.ggml.pre")?)?;
        let vocabulary = Vocabulary::from_metadata(meta)?;
        let model = vocabulary.bpe(meta, pre.ignore_merges())?;

        let (mut markers, mut plain) = (Vec::new(), Vec::new());
        for id in vocabulary.added() {
            let list = if vocabulary.is_marker(id) { &mut markers } else { &mut plain };
            list.push((id, vocabulary.text(id).to_owned()));
        }
        let plain_added = AddedTokens::new(&plain)?;
        markers.append(&mut plain);
        let all_added = AddedTokens::new(&markers)?;

        let id = |key: &str| -> Result<Option<u32>, TokenizerError> {
            let key = format!("tokenizer.ggml.{key}");
            let id = meta.opt_u32(&key)?;
            match id.filter(|&id| id as usize >= vocabulary.len()) {
                Some(id) => Err(TokenizerError::KeyOutOfRange { key, id, size: vocabulary.len() }),
                None => Ok(id),
            }
        };
        let file_eos = id("eos_token_id")?;
        let eot = id("eot_token_id")?;
        let eos = eot.or(file_eos).ok_or(TokenizerError::NoEnd)?;
        let mut ends = vec![eos];
        let named = END_TEXTS
            .iter()
            .filter_map(|text| vocabulary.find(text).filter(|&id| vocabulary.kind(id) == TokenKind::Control));
        for id in file_eos.into_iter().chain(named) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        Ok(Self {
            eos,
            ends,
            bos: id("bos_token_id")?,
            add_bos: meta.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
            chat_template: meta.opt_str("tokenizer.chat_template")?.map(str::to_owned),
            vocabulary,
            model,
            pre,
            all_added,
            plain_added,
        })
    }

    /// The ids of `text`. With `parse_special`, markers in the text become their
    /// token; without, they are ordinary text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for piece in self.pieces(text, parse_special)? {
            match piece {
                Piece::Added(id, _) => ids.push(id),
                Piece::Text(range) => self.encode_text(&text[range], true, |id, _| ids.push(id))?,
            }
        }
        Ok(ids)
    }

    /// The ids of `text` taken byte for byte: no normalisation, no added tokens. The
    /// grammar uses this, whose forced text must come out as it stands.
    pub fn encode_exact(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        self.encode_text(text, false, |id, _| ids.push(id))?;
        Ok(ids)
    }

    /// `text` as the model's family normalises it before splitting.
    pub fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.pre.nfc() || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let mut normalized = NormalizedString::from(text);
        match NFC.normalize(&mut normalized) {
            Ok(()) if normalized.get() != text => Cow::Owned(normalized.get().to_owned()),
            _ => Cow::Borrowed(text),
        }
    }

    /// The text of `ids`, markers included; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.check_ids(ids)?;
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// A decoder for ids that arrive one by one.
    pub fn detokenizer(&self) -> Detokenizer<'_> {
        Detokenizer::new(self)
    }

    /// The bytes a token stands for (a marker's are its own text); none for an id out
    /// of range.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// What sort of token an id is; [`TokenKind::Unused`] out of range.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.vocabulary.kind(id)
    }

    /// Whether an id is a marker: recognised only in text that may hold them.
    pub fn is_marker(&self, id: u32) -> bool {
        self.vocabulary.is_marker(id)
    }

    /// The id of an added token by its exact text.
    pub fn added(&self, text: &str) -> Option<u32> {
        self.vocabulary.find(text)
    }

    /// Text and id of every marker.
    pub fn markers(&self) -> impl Iterator<Item = (&str, u32)> {
        self.vocabulary
            .added()
            .filter(|&id| self.vocabulary.is_marker(id))
            .map(|id| (self.vocabulary.text(id), id))
    }

    /// The token that ends an answer: the file's `eot_token_id`, else its `eos_token_id`.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// Every token that ends an answer, [`Self::eos`] first.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether an id ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token a sequence starts with, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether a plain-text prompt gets [`Self::bos`] in front (a chat template
    /// writes it itself).
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The file's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Number of tokens. A model's embedding may have more rows (padding), which are
    /// never produced.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Refuses ids that are no token of this vocabulary.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        let size = self.vocab_size();
        match ids.iter().position(|&id| id as usize >= size) {
            Some(position) => Err(TokenizerError::IdOutOfRange { position, id: ids[position], size }),
            None => Ok(()),
        }
    }

    /// Cuts `text` into added tokens and what lies between.
    pub(crate) fn pieces(&self, text: &str, parse_special: bool) -> Result<Vec<Piece>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
        }
        let added = if parse_special { &self.all_added } else { &self.plain_added };
        Ok(added.cut(text))
    }

    /// Steps 2 to 4 of the module's list for text without added tokens. `emit` gets
    /// each id with the offset in the normalised text of the word that holds it.
    pub(crate) fn encode_text(
        &self,
        text: &str,
        normalize: bool,
        mut emit: impl FnMut(u32, usize),
    ) -> Result<(), TokenizerError> {
        let text = if normalize { self.normalize(text) } else { Cow::Borrowed(text) };
        let mut word = String::new();
        self.pre.split(&text, &mut |range| {
            word.clear();
            word.extend(text.as_bytes()[range.clone()].iter().map(|&b| alphabet::char_of(b)));
            let tokens = self
                .model
                .tokenize(&word)
                .map_err(|error| TokenizerError::Merge { reason: error.to_string() })?;
            let mut at = range.start;
            for token in tokens {
                emit(token.id, at);
                at += self.token_bytes(token.id).len();
            }
            Ok(())
        })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("pre", &self.pre.name())
            .field("tokens", &self.vocab_size())
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

/// A part of a text: an added token, or a byte range without any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// An added token and where it starts, bytes.
    Added(u32, usize),
    /// A byte range of ordinary text, never empty.
    Text(std::ops::Range<usize>),
}

/// Finds added tokens in text.
struct AddedTokens {
    matcher: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl AddedTokens {
    fn new(tokens: &[(u32, String)]) -> Result<Self, TokenizerError> {
        let matcher = (!tokens.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(tokens.iter().map(|(_, text)| text))
            })
            .transpose()
            .map_err(|error| TokenizerError::AddedTokens { reason: error.to_string() })?;
        Ok(Self { matcher, ids: tokens.iter().map(|&(id, _)| id).collect() })
    }

    fn cut(&self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for found in self.matcher.iter().flat_map(|matcher| matcher.find_iter(text)) {
            if found.start() > at {
                pieces.push(Piece::Text(at..found.start()));
            }
            pieces.push(Piece::Added(self.ids[found.pattern().as_usize()], found.start()));
            at = found.end();
        }
        if at < text.len() {
            pieces.push(Piece::Text(at..text.len()));
        }
        pieces
    }
}
