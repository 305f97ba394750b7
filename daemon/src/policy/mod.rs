//! Policies from Wasm components: where state is saved, and when power votes go.
//!
//! ```text
//! PolicyHost   one a daemon: the Wasm engine, the policies by name, reload
//!   Plugin     one a component file: compiled code, limits, health
//!     WasmPlacement   one a slot: a store of its own; a `Placement` to the engine
//!     WasmPower       one a daemon with votes: a `Power` to the power thread
//!       Caller        in either: its instance, reloads, what a fresh one hears again, failures
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
mod call;
#[cfg(feature = "wasm")]
mod caller;
#[cfg(feature = "wasm")]
mod check;
#[cfg(feature = "wasm")]
mod check_power;
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
mod power;
#[cfg(feature = "wasm")]
mod runtime;

#[cfg(feature = "wasm")]
pub use bench::{CallTimes, bench};
#[cfg(feature = "wasm")]
pub use check::{Case, CheckReport, check};
#[cfg(feature = "wasm")]
pub use check_power::check_power;
pub use error::{MAX_COMPONENT_BYTES, PolicyError};
pub use health::{PolicyStatus, Trouble};
#[cfg(feature = "wasm")]
pub use host::PolicyHost;
#[cfg(not(feature = "wasm"))]
pub use native::PolicyHost;
#[cfg(feature = "wasm")]
pub use placement::WasmPlacement;
#[cfg(feature = "wasm")]
pub use plugin::{Plugin, World};
#[cfg(feature = "wasm")]
pub use power::WasmPower;
/// A compiled power policy.
#[cfg(feature = "wasm")]
pub type PowerPlugin = Plugin<world::power::Power>;
#[cfg(feature = "wasm")]
pub use runtime::{CALL_FUEL, MAX_MEMORY_BYTES, Runtime};

/// Generated from `policies/wit/1.0.0`, a module a world.
#[cfg(feature = "wasm")]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod world {
    pub mod placement {
        wasmtime::component::bindgen!({ path: "../policies/wit/1.0.0", world: "placement" });
    }
    pub mod power {
        wasmtime::component::bindgen!({ path: "../policies/wit/1.0.0", world: "power" });
    }
}
