//! Running cargo and other programs from the repository's root.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Why a task stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    /// A program that cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A program that failed.
    #[error("`{command}` failed ({status})")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// Steps of a test run that failed.
    #[error("{} of {all} steps failed: {}", failed.len(), failed.join(", "))]
    Steps {
        /// Names of those that failed.
        failed: Vec<String>,
        /// How many there are.
        all: usize,
    },
    /// A file or folder.
    #[error("cannot read or write {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Instructions that the emulator would not run as the DSP does.
    #[error("{program} has {} instructions that qemu-hexagon gets wrong: {}", found.len(), found.join("; "))]
    Instructions {
        /// The program.
        program: String,
        /// `function: instruction`.
        found: Vec<String>,
    },
    /// The check for such instructions does not see what was planted.
    #[error(
        "the disassembly check sees {seen} of {planted} planted instructions: it would let others through"
    )]
    Blind {
        /// How many it sees.
        seen: usize,
        /// How many there are.
        planted: usize,
    },
    /// Symbols that no phone has, or that a library should keep to itself.
    #[error(
        "{library} wants or gives symbols that hexagon/dsp/port/sdk/platform.h does not declare: {}",
        found.join(", ")
    )]
    Symbols {
        /// The library.
        library: String,
        /// Their names.
        found: Vec<String>,
    },
    /// The check for such symbols does not see the planted one.
    #[error("the symbol check sees {seen:?} in the planted library, not its one stray symbol")]
    BlindToSymbols {
        /// What it sees.
        seen: Vec<String>,
    },
    /// The demo.
    #[error(transparent)]
    Demo(#[from] crate::demo::DemoError),
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR");
    // Cargo takes a relative path from where it runs, and it runs at the root.
    named.map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The command as a person would type it.
pub(crate) fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command with this process's output.
pub(crate) fn run(command: &mut Command) -> Result<(), TaskError> {
    let status = command.status().map_err(|source| TaskError::Run {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if status.success() { Ok(()) } else { Err(TaskError::Failed { command: typed(command), status }) }
}

/// What a command prints.
pub(crate) fn output(command: &mut Command) -> Result<String, TaskError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|source| TaskError::Run { program, source })?;
    if !output.status.success() {
        return Err(TaskError::Failed { command: typed(command), status: output.status });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
