//! The requests of the project's recorded traces.
#![allow(dead_code, missing_docs, unreachable_pub)] // Each test binary uses its part.

use serde_json::Value;
use std::path::Path;
use tandem_engine::request::{Input, Request};

/// A line of a trace.
pub struct Step {
    /// Who asks.
    pub agent: String,
    pub request: Request,
    /// The recorded answer.
    pub expect: String,
}

/// The lines of a trace in `tests/traces`, in order.
pub fn steps(name: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces").join(name);
    let text = std::fs::read_to_string(path).expect("the trace");
    text.lines().map(step).collect()
}

fn step(line: &str) -> Step {
    let step: Value = serde_json::from_str(line).expect("a trace line");
    let body = &step["request"];
    let mut request = Request::new(Input::Chat { messages: body["messages"].clone(), tools: None });
    request.schema = Some(body["response_format"]["json_schema"]["schema"].to_string());
    request.max_tokens = Some(48);
    let text = |key: &str| step[key].as_str().expect("a text").to_owned();
    Step { agent: text("agent"), request, expect: text("expect") }
}
