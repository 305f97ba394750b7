//! The whole daemon on the NPU's program under emulation: the CPU device's answers, and errors
//! that name the remedy. Without `cargo xtask hexagon` the tests that need it are listed as
//! ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use libtest_mimic::{Arguments, Trial};
use rustix::process::Signal;
use safetensors::SafeTensors;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tandem_sdk::{Client, Error, FailureCode, PrivateDaemon, PrivateError, Request};
use tandem_tests::{Trace, demo_model, demo_trace, golden, programs, signal, tandem};

/// Largest difference of a logit on F32 weights.
const TOLERANCE: f32 = 5e-2;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// All positions' logits of a golden model's prompts on a device.
fn logits(model: &str, device: &str, folder: &Path, built: &Path, switch: &str) -> Vec<Vec<f32>> {
    let (tokens, out) = (folder.join("ids.json"), folder.join("out.safetensors"));
    let bytes = std::fs::read(golden(model).with_extension("golden.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |prompt: i32| -> Option<Vec<i64>> {
        let tensor = recorded.tensor(&format!("p{prompt}.input_ids")).ok()?;
        Some(tensor.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
    };
    let prompts: Vec<Vec<i64>> = (0..).map_while(ids).collect();
    assert!(prompts.len() >= 2, "{model}: {} prompts", prompts.len());
    std::fs::write(&tokens, serde_json::to_string(&prompts).unwrap()).unwrap();
    let mut command = std::process::Command::new(&programs().tandem);
    command.args([
        "generate",
        "--all-positions",
        "--set",
        "kv_type=f32",
        "--set",
        switch,
        "--device",
        device,
    ]);
    command.arg("--model").arg(golden(model)).arg("--tokens").arg(tokens).arg("--logits").arg(&out);
    let run = command.env("TANDEM_HEXAGON", built).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let bytes = std::fs::read(out).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    (0..prompts.len()).map(|i| floats(tensors.tensor(&format!("logits.{i}")).unwrap().data())).collect()
}

/// Against the goldens within the bound, and against the reference device, whose roundings the
/// soft float of the emulator's program has, to the bit.
fn logits_equal_the_goldens() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["qwen35-a", "qwen35-b"] {
        let of = |device| logits(model, device, folder.path(), &built(), "speculate=on");
        let found = of("emulator");
        let bytes = std::fs::read(golden(model).with_extension("golden.safetensors")).unwrap();
        let recorded = SafeTensors::deserialize(&bytes).unwrap();
        for (prompt, found) in found.iter().enumerate() {
            let tensor = recorded.tensor(&format!("p{prompt}.logits")).unwrap();
            let width = tensor.shape()[1];
            let positions = recorded.tensor(&format!("p{prompt}.positions")).unwrap();
            let positions = positions.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
            for (row, position) in floats(tensor.data()).chunks(width).zip(positions) {
                let start = usize::try_from(position).unwrap() * width;
                let pairs = found[start..start + width].iter().zip(row);
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst <= TOLERANCE, "{model}, prompt {prompt}, position {position}: off by {worst}");
            }
        }
        assert!(bits(found) == bits(of("reference")), "{model}: not the same bits");
    }
}

fn bits(all: Vec<Vec<f32>>) -> Vec<u32> {
    all.concat().into_iter().map(f32::to_bits).collect()
}

/// Prompts through the matrix unit's tiles: planned, moved and packed by the DSP's program.
fn logits_in_tiles_are_the_references() {
    let (folder, host) = (tempfile::tempdir().unwrap(), host_build());
    for model in ["qwen35-b-q4_0", "qwen35-c-q4_k_m"] {
        let of = |device, switch| bits(logits(model, device, folder.path(), host.path(), switch));
        let found = of("emulator", "prefill_products=f16_tile");
        assert!(found == of("reference", "prefill_products=f16_tile"), "{model}: not the same bits");
        assert!(found != of("emulator", "prefill_products=integer"), "{model}: tiles change nothing");
    }
}

/// Steps of a replay; `built` is the folder of the DSP's program.
fn replay(trace: &Path, device: &str, built: &Path) -> Vec<Value> {
    let mut command = std::process::Command::new(&programs().tandem);
    command.arg("replay").arg(trace).args(["--json", "--device", device, "--model"]).arg(demo_model());
    let output = command.env("TANDEM_HEXAGON", built).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["steps"].as_array().unwrap().clone()
}

/// Whole episodes of the demo trace, on the DSP's program and on the CPU. `most` episodes, of all
/// those with the fewest steps: under emulation a prompt's token costs a tenth of a second.
fn answers_are_those_of_the_cpu(built: &Path, most: usize) {
    let trace = Trace::read(&demo_trace());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("episodes.jsonl");
    let key = |line: &Value| (line["app"].clone(), line["episode"].clone());
    let mut episodes = Vec::new();
    for line in &trace.requests {
        if !episodes.contains(&key(line)) {
            episodes.push(key(line));
        }
    }
    episodes.sort_by_key(|episode| trace.requests.iter().filter(|line| key(line) == *episode).count());
    episodes.truncate(most);
    let chosen = trace.lines.iter().zip(&trace.requests).filter(|(_, line)| episodes.contains(&key(line)));
    let lines: Vec<&str> = chosen.map(|(text, _)| text.as_str()).collect();
    assert!(lines.len() >= 8, "{} episodes of {} steps", episodes.len(), lines.len());
    std::fs::write(&file, lines.join("\n")).unwrap();
    let (emulator, cpu) = (replay(&file, "emulator", built), replay(&file, "cpu", built));
    assert_eq!(emulator.len(), lines.len());
    for (ours, cpu) in emulator.iter().zip(&cpu) {
        // Not how many drafts were tried and taken: that follows what columns cost on each device.
        for what in ["text", "prompt", "restored", "new", "passes", "decode_tokens"] {
            assert_eq!(ours[what], cpu[what], "line {}: {what}", cpu["line"]);
        }
    }
}

/// Folder of `cargo xtask hexagon`.
fn built() -> PathBuf {
    programs().tandemd.parent().and_then(Path::parent).unwrap().join("hexagon")
}

fn two_episodes_are_answered_on_v73_as_on_the_cpu() {
    answers_are_those_of_the_cpu(&built(), 2);
}

/// A folder with the same sources built for this host, started by a stand-in for qemu-hexagon.
fn host_build() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let qemu = folder.path().join("qemu/usr/bin");
    std::fs::create_dir_all(&qemu).unwrap();
    std::fs::copy(built().join("tandem-dsp-host"), folder.path().join("tandem-dsp-v73")).unwrap();
    let script = qemu.join("qemu-hexagon");
    std::fs::write(&script, "#!/bin/sh\nshift 2\nexec \"$@\"\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// In a long run only.
fn the_whole_trace_is_answered_on_the_host_build_as_on_the_cpu() {
    answers_are_those_of_the_cpu(host_build().path(), usize::MAX);
}

/// A daemon of the demo model on the DSP's program in `built`.
fn emulating(built: &Path, config: &Path) -> Result<(PrivateDaemon, Client), PrivateError> {
    let mut folder = OsString::from("TANDEM_HEXAGON=");
    folder.push(built);
    let builder = PrivateDaemon::builder("env").arg(folder).arg(&programs().tandemd);
    let builder = builder.args(["--device", "emulator", "--config"]).arg(config);
    builder.arg("--model").arg(demo_model()).start()
}

/// The processes that a daemon has started.
fn children(daemon: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end while it is looked at.
        std::fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let lists: Vec<String> = tasks.filter_map(of).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// Descriptors, threads, and maps of the DSP's memory of a process.
fn belongings(pid: u32) -> [usize; 3] {
    let entries = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    [entries("fd"), entries("task"), maps.matches("tandem-dsp").count()]
}

/// Kills and stops the DSP's process in the middle of requests. In a long run a hundred times.
fn a_killed_or_stopped_dsp_costs_the_request_at_work_and_no_other() {
    let long = std::env::var_os("TANDEM_LONG").is_some();
    let (folder, rounds) = (host_build(), if long { 100 } else { 4 });
    let config = folder.path().join("tandemd.toml");
    // A stopped process is given up after a second, in which every batch of this model is done.
    std::fs::write(&config, "[session]\nbudget_s = 1\n").unwrap();
    let (daemon, client) = emulating(folder.path(), &config).unwrap();
    let short = || {
        let asked = client.generate(Request::text("screen").max_tokens(4)).unwrap();
        asked.answer().unwrap().text
    };
    let expected = short();
    let mut had = None;
    for round in 0..rounds {
        let how = if round % 4 == 3 { Signal::STOP } else { Signal::KILL };
        let dsp = children(daemon.pid());
        assert_eq!(dsp.len(), 1, "round {round}");
        let mut answer = client.generate(Request::text("tell me more").max_tokens(1900)).unwrap();
        // In its midst: after some of its tokens, or in the prompt.
        for _ in 0..round % 3 {
            assert!(answer.next_within(Duration::from_secs(300)).unwrap().is_some());
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        signal(dsp[0], how);
        let error = answer.answer().unwrap_err();
        let device = matches!(error, Error::Failed { code: FailureCode::DeviceFailed, .. });
        assert!(device && error.is_retryable(), "round {round}: {error}");
        assert_eq!(short(), expected, "round {round}");
        let have = belongings(daemon.pid());
        assert_eq!(*had.get_or_insert(have), have, "round {round}: descriptors, threads, maps");
    }
    let session = &client.status().unwrap()["session"];
    assert_eq!((&session["lost"], &session["rebuilt"]), (&rounds.into(), &rounds.into()), "{session}");
    drop(client);
    daemon.stop().unwrap();
}

fn a_dsp_that_does_not_start_gives_way_to_the_cpu_if_allowed() {
    let folder = host_build();
    std::fs::write(folder.path().join("tandem-dsp-v73"), "#!/bin/sh\nexit 3\n").unwrap();
    let start = |fallback: &str| {
        let config = folder.path().join("tandemd.toml");
        std::fs::write(&config, format!("[session]\nfallback = \"{fallback}\"\n")).unwrap();
        emulating(folder.path(), &config)
    };
    let error = start("none").expect_err("no DSP, no daemon").to_string();
    assert!(error.contains("does not serve"), "{error}");
    let (daemon, client) = start("cpu").unwrap();
    let asked = client.generate(Request::text("screen").max_tokens(4)).unwrap();
    asked.answer().unwrap();
    let status = client.status().unwrap();
    assert_eq!(
        (&status["device"]["name"], &status["session"]["wanted"]),
        (&"cpu".into(), &"emulator".into())
    );
    assert!(daemon.log().contains("the CPU runs the model"), "{}", daemon.log());
    let words = tandem(["status".as_ref(), "--socket".as_ref(), daemon.socket().as_os_str()]).out;
    assert!(words.contains("instead of emulator, which cannot be had"), "{words}");
    drop(client);
    daemon.stop().unwrap();
}

fn a_folder_without_the_program_is_told_with_the_remedy() {
    let mut command = std::process::Command::new(&programs().tandemd);
    command.args(["--device", "emulator", "--socket"]);
    let folder = tempfile::tempdir().unwrap();
    command.arg(folder.path().join("s")).arg("--model").arg(golden("qwen35-a"));
    let output = command.env("TANDEM_HEXAGON", folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("cargo xtask hexagon"), "{text}");
}

fn main() {
    let here = ["tandem-dsp-v73", "tandem-dsp-host", "qemu/usr/bin/qemu-hexagon"]
        .iter()
        .all(|file| built().join(file).exists());
    if !here {
        eprintln!("note: `cargo xtask hexagon` has built nothing; the emulator's tests are NOT RUN");
    }
    // Each with whether it is not run here, or left to a long run (which includes ignored tests).
    let tests: [(&str, bool, fn()); 7] = [
        ("logits_equal_the_goldens", !here, logits_equal_the_goldens),
        ("logits_in_tiles_are_the_references", !here, logits_in_tiles_are_the_references),
        (
            "two_episodes_are_answered_on_v73_as_on_the_cpu",
            !here,
            two_episodes_are_answered_on_v73_as_on_the_cpu,
        ),
        (
            "the_whole_trace_is_answered_on_the_host_build_as_on_the_cpu",
            true,
            the_whole_trace_is_answered_on_the_host_build_as_on_the_cpu,
        ),
        (
            "a_killed_or_stopped_dsp_costs_the_request_at_work_and_no_other",
            !here,
            a_killed_or_stopped_dsp_costs_the_request_at_work_and_no_other,
        ),
        (
            "a_dsp_that_does_not_start_gives_way_to_the_cpu_if_allowed",
            !here,
            a_dsp_that_does_not_start_gives_way_to_the_cpu_if_allowed,
        ),
        (
            "a_folder_without_the_program_is_told_with_the_remedy",
            false,
            a_folder_without_the_program_is_told_with_the_remedy,
        ),
    ];
    let trials = tests.map(|(name, ignored, test)| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trial.with_ignored_flag(ignored)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}
