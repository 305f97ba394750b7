//! Placement policies from Wasm components.
//!
//! ```text
//! PolicyHost   one a daemon: the Wasm engine, the policies by name, reload
//!   Plugin     one a component file: compiled code, limits, health
//!     WasmPlacement   one a slot: a store of its own; a `Placement` to the engine
//! ```
//!
//! A plugin can be wrong, never harmful. Each call has fuel, a deadline and a
//! memory limit, and every answer is checked. A call that traps, runs out or
//! answers nonsense costs that decision: the built-in policy answers it, and a
//! fresh instance is made that is told the last requests again. A plugin that
//! keeps failing is quarantined until the next reload.
//!
//! Built without feature `wasm`, the daemon runs the built-in policies natively and refuses files.

#[cfg(feature = "wasm")]
mod bench;
#[cfg(feature = "wasm")]
mod cache;
#[cfg(feature = "wasm")]
mod check;
mod error;
#[cfg_attr(not(feature = "wasm"), allow(dead_code))]
mod health;
#[cfg(feature = "wasm")]
mod host;
#[cfg(not(feature = "wasm"))]
mod native;
#[cfg(feature = "wasm")]
mod placement;
#[cfg(feature = "wasm")]
mod plugin;
#[cfg(feature = "wasm")]
mod runtime;

#[cfg(feature = "wasm")]
pub use bench::{CallTimes, bench};
#[cfg(feature = "wasm")]
pub use check::{Case, CheckReport, check};
pub use error::{MAX_COMPONENT_BYTES, PolicyError};
pub use health::{PolicyStatus, Trouble};
#[cfg(feature = "wasm")]
pub use host::PolicyHost;
#[cfg(not(feature = "wasm"))]
pub use native::PolicyHost;
#[cfg(feature = "wasm")]
pub use placement::WasmPlacement;
#[cfg(feature = "wasm")]
pub use plugin::Plugin;
#[cfg(feature = "wasm")]
pub use runtime::{CALL_FUEL, MAX_MEMORY_BYTES, Runtime};

/// Generated from `policies/wit/1.0.0`.
#[cfg(feature = "wasm")]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod world {
    wasmtime::component::bindgen!({
        path: "../policies/wit/1.0.0",
        world: "placement",
    });
}
