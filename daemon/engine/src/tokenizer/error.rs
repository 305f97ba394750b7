//! What can go wrong with a tokenizer.

use crate::gguf::GgufError;

/// Why a tokenizer could not be built, or a text or list of ids was refused. No
/// variant carries any of the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A `tokenizer.*` key is missing or malformed.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A tokenizer of another kind than byte-level BPE.
    #[error("tokenizer.ggml.model is {model:?}, only \"gpt2\" (byte-level BPE) is supported")]
    UnsupportedModel {
        /// The kind the file names.
        model: String,
    },
    /// A pre-tokenizer this engine does not know.
    #[error("tokenizer.ggml.pre is {pre:?}, the supported ones are {supported}")]
    UnsupportedPre {
        /// The name in the file.
        pre: String,
        /// The names that are supported.
        supported: String,
    },
    /// A token count that is zero or above the limit.
    #[error("tokenizer.ggml.tokens has {count} tokens, expected 1 to {limit}")]
    VocabularySize {
        /// Tokens in the file.
        count: usize,
        /// The most accepted.
        limit: usize,
    },
    /// Two arrays that should go token by token differ in length.
    #[error("{key} has {actual} elements, expected one a token: {expected}")]
    Length {
        /// The key.
        key: &'static str,
        /// Its length.
        actual: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A token that occurs twice.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// The first id.
        first: u32,
        /// The second id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A token longer than the limit, or empty.
    #[error("token {id} is {bytes} bytes long, expected 1 to {limit}")]
    TokenLength {
        /// The id.
        id: u32,
        /// Its length.
        bytes: usize,
        /// The longest accepted.
        limit: usize,
    },
    /// A type id outside 1 to 6.
    #[error("tokenizer.ggml.token_type of token {id} is {value}, expected 1 to 6")]
    TokenType {
        /// The token.
        id: u32,
        /// The value found.
        value: i32,
    },
    /// A byte no token stands for, so some text could not be encoded.
    #[error("no token stands for the byte {byte:#04x}; a byte-level vocabulary has one for each of the 256")]
    MissingByte {
        /// The first such byte.
        byte: u8,
    },
    /// A merge that is not two tokens with a space between.
    #[error("merge {index} ({text:?}) is not two tokens separated by one space")]
    MergeForm {
        /// Its index in `tokenizer.ggml.merges`.
        index: usize,
        /// Its text.
        text: String,
    },
    /// Merges that name tokens the vocabulary lacks, or a merge that failed.
    #[error("byte-pair merges: {reason}")]
    Merge {
        /// What the tokenizer library said.
        reason: String,
    },
    /// The added tokens do not fit a matcher.
    #[error("added tokens: {reason}")]
    AddedTokens {
        /// What the matcher library said.
        reason: String,
    },
    /// Neither `eos_token_id` nor `eot_token_id` is set.
    #[error("the file names no token that ends an answer (tokenizer.ggml.eos_token_id)")]
    NoEnd,
    /// A token id in the file's keys that is out of range.
    #[error("{key} is {id}, the vocabulary has {size} tokens")]
    KeyOutOfRange {
        /// The key.
        key: String,
        /// The id.
        id: u32,
        /// Number of tokens.
        size: usize,
    },
    /// A token id given by a caller that is out of range.
    #[error("token id {id} at position {position} is out of range, the vocabulary has {size} tokens")]
    IdOutOfRange {
        /// Its index in the list.
        position: usize,
        /// The id.
        id: u32,
        /// Number of tokens.
        size: usize,
    },
    /// A text above [`super::MAX_TEXT_BYTES`].
    #[error("the text is {bytes} bytes long, the limit is {limit}")]
    TextTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The splitting expression gave up (a run of a million blanks, say).
    #[error("the text cannot be split into words at byte {at}: {reason}")]
    Split {
        /// Where, bytes.
        at: usize,
        /// What the regex library said.
        reason: String,
    },
}
