//! What the export macros expand to in a Wasm build: the component's exports,
//! its one policy, its allocator and what a panic does.

#[cfg(feature = "placement")]
pub mod placement;
#[cfg(feature = "power")]
pub mod power;

use core::cell::UnsafeCell;

#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

/// The policy of this component instance.
pub struct Instance<P>(UnsafeCell<Option<P>>);

// SAFETY: a component instance has one thread and its exports are not re-entrant (the
// component model traps on it), so there is never a second reference.
unsafe impl<P> Sync for Instance<P> {}

impl<P: Default> Instance<P> {
    /// Before the first call.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Runs `call` with the policy, made on the first call.
    pub fn with<R>(&self, call: impl FnOnce(&mut P) -> R) -> R {
        // SAFETY: see `Sync` above; `call` gets no access to this instance.
        let policy = unsafe { &mut *self.0.get() };
        call(policy.get_or_insert_with(P::default))
    }
}

impl<P: Default> Default for Instance<P> {
    fn default() -> Self {
        Self::new()
    }
}
