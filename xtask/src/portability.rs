//! The steps of `cargo xtask test` that build for machines other than this one: aarch64 Linux,
//! whose unit tests run under emulation, and Android, which is checked but not linked.
//!
//! ```text
//! needs      a cross C compiler and libc, qemu-user          apt, said before it is done
//! std        the toolchain's own for the target              there, or `rustup target add`
//!            else built from Debian's rustc-web sources      unpacked below the target folder
//! profile    `portability` of the workspace: cheap to build
//! ```

use crate::cargo::{self, TaskError};
use crate::need::{self, Need, Source};
use crate::test::Run;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LINUX: &str = "aarch64-unknown-linux-gnu";
const ANDROID: &str = "aarch64-linux-android";

/// The emulated machine has every extension the emulator knows, the dot product among them.
const RUNNER: &str = "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu";

/// Packages whose unit tests run under emulation. The meanings of the ops (tandem-program) are
/// not among them: the conformance suite compares with them on the same machine. The engine knows
/// no machine, and what it depends on takes minutes to build: in a long run.
const EMULATED: [&str; 9] = [
    "tandem-cpu",
    "tandem-ipc",
    "tandem-sdk",
    "tandem-policy",
    "tandem-policy-divergence",
    "tandem-policy-chat",
    "tandem-policy-marconi",
    "tandem-policy-sparse",
    "tandem-policy-anchor",
];

/// Which of the packages' tests run there: two calls, as each has arguments of its own.
const UNIT_TESTS: [&str; 3] = ["test", "--no-fail-fast", "--lib"];
const CONFORMANCE: [&str; 3] = ["test", "--test", "conformance"];

/// Tests that the emulator cannot run, and why.
const NOT_EMULATED: [(&str, &str); 1] = [(
    "clearing_a_bell_that_a_client_made_blocking_does_not_block",
    "the emulator has no preadv2 (ENOSYS); every kernel that Tandem supports has it",
)];

/// A C compiler and a C library for the machine, and the machine.
pub(crate) const CROSS: [Need; 2] = [
    Need {
        probe: &["aarch64-linux-gnu-gcc", "--version"],
        source: Source::Debian(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]),
    },
    Need { probe: &["qemu-aarch64", "--version"], source: Source::Debian(&["qemu-user"]) },
];

/// Builds what [`emulated`] runs.
pub(crate) fn build_emulated(mode: Run) -> Result<(), TaskError> {
    let rust = Rust::with_std_for(LINUX)?;
    cargo::run(rust.emulated(&UNIT_TESTS, mode).arg("--no-run"))?;
    cargo::run(rust.emulated(&CONFORMANCE, mode).arg("--no-run"))
}

/// Unit tests and the NEON kernels' conformance suite on an emulated aarch64 machine.
pub(crate) fn emulated(mode: Run) -> Result<(), TaskError> {
    need::ensure(&CROSS)?;
    let rust = Rust::with_std_for(LINUX)?;
    if mode.long {
        cargo::run(&mut rust.cross(&["build", "--workspace"], mode))?;
    }
    let mut unit_tests = rust.emulated(&UNIT_TESTS, mode);
    unit_tests.arg("--");
    for (test, reason) in NOT_EMULATED {
        println!("xtask: NOT RUN under emulation: {test}: {reason}");
        unit_tests.args(["--skip", test]);
    }
    cargo::run(&mut unit_tests)?;
    let mut conformance = rust.emulated(&CONFORMANCE, mode);
    conformance.arg("--");
    if !mode.long {
        // Were the level not to be had, its checks would be ignored: included, they fail.
        conformance.args(["--include-ignored", "NeonDotprod"]);
    }
    cargo::run(&mut conformance)
}

/// What an Android image is built from, without linking: that needs Android's own C toolchain.
pub(crate) fn checked(mode: Run) -> Result<(), TaskError> {
    let rust = Rust::with_std_for(ANDROID)?;
    let mut check = rust.cargo(&["check"], ANDROID, mode);
    check.args(["-p", "tandem-ipc", "-p", "tandem-sdk", "-p", "tandem-engine", "-p", "tandem-hexagon"]);
    // The runtime of Wasm policies has a part in C. One call, so that all have the same features
    // and what they depend on is checked once.
    cargo::run(check.args(["-p", "tandemd", "--no-default-features"]))
}

/// A compiler with a standard library for a target.
enum Rust {
    /// The toolchain in use has one.
    Own,
    /// Debian's rustc-web, unpacked in this folder, with the library's sources.
    Debian(PathBuf),
}

impl Rust {
    fn with_std_for(target: &str) -> Result<Rust, TaskError> {
        if has_std(target) {
            return Ok(Rust::Own);
        }
        println!("xtask: the toolchain has no standard library for {target}; rustup target add {target}");
        // A server that is out of reach may hang rather than refuse.
        let mut add = Command::new("timeout");
        match cargo::run(add.args(["180", "rustup", "target", "add", target])) {
            Ok(()) if has_std(target) => return Ok(Rust::Own),
            Ok(()) => println!("xtask: rustup's toolchain is not the one in use"),
            Err(error) => println!("xtask: {error}"),
        }
        let folder = cargo::target().join("rustc-web");
        if !folder.join("usr/bin/rustc").exists() {
            println!("xtask: unpacking Debian's rustc-web and the library's sources in {}", folder.display());
            unpack_debian(&folder)?;
        }
        Ok(Rust::Debian(folder))
    }

    fn cargo(&self, words: &[&str], target: &str, mode: Run) -> Command {
        let mut command = cargo::cargo();
        command.args(words).args(["--profile", "portability", "--target", target]);
        if mode.ci {
            command.arg("--locked");
        }
        // Built once, run once.
        command.env("CARGO_INCREMENTAL", "0");
        if let Rust::Debian(folder) = self {
            command.args(["-Z", "build-std"]);
            command.env("RUSTC", folder.join("usr/bin/rustc"));
            command.env("RUSTC_BOOTSTRAP", "1");
            command.env("LD_LIBRARY_PATH", folder.join("usr/lib/x86_64-linux-gnu"));
        }
        command
    }

    /// Cargo for the emulated machine.
    fn cross(&self, words: &[&str], mode: Run) -> Command {
        let mut command = self.cargo(words, LINUX, mode);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER);
        // For the C part of dependencies that have one.
        command.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
        command
    }

    /// Tests of the emulated packages. All packages every time, so that what they depend on has the
    /// same features and is built once.
    fn emulated(&self, tests: &[&str], mode: Run) -> Command {
        let mut command = self.cross(tests, mode);
        let engine = mode.long.then_some(&"tandem-engine");
        command.args(EMULATED.iter().chain(engine).flat_map(|name| ["-p", name]));
        command
    }
}

/// Whether the toolchain in use has the target's standard library.
fn has_std(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut print = Command::new(rustc);
    print.args(["--print", "target-libdir", "--target", target]).stderr(Stdio::null());
    print.output().is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        std::fs::read_dir(folder).is_ok_and(|files| {
            files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
        })
    })
}

/// Debian's compiler of the newest version it has, its own standard library and the sources.
/// Unpacked, not installed: rustup's stays the one in use.
fn unpack_debian(folder: &Path) -> Result<(), TaskError> {
    let script = "set -e
        mkdir -p \"$1\"; cd \"$1\"
        apt-get -q update
        std=$(apt-cache depends libstd-rust-web-dev | sed -n 's/^ *Depends: \\(libstd-rust-web-[0-9.]*\\)$/\\1/p')
        llvm=$(apt-cache depends \"$std\" | sed -n 's/^ *Depends: \\(libllvm[0-9]*\\)$/\\1/p')
        apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install $llvm
        apt-get -q download rustc-web \"$std\" libstd-rust-web-dev rust-web-src
        for package in *.deb; do dpkg -x \"$package\" .; rm \"$package\"; done";
    cargo::run(Command::new("sh").args(["-c", script, "sh"]).arg(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_builds_for_the_target_with_the_cheap_profile() {
        let mode = Run { long: false, ci: true };
        let own = cargo::typed(&Rust::Own.cargo(&["test", "--lib"], LINUX, mode));
        assert!(
            own.ends_with("test --lib --profile portability --target aarch64-unknown-linux-gnu --locked")
        );
        let debian = Rust::Debian(PathBuf::from("folder")).cargo(&["check"], ANDROID, mode);
        assert!(cargo::typed(&debian).ends_with("--locked -Z build-std"));
        assert!(debian.get_envs().any(|(name, _)| name == "RUSTC"));
    }

    #[test]
    fn a_target_that_does_not_exist_has_no_standard_library() {
        assert!(!has_std("no-such-target"));
    }
}
