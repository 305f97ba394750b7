//! Recorded screens and the actions asked for on them, in a person's words.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One recorded request of the demo trace.
#[derive(Debug, Deserialize)]
pub(crate) struct Screen {
    /// Who asks.
    pub(crate) agent: String,
    /// The task.
    pub(crate) episode: String,
    /// Number in the episode, from 0.
    pub(crate) step: u64,
    /// The recorded answer.
    pub(crate) expect: String,
    request: Value,
}

/// Screens by their line in the file.
pub(crate) type Screens = BTreeMap<usize, Screen>;

/// Reads a trace; the error names the line.
pub(crate) fn read(path: &Path) -> Result<Screens, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| match serde_json::from_str(line) {
            Ok(screen) => Ok((at + 1, screen)),
            Err(error) => Err(format!("line {}: {error}", at + 1)),
        })
        .collect()
}

impl Screen {
    /// The chat-completions body.
    pub(crate) fn request(&self) -> &Value {
        &self.request
    }

    /// The control with a number, as the prompt describes it, without its place.
    fn control(&self, number: u64) -> Option<String> {
        let messages = self.request["messages"].as_array()?;
        let screen = messages.last()?["content"].as_str()?;
        let start = format!("[{number}] ");
        let line = screen.lines().rev().find_map(|line| line.strip_prefix(&start))?;
        Some(line.rsplit_once(" (").map_or(line, |(control, _)| control).to_owned())
    }

    /// The action in an answer, in words; the answer itself where it is no such action. Each
    /// app has key names of its own.
    pub(crate) fn action(&self, answer: &str) -> String {
        let json: Value = serde_json::from_str(answer).unwrap_or(Value::Null);
        let first = |keys: [&str; 2]| keys.into_iter().map(|key| &json[key]).find(|value| !value.is_null());
        let Some(action) = first(["action", "do"]).and_then(Value::as_str) else { return answer.to_owned() };
        let mut words = action.to_owned();
        if let Some(number) = first(["target", "line"]).and_then(Value::as_u64) {
            let control = self.control(number).unwrap_or_else(|| "no such control".into());
            words.push_str(&format!(" [{number}] {control}"));
        }
        if let Some(text) = first(["text", "value"]).and_then(Value::as_str) {
            words.push_str(&format!(" ← {text:?}"));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen {
        serde_json::from_value(serde_json::json!({
            "agent": "A", "episode": "letterbox/write", "step": 0, "expect": "",
            "request": {"messages": [
                {"role": "system", "content": "[1] not here"},
                {"role": "user", "content": "Task: x\n[0] Title \"Inbox\" (11,9)\n[1] Field \"To (all)\" (3,4)"}
            ]}
        }))
        .unwrap()
    }

    #[test]
    fn an_action_names_the_control_it_is_for() {
        let screen = screen();
        assert_eq!(screen.action(r#"{"action":"tap","target":0}"#), "tap [0] Title \"Inbox\"");
        assert_eq!(
            screen.action(r#"{"action":"type","target":1,"text":"Anna"}"#),
            "type [1] Field \"To (all)\" ← \"Anna\""
        );
        assert_eq!(screen.action(r#"{"do":"press","line":0}"#), "press [0] Title \"Inbox\"");
        assert_eq!(screen.action(r#"{"action":"back"}"#), "back");
        assert_eq!(screen.action(r#"{"action":"tap","target":7}"#), "tap [7] no such control");
    }

    #[test]
    fn what_is_no_action_is_shown_as_it_stands() {
        assert_eq!(screen().action("hello"), "hello");
    }
}
