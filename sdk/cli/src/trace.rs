//! Recorded traces: a request a line.

use crate::failure::Failure;
use crate::schema::Checker;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use tandem_sdk::{GenerateRequest, Request};

/// The client of lines that name no agent.
const NO_AGENT: &str = "replay";

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    app: Value,
    agent: Option<String>,
    #[serde(default)]
    episode: Value,
    #[serde(default)]
    step: Value,
    request: Value,
    expect: Option<String>,
}

/// One recorded request.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// Who asks.
    pub(crate) agent: String,
    /// As the trace has them, or null.
    pub(crate) app: Value,
    pub(crate) episode: Value,
    pub(crate) step: Value,
    /// The body.
    pub(crate) body: Value,
    /// The same as a request.
    pub(crate) request: GenerateRequest,
    /// Checks the answer, if the request has a schema.
    pub(crate) checker: Option<Rc<Checker>>,
    /// The recorded answer.
    pub(crate) expect: Option<String>,
}

/// Reads a trace, at most `limit` requests. Everything is checked before anything runs.
pub(crate) fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Recorded>, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::read(path))?;
    let mut checkers = HashMap::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let trace = lines
        .take(limit.unwrap_or(usize::MAX))
        .map(|(at, line)| {
            let fail = |reason| Failure::Line { path: path.to_owned(), line: at + 1, reason };
            recorded(at + 1, line, &mut checkers).map_err(fail)
        })
        .collect::<Result<Vec<_>, _>>()?;
    if trace.is_empty() {
        return Err(Failure::content(path, "the trace holds no request"));
    }
    Ok(trace)
}

fn recorded(
    number: usize,
    text: &str,
    checkers: &mut HashMap<String, Rc<Checker>>,
) -> Result<Recorded, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| {
        // serde_json counts lines too, and there is one.
        let text = error.to_string();
        text.replace("at line 1 column", "at column")
    })?;
    let request = Request::from_chat_completions(&line.request).map_err(|error| error.to_string())?;
    let request: GenerateRequest = request.into();
    request.validate().map_err(|error| error.to_string())?;
    let checker = match &request.schema {
        None => None,
        Some(schema) => Some(match checkers.get(schema) {
            Some(checker) => Rc::clone(checker),
            None => {
                let checker = Rc::new(Checker::new(schema)?);
                checkers.insert(schema.clone(), Rc::clone(&checker));
                checker
            }
        }),
    };
    Ok(Recorded {
        line: number,
        agent: line.agent.unwrap_or_else(|| NO_AGENT.into()),
        app: line.app,
        episode: line.episode,
        step: line.step,
        body: line.request,
        request,
        checker,
        expect: line.expect,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> Result<Recorded, String> {
        recorded(1, text, &mut HashMap::new())
    }

    #[test]
    fn a_line_without_an_agent_belongs_to_the_shared_client() {
        let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
        let line = read_one(&format!(r#"{{"app":"A","step":3,"request":{body},"expect":"y"}}"#)).unwrap();
        assert_eq!((line.agent.as_str(), line.step, line.expect.as_deref()), ("replay", 3.into(), Some("y")));
        let line = read_one(&format!(r#"{{"agent":"B","request":{body}}}"#)).unwrap();
        assert_eq!((line.agent.as_str(), line.expect), ("B", None));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        for (text, word) in [
            ("{", "column"),
            ("{}", "request"),
            (r#"{"request":{"messages":[]}}"#, "messages"),
            (r#"{"request":{"messages":[{"role":"user","content":"x"}],"temperature":-1}}"#, "temperature"),
            (r#"{"request":{"messages":[{"role":"user","content":"x"}]},"expect":1}"#, "string"),
        ] {
            let error = read_one(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
