//! The policies on the shared traces of phone GUI agents.

use std::io::Read;
use std::path::PathBuf;
use tandem_engine::gguf::Gguf;
use tandem_lab::simulate::{Outcome, Settings, kv_bound, simulate};
use tandem_lab::trace::{Reader, Request};

/// As Qwen3.5's own template ends a prompt when thinking is off.
const THINK_TEMPLATE: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif -%}";

/// A trace and what is known of it: the published KV bound (it counts the
/// first request, the lab's does not) and `divergence`'s published distance.
struct Known {
    file: &'static str,
    bound: f64,
    divergence: Option<f64>,
    limit: f64,
}

const TRACES: [Known; 5] = [
    Known { file: "agent-text.jsonl", bound: 302.68, divergence: Some(17.0), limit: 6.0 },
    Known { file: "agent-system.jsonl", bound: 288.24, divergence: Some(28.0), limit: 6.0 },
    Known { file: "chat-growing.jsonl", bound: 282.76, divergence: Some(36.0), limit: 6.0 },
    Known { file: "rules-last.jsonl", bound: 540.03, divergence: Some(21.0), limit: 9.0 },
    Known { file: "two-apps.jsonl", bound: 280.28, divergence: None, limit: 8.0 },
];

fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TANDEM_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")),
        PathBuf::from,
    );
    let path = root.join(path);
    if !path.exists() {
        eprintln!("NOT RUN: {} does not exist (set TANDEM_SHARED)", path.display());
        return None;
    }
    Some(path)
}

fn reader() -> Option<Reader> {
    let file = std::fs::File::open(shared("fixtures/tokenizer/qwen35-vocab.gguf.zst")?).expect("readable");
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(file).expect("zstd").read_to_end(&mut bytes).expect("unpacks");
    let gguf = Gguf::from_bytes(&bytes).expect("a GGUF file");
    Some(Reader::new(&gguf).expect("a vocabulary"))
}

fn run(policy: &str, trace: &[Request], settings: &Settings) -> Outcome {
    let policy = tandem_policies::placement(policy).expect("built in");
    simulate(policy.name, trace, settings, &policy.native)
}

#[test]
fn anchor_stays_within_its_distance_of_the_bound_and_no_rule_beats_it() {
    let Some(reader) = reader() else { return };
    let think = reader_with_think();
    for known in TRACES {
        let path = shared(&format!("traces/{}", known.file)).expect("beside the vocabulary");
        for (template, reader) in [("file's", &reader), ("think", &think)] {
            let trace = reader.read(&path).expect("a trace");
            let bound = kv_bound(&trace);
            let settings = Settings::default();
            let over = |policy| run(policy, &trace, &settings).new - bound;
            let anchor = over("anchor");
            println!(
                "{} ({template} template): bound {bound:.1}, anchor {anchor:+.1}, divergence {:+.1}, chat {:+.1}, marconi {:+.1}, sparse {:+.1}",
                known.file,
                over("divergence"),
                over("chat"),
                over("marconi"),
                over("sparse")
            );
            assert!(anchor <= known.limit, "{}: {anchor}", known.file);
            assert!(anchor <= over("divergence") && anchor <= over("chat"), "{}", known.file);
            if template == "think" {
                assert!((bound - known.bound).abs() < 0.01, "{}: bound {bound}", known.file);
            }
            if let Some(published) = known.divergence {
                assert!(
                    (over("divergence") - published).abs() < 0.5,
                    "{}: {}",
                    known.file,
                    over("divergence")
                );
            }
        }
    }
}

fn reader_with_think() -> Reader {
    reader().expect("looked up before").with_template(THINK_TEMPLATE).expect("a template")
}

#[test]
fn saves_take_no_pass_of_their_own() {
    let Some(reader) = reader() else { return };
    let path = shared("traces/agent-system.jsonl").expect("beside the vocabulary");
    let trace = reader.read(&path).expect("a trace");
    let settings = Settings::default();
    let anchor = run("anchor", &trace, &settings);
    assert!(anchor.saves > 0.0);
    for step in &anchor.steps {
        assert!(step.passes <= step.new.div_ceil(512), "{step:?}");
        assert!(step.saves <= settings.saves && step.bytes <= 8 * settings.checkpoint_bytes, "{step:?}");
    }
    let mut ends = settings;
    ends.planner.in_pass_saves = false;
    assert!(run("anchor", &trace, &ends).passes > anchor.passes + 0.5);
}

#[test]
fn a_broken_line_is_named_by_its_number() {
    let Some(reader) = reader() else { return };
    let dir = std::env::temp_dir().join(format!("tandem-lab-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = dir.join("broken.jsonl");
    let good = r#"{"app":"a","episode":"e","step":0,"request":{"messages":[{"role":"user","content":"hi"}]},"expect":"ok"}"#;
    std::fs::write(&path, format!("{good}\n\n{{\"request\":3}}\n")).expect("written");
    let message = reader.read(&path).expect_err("line 3 is broken").to_string();
    assert!(message.contains("line 3"), "{message}");
    std::fs::write(&path, "\n").expect("written");
    assert!(reader.read(&path).expect_err("nothing there").to_string().contains("no request"));
    std::fs::remove_dir_all(&dir).expect("removed");
}
