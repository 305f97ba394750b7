//! Bad input through the real command: a typed error that says what and where, a fixed exit
//! code, and no harm to anyone else.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tandem_tests::{Finished, daemon, demo_model, demo_trace, golden, start, tandem, tandemd};

fn generate(extra: &[&str]) -> Finished {
    let model = golden("qwen35-a");
    let mut arguments = vec!["generate".as_ref(), "--model".as_ref(), model.as_os_str()];
    arguments.extend(extra.iter().map(OsStr::new));
    tandem(arguments)
}

fn with_model(model: &Path) -> Finished {
    tandem(["generate".as_ref(), "--prompt".as_ref(), "x".as_ref(), "--model".as_ref(), model.as_os_str()])
}

/// The bytes of a golden model, changed, as a file.
fn changed(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(golden("qwen35-a")).unwrap();
    change(&mut bytes);
    let file = folder.join("changed.gguf");
    std::fs::write(&file, bytes).unwrap();
    file
}

fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

#[test]
fn a_truncated_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for keep in [0, 3, 30, 2000] {
        let model = changed(folder.path(), |bytes| bytes.truncate(keep));
        with_model(&model).failed(2, &["changed.gguf"]);
    }
    let model = changed(folder.path(), |bytes| bytes.truncate(bytes.len() / 2));
    // The data section is cut: a tensor reaches past the end.
    with_model(&model).failed(2, &["changed.gguf", "tensor"]);
    tandem(["model".as_ref(), "inspect".as_ref(), model.as_os_str()]).failed(2, &["changed.gguf", "tensor"]);
}

#[test]
fn a_model_of_another_architecture_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = changed(folder.path(), |bytes| {
        let value = find(bytes, "general.architecture") + "general.architecture".len() + 4 + 8;
        bytes[value..value + 6].copy_from_slice(b"qwen99");
    });
    with_model(&model).failed(2, &["changed.gguf", "qwen99", "qwen35"]);
}

#[test]
fn a_model_that_is_not_there_is_refused() {
    with_model(Path::new("/nowhere/model.gguf")).failed(2, &["/nowhere/model.gguf"]);
    tandem(["generate", "--prompt", "x"]).failed(2, &["--model", "--socket"]);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let prompt = "word ".repeat(200);
    let run = generate(&["--context", "64", "--prompt", &prompt]);
    run.failed(1, &["prompt_too_long", "64"]);
    assert!(!run.err.contains("word word"), "the error repeats the prompt: {}", run.err);
}

#[test]
fn a_schema_that_does_not_parse_is_refused() {
    generate(&["--prompt", "x", "--schema", "{\"type\":"]).failed(1, &["invalid_schema"]);
    generate(&["--prompt", "x", "--schema", "{\"type\":\"objekt\"}"])
        .failed(1, &["invalid_schema", "\"type\" at #"]);
    generate(&["--prompt", "x", "--schema", "/nowhere.json"]).failed(2, &["/nowhere.json"]);
}

#[test]
fn ids_out_of_range_are_named_with_their_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let ask = |content: &str| {
        let ids = folder.path().join("ids.json");
        std::fs::write(&ids, content).unwrap();
        generate(&["--tokens", ids.to_str().unwrap(), "--logits", out.to_str().unwrap()])
    };
    ask("[[1,2],[5,99999]]").failed(1, &["ids.json", "prompt 1", "99999", "invalid_token"]);
    ask("[[1],[-4]]").failed(2, &["ids.json", "prompt 1", "-4"]);
    ask("[[1],[]]").failed(2, &["ids.json", "prompt 1", "empty"]);
    ask("[1]").failed(2, &["ids.json", "prompt 0"]);
    assert!(!out.exists(), "a refused request leaves no file");
    generate(&["--tokens", "/nowhere.json", "--logits", "x"]).failed(2, &["/nowhere.json"]);
}

#[test]
fn a_broken_trace_line_is_named_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let good = std::fs::read_to_string(demo_trace()).unwrap().lines().next().unwrap().to_owned();
    for (line, words) in [
        ("{\"request\":", vec!["column"]),
        ("{\"app\":\"x\"}", vec!["request"]),
        ("{\"request\":{\"messages\":[]}}", vec!["messages"]),
        ("{\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":3}}", vec!["`n`"]),
    ] {
        std::fs::write(&trace, format!("{good}\n\n{line}\n")).unwrap();
        let run =
            tandem(["replay".as_ref(), trace.as_os_str(), "--model".as_ref(), demo_model().as_os_str()]);
        run.failed(2, &[&["trace.jsonl", "line 3"], &words[..]].concat());
        assert!(run.out.is_empty(), "{}", run.out);
    }
}

#[test]
fn settings_that_do_not_exist_are_named_with_those_that_do() {
    generate(&["--prompt", "x", "--set", "magic=on"]).failed(2, &["magic"]);
    generate(&["--prompt", "x", "--set", "kv_type=f64"]).failed(2, &["kv_type", "f64"]);
    generate(&["--prompt", "x", "--set", "drafts=8"]).failed(2, &["drafts", "0 to 7"]);
    generate(&["--prompt", "x", "--placement", "best"]).failed(2, &["best", "anchor"]);
    generate(&["--prompt", "x", "--device", "abacus"]).failed(2, &["abacus", "reference"]);
    generate(&["--prompt", "x", "--temprature", "1"]).failed(2, &["--temprature", "--temperature"]);
    generate(&["--prompt", "x", "--temperature", "nan"]).failed(2, &["temperature"]);
    generate(&[]).failed(2, &["--prompt"]);
}

#[test]
fn without_a_daemon_the_exit_code_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    for command in ["status", "top"] {
        let run = tandem([command.as_ref(), "--socket".as_ref(), socket.as_os_str()]);
        run.failed(3, &["none.sock", "tandemd"]);
    }
    tandem(["generate".as_ref(), "--prompt".as_ref(), "x".as_ref(), "--socket".as_ref(), socket.as_os_str()])
        .failed(3, &["none.sock"]);
    tandem(["replay".as_ref(), demo_trace().as_os_str(), "--url".as_ref(), "http://127.0.0.1:1".as_ref()])
        .failed(3, &["127.0.0.1:1"]);
}

#[test]
fn a_socket_in_use_stays_with_its_daemon() {
    let (daemon, client) = daemon(["--model".as_ref(), golden("qwen35-a").as_os_str()]);
    let second = tandemd([
        "--model".as_ref(),
        golden("qwen35-a").as_os_str(),
        "--socket".as_ref(),
        daemon.socket().as_os_str(),
    ]);
    second.failed(3, &["in use", "tandem.sock"]);
    client.ping().unwrap();
    daemon.stop().unwrap();
}

/// Bad requests, each on a connection of its own, while another client works.
#[test]
fn another_clients_answers_are_untouched() {
    let (daemon, client) =
        daemon(["--model".as_ref(), demo_model().as_os_str(), "--context".as_ref(), "1024".as_ref()]);
    let socket = daemon.socket().to_str().unwrap();
    let replay = || {
        ["replay", demo_trace().to_str().unwrap(), "--json", "--limit", "20", "--socket", socket]
            .map(str::to_owned)
    };
    let texts = |report: &Value| -> Vec<Value> {
        report["steps"].as_array().unwrap().iter().map(|step| step["text"].clone()).collect()
    };
    let alone = texts(&tandem(replay()).json());

    let folder = tempfile::tempdir().unwrap();
    let ids = folder.path().join("ids.json");
    std::fs::write(&ids, "[[999999]]").unwrap();
    let out = folder.path().join("out.safetensors");
    let long = folder.path().join("long.txt");
    std::fs::write(&long, "word ".repeat(5000)).unwrap();
    let bad = [
        vec!["--prompt-file", long.to_str().unwrap()],
        vec!["--prompt", "x", "--schema", "{\"type\":"],
        vec!["--tokens", ids.to_str().unwrap(), "--logits", out.to_str().unwrap()],
    ];
    let worker = start(replay(), |_| {});
    for arguments in &bad {
        let run = tandem([&["generate", "--socket", socket], &arguments[..]].concat());
        assert_eq!(run.code, Some(1), "{arguments:?}: {}", run.err);
    }
    // And one that is killed in the middle of a long answer.
    let mut killed = start(["generate", "--socket", socket, "--prompt", "x", "--max-tokens", "900"], |_| {});
    let mut byte = [0];
    std::io::Read::read_exact(killed.stdout.as_mut().unwrap(), &mut byte).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();

    let output = worker.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(texts(&serde_json::from_slice(&output.stdout).unwrap()), alone);
    tandem_tests::eventually("only this test is a client", || {
        client.status().unwrap()["clients"].as_array().unwrap().len() == 1
    });
    assert_eq!(client.status().unwrap()["clients"][0]["app"], json!("test"));
    daemon.stop().unwrap();
}
