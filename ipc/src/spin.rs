//! The brief busy wait before going to sleep, and when it is worth it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest busy wait: about what falling asleep and being woken costs.
const LONGEST: Duration = Duration::from_micros(10);
/// Failures in a row after which a waiter stops trying.
const CREDIT: u32 = 8;
/// Waits without spinning after which it tries again, and how often then.
const PAUSE: u32 = 128;
const TRIES: u32 = 2;

/// Spins while spinning succeeds. Two sides that answer each other at once on
/// two free CPUs never sleep; a side whose peer takes long, or shares its CPU,
/// soon goes to sleep directly and only tries again now and then.
#[derive(Debug)]
pub(crate) struct Spin {
    credit: u32,
    skipped: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Spin { credit: CREDIT, skipped: 0 }
    }
}

impl Spin {
    /// Waits a moment for `news`, and returns whether it came.
    pub(crate) fn until(&mut self, mut news: impl FnMut() -> bool) -> bool {
        if news() {
            return true;
        }
        if self.credit == 0 {
            self.skipped += 1;
            if self.skipped == PAUSE {
                self.skipped = 0;
                self.credit = TRIES;
            }
            return false;
        }
        if cpus() < 2 {
            return false;
        }
        let start = Instant::now();
        while start.elapsed() < LONGEST {
            for _ in 0..16 {
                if news() {
                    self.credit = CREDIT;
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        self.credit -= 1;
        false
    }
}

fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// How often the waiter looks in a wait without news.
    fn looks(spin: &mut Spin) -> u32 {
        let looks = Cell::new(0);
        spin.until(|| {
            looks.set(looks.get() + 1);
            false
        });
        looks.get()
    }

    #[test]
    fn an_idle_waiter_stops_spinning_and_tries_again_now_and_then() {
        let mut spin = Spin::default();
        for _ in 0..CREDIT {
            looks(&mut spin);
        }
        for _ in 0..PAUSE {
            assert_eq!(looks(&mut spin), 1, "one look, no spinning");
        }
        if cpus() > 1 {
            assert!(looks(&mut spin) > 1);
        }
    }
}
