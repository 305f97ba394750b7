//! Settings: what the operator wrote ([`Flags`], [`File`]), then what holds ([`Config`]).

use clap::Parser;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tandem_engine::engine::EngineOptions;
use tandem_engine::switches::{SwitchError, Switches};

/// Which device runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The CPU, as fast as it can.
    #[default]
    Cpu,
    /// The scalar definition of every op: slow, for checks.
    Reference,
    /// The NPU's program under emulation, for tests: `cargo xtask hexagon` builds it.
    #[cfg(feature = "hexagon")]
    Emulator,
    /// A phone's NPU.
    #[cfg(feature = "hexagon")]
    Hexagon,
}

impl DeviceKind {
    /// Its name in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Reference => "reference",
            #[cfg(feature = "hexagon")]
            DeviceKind::Emulator => "emulator",
            #[cfg(feature = "hexagon")]
            DeviceKind::Hexagon => "hexagon",
        }
    }
}

/// What runs the model where the device cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// Nothing: the daemon does not start, or refuses requests and goes on trying.
    #[default]
    None,
    /// The CPU, until the daemon is started again.
    Cpu,
}

/// What happens where the device's session is lost: its processor died or hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// What runs the model where no session can be had, at the start or after `tries`. Default
    /// none.
    pub fallback: Fallback,
    /// Sessions in a row that may fail before requests are refused, or the fallback takes over.
    /// Default 5.
    pub tries: u32,
    /// Seconds without progress after which a batch counts as hung and its session as lost; 0
    /// is the device's own limit. Default 0. The CPU does not hang.
    pub budget_s: u64,
}

impl Default for SessionSettings {
    fn default() -> Self {
        SessionSettings { fallback: Fallback::None, tries: 5, budget_s: 0 }
    }
}

impl SessionSettings {
    /// The limit of a batch, where it is not the device's own.
    pub fn budget(&self) -> Option<std::time::Duration> {
        Some(std::time::Duration::from_secs(self.budget_s)).filter(|budget| !budget.is_zero())
    }
}

/// Serves one language model to agent apps on this machine.
///
/// SIGHUP reads the settings file again: placement policy, log level and limits change at once;
/// a file that cannot be used changes nothing. SIGTERM stops: requests in flight get an error
/// that says when to try again.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "tandemd",
    version,
    about,
    after_help = "Exit codes: 0 stopped on request; 1 failed while serving; 2 settings or model unusable; \
                  3 the socket is in use."
)]
pub struct Flags {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// Settings file (TOML). Flags override it.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Model file (GGUF).
    #[arg(long, value_name = "FILE", global = true)]
    pub model: Option<PathBuf>,
    /// Device that runs the model.
    #[arg(long, value_enum, global = true)]
    pub device: Option<DeviceKind>,
    /// Socket that apps connect to.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Worker threads of the CPU device (default: one a core).
    #[arg(long, value_name = "N", global = true)]
    pub threads: Option<usize>,
    /// Tokens of context a client (default 4096, at most the model's).
    #[arg(long, value_name = "TOKENS", global = true)]
    pub context: Option<u32>,
    /// Placement policy: where recurrent state is saved. A built-in one's name or a component.
    #[arg(long, value_name = "NAME|FILE.wasm", global = true)]
    pub placement: Option<String>,
    /// Turn a mechanism on or off, or set its value; repeatable.
    #[arg(long = "set", value_name = "SWITCH=VALUE", global = true)]
    pub set: Vec<String>,
    /// Stop when this descriptor's other end closes (for a daemon that belongs to one process).
    #[arg(long, value_name = "FD", hide = true)]
    pub owner: Option<i32>,
}

/// What `tandemd` does instead of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum Verb {
    /// Check settings, policies and model as serving would use them, say what was found, and
    /// end: exit code 0 when a daemon would serve, 2 when not.
    Check,
}

/// The settings file. Every key may be left out; unknown keys are errors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Model file.
    pub model: Option<PathBuf>,
    /// `cpu`, `hexagon`, `reference` or `emulator`.
    pub device: Option<DeviceKind>,
    /// Socket path.
    pub socket: Option<PathBuf>,
    /// Worker threads.
    pub threads: Option<usize>,
    /// Tokens of context a client.
    pub context: Option<u32>,
    /// Placement policy: a built-in one's name or the path of a component.
    pub placement: Option<String>,
    /// Name of the status board, `/dev/shm/NAME`; without one there is none.
    pub board: Option<String>,
    /// Log level, or levels by part. Default `info`; `TANDEM_LOG` goes before it.
    pub log: Option<String>,
    /// Whether a crash may leave a core file, which would hold prompts and answers. Default false.
    pub core_dumps: bool,
    /// Folder for compiled policies, which only the daemon's user may write to.
    pub policy_cache: Option<PathBuf>,
    /// Folder for the CPU's repacked weights, as large as the model; default `weights` in
    /// `$CACHE_DIRECTORY`, else they are in memory only.
    pub weight_cache: Option<PathBuf>,
    /// What work costs on this device, as `tandem policy calibrate` fits it; policies are told.
    pub cost: Option<CostModel>,
    /// What happens where the device is lost.
    pub session: SessionSettings,
    /// Power votes of an idle device.
    pub power: PowerSettings,
    /// Limits.
    pub limits: Limits,
    /// Mechanisms.
    pub switches: Switches,
}

/// When an idle device lets go of its power votes. Devices without votes have no use for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PowerSettings {
    /// The power policy: a built-in one's name or the path of a component. Default `idle-timer`.
    pub policy: String,
    /// Whether votes are released at all. Default true.
    pub idle_release: bool,
    /// File to which changes of the votes are appended, a JSON object a line.
    pub vote_log: Option<PathBuf>,
    /// Folder of the battery's fuel gauge. By default the system's first battery; "" is none.
    pub battery: Option<PathBuf>,
    /// File with the DSP's collapse counters. By default where Qualcomm's kernels have it; "" is none.
    pub collapses: Option<PathBuf>,
}

impl Default for PowerSettings {
    fn default() -> Self {
        PowerSettings {
            policy: "idle-timer".into(),
            idle_release: true,
            vote_log: None,
            battery: None,
            collapses: None,
        }
    }
}

/// What work costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// One more prompt token in a pass; at least 1.
    pub per_token_ns: u64,
    /// One more pass.
    pub per_pass_ns: u64,
    /// One more saved state.
    pub per_save_ns: u64,
}

/// Limits of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Clients at a time, a slot each. Default 16.
    pub clients: u32,
    /// Clients at a time of one user. Default 16.
    pub clients_per_user: u32,
    /// Requests a client may have waiting, the running one included. Default 8.
    pub queue: usize,
    /// Checkpoints a client. Default 8.
    pub checkpoints: u32,
    /// Saves a request. Default 6.
    pub saves: u32,
    /// MiB of all recurrent states together. Default 1024.
    pub state_mib: u64,
    /// MiB of the prompt cache; 0 turns it off. Default 512.
    pub prompt_cache_mib: u64,
    /// Seconds without work after which states and caches are given back; 0 never. Default 300.
    pub unload_after_s: u64,
    /// Permission bits of the socket file. Default 0o660.
    pub socket_mode: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            clients: 16,
            clients_per_user: 16,
            queue: 8,
            checkpoints: 8,
            saves: 6,
            state_mib: 1024,
            prompt_cache_mib: 512,
            unload_after_s: 300,
            socket_mode: 0o660,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read settings file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is no valid settings file; the text names line and column.
    #[error("settings file {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
    /// A switch.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// No model was named.
    #[error("no model: give --model FILE.gguf, or `model = \"FILE.gguf\"` in the settings file")]
    NoModel,
    /// A number out of range.
    #[error("{key} is {value}, but {need}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What would do.
        need: &'static str,
    },
    /// A policy that does not exist.
    #[error(transparent)]
    Policy(#[from] crate::policy::PolicyError),
    /// Neither on nor off.
    #[error("idle_release is {0:?}; it can be on or off")]
    IdleRelease(String),
    /// A name that no board can have.
    #[error("board: {0}")]
    Board(#[from] tandem_ipc::board::BoardError),
    /// The log level.
    #[error(transparent)]
    Log(#[from] crate::log::LogError),
}

/// Settings in force.
#[derive(Clone, Debug)]
pub struct Config {
    /// Model file.
    pub model: PathBuf,
    /// Device.
    pub device: DeviceKind,
    /// Socket path.
    pub socket: PathBuf,
    /// Worker threads.
    pub threads: usize,
    /// Placement policy.
    pub placement: String,
    /// Folder for compiled policies; without one they are compiled at every start.
    pub policy_cache: Option<PathBuf>,
    /// Folder for the CPU's repacked weights.
    pub weight_cache: Option<PathBuf>,
    /// What happens where the device is lost.
    pub session: SessionSettings,
    /// How power votes are managed.
    pub power: crate::power::Options,
    /// Limits.
    pub limits: Limits,
    /// Engine limits and switches.
    pub engine: EngineOptions,
    /// Idle time after which states and caches are given back.
    pub unload_after: Option<std::time::Duration>,
    /// Name of the status board.
    pub board: Option<String>,
    /// Log setting.
    pub log: String,
    /// Whether a crash may leave a core file.
    pub core_dumps: bool,
    /// What the settings came from, to read them again.
    pub flags: Flags,
}

/// Where the daemon listens unless told otherwise: the system's socket for root, else the
/// user's own.
pub fn default_socket() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    own.map_or_else(|| "/run/tandem/tandem.sock".into(), |dir| Path::new(&dir).join("tandem.sock"))
}

/// A folder in the service manager's cache folder, where it gives one.
fn default_cache(name: &str) -> Option<PathBuf> {
    std::env::var_os("CACHE_DIRECTORY").filter(|d| !d.is_empty()).map(|d| Path::new(&d).join(name))
}

impl File {
    /// Reads a settings file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
    }
}

impl Config {
    /// Flags over file over defaults.
    pub fn resolve(flags: &Flags) -> Result<Self, ConfigError> {
        let mut file = match &flags.config {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let mut switches = file.switches;
        let mut placement = flags.placement.clone().or(file.placement).unwrap_or_else(|| "anchor".into());
        for pair in &flags.set {
            match pair.split_once('=') {
                Some(("placement", name)) => name.clone_into(&mut placement),
                Some(("idle_release", "on" | "true")) => file.power.idle_release = true,
                Some(("idle_release", "off" | "false")) => file.power.idle_release = false,
                Some(("idle_release", value)) => return Err(ConfigError::IdleRelease(value.into())),
                _ => switches.set(pair)?,
            }
        }
        crate::policy::PolicyHost::check_power_name(&file.power.policy)?;
        let power = crate::power::Options {
            policy: file.power.policy,
            idle_release: file.power.idle_release,
            vote_log: file.power.vote_log,
            battery: file.power.battery,
            collapses: file.power.collapses,
        };
        crate::policy::PolicyHost::check_name(&placement)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = flags.threads.or(file.threads).unwrap_or(cores);
        let context = flags.context.or(file.context).unwrap_or(4096);
        let limits = file.limits;
        check("threads", threads as u64, 1..=256, "it must lie from 1 to 256")?;
        check("context", context.into(), 16..=1 << 20, "it must lie from 16 to 1048576")?;
        check("limits.clients", limits.clients.into(), 1..=4096, "it must lie from 1 to 4096")?;
        check(
            "limits.clients_per_user",
            limits.clients_per_user.into(),
            1..=4096,
            "it must lie from 1 to 4096",
        )?;
        check("limits.queue", limits.queue as u64, 1..=1024, "it must lie from 1 to 1024")?;
        check("limits.checkpoints", limits.checkpoints.into(), 0..=64, "it must lie from 0 to 64")?;
        check("limits.saves", limits.saves.into(), 0..=64, "it must lie from 0 to 64")?;
        check("limits.state_mib", limits.state_mib, 1..=1 << 20, "it must lie from 1 to 1048576")?;
        check(
            "limits.prompt_cache_mib",
            limits.prompt_cache_mib,
            0..=1 << 20,
            "it must lie from 0 to 1048576",
        )?;
        check(
            "limits.unload_after_s",
            limits.unload_after_s,
            0..=1 << 31,
            "it must lie from 0 to 2147483648",
        )?;
        check("session.tries", file.session.tries.into(), 1..=1000, "it must lie from 1 to 1000")?;
        check("session.budget_s", file.session.budget_s, 0..=86_400, "it must lie from 0 to 86400")?;
        if let Some(board) = &file.board {
            tandem_ipc::board::check_name(board)?;
        }
        let log = file.log.unwrap_or_else(|| "info".into());
        crate::log::filter(&log)?;
        let mut cost = EngineOptions::default().cost;
        if let Some(fitted) = file.cost {
            check(
                "cost.per_token_ns",
                fitted.per_token_ns,
                1..=1 << 40,
                "it must lie from 1 to 1099511627776",
            )?;
            cost.per_token = fitted.per_token_ns;
            cost.per_pass = fitted.per_pass_ns;
            cost.per_save = fitted.per_save_ns;
        }
        let engine = EngineOptions {
            cost,
            context,
            slots: limits.clients,
            queue: limits.queue,
            checkpoints: limits.checkpoints,
            saves: limits.saves,
            state_budget: limits.state_mib << 20,
            prompt_cache: limits.prompt_cache_mib << 20,
            switches,
        };
        Ok(Config {
            model: flags.model.clone().or(file.model).ok_or(ConfigError::NoModel)?,
            device: flags.device.or(file.device).unwrap_or_default(),
            socket: flags.socket.clone().or(file.socket).unwrap_or_else(default_socket),
            threads,
            placement,
            session: file.session,
            power,
            policy_cache: file.policy_cache.or_else(|| default_cache("policies")),
            weight_cache: file.weight_cache.or_else(|| default_cache("weights")),
            unload_after: Some(std::time::Duration::from_secs(limits.unload_after_s))
                .filter(|d| !d.is_zero()),
            limits,
            engine,
            board: file.board,
            log,
            core_dumps: file.core_dumps,
            flags: flags.clone(),
        })
    }

    /// Settings that differ in `new` and take effect at a restart only.
    pub fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let Config { model, device, socket, threads, placement: _, limits, engine, .. } = self;
        let changed = [
            ("model", *model != new.model),
            ("device", *device != new.device),
            ("session", self.session != new.session),
            ("socket", *socket != new.socket),
            ("threads", *threads != new.threads),
            ("context", engine.context != new.engine.context),
            ("board", self.board != new.board),
            ("policy_cache", self.policy_cache != new.policy_cache),
            ("weight_cache", self.weight_cache != new.weight_cache),
            ("cost", engine.cost != new.engine.cost),
            ("power.vote_log", self.power.vote_log != new.power.vote_log),
            ("power.battery", self.power.battery != new.power.battery),
            ("power.collapses", self.power.collapses != new.power.collapses),
            ("core_dumps", self.core_dumps != new.core_dumps),
            ("limits.socket_mode", limits.socket_mode != new.limits.socket_mode),
            ("limits.prompt_cache_mib", limits.prompt_cache_mib != new.limits.prompt_cache_mib),
            ("switches", engine.switches != new.engine.switches),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }
}

fn check(
    key: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
    need: &'static str,
) -> Result<(), ConfigError> {
    if range.contains(&value) { Ok(()) } else { Err(ConfigError::Range { key, value, need }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<File, String> {
        toml::from_str(text).map_err(|e: toml::de::Error| e.to_string())
    }

    #[test]
    fn unknown_keys_and_values_are_refused_with_their_line() {
        let error = file("model = \"a\"\ndevcie = \"cpu\"\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("devcie"), "{error}");
        let error = file("[switches]\nkv_type = \"f64\"\n").unwrap_err();
        assert!(error.contains("line 2"), "{error}");
        let error = file("[limits]\nclient = 3\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("client"), "{error}");
    }

    #[test]
    fn power_settings_are_checked_by_name() {
        let error = file("[power]\npolicy = \"adaptive\"\nidle_relaese = true\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("idle_relaese"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        std::fs::write(&path, "[power]\npolicy = \"fastest\"\n").unwrap();
        let flags = Flags { model: Some("m.gguf".into()), config: Some(path.clone()), ..Flags::default() };
        let text = Config::resolve(&flags).unwrap_err().to_string();
        assert!(text.contains("fastest") && text.contains("idle-timer, adaptive"), "{text}");
        std::fs::write(&path, "[power]\npolicy = \"adaptive\"\n").unwrap();
        let flags = Flags { set: vec!["idle_release=off".into()], ..flags };
        let power = Config::resolve(&flags).unwrap().power;
        assert_eq!((&*power.policy, power.idle_release), ("adaptive", false));
        let flags = Flags { set: vec!["idle_release=maybe".into()], ..flags };
        assert!(Config::resolve(&flags).unwrap_err().to_string().contains("maybe"));
    }

    #[test]
    fn flags_override_the_file() {
        let flags =
            Flags { model: Some("m.gguf".into()), set: vec!["kv_type=f32".into()], ..Flags::default() };
        let config = Config::resolve(&flags).unwrap();
        assert_eq!(config.engine.switches.kv_type, tandem_engine::switches::KvType::F32);
        let wrong = Flags { set: vec!["nothing=on".into()], ..flags };
        assert!(Config::resolve(&wrong).unwrap_err().to_string().contains("nothing"));
    }

    #[test]
    fn a_policy_that_does_not_exist_is_named_with_those_that_do() {
        let flags =
            Flags { model: Some("m.gguf".into()), placement: Some("best".into()), ..Flags::default() };
        let text = Config::resolve(&flags).unwrap_err().to_string();
        assert!(text.contains("best") && text.contains("divergence"), "{text}");
        let flags = Flags { set: vec!["placement=chat".into()], placement: None, ..flags };
        assert_eq!(Config::resolve(&flags).unwrap().placement, "chat");
        let flags = Flags { set: vec!["placement=worst".into()], ..flags };
        assert!(Config::resolve(&flags).unwrap_err().to_string().contains("worst"));
    }
}
