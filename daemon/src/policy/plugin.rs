//! A component file: read, checked against the world, compiled.

use super::cache::Cache;
use super::error::{MAX_COMPONENT_BYTES, PolicyError};
use super::health::{Health, PolicyStatus};
use super::runtime::{CALL_TICKS, Runtime, START_FUEL};
use super::world::{placement, power};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{ResourceLimiter, Store, StoreLimits};

const LOG: (&str, &str) = ("log", "log: func(level: u8, text: string)");

/// A world of the contract in `policies/wit/1.0.0`.
pub trait World: Sized + 'static {
    /// Its name.
    const NAME: &'static str;
    /// The interface that carries its types, and nothing else.
    const TYPES: &'static str;
    /// Its functions: name and signature.
    const EXPORTS: &'static [(&'static str, &'static str)];
    /// A component whose imports are there, checked against the world.
    type Pre: Send + Sync;

    /// Checks types.
    fn pre(linked: InstancePre<Instance>) -> wasmtime::Result<Self::Pre>;
    /// Makes an instance.
    fn instantiate(pre: &Self::Pre, store: &mut Store<Instance>) -> wasmtime::Result<Self>;
}

impl World for placement::Placement {
    const NAME: &'static str = "placement";
    const TYPES: &'static str = "tandem:policy/placement-types@1.0.0";
    const EXPORTS: &'static [(&'static str, &'static str)] = &[
        ("place", "place: func(request: place-request) -> list<u32>"),
        ("evict", "evict: func(kept: list<kept>, incoming: u32) -> u32"),
        ("observe", "observe: func(seen: observation)"),
    ];
    type Pre = placement::PlacementPre<Instance>;

    fn pre(linked: InstancePre<Instance>) -> wasmtime::Result<Self::Pre> {
        placement::PlacementPre::new(linked)
    }
    fn instantiate(pre: &Self::Pre, store: &mut Store<Instance>) -> wasmtime::Result<Self> {
        pre.instantiate(store)
    }
}

impl World for power::Power {
    const NAME: &'static str = "power";
    const TYPES: &'static str = "tandem:policy/power-types@1.0.0";
    const EXPORTS: &'static [(&'static str, &'static str)] =
        &[("event", "event: func(event: power-event) -> power-decision")];
    type Pre = power::PowerPre<Instance>;

    fn pre(linked: InstancePre<Instance>) -> wasmtime::Result<Self::Pre> {
        power::PowerPre::new(linked)
    }
    fn instantiate(pre: &Self::Pre, store: &mut Store<Instance>) -> wasmtime::Result<Self> {
        pre.instantiate(store)
    }
}

/// Longest log line taken from a plugin, in bytes, and most lines a call.
const LOG_BYTES: usize = 256;
const LOG_LINES: u32 = 4;

/// What belongs to one instance.
pub struct Instance {
    limits: Limits,
    name: Arc<str>,
    log_lines: u32,
}

/// The limits of an instance; what it takes is counted in its plugin's health.
struct Limits {
    inner: StoreLimits,
    health: Arc<Health>,
    bytes: u64,
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let allowed = self.inner.memory_growing(current, desired, maximum)?;
        if allowed {
            let more = desired.saturating_sub(current) as u64;
            self.bytes += more;
            self.health.memory_taken(more);
        }
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.inner.memory_grow_failed(error)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.inner.table_growing(current, desired, maximum)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.inner.table_grow_failed(error)
    }

    fn instances(&self) -> usize {
        self.inner.instances()
    }

    fn tables(&self) -> usize {
        self.inner.tables()
    }

    fn memories(&self) -> usize {
        self.inner.memories()
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        self.health.memory_given_back(self.bytes);
    }
}

/// An instance and its store; after a trap neither is used again.
pub(crate) struct Live<W = placement::Placement> {
    pub(crate) store: Store<Instance>,
    pub(crate) world: W,
}

/// A compiled policy of a world: where state is saved, or when power votes go.
pub struct Plugin<W: World = placement::Placement> {
    name: Arc<str>,
    runtime: Runtime,
    pre: W::Pre,
    pub(crate) health: Arc<Health>,
}

impl<W: World> std::fmt::Debug for Plugin<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<W: World> Plugin<W> {
    /// Reads and compiles a component file, and makes one instance to see that it starts.
    pub fn open(runtime: &Runtime, path: &Path) -> Result<Self, PolicyError> {
        let bytes = read(path)?;
        Self::new(runtime, &path.display().to_string(), path, &bytes, None)
    }

    /// Compiles a component from memory. `name` is what messages call it.
    pub fn from_bytes(runtime: &Runtime, name: &str, bytes: &[u8]) -> Result<Self, PolicyError> {
        Self::new(runtime, name, Path::new(name), bytes, None)
    }

    /// As [`Self::open`] with a cache of compiled code.
    pub(crate) fn open_cached(runtime: &Runtime, path: &Path, cache: &Cache) -> Result<Self, PolicyError> {
        let bytes = read(path)?;
        Self::new(runtime, &path.display().to_string(), path, &bytes, Some(cache))
    }

    pub(crate) fn new(
        runtime: &Runtime,
        name: &str,
        path: &Path,
        bytes: &[u8],
        cache: Option<&Cache>,
    ) -> Result<Self, PolicyError> {
        check_bytes(path, bytes)?;
        let invalid =
            |e: wasmtime::Error| PolicyError::Invalid { path: path.into(), reason: format!("{e:#}") };
        let component = match cache.and_then(|c| c.load(runtime.engine(), bytes)) {
            Some(component) => component,
            None => {
                let component = Component::new(runtime.engine(), bytes).map_err(invalid)?;
                if let Some(cache) = cache {
                    cache.store(runtime.engine(), bytes, &component);
                }
                component
            }
        };
        check_names::<W>(runtime, path, &component)?;
        let pre = linked::<W>(runtime, path, &component)?;
        let plugin = Self { name: name.into(), runtime: runtime.clone(), pre, health: Arc::default() };
        plugin.start().map_err(|e| PolicyError::Start { path: path.into(), reason: format!("{e:#}") })?;
        Ok(plugin)
    }

    /// Its counters.
    pub fn status(&self) -> PolicyStatus {
        self.health.status(&self.name)
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Makes a fresh instance.
    pub(crate) fn start(&self) -> wasmtime::Result<Live<W>> {
        let limits = Limits { inner: Runtime::limits(), health: self.health.clone(), bytes: 0 };
        let state = Instance { limits, name: self.name.clone(), log_lines: 0 };
        let mut store = Store::new(self.runtime.engine(), state);
        store.limiter(|s| &mut s.limits);
        store.set_fuel(START_FUEL)?;
        store.set_epoch_deadline(CALL_TICKS);
        let _watch = self.runtime.watch();
        let world = W::instantiate(&self.pre, &mut store)?;
        Ok(Live { store, world })
    }
}

impl Instance {
    /// Allows the next call its log lines.
    pub(crate) fn new_call(&mut self) {
        self.log_lines = 0;
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let fail = |source| PolicyError::Read { path: path.into(), source };
    let file = std::fs::File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    if size > MAX_COMPONENT_BYTES {
        return Err(PolicyError::TooLarge { path: path.into(), bytes: size });
    }
    // The file may grow while it is read, or not tell its size: read one byte more than allowed.
    let mut bytes = Vec::new();
    file.take(MAX_COMPONENT_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

fn check_bytes(path: &Path, bytes: &[u8]) -> Result<(), PolicyError> {
    if bytes.len() as u64 > MAX_COMPONENT_BYTES {
        return Err(PolicyError::TooLarge { path: path.into(), bytes: bytes.len() as u64 });
    }
    if !bytes.starts_with(b"\0asm") {
        return Err(PolicyError::NotWasm { path: path.into() });
    }
    // The layer field: 0 is a core module, 1 a component.
    if bytes.get(6..8) == Some(&[0, 0]) {
        return Err(PolicyError::CoreModule { path: path.into() });
    }
    Ok(())
}

/// Imports and exports by name; types are checked when linking.
fn check_names<W: World>(runtime: &Runtime, path: &Path, component: &Component) -> Result<(), PolicyError> {
    let engine = runtime.engine();
    let kind = component.component_type();
    for (name, item) in kind.imports(engine) {
        let offered = match &item.ty {
            ComponentItem::ComponentInstance(_) => name == W::TYPES,
            ComponentItem::ComponentFunc(_) => name == LOG.0,
            _ => false,
        };
        if !offered {
            return Err(PolicyError::Import { path: path.into(), world: W::NAME, import: name.to_owned() });
        }
    }
    for &(name, signature) in W::EXPORTS {
        match kind.get_export(engine, name).map(|item| item.ty) {
            Some(ComponentItem::ComponentFunc(_)) => {}
            Some(_) => {
                let reason = format!("its export `{name}` is not a function");
                return Err(PolicyError::Type { path: path.into(), world: W::NAME, reason, signature });
            }
            None => return Err(PolicyError::MissingExport { path: path.into(), world: W::NAME, signature }),
        }
    }
    Ok(())
}

fn linked<W: World>(runtime: &Runtime, path: &Path, component: &Component) -> Result<W::Pre, PolicyError> {
    let mut linker: Linker<Instance> = Linker::new(runtime.engine());
    let mismatch = |e: &wasmtime::Error| {
        let reason = format!("{e:#}");
        let named = W::EXPORTS.iter().chain([&LOG]).find(|(name, _)| reason.contains(&format!("`{name}`")));
        let signature = named.map_or("the world's types", |(_, signature)| signature);
        PolicyError::Type { path: path.into(), world: W::NAME, reason, signature }
    };
    linker
        .root()
        .func_wrap(LOG.0, |mut store, (level, text): (u8, String)| {
            log(store.data_mut(), level, &text);
            Ok(())
        })
        .map_err(|e| mismatch(&e))?;
    let pre = linker.instantiate_pre(component).map_err(|e| mismatch(&e))?;
    W::pre(pre).map_err(|e| mismatch(&e))
}

fn log(instance: &mut Instance, level: u8, text: &str) {
    instance.log_lines += 1;
    if instance.log_lines > LOG_LINES {
        return;
    }
    let mut end = text.len().min(LOG_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text[..end].escape_debug();
    let policy = &*instance.name;
    match level {
        0 => tracing::error!(policy, "{text}"),
        1 => tracing::warn!(policy, "{text}"),
        2 => tracing::info!(policy, "{text}"),
        _ => tracing::debug!(policy, "{text}"),
    }
}
