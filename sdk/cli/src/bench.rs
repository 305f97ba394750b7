//! `tandem bench`: speed of a model on a device, of the rings beside a socket, and of policies.

use crate::failure::Failure;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::bench::{Figure, measure};
use tandem_engine::executor::Executor;
use tandem_engine::gguf::Gguf;
use tandem_engine::switches::Switches;
use tandem_ipc::bench::{self, BenchConfig};
use tandem_program::Device;
use tandem_program::reference::Reference;
use tandemd::policy::{self, Plugin, Runtime};

/// Measures speed: of a model on a device, of the rings (`bench ipc`), or of placement policies
/// (`bench policy`).
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Model file (GGUF).
    #[arg(long, value_name = "FILE.gguf", required = true)]
    model: Option<PathBuf>,
    /// Device.
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceKind,
    /// Worker threads of the CPU device; 0: one a core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Measured runs, after one warm-up.
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Turn a mechanism on or off, or set its value; repeatable.
    #[arg(long = "set", value_name = "SWITCH=VALUE")]
    set: Vec<String>,
    /// Print one JSON object: `device`, `threads`, `model`, `pp512`, `tg64` (tokens a second),
    /// `verify` (passes a second by number of columns), each as `min`, `median`, `max`.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Round trips and bursts through the rings, beside a Unix socket, in one run.
    Ipc {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Calls of placement policies in Wasm with fuel, on an agent's everyday requests.
    Policy {
        /// A built-in policy's name or a component; by default all built-in ones.
        #[arg(value_name = "NAME|FILE.wasm")]
        policies: Vec<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DeviceKind {
    Cpu,
    Reference,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    match (&args.what, &args.model) {
        (Some(What::Ipc { json }), _) => ipc(*json, out),
        (Some(What::Policy { policies, json }), _) => policy(policies, *json, out),
        (None, Some(model)) => speed(args, model, out),
        (None, None) => Err(Failure::Usage("give --model FILE.gguf, `bench ipc` or `bench policy`".into())),
    }
}

fn speed(args: &Args, model: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let content = |reason: String| Failure::Content { path: model.to_owned(), reason };
    let mut switches = Switches::default();
    for pair in &args.set {
        switches.set(pair).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let device: Box<dyn Device> = match args.device {
        DeviceKind::Reference => Box::new(Reference::new()),
        DeviceKind::Cpu => {
            let config = CpuConfig { threads: args.threads, ..CpuConfig::default() };
            Box::new(Cpu::new(config).map_err(|e| Failure::Usage(e.to_string()))?)
        }
    };
    let gguf = Gguf::open(model).map_err(|source| Failure::Model { path: model.to_owned(), source })?;
    let mut executor = Executor::new(&gguf, device, switches).map_err(|e| content(e.to_string()))?;
    let info = executor.device().clone();
    let speed = measure(&mut executor, args.runs).map_err(|e| content(e.to_string()))?;
    if args.json {
        let mut report = serde_json::to_value(&speed).unwrap_or_default();
        report["device"] = json!(info.name);
        report["threads"] = json!(info.threads);
        report["model"] = json!(model.display().to_string());
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "{} on {} ({}), {} threads", model.display(), info.name, info.detail, info.threads)?;
    let mut line = |name: &str, unit: &str, f: &Figure| {
        writeln!(out, "  {name:10} {:9.2} {unit} a second  ({:.2} to {:.2})", f.median, f.min, f.max)
    };
    line("pp512", "tokens", &speed.pp512)?;
    line("tg64", "tokens", &speed.tg64)?;
    for (columns, figure) in &speed.verify {
        line(&format!("verify{columns}"), "passes", figure)?;
    }
    Ok(())
}

fn ipc(json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let report = bench::run(BenchConfig::default())
        .map_err(|e| Failure::Usage(format!("the rings could not be measured: {e}")))?;
    let value = serde_json::to_value(report).unwrap_or_default();
    if json {
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
    }
    Ok(())
}

fn policy(names: &[String], json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let usage = |e: tandemd::policy::PolicyError| Failure::Usage(e.to_string());
    let runtime = Runtime::new().map_err(usage)?;
    let plugin = |name: &str| match tandem_policies::placement(name) {
        Some(built_in) => Plugin::from_bytes(&runtime, name, built_in.component),
        None => Plugin::open(&runtime, Path::new(name)),
    };
    let all: Vec<String> = tandem_policies::PLACEMENTS.iter().map(|p| p.name.to_owned()).collect();
    let mut report = serde_json::Map::new();
    if !json {
        writeln!(
            out,
            "{:24} {:>9} {:>9} {:>9} {:>11} {:>8}",
            "us a call", "place", "evict", "observe", "fuel", "of step"
        )?;
    }
    for name in if names.is_empty() { &all[..] } else { names } {
        let times = policy::bench(&plugin(name).map_err(usage)?)
            .map_err(|reason| Failure::Usage(format!("{name}: a call failed: {reason}")))?;
        if !json {
            writeln!(
                out,
                "{name:24} {:>9.2} {:>9.2} {:>9.2} {:>11.0} {:>7.3}%",
                times.place_us.median,
                times.evict_us.median,
                times.observe_us.median,
                times.place_fuel,
                100.0 * times.share_of_step
            )?;
        }
        report.insert(name.clone(), serde_json::to_value(times).unwrap_or_default());
    }
    if json {
        writeln!(out, "{}", serde_json::Value::Object(report))?;
    }
    Ok(())
}
