//! The tokenizer on the tiny vocabulary, on faulty ones, and on the shared vectors.

mod vocabulary;

use tandem_engine::gguf::{Gguf, GgufWriter};
use tandem_engine::tokenizer::{TokenKind, Tokenizer, TokenizerError};
use vocabulary::{ADDED, MERGES, alphabet, file, tiny, tiny_keys};

fn added(text: &str) -> u32 {
    let index = ADDED.iter().position(|(t, _)| *t == text).expect("an added token");
    (256 + MERGES.len() + index) as u32
}

fn merged(text: &str) -> u32 {
    let index = MERGES.iter().position(|(a, b)| format!("{a}{b}") == text).expect("a merge");
    (256 + index) as u32
}

#[test]
fn words_are_merged_by_rank() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode("the the", false).expect("valid"), [merged("the"), merged(" the")]);
    // "ct" is split off where " t" has the lower rank.
    assert_eq!(tokenizer.encode(" ther", false).expect("valid"), [merged(" the"), u32::from(b'r')]);
}

#[test]
fn markers_are_recognised_only_when_asked() {
    let tokenizer = tiny();
    let text = "a<|im_end|><think>";
    assert_eq!(
        tokenizer.encode(text, true).expect("valid"),
        [u32::from(b'a'), added("<|im_end|>"), added("<think>")]
    );
    let plain = tokenizer.encode(text, false).expect("valid");
    assert!(plain.iter().all(|&id| tokenizer.kind(id) == TokenKind::Normal), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain).expect("valid"), text);
}

#[test]
fn added_runs_of_blanks_are_always_recognised() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode("\t\t\t\t", false).expect("valid"), [added("\t\t\t\t")]);
    assert!(!tokenizer.is_marker(added("\t\t\t\t")));
    assert!(tokenizer.is_marker(added("</think>")));
}

#[test]
fn text_is_normalised_except_when_taken_exactly() {
    let tokenizer = tiny();
    let decomposed = "e\u{301}";
    assert_eq!(tokenizer.normalize(decomposed), "\u{e9}");
    let ids = tokenizer.encode(decomposed, false).expect("valid");
    assert_eq!(tokenizer.decode(&ids).expect("valid"), "\u{e9}");
    let ids = tokenizer.encode_exact(decomposed).expect("valid");
    assert_eq!(tokenizer.decode(&ids).expect("valid"), decomposed);
}

#[test]
fn the_detokenizer_gives_whole_characters_and_no_control_tokens() {
    let tokenizer = tiny();
    let mut detokenizer = tokenizer.detokenizer();
    let mut parts = Vec::new();
    for id in tokenizer.encode("a\u{1f600}b<think>\u{20ac}<|im_end|>", true).expect("valid") {
        parts.push(detokenizer.push(id));
    }
    assert_eq!(parts.concat(), "a\u{1f600}b<think>\u{20ac}");
    assert_eq!(parts[1..5], ["", "", "", "\u{1f600}"]);
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn the_detokenizer_replaces_what_is_no_character() {
    let tokenizer = tiny();
    let mut detokenizer = tokenizer.detokenizer();
    // A lone continuation byte, a cut-off character, then text.
    assert_eq!(detokenizer.push(0x80), "\u{fffd}");
    assert_eq!(detokenizer.push(0xe2), "");
    assert_eq!(detokenizer.push(0x82), "");
    assert_eq!(detokenizer.push(u32::from(b'x')), "\u{fffd}x");
    assert_eq!(detokenizer.push(0xf0), "");
    assert_eq!(detokenizer.finish(), "\u{fffd}");
}

#[test]
fn ids_out_of_range_are_refused_by_position() {
    let tokenizer = tiny();
    let size = tokenizer.vocab_size() as u32;
    let error = tokenizer.decode(&[0, size]).expect_err("out of range");
    assert_eq!(
        error.to_string(),
        format!("token id {size} at position 1 is out of range, the vocabulary has {size} tokens")
    );
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
    assert_eq!(tokenizer.kind(u32::MAX), TokenKind::Unused);
}

#[test]
fn ends_are_the_named_tokens_and_the_known_ones() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.eos(), added("<|im_end|>"));
    assert_eq!(tokenizer.ends(), [added("<|im_end|>"), added("<|endoftext|>")]);
    assert_eq!(tokenizer.bos(), Some(added("<|endoftext|>")));
    assert!(!tokenizer.adds_bos());
}

#[test]
fn a_run_of_a_million_blanks_is_encoded_or_refused_without_loss() {
    let tokenizer = tiny();
    for length in [1000, 1_000_000] {
        let text = format!("{}x", " ".repeat(length));
        match tokenizer.encode(&text, false) {
            Ok(ids) => assert!(tokenizer.decode(&ids).expect("valid") == text),
            Err(error) => {
                assert!(matches!(error, TokenizerError::Split { .. }), "{error}");
                assert!(length > 1000, "an ordinary text is refused");
            }
        }
    }
}

/// The error of the tiny vocabulary after `change`.
fn fault(change: impl Fn(&mut GgufWriter) -> &mut GgufWriter) -> String {
    let mut keys = tiny_keys("");
    change(&mut keys);
    Tokenizer::from_gguf(&file(&keys)).expect_err("the vocabulary is faulty").to_string()
}

fn tiny_tokens() -> Vec<String> {
    let gguf = file(&tiny_keys(""));
    let tokens = gguf.meta().strings("tokenizer.ggml.tokens").expect("set");
    tokens.map(|t| t.expect("valid").to_owned()).collect()
}

#[test]
fn faulty_vocabularies_are_refused_by_key_or_token() {
    let cases: Vec<(String, &[&str])> = vec![
        (fault(|k| k.str("tokenizer.ggml.model", "llama")), &["llama", "gpt2"]),
        (fault(|k| k.str("tokenizer.ggml.pre", "odd")), &["odd", "qwen35"]),
        (fault(|k| k.u32("tokenizer.ggml.tokens", 1)), &["tokenizer.ggml.tokens", "u32"]),
        (fault(|k| k.strings("tokenizer.ggml.tokens", &[""; 0])), &["0 tokens"]),
        (fault(|k| k.i32s("tokenizer.ggml.token_type", &[1, 2])), &["token_type", "2 elements", "274"]),
        (fault(|k| k.strings("tokenizer.ggml.merges", &["t h", "th  e"])), &["merge 1", "th  e"]),
        (fault(|k| k.strings("tokenizer.ggml.merges", &["q x"])), &["qx"]),
        (fault(|k| k.u32("tokenizer.ggml.eos_token_id", 999)), &["eos_token_id", "999"]),
        (
            fault(|k| {
                let mut tokens = tiny_tokens();
                tokens[257] = "th".to_owned();
                k.strings("tokenizer.ggml.tokens", &tokens)
            }),
            &["256 and 257", "\"th\""],
        ),
        (
            fault(|k| {
                let mut tokens = tiny_tokens();
                tokens[10] = "xx".to_owned();
                k.strings("tokenizer.ggml.tokens", &tokens)
            }),
            &["byte 0x0a"],
        ),
        (
            fault(|k| {
                let mut tokens = tiny_tokens();
                tokens[260] = alphabet(&"x".repeat(5000));
                k.strings("tokenizer.ggml.tokens", &tokens)
            }),
            &["token 260", "5000", "4096"],
        ),
    ];
    for (text, parts) in cases {
        for part in parts {
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
    }
}

#[test]
fn every_shared_vector_is_equal() {
    let (Some(gguf), Some(vectors)) =
        (vocabulary::shared_vocabulary(), vocabulary::shared("fixtures/tokenizer/qwen35-vectors.jsonl"))
    else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a valid vocabulary");
    assert_eq!(tokenizer.vocab_size(), 248_077);
    let vectors = std::fs::read_to_string(vectors).expect("readable");
    let mut count = 0;
    for line in vectors.lines() {
        let vector: serde_json::Value = serde_json::from_str(line).expect("valid JSON");
        let text = vector["text"].as_str().expect("a string");
        let expected: Vec<u32> = serde_json::from_value(vector["ids"].clone()).expect("a list of ids");
        let ids = tokenizer.encode(text, true).expect("valid");
        assert_eq!(ids, expected, "vector {}: {text:?}", vector["i"]);
        let decoded = tokenizer.decode(&ids).expect("valid");
        assert_eq!(vector["decoded_equals_nfc"], true);
        assert_eq!(decoded, tokenizer.normalize(text), "vector {}", vector["i"]);

        let mut detokenizer = tokenizer.detokenizer();
        let streamed: String = ids
            .iter()
            .filter(|&&id| tokenizer.kind(id) != TokenKind::Control)
            .map(|&id| detokenizer.push(id))
            .collect();
        let kept: Vec<u32> =
            ids.iter().copied().filter(|&id| tokenizer.kind(id) != TokenKind::Control).collect();
        assert_eq!(streamed + &detokenizer.finish(), tokenizer.decode(&kept).expect("valid"));
        count += 1;
    }
    assert_eq!(count, 200);
}

#[test]
fn the_vocabularies_of_all_shared_golden_models_round_trip() {
    for name in ["qwen35-a", "qwen35-b", "lfm2", "granitehybrid", "qwen3vl"] {
        let Some(path) = vocabulary::shared(&format!("fixtures/golden/{name}.gguf")) else { return };
        let gguf = Gguf::open(path).expect("a valid file");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a valid vocabulary");
        let text = "[12] Button \"Save 1,234\" (540,1080)\n\n  it's  naïve 日本語 😀\t\r\n x";
        let ids = tokenizer.encode(text, false).expect("valid");
        assert_eq!(tokenizer.decode(&ids).expect("valid"), text, "{name}");
    }
}
