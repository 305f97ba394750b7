//! Slots, the prompt cache and budgets, on the demo model.

mod trace_requests;

use serde_json::json;
use std::path::{Path, PathBuf};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions, SlotId};
use tandem_engine::request::{EngineError, Event, Finish, Input, JobId, Request, Stats};
use tandem_policy_divergence::Divergence;
use trace_requests::steps;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn engine(options: EngineOptions) -> Engine {
    let device = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("the CPU device");
    Engine::open(&file("tests/model/demo.gguf"), Box::new(device), options).expect("the demo model loads")
}

/// The first requests of the demo trace with the recorded answers.
fn trace(count: usize) -> Vec<(Request, String)> {
    steps("demo.jsonl").into_iter().take(count).map(|step| (step.request, step.expect)).collect()
}

fn open(engine: &mut Engine, owner: u32) -> SlotId {
    engine.open_slot(owner, Box::new(Divergence::default())).expect("a slot")
}

#[derive(Default, Debug)]
struct Answer {
    text: String,
    finish: Option<Finish>,
    stats: Stats,
    failed: Option<EngineError>,
}

/// Runs until there is no work; answers by job number.
fn finish(engine: &mut Engine) -> std::collections::BTreeMap<u64, Answer> {
    let mut answers: std::collections::BTreeMap<u64, Answer> = Default::default();
    let mut events = Vec::new();
    while engine.has_work() {
        engine.step(&mut events);
        for (_, job, event) in events.drain(..) {
            let answer = answers.entry(job.0).or_default();
            match event {
                Event::Token(token) => answer.text.push_str(&token.text),
                Event::Done { finish, stats } => (answer.finish, answer.stats) = (Some(finish), stats),
                Event::Failed(error) => answer.failed = Some(error),
            }
        }
    }
    answers
}

fn ask(engine: &mut Engine, slot: SlotId, request: &Request) -> Answer {
    engine.submit(slot, JobId(0), request).expect("accepted");
    finish(engine).remove(&0).expect("an answer")
}

#[test]
fn slots_that_run_together_answer_as_they_do_alone() {
    let steps = trace(12);
    let mut e = engine(EngineOptions::default());
    let slot = open(&mut e, 1);
    let alone: Vec<String> = steps.iter().map(|(r, _)| ask(&mut e, slot, r).text).collect();
    let want: Vec<&String> = steps.iter().map(|(_, a)| a).collect();
    assert_eq!(alone.iter().collect::<Vec<_>>(), want);
    let mut e = engine(EngineOptions::default());
    let slots: Vec<SlotId> = (0..4).map(|i| open(&mut e, i)).collect();
    for (i, (request, _)) in steps.iter().enumerate() {
        e.submit(slots[i % 4], JobId(i as u64), request).expect("accepted");
    }
    let together: Vec<String> = finish(&mut e).into_values().map(|a| a.text).collect();
    assert_eq!(alone, together);
}

#[test]
fn a_client_that_comes_back_goes_on_from_the_prompt_cache() {
    let steps = trace(12);
    let mut e = engine(EngineOptions::default());
    let slot = open(&mut e, 1);
    let before: Vec<Answer> = steps.iter().map(|(r, _)| ask(&mut e, slot, r)).collect();
    assert!(e.counters().saves > 0);
    e.close_slot(slot).expect("closed");
    let last = &steps[11].0;
    let stranger = open(&mut e, 2);
    assert_eq!(ask(&mut e, stranger, last).stats.restored, 0);
    let back = open(&mut e, 1);
    let hits = e.counters().cache_hits;
    let again = ask(&mut e, back, last);
    assert!(again.stats.restored > 0, "{:?}", again.stats);
    assert_eq!((&again.text, e.counters().cache_hits), (&before[11].text, hits + 1));
}

#[test]
fn no_budget_is_exceeded_with_many_slots() {
    let steps = trace(24);
    let state = engine(EngineOptions::default()).checkpoint_bytes();
    // Room for eight live states, their successors, and little more.
    let options = EngineOptions {
        slots: 8,
        state_budget: 20 * state,
        prompt_cache: 3 * state,
        ..EngineOptions::default()
    };
    let mut e = engine(options);
    let slots: Vec<SlotId> = (0..8).map(|i| open(&mut e, i % 2)).collect();
    for (i, (request, _)) in steps.iter().enumerate() {
        e.submit(slots[i % 8], JobId(i as u64), request).expect("accepted");
    }
    let (mut events, mut done) = (Vec::new(), 0);
    while e.has_work() {
        e.step(&mut events);
        let states = e.executor().states();
        assert!(states.in_use() * state <= 20 * state, "{} states in use", states.in_use());
        let (_, cached, cap) = e.prompt_cache();
        assert!(cached <= cap);
        for (_, job, event) in events.drain(..) {
            match event {
                Event::Done { .. } => done += 1,
                Event::Failed(error) => panic!("job {}: {error}", job.0),
                Event::Token(_) => {}
            }
        }
    }
    assert_eq!(done, 24);
}

#[test]
fn an_unload_gives_everything_back_and_the_next_answer_is_the_same() {
    let steps = trace(1);
    let mut e = engine(EngineOptions::default());
    let opened = e.executor().device_bytes();
    e.unload().expect("unloaded");
    let empty = e.executor().device_bytes();
    assert!(empty < opened, "weights that were repacked at the opening are given back too");
    let slot = open(&mut e, 1);
    let before = ask(&mut e, slot, &steps[0].0);
    assert!(e.executor().device_bytes() > empty);
    e.unload().expect("unloaded");
    assert_eq!(e.executor().device_bytes(), empty);
    let after = ask(&mut e, slot, &steps[0].0);
    assert_eq!((after.text, after.stats.restored), (before.text, 0));
}

#[test]
fn a_request_that_cannot_run_is_refused_and_others_go_on() {
    let steps = trace(1);
    let mut e = engine(EngineOptions { context: 300, queue: 2, ..EngineOptions::default() });
    let slot = open(&mut e, 1);
    let error = |e: &mut Engine, request: &Request| e.submit(slot, JobId(9), request).unwrap_err();
    let long = Request::new(Input::Tokens(vec![1; 300]));
    assert!(matches!(error(&mut e, &long), EngineError::PromptTooLong { tokens: 300, context: 300 }));
    let wild = Request::new(Input::Tokens(vec![1, u32::MAX]));
    assert!(error(&mut e, &wild).to_string().contains(&u32::MAX.to_string()));
    let mut schema = steps[0].0.clone();
    schema.schema = Some("{\"type\":".into());
    assert!(matches!(error(&mut e, &schema), EngineError::Grammar(_)));
    let none = Request::new(Input::Chat { messages: json!([]), tools: None });
    assert!(matches!(error(&mut e, &none), EngineError::Template(_)));
    e.submit(slot, JobId(1), &steps[0].0).expect("accepted");
    e.submit(slot, JobId(2), &steps[0].0).expect("accepted");
    assert!(matches!(error(&mut e, &steps[0].0), EngineError::QueueFull { limit: 2 }));
    let mut events = Vec::new();
    e.cancel(slot, JobId(2), &mut events);
    assert!(matches!(events[..], [(_, JobId(2), Event::Done { finish: Finish::Cancelled, .. })]));
    let answers = finish(&mut e);
    assert_eq!(answers[&1].text, steps[0].1);
}

#[test]
fn a_prompt_that_fills_the_context_still_gets_one_token() {
    let mut e = engine(EngineOptions { context: 64, ..EngineOptions::default() });
    let slot = open(&mut e, 1);
    let answer = ask(&mut e, slot, &Request::new(Input::Tokens(vec![1; 63])));
    assert_eq!((answer.finish, answer.stats.decode_tokens), (Some(Finish::Length), 1));
}

#[test]
fn an_abandoned_pass_fails_its_request_and_the_slot_serves_the_next() {
    let steps = trace(1);
    let mut e = engine(EngineOptions::default());
    let slot = open(&mut e, 1);
    e.submit(slot, JobId(1), &steps[0].0).expect("accepted");
    let mut events = Vec::new();
    e.step(&mut events);
    events.clear();
    e.abandon(&mut events);
    assert!(matches!(events[..], [(_, JobId(1), Event::Failed(EngineError::Fault))]));
    let answer = ask(&mut e, slot, &steps[0].0);
    assert_eq!((answer.text, answer.stats.restored), (steps[0].1.clone(), 0));
}
