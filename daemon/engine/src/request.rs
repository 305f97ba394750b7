//! What the engine is asked for, and what it tells while it answers.

use crate::grammar::GrammarError;
use crate::sampler::SamplerOptions;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;
use serde::Serialize;
use tandem_program::DeviceError;

/// The prompt, in one of three forms.
#[derive(Clone, Debug)]
pub enum Input {
    /// A chat-completions body's `messages` and, optionally, `tools`.
    Chat {
        /// List of messages.
        messages: serde_json::Value,
        /// List of tools.
        tools: Option<serde_json::Value>,
    },
    /// One user message, rendered through the chat template.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt.
    pub input: Input,
    /// JSON schema (JSON text) that the answer must satisfy.
    pub schema: Option<String>,
    /// Most tokens of the answer; the context's rest where `None`.
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// Alternatives reported a token.
    pub top_logprobs: u8,
    /// Report them for the first token only.
    pub first_logprobs_only: bool,
    /// Runs only when nothing else does.
    pub background: bool,
    /// Feed this answer instead of the model's choices.
    pub forced_answer: Option<String>,
    /// Let the model think first, where its template knows how.
    pub enable_thinking: bool,
}

impl Request {
    /// A greedy request without a schema.
    pub fn new(input: Input) -> Self {
        Request {
            input,
            schema: None,
            max_tokens: None,
            sampling: SamplerOptions::default(),
            stop: Vec::new(),
            top_logprobs: 0,
            first_logprobs_only: false,
            background: false,
            forced_answer: None,
            enable_thinking: false,
        }
    }
}

/// A request within the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// The schema was satisfied and allowed nothing more.
    Schema,
    /// `max_tokens` or the context's end.
    Length,
    /// The client asked.
    Cancelled,
}

/// Draft tokens of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DraftCounts {
    /// Tokens drafted.
    pub drafted: u32,
    /// Of these, accepted.
    pub accepted: u32,
}

/// Draft tokens by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DraftsByKind {
    /// Forced by the schema.
    pub schema: DraftCounts,
    /// Copied from the prompt or the answer so far.
    pub lookup: DraftCounts,
    /// From the MTP block.
    pub mtp: DraftCounts,
}

/// What a request cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of these, shared with the slot.
    pub shared: u32,
    /// Where the state was restored.
    pub restored: u32,
    /// Prompt tokens processed.
    pub new: u32,
    /// Prefill passes.
    pub passes: u32,
    /// States saved.
    pub saves: u32,
    /// Tokens of the answer.
    pub decode_tokens: u32,
    /// Passes after the prefill.
    pub decode_passes: u32,
    /// Tokens drafted.
    pub drafted: u32,
    /// Of these, accepted.
    pub accepted: u32,
    /// The same by kind.
    pub drafts: DraftsByKind,
    /// Time in prefill passes, milliseconds.
    pub prefill_ms: f64,
    /// Time in decode passes, milliseconds.
    pub decode_ms: f64,
    /// Time from acceptance to the end, waiting included, milliseconds.
    pub ms: f64,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that became final with it; may be empty, or cover earlier tokens.
    pub text: String,
    /// The likeliest tokens at its place, with log-probabilities, where asked for.
    pub top_logprobs: Option<Vec<(u32, f32)>>,
}

/// What happened to a job.
#[derive(Debug)]
pub enum Event {
    /// A token was chosen.
    Token(Token),
    /// The answer is over.
    Done {
        /// Why.
        finish: Finish,
        /// What it cost.
        stats: Stats,
    },
    /// The request failed; no more events follow.
    Failed(EngineError),
}

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such slot.
    #[error("slot {0} is not open")]
    NoSlot(u32),
    /// All slots are taken.
    #[error("all {limit} slots are in use; try again when a client has left, or raise the limit")]
    SlotsFull {
        /// Slots there are.
        limit: u32,
    },
    /// A slot's queue is full.
    #[error("{limit} requests already wait in this slot; try again when one is done")]
    QueueFull {
        /// Requests a slot may hold.
        limit: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context} and one must stay free for the answer"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// Cells of the context.
        context: u32,
    },
    /// No tokens at all.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Messages the template cannot take.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Text or ids the tokenizer cannot take.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A schema that cannot be enforced.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The schema leaves no token to choose.
    #[error("after {tokens} tokens of the answer the schema allows no token of the vocabulary")]
    NothingAllowed {
        /// Tokens of the answer so far.
        tokens: usize,
    },
    /// The budget of recurrent states is used up by states in use.
    #[error(
        "no room for a state of {state} bytes: {in_use} are in use and the budget is {budget} bytes; raise it, or use fewer clients"
    )]
    StateBudget {
        /// The budget, bytes.
        budget: u64,
        /// One state, bytes.
        state: u64,
        /// States in use.
        in_use: u64,
    },
    /// A fault in the engine; the daemon's log says more.
    #[error("the engine failed on this request; please report it with the daemon's log")]
    Fault,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
