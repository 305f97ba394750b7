//! The daemon's beginning and end, and what it shares.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use std::io::Read;
use std::process::Child;
use tandem_sdk::Client;
use tandem_tests::{daemon, demo_model, eventually, golden, programs, signal, start, tandem};

/// A request whose answer is long enough to be in the middle of.
const LONG: [&str; 4] = ["--prompt", "x", "--max-tokens", "1900"];

/// Waits for the first byte of a child's output.
fn first_byte(child: &mut Child) {
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
}

fn finish(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn sigterm_stops_the_daemon_cleanly() {
    for how in [Signal::TERM, Signal::INT] {
        let (mut daemon, client) = daemon(["--model".as_ref(), golden("qwen35-a").as_os_str()]);
        client.ping().unwrap();
        signal(daemon.pid(), how);
        let mut ended = None;
        eventually("the daemon ends", || {
            ended = daemon.ended();
            ended.is_some()
        });
        assert!(!daemon.socket().exists(), "the socket is left behind");
        // `stop` gives an error for any other exit code than 0.
        daemon.stop().unwrap();
    }
}

#[test]
fn a_request_in_flight_is_told_that_the_daemon_stops() {
    let (daemon, _client) = daemon(["--model".as_ref(), golden("qwen35-a").as_os_str()]);
    let socket = daemon.socket().to_str().unwrap();
    let mut asking = start([&["generate", "--socket", socket], &LONG[..]].concat(), |_| {});
    first_byte(&mut asking);
    signal(daemon.pid(), Signal::TERM);
    let (code, error) = finish(asking);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.starts_with("tandem: ") && error.contains("stopping"), "{error}");
    daemon.stop().unwrap();
}

#[test]
fn weights_are_mapped_once_however_many_clients() {
    let model = demo_model();
    let (daemon, client) = daemon(["--model".as_ref(), model.as_os_str()]);
    let mapped = || -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
        let own = maps.lines().filter(|line| line.ends_with("tests/model/demo.gguf"));
        own.map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        })
        .sum()
    };
    let file = std::fs::metadata(&model).unwrap().len();
    let pages = file.next_multiple_of(4096);
    assert_eq!(mapped(), pages, "the file is mapped once");
    let memory = |client: &Client| client.status().unwrap()["memory"].clone();
    let (mapped_before, device_before) =
        (memory(&client)["weights_mapped"].clone(), memory(&client)["device"].clone());
    assert_eq!(mapped_before, file);
    let others: Vec<Client> = (0..5)
        .map(|n| {
            let other = Client::builder(daemon.socket()).app(format!("app {n}")).connect().unwrap();
            let request = tandem_sdk::Request::text("tap").max_tokens(3);
            other.generate(request).unwrap().answer().unwrap();
            other
        })
        .collect();
    assert_eq!(client.status().unwrap()["clients"].as_array().unwrap().len(), 1 + others.len());
    assert_eq!(mapped(), pages, "more clients map nothing more");
    assert_eq!(memory(&client)["weights_mapped"], mapped_before);
    println!(
        "device memory before and with five clients more: {device_before}, {}",
        memory(&client)["device"]
    );
    drop(others);
    drop(client);
    daemon.stop().unwrap();
}

/// The private daemon of a running command.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_private_daemon_ends_with_the_command_however_that_ends() {
    let model = golden("qwen35-a");
    let arguments = [&["generate", "--model", model.to_str().unwrap()], &LONG[..]].concat();
    for how in [Signal::KILL, Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let mut asking = start(arguments.clone(), |command| {
            command.env("TMPDIR", folder.path());
        });
        first_byte(&mut asking);
        let daemon = child_of(asking.id()).unwrap();
        signal(asking.id(), how);
        asking.wait().unwrap();
        eventually("the private daemon ends", || {
            let comm = std::fs::read_to_string(format!("/proc/{daemon}/stat"));
            // Gone, or ended and not yet collected by whoever inherited it.
            comm.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
        });
        if how != Signal::KILL {
            let left = std::fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(left, 0, "{how:?} leaves files behind");
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let model = golden("qwen35-a");
    let mut asking = start([&["generate", "--model", model.to_str().unwrap()], &LONG[..]].concat(), |_| {});
    first_byte(&mut asking);
    drop(asking.stdout.take());
    let (code, error) = finish(asking);
    assert_eq!((code, error.as_str()), (Some(0), ""));
}

#[test]
fn status_tells_a_person_and_a_program_the_same() {
    let (daemon, _client) = daemon(["--model".as_ref(), golden("qwen35-a").as_os_str()]);
    let socket = daemon.socket().as_os_str();
    let json = tandem(["status".as_ref(), "--socket".as_ref(), socket, "--json".as_ref()]).json();
    for key in ["device", "model", "clients", "memory", "power", "counters"] {
        assert!(!json[key].is_null(), "{key} is missing: {json}");
    }
    let words = tandem(["status".as_ref(), "--socket".as_ref(), socket]);
    assert_eq!(words.code, Some(0), "{}", words.err);
    for word in
        [daemon.pid().to_string().as_str(), "qwen35-a.gguf", "test (process", "tandem status (process"]
    {
        assert!(words.out.contains(word), "{word:?} is not in:\n{}", words.out);
    }
    let top = tandem([
        "top".as_ref(),
        "--count".as_ref(),
        "2".as_ref(),
        "--interval".as_ref(),
        "0.05".as_ref(),
        "--socket".as_ref(),
        socket,
    ]);
    assert_eq!(top.out.matches("qwen35-a.gguf").count(), 2, "{}", top.err);
    daemon.stop().unwrap();
}

#[test]
fn generate_reports_what_the_design_names() {
    let model = golden("qwen35-a");
    let model = model.to_str().unwrap();
    let schema = r#"{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false}"#;
    let ask =
        ["generate", "--model", model, "--prompt", "hi", "--schema", schema, "--json", "--top-logprobs", "3"];
    let answer = tandem(ask).json();
    let text = answer["text"].as_str().unwrap();
    assert!(text == r#"{"a":"x"}"# || text == r#"{"a":"y"}"#, "{text}");
    assert_eq!(answer["finish"], "schema");
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["stats"]["decode_tokens"], tokens.len());
    let top = answer["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), tokens.len());
    for list in top {
        let logprobs: Vec<f64> =
            list.as_array().unwrap().iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert_eq!(logprobs.len(), 3);
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{logprobs:?}");
    }
    // The same without --json is the text alone.
    let plain = tandem(["generate", "--model", model, "--prompt", "hi", "--schema", schema]);
    assert_eq!(plain.out, format!("{text}\n"));
}

#[test]
fn model_inspect_lists_keys_and_tensors() {
    let model = golden("qwen35-a");
    let json = tandem(["model".as_ref(), "inspect".as_ref(), model.as_os_str(), "--json".as_ref()]).json();
    assert_eq!(json["metadata"]["general.architecture"], "qwen35");
    assert_eq!(json["bytes"], std::fs::metadata(&model).unwrap().len());
    let tensors = json["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|tensor| tensor["name"] == "token_embd.weight"));
    let words = tandem(["model".as_ref(), "inspect".as_ref(), model.as_os_str()]);
    assert!(words.out.contains("token_embd.weight") && words.out.contains("general.architecture"));
    assert!(programs().tandem.is_file());
}
