//! `tandem top`: the status again and again.

use crate::failure::Failure;
use crate::status;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Shows what a running daemon does, again and again, until interrupted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Socket of the daemon. Default: $TANDEM_SOCKET, else the user's daemon, else the system's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// End after N looks.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print the daemon's own JSON object, one a line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    if !(0.05..=86_400.0).contains(&args.interval) {
        let text = format!("--interval is {}; 0.05 to 86400 seconds are possible", args.interval);
        return Err(Failure::Usage(text));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let client = status::connect(args.socket.as_ref(), "tandem top")?;
    let clear = !args.json && std::io::stdout().is_terminal();
    let mut last: Option<(Instant, Value)> = None;
    let mut looks = 0;
    loop {
        let now = Instant::now();
        let status = client.status()?;
        if args.json {
            writeln!(out, "{status}")?;
        } else {
            if clear {
                // Home, and clear what is below.
                write!(out, "\x1b[H\x1b[J")?;
            }
            out.write_all(status::words(&status).as_bytes())?;
            let rates = last.as_ref().map(|(then, before)| rates(before, &status, now - *then));
            writeln!(out, "{:10}{}", "rates", rates.unwrap_or_else(|| "...".into()))?;
        }
        out.flush()?;
        last = Some((now, status));
        looks += 1;
        if args.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// What happened between two looks.
fn rates(before: &Value, after: &Value, time: Duration) -> String {
    let rate = |name: &str| {
        let of = |status: &Value| status["counters"][name].as_u64().unwrap_or(0);
        of(after).saturating_sub(of(before)) as f64 / time.as_secs_f64().max(1e-3)
    };
    format!(
        "{:.1} answers, {:.0} prompt tokens processed, {:.0} reused, {:.1} answer tokens a second",
        rate("answered"),
        rate("prompt_tokens"),
        rate("reused_tokens"),
        rate("answer_tokens"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_differences_over_time() {
        let at = |n: u64| json!({"counters": {"answered": n, "prompt_tokens": 100 * n}});
        let text = rates(&at(1), &at(5), Duration::from_secs(2));
        assert!(text.starts_with("2.0 answers, 200 prompt tokens"), "{text}");
    }
}
