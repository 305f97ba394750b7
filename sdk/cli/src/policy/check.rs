//! `tandem policy check`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::{Path, PathBuf};
use tandemd::policy::{CheckReport, Plugin, PolicyError, PowerPlugin, Runtime, check, check_power};

/// Runs the contract's tests and hostile inputs on a component, a placement or a power policy.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The component.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks a placement policy, or a power policy: the component's own imports and exports tell.
fn report(runtime: &Runtime, file: &Path) -> Result<CheckReport, Failure> {
    let error = match Plugin::open(runtime, file) {
        Ok(plugin) => return Ok(check(&plugin)),
        Err(error) => error,
    };
    match PowerPlugin::open(runtime, file) {
        Ok(plugin) => Ok(check_power(&plugin)),
        // It is neither; a flaw of a power policy is told as such.
        Err(PolicyError::Import { .. } | PolicyError::MissingExport { .. }) => Err(usage(error)),
        Err(flaw) => Err(usage(flaw)),
    }
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(usage)?;
    let report = report(&runtime, &args.file)?;
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
