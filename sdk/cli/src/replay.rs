//! `tandem replay`: a recorded trace, request by request.

use crate::daemon::{Daemon, Options};
use crate::failure::Failure;
use crate::numbers::Numbers;
use crate::peer::Peer;
use crate::report::{Report, Step};
use crate::trace::{self, Recorded};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use tandem_sdk::{Client, Error};

/// Replays a trace: each line's request in order, one at a time.
///
/// A line is {"app","agent","episode","step","request":{chat-completions body},"expect"}.
/// Each value of `agent` is a client of its own; lines without one share a client. With --json
/// the output is one object: `steps`, each with `prompt`, `shared`, `restored` (tokens
/// reused), `new`, `passes`, `saves`, `decode_tokens`, `decode_passes`, `drafted`, `accepted`
/// (and both by kind: `drafted_schema`, `drafted_lookup`, `drafted_mtp` and so on),
/// `prefill_ms`, `decode_ms`, `ms`, `text`, `expected` (whether the answer is exactly the
/// recorded one; null where none is recorded), `valid` (under the request's schema); `mean` of
/// the same; `kv_bound`, the mean of `prompt - shared` over all requests, first ones included:
/// the tokens to process if what the daemon had cached for the client could be cut anywhere.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace (JSON lines).
    #[arg(value_name = "TRACE.jsonl")]
    trace: PathBuf,
    /// Feed the recorded answers instead of the model's own.
    #[arg(long)]
    force_expected: bool,
    /// Replay the first N requests only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Replay on this OpenAI-compatible server (http://HOST:PORT) instead. Numbers that it does
    /// not tell are null.
    #[arg(long, value_name = "URL", conflicts_with = "force_expected")]
    url: Option<String>,
    /// Print one JSON object at the end instead of a line a step.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Options,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    if args.url.is_some() && args.daemon.is_given() {
        return Err(Failure::Usage("--url names the server; it takes none of the daemon's options".into()));
    }
    let trace = trace::read(&args.trace, args.limit.and_then(|limit| usize::try_from(limit).ok()))?;
    let trace = if args.force_expected { forced(&args.trace, trace)? } else { trace };
    let report = Report::new(args.json, &trace);
    match &args.url {
        Some(url) => {
            let peer = Peer::new(url)?;
            replay(&trace, report, out, |recorded| peer.ask(recorded))
        }
        None => args.daemon.open("tandem replay")?.run(|daemon| {
            let mut clients = Clients { daemon, by_agent: HashMap::new() };
            replay(&trace, report, out, |recorded| clients.ask(recorded))
        }),
    }
}

fn replay(
    trace: &[Recorded],
    mut report: Report,
    out: &mut dyn Write,
    mut ask: impl FnMut(&Recorded) -> Result<Answered, Failure>,
) -> Result<(), Failure> {
    report.begin(out)?;
    for recorded in trace {
        let answered = ask(recorded)?;
        report.add(Step::new(recorded, answered), out)?;
    }
    report.end(out)
}

/// An answer, whoever gave it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) text: String,
    /// Why it ended, in the server's word.
    pub(crate) finish: Option<String>,
    pub(crate) numbers: Numbers,
}

/// Makes every request feed its recorded answer.
fn forced(path: &Path, trace: Vec<Recorded>) -> Result<Vec<Recorded>, Failure> {
    let force = |mut recorded: Recorded| {
        let Some(expect) = recorded.expect.clone().filter(|expect| !expect.is_empty()) else {
            let reason =
                "--force-expected needs a recorded answer, and this line's \"expect\" is absent or empty";
            return Err(Failure::Line { path: path.to_owned(), line: recorded.line, reason: reason.into() });
        };
        recorded.request.forced_answer = Some(expect);
        Ok(recorded)
    };
    trace.into_iter().map(force).collect()
}

/// One connection an agent, made at its first request.
struct Clients<'a> {
    daemon: &'a Daemon,
    by_agent: HashMap<String, Client>,
}

impl Clients<'_> {
    fn ask(&mut self, recorded: &Recorded) -> Result<Answered, Failure> {
        let what = || format!("the request of line {}", recorded.line);
        let ask = || {
            let client = match self.by_agent.get(&recorded.agent) {
                Some(client) => client.clone(),
                None => Client::builder(self.daemon.socket()).app(app_name(&recorded.agent)).connect()?,
            };
            let answer = client.generate(recorded.request.clone())?.answer()?;
            Ok((client, answer))
        };
        let (client, answer) = ask().map_err(|source: Error| Failure::OneOf { what: what(), source })?;
        self.by_agent.entry(recorded.agent.clone()).or_insert(client);
        Ok(Answered {
            numbers: Numbers::from(&answer.stats),
            finish: Some(answer.finish.to_string()),
            text: answer.text,
        })
    }
}

/// The agent's name as far as the daemon takes it.
fn app_name(agent: &str) -> String {
    let name: String = agent.chars().filter(|c| !c.is_control()).collect();
    let end = (0..=name.len().min(64)).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    if end == 0 { "unnamed".into() } else { name[..end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_agent_has_a_name_that_the_daemon_takes() {
        assert_eq!(app_name("A"), "A");
        assert_eq!(app_name(""), "unnamed");
        assert_eq!(app_name(&"é".repeat(40)), "é".repeat(32));
    }
}
