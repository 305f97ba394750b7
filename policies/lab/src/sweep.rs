//! The same simulation over a range of one setting.

use crate::simulate::{Outcome, Settings, simulate};
use crate::trace::Request;
use std::str::FromStr;
use tandem_policy::Placement;

/// What a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// `divergence`'s least gain of a save, in tokens.
    Threshold,
    /// Checkpoints a slot keeps.
    Checkpoints,
    /// The prompt cache's size.
    Cache,
}

/// The settings that a sweep can vary.
pub const NAMES: [&str; 3] = ["threshold", "checkpoints", "cache"];

impl FromStr for Sweep {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "threshold" => Ok(Sweep::Threshold),
            "checkpoints" => Ok(Sweep::Checkpoints),
            "cache" => Ok(Sweep::Cache),
            _ => Err(format!("there is no sweep of {name}; there is {}", NAMES.join(", "))),
        }
    }
}

const THRESHOLDS: [u32; 8] = [1, 8, 16, 32, 64, 128, 256, 512];
const CHECKPOINTS: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// In MiB.
const CACHES: [u64; 6] = [0, 128, 256, 512, 1024, 2048];

/// Runs the sweep; each outcome is named after its value.
pub fn sweep(
    sweep: Sweep,
    name: &str,
    trace: &[Request],
    settings: &Settings,
    make: &dyn Fn() -> Box<dyn Placement + Send>,
) -> Vec<Outcome> {
    match sweep {
        Sweep::Threshold => THRESHOLDS
            .iter()
            .map(|&t| {
                let make = || tandem_policies::divergence_with_threshold(t);
                simulate(&format!("divergence, threshold {t}"), trace, settings, &make)
            })
            .collect(),
        Sweep::Checkpoints => CHECKPOINTS
            .iter()
            .map(|&checkpoints| {
                let settings = Settings { checkpoints, ..*settings };
                simulate(&format!("{name}, {checkpoints} checkpoints"), trace, &settings, make)
            })
            .collect(),
        Sweep::Cache => CACHES
            .iter()
            .map(|&mib| {
                // The states of a larger cache need a larger budget.
                let state_budget = settings.state_budget.max((mib << 20) + (512 << 20));
                let settings = Settings { prompt_cache: mib << 20, state_budget, ..*settings };
                simulate(&format!("{name}, {mib} MiB cache"), trace, &settings, make)
            })
            .collect(),
    }
}
