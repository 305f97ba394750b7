//! GGUF models, tokenizer, sequence state, checkpoints and decoding.
