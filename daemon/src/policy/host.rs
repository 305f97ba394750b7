//! The policies of the daemon, by name, and their reload.

use super::cache::Cache;
use super::error::PolicyError;
use super::health::PolicyStatus;
use super::placement::WasmPlacement;
use super::plugin::Plugin;
use super::runtime::Runtime;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tandem_policies::Builtin;
use tandem_policy::Placement;

/// Where a named policy's plugin comes from; slots follow it over reloads.
pub(crate) struct Source {
    origin: Origin,
    stand_in: &'static Builtin,
    plugin: Mutex<Arc<Plugin>>,
    generation: AtomicU64,
}

enum Origin {
    Builtin(&'static Builtin),
    File(PathBuf),
}

impl Origin {
    fn of(name: &str) -> Result<Self, PolicyError> {
        match tandem_policies::placement(name) {
            Some(built_in) => Ok(Self::Builtin(built_in)),
            None if name.contains(['/', '.']) => Ok(Self::File(PathBuf::from(name))),
            None => {
                let known = tandem_policies::PLACEMENTS.iter().map(|p| p.name).collect();
                Err(PolicyError::Unknown { name: name.to_owned(), known })
            }
        }
    }
}

impl Source {
    fn lock(&self) -> MutexGuard<'_, Arc<Plugin>> {
        self.plugin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> (u64, Arc<Plugin>) {
        let plugin = self.lock();
        (self.generation.load(Ordering::Acquire), plugin.clone())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The built-in policy that answers where the plugin fails.
    pub(crate) fn stand_in(&self) -> &'static Builtin {
        self.stand_in
    }

    fn replace(&self, plugin: Plugin) {
        let mut current = self.lock();
        *current = Arc::new(plugin);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The policies of the daemon. Every slot that asks for a policy gets an
/// instance of its own.
pub struct PolicyHost {
    runtime: Runtime,
    cache: Option<Cache>,
    sources: Mutex<BTreeMap<String, Arc<Source>>>,
}

impl PolicyHost {
    /// Without a cache of compiled code.
    pub fn new() -> Result<Self, PolicyError> {
        Ok(Self { runtime: Runtime::new()?, cache: None, sources: Mutex::default() })
    }

    /// Keeps compiled code in `folder`, if only this user can write there.
    /// Anything else is refused with a warning and does without the cache.
    pub fn with_cache(folder: &Path) -> Result<Self, PolicyError> {
        Ok(Self { cache: Cache::open(folder), ..Self::new()? })
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Source>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `name` can be a policy's: a built-in one's, or a path. Files are not looked at.
    pub fn check_name(name: &str) -> Result<(), PolicyError> {
        Origin::of(name).map(drop)
    }

    /// A policy for a slot: the name of a built-in one or the path of a component
    /// file. A file is read once, then only on [`Self::reload`].
    pub fn placement(&self, name: &str) -> Result<Box<dyn Placement + Send>, PolicyError> {
        if let Some(source) = self.sources().get(name) {
            return Ok(Box::new(WasmPlacement::new(source.clone())));
        }
        // Compiled without the lock, which the engine's thread takes for its status.
        let origin = Origin::of(name)?;
        let built_in = tandem_policies::placement(name);
        let plugin = match (self.load(&origin), built_in) {
            (Ok(plugin), _) => plugin,
            // Where compiled code may not run at all, the native twin can.
            (Err(error), Some(built_in)) => {
                tracing::error!(policy = name, %error, "not loaded as Wasm; it runs natively");
                return Ok((built_in.native)());
            }
            (Err(error), None) => return Err(error),
        };
        let source = Arc::new(Source {
            origin,
            stand_in: built_in.unwrap_or(&tandem_policies::PLACEMENTS[0]),
            plugin: Mutex::new(Arc::new(plugin)),
            generation: AtomicU64::new(0),
        });
        let source = self.sources().entry(name.to_owned()).or_insert(source).clone();
        Ok(Box::new(WasmPlacement::new(source)))
    }

    fn load(&self, origin: &Origin) -> Result<Plugin, PolicyError> {
        match origin {
            Origin::Builtin(b) => {
                Plugin::new(&self.runtime, b.name, Path::new(b.name), b.component, self.cache.as_ref())
            }
            Origin::File(path) => match &self.cache {
                Some(cache) => Plugin::open_cached(&self.runtime, path, cache),
                None => Plugin::open(&self.runtime, path),
            },
        }
    }

    /// Loads every policy again (on SIGHUP). Compiles, so it is not for the engine's thread. Slots go over at their next request, and their
    /// new instances are told the last requests; a policy that cannot be loaded
    /// stays as it is, and its error is returned.
    pub fn reload(&self) -> Vec<PolicyError> {
        let sources: Vec<_> = self.sources().values().cloned().collect();
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
        let status = |source: &Arc<Source>| {
            let (generation, plugin) = source.current();
            PolicyStatus { loads: generation + 1, ..plugin.status() }
        };
        self.sources().values().map(status).collect()
    }
}
