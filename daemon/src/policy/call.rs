//! One call of a plugin, with its fuel and its deadline, and how it may fail.

use super::health::Trouble;
use super::plugin::{Live, Plugin, World};
use super::runtime::{CALL_FUEL, CALL_TICKS};
use wasmtime::Trap;

/// Why a call has no usable answer.
pub(crate) struct Failed {
    pub(crate) trouble: Trouble,
    pub(crate) reason: String,
}

impl Failed {
    pub(crate) fn nonsense(reason: String) -> Self {
        Self { trouble: Trouble::Nonsense, reason }
    }

    pub(crate) fn start(error: &wasmtime::Error) -> Self {
        Self { trouble: Trouble::Start, reason: error.root_cause().to_string() }
    }
}

impl From<wasmtime::Error> for Failed {
    fn from(error: wasmtime::Error) -> Self {
        let trouble = match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel | Trap::Interrupt) => Trouble::Timeout,
            _ => Trouble::Trap,
        };
        // The first line: what follows is a backtrace of the plugin.
        let reason = error.root_cause().to_string();
        Self { trouble, reason: reason.lines().next().unwrap_or_default().to_owned() }
    }
}

/// One call with its fuel and its deadline.
pub(crate) fn run<W: World, R>(
    plugin: &Plugin<W>,
    live: &mut Live<W>,
    call: impl FnOnce(&mut Live<W>) -> Result<R, Failed>,
) -> Result<R, Failed> {
    live.store.set_fuel(CALL_FUEL).map_err(Failed::from)?;
    live.store.set_epoch_deadline(CALL_TICKS);
    live.store.data_mut().new_call();
    let _watch = plugin.runtime().watch();
    call(live)
}
