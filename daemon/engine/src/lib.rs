//! The engine: a model file, the sequences that run on it, and how their answers are made.
//!
//! ```text
//! engine ─▶ template, tokenizer, grammar      a request becomes tokens and a constraint
//!    │  └─▶ slot, planner                     what to restore, where to save, which passes
//!    └────▶ generation, sampler               an answer in the making
//! executor ─▶ model (a family lowers a pass), state (recurrent states, KV cache), device
//! ```
//!
//! It knows nothing of clients, sockets or Wasm, and no device by name.

pub mod bench;
pub mod engine;
pub mod executor;
mod generation;
/// GGUF model files: metadata, tensors and the shared mapping of the weights.
pub mod gguf;
/// JSON schemas as constraints on an answer's tokens.
pub mod grammar;
pub mod model;
pub mod pass;
pub mod planner;
pub mod prompt_cache;
pub mod request;
pub mod sampler;
pub mod slot;
pub mod state;
pub mod switches;
pub mod synth;
/// Chat templates: messages to a prompt.
pub mod template;
/// Text to token ids and back, from the vocabulary in a GGUF file.
pub mod tokenizer;
