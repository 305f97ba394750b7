//! How much memory the daemon takes on a model of a real shape.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use tandem_sdk::Request;
use tandem_tests::{Service, tandem};

/// Half a GB of random weights, written and read: a long run's test.
#[test]
#[ignore = "writes a model of half a GB; runs with --include-ignored"]
fn the_peak_is_at_most_1_3_times_the_file_and_what_status_accounts_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("0.8b.gguf");
    let mut arguments = vec!["model", "synth", "--arch", "qwen35", "--size", "0.8b", "--quant", "q4_0"];
    arguments.push(model.to_str().unwrap());
    assert_eq!(tandem(arguments).code, Some(0));
    let file = std::fs::metadata(&model).unwrap().len();

    let service = Service::start(&format!("model = {model:?}\ncontext = 2048\n"));
    let client = service.client("agent");
    for n in 0..3 {
        let prompt = format!("{}{n}", "Row 1 tap the button next to it. ".repeat(80));
        client.generate(Request::text(prompt).max_tokens(4)).unwrap().answer().unwrap();
    }
    let memory = client.status().unwrap()["memory"].clone();
    let of = |key: &str| memory[key].as_u64().unwrap();
    let state = of("vocabulary")
        + of("kv_used")
        + of("states")
        + of("states_free")
        + of("scratch")
        + of("prompt_cache");
    let peak = service.kib("VmHWM") << 10;
    println!("file {file}, accounted {state}, peak {peak}: {:.2} times the file", peak as f64 / file as f64);
    assert!(peak * 10 <= file * 13 + state * 10, "peak {peak}, file {file}, accounted {memory}");
}
