//! `tandem policy simulate`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tandem_engine::executor::Executor;
use tandem_engine::gguf::Gguf;
use tandem_engine::switches::Switches;
use tandem_lab::calibrate::CostFile;
use tandem_lab::simulate::{Report, Settings, kv_bound, simulate};
use tandem_lab::sweep::{Sweep, sweep};
use tandem_lab::trace::Reader;
use tandem_lab::{svg, table};
use tandem_policy::Placement;
use tandem_program::reference::Reference;
use tandemd::policy::PolicyHost;

/// Replays a recorded trace through the engine's own slots, prompt cache and planner, with a
/// cost model in place of a model, and scores policies.
///
/// Means are over the requests after each client's first. "KV bound": the prompt tokens that
/// would be processed if the state could be cut anywhere, as an attention cache can.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace: a line is {"agent","request":{chat-completions body},"expect"}.
    trace: PathBuf,
    /// A GGUF file with the vocabulary and chat template. Where it holds a model, its sizes are
    /// taken too.
    #[arg(long, value_name = "FILE.gguf")]
    tokenizer: PathBuf,
    /// A built-in policy's name or a component; may be given again. By default all built-in ones.
    #[arg(long, value_name = "NAME|FILE.wasm")]
    policy: Vec<String>,
    /// Run built-in policies as the daemon does, in Wasm, and not natively.
    #[arg(long)]
    wasm: bool,
    /// Vary one setting: threshold, checkpoints or cache.
    #[arg(long, value_name = "SETTING")]
    sweep: Option<Sweep>,
    /// Cost model, as `tandem policy calibrate` writes it; by default the paper's phone.
    #[arg(long, value_name = "FILE.json")]
    cost: Option<PathBuf>,
    /// Checkpoints a slot keeps.
    #[arg(long, default_value_t = 8)]
    checkpoints: u32,
    /// Saves a request.
    #[arg(long, default_value_t = 6)]
    saves: u32,
    /// Size of a checkpoint, in KiB; by default the model's, or the paper's 51200.
    #[arg(long, value_name = "KIB")]
    checkpoint_kib: Option<u64>,
    /// Size of a token's KV cells, in bytes; by default the model's, or the paper's 32768.
    #[arg(long, value_name = "BYTES")]
    kv_bytes: Option<u64>,
    /// Size of the prompt cache, in MiB; 0 turns it off.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    cache_mib: u64,
    /// Most of all states, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    states_mib: u64,
    /// `in_pass_saves=off` or `consolidate=off`, as the daemon's switches; may be given again.
    #[arg(long, value_name = "SWITCH=on|off")]
    set: Vec<String>,
    /// Draw every request as a bar.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

type Maker = Box<dyn Fn() -> Box<dyn Placement + Send>>;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let settings = settings(args)?;
    let trace = Reader::open(&args.tokenizer).and_then(|r| r.read(&args.trace)).map_err(usage)?;
    let host = Arc::new(PolicyHost::new().map_err(usage)?);
    let mut policies = Vec::new();
    for (name, make) in makers(args, &host)? {
        match args.sweep {
            None => policies.push(simulate(&name, &trace, &settings, &make)),
            Some(what) => policies.extend(sweep(what, &name, &trace, &settings, &make)),
        }
        // A threshold is one policy's, whatever else was named.
        if args.sweep == Some(Sweep::Threshold) {
            break;
        }
    }
    for plugin in host.status().iter().filter(|plugin| plugin.stood_in > 0) {
        eprintln!(
            "tandem: {}: {} calls trapped, {} ran out of fuel or time, {} answered nonsense; the built-in policy \
             answered {} calls, so these numbers are not the plugin's alone (see tandem policy check)",
            plugin.name, plugin.traps, plugin.timeouts, plugin.nonsense, plugin.stood_in
        );
    }
    let report = Report { kv_bound: kv_bound(&trace), policies };
    if let Some(path) = &args.svg {
        let title = args.trace.file_name().unwrap_or_default().to_string_lossy();
        std::fs::write(path, svg::svg(&report, &title)).map_err(Failure::write(path))?;
    }
    if args.json {
        serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table::table(&report))?;
    }
    Ok(())
}

/// The policies asked for. A component is loaded once, before anything runs.
fn makers(args: &Args, host: &Arc<PolicyHost>) -> Result<Vec<(String, Maker)>, Failure> {
    let all: Vec<String> = tandem_policies::PLACEMENTS.iter().map(|p| p.name.to_owned()).collect();
    let names = if args.policy.is_empty() { &all } else { &args.policy };
    let mut makers: Vec<(String, Maker)> = Vec::new();
    for name in names {
        let native = tandem_policies::placement(name).filter(|_| !args.wasm);
        let make: Maker = match native {
            Some(built_in) => Box::new(built_in.native),
            None => {
                let first = host.placement(name).map_err(usage)?;
                drop(first);
                let (host, name) = (host.clone(), name.clone());
                let stand_in = tandem_policies::PLACEMENTS[0].native;
                // Loaded above: only a host without memory could fail here.
                Box::new(move || host.placement(&name).unwrap_or_else(|_| stand_in()))
            }
        };
        makers.push((name.clone(), make));
    }
    Ok(makers)
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let default = Settings::default();
    let (state, cells) = model_sizes(&args.tokenizer).unwrap_or((default.checkpoint_bytes, default.kv_bytes));
    let mut settings = Settings {
        checkpoints: args.checkpoints,
        saves: args.saves,
        checkpoint_bytes: args.checkpoint_kib.map_or(state, |kib| kib << 10),
        kv_bytes: args.kv_bytes.unwrap_or(cells),
        prompt_cache: args.cache_mib << 20,
        state_budget: args.states_mib << 20,
        ..default
    };
    if let Some(path) = &args.cost {
        settings.cost = cost(path)?;
    }
    for switch in &args.set {
        let planner = &mut settings.planner;
        match switch.split_once('=') {
            Some(("in_pass_saves", value)) => planner.in_pass_saves = on(switch, value)?,
            Some(("consolidate", value)) => planner.consolidate = on(switch, value)?,
            _ => {
                let text = format!("--set {switch}: there is in_pass_saves=on|off and consolidate=on|off");
                return Err(Failure::Usage(text));
            }
        }
    }
    Ok(settings)
}

/// Bytes of a checkpoint and of a token's KV cells, where the file holds a model and not the
/// vocabulary alone.
fn model_sizes(path: &Path) -> Option<(u64, u64)> {
    let gguf = Gguf::open(path).ok()?;
    let executor = Executor::new(&gguf, Box::new(Reference::new()), Switches::default()).ok()?;
    Some((executor.states().state_bytes(), executor.kv_bytes(1)))
}

fn on(switch: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Failure::Usage(format!("--set {switch}: the value is on or off"))),
    }
}

fn cost(path: &Path) -> Result<tandem_policy::Cost, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::read(path))?;
    let file: CostFile =
        serde_json::from_str(&text).map_err(|e| Failure::content(path, format!("not a cost model: {e}")))?;
    if file.per_token_ns == 0 {
        return Err(Failure::content(path, "per_token_ns is 0: no device is that fast"));
    }
    Ok(file.into())
}
