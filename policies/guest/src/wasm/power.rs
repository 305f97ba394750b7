//! Generated records of the `power` world to the contract's types and back.

use crate::{Power, PowerEvent, PowerEventKind};

/// Generated from `policies/wit/1.0.0`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit/1.0.0",
        world: "power",
        pub_export_macro: true,
        default_bindings_module: "tandem_policy::wasm::power::bindings",
    });
}

use bindings::tandem::policy::power_types as wire;

/// `event` of the world.
pub fn event(policy: &mut impl Power, event: wire::PowerEvent) -> wire::PowerDecision {
    let decision = policy.event(&PowerEvent {
        kind: PowerEventKind(event.kind),
        now: event.now,
        queued: event.queued,
        clients: event.clients,
        held_power: event.held_power,
        released_power: event.released_power,
        restore_time: event.restore_time,
        restore_energy: event.restore_energy,
    });
    wire::PowerDecision { action: decision.action.0, wake_after: decision.wake_after }
}

/// Makes a Wasm component of a [`Power`](crate::Power) type that implements [`Default`].
#[macro_export]
macro_rules! export_power {
    ($policy:ty) => {
        const _: () = {
            use bindings::tandem::policy::power_types as wire;
            use $crate::wasm::power::bindings;

            static POLICY: $crate::wasm::Instance<$policy> = $crate::wasm::Instance::new();

            struct Component;

            impl bindings::Guest for Component {
                fn event(event: wire::PowerEvent) -> wire::PowerDecision {
                    POLICY.with(|p| $crate::wasm::power::event(p, event))
                }
            }

    bindings::export!(Component with_types_in bindings);
        };
    };
}
