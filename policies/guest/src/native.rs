//! The export macros in a native build: nothing, so that one source serves both.

/// Makes a Wasm component of a [`Placement`](crate::Placement) type that implements [`Default`].
/// Built for the host it expands to nothing.
#[macro_export]
macro_rules! export_placement {
    ($policy:ty) => {};
}

/// Makes a Wasm component of a [`Power`](crate::Power) type that implements [`Default`].
/// Built for the host it expands to nothing.
#[macro_export]
macro_rules! export_power {
    ($policy:ty) => {};
}
