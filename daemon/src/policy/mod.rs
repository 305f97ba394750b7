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

mod bench;
mod cache;
mod check;
mod error;
mod health;
mod host;
mod placement;
mod plugin;
mod runtime;

pub use bench::{CallTimes, bench};
pub use check::{Case, CheckReport, check};
pub use error::PolicyError;
pub use health::{PolicyStatus, Trouble};
pub use host::PolicyHost;
pub use placement::WasmPlacement;
pub use plugin::{MAX_COMPONENT_BYTES, Plugin};
pub use runtime::{CALL_FUEL, MAX_MEMORY_BYTES, Runtime};

/// Generated from `policies/wit/1.0.0`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod world {
    wasmtime::component::bindgen!({
        path: "../policies/wit/1.0.0",
        world: "placement",
    });
}
