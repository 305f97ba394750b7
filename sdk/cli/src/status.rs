//! `tandem status`: what the daemon does now.

use crate::failure::Failure;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use tandem_ipc::board;
use tandem_sdk::Client;

/// Shows what a running daemon does now.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Socket of the daemon. Default: $TANDEM_SOCKET, else the user's daemon, else the system's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Read the status board of this name instead of asking: it can be read while the daemon is
    /// stuck, and after its death. The name is `board` in the daemon's settings.
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    board: Option<String>,
    /// Print the daemon's own JSON object: `device`, `model`, `clients`, `memory` (bytes by
    /// purpose), `power`, `counters`, and more.
    #[arg(long)]
    json: bool,
}

/// Connects to a running daemon.
pub(crate) fn connect(socket: Option<&PathBuf>, app: &str) -> Result<Client, Failure> {
    let socket = socket.cloned().unwrap_or_else(tandem_sdk::default_socket);
    Ok(Client::builder(socket).app(app).connect()?)
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(name) = &args.board {
        return show_board(&board::read(name)?, args.json, out);
    }
    let status = connect(args.socket.as_ref(), "tandem status")?.status()?;
    if args.json {
        writeln!(out, "{status}")?;
    } else {
        out.write_all(words(&status).as_bytes())?;
    }
    Ok(())
}

/// What a board says: what the daemon does and since when, then its last report.
fn show_board(reading: &board::Reading, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let alive = reading.is_alive();
    let report = reading.report.as_deref().and_then(|report| serde_json::from_str::<Value>(report).ok());
    if json {
        let all = json!({
            "pid": reading.pid,
            "alive": alive,
            "phase": reading.phase.name(),
            "phase_ms": reading.since.as_millis() as u64,
            "passes": reading.passes,
            "report": report,
        });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    let state = if alive { "" } else { "; that process is gone" };
    writeln!(
        out,
        "{:10}process {}{state}: {} for {:.1} s, {} passes so far",
        "board",
        reading.pid,
        reading.phase.name(),
        reading.since.as_secs_f64(),
        reading.passes
    )?;
    match report {
        Some(report) => out.write_all(words(&report).as_bytes())?,
        None => writeln!(out, "{:10}none; the daemon had nothing to tell yet", "report")?,
    }
    Ok(())
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "?".into(),
        other => other.to_string(),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn policy_words(policy: &Value) -> String {
    let mut words = format!("{}: {} calls", text(&policy["name"]), number(&policy["calls"]));
    for (key, what) in [
        ("traps", "trapped"),
        ("timeouts", "ran out of fuel or time"),
        ("nonsense", "answered nonsense"),
        ("failed_starts", "instances did not start"),
        ("stood_in", "answered by the built-in policy"),
        ("clamped", "positions dropped"),
    ] {
        if number(&policy[key]) > 0 {
            words.push_str(&format!(", {} {what}", number(&policy[key])));
        }
    }
    if policy["quarantined"] == true {
        words.push_str("; QUARANTINED until the next reload");
    }
    words
}

fn power_words(power: &Value) -> String {
    if power["votes"] == "none" {
        return "the device has no votes to release".into();
    }
    let seconds = |key: &str| number(&power[key]) as f64 / 1000.0;
    let mut words = format!(
        "votes {} by {}{}; held {:.1} s, released {:.1} s, {} wake-ups",
        text(&power["votes"]),
        text(&power["policy"]),
        if power["idle_release"] == false { " (idle release is off)" } else { "" },
        seconds("held_ms"),
        seconds("released_ms"),
        number(&power["wakeups"]),
    );
    if let Some(step) = power["energy"]["step_microjoules"].as_u64() {
        words.push_str(&format!(", {:.2} J a step", step as f64 / 1e6));
    }
    if let Some(times) = power["collapses"]["count"].as_u64() {
        let ms = number(&power["collapses"]["ms"]);
        words.push_str(&format!("; collapsed {times} times, {:.1} s", ms as f64 / 1000.0));
    }
    if number(&power["unlogged"]) > 0 {
        words.push_str(&format!("; the vote log lacks {} changes", number(&power["unlogged"])));
    }
    words
}

/// What befell the device's sessions; nothing where nothing did.
fn session_words(session: &Value) -> Vec<String> {
    let mut words = Vec::new();
    let why = text(&session["last_loss"]);
    match session["state"].as_str() {
        Some("rebuilding") => words.push(format!("LOST, another session is being made: {why}")),
        Some("down") => words.push(format!("DOWN, requests are refused while it is tried on: {why}")),
        _ => {}
    }
    if !session["fallback"].is_null() {
        let (wanted, why) = (text(&session["wanted"]), text(&session["fallback"]));
        words.push(format!("instead of {wanted}, which cannot be had: {why}"));
    }
    if number(&session["lost"]) > 0 {
        let (lost, rebuilt) = (number(&session["lost"]), number(&session["rebuilt"]));
        words.push(format!("{lost} sessions lost, {rebuilt} made again; the last: {why}"));
    }
    words
}

/// The status in a person's words.
pub(crate) fn words(status: &Value) -> String {
    let mut words = String::new();
    let mut line = |label: &str, text: String| {
        // Writing to a string does not fail.
        let _ = writeln!(words, "{label:10}{text}");
    };
    line(
        "daemon",
        format!(
            "tandemd {}, process {}, up {}",
            text(&status["version"]),
            text(&status["pid"]),
            duration(number(&status["uptime_s"]))
        ),
    );
    let model = &status["model"];
    line(
        "model",
        format!(
            "{} ({}, {} layers, hidden {}, vocabulary {}, context {} a client)",
            text(&model["file"]),
            text(&model["architecture"]),
            text(&model["layers"]),
            text(&model["hidden"]),
            text(&model["vocabulary"]),
            text(&model["context"]),
        ),
    );
    let device = &status["device"];
    line("device", format!("{} ({})", text(&device["name"]), text(&device["detail"])));
    for session in session_words(&status["session"]) {
        line("", session);
    }
    line("policy", text(&status["placement"]));
    for policy in status["policies"].as_array().into_iter().flatten() {
        line("", policy_words(policy));
    }
    line("power", power_words(&status["power"]));
    let memory = status["memory"].as_object();
    let parts: Vec<String> = memory
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), bytes(number(value))))
        .collect();
    line("memory", parts.join(", "));
    let counters = status["counters"].as_object();
    let parts: Vec<String> = counters
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
        .collect();
    line("since then", parts.join(", "));
    let clients = status["clients"].as_array().map_or(&[][..], Vec::as_slice);
    line("clients", clients.len().to_string());
    for client in clients {
        line("", client_words(client));
    }
    words
}

fn client_words(client: &Value) -> String {
    let doing = match number(&client["running"]) {
        0 => "idle".to_owned(),
        1 => "1 request at work or waiting".to_owned(),
        n => format!("{n} requests at work or waiting"),
    };
    let checkpoints = client["checkpoints"].as_array().map_or(&[][..], Vec::as_slice);
    let places: Vec<String> = checkpoints.iter().map(Value::to_string).collect();
    let saved =
        if places.is_empty() { String::new() } else { format!(", states saved at {}", places.join(" ")) };
    format!(
        "{} (process {}, user {}): {} requests so far, {doing}; {} tokens cached{saved}",
        text(&client["app"]),
        text(&client["pid"]),
        text(&client["uid"]),
        text(&client["requests"]),
        text(&client["tokens"]),
    )
}

/// Bytes with a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_their_numbers() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 30), "8.0 GiB");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(3725), "1 h 2 min");
    }

    #[test]
    fn what_befell_the_device_is_told() {
        let quiet = json!({"session": {"wanted": "cpu", "state": "up", "lost": 0, "fallback": null}});
        assert!(!words(&quiet).contains("session"), "{}", words(&quiet));
        let session = json!({"wanted": "emulator", "state": "up", "lost": 3, "rebuilt": 3, "last_loss": "it hung", "fallback": "it died"});
        let told = words(&json!({ "session": session }));
        assert!(told.contains("instead of emulator, which cannot be had: it died"), "{told}");
        assert!(told.contains("3 sessions lost, 3 made again; the last: it hung"), "{told}");
        let down = json!({"session": {"state": "down", "last_loss": "no answer"}});
        assert!(words(&down).contains("DOWN, requests are refused while it is tried on: no answer"));
    }

    #[test]
    fn energy_and_a_vote_log_with_gaps_are_told_where_known() {
        let known = json!({"votes": "held", "policy": "adaptive", "unlogged": 3, "collapses": {"count": 2, "ms": 1500},
            "energy": {"step_microjoules": 1_250_000}});
        let told = power_words(&known);
        assert!(
            told.ends_with("1.25 J a step; collapsed 2 times, 1.5 s; the vote log lacks 3 changes"),
            "{told}"
        );
        let unknown = json!({"votes": "held", "unlogged": 0, "collapses": null, "energy": null});
        assert!(power_words(&unknown).ends_with("0 wake-ups"));
    }

    #[test]
    fn a_status_that_lacks_parts_is_still_words() {
        assert!(words(&json!({})).contains("tandemd ?"));
        let status = json!({"clients": [{"app": "office", "pid": 7, "uid": 0, "requests": 3, "running": 1, "tokens": 40, "checkpoints": [8]}]});
        assert!(words(&status).contains("office (process 7, user 0): 3 requests so far, 1 request at work"));
    }
}
