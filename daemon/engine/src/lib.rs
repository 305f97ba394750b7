//! The engine: a model file, the sequences that run on it, and how their answers are made.
//!
//! ```text
//! engine ─▶ template, tokenizer, grammar      a request becomes tokens and a constraint
//!    │  └─▶ slot, planner, residency          what to restore, where to save, which passes
//!    └────▶ generation, sampler               an answer in the making
//!       └─▶ drafting, speculation, lookup      what may follow, and whether to try it
//! executor ─▶ model (a family lowers a pass), state (recurrent states, KV cache), device
//! ```
//!
//! It knows nothing of clients, sockets or Wasm, and no device by name.

pub mod bench;
mod drafting;
pub mod engine;
pub mod executor;
mod generation;
pub mod gguf;
pub mod grammar;
mod lookup;
pub mod model;
pub mod pass;
pub mod planner;
pub mod prompt_cache;
pub mod request;
pub mod residency;
pub mod sampler;
pub mod session;
pub mod slot;
mod speculation;
pub mod state;
pub mod switches;
pub mod synth;
pub mod template;
pub mod tokenizer;
pub mod trim_draft;
