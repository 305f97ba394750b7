//! A file from outside: an error or a file, and a file's vocabulary is an error or one.

use tandem_engine::gguf::Gguf;
use tandem_engine::tokenizer::Tokenizer;

/// One input.
pub fn run(data: &[u8]) {
    if let Ok(gguf) = Gguf::from_bytes(data)
        && let Ok(tokenizer) = Tokenizer::from_gguf(&gguf)
    {
        // Whatever vocabulary it is, text makes ids of it, or is refused.
        let _ = tokenizer.encode("tap [2] Row \u{e9}\u{1f600}\n", false);
    }
}
