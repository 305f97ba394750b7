//! Vocabularies for the tests: a tiny one made here, and the shared fixtures' real
//! one where it exists.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::io::Read;
use std::path::PathBuf;

use tandem_engine::gguf::{Gguf, GgufWriter};
use tandem_engine::tokenizer::Tokenizer;

/// ChatML, as the tiny vocabulary's template.
pub const CHATML: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// The character GPT-2's alphabet writes a byte with.
pub fn byte_char(byte: u8) -> char {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if plain(byte) {
        return char::from(byte);
    }
    let shift = (0..byte).filter(|&b| !plain(b)).count() as u32;
    char::from_u32(0x100 + shift).expect("U+0100 to U+0143 are characters")
}

/// A text written in the alphabet.
pub fn alphabet(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// Merges of the tiny vocabulary; each side is a byte or an earlier merge.
pub const MERGES: [(&str, &str); 12] = [
    ("t", "h"),
    ("th", "e"),
    (" ", "the"),
    ("a", "p"),
    ("t", "ap"),
    ("{", "\""),
    ("\"", ":"),
    ("\":", "\""),
    ("\"", "}"),
    (" ", "t"),
    ("c", "t"),
    ("e", "r"),
];

/// Added tokens of the tiny vocabulary with their type.
pub const ADDED: [(&str, i32); 6] = [
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<think>", 4),
    ("</think>", 4),
    ("\t\t\t\t", 4),
];

/// The keys of the tiny vocabulary, to be changed by a test.
pub fn tiny_keys(template: &str) -> GgufWriter {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    let mut types = vec![1; 256];
    let mut merges = Vec::new();
    for (a, b) in MERGES {
        let (a, b) = (alphabet(a), alphabet(b));
        tokens.push(format!("{a}{b}"));
        types.push(1);
        merges.push(format!("{a} {b}"));
    }
    for (text, kind) in ADDED {
        tokens.push(text.to_owned());
        types.push(kind);
    }
    let first_added = (256 + MERGES.len()) as u32;
    let mut writer = GgufWriter::new();
    writer
        .str("general.architecture", "qwen35")
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "qwen35")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.eos_token_id", first_added + 2)
        .u32("tokenizer.ggml.bos_token_id", first_added)
        .str("tokenizer.chat_template", template);
    writer
}

/// A vocabulary-only file from its keys.
pub fn file(writer: &GgufWriter) -> Gguf {
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _| Ok(())).expect("a vector takes every write");
    Gguf::from_bytes(&bytes).expect("the writer writes valid files")
}

/// The tiny vocabulary's tokenizer.
pub fn tiny() -> Tokenizer {
    Tokenizer::from_gguf(&file(&tiny_keys(CHATML))).expect("a valid vocabulary")
}

/// A file of the shared fixtures, if they are there. Says so when they are not.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("TANDEM_SHARED") {
        Some(root) => PathBuf::from(root),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")),
    };
    let path = root.join(path);
    if !path.exists() {
        eprintln!("NOT RUN: {} does not exist (set TANDEM_SHARED)", path.display());
        return None;
    }
    Some(path)
}

/// The real qwen35 vocabulary of the shared fixtures.
pub fn shared_vocabulary() -> Option<Gguf> {
    let file = std::fs::File::open(shared("fixtures/tokenizer/qwen35-vocab.gguf.zst")?)
        .expect("the fixture is readable");
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(file)
        .expect("the fixture is a zstd file")
        .read_to_end(&mut bytes)
        .expect("the fixture unpacks");
    Some(Gguf::from_bytes(&bytes).expect("the fixture is a valid file"))
}

/// The recorded agent requests of the shared fixtures.
pub const TRACES: [&str; 5] = [
    "traces/agent-text.jsonl",
    "traces/agent-system.jsonl",
    "traces/chat-growing.jsonl",
    "traces/rules-last.jsonl",
    "traces/two-apps.jsonl",
];
