//! Calls to one plugin for one who asks: its instance, reloads, failures.

use super::call::{Failed, run};
use super::health::Health;
use super::host::{BuiltIn, Source};
use super::plugin::{Live, Plugin};
use super::runtime::{CALL_FUEL, CALL_TICKS};
use std::sync::Arc;

/// Fuel after which a fresh instance is told no more of the past.
const REPLAY_FUEL: u64 = 10 * CALL_FUEL;

/// See the module.
pub(crate) struct Caller<B: BuiltIn> {
    source: Arc<Source<B>>,
    generation: u64,
    plugin: Arc<Plugin<B::World>>,
    live: Option<Live<B::World>>,
}

impl<B: BuiltIn> Caller<B> {
    pub(crate) fn new(source: Arc<Source<B>>) -> Self {
        let (generation, plugin) = source.current();
        Self { source, generation, plugin, live: None }
    }

    /// The built-in policy that answers where the plugin fails.
    pub(crate) fn stand_in(&self) -> &'static B {
        self.source.stand_in()
    }

    /// The plugin's counters.
    pub(crate) fn health(&self) -> &Health {
        &self.plugin.health
    }

    /// Goes over to the newest plugin after a reload. Whether there was one.
    pub(crate) fn follow_reload(&mut self) -> bool {
        if self.source.generation() == self.generation {
            return false;
        }
        (self.generation, self.plugin) = self.source.current();
        self.live = None;
        true
    }

    /// The plugin's answer; `None` where it is quarantined or failed, which is reported. A fresh
    /// instance, where one is needed, is told the `past` first.
    pub(crate) fn ask<T, R>(
        &mut self,
        past: impl Iterator<Item = T>,
        tell: impl Fn(&mut Live<B::World>, T) -> Result<(), Failed>,
        call: impl FnOnce(&mut Live<B::World>) -> Result<R, Failed>,
    ) -> Option<R> {
        if self.plugin.health.is_quarantined() {
            return None;
        }
        match self.try_call(past, tell, call) {
            Ok(answer) => {
                self.plugin.health.success();
                Some(answer)
            }
            Err(failed) => {
                self.report(&failed);
                None
            }
        }
    }

    fn try_call<T, R>(
        &mut self,
        past: impl Iterator<Item = T>,
        tell: impl Fn(&mut Live<B::World>, T) -> Result<(), Failed>,
        call: impl FnOnce(&mut Live<B::World>) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        self.plugin.health.call();
        let mut live = match self.live.take() {
            Some(live) => live,
            None => self.fresh(past, tell)?,
        };
        let answer = run(&self.plugin, &mut live, call)?;
        self.live = Some(live);
        Ok(answer)
    }

    /// A fresh instance that was told the past.
    fn fresh<T>(
        &self,
        past: impl Iterator<Item = T>,
        tell: impl Fn(&mut Live<B::World>, T) -> Result<(), Failed>,
    ) -> Result<Live<B::World>, Failed> {
        let start = || self.plugin.start().map_err(|e| Failed::start(&e));
        let mut live = start()?;
        // What it cannot hear again it does without.
        match self.tell_again(&mut live, past, tell) {
            Ok(()) => Ok(live),
            Err(_) => start(),
        }
    }

    /// Tells an instance the past. All of it has one deadline, and a plugin that needs much fuel
    /// for it is not told the rest: whoever asks waits meanwhile.
    fn tell_again<T>(
        &self,
        live: &mut Live<B::World>,
        past: impl Iterator<Item = T>,
        tell: impl Fn(&mut Live<B::World>, T) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut fuel = REPLAY_FUEL;
        live.store.set_epoch_deadline(CALL_TICKS);
        let _watch = self.plugin.runtime().watch();
        for told in past {
            live.store.set_fuel(CALL_FUEL)?;
            live.store.data_mut().new_call();
            tell(live, told)?;
            fuel = fuel.saturating_sub(CALL_FUEL.saturating_sub(live.store.get_fuel()?));
            if fuel == 0 {
                break;
            }
        }
        Ok(())
    }

    fn report(&self, failed: &Failed) {
        let policy = self.plugin.name();
        let built_in = self.stand_in().name();
        if self.plugin.health.failure(failed.trouble) {
            tracing::error!(
                policy,
                "quarantined: it keeps failing ({}); {built_in} answers until the next reload",
                failed.reason
            );
        } else {
            tracing::warn!(policy, "a call failed ({}); {built_in} answered it", failed.reason);
        }
    }
}
