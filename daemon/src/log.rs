//! The log: journald's fields where standard error is the journal, else lines on standard error.
//!
//! Neither holds text of prompts or answers: events carry numbers, names and error texts that
//! quote none.

use std::os::unix::fs::MetadataExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// Parts that a log setting may name, by the crate's name: Tandem's own, and libraries that log.
/// `tandem` is all of Tandem's.
const PARTS: [&str; 13] = [
    "tandem",
    "tandemd",
    "tandem_cpu",
    "tandem_engine",
    "tandem_hexagon",
    "tandem_ipc",
    "tandem_policy",
    "tandem_program",
    "cranelift_codegen",
    "llguidance",
    "regalloc2",
    "tokenizers",
    "wasmtime",
];

/// What is wrong with a log setting.
#[derive(Debug, thiserror::Error)]
#[error(
    "log setting {setting:?}: {fault}; it is a level (off, error, warn, info, debug, trace) or, for parts, \
         \"info,tandemd=debug\"; parts are {}, and modules of theirs (tandemd::power)", PARTS.join(", ")
)]
pub struct LogError {
    setting: String,
    fault: String,
}

/// The running log.
#[derive(Clone, Debug)]
pub struct Log(reload::Handle<EnvFilter, Registry>);

/// Reads a log setting; `TANDEM_LOG` in the environment goes before it. A mere level is Tandem's
/// own: libraries say no more than warnings, for a compiler's traces fill a disk, and what a
/// library would quote nobody here has read.
pub fn filter(setting: &str) -> Result<EnvFilter, LogError> {
    let environment = std::env::var("TANDEM_LOG").ok().filter(|v| !v.is_empty());
    let setting = environment.as_deref().unwrap_or(setting);
    let own = match setting.parse::<LevelFilter>() {
        Ok(level) => format!("{},tandem={level}", level.min(LevelFilter::WARN)),
        Err(_) => setting.to_owned(),
    };
    let wrong = |fault: String| LogError { setting: setting.into(), fault };
    // A word that is no level would be taken for a part of that name, and nothing be logged.
    setting.split(',').try_for_each(check).map_err(wrong)?;
    EnvFilter::try_new(own).map_err(|e| wrong(e.to_string()))
}

/// Checks one of a setting's directives: a level, or `part=level`.
fn check(directive: &str) -> Result<(), String> {
    let (part, level) = match directive.trim().split_once('=') {
        None => (None, directive.trim()),
        Some((part, level)) => (Some(part.trim()), level.trim()),
    };
    if let Some(part) = part
        && !PARTS.contains(&part.split("::").next().unwrap_or_default())
    {
        return Err(format!("no part is called {part:?}"));
    }
    // The library takes an empty word for a level, too.
    let known = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
    known.then_some(()).ok_or_else(|| format!("{level:?} is no level"))
}

/// Whether standard error goes to the journal: systemd names its socket's device and inode.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    named == format!("{}:{}", stderr.dev(), stderr.ino())
}

impl Log {
    /// Starts the log. Once a process.
    pub fn start(filter: EnvFilter) -> Self {
        let (filter, handle) = reload::Layer::new(filter);
        let journal = is_journal().then(tracing_journald::layer).and_then(Result::ok);
        let lines = journal.is_none().then(|| {
            fmt::layer()
                .with_writer(std::io::stderr)
                // A log that cannot be written (its reader is gone) must not stop a thread.
                .log_internal_errors(false)
                .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        });
        let journal = journal
            .map(|j| j.with_syslog_identifier("tandemd".into()).with_field_prefix(Some("TANDEM".into())));
        tracing_subscriber::registry().with(filter).with(journal).with(lines).init();
        Log(handle)
    }

    /// Takes another setting from now on.
    pub fn set(&self, filter: EnvFilter) {
        // Fails only when the subscriber is gone, at the very end.
        let _ = self.0.reload(filter);
    }
}

/// Logs where a panic was, and not what it said: its text may quote a prompt. The schema
/// compiler's own panics are caught and answered as errors, so they are not logged at all.
pub fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        if thread.name() == Some(tandem_engine::grammar::COMPILER_THREAD) {
            return;
        }
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(thread = thread.name().unwrap_or("?"), place, "panicked");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mere_level_is_tandems_own() {
        let filter = |setting| EnvFilter::to_string(&super::filter(setting).unwrap());
        for (setting, parts) in [
            ("trace", ["tandem=trace", "warn"]),
            ("error", ["tandem=error", "error"]),
            ("info,tandemd=debug", ["tandemd=debug", "info"]),
        ] {
            let text = filter(setting);
            let mut found: Vec<&str> = text.split(',').collect();
            found.sort_unstable_by_key(|part| !part.contains('='));
            assert_eq!(found, parts, "{setting}");
        }
        for (setting, word) in [
            ("loud=very", "loud"),
            ("inof", "inof"),
            ("info,tandmed=debug", "tandmed"),
            ("info,tandemd=debgu", "debgu"),
            ("info,,tandemd=debug", "\"\""),
            ("tandemd", "tandemd"),
            ("[span]=trace", "[span]"),
        ] {
            let text = super::filter(setting).unwrap_err().to_string();
            assert!(text.contains(word) && text.contains("tandem_engine"), "{setting}: {text}");
        }
        for setting in ["off", "INFO", "warn,tandemd::power=trace", "info,wasmtime=debug", "3"] {
            assert!(super::filter(setting).is_ok(), "{setting}");
        }
    }
}
