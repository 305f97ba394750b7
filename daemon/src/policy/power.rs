//! The power policy's instance of a plugin, as the power thread sees it: a [`Power`].

use super::call::Failed;
use super::caller::Caller;
use super::host::Source;
use super::plugin::Live;
use super::world::power::{Power as PowerWorld, tandem::policy::power_types as wire};
use std::collections::VecDeque;
use std::sync::Arc;
use tandem_policies::BuiltinPower;
use tandem_policy::{Power, PowerAction, PowerDecision, PowerEvent};

/// Events that a fresh instance is told again: some sixty pauses.
const HISTORY: usize = 384;

/// A power policy that runs in Wasm, with its built-in stand-in.
pub struct WasmPower {
    caller: Caller<BuiltinPower>,
    /// Hears every event, so that it can answer any.
    stand_in: Box<dyn Power + Send>,
    /// Events that the plugin has answered, for a fresh instance.
    history: VecDeque<PowerEvent>,
}

impl WasmPower {
    pub(crate) fn new(source: Arc<Source<BuiltinPower>>) -> Self {
        let caller = Caller::new(source);
        let stand_in = (caller.stand_in().native)();
        Self { caller, stand_in, history: VecDeque::new() }
    }
}

impl Power for WasmPower {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        self.caller.follow_reload();
        let stand_in = self.stand_in.event(event);
        let tell = |live: &mut Live<PowerWorld>, told: &PowerEvent| call_event(live, told).map(drop);
        let Some(answer) = self.caller.ask(self.history.iter(), tell, |live| call_event(live, event)) else {
            self.caller.health().stood_in();
            return stand_in;
        };
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(*event);
        answer
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
