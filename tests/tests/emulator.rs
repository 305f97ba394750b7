//! The whole daemon on the NPU's program under emulation: the CPU device's answers, and errors
//! that name the remedy. Without `cargo xtask hexagon` the tests that need it are listed as
//! ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use libtest_mimic::{Arguments, Trial};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tandem_tests::{Trace, demo_model, demo_trace, golden, programs, tandem};

/// Largest difference of a logit on F32 weights.
const TOLERANCE: f32 = 5e-2;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// All positions' logits of a golden model's prompts on a device.
fn logits(model: &str, device: &str, folder: &Path) -> Vec<Vec<f32>> {
    let (tokens, out) = (folder.join("ids.json"), folder.join("out.safetensors"));
    let bytes = std::fs::read(golden(model).with_extension("golden.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |prompt: i32| -> Vec<i64> {
        let tensor = recorded.tensor(&format!("p{prompt}.input_ids")).unwrap();
        tensor.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    };
    let prompts: Vec<Vec<i64>> = (0..3).map(ids).collect();
    std::fs::write(&tokens, serde_json::to_string(&prompts).unwrap()).unwrap();
    let words = ["generate", "--all-positions", "--set", "kv_type=f32", "--device", device, "--model"];
    let mut arguments: Vec<PathBuf> = words.map(PathBuf::from).into();
    arguments.extend([golden(model), "--tokens".into(), tokens, "--logits".into(), out.clone()]);
    let run = tandem(arguments);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let bytes = std::fs::read(out).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    (0..3).map(|i| floats(tensors.tensor(&format!("logits.{i}")).unwrap().data())).collect()
}

/// Against the goldens within the bound, and against the reference device, whose roundings the
/// soft float of the emulator's program has, to the bit.
fn logits_equal_the_goldens() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["qwen35-a", "qwen35-b"] {
        let found = logits(model, "emulator", folder.path());
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
        let bits = |all: Vec<Vec<f32>>| all.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(found) == bits(logits(model, "reference", folder.path())), "{model}: not the same bits");
    }
}

fn replay(trace: &Path, device: &str) -> Vec<Value> {
    let words: [&std::ffi::OsStr; 7] = [
        "replay".as_ref(),
        trace.as_os_str(),
        "--json".as_ref(),
        "--device".as_ref(),
        device.as_ref(),
        "--model".as_ref(),
        demo_model().leak().as_os_str(),
    ];
    let report = tandem(words).json();
    report["steps"].as_array().unwrap().clone()
}

/// Two episodes of the demo trace, one an agent.
fn two_episodes_get_the_answers_of_the_cpu() {
    let trace = Trace::read(&demo_trace());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.jsonl");
    let key = |line: &Value| (line["app"].clone(), line["episode"].clone());
    let mut episodes = Vec::new();
    for line in &trace.requests {
        if !episodes.contains(&key(line)) {
            episodes.push(key(line));
        }
    }
    episodes.truncate(2);
    let chosen = trace.lines.iter().zip(&trace.requests).filter(|(_, line)| episodes.contains(&key(line)));
    let lines: Vec<&str> = chosen.map(|(text, _)| text.as_str()).collect();
    assert!(lines.len() >= 2, "two episodes of {} steps", lines.len());
    std::fs::write(&file, lines.join("\n")).unwrap();
    let (emulator, cpu) = (replay(&file, "emulator"), replay(&file, "cpu"));
    assert_eq!(emulator.len(), lines.len());
    for (ours, cpu) in emulator.iter().zip(&cpu) {
        for what in ["text", "prompt", "restored", "new", "passes", "decode_tokens", "accepted"] {
            assert_eq!(ours[what], cpu[what], "line {}: {what}", cpu["line"]);
        }
    }
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
    let target = programs().tandemd.parent().and_then(Path::parent).map(|folder| folder.join("hexagon"));
    let built = |file: &str| target.as_ref().is_some_and(|folder| folder.join(file).exists());
    let here = built("tandem-dsp-v73") && built("qemu/usr/bin/qemu-hexagon");
    if !here {
        eprintln!("note: `cargo xtask hexagon` has built nothing; the emulator's tests are NOT RUN");
    }
    let tests: [(&str, bool, fn()); 3] = [
        ("logits_equal_the_goldens", true, logits_equal_the_goldens),
        ("two_episodes_get_the_answers_of_the_cpu", true, two_episodes_get_the_answers_of_the_cpu),
        (
            "a_folder_without_the_program_is_told_with_the_remedy",
            false,
            a_folder_without_the_program_is_told_with_the_remedy,
        ),
    ];
    let trials = tests.map(|(name, emulated, test)| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trial.with_ignored_flag(emulated && !here)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}
