//! What a task needs beyond cargo, and how it gets it: it says what it installs.

use crate::cargo::{TaskError, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and what installs it.
#[derive(Debug)]
pub(crate) struct Need {
    /// A command that succeeds where the program is there.
    pub(crate) probe: &'static [&'static str],
    /// Where it comes from.
    pub(crate) source: Source,
}

/// Where a program comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Debian's packages.
    Debian(&'static [&'static str]),
    /// Words behind `rustup`.
    Rustup(&'static [&'static str]),
}

/// Formatter and lints of the toolchain in use.
pub(crate) const TOOLCHAIN: [Need; 2] = [
    Need { probe: &["cargo", "fmt", "--version"], source: Source::Rustup(&["component", "add", "rustfmt"]) },
    Need {
        probe: &["cargo", "clippy", "--version"],
        source: Source::Rustup(&["component", "add", "clippy"]),
    },
];

/// Programs that tests of the units and the SELinux policy run.
pub(crate) const SYSTEM: [Need; 3] = [
    Need { probe: &["systemd-analyze", "--version"], source: Source::Debian(&["systemd"]) },
    Need { probe: &["checkpolicy", "-V"], source: Source::Debian(&["checkpolicy"]) },
    Need { probe: &["m4", "--version"], source: Source::Debian(&["m4"]) },
];

/// The compiler that sanitizers and coverage need.
pub(crate) const NIGHTLY: Need = Need {
    probe: &["rustc", "+nightly", "--version"],
    source: Source::Rustup(&["toolchain", "install", "nightly", "--profile", "minimal"]),
};

/// Python, able to make virtual environments.
pub(crate) const PYTHON: Need =
    Need { probe: &["python3", "-c", "import ensurepip"], source: Source::Debian(&["python3-venv"]) };

/// Installs those that are absent: all of Debian's at once, as each call reads its lists anew.
pub(crate) fn ensure<'a>(needs: impl IntoIterator<Item = &'a Need>) -> Result<(), TaskError> {
    let mut packages: Vec<&str> = Vec::new();
    for need in needs {
        if need.is_there() {
            continue;
        }
        let probe = need.probe.join(" ");
        match need.source {
            Source::Debian(names) => {
                println!("xtask: `{probe}` does not run; to be installed: {}", names.join(" "));
                packages.extend(names);
            }
            Source::Rustup(words) => {
                println!("xtask: `{probe}` does not run; installing: rustup {}", words.join(" "));
                run(Command::new("rustup").args(words))?;
            }
        }
    }
    if packages.is_empty() {
        return Ok(());
    }
    println!("xtask: apt-get install {}", packages.join(" "));
    // A new machine has no list of packages, or an old one.
    run(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    run(install.args(["install", "-q", "-y", "--no-install-recommends"]).args(packages))
}

/// The Python of a virtual environment in `folder` that has this package (`name==version`).
pub(crate) fn python_with(folder: &Path, package: &str) -> Result<PathBuf, TaskError> {
    let environment = folder.join("venv");
    let (python, ready) = (environment.join("bin/python3"), environment.join("ready"));
    if std::fs::read_to_string(&ready).is_ok_and(|text| text == package) {
        return Ok(python);
    }
    ensure([&PYTHON])?;
    println!("xtask: installing {package} with pip into {}", environment.display());
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    run(Command::new(environment.join("bin/pip")).args(["install", "-q", package]))?;
    std::fs::write(&ready, package).map_err(|source| TaskError::File { path: ready, source })?;
    Ok(python)
}

impl Need {
    fn is_there(&self) -> bool {
        let (program, arguments) = self.probe.split_first().unwrap_or((&"true", &[]));
        let mut probe = Command::new(program);
        probe.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    }
}
