//! Answers under a schema: what is allowed, forced, complete; what is refused.

mod vocabulary;

use std::sync::Arc;

use serde_json::{Value, json};
use tandem_engine::grammar::{Constraint, GrammarCompiler, GrammarError};
use tandem_engine::tokenizer::Tokenizer;
use vocabulary::tiny;

fn compiler() -> (Arc<Tokenizer>, GrammarCompiler) {
    let tokenizer = Arc::new(tiny());
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer)).expect("a usable vocabulary");
    (tokenizer, compiler)
}

/// Whether the schema takes `answer`, each token in the mask, and is done with it.
fn takes(tokenizer: &Tokenizer, mut constraint: Constraint, answer: &str) -> bool {
    for id in tokenizer.encode_exact(answer).expect("valid") {
        if constraint.commit(id).is_err() {
            return false;
        }
    }
    constraint.can_end().expect("no failure")
}

#[track_caller]
fn assert_takes(schema: &Value, good: &[&str], bad: &[&str]) {
    let (tokenizer, compiler) = compiler();
    let compiled = compiler.compile(&schema.to_string()).expect("a supported schema");
    for answer in good {
        assert!(takes(&tokenizer, compiled.start(), answer), "{answer} is refused by {schema}");
    }
    for answer in bad {
        assert!(!takes(&tokenizer, compiled.start(), answer), "{answer} is taken by {schema}");
    }
}

#[track_caller]
fn refusal(schema: &str) -> String {
    compiler().1.compile(schema).expect_err("an unsupported schema").to_string()
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

fn action() -> Value {
    json!({
        "type": "object",
        "properties": {
            "action": {"const": "tap"},
            "index": {"type": "integer", "minimum": 0, "maximum": 127},
        },
        "required": ["action", "index"],
        "additionalProperties": false,
    })
}

#[test]
fn only_compact_json_in_schema_order_is_taken() {
    assert_takes(
        &action(),
        &[r#"{"action":"tap","index":0}"#, r#"{"action":"tap","index":127}"#],
        &[
            r#"{"action":"tap","index":128}"#,
            r#"{"action":"tap","index":-1}"#,
            r#"{"action":"tap","index":1.5}"#,
            r#"{"action": "tap","index":0}"#,
            r#"{"action":"tap", "index":0}"#,
            r#"{"index":0,"action":"tap"}"#,
            r#"{"action":"type","index":0}"#,
            r#"{"action":"tap"}"#,
            r#"{"action":"tap","index":0}x"#,
            " {\"action\":\"tap\",\"index\":0}",
        ],
    );
}

#[test]
fn forced_text_is_given_as_the_tokenizer_would_write_it() {
    let (tokenizer, compiler) = compiler();
    let mut constraint = compiler.compile(&action().to_string()).expect("supported").start();
    let forced = constraint.forced_tokens();
    let text = tokenizer.decode(&forced).expect("valid");
    assert!(text.starts_with(r#"{"action":"tap","index""#), "{text}");
    let whole = tokenizer.encode_exact(r#"{"action":"tap","index":7}"#).expect("valid");
    assert_eq!(forced, whole[..forced.len()]);
    // The mask says the same, a token at a time.
    for &id in &forced {
        assert_eq!(constraint.mask().expect("no failure").single(), Some(id));
        constraint.commit(id).expect("forced tokens are allowed");
    }
    assert!(constraint.forced_tokens().is_empty() || constraint.forced_tokens()[0] == u32::from(b':'));
}

#[test]
fn a_complete_answer_allows_the_end_token_only() {
    let (tokenizer, compiler) = compiler();
    let mut constraint = compiler.compile(&action().to_string()).expect("supported").start();
    for id in tokenizer.encode_exact(r#"{"action":"tap","index":7}"#).expect("valid") {
        assert!(!constraint.is_complete());
        assert!(constraint.allowed(id).expect("no failure"));
        constraint.commit(id).expect("allowed");
    }
    assert!(constraint.is_complete());
    assert_eq!(constraint.mask().expect("no failure").single(), Some(tokenizer.eos()));
    assert_eq!(constraint.forced_tokens(), [0u32; 0]);
    assert!(matches!(constraint.commit(65), Err(GrammarError::NotAllowed { id: 65 })));
    constraint.commit(tokenizer.eos()).expect("the end is allowed");
    assert!(matches!(constraint.mask(), Err(GrammarError::Ended)));
    assert!(matches!(constraint.commit(tokenizer.eos()), Err(GrammarError::Ended)));
}

#[test]
fn an_answer_that_could_go_on_may_also_end() {
    let (tokenizer, compiler) = compiler();
    let mut constraint = compiler.compile(r#"{"type":"integer"}"#).expect("supported").start();
    assert!(!constraint.can_end().expect("no failure"));
    constraint.commit(u32::from(b'1')).expect("allowed");
    assert!(constraint.can_end().expect("no failure"));
    assert!(!constraint.is_complete());
    let mask = constraint.mask().expect("no failure");
    assert!(mask.is_allowed(tokenizer.eos()) && mask.is_allowed(u32::from(b'2')));
    assert!(!mask.is_allowed(u32::from(b'x')) && !mask.is_allowed(u32::MAX));
    constraint.commit(tokenizer.eos()).expect("allowed");
    assert!(matches!(constraint.mask(), Err(GrammarError::Ended)));
    // The end and the digit before it are taken back.
    constraint.rollback(2).expect("two were committed");
    assert!(!constraint.can_end().expect("no failure"));
    constraint.commit(u32::from(b'7')).expect("allowed");
}

#[test]
fn a_refused_token_changes_nothing() {
    let (tokenizer, compiler) = compiler();
    let mut constraint = compiler.compile(&action().to_string()).expect("supported").start();
    let whole = tokenizer.encode_exact(r#"{"action":"tap","index":7}"#).expect("valid");
    for &id in &whole {
        for wrong in [u32::from(b'\n'), u32::MAX, tokenizer.vocab_size() as u32, tokenizer.eos()] {
            assert!(matches!(constraint.commit(wrong), Err(GrammarError::NotAllowed { .. })));
        }
        constraint.commit(id).expect("allowed");
    }
    assert!(constraint.is_complete());
}

#[test]
fn rollback_and_clones_return_to_equal_masks() {
    let (tokenizer, compiler) = compiler();
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}},
        "required": ["text", "n"], "additionalProperties": false});
    let mut constraint = compiler.compile(&schema.to_string()).expect("supported").start();
    let ids = tokenizer.encode_exact(r#"{"text":"the other","n":42}"#).expect("valid");
    let mut masks = Vec::new();
    let mut clones = Vec::new();
    for &id in &ids {
        masks.push(constraint.mask().expect("no failure"));
        clones.push(constraint.clone());
        constraint.commit(id).expect("allowed");
    }
    constraint.commit(tokenizer.eos()).expect("complete");
    for back in 0..=ids.len() {
        let mut copy = constraint.clone();
        copy.rollback(back + 1).expect("so many were committed");
        let at = ids.len() - back;
        if let Some(mask) = masks.get(at) {
            assert_eq!(&copy.mask().expect("no failure"), mask, "back to {at}");
            assert_eq!(&clones[at].mask().expect("no failure"), mask);
        }
        for &id in &ids[at..] {
            copy.commit(id).expect("allowed again");
        }
        assert!(copy.is_complete());
    }
    assert!(constraint.clone().rollback(ids.len() + 2).is_err());
}

#[test]
fn markers_are_never_allowed_inside_an_answer() {
    let (tokenizer, compiler) = compiler();
    let mut constraint = compiler.compile(r#"{"type":"string"}"#).expect("supported").start();
    constraint.commit(u32::from(b'"')).expect("allowed");
    let mask = constraint.mask().expect("no failure");
    for (text, id) in tokenizer.markers() {
        assert!(!mask.is_allowed(id), "{text}");
    }
    // Spelt out it is text like any other.
    for id in tokenizer.encode_exact("<|im_end|>\"").expect("valid") {
        constraint.commit(id).expect("allowed");
    }
    assert!(constraint.is_complete());
}

#[test]
fn references_are_followed_recursive_ones_too() {
    assert_takes(
        &json!({
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {"v": {"$ref": "#/definitions/a~1b"}, "next": {"$ref": "#/$defs/tree"}},
                    "required": ["v"],
                    "additionalProperties": false,
                },
            },
            "definitions": {"a/b": {"type": "integer", "maximum": 5}},
        }),
        &[r#"{"v":1}"#, r#"{"v":1,"next":{"v":2,"next":{"v":3}}}"#],
        &[r#"{"v":6}"#, r#"{"next":{"v":1}}"#, r#"{"v":1,"next":3}"#],
    );
}

#[test]
fn enums_with_any_text_are_taken_exactly() {
    assert_takes(
        &json!({"enum": ["naïve", "日本語", "e\u{301}", "😀", "a\"b\\c", "", 3, null, true, [1, "x"], {"k": 1}]}),
        &[
            "\"naïve\"",
            "\"日本語\"",
            "\"e\u{301}\"",
            "\"😀\"",
            r#""a\"b\\c""#,
            "\"\"",
            "3",
            "null",
            "true",
            "[1,\"x\"]",
            r#"{"k":1}"#,
        ],
        &["\"naive\"", "\"日本\"", "\"\u{e9}\"", "4", "false", "[1]", r#"{"k":2}"#],
    );
}

#[test]
fn patterns_lengths_and_formats_hold() {
    assert_takes(
        &json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}),
        &["\"AB-1\"", "\"XY-123\""],
        &["\"A-1\"", "\"AB-\"", "\"ab-1\"", "\"AB-1 \""],
    );
    assert_takes(
        &json!({"type": "string", "minLength": 2, "maxLength": 3}),
        &["\"éé\"", "\"abc\""],
        &["\"é\"", "\"abcd\""],
    );
    assert_takes(&json!({"format": "date", "type": "string"}), &["\"2026-01-31\""], &["\"31.1.26\""]);
    assert_takes(
        &json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
        &["[1]", "[1,2]"],
        &["[]", "[1,2,3]", "[\"1\"]", "[1, 2]"],
    );
    assert_takes(
        &json!({"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}, "minItems": 1}),
        &["[1]", "[1,2,2]"],
        &["[2]", "[1,1]"],
    );
    assert_takes(
        &json!({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1}),
        &["null", "0.5", "1"],
        &["0", "1.5", "true"],
    );
    assert_takes(&json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}), &["\"x\"", "1"], &["null"]);
    assert_takes(
        &json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}),
        &["3", "5"],
        &["2", "6"],
    );
}

#[test]
fn any_object_is_any_json_object() {
    let (tokenizer, compiler) = compiler();
    let compiled = compiler.json_object().expect("supported");
    for answer in ["{}", r#"{"a":[1,{"b":null}],"ü":"x"}"#] {
        assert!(takes(&tokenizer, compiled.start(), answer), "{answer}");
    }
    for answer in ["[]", "1", "{ }", r#"{"a":}"#] {
        assert!(!takes(&tokenizer, compiled.start(), answer), "{answer}");
    }
}

#[test]
fn keywords_that_are_not_enforced_are_refused_by_name_and_place() {
    for keyword in [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "propertyNames",
        "uniqueItems",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$anchor",
        "$dynamicRef",
        "$recursiveRef",
        "id",
        "x-guidance",
        "minLenght",
        "nullable",
        "strict",
    ] {
        let schema = json!({"type": "object", "properties": {"a/b": {"type": "string", keyword: true}}});
        let text = refusal(&schema.to_string());
        assert_says(&text, &[&format!("{keyword:?}"), "#/properties/a~1b"]);
    }
    // Keywords the grammar library ignores beside nothing but annotations, or in the
    // draft that `$schema` names.
    assert_says(&refusal(r#"{"minLenght": 3}"#), &["minLenght", "at #"]);
    assert_says(&refusal(r#"{"x-guidance": {"lenient": true}, "not": {}}"#), &["x-guidance"]);
    assert_says(
        &refusal(r##"{"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}"##),
        &["\"not\"", "#/$defs/a"],
    );
    // Reached by reference only, in a place that is no schema.
    assert_says(&refusal(r##"{"default": {"not": {}}, "$ref": "#/default"}"##), &["\"not\"", "#/default"]);
    assert_says(
        &refusal(r#"{"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}"#),
        &["$schema", "#/properties/a"],
    );
    assert_says(
        &refusal(r#"{"type": "array", "items": {}, "additionalItems": false}"#),
        &["additionalItems"],
    );
    assert_takes(
        &json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x/y", "type": "array",
            "prefixItems": [{"const": 1}], "items": false, "title": "t", "description": "d", "default": [1]}),
        &["[1]"],
        &["[2]", "[1,1]"],
    );
}

#[test]
fn malformed_keywords_are_refused_by_name_and_place() {
    let cases = [
        (json!({"type": "text"}), "type", "integer"),
        (json!({"type": []}), "type", "list"),
        (json!({"properties": []}), "properties", "an object"),
        (json!({"anyOf": {}}), "anyOf", "a list"),
        (json!({"enum": []}), "enum", "at least one"),
        (json!({"required": ["a", 1]}), "required", "names"),
        (json!({"minLength": -1}), "minLength", "65536"),
        (json!({"maxItems": 1_000_000_000}), "maxItems", "4096"),
        (json!({"minimum": "1"}), "minimum", "a number"),
        (json!({"multipleOf": 0}), "multipleOf", "above zero"),
        (json!({"pattern": 1}), "pattern", "regular expression"),
        (json!({"format": "unknown"}), "format", "date-time"),
        (json!({"format": "phone"}), "format", "date-time"),
        (json!({"$ref": "http://example.com/schema"}), "$ref", "itself"),
        (json!({"$ref": "#/$defs/none"}), "$ref", "itself"),
        (json!({"$ref": 1}), "$ref", "itself"),
    ];
    for (schema, keyword, expected) in cases {
        assert_says(&refusal(&schema.to_string()), &[&format!("{keyword:?}"), expected, "at #"]);
    }
    assert_says(&refusal(r#"{"properties": {"a": 1}}"#), &["#/properties/a", "object, true or false"]);
    assert_says(&refusal("[]"), &["at #", "object, true or false"]);
}

#[test]
fn text_that_is_not_json_is_refused_by_line_and_column() {
    assert_says(&refusal("{\n  \"type\": strong\n}"), &["line 2", "column 11"]);
    assert_says(&refusal(""), &["line 1"]);
    assert_says(&refusal("{} {}"), &["trailing"]);
}

#[test]
fn schemas_that_nothing_satisfies_or_that_cannot_be_enforced_are_refused() {
    for schema in [
        json!(false),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "string", "pattern": "("}),
        json!({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}),
        json!({"type": "object", "required": ["a"], "properties": {"a": false}}),
    ] {
        assert_says(&refusal(&schema.to_string()), &["cannot be enforced"]);
    }
}

#[test]
fn size_and_nesting_are_bounded() {
    assert_says(&refusal(&format!("{{\"title\":\"{}\"}}", "x".repeat(1 << 20))), &["1048576"]);
    let deep = format!("{}{}", r#"{"items":"#.repeat(200), "true".to_owned() + &"}".repeat(200));
    assert_says(&refusal(&deep), &["127 levels", "line 1", "column 1144"]);
    // Brackets in strings do not count.
    let braces = json!({"const": "{".repeat(500)});
    assert_takes(&braces, &[&format!("\"{}\"", "{".repeat(500))], &[]);
    // 120 levels are fine.
    let nested = (0..60).fold(
        json!({"const": 1}),
        |inner, _| json!({"type": "array", "items": inner, "minItems": 1, "maxItems": 1}),
    );
    assert_takes(&nested, &[&format!("{}1{}", "[".repeat(60), "]".repeat(60))], &["[1]"]);
}

#[test]
fn long_chains_of_references_are_refused_not_followed_into_the_ground() {
    let chain = |length: usize| {
        let mut defs = serde_json::Map::new();
        for i in 0..length {
            defs.insert(format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}));
        }
        defs.insert(format!("d{length}"), json!({"const": 1}));
        json!({"$defs": defs, "$ref": "#/$defs/d0"})
    };
    assert_takes(&chain(100), &["1"], &["2"]);
    assert_says(&refusal(&chain(1000).to_string()), &["levels", "256"]);
    // The same chain in the other order: the walk meets its end first.
    let mut reversed = serde_json::Map::new();
    reversed.insert("d0".to_owned(), json!({"const": 1}));
    for i in 1..5000 {
        reversed.insert(format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i - 1)}));
    }
    let schema = json!({"$defs": reversed, "$ref": "#/$defs/d4999"});
    match compiler().1.compile(&schema.to_string()) {
        Ok(compiled) => assert!(takes(&tiny(), compiled.start(), "1")),
        Err(error) => assert_says(&error.to_string(), &["schema"]),
    }
}

#[test]
fn greedy_repetitions_are_bounded() {
    // Either is fine: taken within the limits, or refused; never a hang or a crash.
    for schema in [
        json!({"type": "string", "minLength": 10_000, "maxLength": 65_536}),
        json!({"type": "string", "pattern": "^(a{100}){100}$"}),
        json!({"type": "string", "pattern": "^((a|b)*c(a|b){12}d){5}$"}),
        json!({"type": "array", "items": {"type": "string"}, "minItems": 4096, "maxItems": 4096}),
    ] {
        let (_, compiler) = compiler();
        match compiler.compile(&schema.to_string()) {
            Ok(compiled) => drop(compiled.start().mask()),
            Err(error) => assert_says(&error.to_string(), &["schema"]),
        }
    }
}

#[test]
fn long_forced_text_is_refused() {
    let many = json!({"type": "array", "items": {"const": "x".repeat(100)}, "minItems": 1000});
    for schema in [
        json!({"const": "x".repeat(20_000)}),
        json!({"enum": ["a", "x".repeat(20_000)]}),
        json!({"pattern": "^(a{1000}){1000}$"}),
        json!({"allOf": [{"pattern": "^a*$"}, {"minLength": 20_000}]}),
        json!({"type": "array", "items": {"$ref": "#/$defs/m"}, "minItems": 2, "$defs": {"m": many}}),
        json!({"anyOf": [{"const": 1}, many]}),
        json!({"properties": {"x".repeat(20_000): true}}),
        json!({"additionalProperties": {"const": "x".repeat(1000)}, "minProperties": 20}),
    ] {
        assert_says(&refusal(&schema.to_string()), &["force", "16384"]);
    }
    // Recursion is a choice at every level.
    assert_takes(
        &json!({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}),
        &["[]", "[[],[[]]]"],
        &["[1]", "[[],[],[]]"],
    );
}

#[test]
fn a_hundred_kilobytes_of_tool_schemas_compile_once() {
    let (tokenizer, compiler) = compiler();
    let tools: Vec<Value> = (0..300)
        .map(|i| {
            json!({
                "type": "object",
                "properties": {
                    "name": {"const": format!("tool_{i}")},
                    "arguments": {
                        "type": "object",
                        "properties": {
                            "query": {"type": "string", "description": "What to look for, in plain words.".repeat(3)},
                            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                            "mode": {"enum": ["fast", "gründlich", "自動"]},
                        },
                        "required": ["query"],
                        "additionalProperties": false,
                    },
                },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        })
        .collect();
    let text = json!({"anyOf": tools}).to_string();
    assert!(text.len() > 100_000, "{}", text.len());
    let compiled = compiler.compile(&text).expect("supported");
    assert!(takes(
        &tokenizer,
        compiled.start(),
        r#"{"name":"tool_299","arguments":{"query":"the \"end\"","limit":7,"mode":"自動"}}"#
    ));
    assert!(!takes(&tokenizer, compiled.start(), r#"{"name":"tool_300","arguments":{"query":"x"}}"#));
    let again = compiler.compile(&text).expect("cached");
    assert!(Arc::ptr_eq(&compiled, &again));
    assert_eq!(compiler.cached_count(), 1);
}

#[test]
fn the_cache_keeps_the_most_recently_used() {
    let (_, compiler) = compiler();
    let schema = |i: usize| json!({"const": i}).to_string();
    let first = compiler.compile(&schema(0)).expect("supported");
    for i in 1..40 {
        compiler.compile(&schema(i)).expect("supported");
        let kept = compiler.compile(&schema(0)).expect("supported");
        assert!(Arc::ptr_eq(&first, &kept), "schema 0 was dropped at {i}");
    }
    assert_eq!(compiler.cached_count(), tandem_engine::grammar::CACHE_ENTRIES);
}

#[test]
fn every_shared_answer_is_taken_token_by_token_and_forced_canonically() {
    let Some(gguf) = vocabulary::shared_vocabulary() else { return };
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf).expect("a valid vocabulary"));
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer)).expect("usable");
    let (mut answers, mut tokens, mut forced_count) = (0, 0, 0);
    for trace in vocabulary::TRACES {
        let Some(path) = vocabulary::shared(trace) else { return };
        for line in std::fs::read_to_string(path).expect("readable").lines() {
            let step: Value = serde_json::from_str(line).expect("valid JSON");
            let schema = &step["request"]["response_format"]["json_schema"]["schema"];
            let expect = step["expect"].as_str().expect("a string");
            let mut constraint = compiler.compile(&schema.to_string()).expect("supported").start();
            let ids = tokenizer.encode(expect, false).expect("valid");
            for (at, &id) in ids.iter().enumerate() {
                let forced = constraint.forced_tokens();
                assert!(ids[at..].starts_with(&forced), "{expect}: {forced:?} forced at {at} of {ids:?}");
                forced_count += usize::from(!forced.is_empty());
                assert!(constraint.allowed(id).expect("no failure"), "{expect}: token {at}");
                constraint.commit(id).expect("allowed");
            }
            assert!(constraint.is_complete(), "{expect}");
            answers += 1;
            tokens += ids.len();
        }
    }
    eprintln!("{answers} answers, {tokens} tokens, {forced_count} of them forced");
    assert_eq!(answers, 281);
}
