//! `cargo xtask policies`: the built-in policies as components.
//!
//! `policies/built` is kept in the repository, so that building the daemon takes no Wasm
//! target. `policies/built/sources.json` says of which sources and bytes each component is;
//! a test compares.

use crate::cargo::{TaskError, cargo, root, run as run_command, target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the components of the built-in policies from their sources.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only say which are not of today's sources.
    #[arg(long)]
    check: bool,
}

/// The built-in policies, a crate each in `policies`.
const POLICIES: [&str; 7] = ["adaptive", "anchor", "chat", "divergence", "idle-timer", "marconi", "sparse"];
/// What every component is built from, too.
const CONTRACT: [&str; 2] = ["policies/guest", "policies/wit"];
const RECORD: &str = "policies/built/sources.json";

/// What a component was built from, and what came out.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Built {
    sources: String,
    component: String,
}

type Record = BTreeMap<String, Built>;

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    let stale = stale()?;
    if args.check {
        for name in &stale {
            println!("policies/built/{name}.wasm is not of today's sources");
        }
        let failed = stale.iter().map(|name| (*name).to_owned()).collect();
        return if stale.is_empty() { Ok(()) } else { Err(TaskError::Steps { failed, all: POLICIES.len() }) };
    }
    // With a test: then dependencies have the features of a test run of the workspace, and
    // are not built a second time.
    run_command(cargo().args(["build", "--workspace", "--bin", "tandem", "--test", "structure"]))?;
    let mut record = Record::new();
    for name in POLICIES {
        let component = component(name);
        run_command(
            Command::new(target().join("debug/tandem"))
                .current_dir(root())
                .args(["policy", "build"])
                .arg(Path::new("policies").join(name))
                .arg("--out")
                .arg(&component)
                .env("CARGO_TARGET_DIR", target()),
        )?;
        record.insert(name.to_owned(), today(name)?);
    }
    let text = serde_json::to_string_pretty(&record).map_err(|e| file_error(RECORD, e.into()))? + "\n";
    std::fs::write(root().join(RECORD), text).map_err(|e| file_error(RECORD, e))
}

fn component(name: &str) -> PathBuf {
    root().join("policies/built").join(format!("{name}.wasm"))
}

/// Policies whose component is not what the record says of today's sources.
fn stale() -> Result<Vec<&'static str>, TaskError> {
    let text = std::fs::read_to_string(root().join(RECORD)).unwrap_or_default();
    let record: Record = serde_json::from_str(&text).unwrap_or_default();
    let mut stale = Vec::new();
    for name in POLICIES {
        if record.get(name) != Some(&today(name)?) {
            stale.push(name);
        }
    }
    Ok(stale)
}

/// Sources and component as they stand.
fn today(name: &str) -> Result<Built, TaskError> {
    let mut sources = Vec::new();
    let own = format!("policies/{name}");
    for folder in CONTRACT.into_iter().chain([own.as_str()]) {
        files(Path::new(folder), &mut sources)?;
    }
    sources.sort();
    let mut hasher = Sha256::new();
    for path in sources {
        let bytes = read(&path)?;
        hasher.update(path.as_bytes());
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    let component = format!("policies/built/{name}.wasm");
    Ok(Built { sources: hex(hasher), component: hex(Sha256::new().chain_update(read(&component)?)) })
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &str) -> Result<Vec<u8>, TaskError> {
    std::fs::read(root().join(path)).map_err(|e| file_error(path, e))
}

/// Rust, WIT and manifest files below a folder, by their paths from the root.
fn files(folder: &Path, found: &mut Vec<String>) -> Result<(), TaskError> {
    let fail = |e| file_error(&folder.to_string_lossy(), e);
    for entry in std::fs::read_dir(root().join(folder)).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let path = folder.join(entry.file_name());
        if entry.file_type().map_err(fail)?.is_dir() {
            if entry.file_name() != "target" {
                files(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "wit" || e == "toml") {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn file_error(path: &str, source: std::io::Error) -> TaskError {
    TaskError::File { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_components_are_of_todays_sources() {
        let stale = stale().unwrap();
        assert!(stale.is_empty(), "run `cargo xtask policies`: the components of {stale:?} are stale");
    }

    #[test]
    fn another_source_is_another_hash() {
        let of = |name| today(name).unwrap();
        assert_ne!(of("chat").sources, of("anchor").sources);
        assert_eq!(of("chat"), of("chat"));
    }
}
