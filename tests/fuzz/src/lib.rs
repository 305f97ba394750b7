//! Fuzz targets: what meets bytes from outside. A target panics on a finding; the input goes
//! to `seeds` then and is tried in every run of the tests from there on.
//!
//! `tests/mutations.rs` runs every target on its seeds and on a bounded number of mutations of
//! them, the same in every run. `libfuzzer` runs the same functions under coverage guidance and
//! AddressSanitizer: `cargo xtask test --long --only fuzz`.

pub mod frame;
pub mod gguf;
pub mod ring;
pub mod schema;
