//! The engine: a model file, the sequences that run on it, and how their answers are made.
//!
//! It knows nothing of clients, sockets or Wasm, and no device by name.

pub mod executor;
/// GGUF model files: metadata, tensors and the shared mapping of the weights.
pub mod gguf;
pub mod model;
pub mod pass;
pub mod state;
pub mod switches;

/// Text to token ids and back, from the vocabulary in a GGUF file.
pub mod tokenizer;
pub mod planner;
pub mod slot;
