//! What can be wrong with a schema, or go wrong while an answer follows it.

/// Longest explanation kept from the grammar library, characters.
const MAX_REASON: usize = 400;

/// Why a schema was refused or a constrained answer failed. Never quotes an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A vocabulary the grammar cannot work with.
    #[error("the vocabulary cannot be used for structured answers: {reason}")]
    Vocabulary {
        /// Why not.
        reason: String,
    },
    /// A schema above the size limit.
    #[error("the schema is {bytes} bytes long, the limit is {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A schema nested too deeply.
    #[error("the schema is nested deeper than {limit} levels at line {line}, column {column}")]
    TooDeep {
        /// The limit.
        limit: usize,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// A schema that is not JSON.
    #[error("the schema is not valid JSON at line {line}, column {column}: {reason}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What the parser said.
        reason: String,
    },
    /// A keyword that is not enforced, or not known at all.
    #[error("the schema keyword {keyword:?} at {path} is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has it.
        path: String,
    },
    /// A keyword with a value of the wrong form or above a limit.
    #[error("the schema keyword {keyword:?} at {path} should be {expected}")]
    KeywordValue {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has it.
        path: String,
        /// The form expected.
        expected: String,
    },
    /// Something in place of a schema that is neither an object nor a bool.
    #[error("the schema at {path} should be an object, true or false")]
    NotASchema {
        /// Its JSON pointer.
        path: String,
    },
    /// More subschemas, references or nesting through references than the limit.
    #[error("the schema has too many {what} at {path}, the limit is {limit}")]
    TooMany {
        /// Too many of what.
        what: &'static str,
        /// JSON pointer where the limit was passed.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// A schema that leaves no choice about a long stretch of text.
    #[error("the schema can force {bytes} bytes of text at once, the limit is {limit}")]
    ForcedText {
        /// Bound on the forced text.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The grammar library cannot enforce it, or finds that nothing satisfies it.
    #[error("the schema cannot be enforced: {reason}")]
    Unsupported {
        /// What the library said, cut to 400 characters.
        reason: String,
    },
    /// A token that the schema does not allow here.
    #[error("token {id} is not allowed by the schema here")]
    NotAllowed {
        /// The token.
        id: u32,
    },
    /// The answer was already ended.
    #[error("the answer has already ended")]
    Ended,
    /// The matcher gave up: the schema is too complex for its limits.
    #[error("the schema could not be followed further: {reason}")]
    Failed {
        /// Kind of failure.
        reason: String,
    },
}

impl GrammarError {
    pub(super) fn unsupported(reason: String) -> Self {
        let mut text: String = reason.chars().take(MAX_REASON).collect();
        if text.len() < reason.len() {
            text.push_str("...");
        }
        Self::Unsupported { reason: text }
    }
}
