//! What can be wrong with a template or a conversation.

use crate::tokenizer::TokenizerError;

/// Why a template was refused, or a conversation could not be rendered. Says which
/// message and field, never what they hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A template source above the limit.
    #[error("the chat template is {bytes} bytes long, the limit is {limit}")]
    SourceTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A template that does not compile.
    #[error("the chat template does not compile, line {line}: {reason}")]
    Compile {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// What the template engine said.
        reason: String,
    },
    /// A template that failed on this conversation.
    #[error("the chat template failed at line {line}: {reason}")]
    Render {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// The kind of failure.
        reason: String,
    },
    /// The template called `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What the template says, cut to 200 characters.
        message: String,
    },
    /// The template ran too long.
    #[error("the chat template took more than {limit} steps")]
    OutOfFuel {
        /// The limit.
        limit: u64,
    },
    /// The template wrote too much.
    #[error("the chat template wrote more than {limit} bytes")]
    OutputTooLong {
        /// The limit.
        limit: usize,
    },
    /// The template wrote something that is no text.
    #[error("the chat template's output is not valid UTF-8")]
    NotUtf8,
    /// A field of the request has the wrong form.
    #[error("{field} is {actual}, expected {expected}")]
    Field {
        /// Which field, such as `messages[2].content[0].type`.
        field: String,
        /// What it is.
        actual: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An image (or video) part; only text is understood so far.
    #[error("{field} is an image, which this model's prompt path does not support yet")]
    ImageContent {
        /// Which part, such as `messages[2].content[0]`.
        field: String,
    },
    /// A conversation above a size limit.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// The rendered text could not be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer's markers do not fit a matcher.
    #[error("the markers of the vocabulary: {reason}")]
    Markers {
        /// What the matcher library said.
        reason: String,
    },
}

impl TemplateError {
    pub(super) fn compile(error: &minijinja::Error) -> Self {
        Self::Compile {
            line: error.line().unwrap_or(0),
            reason: match error.detail() {
                Some(detail) => format!("{}: {detail}", error.kind()),
                None => error.kind().to_string(),
            },
        }
    }

    /// Keeps the kind only: the engine's detail may quote message text.
    pub(super) fn render(error: &minijinja::Error) -> Self {
        let raised = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source())
            .find_map(|e| e.downcast_ref::<super::python::Raised>());
        match raised {
            Some(raised) => Self::Raised { message: raised.0.chars().take(200).collect() },
            None => Self::Render { line: error.line().unwrap_or(0), reason: error.kind().to_string() },
        }
    }
}
