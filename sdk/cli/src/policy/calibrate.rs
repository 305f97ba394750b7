//! `tandem policy calibrate`.

use super::usage;
use crate::failure::Failure;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tandem_lab::calibrate::{fit, read};

/// Fits the cost model (a token, a pass, a save) to a device from measured requests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `tandem replay --json` printed on the device, or one measurement a line:
    /// {"new":512,"passes":1,"saves":0,"prefill_ms":640.0}. `-` is standard input.
    measured: PathBuf,
    /// Write the model to a file for `tandem policy simulate --cost`.
    #[arg(short, long, value_name = "FILE.json")]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let mut text = String::new();
    if args.measured == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(Failure::read(&args.measured))?;
    } else {
        text = std::fs::read_to_string(&args.measured).map_err(Failure::read(&args.measured))?;
    }
    let fit = read(&text)
        .and_then(|measured| fit(&measured))
        .map_err(|e| Failure::content(&args.measured, &e.to_string()))?;
    if let Some(path) = &args.out {
        let model = serde_json::to_string_pretty(&fit.cost).map_err(usage)?;
        std::fs::write(path, model + "\n").map_err(|source| Failure::File {
            what: "write",
            path: path.clone(),
            source,
        })?;
    }
    if args.json {
        serde_json::to_writer(&mut *out, &fit).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        let ms = |ns: u64| ns as f64 / 1e6;
        writeln!(out, "a token {:.4} ms", ms(fit.cost.per_token_ns))?;
        writeln!(out, "a pass  {:.3} ms", ms(fit.cost.per_pass_ns))?;
        writeln!(out, "a save  {:.3} ms", ms(fit.cost.per_save_ns))?;
        writeln!(
            out,
            "from {} requests; it explains {:.1}% of the variation, {:.2} ms off on average",
            fit.measurements,
            100.0 * fit.explained,
            fit.error_ms
        )?;
    }
    Ok(())
}
