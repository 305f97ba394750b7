//! The demo model on its trace, through `tandem replay`.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use tandem_tests::{Trace, daemon, demo_model, demo_trace, heldout_trace, start, tandem};

fn steps(report: &Value) -> &Vec<Value> {
    report["steps"].as_array().unwrap()
}

fn texts(report: &Value) -> Vec<&str> {
    steps(report).iter().map(|step| step["text"].as_str().unwrap()).collect()
}

fn replay(trace: &Path, extra: &[&str]) -> Value {
    let mut arguments: Vec<std::ffi::OsString> = vec!["replay".into(), trace.into(), "--json".into()];
    arguments.extend(extra.iter().map(Into::into));
    if !extra.contains(&"--socket") {
        arguments.extend(["--model".into(), demo_model().into()]);
    }
    tandem(arguments).json()
}

fn number(step: &Value, key: &str) -> f64 {
    step[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", step[key]))
}

#[test]
fn the_demo_model_answers_its_trace() {
    let report = replay(&demo_trace(), &[]);
    let all = steps(&report);
    assert_eq!(all.len(), Trace::read(&demo_trace()).lines.len());
    let expected = all.iter().filter(|step| step["expected"] == true).count();
    println!("{expected} of {} answers as recorded", all.len());
    assert!(expected * 100 >= all.len() * 95, "only {expected} of {} answers as recorded", all.len());
    for step in all {
        assert_eq!(step["valid"], true, "line {} is invalid: {}", step["line"], step["text"]);
        // What the numbers mean, in relation to each other.
        let n = |key| number(step, key);
        assert_eq!(n("new"), n("prompt") - n("restored"), "line {}", step["line"]);
        assert!(n("restored") <= n("shared") && n("shared") <= n("prompt"), "line {}", step["line"]);
        assert!(n("passes") >= 1.0 && n("decode_tokens") >= 1.0 && n("accepted") <= n("drafted"));
        assert!(n("decode_passes") <= n("decode_tokens") && n("ms") >= n("prefill_ms"));
        assert!(step["saves"].is_u64() && n("decode_ms") >= 0.0);
    }
    let mean = |key: &str| all.iter().map(|step| number(step, key)).sum::<f64>() / all.len() as f64;
    for key in ["prompt", "shared", "restored", "new", "passes", "saves", "decode_tokens", "ms"] {
        assert!((mean(key) - number(&report["mean"], key)).abs() < 1e-6, "mean of {key}");
    }
    let bound = report["kv_bound"].as_f64().unwrap();
    assert!((bound - (mean("prompt") - mean("shared"))).abs() < 1e-6);
    assert!(bound <= mean("new"), "nothing can be below the bound");
    assert!(mean("restored") > 0.0, "nothing was reused");
    let kinds = |what: &str| -> f64 {
        ["schema", "lookup", "mtp"].iter().map(|kind| mean(&format!("{what}_{kind}"))).sum()
    };
    for what in ["drafted", "accepted"] {
        assert!((mean(what) - kinds(what)).abs() < 1e-6, "{what} is not the sum of its kinds");
    }
    let passes = mean("decode_passes") / mean("decode_tokens");
    assert!(passes <= 1.0 / 3.0, "{passes:.3} passes a token");
}

#[test]
fn two_clients_at_once_get_the_answers_of_one() {
    let trace = Trace::read(&demo_trace());
    let folder = tempfile::tempdir().unwrap();
    let agents = trace.agents();
    assert_eq!(agents.len(), 2, "{agents:?}");
    let file = |agent: &String| {
        let file = folder.path().join(agent);
        std::fs::write(&file, trace.of_agent(agent)).unwrap();
        file
    };
    let files: Vec<_> = agents.iter().map(file).collect();
    // Each alone with a daemon of its own: what one app left there helps the next.
    let alone: Vec<Value> = files.iter().map(|file| replay(file, &[])).collect();
    let (daemon, _client) = daemon(["--model".as_ref(), demo_model().as_os_str()]);
    let socket = daemon.socket().to_str().unwrap();
    let run = |file: &std::path::PathBuf| {
        let arguments = ["replay", file.to_str().unwrap(), "--json", "--socket", socket];
        start(arguments, |_| {})
    };
    let apps: Vec<_> = files.iter().map(run).collect();
    for (app, alone) in apps.into_iter().zip(&alone) {
        let output = app.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let together: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(texts(&together), texts(alone));
    }
    daemon.stop().unwrap();
}

#[test]
fn forced_answers_are_the_recorded_ones() {
    let report = replay(&demo_trace(), &["--force-expected", "--limit", "9"]);
    let recorded = Trace::read(&demo_trace());
    assert_eq!(steps(&report).len(), 9);
    for (step, line) in steps(&report).iter().zip(&recorded.requests) {
        assert_eq!(step["text"], line["expect"]);
        assert_eq!(step["expected"], true);
    }
}

#[test]
fn answers_on_unseen_episodes_satisfy_their_schemas() {
    let report = replay(&heldout_trace(), &[]);
    for step in steps(&report) {
        assert_eq!(step["valid"], true, "line {}: {}", step["line"], step["text"]);
    }
    println!("{} of the unseen answers as recorded", report["mean"]["expected"]);
}

#[test]
fn a_persons_report_has_a_line_a_step_and_a_summary() {
    let run = tandem([
        "replay".as_ref(),
        demo_trace().as_os_str(),
        "--limit".as_ref(),
        "3".as_ref(),
        "--model".as_ref(),
        demo_model().as_os_str(),
    ]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines.len(), 1 + 3 + 4, "{}", run.out);
    assert!(lines[5].starts_with("3 requests;"), "{}", run.out);
    assert!(lines[6].contains("KV bound"), "{}", run.out);
    assert!(lines[7].contains("schema") && lines[7].contains("MTP"), "{}", run.out);
}

#[test]
fn a_model_with_a_draft_matrix_answers_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let trimmed = folder.path().join("trimmed.gguf");
    let trim = tandem([
        "model".as_ref(),
        "trim-draft".as_ref(),
        demo_model().as_os_str(),
        trimmed.as_os_str(),
        "--rows".as_ref(),
        "900".as_ref(),
        "--corpus".as_ref(),
        demo_trace().as_os_str(),
        heldout_trace().as_os_str(),
    ]);
    assert_eq!(trim.code, Some(0), "{}", trim.err);
    assert!(trim.out.contains("900 rows"), "{}", trim.out);
    let inspected =
        tandem(["model".as_ref(), "inspect".as_ref(), trimmed.as_os_str(), "--json".as_ref()]).json();
    assert_eq!(inspected["metadata"]["tandem.draft.ids"]["length"], 900);
    assert_eq!(inspected["metadata"]["tandem.draft.type"], "Q8_0");
    let replay = |model: &Path| {
        let arguments = ["replay".into(), demo_trace().into_os_string(), "--json".into(), "--limit".into()];
        tandem(arguments.into_iter().chain(["6".into(), "--model".into(), model.into()])).json()
    };
    let (with, without) = (replay(&trimmed), replay(&demo_model()));
    assert_eq!(texts(&with), texts(&without));
    assert!(number(&with["mean"], "drafted_mtp") > 0.0);
    tandem([
        "model".as_ref(),
        "trim-draft".as_ref(),
        demo_model().as_os_str(),
        trimmed.as_os_str(),
        "--rows".as_ref(),
        "9".as_ref(),
    ])
    .failed(2, &["9 rows are too few"]);
}
