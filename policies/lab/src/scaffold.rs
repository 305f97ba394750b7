//! A new policy crate: a working policy, with a copy of the contract beside it,
//! so that the crate needs nothing of the Tandem sources.

use std::path::{Path, PathBuf};

/// The contract's crate and its WIT, by their place in the new crate.
const CONTRACT: &[(&str, &str)] = &[
    ("contract/guest/src/lib.rs", include_str!("../../guest/src/lib.rs")),
    ("contract/guest/src/expected.rs", include_str!("../../guest/src/expected.rs")),
    ("contract/guest/src/native.rs", include_str!("../../guest/src/native.rs")),
    ("contract/guest/src/placement.rs", include_str!("../../guest/src/placement.rs")),
    ("contract/guest/src/positions.rs", include_str!("../../guest/src/positions.rs")),
    ("contract/guest/src/power.rs", include_str!("../../guest/src/power.rs")),
    ("contract/guest/src/wasm/mod.rs", include_str!("../../guest/src/wasm/mod.rs")),
    ("contract/guest/src/wasm/placement.rs", include_str!("../../guest/src/wasm/placement.rs")),
    ("contract/guest/src/wasm/power.rs", include_str!("../../guest/src/wasm/power.rs")),
    ("contract/wit/1.0.0/tandem-policy.wit", WIT),
];

/// The contract, version 1.0.0.
pub const WIT: &str = include_str!("../../wit/1.0.0/tandem-policy.wit");

const GUEST_MANIFEST: &str = include_str!("../../guest/Cargo.toml");
const PLACEMENT: &str = include_str!("../template/lib.rs");
const POWER: &str = include_str!("../template/power.rs");

/// Which kind of policy a new crate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Where recurrent state is saved.
    Placement,
    /// When power votes go.
    Power,
}

/// Why no crate was made.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    /// The name cannot be a crate's.
    #[error(
        "{name:?} cannot be a crate's name: use small letters, digits and '-', a letter first, at most 64"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Something is there.
    #[error("{path} exists; give another --path")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Writes the crate `name` into `folder`, which must not exist.
pub fn scaffold(name: &str, folder: &Path, kind: Kind) -> Result<(), ScaffoldError> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(letters) || name.len() > 64 {
        return Err(ScaffoldError::Name { name: name.to_owned() });
    }
    if folder.exists() {
        return Err(ScaffoldError::Exists { path: folder.into() });
    }
    let (policy, features) = match kind {
        Kind::Placement => (PLACEMENT, ""),
        // A component must not import the other world's types.
        Kind::Power => (POWER, ", default-features = false, features = [\"power\"]"),
    };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         # Its own workspace, wherever it lies.\n[workspace]\n\n\
         [dependencies]\ntandem-policy = {{ path = \"contract/guest\"{features} }}\n"
    );
    let ignore = "/target\n/*.wasm\n";
    let own = [
        ("Cargo.toml", manifest),
        (".gitignore", ignore.to_owned()),
        ("src/lib.rs", policy.replace("NAME", name)),
        ("contract/guest/Cargo.toml", guest_manifest()),
    ];
    let contract = CONTRACT.iter().map(|&(path, text)| (path, text.to_owned()));
    for (path, text) in own.into_iter().chain(contract) {
        let path = folder.join(path);
        let written =
            path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| ScaffoldError::Write { path, source })?;
    }
    Ok(())
}

/// The contract's manifest without what it takes from Tandem's workspace.
fn guest_manifest() -> String {
    let mut out = String::new();
    let mut skip = false;
    for line in GUEST_MANIFEST.lines() {
        if line.starts_with('[') {
            skip = line == "[lints]";
        }
        let line = match line.split_once(".workspace") {
            Some(("edition", _)) => "edition = \"2024\"",
            Some(("license", _)) => "license = \"Apache-2.0\"",
            Some(_) => continue,
            None => line,
        };
        if !skip {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_the_contract_is_whole() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = 0;
        for folder in ["guest/src", "guest/src/wasm", "wit/1.0.0"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("the contract's folder") {
                let entry = entry.expect("an entry");
                if entry.file_type().expect("a type").is_file() {
                    let name = format!("contract/{folder}/{}", entry.file_name().to_string_lossy());
                    assert!(CONTRACT.iter().any(|(path, _)| *path == name), "{name} is not copied");
                    found += 1;
                }
            }
        }
        assert_eq!(found, CONTRACT.len());
    }

    #[test]
    fn the_copied_manifest_takes_nothing_from_a_workspace() {
        let manifest: toml::Table = guest_manifest().parse().expect("a manifest");
        assert_eq!(manifest["package"]["name"].as_str(), Some("tandem-policy"));
        assert!(manifest.contains_key("target"));
        assert!(!manifest.contains_key("lints"));
        assert!(!guest_manifest().contains("workspace"));
    }

    #[test]
    fn a_name_that_is_no_crates_or_a_folder_in_use_is_refused() {
        let somewhere = Path::new("/nonexistent/x");
        for name in ["", "9lives", "Upper", "a b", "../up", "x\"y"] {
            assert!(
                matches!(scaffold(name, somewhere, Kind::Placement), Err(ScaffoldError::Name { .. })),
                "{name}"
            );
        }
        assert!(matches!(scaffold("fine", Path::new("/"), Kind::Power), Err(ScaffoldError::Exists { .. })));
    }
}
