//! Compiled code on disk, so that a restart need not compile.
//!
//! Compiled code is run as it is: whoever can write here can run anything in
//! the daemon. So the folder must belong to the daemon's user and nobody else
//! may write to it; an author's compiled file is never taken.

use crate::private_folder::{self, trusted};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Largest compiled file taken, in bytes.
const MAX_COMPILED_BYTES: u64 = 64 << 20;

/// A folder that only this user can write to.
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// Opens or makes the folder; `None`, with a warning, if it cannot be trusted.
    pub(crate) fn open(folder: &Path) -> Option<Self> {
        private_folder::open(folder, "compiled policies").map(|folder| Self { folder })
    }

    /// The files of a component: its bytes, compared in full, and its code.
    fn paths(&self, engine: &Engine, bytes: &[u8]) -> [PathBuf; 2] {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        bytes.hash(&mut hasher);
        let name = format!("{:016x}", hasher.finish());
        ["wasm", "code"].map(|kind| self.folder.join(format!("{name}.{kind}")))
    }

    /// The compiled code of exactly these bytes.
    pub(crate) fn load(&self, engine: &Engine, bytes: &[u8]) -> Option<Component> {
        let [source, code] = self.paths(engine, bytes);
        if std::fs::read(&source).ok()? != bytes {
            return None;
        }
        for path in [&self.folder, &code] {
            if let Err(reason) = trusted(path) {
                tracing::warn!("compiled policy not used: {} {reason}", path.display());
                return None;
            }
        }
        if std::fs::symlink_metadata(&code).ok()?.len() > MAX_COMPILED_BYTES {
            return None;
        }
        let code = std::fs::read(&code).ok()?;
        // SAFETY: the bytes were written by `store` of this user's daemon: `trusted` just
        // saw that folder and file belong to this user and that nobody else may write there.
        // Wasmtime itself refuses code of another version or configuration.
        unsafe { Component::deserialize(engine, code) }.ok()
    }

    /// Keeps compiled code; a failure costs the next start some milliseconds, so it is only logged.
    pub(crate) fn store(&self, engine: &Engine, bytes: &[u8], component: &Component) {
        let [source, code] = self.paths(engine, bytes);
        let kept = component
            .serialize()
            .map_err(|e| format!("{e:#}"))
            .and_then(|compiled| write(&code, &compiled).map_err(|e| e.to_string()))
            .and_then(|()| write(&source, bytes).map_err(|e| e.to_string()));
        if let Err(reason) = kept {
            tracing::warn!("compiled policy not kept in {}: {reason}", self.folder.display());
        }
    }
}

/// Writes beside the file and renames, so that no reader sees half of it.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    std::io::Write::write_all(&mut file, bytes)?;
    std::fs::rename(&partial, path)
}
