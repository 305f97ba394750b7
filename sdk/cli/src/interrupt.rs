//! What a signal leaves behind: nothing.
//!
//! The private daemon stops by itself when this process ends; its socket's folder is ours.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::Path;

/// Removes `folder` when a signal ends this process, which then ends as the shell expects:
/// with 128 and the signal's number.
pub(crate) fn remove_on_signal(folder: &Path) -> io::Result<()> {
    let folder = folder.to_owned();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // It may be gone already; nobody is left to hear of another reason.
            let _ = std::fs::remove_dir_all(&folder);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
