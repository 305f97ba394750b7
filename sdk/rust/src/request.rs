//! Building requests: by hand, or from an OpenAI chat-completions body.

use serde_json::{Map, Value, json};
use tandem_ipc::request::{GenerateRequest, Input, LogprobsScope, Priority};

/// A body that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Not JSON.
    #[error("the request body is no JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// A field is absent or has the wrong form.
    #[error("request field `{field}` is {found}, expected {expected}")]
    Field {
        /// Path of the field.
        field: String,
        /// What kind of value was there; never its text.
        found: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A field that Tandem would have to ignore, which would change the answer.
    #[error("request field `{field}` is not supported{hint}; remove it")]
    Unsupported {
        /// The field.
        field: String,
        /// More on it, starting with a space, or empty.
        hint: &'static str,
    },
}

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl ChatMessage {
    /// A system message.
    pub fn system(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new("system", content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new("user", content)
    }

    /// An earlier answer of the model's.
    pub fn assistant(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new("assistant", content)
    }

    fn new(role: &str, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.to_owned(), content: content.into() }
    }
}

/// Builds a [`GenerateRequest`]. What is not set is the daemon's default.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    inner: GenerateRequest,
}

impl From<Request> for GenerateRequest {
    fn from(request: Request) -> GenerateRequest {
        request.inner
    }
}

impl From<GenerateRequest> for Request {
    fn from(inner: GenerateRequest) -> Request {
        Request { inner }
    }
}

impl Request {
    /// One user message.
    pub fn text(prompt: impl Into<String>) -> Request {
        GenerateRequest::new(Input::Text(prompt.into())).into()
    }

    /// Token ids, used as they are, without a chat template.
    pub fn tokens(ids: impl Into<Vec<u32>>) -> Request {
        GenerateRequest::new(Input::Tokens(ids.into())).into()
    }

    /// A conversation.
    pub fn chat(messages: impl IntoIterator<Item = ChatMessage>) -> Request {
        let messages: Vec<Value> = messages
            .into_iter()
            .map(|message| json!({"role": message.role, "content": message.content}))
            .collect();
        let body = json!({ "messages": messages }).to_string();
        GenerateRequest::new(Input::ChatJson(body)).into()
    }

    /// The JSON text of an OpenAI chat-completions body; see
    /// [`from_chat_completions`](Request::from_chat_completions).
    pub fn from_json(body: &str) -> Result<Request, RequestError> {
        Request::from_chat_completions(&serde_json::from_str(body)?)
    }

    /// An OpenAI chat-completions body.
    ///
    /// Used: `messages`, `tools`, `response_format` (`text`, `json_object`,
    /// `json_schema`), `max_tokens` or `max_completion_tokens`, `temperature`,
    /// `top_p`, `top_k`, `min_p`, `repetition_penalty` (or `repeat_penalty`),
    /// `seed`, `stop`, `logprobs`, `top_logprobs`, `chat_template_kwargs` with
    /// `enable_thinking`; and Tandem's own `priority` (`interactive`,
    /// `background`) and `deadline_ms`. Fields that name things Tandem does not
    /// have (`model`, `user`, `stream`, ...) are passed over; a field that would
    /// change the answer is an error.
    pub fn from_chat_completions(body: &Value) -> Result<Request, RequestError> {
        let Some(body) = body.as_object() else {
            return Err(wrong("(body)", body, "an object"));
        };
        let mut request = Request::from(GenerateRequest::new(Input::ChatJson(chat_of(body)?)));
        let inner = &mut request.inner;
        for (field, value) in body {
            if value.is_null() {
                continue;
            }
            match field.as_str() {
                "messages" | "tools" => {}
                "response_format" => inner.schema = schema_of(value)?,
                "max_tokens" | "max_completion_tokens" => {
                    inner.max_tokens = Some(whole(field, value)?);
                }
                "temperature" => inner.temperature = Some(number(field, value)?),
                "top_p" => inner.top_p = Some(number(field, value)?),
                "top_k" => inner.top_k = Some(whole(field, value)?),
                "min_p" => inner.min_p = Some(number(field, value)?),
                "repetition_penalty" | "repeat_penalty" => {
                    inner.repetition_penalty = Some(number(field, value)?);
                }
                "seed" => inner.seed = Some(seed(value)?),
                "stop" => inner.stop = stops(value)?,
                "logprobs" => {
                    if truth(field, value)? && inner.top_logprobs == 0 {
                        inner.top_logprobs = 1;
                    }
                }
                "top_logprobs" => inner.top_logprobs = top_logprobs(body, value)?,
                "chat_template_kwargs" => thinking(inner, value)?,
                "priority" => inner.priority = priority(value)?,
                "deadline_ms" => inner.deadline_ms = Some(whole(field, value)?),
                other => pass_over(other, value)?,
            }
        }
        Ok(request)
    }

    /// The answer must satisfy this JSON schema.
    pub fn schema(mut self, schema: &Value) -> Request {
        self.inner.schema = Some(schema.to_string());
        self
    }

    /// Most tokens to generate.
    pub fn max_tokens(mut self, tokens: u32) -> Request {
        self.inner.max_tokens = Some(tokens);
        self
    }

    /// 0 is greedy.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.inner.temperature = Some(temperature);
        self
    }

    /// Keep the `k` likeliest tokens; 0 keeps all.
    pub fn top_k(mut self, k: u32) -> Request {
        self.inner.top_k = Some(k);
        self
    }

    /// Keep the likeliest tokens whose probabilities sum to `p`.
    pub fn top_p(mut self, p: f32) -> Request {
        self.inner.top_p = Some(p);
        self
    }

    /// Keep tokens at least `p` times as likely as the likeliest.
    pub fn min_p(mut self, p: f32) -> Request {
        self.inner.min_p = Some(p);
        self
    }

    /// Divide the logits of tokens seen before; 1 changes nothing.
    pub fn repetition_penalty(mut self, penalty: f32) -> Request {
        self.inner.repetition_penalty = Some(penalty);
        self
    }

    /// Seed of the sampler.
    pub fn seed(mut self, seed: u64) -> Request {
        self.inner.seed = Some(seed);
        self
    }

    /// End the answer before this string; may be called several times.
    pub fn stop(mut self, stop: impl Into<String>) -> Request {
        self.inner.stop.push(stop.into());
        self
    }

    /// Report the `count` likeliest tokens, for the first token or for every one.
    pub fn top_logprobs(mut self, count: u8, scope: LogprobsScope) -> Request {
        self.inner.top_logprobs = count;
        self.inner.logprobs_scope = scope;
        self
    }

    /// Run when nothing interactive does.
    pub fn background(mut self) -> Request {
        self.inner.priority = Priority::Background;
        self
    }

    /// Give up after this many milliseconds.
    pub fn deadline_ms(mut self, millis: u32) -> Request {
        self.inner.deadline_ms = Some(millis);
        self
    }

    /// Feed this answer instead of the model's choices (measurements only).
    pub fn forced_answer(mut self, answer: impl Into<String>) -> Request {
        self.inner.forced_answer = Some(answer.into());
        self
    }

    /// Let the chat template open a thinking section.
    pub fn enable_thinking(mut self, enable: bool) -> Request {
        self.inner.enable_thinking = enable;
        self
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "absent".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        // Texts may be prompt text, and errors are logged.
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
    }
}

fn wrong(field: &str, value: &Value, expected: &'static str) -> RequestError {
    RequestError::Field { field: field.to_owned(), found: kind(value), expected }
}

fn number(field: &str, value: &Value) -> Result<f32, RequestError> {
    let number = value.as_f64().map(|number| number as f32);
    number.filter(|number| number.is_finite()).ok_or_else(|| wrong(field, value, "a number"))
}

fn whole(field: &str, value: &Value) -> Result<u32, RequestError> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong(field, value, "a whole number from 0 to 4294967295"))
}

fn truth(field: &str, value: &Value) -> Result<bool, RequestError> {
    value.as_bool().ok_or_else(|| wrong(field, value, "true or false"))
}

fn seed(value: &Value) -> Result<u64, RequestError> {
    // Other servers take -1 and the like; only the bits matter.
    let bits = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    bits.ok_or_else(|| wrong("seed", value, "a whole number of 64 bits"))
}

/// The part of the body that the daemon renders.
fn chat_of(body: &Map<String, Value>) -> Result<String, RequestError> {
    let messages = body.get("messages").unwrap_or(&Value::Null);
    let Some(list) = messages.as_array().filter(|list| !list.is_empty()) else {
        return Err(wrong("messages", messages, "an array of one or more messages"));
    };
    for (index, message) in list.iter().enumerate() {
        let role = message.get("role").unwrap_or(&Value::Null);
        if !role.is_string() {
            let field = format!("messages[{index}].role");
            return Err(wrong(&field, role, "a string"));
        }
    }
    let mut chat = Map::new();
    chat.insert("messages".into(), messages.clone());
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        if !tools.is_array() {
            return Err(wrong("tools", tools, "an array"));
        }
        chat.insert("tools".into(), tools.clone());
    }
    Ok(Value::Object(chat).to_string())
}

fn schema_of(format: &Value) -> Result<Option<String>, RequestError> {
    let expected = "\"text\", \"json_object\" or \"json_schema\"";
    let found = format.get("type").unwrap_or(&Value::Null);
    match found.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({"type": "object"}).to_string())),
        Some("json_schema") => {
            let schema = format.pointer("/json_schema/schema");
            match schema {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(schema.to_string())),
                other => Err(wrong(
                    "response_format.json_schema.schema",
                    other.unwrap_or(&Value::Null),
                    "a JSON schema",
                )),
            }
        }
        _ => Err(wrong("response_format.type", found, expected)),
    }
}

fn stops(value: &Value) -> Result<Vec<String>, RequestError> {
    let expected = "a string or an array of strings";
    match value {
        Value::String(stop) => Ok(vec![stop.clone()]),
        Value::Array(stops) => stops
            .iter()
            .map(|stop| stop.as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .ok_or_else(|| wrong("stop", value, expected)),
        other => Err(wrong("stop", other, expected)),
    }
}

fn top_logprobs(body: &Map<String, Value>, value: &Value) -> Result<u8, RequestError> {
    let count =
        u8::try_from(whole("top_logprobs", value)?).map_err(|_| wrong("top_logprobs", value, "0 to 20"))?;
    let logprobs = body.get("logprobs").unwrap_or(&Value::Null);
    if count > 0 && logprobs.as_bool() != Some(true) {
        return Err(wrong("logprobs", logprobs, "true when top_logprobs is set"));
    }
    // `logprobs: true` alone reports the likeliest token.
    Ok(if logprobs.as_bool() == Some(true) { count.max(1) } else { count })
}

fn thinking(request: &mut GenerateRequest, value: &Value) -> Result<(), RequestError> {
    let Some(arguments) = value.as_object() else {
        return Err(wrong("chat_template_kwargs", value, "an object"));
    };
    for (name, value) in arguments {
        if name != "enable_thinking" {
            return Err(RequestError::Unsupported {
                field: format!("chat_template_kwargs.{name}"),
                hint: " (only enable_thinking is)",
            });
        }
        request.enable_thinking = truth("chat_template_kwargs.enable_thinking", value)?;
    }
    Ok(())
}

fn priority(value: &Value) -> Result<Priority, RequestError> {
    match value.as_str() {
        Some("interactive") => Ok(Priority::Interactive),
        Some("background") => Ok(Priority::Background),
        _ => Err(wrong("priority", value, "\"interactive\" or \"background\"")),
    }
}

/// Accepts fields that do not change the answer, or that ask for what happens
/// anyway.
fn pass_over(field: &str, value: &Value) -> Result<(), RequestError> {
    let harmless = match field {
        "model"
        | "user"
        | "stream"
        | "stream_options"
        | "metadata"
        | "store"
        | "service_tier"
        | "safety_identifier"
        | "prompt_cache_key"
        | "cache_prompt"
        | "id_slot"
        | "parallel_tool_calls" => true,
        "n" | "best_of" => value.as_u64() == Some(1),
        "frequency_penalty" | "presence_penalty" => value.as_f64() == Some(0.0),
        "logit_bias" => value.as_object().is_some_and(Map::is_empty),
        "tool_choice" => value.as_str() == Some("auto"),
        _ => false,
    };
    if harmless {
        return Ok(());
    }
    let hint = match field {
        "n" | "best_of" => " (one answer a request)",
        "frequency_penalty" | "presence_penalty" => " (repetition_penalty is)",
        "tool_choice" => " (only \"auto\" is; use response_format)",
        _ => "",
    };
    Err(RequestError::Unsupported { field: field.to_owned(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: Value) -> Result<GenerateRequest, RequestError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        let extra = extra.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(extra);
        Request::from_chat_completions(&body).map(Into::into)
    }

    #[test]
    fn every_field_of_a_body_lands_in_the_request() {
        let request = parse(json!({
            "model": "any", "stream": true, "n": 1,
            "tools": [{"type": "function"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
            "max_tokens": 48, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1,
            "repetition_penalty": 1.1, "seed": -1, "stop": ["a", "b"],
            "logprobs": true, "top_logprobs": 5,
            "chat_template_kwargs": {"enable_thinking": true},
            "priority": "background", "deadline_ms": 900
        }))
        .unwrap();
        let mut expected = GenerateRequest::new(Input::ChatJson(
            r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]}"#.into(),
        ));
        expected.schema = Some(r#"{"type":"object"}"#.into());
        expected.max_tokens = Some(48);
        expected.temperature = Some(0.0);
        expected.top_p = Some(0.5);
        expected.top_k = Some(3);
        expected.min_p = Some(0.1);
        expected.repetition_penalty = Some(1.1);
        expected.seed = Some(u64::MAX);
        expected.stop = vec!["a".into(), "b".into()];
        expected.top_logprobs = 5;
        expected.enable_thinking = true;
        expected.priority = Priority::Background;
        expected.deadline_ms = Some(900);
        assert_eq!(request, expected);
        request.validate().unwrap();
    }

    #[test]
    fn the_schema_keeps_the_order_of_its_keys() {
        let body = r#"{"messages":[{"role":"user","content":"x"}],
            "response_format":{"type":"json_schema","json_schema":{"schema":{"z":1,"a":2}}}}"#;
        let request: GenerateRequest = Request::from_json(body).unwrap().into();
        assert_eq!(request.schema.as_deref(), Some(r#"{"z":1,"a":2}"#));
    }

    #[test]
    fn a_field_that_would_change_the_answer_is_named() {
        for (field, value) in [
            ("n", json!(2)),
            ("frequency_penalty", json!(0.5)),
            ("logit_bias", json!({"5": 1})),
            ("tool_choice", json!("required")),
            ("temprature", json!(0)),
        ] {
            let error = parse(json!({ field: value })).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
            assert!(matches!(error, RequestError::Unsupported { .. }));
        }
    }

    #[test]
    fn a_field_of_the_wrong_form_is_named_with_what_was_there() {
        for (field, value) in [
            ("max_tokens", json!(-1)),
            ("max_tokens", json!(1.5)),
            ("temperature", json!("hot")),
            ("stop", json!([1])),
            ("response_format", json!({"type": "xml"})),
            ("response_format", json!({"type": "json_schema"})),
            ("messages", json!([])),
            ("messages", json!([{"content": "x"}])),
            ("tools", json!({})),
            ("priority", json!("urgent")),
        ] {
            let error = parse(json!({ field: value })).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
            assert!(matches!(error, RequestError::Field { .. }));
        }
    }

    #[test]
    fn an_error_holds_no_text_of_the_body() {
        let error = parse(json!({"temperature": "canary"})).unwrap_err();
        assert!(!error.to_string().contains("canary"), "{error}");
    }
}
