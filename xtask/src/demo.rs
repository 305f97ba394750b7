//! `cargo xtask demo`: two agent apps, one model.

use crate::cargo::{TaskError, cargo, root, run as run_command, target};
use crate::screen::{self, Screen, Screens};
use serde::Deserialize;
use signal_hook::consts::SIGINT;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use tandem_sdk::{PrivateDaemon, PrivateError};

/// Of the demo model's answers, this share must be the recorded ones.
const EXPECTED_SHARE: f64 = 0.95;
/// Longest action shown, characters.
const ACTION_WIDTH: usize = 46;
/// Longest place in an episode shown, characters.
const PLACE_WIDTH: usize = 28;

/// Builds the daemon, starts a private one with the demo model, and lets two agent apps work
/// with it, each a process of its own on the SDK with its own episodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Another model; its answers are shown, not judged.
    #[arg(long, value_name = "FILE.gguf")]
    model: Option<PathBuf>,
    /// Another trace.
    #[arg(long, value_name = "FILE.jsonl")]
    trace: Option<PathBuf>,
    /// Steps of each app; all of them if left out.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Worker threads of the daemon.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// What goes wrong in a demo.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The trace.
    #[error("cannot read the trace {}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why, and where.
        reason: String,
    },
    /// The daemon.
    #[error("the daemon: {0}")]
    Daemon(#[from] PrivateError),
    /// Asking the daemon.
    #[error("the daemon: {0}")]
    Sdk(#[from] tandem_sdk::Error),
    /// An agent app that cannot be started or read.
    #[error("agent app {name}: {source}")]
    Start {
        /// The app.
        name: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// What an agent app wrote.
    #[error("agent app {name} wrote a line that is no report: {reason}")]
    Report {
        /// The app.
        name: String,
        /// Why.
        reason: String,
    },
    /// What went wrong, after the summary.
    #[error("{0}")]
    Wrong(String),
}

/// What an agent app prints about a step.
#[derive(Debug, Deserialize)]
struct Report {
    line: usize,
    answer: String,
    prompt: u64,
    reused: u64,
    tokens: u64,
    ms: f64,
}

#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    expected: u64,
    prompt: u64,
    reused: u64,
    tokens: u64,
    ms: f64,
}

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    run_command(
        cargo()
            .args(["build", "--release", "-p", "tandemd", "-p", "tandem-sdk", "--bins"])
            .args(["--example", "demo_agent"]),
    )?;
    Ok(show(args)?)
}

fn show(args: &Args) -> Result<(), DemoError> {
    let trace = args.trace.clone().unwrap_or_else(|| root().join("tests/traces/demo.jsonl"));
    let model = args.model.clone().unwrap_or_else(|| root().join("tests/model/demo.gguf"));
    let screens = screen::read(&trace).map_err(|reason| DemoError::Trace { path: trace.clone(), reason })?;
    let mut builder = PrivateDaemon::builder(target().join("release/tandemd")).arg("--model").arg(&model);
    if let Some(threads) = args.threads {
        builder = builder.args(["--threads", &threads.to_string()]);
    }
    // The apps get the signal too and end; then everything here ends as usual.
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))
        .map_err(|source| DemoError::Start { name: "signals".into(), source })?;
    let started = Instant::now();
    let (daemon, client) = builder.app("demo").start()?;
    let ready = started.elapsed();
    let paint = Paint { on: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };

    let status = client.status()?;
    println!("\n{}\n", paint.bold("Tandem: two agent apps, one model"));
    let shown = model.strip_prefix(root()).unwrap_or(&model);
    println!("  model   {} ({})", shown.display(), status["model"]["architecture"].as_str().unwrap_or("?"));
    println!(
        "  device  {} ({})",
        status["device"]["name"].as_str().unwrap_or("?"),
        status["device"]["detail"].as_str().unwrap_or("?"),
    );
    println!("  daemon  process {}, ready after {} ms\n", daemon.pid(), ready.as_millis());

    let began = Instant::now();
    let tallies = work(args, &trace, &screens, daemon.socket(), paint)?;
    let seconds = began.elapsed().as_secs_f64();

    drop(client);
    let stopped = daemon.stop();
    let stopped_words = match &stopped {
        Ok(()) => "stopped cleanly".to_owned(),
        Err(error) => error.to_string(),
    };
    summary(&tallies, seconds, paint);
    println!("  {:PLACE_WIDTH$}  {stopped_words}\n", "the daemon");
    if interrupted.load(Ordering::Relaxed) {
        return Err(DemoError::Wrong("interrupted".into()));
    }
    stopped?;
    judge(&tallies, args.model.is_none())
}

/// Runs the agent apps and shows their steps as they come.
fn work(
    args: &Args,
    trace: &Path,
    screens: &Screens,
    socket: &Path,
    paint: Paint,
) -> Result<BTreeMap<String, Tally>, DemoError> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for screen in screens.values() {
        tallies.entry(screen.agent.clone()).or_default();
    }
    let width = tallies.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    println!(
        "{}",
        paint.dim(&format!(
            "  {:width$}  {:PLACE_WIDTH$}  {:ACTION_WIDTH$}  {:>6}  {:>6}  {:>7}",
            "app", "task and step", "action", "prompt", "reused", "ms"
        ))
    );
    let (sender, receiver) = mpsc::channel();
    let mut apps = Vec::new();
    for name in tallies.keys() {
        let steps = args.steps.unwrap_or(usize::MAX).to_string();
        let fail = |source| DemoError::Start { name: name.clone(), source };
        let mut app = Command::new(target().join("release/examples/demo_agent"))
            .arg(name)
            .arg(trace)
            .arg(steps)
            .env("TANDEM_SOCKET", socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let Some(output) = app.stdout.take() else { continue };
        let (name, sender) = (name.clone(), sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                // Nobody takes it any more once something went wrong.
                if sender.send((name.clone(), line)).is_err() {
                    return;
                }
            }
        });
        apps.push(App(app));
    }
    drop(sender);
    let first = tallies.keys().next().cloned();
    for (name, line) in receiver {
        let line = line.map_err(|source| DemoError::Start { name: name.clone(), source })?;
        let fail = |reason| DemoError::Report { name: name.clone(), reason };
        let report: Report = serde_json::from_str(&line).map_err(|error| fail(error.to_string()))?;
        let screen = screens.get(&report.line).ok_or_else(|| fail(format!("no line {}", report.line)))?;
        let tally = tallies.entry(name.clone()).or_default();
        tally.add(&report, screen);
        let color = if Some(&name) == first.as_ref() { CYAN } else { YELLOW };
        print_step(&report, screen, width, color, paint);
    }
    for app in &mut apps {
        let status = app.0.wait().map_err(|source| DemoError::Start { name: "(waiting)".into(), source })?;
        if !status.success() {
            return Err(DemoError::Wrong(format!("an agent app failed ({status}); its words are above")));
        }
    }
    Ok(tallies)
}

/// An app's process, ended with the demo.
#[derive(Debug)]
struct App(Child);

impl Drop for App {
    fn drop(&mut self) {
        // Both fail only where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn print_step(report: &Report, screen: &Screen, width: usize, color: &str, paint: Paint) {
    let place = format!("{} {}", screen.episode, screen.step + 1);
    let action = screen.action(&report.answer);
    let (mark, note) = if report.answer == screen.expect {
        (paint.color(GREEN, "✓"), String::new())
    } else {
        (paint.color(RED, "✗"), format!("  recorded: {}", screen.action(&screen.expect)))
    };
    println!(
        "  {}  {}  {}  {:>6}  {:>6}  {:>7.1}  {mark}{note}",
        paint.color(color, &fit(&screen.agent, width)),
        fit(&place, PLACE_WIDTH),
        fit(&action, ACTION_WIDTH),
        report.prompt,
        report.reused,
        report.ms,
    );
}

impl Tally {
    fn add(&mut self, report: &Report, screen: &Screen) {
        self.steps += 1;
        self.expected += u64::from(report.answer == screen.expect);
        self.prompt += report.prompt;
        self.reused += report.reused;
        self.tokens += report.tokens;
        self.ms += report.ms;
    }
}

fn summary(tallies: &BTreeMap<String, Tally>, seconds: f64, paint: Paint) {
    println!("\n  {}", paint.bold("In all"));
    for (name, tally) in tallies {
        println!(
            "  {:PLACE_WIDTH$}  {} of {} answers as recorded, {:.1} ms a step on average",
            name,
            tally.expected,
            tally.steps,
            tally.ms / tally.steps.max(1) as f64,
        );
    }
    let sum = |of: fn(&Tally) -> u64| tallies.values().map(of).sum::<u64>();
    let (prompt, reused) = (sum(|t| t.prompt), sum(|t| t.reused));
    println!(
        "  {:PLACE_WIDTH$}  {prompt}, of these {reused} reused ({:.0}%)",
        "prompt tokens",
        100.0 * reused as f64 / prompt.max(1) as f64
    );
    println!("  {:PLACE_WIDTH$}  {}", "answer tokens", sum(|t| t.tokens));
    println!("  {:PLACE_WIDTH$}  {seconds:.1} s", "time");
}

/// Whether the demo showed what it is there to show.
fn judge(tallies: &BTreeMap<String, Tally>, own_model: bool) -> Result<(), DemoError> {
    let sum = |of: fn(&Tally) -> u64| tallies.values().map(of).sum::<u64>();
    let (steps, expected) = (sum(|t| t.steps), sum(|t| t.expected));
    if steps == 0 {
        return Err(DemoError::Wrong("no agent app made a step".into()));
    }
    if own_model && (expected as f64) < EXPECTED_SHARE * steps as f64 {
        let share = 100.0 * EXPECTED_SHARE;
        let text =
            format!("only {expected} of {steps} answers were the recorded ones; at least {share}% are due");
        return Err(DemoError::Wrong(text));
    }
    Ok(())
}

/// A text cut or filled to a width.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return format!("{text:width$}");
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";
const BOLD: &str = "1";
const DIM: &str = "2";

/// Colours, on a terminal only.
#[derive(Clone, Copy, Debug)]
struct Paint {
    on: bool,
}

impl Paint {
    fn color(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.color(BOLD, text)
    }

    fn dim(self, text: &str) -> String {
        self.color(DIM, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(steps: u64, expected: u64) -> BTreeMap<String, Tally> {
        BTreeMap::from([("a".to_owned(), Tally { steps, expected, ..Tally::default() })])
    }

    #[test]
    fn too_few_recorded_answers_fail_the_demo() {
        assert!(judge(&tallies(100, 95), true).is_ok());
        assert!(judge(&tallies(100, 94), true).is_err());
        assert!(judge(&tallies(100, 0), false).is_ok(), "another model is not judged");
        assert!(judge(&tallies(0, 0), false).is_err());
    }

    #[test]
    fn texts_fit_their_column() {
        assert_eq!(fit("ab", 4), "ab  ");
        assert_eq!(fit("abcde", 4), "abc…");
        assert_eq!(fit("äöüß", 4), "äöüß");
    }
}
