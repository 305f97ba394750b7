//! The end of a session with the device, and the next one.
//!
//! What slots, checkpoints and the prompt cache held was in the lost device's memory and is
//! forgotten; tokenizer, schemas, placement policies and waiting requests are the host's and stay.

use super::{Engine, LoadError, Phase, SlotEntry, SlotId};
use crate::executor::Executor;
use crate::prompt_cache::PromptCache;
use crate::request::{EngineError, Event, JobId};
use crate::speculation::Costs;
use tandem_program::{Device, DeviceError};

impl Engine {
    /// Why the session with the device is lost; `None` while it lives. Once lost nothing runs any
    /// more until [`Engine::renew`].
    pub fn lost(&self) -> Option<&str> {
        self.executor.lost()
    }

    /// Drops the device. Requests at work fail as lost, which a retry may mend; those that wait
    /// stay.
    pub fn end_session(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        self.executor.end_session();
        let why = self.executor.lost().unwrap_or_default().to_owned();
        let at_work = |e: &SlotEntry| e.jobs.front().is_some_and(|job| !matches!(job.phase, Phase::Waiting));
        let ids: Vec<SlotId> = self.slots.iter().filter(|(_, e)| at_work(e)).map(|(id, _)| *id).collect();
        for id in ids {
            self.fail(id, DeviceError::Lost(why.clone()).into(), events);
        }
        for entry in self.slots.values_mut() {
            entry.slot.clear();
            entry.kv = None;
        }
        self.cache = PromptCache::new(self.options.prompt_cache);
    }

    /// Goes on with another device, which maps the weights again.
    ///
    /// # Errors
    ///
    /// Where the device cannot take the model, which is then without a device as before.
    pub fn renew(&mut self, device: Box<dyn Device>) -> Result<(), LoadError> {
        let executor = Executor::new(&self.gguf, device, self.options.switches.clone())
            .map_err(|source| LoadError::Model { path: self.path.clone(), source })?;
        self.executor = executor;
        // What passes cost was the other device's.
        self.costs = Costs::default();
        Ok(())
    }

    /// Fails every request, those that wait too.
    pub fn fail_all(&mut self, error: impl Fn() -> EngineError, events: &mut Vec<(SlotId, JobId, Event)>) {
        let ids: Vec<SlotId> = self.slots.keys().copied().collect();
        for id in ids {
            while self.jobs(id) > 0 {
                self.fail(id, error(), events);
            }
        }
    }
}
