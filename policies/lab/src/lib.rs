//! The policy author's bench: scores placement policies on recorded traces.
//!
//! A trace is replayed through the engine's own slots and batch planner with a
//! cost model in place of a model, so that tokens, passes and saves are counted
//! by the code that serves.
//!
//! ```text
//! trace.jsonl --trace::Reader--> Request { tokens, boundaries, answer }
//!             --simulate-------> Outcome { steps, means } --table, svg, JSON
//! ```

pub mod calibrate;
pub mod component;
pub mod scaffold;
pub mod simulate;
mod store;
pub mod svg;
pub mod sweep;
pub mod table;
pub mod trace;
