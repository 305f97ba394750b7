//! What a client asks the model for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The prompt of a request, in one of three forms.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// `{"messages": [...], "tools": [...]}` of an OpenAI chat-completions body,
    /// as JSON text. The daemon parses it and renders the chat template.
    ChatJson(String),
    /// One user message; the daemon renders it through the chat template.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

/// For which tokens the top log-probabilities are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogprobsScope {
    /// Only the answer's first token.
    First,
    /// Every token of the answer.
    Every,
}

/// How the scheduler orders a request against others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// A person waits for it.
    Interactive,
    /// Runs when nothing interactive does.
    Background,
}

/// One generation. `None` means the daemon's default.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The prompt.
    pub input: Input,
    /// JSON schema text that the answer must satisfy.
    pub schema: Option<String>,
    /// Most tokens to generate, at least 1.
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Keep the `k` likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities sum to this, in (0, 1].
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the likeliest, in [0, 1].
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before, above 0; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// How many alternatives to report a token, 0 ..= [`MAX_TOP_LOGPROBS`].
    pub top_logprobs: u8,
    /// For which tokens they are reported.
    pub logprobs_scope: LogprobsScope,
    /// Scheduling class.
    pub priority: Priority,
    /// Give up after this many milliseconds from acceptance.
    pub deadline_ms: Option<u32>,
    /// Feed this answer instead of the model's own choices
    /// (`tandem replay --force-expected`).
    pub forced_answer: Option<String>,
    /// Value of `enable_thinking` for the chat template.
    pub enable_thinking: bool,
}

/// A field's name, value, test and range in words.
type FloatRange = (&'static str, Option<f32>, fn(f32) -> bool, &'static str);

/// Largest `top_logprobs`.
pub const MAX_TOP_LOGPROBS: u8 = 20;
/// Most stop strings in a request.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, bytes.
pub const MAX_STOP_BYTES: usize = 256;

impl GenerateRequest {
    /// A request with every option at its default: no schema, interactive.
    pub fn new(input: Input) -> GenerateRequest {
        GenerateRequest {
            input,
            schema: None,
            max_tokens: None,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: None,
            stop: Vec::new(),
            top_logprobs: 0,
            logprobs_scope: LogprobsScope::Every,
            priority: Priority::Interactive,
            deadline_ms: None,
            forced_answer: None,
            enable_thinking: false,
        }
    }

    /// Checks every range that does not depend on the model. Both sides call
    /// it: the SDK before sending, the daemon because it trusts nobody.
    pub fn validate(&self) -> Result<(), InvalidRequest> {
        let empty = match &self.input {
            Input::ChatJson(text) | Input::Text(text) => text.is_empty(),
            Input::Tokens(ids) => ids.is_empty(),
        };
        if empty {
            return Err(InvalidRequest::new("input", "empty", "at least one token"));
        }
        if self.max_tokens == Some(0) {
            return Err(InvalidRequest::new("max_tokens", "0", "1 or more"));
        }
        let floats: [FloatRange; 4] = [
            ("temperature", self.temperature, |t| (0.0..=100.0).contains(&t), "0 to 100"),
            ("top_p", self.top_p, |p| p > 0.0 && p <= 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, |p| (0.0..=1.0).contains(&p), "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                |r| r > 0.0 && r <= 100.0,
                "above 0, at most 100",
            ),
        ];
        for (field, value, allowed, range) in floats {
            // A NaN fails every comparison, so it is refused here too.
            if let Some(value) = value.filter(|value| !allowed(*value)) {
                return Err(InvalidRequest::new(field, value.to_string(), range));
            }
        }
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            let value = self.top_logprobs.to_string();
            return Err(InvalidRequest::new("top_logprobs", value, "0 to 20"));
        }
        if self.stop.len() > MAX_STOPS {
            let value = format!("{} strings", self.stop.len());
            return Err(InvalidRequest::new("stop", value, "at most 16 strings"));
        }
        for stop in &self.stop {
            if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
                let value = format!("a string of {} bytes", stop.len());
                return Err(InvalidRequest::new("stop", value, "1 to 256 bytes each"));
            }
        }
        if self.deadline_ms == Some(0) {
            return Err(InvalidRequest::new("deadline_ms", "0", "1 or more"));
        }
        Ok(())
    }
}

/// A field of a request that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("request field `{field}` is {value}, allowed: {allowed}")]
pub struct InvalidRequest {
    /// The field's name.
    pub field: &'static str,
    /// What it was; never prompt text.
    pub value: String,
    /// What it may be.
    pub allowed: &'static str,
}

impl InvalidRequest {
    fn new(field: &'static str, value: impl Into<String>, allowed: &'static str) -> Self {
        InvalidRequest { field, value: value.into(), allowed }
    }
}

// Debug output ends up in logs, and logs never hold prompt or answer text
// (nor token ids, which are the same thing): sizes only.

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::ChatJson(text) => write!(f, "ChatJson({} bytes)", text.len()),
            Input::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Input::Tokens(ids) => write!(f, "Tokens({} ids)", ids.len()),
        }
    }
}

impl fmt::Debug for GenerateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forced = self.forced_answer.as_ref().map(String::len);
        f.debug_struct("GenerateRequest")
            .field("input", &self.input)
            .field("schema_bytes", &self.schema.as_ref().map(String::len))
            .field("max_tokens", &self.max_tokens)
            .field("temperature", &self.temperature)
            .field("top_k", &self.top_k)
            .field("top_p", &self.top_p)
            .field("min_p", &self.min_p)
            .field("repetition_penalty", &self.repetition_penalty)
            .field("seed", &self.seed)
            .field("stops", &self.stop.len())
            .field("top_logprobs", &self.top_logprobs)
            .field("logprobs_scope", &self.logprobs_scope)
            .field("priority", &self.priority)
            .field("deadline_ms", &self.deadline_ms)
            .field("forced_answer_bytes", &forced)
            .field("enable_thinking", &self.enable_thinking)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> GenerateRequest {
        GenerateRequest::new(Input::Text("hello".into()))
    }

    #[test]
    fn a_default_request_is_valid() {
        request().validate().unwrap();
    }

    #[test]
    fn an_out_of_range_field_is_named_with_its_value() {
        type Break = fn(&mut GenerateRequest);
        let cases: [(&str, Break); 9] = [
            ("temperature", |r| r.temperature = Some(f32::NAN)),
            ("temperature", |r| r.temperature = Some(-0.5)),
            ("top_p", |r| r.top_p = Some(0.0)),
            ("min_p", |r| r.min_p = Some(1.5)),
            ("repetition_penalty", |r| r.repetition_penalty = Some(f32::INFINITY)),
            ("max_tokens", |r| r.max_tokens = Some(0)),
            ("top_logprobs", |r| r.top_logprobs = 21),
            ("stop", |r| r.stop = vec![String::new()]),
            ("input", |r| r.input = Input::Tokens(Vec::new())),
        ];
        for (field, break_it) in cases {
            let mut request = request();
            break_it(&mut request);
            let error = request.validate().unwrap_err();
            assert_eq!(error.field, field);
            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn debug_output_holds_no_text() {
        let mut request = request();
        request.input = Input::ChatJson("canary-prompt".into());
        request.schema = Some("canary-schema".into());
        request.stop = vec!["canary-stop".into()];
        request.forced_answer = Some("canary-answer".into());
        assert!(!format!("{request:?}").contains("canary"));
    }
}
