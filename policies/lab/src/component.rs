//! Building a policy crate to a Wasm component.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Wasm target of policies: no operating system, no WASI.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// How the Wasm target was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// rustc has the target (rustup).
    Installed,
    /// A rustc with the sources of its standard library, unpacked at `root`,
    /// as `policies/wasm-target.sh` gets them.
    Sources {
        /// Where it was unpacked.
        root: PathBuf,
        /// The linker.
        linker: String,
    },
}

/// Why a policy was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// There is no Wasm target on this machine.
    #[error(
        "rustc has no {TARGET} target here ({looked}). Get it by one of:\n  \
         rustup target add {TARGET}\n  \
         policies/wasm-target.sh of the Tandem sources (Debian packages, where rustup cannot reach its server);\n  \
         TANDEM_WASM_ROOT says where it unpacked them, if not {default}"
    )]
    NoTarget {
        /// What was tried.
        looked: String,
        /// Where the script unpacks by default.
        default: String,
    },
    /// There is no crate in the folder.
    #[error("{path} is not a policy crate: {reason}")]
    NotACrate {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A program could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// The compiler found errors; it has printed them.
    #[error("{crate_name} does not compile to {TARGET}, see the messages above")]
    Compile {
        /// The crate.
        crate_name: String,
    },
    /// The module is not one that a component can be made of.
    #[error(
        "no component can be made of {module}: {reason}; does the crate call tandem_policy::export_placement!?"
    )]
    Encode {
        /// The core module.
        module: PathBuf,
        /// What the encoder says.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// Read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A finished component.
#[derive(Clone, Debug)]
pub struct Built {
    /// Where it was written.
    pub path: PathBuf,
    /// Its size.
    pub bytes: usize,
}

/// Finds the Wasm target, or says how to get it.
pub fn toolchain() -> Result<Toolchain, BuildError> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut looked = Vec::new();
    match Command::new(&rustc).args(["--print", "sysroot"]).output() {
        Ok(output) if output.status.success() => {
            let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            let libraries = sysroot.join("lib/rustlib").join(TARGET).join("lib");
            if libraries.is_dir() {
                return Ok(Toolchain::Installed);
            }
            looked.push(format!("{} is not there", libraries.display()));
        }
        _ => looked.push(format!("{} does not run", rustc.display())),
    }
    let root = sources_root();
    if root.join("usr/bin/rustc").is_file() {
        for linker in ["wasm-ld-22", "wasm-ld"] {
            if Command::new(linker).arg("--version").output().is_ok_and(|o| o.status.success()) {
                return Ok(Toolchain::Sources { root, linker: linker.to_owned() });
            }
        }
        looked.push("neither wasm-ld-22 nor wasm-ld runs".to_owned());
    } else {
        looked.push(format!("{} is not there", root.join("usr/bin/rustc").display()));
    }
    Err(BuildError::NoTarget { looked: looked.join("; "), default: root.display().to_string() })
}

/// Where `policies/wasm-target.sh` unpacks.
fn sources_root() -> PathBuf {
    if let Some(root) = std::env::var_os("TANDEM_WASM_ROOT") {
        return root.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"));
    cache.join("tandem/wasm-root")
}

/// Builds the policy crate in `folder` and writes the component to `out`, or
/// beside its manifest under the crate's name.
pub fn build(folder: &Path, out: Option<&Path>) -> Result<Built, BuildError> {
    let toolchain = toolchain()?;
    let name = crate_name(folder)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("target"), PathBuf::from);
    // A folder of its own: this build must not wait for, or undo, a native one.
    let target = std::path::absolute(target.join("policy")).map_err(|source| BuildError::File {
        what: "find",
        path: folder.into(),
        source,
    })?;
    compile(&toolchain, folder, &name, &target)?;
    let module = target.join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
    let core = std::fs::read(&module).map_err(|source| BuildError::File {
        what: "read",
        path: module.clone(),
        source,
    })?;
    let component = encode(&core).map_err(|reason| BuildError::Encode { module, reason })?;
    let path = out.map_or_else(|| folder.join(format!("{name}.wasm")), Path::to_owned);
    std::fs::write(&path, &component).map_err(|source| BuildError::File {
        what: "write",
        path: path.clone(),
        source,
    })?;
    Ok(Built { path, bytes: component.len() })
}

/// Makes a component of a core module that carries its world, as
/// `wit-bindgen` leaves it there.
pub fn encode(core: &[u8]) -> Result<Vec<u8>, String> {
    wit_component::ComponentEncoder::default()
        .module(core)
        .and_then(|encoder| encoder.validate(true).encode())
        .map_err(|e| format!("{e:#}"))
}

/// Makes a component of a core module that exports the `placement` world's
/// functions by the canonical ABI but does not say so, as the compilers of
/// other languages leave it.
pub fn encode_plain(core: &[u8]) -> Result<Vec<u8>, String> {
    encode_world(core, crate::scaffold::WIT, "placement")
}

/// As [`encode_plain`], for `world` of the package in the text `wit`.
pub fn encode_world(core: &[u8], wit: &str, world: &str) -> Result<Vec<u8>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{e:#}");
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("world.wit", wit).map_err(|e| failed(&e))?;
    let world = resolve.select_world(&[package], Some(world)).map_err(|e| failed(&e))?;
    let mut module = core.to_vec();
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &resolve, world, encoding)
        .map_err(|e| failed(&e))?;
    encode(&module)
}

/// Makes a component of the core module in `module` (see [`encode_plain`]) and writes it to `out`.
pub fn build_plain(module: &Path, out: &Path) -> Result<Built, BuildError> {
    let core = std::fs::read(module).map_err(|source| BuildError::File {
        what: "read",
        path: module.into(),
        source,
    })?;
    let component =
        encode_plain(&core).map_err(|reason| BuildError::Encode { module: module.into(), reason })?;
    std::fs::write(out, &component).map_err(|source| BuildError::File {
        what: "write",
        path: out.into(),
        source,
    })?;
    Ok(Built { path: out.into(), bytes: component.len() })
}

fn crate_name(folder: &Path) -> Result<String, BuildError> {
    let not = |reason: String| BuildError::NotACrate { path: folder.into(), reason };
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|e| not(format!("Cargo.toml: {e}")))?;
    let table: toml::Table = text.parse().map_err(|e| not(format!("Cargo.toml: {e}")))?;
    table
        .get("package")
        .and_then(|p| p.get("name"))
        .and_then(|n| n.as_str())
        .map(str::to_owned)
        .ok_or_else(|| not("Cargo.toml has no package name".to_owned()))
}

fn compile(toolchain: &Toolchain, folder: &Path, name: &str, target: &Path) -> Result<(), BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command
        .current_dir(folder)
        .args(["rustc", "--release", "--target", TARGET, "--crate-type", "cdylib"])
        .env("CARGO_TARGET_DIR", target)
        .env_remove("RUSTFLAGS");
    for setting in
        ["debug=false", "strip=true", "panic=\"abort\"", "lto=true", "codegen-units=1", "opt-level=3"]
    {
        command.arg("--config").arg(format!("profile.release.{setting}"));
    }
    if let Toolchain::Sources { root, linker } = toolchain {
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        command
            .arg("-Zbuild-std=core,alloc,panic_abort")
            .env("RUSTC", root.join("usr/bin/rustc"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("LD_LIBRARY_PATH", libraries)
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    let status = command
        .status()
        .map_err(|source| BuildError::Run { program: cargo.to_string_lossy().into_owned(), source })?;
    if status.success() { Ok(()) } else { Err(BuildError::Compile { crate_name: name.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_crate_is_refused_by_name() {
        let error = crate_name(Path::new("/nonexistent/policy")).expect_err("nothing there");
        assert!(error.to_string().contains("/nonexistent/policy"), "{error}");
    }

    #[test]
    fn a_module_without_a_world_is_not_encoded() {
        let empty = b"\0asm\x01\0\0\0";
        assert!(encode(b"not wasm").is_err());
        // An empty module makes an empty component, which the daemon refuses for its missing exports.
        assert!(encode(empty).is_ok());
    }
}
