//! The map is true: paths and functions that ARCHITECTURE.md names exist, and crates depend
//! only downwards.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tandem_tests::root;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Texts between single backticks on a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let ends = [".rs", ".md", ".toml", ".jsonl", ".gguf", ".py"];
    text.chars().all(plain)
        && !text.starts_with('/')
        && (text.contains('/') || ends.iter().any(|end| text.ends_with(end)))
}

#[test]
fn every_path_on_the_map_exists() {
    let mut seen = 0;
    for file in ["ARCHITECTURE.md", "README.md"] {
        for (number, line) in read(&root().join(file)).lines().enumerate() {
            for path in quoted(line).filter(|text| is_path(text)) {
                seen += 1;
                assert!(root().join(path).exists(), "{file}, line {}: there is no {path}", number + 1);
            }
        }
    }
    assert!(seen > 30, "only {seen} paths found: is the map still written with backticks?");
}

#[test]
fn every_function_on_the_map_is_in_the_file_named_before_it() {
    let map = read(&root().join("ARCHITECTURE.md"));
    let mut seen = 0;
    for (number, line) in map.lines().enumerate() {
        let mut source = None;
        for text in quoted(line) {
            if is_path(text) && text.ends_with(".rs") {
                source = Some(text);
            } else if let (Some(path), Some((_, function))) = (source, text.rsplit_once("::")) {
                let function = function.trim_end_matches("()");
                let found = read(&root().join(path)).contains(&format!("fn {function}"));
                seen += 1;
                assert!(found, "ARCHITECTURE.md, line {}: {path} has no fn {function}", number + 1);
            }
        }
    }
    assert!(seen > 10, "only {seen} functions found: does the map still follow a request?");
}

/// What each crate may depend on, of this workspace. Lower crates first; a new crate needs a
/// line here. Development dependencies may look upwards: they are not in what ships.
const LAYERS: &[(&str, &[&str])] = &[
    ("tandem-program", &[]),
    ("tandem-policy", &[]),
    ("tandem-ipc", &[]),
    ("tandem-cpu", &["tandem-program"]),
    ("tandem-hexagon", &["tandem-program"]),
    ("tandem-engine", &["tandem-program", "tandem-policy"]),
    ("tandem-policy-adaptive", &["tandem-policy"]),
    ("tandem-policy-anchor", &["tandem-policy"]),
    ("tandem-policy-chat", &["tandem-policy"]),
    ("tandem-policy-divergence", &["tandem-policy"]),
    ("tandem-policy-idle-timer", &["tandem-policy"]),
    ("tandem-policy-marconi", &["tandem-policy"]),
    ("tandem-policy-sparse", &["tandem-policy"]),
    (
        "tandem-policies",
        &[
            "tandem-policy",
            "tandem-policy-adaptive",
            "tandem-policy-idle-timer",
            "tandem-policy-anchor",
            "tandem-policy-chat",
            "tandem-policy-divergence",
            "tandem-policy-marconi",
            "tandem-policy-sparse",
        ],
    ),
    ("tandem-lab", &["tandem-engine", "tandem-policy", "tandem-policies"]),
    (
        "tandemd",
        &[
            "tandem-program",
            "tandem-cpu",
            "tandem-engine",
            "tandem-hexagon",
            "tandem-ipc",
            "tandem-policy",
            "tandem-policy-adaptive",
            "tandem-policy-idle-timer",
            "tandem-policies",
            "tandem-policy-anchor",
            "tandem-policy-chat",
            "tandem-policy-divergence",
        ],
    ),
    ("tandem-sdk", &["tandem-ipc"]),
    (
        "tandem-cli",
        &[
            "tandem-sdk",
            "tandem-engine",
            "tandem-policy",
            "tandem-policy-adaptive",
            "tandem-policy-idle-timer",
            "tandem-policies",
            "tandem-lab",
            // `bench` measures a device and the rings without a daemon between.
            "tandem-program",
            "tandem-cpu",
            "tandem-ipc",
            // Its command line, for the manual page; `policy` checks and simulates plugins in the daemon's own host.
            "tandemd",
        ],
    ),
    ("tandem-fuzz", &["tandem-engine", "tandem-ipc"]),
    ("xtask", &["tandem-sdk"]),
    ("tandem-tests", &["tandem-sdk"]),
];

/// Crates of the workspace, with what each depends on outside of tests.
fn manifests() -> BTreeMap<String, BTreeSet<String>> {
    let parse = |path: &Path| -> toml::Table {
        read(path).parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let workspace = parse(&root().join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap();
    members
        .iter()
        .map(|member| {
            let manifest = parse(&root().join(member.as_str().unwrap()).join("Cargo.toml"));
            let name = manifest["package"]["name"].as_str().unwrap().to_owned();
            let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten();
            let tables = targets.filter_map(|(_, table)| table.as_table()).chain([&manifest]);
            let dependencies = tables
                .flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)))
                .flatten()
                .filter_map(toml::Value::as_table)
                .flatten()
                .map(|(key, value)| {
                    let renamed = value.get("package").and_then(toml::Value::as_str);
                    renamed.unwrap_or(key).to_owned()
                })
                .collect();
            (name, dependencies)
        })
        .collect()
}

#[test]
fn crates_depend_only_downwards() {
    let manifests = manifests();
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    for (name, dependencies) in &manifests {
        let allowed = allowed.get(name.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("{name} has no place in LAYERS; give it one"));
        for dependency in dependencies.iter().filter(|dependency| manifests.contains_key(*dependency)) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} must not depend on {dependency}; it may on {allowed:?}"
            );
        }
    }
}

#[test]
fn the_layers_have_an_order() {
    let mut lower = BTreeSet::new();
    for (name, allowed) in LAYERS {
        for dependency in *allowed {
            assert!(
                lower.contains(dependency),
                "{name} may depend on {dependency}, which does not stand above it"
            );
        }
        lower.insert(*name);
    }
}
