//! What a replay found: a line a step, or one JSON object.

use crate::failure::Failure;
use crate::numbers::{Numbers, mean};
use crate::replay::Answered;
use crate::trace::Recorded;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;

/// Longest answer shown, characters.
const SHOWN: usize = 60;

/// One request of the trace, answered.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    line: usize,
    agent: String,
    app: Value,
    episode: Value,
    step: Value,
    #[serde(flatten)]
    numbers: Numbers,
    finish: Option<String>,
    text: String,
    expected: Option<bool>,
    valid: Option<bool>,
}

impl Step {
    pub(crate) fn new(recorded: &Recorded, answered: Answered) -> Step {
        Step {
            line: recorded.line,
            agent: recorded.agent.clone(),
            app: recorded.app.clone(),
            episode: recorded.episode.clone(),
            step: recorded.step.clone(),
            numbers: answered.numbers,
            finish: answered.finish,
            expected: recorded.expect.as_ref().map(|expect| *expect == answered.text),
            valid: recorded.checker.as_ref().map(|checker| checker.accepts(&answered.text)),
            text: answered.text,
        }
    }

    /// The verdict in a word.
    fn verdict(&self) -> &'static str {
        match (self.valid, self.expected) {
            (Some(false), _) => "invalid",
            (_, Some(false)) => "differs",
            (_, Some(true)) => "ok",
            (_, None) => "-",
        }
    }
}

/// Collects the steps.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    agent_width: usize,
    steps: Vec<Step>,
}

impl Report {
    pub(crate) fn new(json: bool, trace: &[Recorded]) -> Report {
        let widest = trace.iter().map(|recorded| recorded.agent.chars().count()).max();
        Report { json, agent_width: widest.unwrap_or(0).clamp(5, 24), steps: Vec::new() }
    }

    pub(crate) fn begin(&self, out: &mut dyn Write) -> Result<(), Failure> {
        if !self.json {
            writeln!(
                out,
                "{:>5}  {:agent$}  {:>6}  {:>6}  {:>5}  {:>6}  {:>6}  {:>9}  {:7}  answer",
                "line",
                "agent",
                "prompt",
                "reused",
                "new",
                "passes",
                "tokens",
                "ms",
                "",
                agent = self.agent_width,
            )?;
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, step: Step, out: &mut dyn Write) -> Result<(), Failure> {
        if !self.json {
            let n = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
            writeln!(
                out,
                "{:>5}  {:agent$}  {:>6}  {:>6}  {:>5}  {:>6}  {:>6}  {:>9}  {:7}  {}",
                step.line,
                shorten(&step.agent, self.agent_width),
                n(step.numbers.prompt),
                n(step.numbers.restored),
                n(step.numbers.new),
                n(step.numbers.passes),
                n(step.numbers.decode_tokens),
                step.numbers.ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1}")),
                step.verdict(),
                shorten(&step.text, SHOWN),
                agent = self.agent_width,
            )?;
            out.flush()?;
        }
        self.steps.push(step);
        Ok(())
    }

    pub(crate) fn end(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let numbers: Vec<&Numbers> = self.steps.iter().map(|step| &step.numbers).collect();
        let kv_bound = mean(numbers.iter().filter_map(|n| n.unshared()));
        let rate = |of: fn(&Step) -> Option<bool>| {
            mean(self.steps.iter().filter_map(of).map(|yes| if yes { 1.0 } else { 0.0 }))
        };
        if self.json {
            let mut mean = Numbers::mean(&numbers);
            mean.insert("expected".into(), rate(|step| step.expected).into());
            mean.insert("valid".into(), rate(|step| step.valid).into());
            writeln!(out, "{}", json!({"steps": self.steps, "mean": mean, "kv_bound": kv_bound}))?;
            return Ok(());
        }
        let count = |of: fn(&Step) -> Option<bool>| {
            let known = self.steps.iter().filter_map(of);
            known.fold((0, 0), |(yes, all), is| (yes + usize::from(is), all + 1))
        };
        let (expected, recorded) = count(|step| step.expected);
        let (valid, constrained) = count(|step| step.valid);
        writeln!(out)?;
        writeln!(
            out,
            "{} requests; {expected} of {recorded} answers as recorded; {valid} of {constrained} valid under their schema",
            self.steps.len()
        )?;
        let of = |field: fn(&Numbers) -> Option<f64>| {
            let mean = mean(numbers.iter().filter_map(|n| field(n)));
            mean.map_or_else(|| "-".into(), |mean| format!("{mean:.1}"))
        };
        writeln!(
            out,
            "mean a request: prompt {}, reused {}, new {} (KV bound {}), {} ms",
            of(|n| n.prompt.map(|n| n as f64)),
            of(|n| n.restored.map(|n| n as f64)),
            of(|n| n.new.map(|n| n as f64)),
            kv_bound.map_or_else(|| "-".into(), |bound| format!("{bound:.1}")),
            of(|n| n.ms),
        )?;
        writeln!(
            out,
            "mean an answer: tokens {}, passes {}; drafts accepted: schema {} of {}, lookup {} of {}, MTP {} of {}",
            of(|n| n.decode_tokens.map(|n| n as f64)),
            of(|n| n.decode_passes.map(|n| n as f64)),
            of(|n| n.accepted_schema.map(|n| n as f64)),
            of(|n| n.drafted_schema.map(|n| n as f64)),
            of(|n| n.accepted_lookup.map(|n| n as f64)),
            of(|n| n.drafted_lookup.map(|n| n as f64)),
            of(|n| n.accepted_mtp.map(|n| n as f64)),
            of(|n| n.drafted_mtp.map(|n| n as f64)),
        )?;
        Ok(())
    }
}

/// The beginning of a text, on one line.
fn shorten(text: &str, most: usize) -> String {
    let mut short: String = text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(expected: Option<bool>, valid: Option<bool>) -> Step {
        Step {
            line: 1,
            agent: "a".into(),
            app: Value::Null,
            episode: Value::Null,
            step: Value::Null,
            numbers: Numbers { prompt: Some(10), shared: Some(4), ..Numbers::default() },
            finish: None,
            text: "x".into(),
            expected,
            valid,
        }
    }

    #[test]
    fn the_json_has_steps_mean_and_bound() {
        let mut report = Report::new(true, &[]);
        let mut out = Vec::new();
        for expected in [Some(true), Some(false), None] {
            report.add(step(expected, Some(true)), &mut out).unwrap();
        }
        report.end(&mut out).unwrap();
        let json: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["kv_bound"], 6.0);
        assert_eq!(json["mean"]["prompt"], 10.0);
        assert_eq!(json["mean"]["expected"], 0.5);
        assert_eq!(json["mean"]["valid"], 1.0);
        assert_eq!(json["steps"][0]["shared"], 4);
        assert!(json["steps"][2]["expected"].is_null());
    }

    #[test]
    fn the_first_thing_wrong_is_the_verdict() {
        assert_eq!(step(Some(false), Some(false)).verdict(), "invalid");
        assert_eq!(step(Some(false), Some(true)).verdict(), "differs");
        assert_eq!(step(Some(true), None).verdict(), "ok");
        assert_eq!(step(None, Some(true)).verdict(), "-");
    }

    #[test]
    fn a_long_text_is_cut_with_a_mark() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc…");
        assert_eq!(shorten("a\nb", 4), "a b");
    }
}
