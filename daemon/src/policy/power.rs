//! The power policy's instance of a plugin, as the power thread sees it: a [`Power`].

use super::call::{Failed, run};
use super::host::Source;
use super::plugin::{Live, Plugin};
use super::runtime::{CALL_FUEL, CALL_TICKS};
use super::world::power::{Power as PowerWorld, tandem::policy::power_types as wire};
use std::collections::VecDeque;
use std::sync::Arc;
use tandem_policies::BuiltinPower;
use tandem_policy::{Power, PowerAction, PowerDecision, PowerEvent};

/// Events that a fresh instance is told again: some sixty pauses.
const HISTORY: usize = 384;
/// Fuel after which it is told no more of them.
const REPLAY_FUEL: u64 = 10 * CALL_FUEL;

/// A power policy that runs in Wasm, with its built-in stand-in.
pub struct WasmPower {
    source: Arc<Source<BuiltinPower>>,
    generation: u64,
    plugin: Arc<Plugin<PowerWorld>>,
    live: Option<Live<PowerWorld>>,
    /// Hears every event, so that it can answer any.
    stand_in: Box<dyn Power + Send>,
    /// Events that the plugin has answered, for a fresh instance.
    history: VecDeque<PowerEvent>,
}

impl WasmPower {
    pub(crate) fn new(source: Arc<Source<BuiltinPower>>) -> Self {
        let (generation, plugin) = source.current();
        let stand_in = (source.stand_in().native)();
        Self { source, generation, plugin, live: None, stand_in, history: VecDeque::new() }
    }

    /// Goes over to the newest plugin after a reload.
    fn follow_reload(&mut self) {
        if self.source.generation() != self.generation {
            (self.generation, self.plugin) = self.source.current();
            self.live = None;
        }
    }

    fn try_call(&mut self, event: &PowerEvent) -> Result<PowerDecision, Failed> {
        self.plugin.health.call();
        let mut live = match self.live.take() {
            Some(live) => live,
            None => self.fresh()?,
        };
        let answer = run(&self.plugin, &mut live, |live| call_event(live, event))?;
        self.live = Some(live);
        Ok(answer)
    }

    /// A fresh instance that was told the last events.
    fn fresh(&self) -> Result<Live<PowerWorld>, Failed> {
        let start = || self.plugin.start().map_err(|e| Failed::start(&e));
        let mut live = start()?;
        // What it cannot hear again it does without.
        match self.tell_again(&mut live) {
            Ok(()) => Ok(live),
            Err(_) => start(),
        }
    }

    /// Tells an instance the last events. All of them together have one deadline.
    fn tell_again(&self, live: &mut Live<PowerWorld>) -> Result<(), Failed> {
        let mut fuel = REPLAY_FUEL;
        live.store.set_epoch_deadline(CALL_TICKS);
        let _watch = self.plugin.runtime().watch();
        for event in &self.history {
            live.store.set_fuel(CALL_FUEL)?;
            live.store.data_mut().new_call();
            call_event(live, event)?;
            fuel = fuel.saturating_sub(CALL_FUEL.saturating_sub(live.store.get_fuel()?));
            if fuel == 0 {
                break;
            }
        }
        Ok(())
    }

    fn report(&self, failed: &Failed) {
        let policy = self.plugin.name();
        let built_in = self.source.stand_in().name;
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

impl Power for WasmPower {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        self.follow_reload();
        let stand_in = self.stand_in.event(event);
        if !self.plugin.health.is_quarantined() {
            match self.try_call(event) {
                Ok(answer) => {
                    self.plugin.health.success();
                    if self.history.len() == HISTORY {
                        self.history.pop_front();
                    }
                    self.history.push_back(*event);
                    return answer;
                }
                Err(failed) => self.report(&failed),
            }
        }
        self.plugin.health.stood_in();
        stand_in
    }
}

pub(crate) fn call_event(live: &mut Live<PowerWorld>, event: &PowerEvent) -> Result<PowerDecision, Failed> {
    let told = wire::PowerEvent {
        kind: event.kind.0,
        now: event.now,
        queued: event.queued,
        clients: event.clients,
        held_power: event.held_power,
        released_power: event.released_power,
        restore_time: event.restore_time,
        restore_energy: event.restore_energy,
    };
    let answer = live.world.call_event(&mut live.store, told)?;
    match PowerAction(answer.action) {
        action @ (PowerAction::HOLD | PowerAction::RELEASE) => {
            Ok(PowerDecision { action, wake_after: answer.wake_after })
        }
        PowerAction(code) => Err(Failed::nonsense(format!(
            "event answered action {code}, which is neither hold (0) nor release (1)"
        ))),
    }
}
