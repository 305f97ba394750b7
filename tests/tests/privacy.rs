//! No text of prompts or answers leaves the client's own ring.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use serde_json::json;
use tandem_sdk::Request;
use tandem_tests::{Service, demo_model, eventually, tandem};

const CANARY: &str = "xanthous-canary-71";

fn chat(more: &serde_json::Value) -> Request {
    let mut body =
        json!({"messages": [{"role": "user", "content": format!("say {CANARY} please")}], "max_tokens": 4});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    Request::from_chat_completions(&body).unwrap()
}

#[test]
fn a_canary_in_prompts_schemas_and_answers_is_in_no_log_board_or_status() {
    let name = format!("tandem-privacy-{}", std::process::id());
    let settings = format!("model = {:?}\nlog = \"trace\"\nboard = {name:?}\n", demo_model());
    let mut service = Service::start(&settings);
    let client = service.client("agent");
    let ask = |request: Request| {
        client.generate(request).map_err(|e| e.to_string())?.answer().map_err(|e| e.to_string())
    };

    // Answered, and with the canary for an answer.
    ask(chat(&json!({}))).unwrap();
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": CANARY}}, "required": ["a"]}}});
    let answer = ask(chat(&json!({"response_format": schema, "max_tokens": 64}))).unwrap();
    assert!(answer.text.contains(CANARY), "{}", answer.text);
    // Refused and failed in the ways that put what was asked into an error text.
    for wrong in [
        json!({"type": "object", CANARY: 1}),
        json!({"type": CANARY}),
        json!({"type": "string", "pattern": format!("({CANARY}")}),
        json!({"$ref": format!("#/{CANARY}")}),
        json!({"enum": [CANARY], "type": "integer"}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"schema": wrong}});
        assert!(ask(chat(&json!({"response_format": format}))).is_err(), "{wrong}");
    }
    assert!(ask(Request::text(CANARY.repeat(4000))).is_err(), "longer than the context");
    assert!(ask(chat(&json!({"messages": [{"role": CANARY, "content": CANARY}]}))).is_err());
    // Cancelled in the middle.
    drop(client.generate(Request::text(CANARY).max_tokens(500)).unwrap());

    eventually("the board has the end", || {
        tandem(["status", "--board", name.as_str(), "--json"]).json()["report"]["counters"]["answered"]
            .as_u64()
            >= Some(2)
    });
    let status = client.status().unwrap().to_string();
    let board = std::fs::read(std::path::Path::new("/dev/shm").join(&name)).unwrap();
    drop(client);
    service.signal(rustix::process::Signal::TERM);
    assert_eq!(service.wait().code(), Some(0));
    let log = service.log();
    // The log has something to say at all.
    assert!(log.contains("client connected") && log.contains("refused a request"), "{log}");
    let places = [("log", log.into_bytes()), ("board", board), ("status", status.into_bytes())];
    for (place, bytes) in places {
        let found = bytes.windows(CANARY.len()).any(|w| w.eq_ignore_ascii_case(CANARY.as_bytes()));
        assert!(!found, "the {place} holds the canary: {}", String::from_utf8_lossy(&bytes));
    }
    for entry in std::fs::read_dir(service.folder()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(
            !bytes.windows(CANARY.len()).any(|w| w == CANARY.as_bytes()),
            "a file of the daemon holds the canary"
        );
    }
}
