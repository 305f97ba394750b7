//! Another server: OpenAI chat completions over plain HTTP.

use crate::failure::Failure;
use crate::numbers::Numbers;
use crate::replay::Answered;
use crate::trace::Recorded;
use serde_json::{Value, json};
use std::time::Instant;

/// A server to ask.
#[derive(Debug)]
pub(crate) struct Peer {
    agent: ureq::Agent,
    url: String,
}

impl Peer {
    /// `base` is http://HOST:PORT, with or without /v1.
    pub(crate) fn new(base: &str) -> Result<Peer, Failure> {
        if !base.starts_with("http://") {
            return Err(Failure::Usage(format!(
                "--url is {base:?}; it must start with http:// (there is no TLS here)"
            )));
        }
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Ok(Peer { agent: config.into(), url: format!("{base}/v1/chat/completions") })
    }

    /// Asks a recorded request.
    pub(crate) fn ask(&self, recorded: &Recorded) -> Result<Answered, Failure> {
        let start = Instant::now();
        let sent =
            self.agent.post(&self.url).content_type("application/json").send(body(recorded).to_string());
        let unreachable =
            |error: ureq::Error| Failure::Unreachable { url: self.url.clone(), reason: error.to_string() };
        let mut response = sent.map_err(unreachable)?;
        let status = response.status();
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let fail = |reason| Failure::Peer { url: self.url.clone(), line: recorded.line, reason };
        if !status.is_success() {
            return Err(fail(format!("status {status}: {}", refusal(&text))));
        }
        answered(&text, ms).map_err(fail)
    }
}

/// The recorded body as the same request to another server: one answer, not streamed, and
/// the template called as Tandem calls it.
fn body(recorded: &Recorded) -> Value {
    let mut body = recorded.body.clone();
    body["stream"] = false.into();
    if body["model"].is_null() {
        // Servers of one model take any name, and some insist on one.
        body["model"] = "default".into();
    }
    if body["chat_template_kwargs"].is_null() {
        body["chat_template_kwargs"] = json!({"enable_thinking": recorded.request.enable_thinking});
    }
    body
}

/// The error text of a refused request.
fn refusal(text: &str) -> String {
    let json: Option<Value> = serde_json::from_str(text).ok();
    let message = json.as_ref().and_then(|json| json.pointer("/error/message")?.as_str());
    message.unwrap_or(text).chars().take(400).collect()
}

/// Reads an answer: the text and usage of any server, and the timings of llama.cpp's.
fn answered(text: &str, ms: f64) -> Result<Answered, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("the answer is no JSON: {e}"))?;
    let content = json.pointer("/choices/0/message/content").and_then(Value::as_str);
    let content = content.ok_or("the answer has no choices[0].message.content")?;
    let count = |path| json.pointer(path).and_then(Value::as_u64);
    let time = |path| json.pointer(path).and_then(Value::as_f64);
    let prompt = count("/usage/prompt_tokens");
    let restored = count("/timings/cache_n").or_else(|| count("/usage/prompt_tokens_details/cached_tokens"));
    Ok(Answered {
        text: content.to_owned(),
        finish: json.pointer("/choices/0/finish_reason").and_then(Value::as_str).map(str::to_owned),
        numbers: Numbers {
            prompt,
            restored,
            new: count("/timings/prompt_n").or_else(|| prompt?.checked_sub(restored?)),
            decode_tokens: count("/usage/completion_tokens"),
            drafted: count("/timings/draft_n"),
            accepted: count("/timings/draft_n_accepted"),
            prefill_ms: time("/timings/prompt_ms"),
            decode_ms: time("/timings/predicted_ms"),
            ms: Some(ms),
            ..Numbers::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_form_reaches_the_same_place() {
        for base in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(Peer::new(base).unwrap().url, "http://h:1/v1/chat/completions");
        }
        assert!(Peer::new("https://h").unwrap_err().to_string().contains("http://"));
    }

    #[test]
    fn the_timings_of_llama_cpp_are_used_where_they_are() {
        let text = r#"{"choices":[{"message":{"content":"{}"},"finish_reason":"stop"}],
            "usage":{"prompt_tokens":100,"completion_tokens":5},
            "timings":{"cache_n":60,"prompt_n":40,"prompt_ms":12.5,"predicted_ms":7.0}}"#;
        let n = answered(text, 20.0).unwrap().numbers;
        assert_eq!((n.prompt, n.restored, n.new, n.decode_tokens), (Some(100), Some(60), Some(40), Some(5)));
        assert_eq!((n.prefill_ms, n.ms, n.passes), (Some(12.5), Some(20.0), None));
    }

    #[test]
    fn without_timings_what_is_unknown_stays_unknown() {
        let text =
            r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
        let n = answered(text, 1.0).unwrap().numbers;
        assert_eq!((n.prompt, n.new, n.prefill_ms), (Some(9), None, None));
        assert!(answered("{}", 1.0).unwrap_err().contains("content"));
    }

    #[test]
    fn a_refusal_is_shown_in_the_servers_words() {
        assert_eq!(refusal(r#"{"error":{"message":"too long"}}"#), "too long");
        assert_eq!(refusal("<html>"), "<html>");
    }
}
