//! The device's sessions: the first, those that follow a lost one, and the CPU where none can be had.
//!
//! ```text
//!              lost                      made
//!  at work ──────────▶ waiting (back-off) ─────▶ at work
//!                        │  ▲ failed, fewer than `tries` in a row
//!                        ▼  │
//!                       trying ── `tries` failed ──▶ the CPU for good, or down: every request is
//!                                                    refused at once while trying goes on
//! ```
//!
//! A session counts as failed until it has run a batch: one that dies over its first again
//! and again must not be made anew without a pause. The scheduler's thread, which
//! owns the engine, does all of this; nothing else touches a device.

use crate::power::{Gate, Gated};
use crate::serve::ServeError;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_engine::engine::{Engine, EngineOptions, LoadError, SlotId};
use tandem_engine::model::ModelError;
use tandem_engine::request::{Event, JobId};
use tandem_program::{Device, DeviceError};

/// Makes a device.
pub type Make = Box<dyn FnMut() -> Result<Box<dyn Device>, ServeError> + Send>;

/// The wait before the second try; the first follows at once, later waits double.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What is done about a device that cannot be made, or made again.
pub struct Terms {
    /// The device's name in the settings.
    pub wanted: String,
    /// Makes it.
    pub make: Make,
    /// Makes the CPU device to go on with where the other cannot be had.
    pub fallback: Option<Make>,
    /// Sessions in a row that may fail before requests are refused, or the CPU takes over; at least 1.
    pub tries: u32,
}

/// See the module.
pub struct Sessions {
    terms: Terms,
    gate: Arc<Gate>,
    /// While there is no session: when the next try is due.
    due: Option<Instant>,
    /// Sessions in a row that were lost before they ran a batch, or could not be made.
    failures: u32,
    /// Too many tries have failed: requests are not to wait for the next.
    down: bool,
    lost: u64,
    rebuilt: u64,
    last_loss: Option<String>,
    /// Why the CPU took over.
    fallen: Option<String>,
}

/// What came of looking after the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// Nothing was to be done.
    Nothing,
    /// The session has just been lost; requests at work have failed.
    Lost,
    /// Another session is there.
    Rebuilt,
    /// A try failed; another follows.
    Failed,
}

impl Sessions {
    /// Sessions whose votes pass `gate`.
    pub fn new(terms: Terms, gate: Arc<Gate>) -> Self {
        Sessions {
            terms,
            gate,
            due: None,
            failures: 0,
            down: false,
            lost: 0,
            rebuilt: 0,
            last_loss: None,
            fallen: None,
        }
    }

    /// Opens a model on the first session. A device that cannot be made, or dies over it, gives
    /// way to the CPU where that is allowed.
    ///
    /// # Errors
    ///
    /// The device's, where no other is allowed, or the model's.
    pub fn open(&mut self, model: &Path, options: EngineOptions) -> Result<Engine, ServeError> {
        let first = self.first(model, options.clone());
        let (Err(error), Some(fallback)) = (&first, &mut self.terms.fallback) else { return first };
        if !is_devices_fault(error) {
            return first;
        }
        self.gate.detach();
        let reason = error.to_string();
        tracing::error!(
            device = self.terms.wanted,
            reason,
            "no such device can be had; the CPU runs the model"
        );
        let engine = Engine::open(model, fallback()?, options)?;
        self.fallen = Some(reason);
        Ok(engine)
    }

    fn first(&mut self, model: &Path, options: EngineOptions) -> Result<Engine, ServeError> {
        let device = Gated::around((self.terms.make)()?, &self.gate)?;
        Ok(Engine::open(model, device, options)?)
    }

    /// True while there is no session: nothing can run.
    pub fn is_gap(&self) -> bool {
        self.due.is_some()
    }

    /// When the next try is due, while there is no session.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Why requests are refused: there is no session, and too many tries have failed.
    pub fn down(&self) -> Option<&str> {
        self.last_loss.as_deref().filter(|_| self.down)
    }

    /// Ends a session that was lost, makes another when it is time to, and fails requests that
    /// were at work, or that are not to wait any longer.
    pub fn mend(&mut self, engine: &mut Engine, events: &mut Vec<(SlotId, JobId, Event)>) -> Mended {
        let Some(why) = engine.lost() else { return Mended::Nothing };
        let Some(due) = self.due else {
            let why = why.to_owned();
            let worked = engine.executor().batches() > 0;
            self.failures = if worked { 0 } else { self.failures.saturating_add(1) };
            self.lost += 1;
            let wait = if self.gives_up() { Duration::ZERO } else { self.wait() };
            tracing::error!(
                device = self.terms.wanted,
                reason = why,
                lost = self.lost,
                next_try_ms = wait.as_millis() as u64,
                "the device's session is lost; requests at work fail, another session is made"
            );
            self.last_loss = Some(why);
            self.due = Some(Instant::now() + wait);
            engine.end_session(events);
            // Sessions that die over every first batch are no better than none.
            self.down = self.failures >= self.terms.tries && !self.gives_up();
            if let Some(why) = self.down() {
                engine.fail_all(|| DeviceError::Lost(why.to_owned()).into(), events);
            }
            return Mended::Lost;
        };
        if due > Instant::now() {
            return Mended::Nothing;
        }
        let mended = self.retry(engine);
        if let Some(why) = self.down() {
            engine.fail_all(|| DeviceError::Lost(why.to_owned()).into(), events);
        }
        mended
    }

    fn retry(&mut self, engine: &mut Engine) -> Mended {
        // Those that failed over their first pass count, so the device may be given up before a try.
        let error = if self.gives_up() {
            self.last_loss.clone().unwrap_or_default()
        } else {
            match self.another(engine) {
                Ok(()) => {
                    self.began();
                    tracing::info!(
                        device = self.terms.wanted,
                        rebuilt = self.rebuilt,
                        "the device has a session again"
                    );
                    return Mended::Rebuilt;
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    error.to_string()
                }
            }
        };
        let (failures, tries) = (self.failures, self.terms.tries);
        self.last_loss = Some(error.clone());
        if failures >= tries
            && let Some(fallback) = &mut self.terms.fallback
        {
            self.gate.detach();
            let renewed = fallback().and_then(|device| Ok(engine.renew(device)?));
            match renewed {
                Ok(()) => {
                    tracing::error!(
                        device = self.terms.wanted,
                        reason = error,
                        failures,
                        "the device cannot be had again; the CPU runs the model from now on"
                    );
                    self.fallen = Some(error);
                    self.failures = 0;
                    self.began();
                    return Mended::Rebuilt;
                }
                Err(worse) => tracing::error!(error = %worse, "the CPU cannot take over"),
            }
        }
        let wait = self.wait();
        self.due = Some(Instant::now() + wait);
        self.down = failures >= tries;
        tracing::error!(
            device = self.terms.wanted,
            reason = error,
            failures,
            next_try_ms = wait.as_millis() as u64,
            "no session can be made"
        );
        Mended::Failed
    }

    fn another(&mut self, engine: &mut Engine) -> Result<(), ServeError> {
        let made = match &self.fallen {
            // The CPU is not lost; should it be, there is nothing else to go on with.
            Some(_) => self.terms.fallback.as_mut().map(|make| make()),
            None => None,
        };
        let device = match made {
            Some(device) => device?,
            None => (self.terms.make)()?,
        };
        let device = Gated::around(device, &self.gate)?;
        Ok(engine.renew(device)?)
    }

    fn began(&mut self) {
        self.due = None;
        self.down = false;
        self.rebuilt += 1;
    }

    /// Whether the CPU is to take over.
    fn gives_up(&self) -> bool {
        self.failures >= self.terms.tries && self.terms.fallback.is_some() && self.fallen.is_none()
    }

    /// How long to wait before the next try: none, 100 ms, 200 ms, and so on to 5 s.
    fn wait(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            n => FIRST_WAIT.saturating_mul(1 << (n - 1).min(16)).min(LONGEST_WAIT),
        }
    }

    /// Why the CPU took the device's place; `None` where it did not.
    pub fn fallen(&self) -> Option<&str> {
        self.fallen.as_deref()
    }

    /// For the status report.
    pub(crate) fn status(&self) -> Value {
        let state = match (self.due, self.down()) {
            (None, _) => "up",
            (Some(_), None) => "rebuilding",
            (Some(_), Some(_)) => "down",
        };
        json!({
            "wanted": self.terms.wanted,
            "state": state,
            "lost": self.lost,
            "rebuilt": self.rebuilt,
            "last_loss": self.last_loss,
            "fallback": self.fallen,
        })
    }
}

/// Whether another device would do better.
pub(crate) fn is_devices_fault(error: &ServeError) -> bool {
    match error {
        ServeError::Cpu(_) | ServeError::Device(_) => true,
        #[cfg(feature = "hexagon")]
        ServeError::Hexagon(_) => true,
        ServeError::Load(LoadError::Model { source: ModelError::Device(_), .. }) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_tenth_of_a_second_to_five() {
        let make = || -> Make { Box::new(|| Err(tandem_program::DeviceError::Lost("never".into()).into())) };
        let terms = Terms { wanted: "x".into(), make: make(), fallback: None, tries: 3 };
        let mut sessions = Sessions::new(terms, Arc::new(Gate::new(Box::new(|| 0))));
        let mut waits = Vec::new();
        for failures in [0, 1, 2, 3, 6, 7, 40, u32::MAX] {
            sessions.failures = failures;
            waits.push(sessions.wait().as_millis());
        }
        assert_eq!(waits, [0, 100, 200, 400, 3200, 5000, 5000, 5000]);
    }
}
