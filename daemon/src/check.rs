//! `tandemd check`: all that serving needs, short of serving.

use crate::config::Config;
use crate::policy::PolicyHost;
use crate::power::Gate;
use crate::serve::{ServeError, terms};
use crate::session::Sessions;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

/// Opens the model on its device as serving would, and writes what holds and what an operator
/// should look at. The socket is not touched, so a running daemon is not disturbed.
pub fn check(config: &Config, out: &mut dyn Write) -> Result<(), ServeError> {
    let mut say = |label: &str, text: String| {
        // A reader that has gone away wants no more; the exit code tells the rest.
        let _ = writeln!(out, "{label:10}{text}");
    };
    match &config.flags.config {
        Some(path) => say("settings", format!("{} is in order", path.display())),
        None => say("settings", "no file; flags and defaults".into()),
    }
    // Without a manager behind the gate: votes are raised with the device, and go with it.
    let mut sessions = Sessions::new(terms(config), Arc::new(Gate::new(Box::new(|| 0))));
    let engine = sessions.open(&config.model, config.engine.clone())?;
    let dims = engine.dims();
    say(
        "model",
        format!(
            "{}: {}, {} layers, hidden {}, vocabulary {}, context {}",
            config.model.display(),
            dims.architecture,
            dims.layers,
            dims.hidden,
            dims.vocabulary,
            engine.options().context
        ),
    );
    if let Some(warning) = others_can_write(&config.model) {
        say("warning", warning);
    }
    let info = engine.executor().device();
    say("device", format!("{} ({})", info.name, info.detail));
    if let Some(reason) = sessions.fallen() {
        say(
            "warning",
            format!("device {} cannot be had, so the CPU would serve: {reason}", config.device.as_str()),
        );
    }
    let policies = PolicyHost::new()?;
    policies.placement(&config.placement)?;
    policies.check_power(&config.power.policy)?;
    say("policy", config.placement.clone());
    let released = if config.power.idle_release { "released when idle" } else { "never released" };
    say("power", format!("{}; votes are {released}", config.power.policy));
    let (checkpoint, limits) = (engine.checkpoint_bytes(), &config.limits);
    say(
        "memory",
        format!(
            "{} MiB of weights mapped; states up to {} MiB ({} KiB each), prompt cache up to {} MiB, KV up to {} MiB \
             ({} clients)",
            engine.weights_bytes() >> 20,
            limits.state_mib,
            checkpoint >> 10,
            limits.prompt_cache_mib,
            (u64::from(limits.clients) * engine.executor().kv_bytes(engine.options().context)) >> 20,
            limits.clients,
        ),
    );
    let needed = u64::from(limits.clients) * checkpoint;
    if needed > limits.state_mib << 20 {
        say(
            "warning",
            format!(
                "limits.state_mib holds {} live states of {} clients; the others' requests will be refused while \
                 all are at work",
                (limits.state_mib << 20) / checkpoint.max(1),
                limits.clients
            ),
        );
    }
    say("socket", config.socket.display().to_string());
    Ok(())
}

/// A model that others can change while it is mapped can crash the daemon or change its answers.
fn others_can_write(model: &Path) -> Option<String> {
    let real = std::fs::canonicalize(model).ok()?;
    real.ancestors().find_map(|path| {
        let mode = std::fs::metadata(path).ok()?.mode();
        // A sticky folder lets others add files, not replace this one.
        (mode & 0o002 != 0 && mode & 0o1000 == 0).then(|| {
            format!("anyone can write {}; keep the model where only its installer can", path.display())
        })
    })
}
