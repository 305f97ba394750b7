//! GGUF models, tokenizer, sequence state, checkpoints and decoding.

/// GGUF model files: metadata, tensors and the shared mapping of the weights.
pub mod gguf;
