//! Model files for drafting: with a draft matrix, with a broken one, without an MTP block; and
//! schemas that force text for which the vocabulary has no tokens but bytes.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod trace_requests;

use serde_json::Value;
use std::path::{Path, PathBuf};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions, LoadError};
use tandem_engine::gguf::{Gguf, GgufWriter};
use tandem_engine::model::DraftMatrix;
use tandem_engine::model::draft_matrix::{IDS_KEY, TYPE_KEY};
use tandem_engine::request::{EngineError, Event, JobId, Request, Stats};
use tandem_engine::switches::Switches;
use tandem_engine::trim_draft::{TrimDraft, TrimError};
use tandem_policy_divergence::Divergence;
use trace_requests::steps;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo() -> PathBuf {
    file("tests/model/demo.gguf")
}

/// A file of this test process, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Scratch(std::env::temp_dir().join(format!("tandem-{}-{name}.gguf", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(path: &Path, settings: &[&str]) -> Result<Engine, LoadError> {
    let mut switches = Switches::default();
    settings.iter().for_each(|s| switches.set(s).unwrap());
    let device = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("the CPU device");
    Engine::open(path, Box::new(device), EngineOptions { switches, ..EngineOptions::default() })
}

fn trace(count: usize) -> (Vec<Request>, Vec<String>) {
    steps("demo.jsonl").into_iter().step_by(12).take(count).map(|step| (step.request, step.expect)).unzip()
}

fn ask(engine: &mut Engine, requests: &[Request]) -> Vec<Result<(String, Stats), EngineError>> {
    let slot = engine.open_slot(0, Box::new(Divergence::default())).expect("a slot");
    let mut all = Vec::new();
    for request in requests {
        engine.submit(slot, JobId(0), request).expect("accepted");
        let (mut text, mut end, mut events) = (String::new(), None, Vec::new());
        while engine.has_work() {
            engine.step(&mut events);
            for (.., event) in events.drain(..) {
                match event {
                    Event::Token(token) => text.push_str(&token.text),
                    Event::Done { stats, .. } => end = Some(Ok((text.clone(), stats))),
                    Event::Failed(error) => end = Some(Err(error)),
                }
            }
        }
        all.push(end.expect("an end"));
    }
    all
}

fn texts(answers: Vec<Result<(String, Stats), EngineError>>) -> (Vec<String>, u32) {
    let mut drafted = 0;
    let text = |a: Result<(String, Stats), EngineError>| {
        let (text, stats) = a.expect("an answer");
        drafted += stats.drafts.mtp.drafted;
        text
    };
    (answers.into_iter().map(text).collect(), drafted)
}

/// A copy of the demo model: keys and tensors that `keep` accepts, more keys, more bytes.
fn rewrite(to: &Path, keep: impl Fn(&str) -> bool, more: impl Fn(&mut GgufWriter), bytes: &[u8]) {
    let gguf = Gguf::open(demo()).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_keys(&gguf, &keep);
    more(&mut writer);
    for t in gguf.tensors().filter(|t| keep(&t.name)) {
        writer.tensor(&t.name, t.dtype, &t.shape).unwrap();
    }
    let mut out = Vec::new();
    writer.write(&mut out, |name, out| out.write_all(gguf.data(gguf.tensor(name).unwrap()))).unwrap();
    out.extend(bytes);
    std::fs::write(to, out).unwrap();
}

#[test]
fn a_trimmed_file_answers_the_same_and_drafts_from_fewer_rows() {
    let (requests, expected) = trace(8);
    let trimmed = Scratch::new("trimmed");
    let corpus = expected.clone();
    let written = TrimDraft { rows: 700, corpus: &corpus }.write(&demo(), &trimmed.0).expect("written");
    assert_eq!(written.rows, 700);
    let (before, after) = (Gguf::open(demo()).unwrap(), Gguf::open(&trimmed.0).unwrap());
    let head = before.tensor("token_embd.weight").unwrap();
    assert_eq!(written.matrix as usize, 700 * head.bytes / head.rows());
    for (a, b) in before.tensors().zip(after.tensors()) {
        assert_eq!((&a.name, before.data(a)), (&b.name, after.data(b)));
    }
    let matrix = DraftMatrix::read(&after, head.row() as u32, head.rows() as u32).unwrap().expect("a matrix");
    let file = std::fs::read(&trimmed.0).unwrap();
    for (i, id) in matrix.ids.iter().enumerate() {
        let row = head.bytes / head.rows();
        let at = matrix.offset as usize + i * row;
        assert_eq!(file[at..at + row], before.data(head)[*id as usize * row..][..row], "row {i}");
    }
    let mut engine = open(&trimmed.0, &[]).expect("loads");
    for id in engine.tokenizer().encode(&corpus.concat(), false).unwrap() {
        assert!(matrix.ids.contains(&id), "token {id} of the corpus");
    }
    assert!(engine.executor().draft_ids().is_some());
    let (answers, drafted) = texts(ask(&mut engine, &requests));
    assert!(drafted > 0);
    assert_eq!(answers, expected);
    let mut whole = open(&trimmed.0, &["trimmed_head=off"]).expect("loads");
    assert!(whole.executor().draft_ids().is_none());
    assert_eq!(texts(ask(&mut whole, &requests)).0, expected);
    // Again, in place, with other rows.
    let again = TrimDraft { rows: 600, corpus: &[] }.write(&trimmed.0, &trimmed.0).expect("written");
    assert_eq!(again.rows, 600);
    assert_eq!(texts(ask(&mut open(&trimmed.0, &[]).expect("loads"), &requests)).0, expected);
}

#[test]
fn what_cannot_be_trimmed_is_said() {
    let out = Scratch::new("refused");
    let error = TrimDraft { rows: 10, corpus: &[] }.write(&demo(), &out.0).unwrap_err();
    assert!(matches!(error, TrimError::Rows { rows: 10, least } if least >= 256), "{error}");
    let error = TrimDraft { rows: 700, corpus: &[] }.write(&file("Cargo.toml"), &out.0).unwrap_err();
    assert!(matches!(error, TrimError::Read { .. }), "{error}");
    let bare = Scratch::new("bare");
    without_mtp(&bare.0);
    let error = TrimDraft { rows: 700, corpus: &[] }.write(&bare.0, &out.0).unwrap_err();
    assert!(matches!(error, TrimError::NoMtp { .. }), "{error}");
    let nowhere = Path::new("/nowhere/at/all.gguf");
    let error = TrimDraft { rows: 700, corpus: &[] }.write(&demo(), nowhere).unwrap_err();
    assert!(matches!(error, TrimError::Write { .. }), "{error}");
    assert!(!out.0.exists());
    // More rows than there are tokens: all of them.
    let written = TrimDraft { rows: 1 << 20, corpus: &[] }.write(&demo(), &out.0).expect("written");
    assert!(written.rows <= 2048);
    open(&out.0, &[]).expect("loads");
}

#[test]
fn a_broken_draft_matrix_is_refused_with_its_key() {
    let broken = Scratch::new("broken");
    let row = 256 / 32 * 34;
    let cases: [(&[u32], &str, usize, &str); 7] = [
        (&[1, 2, 9], "Q8_0", 3 * row - 1, "bytes follow the last tensor"),
        (&[1, 2, 9], "Q8_0", 3 * row + 32, "bytes follow the last tensor"),
        (&[1, 2, 9], "Q8_0", 0, "trim-draft"),
        (&[1, 2, 2048], "Q8_0", 3 * row, "only 2048 rows"),
        (&[1, 9, 2], "Q8_0", 3 * row, "ascending"),
        (&[1, 2, 9], "Q9_9", 3 * row, "the types are"),
        (&[], "Q8_0", 0, "at least one row"),
    ];
    for (ids, dtype, bytes, word) in cases {
        let keys = |w: &mut GgufWriter| {
            w.u32s(IDS_KEY, ids).str(TYPE_KEY, dtype);
        };
        rewrite(&broken.0, |_| true, keys, &vec![0; bytes]);
        let error = open(&broken.0, &[]).err().expect("refused").to_string();
        assert!(error.contains("tandem.draft") && error.contains(word), "{word}: {error}");
    }
}

/// The demo model without its last block.
fn without_mtp(to: &Path) {
    let gguf = Gguf::open(demo()).unwrap();
    let blocks = gguf.meta().u32("qwen35.block_count").unwrap();
    let last = format!("blk.{}.", blocks - 1);
    let gone = |name: &str| name.starts_with(&last) || name.ends_with("recurrent_layers");
    let more = |w: &mut GgufWriter| {
        w.u32("qwen35.nextn_predict_layers", 0).u32("qwen35.block_count", blocks - 1);
    };
    rewrite(to, |name| !gone(name), more, &[]);
}

#[test]
fn a_model_without_an_mtp_block_drafts_from_schema_and_prompt() {
    let bare = Scratch::new("no-mtp");
    without_mtp(&bare.0);
    let (requests, expected) = trace(8);
    let mut engine = open(&bare.0, &[]).expect("loads");
    assert!(!engine.dims().mtp);
    let answers = ask(&mut engine, &requests);
    let (mut schema, mut mtp) = (0, 0);
    for (answer, expected) in answers.iter().zip(&expected) {
        let (text, stats) = answer.as_ref().expect("an answer");
        assert_eq!(text, expected);
        assert!(stats.decode_passes < stats.decode_tokens - 1, "{stats:?}");
        schema += stats.drafts.schema.accepted;
        mtp += stats.drafts.mtp.drafted;
    }
    assert!(schema > 0 && mtp == 0);
}

/// A vocabulary that cannot spell some text does not load, so whatever a schema forces can be
/// spelt, byte by byte if need be; drafts do it as plain decoding does.
#[test]
fn forced_text_can_always_be_spelt() {
    let mute = Scratch::new("mute");
    let gguf = Gguf::open(demo()).unwrap();
    let mut engine = open(&demo(), &[]).expect("loads");
    let byte = |b: u8| (0..2048).find(|id| engine.tokenizer().token_bytes(*id) == [b]).unwrap();
    // The first byte of Cyrillic letters is there in name only.
    let mut kinds = gguf.meta().i32s("tokenizer.ggml.token_type").unwrap();
    kinds[byte(0xd0) as usize] = 5;
    rewrite(
        &mute.0,
        |_| true,
        |w| {
            w.i32s("tokenizer.ggml.token_type", &kinds);
        },
        &[],
    );
    let error = open(&mute.0, &[]).err().expect("refused").to_string();
    assert!(error.contains("0xd0"), "{error}");

    let forced = r#"{"ж":"<|im_end|>\u0001 ж🦀"}"#;
    let value: Value = serde_json::from_str(forced).unwrap();
    let mut request = trace(1).0.remove(0);
    request.schema = Some(
        serde_json::json!({
            "type": "object", "properties": {"ж": {"const": value["ж"]}},
            "required": ["ж"], "additionalProperties": false
        })
        .to_string(),
    );
    let (answers, _) = texts(ask(&mut engine, std::slice::from_ref(&request)));
    assert_eq!(serde_json::from_str::<Value>(&answers[0]).unwrap(), value);
    let mut plain = open(&demo(), &["speculate=off", "restricted_head=off"]).expect("loads");
    assert_eq!(texts(ask(&mut plain, &[request])).0, answers);
}
