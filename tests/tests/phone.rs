//! The whole daemon on a phone's DSP, for which a stand-in stands (`hexagon/dsp/test/phone/`): the
//! answers of the other devices, and an error that names the remedy where there is no phone.
//! Without `cargo xtask hexagon` the tests that need it are listed as ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tandem_tests::{Trace, demo_model, demo_trace, golden, programs};

/// Folder of `cargo xtask hexagon`.
fn built() -> PathBuf {
    programs().tandemd.parent().and_then(Path::parent).unwrap().join("hexagon")
}

/// Runs `tandem` with a phone: its driver's library and the settings beside it lie in `folder`.
fn on_phone(folder: &Path, arguments: &[&str]) -> Output {
    let driver = folder.join("libcdsprpc.so");
    std::fs::copy(built().join("libcdsprpc.so"), &driver).unwrap();
    let program = built().join("tandem-phone-host");
    std::fs::write(folder.join("phone.conf"), format!("program {}\n", program.display())).unwrap();
    let mut command = Command::new(&programs().tandem);
    command.args(arguments).env("TANDEM_CDSPRPC", driver).env("TANDEM_HEXAGON", built());
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One request of the demo trace, prefill, drafts and schema included.
fn a_request_is_answered_as_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::read(&demo_trace());
    let shortest = trace.lines.iter().min_by_key(|line| line.len()).unwrap();
    let file = folder.path().join("one.jsonl");
    std::fs::write(&file, format!("{shortest}\n")).unwrap();
    let replay = |device: &str| {
        let words = [
            "replay",
            file.to_str().unwrap(),
            "--json",
            "--device",
            device,
            "--model",
            demo_model().to_str().unwrap(),
        ]
        .map(str::to_owned);
        let report = json(&on_phone(folder.path(), &words.each_ref().map(String::as_str)));
        report["steps"][0].clone()
    };
    let (phone, cpu) = (replay("hexagon"), replay("cpu"));
    assert!(!phone["text"].as_str().unwrap().is_empty());
    for what in ["text", "prompt", "new", "passes", "decode_tokens"] {
        assert_eq!(phone[what], cpu[what], "{what}");
    }
}

fn a_machine_without_the_driver_is_told_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(&programs().tandemd);
    command.args(["--device", "hexagon", "--socket"]).arg(folder.path().join("s"));
    command.arg("--model").arg(golden("qwen35-a"));
    let output = command.env("TANDEM_CDSPRPC", folder.path().join("libcdsprpc.so")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("TANDEM_CDSPRPC") && text.contains("--device cpu"),
        "{text}"
    );
}

fn main() {
    let here = ["libcdsprpc.so", "tandem-phone-host", "phone/libtandem-dsp-v73.so"]
        .iter()
        .all(|file| built().join(file).exists());
    if !here {
        eprintln!("note: `cargo xtask hexagon` has built nothing; the phone's test is NOT RUN");
    }
    let tests: [(&str, bool, fn()); 2] = [
        ("a_request_is_answered_as_on_the_cpu", here, a_request_is_answered_as_on_the_cpu),
        (
            "a_machine_without_the_driver_is_told_the_remedy",
            true,
            a_machine_without_the_driver_is_told_the_remedy,
        ),
    ];
    let trials = tests.map(|(name, here, test)| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trial.with_ignored_flag(!here)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}
