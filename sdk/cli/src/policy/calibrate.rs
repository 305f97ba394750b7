//! `tandem policy calibrate`.

use super::usage;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::bench::{Figure, prefill_passes};
use tandem_engine::executor::Executor;
use tandem_engine::gguf::Gguf;
use tandem_engine::switches::Switches;
use tandem_lab::calibrate::{Measurement, fit, read};

/// Fits the cost model (a token, a pass, a save) to a device from measured requests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `tandem replay --json` printed on the device, or one measurement a line:
    /// {"new":512,"passes":1,"saves":0,"prefill_ms":640.0}. `-` is standard input.
    #[arg(required_unless_present = "model")]
    measured: Option<PathBuf>,
    /// Measure passes of this model on this machine's CPU instead.
    #[arg(long, value_name = "FILE.gguf", conflicts_with = "measured")]
    model: Option<PathBuf>,
    /// Worker threads of the measurement; 0: one a core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Measured runs, after one warm-up.
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Write the model to a file for `tandem policy simulate --cost`.
    #[arg(short, long, value_name = "FILE.json")]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn recorded(path: &Path) -> Result<Vec<Measurement>, Failure> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(Failure::read(path))?;
    } else {
        text = std::fs::read_to_string(path).map_err(Failure::read(path))?;
    }
    read(&text).map_err(|e| Failure::content(path, e.to_string()))
}

/// Runs passes of the model. Of equal passes the fastest is taken: other work on the machine
/// only makes them slower.
fn measure(model: &Path, args: &Args) -> Result<Vec<Measurement>, Failure> {
    let content = |reason: String| Failure::content(model, reason);
    let config = CpuConfig { threads: args.threads, ..CpuConfig::default() };
    let device = Box::new(Cpu::new(config).map_err(usage)?);
    let gguf = Gguf::open(model).map_err(|source| Failure::Model { path: model.to_owned(), source })?;
    let mut executor =
        Executor::new(&gguf, device, Switches::default()).map_err(|e| content(e.to_string()))?;
    let passes = prefill_passes(&mut executor, args.runs).map_err(|e| content(e.to_string()))?;
    let mut times: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
    for pass in passes {
        times.entry((pass.tokens, pass.saves)).or_default().push(pass.ms);
    }
    let measurement = |((tokens, saves), ms): ((u32, u32), Vec<f64>)| Measurement {
        new: tokens.into(),
        passes: 1.0,
        saves: saves.into(),
        prefill_ms: Figure::of(ms).min,
    };
    Ok(times.into_iter().map(measurement).collect())
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let (source, measured) = match (&args.measured, &args.model) {
        (Some(path), _) => (path, recorded(path)?),
        (None, Some(model)) => (model, measure(model, args)?),
        (None, None) => return Err(Failure::Usage("give a file of measurements, or --model".into())),
    };
    let fit = fit(&measured).map_err(|e| Failure::content(source, e.to_string()))?;
    if let Some(path) = &args.out {
        let model = serde_json::to_string_pretty(&fit.cost).map_err(usage)?;
        std::fs::write(path, model + "\n").map_err(Failure::write(path))?;
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
            "from {} measurements; it explains {:.1}% of the variation, {:.2} ms off on average",
            fit.measurements,
            100.0 * fit.explained,
            fit.error_ms
        )?;
    }
    Ok(())
}
