//! `tandem policy check`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::PathBuf;
use tandemd::policy::{Plugin, Runtime, check};

/// Runs the contract's tests and hostile inputs on a component.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The component.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(usage)?;
    let plugin = Plugin::open(&runtime, &args.file).map_err(usage)?;
    let report = check(&plugin);
    if args.json {
        serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        for case in &report.cases {
            match &case.failure {
                None if case.clamped == 0 => writeln!(out, "ok      {}", case.name)?,
                None => writeln!(out, "ok      {} ({} positions dropped)", case.name, case.clamped)?,
                Some(reason) => writeln!(out, "FAILED  {}: {reason}", case.name)?,
            }
        }
        let share = 100.0 * report.most_fuel as f64 / report.fuel_limit as f64;
        writeln!(out, "most fuel a call: {} ({share:.1}% of the limit)", report.most_fuel)?;
        if let Some(us) = report.place_us {
            writeln!(out, "place: {us:.1} us a call")?;
        }
    }
    let failed = report.cases.iter().filter(|c| c.failure.is_some()).count();
    if failed > 0 {
        let of = report.cases.len();
        return Err(Failure::content(&args.file, format!("{failed} of {of} contract tests failed")));
    }
    Ok(())
}
