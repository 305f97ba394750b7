//! What each part of speculation is worth: one executable, a daemon a setting, the requests
//! in turn, so that a drift of the machine falls on all.

use crate::cargo::{TaskError, cargo, root, run as run_command, target};
use crate::demo::DemoError;
use crate::screen;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tandem_sdk::{Client, PrivateDaemon, Request, Stats};

/// Settings by name; the first is everything on.
const SETTINGS: [(&str, &[&str]); 13] = [
    ("all on", &[]),
    ("no schema drafts", &["schema_drafts=off"]),
    ("no lookup drafts", &["lookup_drafts=off"]),
    ("no MTP drafts", &["mtp_drafts=off"]),
    ("one MTP draft at most", &["drafts=1"]),
    ("seven drafts at most", &["drafts=7"]),
    ("whole output head", &["restricted_head=off"]),
    ("columns not shared", &["shared_verify=off"]),
    ("no trimmed head", &["trimmed_head=off"]),
    ("tail per token", &["rollback_prefill=tail"]),
    ("prompt per token", &["rollback_prefill=per_token"]),
    ("plain decoding", &["speculate=off"]),
    ("plain, whole head", &["speculate=off", "restricted_head=off"]),
];

/// Requests and tokens of the worst case.
const WORST_REQUESTS: u32 = 64;
const WORST_TOKENS: u32 = 14;
const WORST_PROMPT: u32 = 48;

/// Ways to run a prompt, nothing drafted: the first is what the others are measured by.
const FORMS: [(&str, &[&str]); 4] = [
    ("planes", &["schema_drafts=off", "lookup_drafts=off", "mtp_drafts=off"]),
    ("tail", &["schema_drafts=off", "lookup_drafts=off", "mtp_drafts=off", "rollback_prefill=tail"]),
    (
        "per token",
        &["schema_drafts=off", "lookup_drafts=off", "mtp_drafts=off", "rollback_prefill=per_token"],
    ),
    ("planes, MTP block", &["schema_drafts=off", "lookup_drafts=off"]),
];
const FORM_PROMPT: u32 = 256;

/// Replays the demo trace with each part of speculation alone switched off, then random
/// prompts on random weights, where no draft can be right, then the ways to run a prompt.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Another model.
    #[arg(long, value_name = "FILE.gguf")]
    model: Option<PathBuf>,
    /// Another trace.
    #[arg(long, value_name = "FILE.jsonl")]
    trace: Option<PathBuf>,
    /// The first N requests only.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Worker threads of each daemon.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Size of the random-weight model of the worst case (tiny, 0.8b, 2b, 4b), kept under the
    /// target folder.
    #[arg(long, value_name = "SIZE", default_value = "tiny")]
    worst: String,
    /// Prompts that each way to run a prompt is measured with.
    #[arg(long, value_name = "N", default_value_t = 8)]
    prompts: u32,
    /// Measure the `tandemd` and `tandem` in this folder instead of building them.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Sum {
    requests: f64,
    passes: f64,
    tokens: f64,
    drafted: f64,
    accepted: f64,
    kinds: [(f64, f64); 3],
    prefill: f64,
    decode: f64,
}

impl Sum {
    fn add(&mut self, stats: &Stats) {
        self.requests += 1.0;
        self.passes += f64::from(stats.decode_passes);
        self.tokens += f64::from(stats.decode_tokens);
        self.drafted += f64::from(stats.drafted);
        self.accepted += f64::from(stats.accepted);
        let d = &stats.drafts;
        for (sum, kind) in self.kinds.iter_mut().zip([d.schema, d.lookup, d.mtp]) {
            sum.0 += f64::from(kind.drafted);
            sum.1 += f64::from(kind.accepted);
        }
        self.prefill += stats.prefill_ms;
        self.decode += stats.decode_ms;
    }

    fn of(&self, sum: f64) -> f64 {
        sum / self.requests.max(1.0)
    }

    fn json(&self) -> Value {
        let kind = |i: usize| {
            let (drafted, accepted) = self.kinds[i];
            json!({ "drafted": self.of(drafted), "accepted": self.of(accepted) })
        };
        json!({
            "requests": self.requests,
            "decode_passes": self.of(self.passes),
            "decode_tokens": self.of(self.tokens),
            "drafted": self.of(self.drafted),
            "accepted": self.of(self.accepted),
            "drafts": { "schema": kind(0), "lookup": kind(1), "mtp": kind(2) },
            "prefill_ms": self.of(self.prefill),
            "decode_ms": self.of(self.decode),
            "ms": self.of(self.prefill + self.decode),
        })
    }
}

/// A daemon with its setting, and a client an agent.
struct Subject {
    daemon: PrivateDaemon,
    clients: HashMap<String, Client>,
    sum: Sum,
}

impl Subject {
    fn start(args: &Args, model: &Path, settings: &[&str]) -> Result<Self, DemoError> {
        let mut builder = PrivateDaemon::builder(args.program("tandemd")).arg("--model").arg(model);
        for setting in settings {
            builder = builder.args(["--set", setting]);
        }
        if let Some(threads) = args.threads {
            builder = builder.args(["--threads", &threads.to_string()]);
        }
        let (daemon, _client) = builder.app("bench").start()?;
        Ok(Subject { daemon, clients: HashMap::new(), sum: Sum::default() })
    }

    fn ask(&mut self, agent: &str, request: Request) -> Result<String, DemoError> {
        if !self.clients.contains_key(agent) {
            let client = Client::builder(self.daemon.socket()).app(agent).connect()?;
            self.clients.insert(agent.to_owned(), client);
        }
        let answer = self.clients[agent].generate(request)?.answer()?;
        self.sum.add(&answer.stats);
        Ok(answer.text)
    }

    fn stop(self) -> Result<Sum, DemoError> {
        drop(self.clients);
        self.daemon.stop()?;
        Ok(self.sum)
    }
}

impl Args {
    fn program(&self, name: &str) -> PathBuf {
        self.programs.clone().unwrap_or_else(|| target().join("release")).join(name)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    if args.programs.is_none() {
        run_command(cargo().args(["build", "--release", "-p", "tandemd", "-p", "tandem-cli", "--bins"]))?;
    }
    let weights = random_model(&Command::new(args.program("tandem")), &args.worst)?;
    let ablation = ablation(args)?;
    let worst = worst(args, &weights)?;
    let forms = forms(args, &weights)?;
    if args.json {
        println!("{}", json!({ "ablation": ablation.json(), "worst": worst.json(), "forms": forms.json() }));
    } else {
        ablation.print();
        worst.print();
        forms.print();
    }
    Ok(())
}

/// Means by setting.
struct Ablation(Vec<(&'static str, Sum)>);

impl Ablation {
    fn json(&self) -> Value {
        self.0.iter().map(|(name, sum)| json!({ "setting": name, "mean": sum.json() })).collect()
    }

    fn print(&self) {
        println!(
            "\n{:22} {:>7} {:>7} {:>14} {:>13} {:>13} {:>13} {:>10} {:>9} {:>8}",
            "a request",
            "passes",
            "tokens",
            "drafts taken",
            "schema",
            "lookup",
            "MTP",
            "prefill ms",
            "decode ms",
            "ms"
        );
        for (name, sum) in &self.0 {
            let pair = |(drafted, accepted): (f64, f64)| {
                format!("{:.1} of {:.1}", sum.of(accepted), sum.of(drafted))
            };
            println!(
                "{name:22} {:>7.2} {:>7.2} {:>14} {:>13} {:>13} {:>13} {:>10.1} {:>9.1} {:>8.1}",
                sum.of(sum.passes),
                sum.of(sum.tokens),
                pair((sum.drafted, sum.accepted)),
                pair(sum.kinds[0]),
                pair(sum.kinds[1]),
                pair(sum.kinds[2]),
                sum.of(sum.prefill),
                sum.of(sum.decode),
                sum.of(sum.prefill + sum.decode),
            );
        }
    }
}

fn ablation(args: &Args) -> Result<Ablation, DemoError> {
    let model = args.model.clone().unwrap_or_else(|| root().join("tests/model/demo.gguf"));
    let trace = args.trace.clone().unwrap_or_else(|| root().join("tests/traces/demo.jsonl"));
    let fail = |reason: String| DemoError::Trace { path: trace.clone(), reason };
    let screens = screen::read(&trace).map_err(fail)?;
    let mut subjects = Vec::with_capacity(SETTINGS.len());
    for (_, settings) in SETTINGS {
        subjects.push(Subject::start(args, &model, settings)?);
    }
    for (line, screen) in screens.iter().take(args.limit.unwrap_or(usize::MAX)) {
        for (subject, (name, settings)) in subjects.iter_mut().zip(SETTINGS) {
            let request = Request::from_chat_completions(screen.request());
            let request = request.map_err(|error| fail(format!("line {line}: {error}")))?;
            let text = subject.ask(&screen.agent, request)?;
            // Per-token forms start answers from states that differ in the last bits.
            let moved = settings.iter().any(|s| s.starts_with("rollback_prefill"));
            if args.model.is_none() && args.trace.is_none() && !moved && text != screen.expect {
                let text = format!("line {line}: another answer than the recorded one with {name}");
                return Err(DemoError::Wrong(text));
            }
        }
    }
    let mut sums = Vec::with_capacity(subjects.len());
    for (subject, (name, _)) in subjects.into_iter().zip(SETTINGS) {
        sums.push((name, subject.stop()?));
    }
    Ok(Ablation(sums))
}

/// A random-weight `Q4_0` model of this size, made by `tandem` where it is not there yet.
pub(super) fn random_model(tandem: &Command, size: &str) -> Result<PathBuf, TaskError> {
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder).map_err(|source| TaskError::File { path: folder.clone(), source })?;
    let file = folder.join(format!("random-{size}-q4_0.gguf"));
    if !file.is_file() {
        let mut synth = Command::new(tandem.get_program());
        synth.args(["model", "synth", "--size", size, "--quant", "q4_0"]).arg(&file);
        run_command(synth.stdout(Stdio::null()))?;
    }
    Ok(file)
}

/// The worst case: speculation, and plain decoding beside it.
struct Worst {
    speculating: Sum,
    plain: Sum,
}

impl Worst {
    fn ratio(&self) -> f64 {
        let time = |sum: &Sum| sum.prefill + sum.decode;
        time(&self.speculating) / time(&self.plain).max(f64::MIN_POSITIVE)
    }

    fn json(&self) -> Value {
        json!({ "speculating": self.speculating.json(), "plain": self.plain.json(), "ratio": self.ratio() })
    }

    fn print(&self) {
        let line = |sum: &Sum| {
            format!(
                "{:.2} passes, {:.1} of {:.1} drafts taken, prefill {:.1} ms, decode {:.1} ms",
                sum.of(sum.passes),
                sum.of(sum.accepted),
                sum.of(sum.drafted),
                sum.of(sum.prefill),
                sum.of(sum.decode)
            )
        };
        println!("\nrandom weights, {WORST_REQUESTS} requests of {WORST_TOKENS} sampled tokens");
        println!("  speculating  {}", line(&self.speculating));
        println!("  plain        {}", line(&self.plain));
        println!("  time {:.3} of plain decoding's\n", self.ratio());
    }
}

fn worst(args: &Args, model: &Path) -> Result<Worst, DemoError> {
    let mut speculating = Subject::start(args, model, &[])?;
    let mut plain = Subject::start(args, model, &["speculate=off"])?;
    for i in 0..WORST_REQUESTS {
        // Few enough ids for any vocabulary; nothing in the prompt repeats, nothing is likely.
        let prompt: Vec<u32> = (0..WORST_PROMPT).map(|j| (i * 17 + j * 29) % 257).collect();
        let ask = || Request::tokens(prompt.clone()).max_tokens(WORST_TOKENS).temperature(1.0).seed(i.into());
        // Whoever goes second finds the machine as the first left it.
        let order = if i % 2 == 0 { [&mut speculating, &mut plain] } else { [&mut plain, &mut speculating] };
        let mut texts = Vec::new();
        for subject in order {
            texts.push(subject.ask("bench", ask())?);
        }
        if texts[0] != texts[1] {
            return Err(DemoError::Wrong(format!("random prompt {i}: drafts changed the answer")));
        }
    }
    Ok(Worst { speculating: speculating.stop()?, plain: plain.stop()? })
}

/// Prompt milliseconds of each of [`FORMS`], prompt by prompt.
struct Forms([Vec<f64>; FORMS.len()]);

impl Forms {
    /// Median milliseconds, and the median of the ratios to the first form on the same prompt.
    fn of(&self, form: usize) -> (f64, f64) {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let ratios = self.0[form].iter().zip(&self.0[0]).map(|(ms, first)| ms / first);
        (median(self.0[form].clone()), median(ratios.collect()))
    }

    fn json(&self) -> Value {
        let forms = FORMS.iter().enumerate().map(|(i, (name, _))| {
            let (ms, ratio) = self.of(i);
            json!({ "form": name, "prefill_ms": ms, "ratio": ratio })
        });
        forms.collect()
    }

    fn print(&self) {
        println!("random weights, {} prompts of {FORM_PROMPT} tokens, nothing drafted", self.0[0].len());
        for (i, (name, _)) in FORMS.iter().enumerate() {
            let (ms, ratio) = self.of(i);
            println!("  {name:20} {ms:>9.1} ms, {ratio:.3} of the first");
        }
        println!();
    }
}

fn forms(args: &Args, model: &Path) -> Result<Forms, DemoError> {
    let mut subjects = Vec::with_capacity(FORMS.len());
    for (_, settings) in FORMS {
        subjects.push(Subject::start(args, model, settings)?);
    }
    let mut forms = Forms(Default::default());
    // The first prompt finds caches and pages that are cold.
    for i in 0..=args.prompts.max(1) {
        // No prompt begins as one before, so nothing is restored.
        let prompt: Vec<u32> = (0..FORM_PROMPT).map(|j| (i * 31 + j * 29) % 257).collect();
        for turn in 0..FORMS.len() {
            // Whoever goes first finds another machine than who goes last.
            let at = (turn + i as usize) % FORMS.len();
            let subject = &mut subjects[at];
            let before = subject.sum.prefill;
            subject.ask("bench", Request::tokens(prompt.clone()).max_tokens(1))?;
            if i > 0 {
                forms.0[at].push(subject.sum.prefill - before);
            }
        }
    }
    for subject in subjects {
        subject.stop()?;
    }
    Ok(forms)
}
