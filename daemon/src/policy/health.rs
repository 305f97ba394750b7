//! What became of a plugin's calls.

use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It trapped: a panic, a bad memory access, too much memory.
    Trap,
    /// It used up its fuel or its time.
    Timeout,
    /// It answered what no answer can be.
    Nonsense,
    /// A fresh instance could not be made.
    Start,
}

/// Strikes of one failure; a success takes one back.
const STRIKES: u32 = 8;
/// Strikes at which a plugin is quarantined: four failures in quick succession.
const QUARANTINE: u32 = 4 * STRIKES;

/// Counters of a plugin, over all its slots.
#[derive(Debug, Default)]
pub(crate) struct Health {
    calls: AtomicU64,
    traps: AtomicU64,
    timeouts: AtomicU64,
    nonsense: AtomicU64,
    starts: AtomicU64,
    clamped: AtomicU64,
    stood_in: AtomicU64,
    memory: AtomicU64,
    strikes: AtomicU32,
    quarantined: AtomicBool,
}

/// A plugin's counters as `status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    /// Its name in the config.
    pub name: String,
    /// Calls made.
    pub calls: u64,
    /// Calls that trapped.
    pub traps: u64,
    /// Calls that ran out of fuel or time.
    pub timeouts: u64,
    /// Calls with a senseless answer.
    pub nonsense: u64,
    /// Instances that could not be made.
    pub failed_starts: u64,
    /// Positions dropped because the request did not allow them.
    pub clamped: u64,
    /// Calls that the built-in policy answered instead.
    pub stood_in: u64,
    /// Bytes of memory that its instances have.
    pub memory: u64,
    /// Times it was loaded, the first included; the counters are of the last.
    pub loads: u64,
    /// True when the built-in policy answers until the next reload.
    pub quarantined: bool,
}

impl Health {
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn clamped(&self, positions: u64) {
        self.clamped.fetch_add(positions, Ordering::Relaxed);
    }

    pub(crate) fn stood_in(&self) {
        self.stood_in.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn memory_taken(&self, bytes: u64) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn memory_given_back(&self, bytes: u64) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn success(&self) {
        let _ = self.strikes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |s| s.checked_sub(1));
    }

    /// Counts a failure. True when it was the one too many.
    pub(crate) fn failure(&self, trouble: Trouble) -> bool {
        let counter = match trouble {
            Trouble::Trap => &self.traps,
            Trouble::Timeout => &self.timeouts,
            Trouble::Nonsense => &self.nonsense,
            Trouble::Start => &self.starts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let strikes = self.strikes.fetch_add(STRIKES, Ordering::Relaxed) + STRIKES;
        strikes >= QUARANTINE && !self.quarantined.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantined.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self, name: &str) -> PolicyStatus {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        PolicyStatus {
            name: name.to_owned(),
            calls: count(&self.calls),
            traps: count(&self.traps),
            timeouts: count(&self.timeouts),
            nonsense: count(&self.nonsense),
            failed_starts: count(&self.starts),
            clamped: count(&self.clamped),
            stood_in: count(&self.stood_in),
            memory: count(&self.memory),
            loads: 1,
            quarantined: self.is_quarantined(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_failures_in_a_row_are_one_too_many_and_are_told_once() {
        let health = Health::default();
        assert!(!health.failure(Trouble::Trap));
        assert!(!health.failure(Trouble::Timeout));
        assert!(!health.failure(Trouble::Nonsense));
        assert!(health.failure(Trouble::Trap));
        assert!(!health.failure(Trouble::Trap));
        assert!(health.status("x").quarantined);
        assert_eq!(health.status("x").traps, 3);
    }

    #[test]
    fn rare_failures_are_forgiven() {
        let health = Health::default();
        for _ in 0..20 {
            assert!(!health.failure(Trouble::Trap));
            for _ in 0..STRIKES {
                health.success();
            }
        }
        assert!(!health.is_quarantined());
    }
}
