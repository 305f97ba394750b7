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
}

/// The settings that a sweep can vary.
pub const NAMES: [&str; 2] = ["threshold", "checkpoints"];

impl FromStr for Sweep {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "threshold" => Ok(Sweep::Threshold),
            "checkpoints" => Ok(Sweep::Checkpoints),
            _ => Err(format!("there is no sweep of {name}; there is {}", NAMES.join(", "))),
        }
    }
}

const THRESHOLDS: [u32; 8] = [1, 8, 16, 32, 64, 128, 256, 512];
const CHECKPOINTS: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

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
    }
}
