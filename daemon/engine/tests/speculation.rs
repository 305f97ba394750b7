//! Speculation changes passes, never answers: the same logits and tokens to the bit, and the
//! same state behind them, with every combination of its switches.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod golden_models;
mod trace_requests;

use golden_models::{model_files, root};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions, SlotId};
use tandem_engine::request::{Event, Finish, Input, JobId, Request, Stats};
use tandem_engine::sampler::SamplerOptions;
use tandem_engine::switches::Switches;
use tandem_engine::synth::{Quant, Size, Synth};
use tandem_policy_divergence::Divergence;
use trace_requests::steps;

/// A small linear congruential generator: the tests' own, so that seeds stay what they are.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(limit)) as u32
    }
}

fn long() -> bool {
    std::env::var_os("TANDEM_LONG").is_some()
}

fn demo() -> PathBuf {
    root().join("tests/model/demo.gguf")
}

/// The project's own tiny models in F32 and Q4_0.
fn tiny_models() -> Vec<PathBuf> {
    let mut files = model_files(false);
    files.extend(model_files(true));
    let wanted = ["qwen35-a", "qwen35-b", "qwen35-b-q4_0"];
    files.retain(|f| {
        !f.to_string_lossy().contains("shared") && wanted.iter().any(|w| f.file_stem().unwrap() == *w)
    });
    assert_eq!(files.len(), wanted.len());
    files
}

/// Switches by their settings; the first is always plain decoding.
fn switches(settings: &[&str]) -> Switches {
    let mut switches = Switches::default();
    for setting in settings {
        switches.set(setting).unwrap();
    }
    switches
}

const PLAIN: &[&str] = &["speculate=off", "restricted_head=off"];

/// Each switch alone off, the extremes, and every number of drafts.
fn variants() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = vec![
        vec![],
        vec!["speculate=off"],
        vec!["schema_drafts=off"],
        vec!["lookup_drafts=off"],
        vec!["mtp_drafts=off"],
        vec!["restricted_head=off"],
        vec!["shared_verify=off"],
        vec!["trimmed_head=off"],
        vec!["mtp_drafts=off", "lookup_drafts=off"],
    ];
    for drafts in ["drafts=0", "drafts=1", "drafts=2", "drafts=4", "drafts=5", "drafts=6", "drafts=7"] {
        all.push(vec![drafts]);
    }
    all
}

/// Every combination.
fn all_variants() -> Vec<Vec<&'static str>> {
    let names = [
        "schema_drafts=off",
        "lookup_drafts=off",
        "mtp_drafts=off",
        "restricted_head=off",
        "shared_verify=off",
    ];
    let drafts =
        ["drafts=0", "drafts=1", "drafts=2", "drafts=3", "drafts=4", "drafts=5", "drafts=6", "drafts=7"];
    let mut all = Vec::new();
    for bits in 0..1 << names.len() {
        for drafts in drafts {
            let off = names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, name)| *name);
            all.push(off.chain([drafts]).collect());
        }
    }
    all
}

/// The logits that tokens were chosen from, by request and place: of which tokens, and bits.
type Rows = BTreeMap<(u64, usize), (Option<Vec<u32>>, Vec<u32>)>;

struct Run {
    engine: Engine,
    rows: Arc<Mutex<Rows>>,
    next: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<Vec<(u32, u32)>>,
    finish: Option<Finish>,
    stats: Stats,
}

impl Run {
    fn new(file: &Path, settings: &[&str]) -> Self {
        Self::with(file, EngineOptions { switches: switches(settings), ..EngineOptions::default() })
    }

    fn with(file: &Path, options: EngineOptions) -> Self {
        let device = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("the CPU device");
        let mut engine = Engine::open(file, Box::new(device), options).expect("the model loads");
        let rows: Arc<Mutex<Rows>> = Arc::default();
        let to = Arc::clone(&rows);
        engine.watch(Some(Box::new(move |job, place, ids, logits| {
            let bits = logits.iter().map(|l| l.to_bits()).collect();
            let before = to.lock().unwrap().insert((job.0, place), (ids.map(<[u32]>::to_vec), bits));
            assert!(before.is_none(), "a token is chosen once");
        })));
        Run { engine, rows, next: 0 }
    }

    fn open(&mut self, owner: u32) -> SlotId {
        self.engine.open_slot(owner, Box::new(Divergence::default())).expect("a slot")
    }

    fn submit(&mut self, slot: SlotId, request: &Request) -> u64 {
        self.next += 1;
        self.engine.submit(slot, JobId(self.next), request).expect("accepted");
        self.next
    }

    fn finish(&mut self) -> BTreeMap<u64, Answer> {
        let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
        let mut events = Vec::new();
        while self.engine.has_work() {
            self.engine.step(&mut events);
            for (_, job, event) in events.drain(..) {
                let answer = answers.entry(job.0).or_default();
                match event {
                    Event::Token(token) => {
                        answer.tokens.push(token.id);
                        answer.text.push_str(&token.text);
                        let bits =
                            |l: Vec<(u32, f32)>| l.into_iter().map(|(id, p)| (id, p.to_bits())).collect();
                        answer.logprobs.extend(token.top_logprobs.map(bits));
                    }
                    Event::Done { finish, stats } => (answer.finish, answer.stats) = (Some(finish), stats),
                    Event::Failed(error) => panic!("request {} failed: {error}", job.0),
                }
            }
        }
        answers
    }

    fn ask(&mut self, slot: SlotId, request: &Request) -> Answer {
        let id = self.submit(slot, request);
        self.finish().remove(&id).expect("an answer")
    }
}

/// Requests of a trace with the agent that asks.
fn trace(name: &str, count: usize) -> Vec<(String, Request)> {
    let all: Vec<(String, Request)> = steps(name).into_iter().map(|s| (s.agent, s.request)).collect();
    // Some of every agent: they follow each other in the file.
    let every = all.len().div_ceil(count.max(1)).max(1);
    if count >= all.len() { all } else { all.into_iter().step_by(every).collect() }
}

/// Answers in order, a slot an agent.
fn replay(run: &mut Run, requests: &[(String, Request)]) -> Vec<Answer> {
    let mut slots: BTreeMap<String, SlotId> = BTreeMap::new();
    let mut answers = Vec::new();
    for (agent, request) in requests {
        let slot = match slots.get(agent) {
            Some(slot) => *slot,
            None => {
                let slot = run.open(slots.len() as u32);
                slots.insert(agent.clone(), slot);
                slot
            }
        };
        answers.push(run.ask(slot, request));
    }
    answers
}

/// Every logit that was used is the one plain decoding used, and so are the answers.
fn assert_same(plain: (&[Answer], &Rows), other: (&[Answer], &Rows), what: &str) {
    assert_eq!(plain.0.len(), other.0.len());
    for (i, (p, o)) in plain.0.iter().zip(other.0).enumerate() {
        assert_eq!(p.text, o.text, "{what}: answer {i}");
        assert_eq!((&p.tokens, p.finish), (&o.tokens, o.finish), "{what}: answer {i}");
        assert_eq!(p.logprobs, o.logprobs, "{what}: answer {i}");
        let start = |s: &Stats| (s.prompt, s.shared, s.restored, s.passes, s.saves);
        assert_eq!(start(&p.stats), start(&o.stats), "{what}: how request {i} started");
        let d = &o.stats.drafts;
        let sum =
            |f: fn(&tandem_engine::request::DraftCounts) -> u32| f(&d.schema) + f(&d.lookup) + f(&d.mtp);
        assert_eq!((o.stats.drafted, o.stats.accepted), (sum(|c| c.drafted), sum(|c| c.accepted)));
        assert!(o.stats.accepted <= o.stats.drafted && o.stats.decode_passes <= p.stats.decode_passes);
    }
    for (place, (ids, bits)) in other.1 {
        let (whole, of) = &plain.1[place];
        assert!(whole.is_none(), "plain decoding computes whole rows");
        match ids {
            None => assert!(of == bits, "{what}: logits at {place:?}"),
            Some(ids) => {
                for (id, bit) in ids.iter().zip(bits) {
                    assert_eq!(of[*id as usize], *bit, "{what}: logit of {id} at {place:?}");
                }
            }
        }
    }
}

#[test]
fn the_traces_logits_and_answers_do_not_depend_on_the_switches() {
    let (demo_lines, heldout_lines) = if long() { (usize::MAX, usize::MAX) } else { (10, 6) };
    let mut requests = trace("demo.jsonl", demo_lines);
    requests.extend(trace("heldout.jsonl", heldout_lines));
    // Log-probabilities need whole rows; such a request is in the middle of the others.
    requests[1].1.top_logprobs = 5;
    requests[2].1.top_logprobs = 3;
    requests[2].1.first_logprobs_only = true;
    requests[3].1.schema = None;
    requests[4].1.stop = vec!["\"target".into()];
    requests[5].1.max_tokens = Some(3);
    let mut plain = Run::new(&demo(), PLAIN);
    let want = replay(&mut plain, &requests);
    let rows = plain.rows.lock().unwrap();
    for settings in if long() { all_variants() } else { variants() } {
        let mut run = Run::new(&demo(), &settings);
        let got = replay(&mut run, &requests);
        assert_same((&want, &rows), (&got, &run.rows.lock().unwrap()), &format!("{settings:?}"));
    }
}

#[test]
fn the_other_forms_of_a_prompts_end_answer_the_same() {
    let requests = trace("demo.jsonl", if long() { usize::MAX } else { 6 });
    let texts = |settings: &[&str]| {
        let answers = replay(&mut Run::new(&demo(), settings), &requests);
        answers.into_iter().map(|a| a.text).collect::<Vec<_>>()
    };
    let plain = texts(PLAIN);
    for form in ["tail", "per_token"] {
        let form = format!("rollback_prefill={form}");
        assert_eq!(texts(&[&form]), plain, "{form}");
        assert_eq!(texts(&[&form, "drafts=0"]), plain, "{form}, no drafts");
        assert_eq!(texts(&[&form, "speculate=off"]), plain, "{form}, plain decoding");
    }
}

#[test]
fn clients_that_share_passes_answer_as_alone() {
    let requests = trace("demo.jsonl", if long() { 60 } else { 12 });
    let answers = |settings: &[&str], slots: u32| {
        let mut run = Run::new(&demo(), settings);
        let slots: Vec<SlotId> = (0..slots).map(|i| run.open(i)).collect();
        // A fresh slot each time: what a client asked before must not differ.
        let mut all = Vec::new();
        for group in requests.chunks(slots.len()) {
            for (slot, (_, request)) in slots.iter().zip(group) {
                run.submit(*slot, request);
            }
            all.extend(run.finish().into_values());
            run.engine.unload().expect("unloaded");
        }
        let rows = run.rows.lock().unwrap().clone();
        (all, rows)
    };
    let alone = answers(PLAIN, 1);
    for slots in [2, 3, 5] {
        let together = answers(&[], slots);
        let texts = |a: &[Answer]| a.iter().map(|a| a.text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&alone.0), texts(&together.0), "{slots} slots");
        for (place, (ids, bits)) in &together.1 {
            let of = &alone.1[place].1;
            let all: Vec<u32> = (0..of.len() as u32).collect();
            let ids = ids.as_ref().unwrap_or(&all);
            assert!(
                ids.iter().zip(bits).all(|(id, bit)| of[*id as usize] == *bit),
                "{slots} slots: {place:?}"
            );
        }
    }
}

/// Several requests of one conversation, each continuing behind the last answer, so that what
/// an answer left behind matters; random prompts that repeat themselves, so that there is
/// something to look up.
fn conversation(run: &mut Run, seed: u64, schema: Option<&str>) -> Vec<Answer> {
    let mut random = Random(seed);
    let vocabulary = run.engine.tokenizer().vocab_size() as u32;
    let slot = run.open(0);
    let mut tokens: Vec<u32> = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..4 {
        let fresh: Vec<u32> = (0..3 + random.below(40)).map(|_| random.below(vocabulary)).collect();
        tokens.extend(&fresh);
        tokens.extend(fresh.iter().take(random.below(20) as usize));
        let mut request = Request::new(Input::Tokens(tokens.clone()));
        request.max_tokens = Some(1 + random.below(14));
        request.schema = schema.map(str::to_owned);
        let answer = run.ask(slot, &request);
        tokens.extend(&answer.tokens);
        answers.push(answer);
    }
    run.engine.close_slot(slot).expect("closed");
    answers
}

const SCHEMA: &str = r#"{"type":"object","properties":{"kind":{"enum":["first","second"]},"n":{"type":"integer"},"s":{"type":"string","maxLength":6}},"required":["kind","n"],"additionalProperties":false}"#;

#[test]
fn random_weights_answer_the_same_with_any_number_of_drafts() {
    let seeds = if long() { 20 } else { 3 };
    for file in tiny_models() {
        let run_all = |settings: &[&str]| {
            let mut run = Run::new(&file, settings);
            let mut answers = Vec::new();
            for seed in 0..seeds {
                answers.extend(conversation(&mut run, seed, None));
                answers.extend(conversation(&mut run, seed, Some(SCHEMA)));
            }
            let rows = run.rows.lock().unwrap().clone();
            (answers, rows)
        };
        let plain = run_all(PLAIN);
        assert!(plain.0.iter().any(|a| a.stats.restored > a.stats.prompt / 2), "nothing continued");
        for settings in if long() { all_variants() } else { variants() } {
            let other = run_all(&settings);
            let what = format!("{} {settings:?}", file.display());
            assert_same((&plain.0, &plain.1), (&other.0, &other.1), &what);
        }
    }
}

/// A prompt's columns multiplied in tiles, those behind it, in its own last pass too, as ever.
#[test]
fn a_prompt_in_tiles_answers_the_same_with_any_switch() {
    let tiles = "prefill_products=f16_tile";
    let file = tiny_models().pop().expect("the Q4_0 model");
    let run_all = |settings: &[&str]| {
        let mut run = Run::new(&file, settings);
        let mut answers = conversation(&mut run, 1, None);
        answers.extend(conversation(&mut run, 2, Some(SCHEMA)));
        let rows = run.rows.lock().unwrap().clone();
        (answers, rows)
    };
    let plain = run_all(&[PLAIN, &[tiles]].concat());
    assert!(plain.1 != run_all(PLAIN).1, "tiles change no logit: the test shows nothing");
    let mut variants = variants();
    variants.extend([vec!["fused_swiglu=off"], vec!["fused_swiglu=off", "shared_verify=off"]]);
    for settings in variants {
        let other = run_all(&[&settings[..], &[tiles]].concat());
        assert_same((&plain.0, &plain.1), (&other.0, &other.1), &format!("{settings:?}"));
    }
}

#[test]
fn a_sampled_answer_is_the_same_with_and_without_drafts() {
    let mut requests = trace("demo.jsonl", if long() { 60 } else { 8 });
    for (i, (_, request)) in requests.iter_mut().enumerate() {
        request.sampling = SamplerOptions {
            temperature: 3.0,
            seed: i as u64,
            repetition_penalty: 1.1,
            ..Default::default()
        };
        if i % 3 == 0 {
            request.schema = None;
            request.max_tokens = Some(12);
        }
    }
    let mut plain = Run::new(&demo(), PLAIN);
    let want = replay(&mut plain, &requests);
    let rows = plain.rows.lock().unwrap();
    let mut drafted = 0;
    for settings in [&[][..], &["drafts=7"], &["schema_drafts=off"]] {
        let mut run = Run::new(&demo(), settings);
        let got = replay(&mut run, &requests);
        assert_same((&want, &rows), (&got, &run.rows.lock().unwrap()), &format!("{settings:?}"));
        drafted += got.iter().map(|a| a.stats.drafted - a.stats.accepted).sum::<u32>();
    }
    assert!(drafted > 0, "no draft was rejected: the test shows nothing");
}

/// Where nearly all rows of the head are padding, the MTP block nearly always finds a token that may
/// not follow. No draft comes of that, but its step was paid for.
#[test]
fn drafting_stops_where_the_mtp_block_finds_nothing_that_may_follow() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("padded.gguf");
    let vocabulary = Some(demo());
    Synth { size: Size::Tiny, quant: Quant::Q4_0, tokenizer: vocabulary, seed: 3 }.write(&file).unwrap();
    let mut run = Run::new(&file, &[]);
    let slot = run.open(1);
    let mut passes = 0;
    for seed in 0..12u32 {
        let prompt = (0..20).map(|i| (seed * 17 + i * 29) % 257).collect();
        let request = Request {
            sampling: SamplerOptions { temperature: 1.0, seed: seed.into(), ..Default::default() },
            max_tokens: Some(14),
            ..Request::new(Input::Tokens(prompt))
        };
        passes += u64::from(run.ask(slot, &request).stats.decode_passes);
    }
    let steps = run.engine.counters().draft_steps;
    assert!(passes > 100, "{passes} passes: too few to show anything");
    // Even on a device where a step costs a hundredth of a pass the chance that it is worth that
    // is gone after 27 in vain.
    assert!((1..=30).contains(&steps), "{steps} steps of the MTP block in {passes} passes");
}

/// Pairs of sampled tokens follow the target's probabilities although drafts come first:
/// chi-square over all pairs that are likely enough, fixed seeds.
#[test]
fn sampled_tokens_with_drafts_follow_the_target_distribution() {
    let file = &tiny_models()[0];
    let prompt: Vec<u32> = [5, 9, 7, 5, 9, 7, 5, 9, 7, 5, 9].to_vec();
    let sampling = |seed| SamplerOptions { temperature: 0.7, top_k: 4, seed, ..Default::default() };
    // Tokens that end the answer count as one.
    const END: u32 = u32::MAX;
    let probabilities = |bits: &[u32], engine: &Engine| {
        let mut logits: Vec<(usize, f64)> =
            bits.iter().map(|b| f64::from(f32::from_bits(*b))).enumerate().collect();
        logits.sort_by(|a, b| b.1.total_cmp(&a.1));
        logits.truncate(4);
        let weights: Vec<f64> = logits.iter().map(|(_, l)| ((l - logits[0].1) / 0.7).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut all: BTreeMap<u32, f64> = BTreeMap::new();
        for ((id, _), w) in logits.iter().zip(weights) {
            let id = *id as u32;
            *all.entry(if engine.tokenizer().is_end(id) { END } else { id }).or_default() += w / total;
        }
        all
    };
    let request = |seed| {
        let mut request = Request::new(Input::Tokens(prompt.clone()));
        request.max_tokens = Some(3);
        request.sampling = sampling(seed);
        request
    };
    // The exact distribution, from plain decoding's logits behind each first token.
    let mut plain = Run::new(file, PLAIN);
    let slot = plain.open(0);
    let mut first = BTreeMap::new();
    let mut second = BTreeMap::from([(END, BTreeMap::from([(END, 1.0)]))]);
    for seed in 0..200 {
        let answer = plain.ask(slot, &request(seed));
        let rows = plain.rows.lock().unwrap();
        first = probabilities(&rows[&(plain.next, 0)].1, &plain.engine);
        if let Some((_, bits)) = rows.get(&(plain.next, 1)) {
            second.insert(answer.tokens[0], probabilities(bits, &plain.engine));
        }
    }
    assert!(first.keys().all(|id| second.contains_key(id)), "200 draws must hit every first token");
    let draws = if long() { 20_000 } else { 2_000 };
    let mut run = Run::new(file, &["drafts=7"]);
    let slot = run.open(0);
    let mut counts: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    let (mut accepted, mut drafted) = (0, 0);
    for seed in 0..draws {
        let answer = run.ask(slot, &request(1_000_000 + seed));
        let token = |place| answer.tokens.get(place).copied().unwrap_or(END);
        *counts.entry((token(0), token(1))).or_default() += 1.0;
        accepted += answer.stats.accepted;
        drafted += answer.stats.drafted;
    }
    println!("{accepted} of {drafted} drafts accepted");
    let (mut chi, mut cells) = (0.0, 0);
    for (a, p) in &first {
        for (b, q) in &second[a] {
            let expected = p * q * draws as f64;
            if expected >= 5.0 {
                let got = counts.get(&(*a, *b)).copied().unwrap_or(0.0);
                chi += (got - expected).powi(2) / expected;
                cells += 1;
            }
        }
    }
    assert!(cells >= 6, "only {cells} likely pairs");
    // Mean cells - 1, deviation sqrt(2 * cells): four deviations above is one in ten thousand.
    let limit = f64::from(cells) + 4.0 * (2.0 * f64::from(cells)).sqrt();
    assert!(chi < limit, "chi-square {chi:.1} over {cells} pairs, at most {limit:.1} is likely");
}

#[test]
fn after_every_answer_the_slot_holds_what_plain_decoding_holds() {
    let mut requests = trace("demo.jsonl", if long() { usize::MAX } else { 8 });
    requests.extend(trace("heldout.jsonl", 4));
    for settings in [
        &["mtp_drafts=off"][..],
        &["mtp_drafts=off", "drafts=7"],
        &["mtp_drafts=off", "schema_drafts=off"],
        &["mtp_drafts=off", "lookup_drafts=off"],
    ] {
        // Without the MTP block both keep the same cells; with it see the next test.
        let mut plain = Run::new(&demo(), PLAIN);
        let mut run = Run::new(&demo(), settings);
        let slots = (plain.open(0), run.open(0));
        for (i, (_, request)) in requests.iter().enumerate() {
            plain.ask(slots.0, request);
            run.ask(slots.1, request);
            let tokens = |r: &Run, slot| r.engine.slot(slot).unwrap().tokens().to_vec();
            assert_eq!(tokens(&plain, slots.0), tokens(&run, slots.1), "{settings:?}: request {i}");
            let want = plain.engine.contents(slots.0).expect("read");
            let got = run.engine.contents(slots.1).expect("read");
            assert!(want.is_some() && want == got, "{settings:?}: contents after request {i}");
        }
    }
}

#[test]
fn a_request_cancelled_between_verify_passes_leaves_a_slot_that_serves() {
    let requests = trace("demo.jsonl", 8);
    let mut plain = Run::new(&demo(), PLAIN);
    let want = replay(&mut plain, &requests);
    for steps in 1..4 {
        let mut run = Run::new(&demo(), &["drafts=7"]);
        let slot = run.open(0);
        for ((_, request), want) in requests.iter().zip(&want) {
            let id = run.submit(slot, request);
            let mut events = Vec::new();
            for _ in 0..steps {
                run.engine.step(&mut events);
            }
            run.engine.cancel(slot, JobId(id), &mut events);
            assert!(matches!(events.last(), Some((.., Event::Done { .. }))), "{events:?}");
            assert!(!run.engine.has_work());
            assert_eq!(run.ask(slot, request).text, want.text, "cancelled after {steps} passes");
        }
        let states = run.engine.executor().states().in_use();
        run.engine.close_slot(slot).expect("closed");
        run.engine.unload().expect("unloaded");
        assert_eq!(run.engine.executor().states().in_use(), 1, "of {states} states some were kept");
    }
}

#[test]
fn a_budget_without_room_for_planes_drafts_less_and_answers_the_same() {
    let requests = trace("demo.jsonl", 8);
    let mut plain = Run::new(&demo(), PLAIN);
    let want = replay(&mut plain, &requests);
    let state = plain.engine.checkpoint_bytes();
    // Below four, what an answer left unfed cannot be fed.
    for room in [4, 5, 7] {
        let options = EngineOptions {
            state_budget: room * state,
            prompt_cache: 0,
            switches: switches(&["drafts=7"]),
            ..EngineOptions::default()
        };
        let mut run = Run::with(&demo(), options);
        let slot = run.open(0);
        for ((_, request), want) in requests.iter().zip(&want) {
            assert_eq!(run.ask(slot, request).text, want.text, "room for {room} states");
            assert!(run.engine.executor().states().in_use() <= room);
        }
    }
}

fn share(answers: &[Answer]) -> f64 {
    let sum = |f: fn(&Stats) -> u32| answers.iter().map(|a| f64::from(f(&a.stats))).sum::<f64>();
    let of = |f: fn(&Stats) -> u32| sum(f) / answers.len() as f64;
    println!(
        "an answer: {:.2} tokens, {:.2} passes; drafted (accepted) schema {:.2} ({:.2}), lookup {:.2} ({:.2}), MTP {:.2} ({:.2})",
        of(|s| s.decode_tokens),
        of(|s| s.decode_passes),
        of(|s| s.drafts.schema.drafted),
        of(|s| s.drafts.schema.accepted),
        of(|s| s.drafts.lookup.drafted),
        of(|s| s.drafts.lookup.accepted),
        of(|s| s.drafts.mtp.drafted),
        of(|s| s.drafts.mtp.accepted),
    );
    sum(|s| s.decode_passes) / sum(|s| s.decode_tokens)
}

#[test]
fn passes_are_a_third_of_the_tokens_and_half_on_unseen_episodes_without_the_mtp_block() {
    let mut run = Run::new(&demo(), &[]);
    let all = share(&replay(&mut run, &trace("demo.jsonl", usize::MAX)));
    assert!(all <= 1.0 / 3.0, "{all:.3} passes a token on the demo trace");
    let mut run = Run::new(&demo(), &["mtp_drafts=off"]);
    let unseen = share(&replay(&mut run, &trace("heldout.jsonl", usize::MAX)));
    assert!(unseen <= 0.5, "{unseen:.3} passes a token on unseen episodes");
}
