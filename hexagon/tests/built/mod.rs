//! What the tests run.

use std::path::{Path, PathBuf};

/// Where `cargo xtask hexagon` puts what it builds.
pub(crate) fn built() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| own.join("../target"), PathBuf::from);
    target.join("hexagon")
}
