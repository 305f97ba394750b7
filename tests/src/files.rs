//! Models and traces of this repository.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap_or(root)
}

/// A tiny random-weight model of the golden set, such as `qwen35-a`.
pub fn golden(name: &str) -> PathBuf {
    root().join("tests/golden").join(format!("{name}.gguf"))
}

/// The model that knows the demo trace.
pub fn demo_model() -> PathBuf {
    root().join("tests/model/demo.gguf")
}

/// The trace that the demo model knows.
pub fn demo_trace() -> PathBuf {
    root().join("tests/traces/demo.jsonl")
}

/// Episodes kept out of its training.
pub fn heldout_trace() -> PathBuf {
    root().join("tests/traces/heldout.jsonl")
}

/// A recorded trace.
#[derive(Debug)]
pub struct Trace {
    /// Its lines, as they stand in the file.
    pub lines: Vec<String>,
    /// The same, parsed.
    pub requests: Vec<Value>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Panics
    /// If the file cannot be read or a line is no JSON.
    pub fn read(path: &Path) -> Trace {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let parse = |line: &String| {
            serde_json::from_str(line)
                .unwrap_or_else(|e| panic!("a line of {} is no JSON: {e}", path.display()))
        };
        Trace { requests: lines.iter().map(parse).collect(), lines }
    }

    /// Values of `agent`, each once.
    pub fn agents(&self) -> Vec<String> {
        let mut agents: Vec<String> =
            self.requests.iter().filter_map(|request| Some(request["agent"].as_str()?.to_owned())).collect();
        agents.sort();
        agents.dedup();
        agents
    }

    /// The lines of one agent, as a file's content.
    pub fn of_agent(&self, agent: &str) -> String {
        let lines = self.lines.iter().zip(&self.requests).filter(|(_, request)| request["agent"] == agent);
        lines.map(|(line, _)| format!("{line}\n")).collect()
    }
}
