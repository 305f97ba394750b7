//! The policies of the daemon, by name, and their reload.

use super::cache::Cache;
use super::error::PolicyError;
use super::health::PolicyStatus;
use super::placement::WasmPlacement;
use super::plugin::{Plugin, World};
use super::power::WasmPower;
use super::runtime::Runtime;
use super::world;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tandem_policies::{Builtin, BuiltinPower};
use tandem_policy::{Placement, Power};

/// A policy that comes with Tandem, of either kind.
pub(crate) trait BuiltIn: Sized + 'static {
    type World: World;

    /// All of the kind, the default first.
    const ALL: &'static [Self];

    fn name(&self) -> &'static str;
    fn component(&self) -> &'static [u8];
}

impl BuiltIn for Builtin {
    type World = world::placement::Placement;
    const ALL: &'static [Self] = tandem_policies::PLACEMENTS;

    fn name(&self) -> &'static str {
        self.name
    }
    fn component(&self) -> &'static [u8] {
        self.component
    }
}

impl BuiltIn for BuiltinPower {
    type World = world::power::Power;
    const ALL: &'static [Self] = tandem_policies::POWERS;

    fn name(&self) -> &'static str {
        self.name
    }
    fn component(&self) -> &'static [u8] {
        self.component
    }
}

/// Where a named policy's plugin comes from; who uses it follows it over reloads.
pub(crate) struct Source<B: BuiltIn> {
    origin: Origin<B>,
    stand_in: &'static B,
    plugin: Mutex<Arc<Plugin<B::World>>>,
    generation: AtomicU64,
}

enum Origin<B: BuiltIn> {
    Builtin(&'static B),
    File(PathBuf),
}

impl<B: BuiltIn> Origin<B> {
    fn of(name: &str) -> Result<Self, PolicyError> {
        match B::ALL.iter().find(|b| b.name() == name) {
            Some(built_in) => Ok(Self::Builtin(built_in)),
            None if name.contains(['/', '.']) => Ok(Self::File(PathBuf::from(name))),
            None => {
                let known = B::ALL.iter().map(B::name).collect();
                Err(PolicyError::Unknown { name: name.to_owned(), known })
            }
        }
    }
}

impl<B: BuiltIn> Source<B> {
    fn lock(&self) -> MutexGuard<'_, Arc<Plugin<B::World>>> {
        self.plugin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> (u64, Arc<Plugin<B::World>>) {
        let plugin = self.lock();
        (self.generation.load(Ordering::Acquire), plugin.clone())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The built-in policy that answers where the plugin fails.
    pub(crate) fn stand_in(&self) -> &'static B {
        self.stand_in
    }

    fn replace(&self, plugin: Plugin<B::World>) {
        let mut current = self.lock();
        *current = Arc::new(plugin);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// Policies of a kind, by name.
type Sources<B> = Mutex<BTreeMap<String, Arc<Source<B>>>>;

fn lock<B: BuiltIn>(sources: &Sources<B>) -> MutexGuard<'_, BTreeMap<String, Arc<Source<B>>>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The policies of the daemon. Every slot that asks for a placement policy gets an
/// instance of its own; the power thread has one of its policy.
pub struct PolicyHost {
    runtime: Runtime,
    cache: Option<Cache>,
    placements: Sources<Builtin>,
    powers: Sources<BuiltinPower>,
}

impl PolicyHost {
    /// Without a cache of compiled code.
    pub fn new() -> Result<Self, PolicyError> {
        Ok(Self {
            runtime: Runtime::new()?,
            cache: None,
            placements: Mutex::default(),
            powers: Mutex::default(),
        })
    }

    /// Keeps compiled code in `folder`, if only this user can write there.
    /// Anything else is refused with a warning and does without the cache.
    pub fn with_cache(folder: &Path) -> Result<Self, PolicyError> {
        Ok(Self { cache: Cache::open(folder), ..Self::new()? })
    }

    /// Whether `name` can be a placement policy's: a built-in one's, or a path. Files are not
    /// looked at.
    pub fn check_name(name: &str) -> Result<(), PolicyError> {
        Origin::<Builtin>::of(name).map(drop)
    }

    /// As [`Self::check_name`], for a power policy.
    pub fn check_power_name(name: &str) -> Result<(), PolicyError> {
        Origin::<BuiltinPower>::of(name).map(drop)
    }

    /// A policy for a slot: the name of a built-in one or the path of a component
    /// file. A file is read once, then only on [`Self::reload`].
    pub fn placement(&self, name: &str) -> Result<Box<dyn Placement + Send>, PolicyError> {
        match self.source(&self.placements, name) {
            Ok(source) => Ok(Box::new(WasmPlacement::new(source))),
            Err(error) => native(name, error, |b: &Builtin| (b.native)()),
        }
    }

    /// A power policy: the name of a built-in one or the path of a component file.
    pub fn power(&self, name: &str) -> Result<Box<dyn Power + Send>, PolicyError> {
        match self.source(&self.powers, name) {
            Ok(source) => Ok(Box::new(WasmPower::new(source))),
            Err(error) => native(name, error, |b: &BuiltinPower| (b.native)()),
        }
    }

    /// Loads a power policy that is a file's, to see whether it can be; a built-in one is loaded
    /// when a device with votes asks for it.
    pub fn check_power(&self, name: &str) -> Result<(), PolicyError> {
        match Origin::<BuiltinPower>::of(name)? {
            Origin::Builtin(_) => Ok(()),
            Origin::File(_) => self.source(&self.powers, name).map(drop),
        }
    }

    fn source<B: BuiltIn>(&self, sources: &Sources<B>, name: &str) -> Result<Arc<Source<B>>, PolicyError> {
        if let Some(source) = lock(sources).get(name) {
            return Ok(source.clone());
        }
        // Compiled without the lock, which the engine's thread takes for its status.
        let origin = Origin::of(name)?;
        let plugin = self.load(&origin)?;
        let stand_in = match origin {
            Origin::Builtin(built_in) => built_in,
            Origin::File(_) => &B::ALL[0],
        };
        let source =
            Source { origin, stand_in, plugin: Mutex::new(Arc::new(plugin)), generation: AtomicU64::new(0) };
        Ok(lock(sources).entry(name.to_owned()).or_insert(Arc::new(source)).clone())
    }

    fn load<B: BuiltIn>(&self, origin: &Origin<B>) -> Result<Plugin<B::World>, PolicyError> {
        match origin {
            Origin::Builtin(b) => {
                let name = b.name();
                Plugin::new(&self.runtime, name, Path::new(name), b.component(), self.cache.as_ref())
            }
            Origin::File(path) => match &self.cache {
                Some(cache) => Plugin::open_cached(&self.runtime, path, cache),
                None => Plugin::open(&self.runtime, path),
            },
        }
    }

    /// Loads every policy again (on SIGHUP). Compiles, so it is not for the engine's thread. Who
    /// uses one goes over at the next request or event, and new instances are told the last ones;
    /// a policy that cannot be loaded stays as it is, and its error is returned.
    pub fn reload(&self) -> Vec<PolicyError> {
        let mut errors = self.reload_kind(&self.placements);
        errors.extend(self.reload_kind(&self.powers));
        errors
    }

    fn reload_kind<B: BuiltIn>(&self, sources: &Sources<B>) -> Vec<PolicyError> {
        let sources: Vec<_> = lock(sources).values().cloned().collect();
        let mut errors = Vec::new();
        for source in sources {
            match self.load(&source.origin) {
                Ok(plugin) => source.replace(plugin),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// Counters of every policy in use.
    pub fn status(&self) -> Vec<PolicyStatus> {
        let mut all = statuses(&self.placements);
        all.extend(statuses(&self.powers));
        all
    }
}

fn statuses<B: BuiltIn>(sources: &Sources<B>) -> Vec<PolicyStatus> {
    let status = |source: &Arc<Source<B>>| {
        let (generation, plugin) = source.current();
        PolicyStatus { loads: generation + 1, ..plugin.status() }
    };
    lock(sources).values().map(status).collect()
}

/// Where compiled code may not run at all, the native twin of a built-in policy can.
fn native<B: BuiltIn, P>(name: &str, error: PolicyError, make: impl Fn(&B) -> P) -> Result<P, PolicyError> {
    match B::ALL.iter().find(|b| b.name() == name) {
        Some(built_in) => {
            tracing::error!(policy = name, %error, "not loaded as Wasm; it runs natively");
            Ok(make(built_in))
        }
        None => Err(error),
    }
}
