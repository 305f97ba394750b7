//! Folders that only the daemon's user can write to: what lies there is taken as the daemon left it.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Opens or makes a folder to cache `what` in; `None`, with a warning, if it cannot be trusted.
pub(crate) fn open(folder: &Path, what: &str) -> Option<PathBuf> {
    if let Err(e) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        tracing::warn!("no cache of {what}: cannot make {}: {e}", folder.display());
        return None;
    }
    match trusted(folder) {
        Ok(()) => Some(folder.to_owned()),
        Err(reason) => {
            tracing::warn!("no cache of {what}: {} {reason}", folder.display());
            None
        }
    }
}

/// Why `path` cannot be trusted: not ours, a link, or others may write to it.
pub(crate) fn trusted(path: &Path) -> Result<(), String> {
    let data = std::fs::symlink_metadata(path).map_err(|e| format!("cannot be looked at: {e}"))?;
    let user = rustix::process::geteuid().as_raw();
    if data.is_symlink() {
        return Err("is a symbolic link".to_owned());
    }
    if data.uid() != user {
        return Err(format!("belongs to user {}, not {user}", data.uid()));
    }
    if data.mode() & 0o022 != 0 {
        return Err(format!("can be written by others (mode {:o})", data.mode() & 0o7777));
    }
    Ok(())
}
