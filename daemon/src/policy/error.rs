//! Why a policy was not loaded.

use std::path::PathBuf;

/// Largest component file, in bytes.
pub const MAX_COMPONENT_BYTES: u64 = 256 << 10;

/// Why a policy was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No built-in policy has the name, and it is not a file's.
    #[error("there is no policy {name:?}; built in are {}, anything else must be the path of a .wasm file", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// This daemon runs no Wasm.
    #[error(
        "this daemon was built without Wasm (feature `wasm`), so it cannot load {path}; name a built-in policy"
    )]
    NoWasm {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the policy {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is too large for a policy.
    #[error(
        "the policy {path} has {bytes} bytes, at most {MAX_COMPONENT_BYTES} are allowed; build it in release mode and strip it"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not Wasm.
    #[error("{path} is not WebAssembly: it does not begin with \"\\0asm\"")]
    NotWasm {
        /// The file.
        path: PathBuf,
    },
    /// The file is a core module.
    #[error(
        "{path} is a core Wasm module, a policy is a component; make one of it with `tandem policy build`"
    )]
    CoreModule {
        /// The file.
        path: PathBuf,
    },
    /// The file does not hold valid code.
    #[error("{path} is not a valid component: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What the compiler says.
        reason: String,
    },
    /// The component wants something that the world does not offer.
    #[error(
        "{path} imports {import:?}, which the world `{world}` of tandem:policy@1.0.0 does not offer; a policy has no WASI, only an optional `log`"
    )]
    Import {
        /// The file.
        path: PathBuf,
        /// The world it was loaded as.
        world: &'static str,
        /// The import.
        import: String,
    },
    /// The component lacks a function of the world.
    #[error(
        "{path} does not export `{signature}`, which the world `{world}` of tandem:policy@1.0.0 asks for"
    )]
    MissingExport {
        /// The file.
        path: PathBuf,
        /// The world it was loaded as.
        world: &'static str,
        /// The function.
        signature: &'static str,
    },
    /// An import or export has another type than the world's.
    #[error(
        "{path} does not fit the world `{world}` of tandem:policy@1.0.0: {reason}; it expects `{signature}`"
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// The world it was loaded as.
        world: &'static str,
        /// Where they differ.
        reason: String,
        /// The function as the world has it.
        signature: &'static str,
    },
    /// The component fails when it starts.
    #[error("{path} cannot be started: {reason}")]
    Start {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The Wasm engine itself cannot be made on this machine.
    #[error("cannot start the Wasm engine: {reason}")]
    Engine {
        /// Why.
        reason: String,
    },
}
