//! Tandem beside llama.cpp on this machine: the two in turn, so that a drift of the machine falls
//! on both, and a ratio for each round.

use super::speculation::random_model;
use crate::cargo::{TaskError, cargo, output, root, run as run_command, target};
use crate::need::python_with;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// llama.cpp b11549 with its server, as a Python package.
const PEER: &str = "xllamacpp==2026.10.11549";

/// Runs the same models on Tandem and on llama.cpp (from a Python package, in a folder of its
/// own) and prints the ratios, ours over the peer's: speeds of a random-weight model (`pp512`,
/// `tg64`, `verify4`: above 1 is faster) and `step_time`, the time of the demo trace's steps
/// with the demo model (below 1 is faster).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the random-weight model (tiny, 0.8b, 2b, 4b), kept under the target folder.
    #[arg(long, value_name = "SIZE", default_value = "0.8b")]
    size: String,
    /// Worker threads of each.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Requests of the demo trace a round.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Measure the `tandemd` and `tandem` in this folder instead of building them.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Print one JSON object: `ratios` and, for each round, `ours` and `peer`.
    #[arg(long)]
    json: bool,
}

/// The peer's server.
struct Peer {
    process: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
}

impl Peer {
    fn start(python: &Path, model: &Path, threads: usize, port: u16) -> Result<Peer, TaskError> {
        let mut command = Command::new(python);
        command.arg(root().join("xtask/src/bench/peer.py")).arg(model);
        command.args([threads.to_string(), port.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let fail = |source| TaskError::Run { program: "the peer's server".into(), source };
        let mut process = command.spawn().map_err(fail)?;
        let ask = process.stdin.take();
        let answers = process.stdout.take().map(BufReader::new).ok_or_else(|| fail(unheard()))?;
        let mut peer = Peer { process, ask, answers, address: String::new() };
        peer.address = peer.line()?;
        Ok(peer)
    }

    fn line(&mut self) -> Result<String, TaskError> {
        let fail = |source| TaskError::Run { program: "the peer's server".into(), source };
        let mut line = String::new();
        match self.answers.read_line(&mut line).map_err(fail)? {
            0 => Err(fail(unheard())),
            _ => Ok(line.trim().to_owned()),
        }
    }

    fn measure(&mut self) -> Result<Value, TaskError> {
        let fail = |source| TaskError::Run { program: "the peer's server".into(), source };
        self.ask.as_mut().ok_or_else(|| fail(unheard()))?.write_all(b"\n").map_err(fail)?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| fail(error.into()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.ask.take();
        let _ = self.process.wait();
    }
}

fn unheard() -> std::io::Error {
    std::io::Error::other("it ended; does the package run on this machine?")
}

impl Args {
    fn tandem(&self) -> Command {
        let folder = self.programs.clone().unwrap_or_else(|| target().join("release"));
        Command::new(folder.join("tandem"))
    }

    /// The JSON object that a `tandem` command prints.
    fn report(&self, command: &mut Command) -> Result<Value, TaskError> {
        command.args(["--json"]);
        let text = output(command)?;
        serde_json::from_str(&text)
            .map_err(|error| TaskError::Run { program: "tandem".into(), source: error.into() })
    }
}

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    if args.programs.is_none() {
        run_command(cargo().args(["build", "--release", "-p", "tandemd", "-p", "tandem-cli", "--bins"]))?;
    }
    let python = python_with(&target().join("peer"), PEER)?;
    let model = random_model(&args.tandem(), &args.size)?;
    let demo = root().join("tests/model/demo.gguf");
    let threads = args.threads.to_string();
    let mut speeds = Peer::start(&python, &model, args.threads, 18_080)?;
    let steps = Peer::start(&python, &demo, args.threads, 18_081)?;
    let mut rounds = Vec::with_capacity(args.rounds);
    for _ in 0..args.rounds {
        let mut peer = speeds.measure()?;
        let mut bench = args.tandem();
        bench.args(["bench", "--runs", "1", "--threads", &threads, "--model"]).arg(&model);
        let bench = args.report(&mut bench)?;
        let replay = || {
            let mut replay = args.tandem();
            replay.args(["replay", "--limit", &args.limit.to_string()]);
            replay.arg(root().join("tests/traces/demo.jsonl"));
            replay
        };
        peer["step_time"] = args.report(replay().args(["--url", &steps.address]))?["mean"]["ms"].clone();
        let mut own = replay();
        own.args(["--threads", &threads, "--model"]).arg(&demo);
        let ours = json!({
            "pp512": bench["pp512"]["median"],
            "tg64": bench["tg64"]["median"],
            "verify4": bench["verify"]["4"]["median"],
            "step_time": args.report(&mut own)?["mean"]["ms"],
        });
        rounds.push(json!({ "ours": ours, "peer": peer }));
    }
    let ratios = ratios(&rounds);
    if args.json {
        let named: BTreeMap<_, _> = ratios
            .iter()
            .map(|(name, [min, median, max])| (name, json!({ "min": min, "median": median, "max": max })))
            .collect();
        println!("{}", json!({ "ratios": named, "rounds": rounds }));
    } else {
        for (name, [min, median, max]) in &ratios {
            println!("{name:10} {median:.2} of the peer's  ({min:.2} to {max:.2})");
        }
    }
    Ok(())
}

/// Ours over the peer's by figure, the least, the middle one and the greatest of the rounds.
fn ratios(rounds: &[Value]) -> BTreeMap<&'static str, [f64; 3]> {
    ["step_time", "pp512", "tg64", "verify4"]
        .into_iter()
        .filter_map(|name| {
            let mut all: Vec<f64> = rounds
                .iter()
                .filter_map(|round| Some(round["ours"][name].as_f64()? / round["peer"][name].as_f64()?))
                .collect();
            all.sort_by(f64::total_cmp);
            Some((name, [*all.first()?, all[(all.len() - 1) / 2], *all.last()?]))
        })
        .collect()
}
