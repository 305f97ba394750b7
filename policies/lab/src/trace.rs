//! Reading recorded traces: one chat-completions request a line.

use serde::Deserialize;
use std::path::Path;
use tandem_engine::gguf::Gguf;
use tandem_engine::template::{ChatTemplate, RenderOptions};
use tandem_engine::tokenizer::Tokenizer;
use tandem_policy::Boundary;

/// Longest trace file, in bytes.
pub const MAX_TRACE_BYTES: u64 = 1 << 30;

/// A request of a trace, tokenized.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Whose slot it goes to; empty where the trace has one client.
    pub client: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The prompt's boundaries, sorted.
    pub boundaries: Vec<Boundary>,
    /// The recorded answer, without the closing marker.
    pub answer: Vec<u32>,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is longer than a trace may be.
    #[error("{path} has {bytes} bytes, a trace may have {MAX_TRACE_BYTES}")]
    TooLong {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// The tokenizer's file is not one.
    #[error("cannot take the tokenizer from {path}: {reason}")]
    Tokenizer {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A line is not a request.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no request in the file.
    #[error("{path} holds no request")]
    Empty {
        /// The file.
        path: String,
    },
}

#[derive(Deserialize)]
struct Line {
    request: Body,
    expect: String,
    #[serde(default)]
    agent: String,
}

#[derive(Deserialize)]
struct Body {
    messages: serde_json::Value,
    #[serde(default)]
    tools: Option<serde_json::Value>,
    max_tokens: Option<usize>,
    #[serde(default)]
    chat_template_kwargs: Option<TemplateSettings>,
}

#[derive(Deserialize)]
struct TemplateSettings {
    #[serde(default)]
    enable_thinking: bool,
}

/// Renders and tokenizes requests as the engine does.
pub struct Reader {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Reader {
    /// With the vocabulary and the template of a GGUF file.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let fail = |reason: String| TraceError::Tokenizer { path: path.display().to_string(), reason };
        let gguf = Gguf::open(path).map_err(|e| fail(e.to_string()))?;
        Self::new(&gguf).map_err(fail)
    }

    /// With the vocabulary and the template of an opened file. The error says why it has none.
    pub fn new(gguf: &Gguf) -> Result<Self, String> {
        let tokenizer = Tokenizer::from_gguf(gguf).map_err(|e| e.to_string())?;
        let template = ChatTemplate::from_tokenizer(&tokenizer).map_err(|e| e.to_string())?;
        Ok(Self { tokenizer, template })
    }

    /// With another chat template than the file's.
    pub fn with_template(mut self, source: &str) -> Result<Self, String> {
        self.template = ChatTemplate::compile(source, &self.tokenizer).map_err(|e| e.to_string())?;
        Ok(self)
    }

    /// Reads a trace; empty lines are skipped.
    pub fn read(&self, path: &Path) -> Result<Vec<Request>, TraceError> {
        let name = path.display().to_string();
        let fail = |source| TraceError::Read { path: name.clone(), source };
        let bytes = std::fs::metadata(path).map_err(fail)?.len();
        if bytes > MAX_TRACE_BYTES {
            return Err(TraceError::TooLong { path: name, bytes });
        }
        let text = std::fs::read_to_string(path).map_err(fail)?;
        let mut requests = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let request = self.request(line).map_err(|reason| TraceError::Line {
                path: name.clone(),
                line: number + 1,
                reason,
            })?;
            requests.push(request);
        }
        if requests.is_empty() {
            return Err(TraceError::Empty { path: name });
        }
        Ok(requests)
    }

    /// Reads one line of a trace. The error says what is wrong with it.
    pub fn request(&self, line: &str) -> Result<Request, String> {
        let line: Line = serde_json::from_str(line).map_err(|e| format!("not a recorded request: {e}"))?;
        let body = &line.request;
        let options = RenderOptions {
            enable_thinking: body.chat_template_kwargs.as_ref().is_some_and(|k| k.enable_thinking),
            ..RenderOptions::default()
        };
        let prompt = self
            .template
            .chat(&body.messages, body.tools.as_ref())
            .and_then(|chat| self.template.render(&chat, options))
            .and_then(|rendered| rendered.prompt(&self.tokenizer))
            .map_err(|e| e.to_string())?;
        let mut answer = self.tokenizer.encode(&line.expect, false).map_err(|e| e.to_string())?;
        answer.truncate(body.max_tokens.unwrap_or(usize::MAX));
        Ok(Request { client: line.agent, boundaries: prompt.boundaries, tokens: prompt.tokens, answer })
    }
}
