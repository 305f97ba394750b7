//! Policies in the engine: whatever they save changes no answer, and the simulator counts what
//! the engine does.

mod recorded;

use recorded::{Recorded, shared, shared_vocabulary};
use std::path::{Path, PathBuf};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions, SlotId};
use tandem_engine::gguf::Gguf;
use tandem_engine::planner::Planner;
use tandem_engine::request::{Event, Finish, Input, JobId, Request, Stats, Token};
use tandem_engine::switches::{KvType, Switches};
use tandem_lab::simulate::{Settings, Step, simulate};
use tandem_lab::trace::Reader;
use tandemd::policy::PolicyHost;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn engine(model: &Path, options: EngineOptions) -> Engine {
    let device = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("the CPU device");
    Engine::open(model, Box::new(device), options).expect("the model loads")
}

fn with(switches: Switches) -> EngineOptions {
    EngineOptions { switches, ..EngineOptions::default() }
}

fn names() -> impl Iterator<Item = &'static str> {
    tandem_policies::PLACEMENTS.iter().map(|p| p.name)
}

/// Every policy with the default switches, then the switches that move pass ends.
fn variants() -> Vec<(&'static str, Switches)> {
    let off = |in_pass_saves, consolidate| Switches { in_pass_saves, consolidate, ..Switches::default() };
    let mut variants: Vec<_> = names().map(|name| (name, Switches::default())).collect();
    variants.extend([
        ("anchor", off(false, true)),
        ("chat", off(true, false)),
        ("divergence", off(false, false)),
    ]);
    variants
}

#[derive(Debug)]
struct Answer {
    tokens: Vec<Token>,
    finish: Finish,
    stats: Stats,
}

impl Answer {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.id).collect()
    }

    fn text(&self) -> String {
        self.tokens.iter().map(|t| t.text.as_str()).collect()
    }
}

fn ask(engine: &mut Engine, slot: SlotId, request: &Request) -> Answer {
    engine.submit(slot, JobId(0), request).expect("accepted");
    let (mut events, mut tokens) = (Vec::new(), Vec::new());
    while engine.has_work() {
        engine.step(&mut events);
        for (_, _, event) in events.drain(..) {
            match event {
                Event::Token(token) => tokens.push(token),
                Event::Done { finish, stats } => return Answer { tokens, finish, stats },
                Event::Failed(error) => panic!("{error}"),
            }
        }
    }
    panic!("no answer")
}

/// Serves recorded requests in order, a slot an agent, with the policy that the daemon would
/// load by that name.
fn serve(
    engine: &mut Engine,
    host: &PolicyHost,
    policy: &str,
    recorded: &[Recorded],
    request: impl Fn(&Recorded) -> Request,
) -> Vec<Answer> {
    let mut slots = std::collections::HashMap::new();
    let answer = |r: &Recorded| {
        let slot = *slots.entry(r.agent.clone()).or_insert_with(|| {
            engine.open_slot(1, host.placement(policy).expect("it loads")).expect("a slot")
        });
        ask(engine, slot, &request(r))
    };
    recorded.iter().map(answer).collect()
}

/// The counts of `answers`, and what the simulator says of the same requests.
fn assert_simulated(
    what: &str,
    engine: &Engine,
    host: &PolicyHost,
    policy: &str,
    reader: &Reader,
    recorded: &[Recorded],
    answers: &[Answer],
) {
    let options = engine.options();
    let settings = Settings {
        checkpoints: options.checkpoints,
        saves: options.saves,
        checkpoint_bytes: engine.checkpoint_bytes(),
        kv_bytes: engine.executor().kv_bytes(1),
        state_budget: options.state_budget,
        prompt_cache: options.prompt_cache,
        cost: options.cost,
        planner: Planner {
            consolidate: options.switches.consolidate,
            in_pass_saves: options.switches.in_pass_saves,
        },
    };
    let requests: Vec<_> = recorded
        .iter()
        .zip(answers)
        .map(|(r, a)| {
            let mut request = reader.request(&r.line).expect("a request");
            request.answer = a.ids();
            request
        })
        .collect();
    let make = || host.placement(policy).expect("it loads");
    let simulated = simulate(policy, &requests, &settings, &make);
    for (i, (step, answer)) in simulated.steps.iter().zip(answers).enumerate() {
        let Stats { prompt, shared, restored, new, passes, saves, .. } = answer.stats;
        let Step { prompt: p, shared: s, restored: r, new: n, passes: q, saves: v, .. } = *step;
        assert_eq!(
            (prompt, shared, restored, new, passes, saves),
            (p, s, r, n, q, v),
            "{what}, {policy}, request {} of the trace: prompt, shared, restored, new, passes, saves",
            i + 1
        );
    }
    assert_eq!(simulated.steps.len(), answers.len());
}

fn own_choice(r: &Recorded) -> Request {
    let mut request = forced(r);
    request.forced_answer = None;
    request.schema = Some(r.body()["response_format"]["json_schema"]["schema"].to_string());
    request
}

fn forced(r: &Recorded) -> Request {
    let body = r.body();
    let mut request = Request::new(Input::Chat { messages: body["messages"].clone(), tools: None });
    request.max_tokens = body["max_tokens"].as_u64().map(|n| n as u32);
    request.forced_answer = Some(r.expect().to_owned());
    request
}

/// The demo trace under policies and switches: the answers are those of the first, the counts
/// those of the simulator.
fn demo(recorded: &[Recorded], variants: &[(&str, Switches)]) {
    let model = file("tests/model/demo.gguf");
    let reader = Reader::open(&model).expect("a vocabulary");
    let host = PolicyHost::new().expect("a host");
    let mut first: Option<Vec<String>> = None;
    let mut restored = Vec::new();
    for (policy, switches) in variants {
        let mut engine = engine(&model, with(switches.clone()));
        let answers = serve(&mut engine, &host, policy, recorded, own_choice);
        assert!(answers.iter().all(|a| a.finish == Finish::Schema));
        let texts: Vec<String> = answers.iter().map(Answer::text).collect();
        let what = format!("demo trace with {switches:?}");
        for (i, (text, expected)) in texts.iter().zip(first.as_ref().unwrap_or(&texts)).enumerate() {
            assert_eq!(text, expected, "{what}, {policy}, request {}", i + 1);
        }
        first.get_or_insert(texts);
        assert_simulated(&what, &engine, &host, policy, &reader, recorded, &answers);
        restored.push(answers.iter().map(|a| u64::from(a.stats.restored)).sum::<u64>());
    }
    // It would be no test if all of them did the same.
    restored.dedup();
    assert!(restored.len() > 1 && restored.iter().all(|r| *r > 0), "{restored:?}");
}

#[test]
fn no_policy_and_no_switch_changes_an_answer_and_all_counts_are_the_simulators() {
    let recorded = Recorded::read(&file("tests/traces/demo.jsonl"));
    demo(&recorded[..20], &variants());
}

#[test]
#[ignore = "all of the demo trace with every policy and switch takes minutes: cargo xtask test --long"]
fn the_whole_demo_trace_with_every_policy_and_switch() {
    let recorded = Recorded::read(&file("tests/traces/demo.jsonl"));
    let mut all = Vec::new();
    for name in names() {
        for (in_pass_saves, consolidate) in [(true, true), (false, true), (true, false), (false, false)] {
            all.push((name, Switches { in_pass_saves, consolidate, ..Switches::default() }));
        }
    }
    demo(&recorded, &all);
}

#[test]
fn counts_are_the_simulators_where_budgets_are_tight_too() {
    let model = file("tests/model/demo.gguf");
    let reader = Reader::open(&model).expect("a vocabulary");
    let host = PolicyHost::new().expect("a host");
    let recorded = &Recorded::read(&file("tests/traces/demo.jsonl"))[..30];
    let state = engine(&model, EngineOptions::default()).checkpoint_bytes();
    // Less than two slots would keep, and a cache that overflows. Without speculation, whose
    // passes need a state more for a moment, for which the engine may drop a checkpoint.
    let switches = Switches { speculate: false, ..Switches::default() };
    let options = EngineOptions { state_budget: 9 * state, prompt_cache: 4 * state, ..with(switches) };
    for policy in ["anchor", "marconi"] {
        let mut engine = engine(&model, options.clone());
        let answers = serve(&mut engine, &host, policy, recorded, forced);
        assert_simulated("tight budgets", &engine, &host, policy, &reader, recorded, &answers);
    }
}

#[test]
fn a_reload_in_the_middle_of_requests_drops_none_and_changes_no_answer() {
    let recorded = &Recorded::read(&file("tests/traces/demo.jsonl"))[..12];
    let host = PolicyHost::new().expect("a host");
    let mut engine = engine(&file("tests/model/demo.gguf"), EngineOptions::default());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.wasm");
    let component = |name: &str| tandem_policies::placement(name).expect("built in").component;
    std::fs::write(&path, component("chat")).expect("written");
    let policy = path.display().to_string();
    let slots: Vec<SlotId> = (0..3)
        .map(|user| engine.open_slot(user, host.placement(&policy).expect("it loads")).expect("a slot"))
        .collect();
    for (i, r) in recorded.iter().enumerate() {
        engine.submit(slots[i % 3], JobId(i as u64), &own_choice(r)).expect("accepted");
    }
    let (mut events, mut texts, mut done) = (Vec::new(), vec![String::new(); recorded.len()], 0);
    for pass in 0.. {
        if !engine.has_work() {
            break;
        }
        engine.step(&mut events);
        // Another policy, a broken file, a good one: every few passes.
        let next = match pass % 9 {
            2 => Some(component("anchor")),
            5 => Some(&b"\0asm\x0d\0\x01\0 half a file"[..]),
            8 => Some(component("divergence")),
            _ => None,
        };
        if let Some(bytes) = next {
            std::fs::write(&path, bytes).expect("written");
            let broken = bytes.len() < 100;
            // As the daemon does on a signal, on another thread than the engine's.
            let errors = std::thread::scope(|s| s.spawn(|| host.reload()).join().expect("reloaded"));
            assert_eq!(errors.len(), usize::from(broken), "{errors:?}");
        }
        for (_, job, event) in events.drain(..) {
            match event {
                Event::Token(token) => texts[job.0 as usize].push_str(&token.text),
                Event::Done { .. } => done += 1,
                Event::Failed(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(done, recorded.len());
    assert!(texts.iter().zip(recorded).all(|(text, r)| text == r.expect()));
    let status = &host.status()[0];
    assert!(status.loads > 2 && status.stood_in == 0, "{status:?}");
}

/// Recorded traces on a random model with the real vocabulary, answers forced.
fn shared_traces(limit: usize, policies: &[&str]) {
    let Some(vocabulary) = shared_vocabulary() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (plain, model) = (folder.path().join("vocabulary.gguf"), folder.path().join("tiny.gguf"));
    std::fs::write(&plain, vocabulary).expect("written");
    let synth = tandem_engine::synth::Synth {
        size: tandem_engine::synth::Size::Tiny,
        quant: tandem_engine::synth::Quant::Q8_0,
        tokenizer: Some(plain),
        seed: 1,
    };
    synth.write(&model).expect("a model");
    let reader = Reader::new(&Gguf::open(&model).expect("a model")).expect("a vocabulary");
    let host = PolicyHost::new().expect("a host");
    let mut engine = engine(&model, EngineOptions::default());
    for trace in recorded::TRACES {
        let recorded =
            Recorded::read(&shared(&format!("traces/{trace}.jsonl")).expect("beside the vocabulary"));
        let recorded = &recorded[..limit.min(recorded.len())];
        for policy in policies {
            // As a fresh daemon, without reading the vocabulary again.
            let slots: Vec<SlotId> = engine.slots().collect();
            for slot in slots {
                engine.close_slot(slot).expect("closed");
            }
            engine.unload().expect("unloaded");
            let answers = serve(&mut engine, &host, policy, recorded, forced);
            assert_simulated(trace, &engine, &host, policy, &reader, recorded, &answers);
        }
    }
}

#[test]
fn counts_are_the_simulators_at_the_start_of_the_shared_traces() {
    shared_traces(4, &["anchor"]);
}

#[test]
#[ignore = "the whole shared traces with every policy take minutes: cargo xtask test --long"]
fn counts_are_the_simulators_on_the_whole_shared_traces_with_every_policy() {
    shared_traces(usize::MAX, &names().collect::<Vec<_>>());
}

/// Prompts of an agent: rules, some history, a screen; each shares a part with the one before.
fn prompts(vocabulary: u32) -> Vec<Vec<u32>> {
    let mut seed = 11u64;
    let mut random = move |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % u64::from(below)) as u32
    };
    // Newlines make lines, so that policies have boundaries to work with.
    let mut text = |length: u32| -> Vec<u32> {
        (0..length).map(|i| if i % 11 == 10 { u32::from(b'\n') } else { random(vocabulary) }).collect()
    };
    let rules = text(120);
    let mut history = Vec::new();
    let mut prompts = Vec::new();
    for step in 0..6u32 {
        let screen = text(60 + 13 * step);
        prompts.push([rules.as_slice(), &history, &screen].concat());
        history.extend(text(15));
    }
    prompts
}

/// What the design's invariants allow where pass ends move: a thousandth of a logit with F32
/// weights, half a logit with quantized ones.
fn golden(name: &str, margin: f32) {
    let model = file(&format!("tests/golden/{name}.gguf"));
    let host = PolicyHost::new().expect("a host");
    let request = |prompt: &Vec<u32>| {
        let mut request = Request::new(Input::Tokens(prompt.clone()));
        (request.max_tokens, request.top_logprobs) = (Some(12), 2);
        request
    };
    let kv = |s: &Switches| Switches { kv_type: KvType::F32, ..s.clone() };
    let mut fresh = engine(&model, with(kv(&Switches::default())));
    let prompts = prompts(fresh.dims().vocabulary.min(256));
    // Nothing is reused: every prompt in a slot of its own, and of another user.
    let alone: Vec<Answer> = (0u32..)
        .zip(&prompts)
        .map(|(user, prompt)| {
            let slot = fresh.open_slot(user, host.placement("chat").expect("it loads")).expect("a slot");
            ask(&mut fresh, slot, &request(prompt))
        })
        .collect();
    assert!(alone.iter().all(|a| a.stats.restored == 0));
    let (mut compared, mut ties, mut restored) = (0, 0, 0);
    for (policy, switches) in variants() {
        let mut engine = engine(&model, with(kv(&switches)));
        let slot = engine.open_slot(1, host.placement(policy).expect("it loads")).expect("a slot");
        for (prompt, alone) in prompts.iter().zip(&alone) {
            let answer = ask(&mut engine, slot, &request(prompt));
            restored += answer.stats.restored;
            for (ours, theirs) in answer.tokens.iter().zip(&alone.tokens) {
                compared += 1;
                if ours.id == theirs.id {
                    continue;
                }
                // From here on they go different ways.
                let top = theirs.top_logprobs.as_ref().expect("asked for");
                let gap = top[0].1 - top[1].1;
                assert!(gap < margin, "{name}, {policy}, {switches:?}: {gap} apart, and yet another token");
                ties += 1;
                break;
            }
        }
    }
    println!("{name}: {compared} tokens compared, {ties} ties within {margin}, {restored} tokens restored");
    assert!(restored > 0 && compared > 300, "{compared} compared, {restored} restored");
}

#[test]
fn golden_float_models_choose_the_same_tokens_under_every_policy_and_switch() {
    golden("qwen35-a", 2e-3);
    golden("qwen35-b", 2e-3);
}

#[test]
fn a_golden_quantized_model_chooses_the_same_tokens_where_the_top_two_are_apart() {
    golden("qwen35-b-q4_0", 0.5);
}
