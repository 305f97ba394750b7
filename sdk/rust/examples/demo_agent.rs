//! An agent app that works through recorded screens, for `cargo xtask demo`.
//!
//! `demo_agent NAME SCREENS.jsonl LIMIT`: asks for the next action on each screen that
//! belongs to the agent NAME, at most LIMIT of them, and prints what came back, one JSON
//! object a line. The daemon's socket is in `TANDEM_SOCKET`. The recorded answers are in the
//! same file; this program does not look at them.

use std::io::Write;

use serde_json::{Value, json};
use tandem_sdk::{Client, Event, Request, default_socket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, screens, limit] = &arguments[..] else {
        return Err("usage: demo_agent NAME SCREENS.jsonl LIMIT".into());
    };
    let limit: usize = limit.parse()?;
    let client = Client::builder(default_socket()).app(name).connect()?;
    let screens = std::fs::read_to_string(screens)?;
    let mut asked = 0;
    for (at, line) in screens.lines().enumerate() {
        let screen: Value = serde_json::from_str(line)?;
        if screen["agent"] != name.as_str() || asked == limit {
            continue;
        }
        asked += 1;
        let request = Request::from_chat_completions(&screen["request"])?;
        let mut answer = String::new();
        for event in client.generate(request)? {
            match event? {
                Event::Accepted { .. } => {}
                Event::Token(token) => answer.push_str(&token.text),
                Event::Done { stats, .. } => {
                    let report = json!({
                        "line": at + 1, "answer": answer, "prompt": stats.prompt,
                        "reused": stats.restored, "tokens": stats.decode_tokens, "ms": stats.ms
                    });
                    writeln!(std::io::stdout(), "{report}")?;
                }
            }
        }
    }
    Ok(())
}
