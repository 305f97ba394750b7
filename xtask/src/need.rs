//! What a task needs beyond cargo, and how it gets it: it says what it installs.

use crate::cargo::{TaskError, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and what installs it.
#[derive(Debug)]
pub(crate) struct Need {
    /// A command that succeeds where the program is there.
    pub(crate) probe: &'static [&'static str],
    /// The command that installs it.
    pub(crate) install: &'static [&'static str],
}

/// Formatter and lints of the toolchain in use.
pub(crate) const TOOLCHAIN: [Need; 2] = [
    Need { probe: &["cargo", "fmt", "--version"], install: &["rustup", "component", "add", "rustfmt"] },
    Need { probe: &["cargo", "clippy", "--version"], install: &["rustup", "component", "add", "clippy"] },
];

/// Programs that tests of the units and the SELinux policy run.
pub(crate) const SYSTEM: [Need; 3] = [
    Need { probe: &["systemd-analyze", "--version"], install: &["apt-get", "install", "-y", "systemd"] },
    Need { probe: &["checkpolicy", "-V"], install: &["apt-get", "install", "-y", "checkpolicy"] },
    Need { probe: &["m4", "--version"], install: &["apt-get", "install", "-y", "m4"] },
];

/// The compiler that sanitizers and coverage need.
pub(crate) const NIGHTLY: Need = Need {
    probe: &["rustc", "+nightly", "--version"],
    install: &["rustup", "toolchain", "install", "nightly", "--profile", "minimal"],
};

/// Python, able to make virtual environments.
const PYTHON: Need = Need {
    probe: &["python3", "-c", "import ensurepip"],
    install: &["apt-get", "install", "-q", "-y", "--no-install-recommends", "python3-venv"],
};

/// The Python of a virtual environment in `folder` that has this package (`name==version`).
pub(crate) fn python_with(folder: &Path, package: &str) -> Result<PathBuf, TaskError> {
    let environment = folder.join("venv");
    let (python, ready) = (environment.join("bin/python3"), environment.join("ready"));
    if std::fs::read_to_string(&ready).is_ok_and(|text| text == package) {
        return Ok(python);
    }
    PYTHON.ensure()?;
    println!("xtask: installing {package} with pip into {}", environment.display());
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    run(Command::new(environment.join("bin/pip")).args(["install", "-q", package]))?;
    std::fs::write(&ready, package).map_err(|source| TaskError::File { path: ready, source })?;
    Ok(python)
}

impl Need {
    /// Installs the program if it is absent.
    pub(crate) fn ensure(&self) -> Result<(), TaskError> {
        if self.is_there() {
            return Ok(());
        }
        println!("xtask: `{}` does not run; installing: {}", self.probe.join(" "), self.install.join(" "));
        if self.install.first() == Some(&"apt-get") {
            // A new machine has no list of packages, or an old one.
            run(&mut command_of(&["apt-get", "update", "-q"]))?;
        }
        run(&mut command_of(self.install))
    }

    fn is_there(&self) -> bool {
        let mut probe = command_of(self.probe);
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

fn command_of(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
