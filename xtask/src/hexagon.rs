//! `cargo xtask hexagon`: the DSP's program, built and looked at.
//!
//! ```text
//! compiler   ziglang from PyPI, in a virtual environment     target/hexagon/venv
//! emulator   qemu-hexagon 10 of Debian's backports, unpacked target/hexagon/qemu
//! make       hexagon/dsp/Makefile                            target/hexagon
//! look       no instruction in emulator builds that the emulator gets wrong
//!            nothing undefined in the phone's libraries but what platform.h declares
//! ```

use crate::cargo::{self, TaskError};
use crate::need::{self, Need, Source, python_with};
use crate::test::Run;
use std::path::Path;
use std::process::Command;

/// Builds the DSP's program for qemu-hexagon and for this host, with the programs that test it, and the
/// phone's libraries; checks by disassembly that the emulator runs what was built, and that a phone
/// has what the libraries want.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

const ZIG: &str = "ziglang==0.17.1";

/// Programs that build and inspect. Any LLVM that knows v73 does; this one knows the newer
/// versions too.
pub(crate) const NEEDS: [Need; 2] = [
    Need { probe: &["make", "--version"], source: Source::Debian(&["make"]) },
    Need { probe: &["llvm-objdump-22", "--version"], source: Source::Debian(&["llvm-22"]) },
];

/// The programs that run under qemu-hexagon.
const EMULATED: [&str; 3] = ["tandem-dsp-v73", "packets-v73", "tandem-phone-v73"];

/// The DSP's versions that have a library.
const ARCHS: [u32; 4] = [73, 75, 79, 81];

/// What the phone gives its libraries: every function of this header.
const PLATFORM: &str = "hexagon/dsp/port/sdk/platform.h";

/// The one name a library gives.
const ENTRY: &str = "tandem_skel_handle_invoke";

pub(crate) fn run(_: &Args) -> Result<(), TaskError> {
    build()
}

/// The step of `cargo xtask test`; the tests that run what it builds are among the workspace's.
pub(crate) fn built(_: Run) -> Result<(), TaskError> {
    build()
}

fn build() -> Result<(), TaskError> {
    need::ensure(&NEEDS)?;
    let folder = cargo::target().join("hexagon");
    python_with(&folder, ZIG)?;
    fetch_emulator(&folder)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.current_dir(cargo::root()).args(["-s", "-f", "hexagon/dsp/Makefile"]);
    make.arg(format!("-j{processors}")).arg(format!("T={}", folder.display()));
    cargo::run(&mut make)?;
    for program in EMULATED {
        let found = findings(&disassembly(&folder.join(program))?);
        if !found.is_empty() {
            return Err(TaskError::Instructions { program: program.into(), found });
        }
    }
    // The check has to see what it looks for.
    let planted = findings(&disassembly(&folder.join("v73/planted.o"))?);
    if planted.len() != PLANTED {
        return Err(TaskError::Blind { seen: planted.len(), planted: PLANTED });
    }
    println!("xtask: built in {}; no instruction that qemu-hexagon gets wrong", folder.display());
    look_at_libraries(&folder)
}

/// A phone loads a library only if it has all that the library leaves undefined.
fn look_at_libraries(folder: &Path) -> Result<(), TaskError> {
    let header = cargo::root().join(PLATFORM);
    let platform =
        std::fs::read_to_string(&header).map_err(|source| TaskError::File { path: header, source })?;
    let symbols = |file: &str| {
        cargo::output(Command::new("llvm-nm-22").args(["-D", "--format=posix"]).arg(folder.join(file)))
    };
    for arch in ARCHS {
        let library = format!("phone/libtandem-dsp-v{arch}.so");
        let found = strays(&symbols(&library)?, &platform);
        if !found.is_empty() {
            return Err(TaskError::Symbols { library, found });
        }
    }
    // The check has to see what it looks for.
    let planted = strays(&symbols("phone-v73/stray.so")?, &platform);
    if planted != ["printf"] {
        return Err(TaskError::BlindToSymbols { seen: planted });
    }
    println!("xtask: the libraries for v73, v75, v79 and v81 want nothing that {PLATFORM} does not declare");
    Ok(())
}

/// Dynamic symbols, as nm prints them, that a library may not have: undefined ones the platform
/// does not give, and defined ones besides the entry.
fn strays(symbols: &str, platform: &str) -> Vec<String> {
    let declared = |name: &str| {
        platform.match_indices(name).any(|(at, _)| {
            let before = platform[..at].chars().next_back();
            let own = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
            own && platform[at + name.len()..].starts_with('(')
        })
    };
    let mut found: Vec<String> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, kind) = (words.next()?, words.next()?);
            let fine = if kind.eq_ignore_ascii_case("u") { declared(name) } else { name == ENTRY };
            (!fine).then(|| name.to_owned())
        })
        .collect();
    // A library without its entry is none.
    if !symbols.lines().any(|line| line.starts_with(&format!("{ENTRY} T"))) {
        found.push(format!("{ENTRY} (absent)"));
    }
    found
}

fn fetch_emulator(folder: &Path) -> Result<(), TaskError> {
    let program = folder.join("qemu/usr/bin/qemu-hexagon");
    if program.exists() {
        return Ok(());
    }
    println!(
        "xtask: unpacking qemu-user of Debian's bookworm-backports (the system's is too old) into {}",
        folder.join("qemu").display()
    );
    // The system's own source with another suite: whatever mirror it uses is used here too.
    let script = "set -e
        mkdir -p \"$1/apt/lists/partial\" \"$1/apt/archives/partial\" \"$1/qemu\"; cd \"$1\"
        sed -n '/^$/q; s/^Suites:.*/Suites: bookworm-backports/; p' \
            /etc/apt/sources.list.d/debian.sources > apt/backports.sources
        backports() {
            apt-get -q -o Dir::Etc::sourcelist=\"$1/apt/backports.sources\" -o Dir::Etc::sourceparts=- \
                -o Dir::State::lists=\"$1/apt/lists\" -o Dir::Cache=\"$1/apt\" -o APT::Get::List-Cleanup=0 \
                -o APT::Sandbox::User=root \"$2\" $3
        }
        backports \"$1\" update
        cd apt; backports \"$1\" download qemu-user; cd ..
        dpkg-deb --fsys-tarfile apt/qemu-user_*.deb | tar -x -C qemu ./usr/bin/qemu-hexagon
        rm apt/qemu-user_*.deb";
    cargo::run(Command::new("sh").args(["-c", script, "sh"]).arg(folder))?;
    cargo::run(Command::new(&program).arg("--version"))
}

fn disassembly(program: &Path) -> Result<String, TaskError> {
    let mut objdump = Command::new("llvm-objdump-22");
    objdump.args(["-d", "--no-show-raw-insn", "--mattr=+hvxv73,+hvx-length128b,+hvx-ieee-fp,+hvx-qfloat"]);
    cargo::output(objdump.arg(program))
}

/// Instructions of `hexagon/dsp/test/planted.c` that [`findings`] has to see.
const PLANTED: usize = 8;

/// Instructions that qemu-hexagon traps on or silently gets wrong, as `function: instruction`.
/// Words that are none (padding, offsets, the emulator's counters) stand as `<unknown>`.
fn findings(disassembly: &str) -> Vec<String> {
    let mut function = "";
    let mut found = Vec::new();
    for line in disassembly.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
            function = name;
            continue;
        }
        let Some((_, instruction)) = line.split_once(':') else { continue };
        if has_vector_float(instruction) || UNEMULATED.iter().any(|name| instruction.contains(name)) {
            found.push(format!("{function}: {}", instruction.trim()));
        }
    }
    found
}

/// User DMA and the matrix unit.
const UNEMULATED: [&str; 8] =
    ["dmstart", "dmlink", "dmpoll", "dmwait", "dmpause", "dmresume", "mxmem", "mxclracc"];

/// Whether a vector register is read or written as floats, as in `v1.sf = v2.w`.
fn has_vector_float(instruction: &str) -> bool {
    const KINDS: [&str; 6] = ["qf32", "qf16", "sf", "hf", "bf", "f8"];
    instruction.match_indices('.').any(|(at, _)| {
        let (before, after) = (&instruction[..at], &instruction[at + 1..]);
        let after: String = after.chars().take_while(char::is_ascii_alphanumeric).collect();
        let register = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == ':');
        KINDS.contains(&after.as_str()) && register.ends_with('v')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_that_a_phone_does_not_have_are_found() {
        let platform = "int HAP_mmap2(void *a);\nint qurt_futex_wait(void *w);";
        let fine = "HAP_mmap2 U\nqurt_futex_wait U\ntandem_skel_handle_invoke T 2b7a0 98";
        assert!(strays(fine, platform).is_empty());
        let stray = "HAP_mmap U\nfutex_wait U\nqurt_futex_wait U\nexecutor_start T 10 20";
        let found = strays(stray, platform);
        assert_eq!(found, ["HAP_mmap", "futex_wait", "executor_start", "tandem_skel_handle_invoke (absent)"]);
    }

    #[test]
    fn instructions_that_the_emulator_gets_wrong_are_found() {
        let text = "
00027b00 <kernel>:
   27b00: {\tallocframe(#5248) }
   27b04: {\tv0.w = v1.sf
   27b08: \tv3:2.qf32 = vmpy(v4.hf,v5.hf) }
   27b0c: {\tv0.w += vrmpy(v1.ub,r2.b)
   27b10: \tr1 = sfadd(r2,r3) }
   27b14: {\tr0 = dmpoll }
   27b18: <unknown>
00027c00 <count_vectors>:
   27c00: <unknown>
";
        let found = findings(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "kernel: {\tv0.w = v1.sf");
    }
}
