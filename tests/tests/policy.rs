//! The policy author's bench, and a daemon that runs a policy from a file.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tandem_tests::{daemon, demo_model, demo_trace, eventually, root, signal, start, tandem, tandemd};

fn component(name: &str) -> PathBuf {
    root().join("policies/built").join(format!("{name}.wasm"))
}

fn simulate(extra: &[&str]) -> tandem_tests::Finished {
    let (trace, model) = (demo_trace(), demo_model());
    let fixed = ["policy", "simulate", trace.to_str().unwrap(), "--tokenizer", model.to_str().unwrap()];
    tandem(fixed.iter().chain(extra))
}

/// The keys that both a replay and a simulation tell of a request.
fn counts(report: &Value) -> Vec<Vec<u64>> {
    let keys = ["prompt", "shared", "restored", "new", "passes", "saves"];
    let step = |step: &Value| keys.iter().map(|key| step[*key].as_u64().unwrap()).collect();
    report["steps"].as_array().unwrap().iter().map(step).collect()
}

#[test]
fn a_replay_of_forced_answers_counts_what_a_simulation_does() {
    let (trace, model) = (demo_trace(), demo_model());
    for (policy, switch) in [("anchor", "in_pass_saves=on"), ("sparse", "in_pass_saves=off")] {
        let replay = tandem([
            "replay",
            trace.to_str().unwrap(),
            "--json",
            "--force-expected",
            "--limit",
            "30",
            "--model",
            model.to_str().unwrap(),
            "--set",
            &format!("placement={policy}"),
            "--set",
            switch,
        ]);
        let simulated = simulate(&["--json", "--policy", policy, "--set", switch]).json();
        let (replayed, simulated) = (counts(&replay.json()), counts(&simulated["policies"][0]));
        assert_eq!(replayed.len(), 30);
        assert_eq!(replayed, simulated[..30], "{policy}, {switch}");
    }
}

#[test]
fn a_simulation_reports_as_table_json_and_picture_and_sweeps() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("demo.svg");
    let file = component("divergence");
    let policies = ["--policy", "anchor", "--policy", file.to_str().unwrap(), "--policy", "divergence"];
    let report = simulate(&[&policies[..], &["--json", "--svg", picture.to_str().unwrap()]].concat()).json();
    let all = report["policies"].as_array().unwrap();
    assert_eq!(all.len(), 3);
    for policy in all {
        for key in ["new", "passes", "saves", "bytes", "predicted_ms"] {
            assert!(policy[key].as_f64().unwrap() >= 0.0, "{key}: {policy}");
        }
        assert!(policy["new"].as_f64() >= report["kv_bound"].as_f64());
    }
    // The file is the built-in one's component.
    assert_eq!(all[1]["steps"], all[2]["steps"]);
    let picture = std::fs::read_to_string(picture).unwrap();
    let bars = all[0]["steps"].as_array().unwrap().len();
    assert!(picture.starts_with("<svg") && picture.matches("<rect").count() > 3 * bars);
    let table = simulate(&["--policy", "anchor"]);
    assert!(table.out.contains("KV bound") && table.out.contains("anchor"), "{}", table.out);
    let sweep = simulate(&["--policy", "anchor", "--sweep", "checkpoints", "--json"]).json();
    let new: Vec<f64> =
        sweep["policies"].as_array().unwrap().iter().map(|p| p["new"].as_f64().unwrap()).collect();
    assert!(new.len() > 4 && new[0] > *new.last().unwrap(), "{new:?}");
    simulate(&["--sweep", "nothing"]).failed(2, &["nothing", "threshold", "checkpoints", "cache"]);
    simulate(&["--policy", "anchr"]).failed(2, &["anchr", "divergence"]);
}

#[test]
fn a_trace_with_a_broken_line_is_refused_by_the_lines_number() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("broken.jsonl");
    let good = std::fs::read_to_string(demo_trace()).unwrap().lines().next().unwrap().to_owned();
    let model = demo_model();
    for broken in ["{", "[]", r#"{"request":{"messages":"x"},"expect":"y"}"#, r#"{"expect":"y"}"#] {
        std::fs::write(&trace, format!("{good}\n\n{broken}\n{good}\n")).unwrap();
        let trace = trace.to_str().unwrap();
        let run = tandem(["policy", "simulate", trace, "--tokenizer", model.to_str().unwrap()]);
        run.failed(2, &["broken.jsonl", "line 3"]);
    }
}

#[test]
fn a_component_is_checked_and_what_is_none_is_refused_with_the_reason() {
    let file = component("chat");
    let report = tandem(["policy", "check", file.to_str().unwrap(), "--json"]).json();
    assert!(report["cases"].as_array().unwrap().iter().all(|case| case["failure"].is_null()), "{report}");
    assert!(report["most_fuel"].as_u64().unwrap() > 0);
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.wasm");
    let model = demo_model();
    let component = std::fs::read(&file).unwrap();
    let half = &component[..component.len() / 2];
    for (bytes, word) in [
        (&b"hello"[..], "not WebAssembly"),
        (b"\0asm\x01\0\0\0", "core Wasm module"),
        (half, "valid component"),
    ] {
        std::fs::write(&bad, bytes).unwrap();
        let path = bad.to_str().unwrap();
        tandem(["policy", "check", path]).failed(2, &["bad.wasm", word]);
        let daemon = tandemd(["--model", model.to_str().unwrap(), "--placement", path]);
        daemon.failed(2, &["bad.wasm", word]);
    }
    tandemd(["--model", model.to_str().unwrap(), "--placement", "best"]).failed(2, &["best", "divergence"]);
}

#[test]
fn a_daemon_runs_a_policy_from_a_file_and_tells_what_its_calls_did() {
    let (model, file) = (demo_model(), component("divergence"));
    let (daemon, client) =
        daemon(["--model".as_ref(), model.as_os_str(), "--placement".as_ref(), file.as_os_str()]);
    let socket = daemon.socket().to_str().unwrap();
    let trace = demo_trace();
    let replay = |extra: &[&str]| {
        let fixed = ["replay", trace.to_str().unwrap(), "--json", "--limit", "8"];
        tandem(fixed.iter().chain(extra)).json()
    };
    let served = replay(&["--socket", socket]);
    let built_in = replay(&["--model", model.to_str().unwrap(), "--placement", "divergence"]);
    assert_eq!(counts(&served), counts(&built_in));
    let status = client.status().unwrap();
    let policy = &status["policies"][0];
    assert_eq!(policy["name"], file.to_str().unwrap());
    // A `place` and an `observe` a request.
    assert!(policy["calls"].as_u64().unwrap() >= 16, "{policy}");
    for key in ["traps", "timeouts", "nonsense", "failed_starts", "stood_in"] {
        assert_eq!(policy[key], 0, "{key}: {policy}");
    }
    assert_eq!((&policy["quarantined"], &policy["loads"]), (&Value::Bool(false), &Value::from(1)));
    drop(client);
    daemon.stop().unwrap();
}

#[test]
fn reloads_of_the_policy_file_drop_no_request_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.wasm");
    let put = |bytes: &[u8]| {
        // As an installer does: no reader sees half of it.
        let partial = folder.path().join("partial");
        std::fs::write(&partial, bytes).unwrap();
        std::fs::rename(&partial, &file).unwrap();
    };
    let built = |name: &str| std::fs::read(component(name)).unwrap();
    put(&built("divergence"));
    let model = demo_model();
    let (daemon, client) =
        daemon(["--model".as_ref(), model.as_os_str(), "--placement".as_ref(), file.as_os_str()]);
    let loads = || client.status().unwrap()["policies"][0]["loads"].as_u64().unwrap();
    let (socket, trace) = (daemon.socket().to_str().unwrap(), demo_trace());
    let arguments =
        ["replay", trace.to_str().unwrap(), "--json", "--limit", "30", "--socket", socket].map(str::to_owned);
    let replay = start(arguments, |_| {});
    for (i, name) in ["chat", "anchor", "divergence"].into_iter().enumerate() {
        put(&built(name));
        signal(daemon.pid(), Signal::HUP);
        eventually("the policy is loaded again", || loads() == i as u64 + 2);
    }
    let output = replay.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert!(steps.len() == 30 && steps.iter().all(|step| step["expected"] == true), "{report}");
    put(b"\0asm\x0d\0\x01\0 half a file");
    signal(daemon.pid(), Signal::HUP);
    let one = tandem(["generate", "--socket", socket, "--prompt", "x", "--max-tokens", "2"]);
    assert_eq!(one.code, Some(0), "{}", one.err);
    assert_eq!(loads(), 4);
    let status = tandem(["status", "--socket", socket]);
    assert!(status.out.contains("policy.wasm: ") && !status.out.contains("QUARANTINED"), "{}", status.out);
    drop(client);
    daemon.stop().unwrap();
}

#[test]
fn a_cost_model_is_fitted_to_measured_requests_and_nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (measured, cost) = (folder.path().join("measured.jsonl"), folder.path().join("cost.json"));
    let write = |lines: &[String]| std::fs::write(&measured, lines.join("\n")).unwrap();
    let line = |new: u32, passes: u32, saves: u32, ms: f64| {
        format!(r#"{{"new":{new},"passes":{passes},"saves":{saves},"prefill_ms":{ms}}}"#)
    };
    let calibrate = || {
        let (measured, cost) = (measured.to_str().unwrap(), cost.to_str().unwrap());
        tandem(["policy", "calibrate", measured, "--out", cost, "--json"])
    };
    let phone = |i: u32| {
        let (new, passes, saves) = (80 + 37 * i, 1 + i / 5, i % 4);
        line(new, passes, saves, 1.3 * f64::from(new) + 86.0 * f64::from(passes) + 2.0 * f64::from(saves))
    };
    write(&(0..16).map(phone).collect::<Vec<_>>());
    let fit = calibrate().json();
    assert!((fit["per_token_ns"].as_f64().unwrap() - 1.3e6).abs() < 1e3, "{fit}");
    assert!((fit["per_save_ns"].as_f64().unwrap() - 2e6).abs() < 1e4, "{fit}");
    let predicted = |extra: &[&str]| {
        let report = simulate(&[&["--policy", "anchor", "--json"], extra].concat()).json();
        report["policies"][0]["predicted_ms"].as_f64().unwrap()
    };
    // The fit is the paper's phone, which is the default.
    let fitted = predicted(&["--cost", cost.to_str().unwrap()]);
    assert!((fitted - predicted(&[])).abs() < 0.1, "{fitted}");
    for (lines, words) in [
        (vec!["{".to_owned()], vec!["line 1"]),
        (vec![phone(1); 3], vec!["too few"]),
        (vec![phone(1); 12], vec!["number of tokens"]),
        ((0..12).map(|i| line(100 + 40 * i, 1, 0, -1.0)).collect(), vec!["measurement 1", "prefill_ms"]),
        ((0..12).map(|i| line(100 + 40 * i, 1, 0, f64::from(2000 - 150 * i))).collect(), vec!["explains"]),
    ] {
        write(&lines);
        calibrate().failed(2, &words);
    }
    std::fs::write(&cost, r#"{"per_token_ns":0,"per_pass_ns":0,"per_save_ns":0}"#).unwrap();
    simulate(&["--cost", cost.to_str().unwrap()]).failed(2, &["per_token_ns"]);
}

#[test]
fn a_new_policy_is_a_crate_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("my-policy");
    let new = |name: &str| tandem(["policy", "new", name, "--path", made.to_str().unwrap()]);
    new("My Policy").failed(2, &["My Policy"]);
    let told = new("my-policy");
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.out.contains("tandem policy build"), "{}", told.out);
    assert!(made.join("src/lib.rs").exists() && made.join("contract/wit/1.0.0/tandem-policy.wit").exists());
    new("my-policy").failed(2, &["exists"]);
    tandem(["policy", "build", folder.path().to_str().unwrap()]).failed(2, &["Cargo.toml"]);
}

/// Whether this machine can build policies.
fn wasm_target() -> bool {
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = String::from_utf8(sysroot.stdout).unwrap();
    Path::new(sysroot.trim()).join("lib/rustlib/wasm32-unknown-unknown/lib").is_dir()
}

#[test]
#[ignore = "building a policy to Wasm takes minutes the first time: cargo xtask test --long"]
fn a_new_policy_builds_passes_its_check_and_scores() {
    if !wasm_target() {
        println!("NOT RUN: no Wasm target (rustup target add wasm32-unknown-unknown)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("my-policy");
    let done = |run: tandem_tests::Finished| assert_eq!(run.code, Some(0), "{}", run.err);
    done(tandem(["policy", "new", "my-policy", "--path", made.to_str().unwrap()]));
    done(tandem(["policy", "build", made.to_str().unwrap()]));
    let built = made.join("my-policy.wasm");
    done(tandem(["policy", "check", built.to_str().unwrap()]));
    let report = simulate(&["--policy", built.to_str().unwrap(), "--json"]).json();
    assert!(report["policies"][0]["saves"].as_f64().unwrap() > 0.0);
}
