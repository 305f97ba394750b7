//! Generated records of the `placement` world to the contract's types and back.

extern crate alloc;

use crate::{Boundary, BoundaryKind, Cost, Kept, Observation, PlaceRequest, Placement, Positions};
use alloc::vec::Vec;

/// Generated from `policies/wit/1.0.0`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit/1.0.0",
        world: "placement",
        pub_export_macro: true,
        default_bindings_module: "tandem_policy::wasm::placement::bindings",
    });
}

use bindings::tandem::policy::placement_types as wire;

fn kept(list: Vec<wire::Kept>) -> Vec<Kept> {
    let convert = |k: wire::Kept| Kept { position: k.position, age: k.age, hits: k.hits, bytes: k.bytes };
    list.into_iter().map(convert).collect()
}

/// `place` of the world.
pub fn place(policy: &mut impl Placement, request: wire::PlaceRequest) -> Vec<u32> {
    let kept = kept(request.kept);
    let boundaries: Vec<Boundary> = request
        .boundaries
        .into_iter()
        .map(|b| Boundary { token: b.token, kind: BoundaryKind(b.kind) })
        .collect();
    let mut positions = Positions::new();
    let request = PlaceRequest {
        prompt: request.prompt,
        shared: request.shared,
        restored: request.restored,
        kept: &kept,
        cap: request.cap,
        bytes_left: request.bytes_left,
        checkpoint_bytes: request.checkpoint_bytes,
        cost: Cost {
            per_token: request.cost.per_token,
            per_pass: request.cost.per_pass,
            per_save: request.cost.per_save,
        },
        pass_limit: request.pass_limit,
        max_saves: request.max_saves,
        boundaries: &boundaries,
    };
    policy.place(&request, &mut positions);
    Vec::from(positions.as_slice())
}

/// `evict` of the world.
pub fn evict(policy: &mut impl Placement, list: Vec<wire::Kept>, incoming: u32) -> u32 {
    policy.evict(&kept(list), incoming) as u32
}

/// `observe` of the world.
pub fn observe(policy: &mut impl Placement, seen: wire::Observation) {
    policy.observe(&Observation {
        prompt: seen.prompt,
        shared: seen.shared,
        restored: seen.restored,
        answer: seen.answer,
        saved: &seen.saved,
    });
}

/// Makes a Wasm component of a [`Placement`](crate::Placement) type that implements [`Default`].
#[macro_export]
macro_rules! export_placement {
    ($policy:ty) => {
        const _: () = {
            use bindings::tandem::policy::placement_types as wire;
            use $crate::wasm::placement::bindings;

            static POLICY: $crate::wasm::Instance<$policy> = $crate::wasm::Instance::new();

            struct Component;

            impl bindings::Guest for Component {
                fn place(request: wire::PlaceRequest) -> $crate::wasm::placement::Positions32 {
                    POLICY.with(|p| $crate::wasm::placement::place(p, request))
                }
                fn evict(kept: $crate::wasm::placement::List<wire::Kept>, incoming: u32) -> u32 {
                    POLICY.with(|p| $crate::wasm::placement::evict(p, kept, incoming))
                }
                fn observe(seen: wire::Observation) {
                    POLICY.with(|p| $crate::wasm::placement::observe(p, seen))
                }
            }

    bindings::export!(Component with_types_in bindings);
        };
    };
}

/// A list as the world's functions take it; policy crates have no `alloc` of their own.
pub type List<T> = Vec<T>;
/// The answer of `place`.
pub type Positions32 = Vec<u32>;
