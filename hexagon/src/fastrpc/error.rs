//! What can be wrong with a phone, and what to do about it.

use super::methods;
use std::path::PathBuf;

/// Why there is no session with the phone's DSP. Each says what helps.
#[derive(Debug, thiserror::Error)]
pub enum FastrpcError {
    /// The driver's library cannot be loaded.
    #[error(
        "cannot load {}: {why}. Without it there is no way to the DSP: on a phone the daemon has to be allowed the vendor's libraries (a vendor process, or LD_LIBRARY_PATH with /vendor/lib64); TANDEM_CDSPRPC may name the file; elsewhere take --device cpu",
        path.display()
    )]
    Driver {
        /// What was loaded.
        path: PathBuf,
        /// The linker's reason.
        why: String,
    },
    /// The driver's library lacks a function.
    #[error(
        "{} has no {symbol}: this phone's FastRPC is older than the daemon needs; update its system, or take --device cpu",
        path.display()
    )]
    Symbol {
        /// The driver's library.
        path: PathBuf,
        /// What it lacks.
        symbol: &'static str,
    },
    /// The driver does not say what the DSP is.
    #[error("the driver does not say what its DSP is ({}): take --device cpu", code(*.0))]
    Unknown(
        /// The driver's code.
        i32,
    ),
    /// The DSP does not run unsigned libraries.
    #[error(
        "this phone's DSP runs no unsigned libraries{}: sign libtandem-dsp with the phone maker's key, or take --device cpu",
        .0.map_or(String::new(), |refusal| format!(" ({})", code(refusal)))
    )]
    Unsigned(
        /// The driver's code, where it gave one.
        Option<i32>,
    ),
    /// A DSP older than any library.
    #[error(
        "this phone's DSP is version {found:#x} of Hexagon, the oldest library is for v73: take --device cpu"
    )]
    Arch {
        /// What the driver says.
        found: u32,
    },
    /// No library for the DSP.
    #[error(
        "there is no {}, and the daemon was built without it: run `cargo xtask hexagon` before the daemon is built, or let TANDEM_HEXAGON name the folder it has filled",
        file.display()
    )]
    Library {
        /// Where it was looked for.
        file: PathBuf,
    },
    /// A library cannot be written out.
    #[error("cannot write {} for FastRPC to read: {source}; TANDEM_DSP_FOLDER may name a folder that only the daemon may write to", file.display())]
    WriteOut {
        /// What was written.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// FastRPC does not look where the library is.
    #[error(
        "FastRPC looks for libraries in the folders that DSP_LIBRARY_PATH names, and {} is not among them: start the daemon with it set",
        folder.display()
    )]
    Path {
        /// Where the library is.
        folder: PathBuf,
    },
    /// Another process has the DSP's sessions.
    #[error("the DSP has no session free ({}): another process holds it; end that one, or take --device cpu", code(*.0))]
    Busy(
        /// The driver's code.
        i32,
    ),
    /// The DSP does not load the library.
    #[error("the DSP does not load {library} ({}): it has to be the one that came with this daemon, for v{arch}", code(*failure))]
    Load {
        /// Its name.
        library: String,
        /// The DSP's version that it is for.
        arch: u32,
        /// The driver's code.
        failure: i32,
    },
    /// The library speaks of other packets.
    #[error(
        "the driver speaks version {ours} of the packet ABI, the DSP's library version {theirs}: install the library that came with this daemon"
    )]
    Version {
        /// The driver's.
        ours: u32,
        /// The library's.
        theirs: u32,
    },
    /// The library could not set itself up.
    #[error("the DSP's library does not start: {what}")]
    Start {
        /// What it could not, and what helps.
        what: String,
    },
    /// The driver refused a queue.
    #[error("the driver refuses a queue ({what}: {}): this phone's FastRPC has none; update its system, or take --device cpu", code(*failure))]
    Queue {
        /// The call.
        what: &'static str,
        /// The driver's code.
        failure: i32,
    },
    /// The driver refused shared memory.
    #[error("the driver gives no memory for the DSP ({what}: {}): free some, or let the daemon use /dev/dma_heap/system", code(*failure))]
    Memory {
        /// The call.
        what: &'static str,
        /// The driver's code.
        failure: i32,
    },
    /// A call failed.
    #[error("the DSP's library cannot be called ({what}: {}): restart the daemon; if that does not help, the phone", code(*failure))]
    Call {
        /// The method.
        what: &'static str,
        /// The driver's code.
        failure: i32,
    },
}

/// What the DSP's library said when it did not start.
pub(super) fn start_failure(at: u32, reason: u32) -> String {
    let reason = reason as i32;
    match at {
        methods::AT_STATE => "it is started already: end the other session".into(),
        methods::AT_CLASS => format!("the platform does not take it as a compute client ({})", code(reason)),
        methods::AT_VTCM if reason == 0 => "the DSP has no on-chip memory: take --device cpu".into(),
        methods::AT_VTCM => format!(
            "its {} KiB of on-chip memory are not given out: another process holds them; end that one, or take --device cpu",
            reason as u32 >> 10
        ),
        methods::AT_QUEUE => format!("it cannot use the queue ({})", code(reason)),
        methods::AT_THREAD => "it gets no thread: another process has used them up; restart the phone".into(),
        other => format!("it failed at step {other}, which this driver does not know ({})", code(reason)),
    }
}

/// A code of the platform's, in words where we know them. The DSP's own are offset.
pub(super) fn code(code: i32) -> String {
    const DSP: u32 = 0x8000_0400;
    let raw = code as u32;
    let (side, number) = if (DSP..DSP + 0x400).contains(&raw) { ("the DSP, ", raw - DSP) } else { ("", raw) };
    let meaning = match number {
        0x02 => "no memory",
        0x06 => "the library cannot be loaded",
        0x0c => "timed out",
        0x0e => "a parameter is refused",
        0x14 => "not supported",
        0x20 => "busy",
        0x2e => "interrupted: the DSP's process has ended or is being ended",
        0x39 => "no such DSP",
        0x3b => "the DSP's device file cannot be opened",
        0x45 => "no such file",
        0x48 => "no such map",
        0x52 => "not a library for this DSP",
        0x65 | 0x66 => "memory cannot be mapped",
        0x68 => "the connection is gone, or no memory",
        0x72 => "the DSP refuses connections",
        0x81 => "the library is not signed",
        0x8a => "no session is free",
        _ => return format!("{side}code {raw:#x}"),
    };
    format!("{side}code {raw:#x}: {meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_sides_are_put_in_words() {
        assert_eq!(code(0x20), "code 0x20: busy");
        assert_eq!(code(0x8000_0406_u32 as i32), "the DSP, code 0x80000406: the library cannot be loaded");
        assert_eq!(code(-1), "code 0xffffffff");
    }
}
