//! Recorded traces, and the fixtures that lie beside a checkout.
#![allow(dead_code)] // Each test binary uses its part.

use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The shared traces.
pub(crate) const TRACES: [&str; 5] = ["agent-text", "agent-system", "chat-growing", "rules-last", "two-apps"];

/// A line of a trace.
pub(crate) struct Recorded {
    /// As it stands in the file.
    pub(crate) line: String,
    /// Whose slot it goes to.
    pub(crate) agent: String,
    value: Value,
}

impl Recorded {
    pub(crate) fn read(path: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(path).expect("a trace");
        let parse = |line: &str| {
            let value: Value = serde_json::from_str(line).expect("a trace line");
            let agent = value["agent"].as_str().unwrap_or_default().to_owned();
            Recorded { line: line.to_owned(), agent, value }
        };
        text.lines().map(parse).collect()
    }

    pub(crate) fn body(&self) -> &Value {
        &self.value["request"]
    }

    pub(crate) fn expect(&self) -> &str {
        self.value["expect"].as_str().expect("a recorded answer")
    }
}

/// A file of the folder that lies beside the checkout, or that `TANDEM_SHARED` names.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TANDEM_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        eprintln!("NOT RUN: {} does not exist (set TANDEM_SHARED)", path.display());
        return None;
    }
    Some(path)
}

/// The real vocabulary, as a GGUF file's bytes.
pub(crate) fn shared_vocabulary() -> Option<Vec<u8>> {
    let file = std::fs::File::open(shared("fixtures/tokenizer/qwen35-vocab.gguf.zst")?).expect("readable");
    let mut bytes = Vec::new();
    let mut unpacked = ruzstd::decoding::StreamingDecoder::new(file).expect("zstd");
    unpacked.read_to_end(&mut bytes).expect("unpacks");
    Some(bytes)
}
