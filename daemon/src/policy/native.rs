//! The policies of a daemon built without Wasm: those that come with it, natively.

use super::{PolicyError, PolicyStatus};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tandem_policy::{Placement, Power};

/// The built-in policies. Same calls as the host with Wasm; a file is refused by name.
#[derive(Debug, Default)]
pub struct PolicyHost {
    used: Mutex<BTreeSet<String>>,
}

impl PolicyHost {
    /// Never fails.
    pub fn new() -> Result<Self, PolicyError> {
        Ok(Self::default())
    }

    /// Without Wasm there is no compiled code to keep.
    pub fn with_cache(_folder: &Path) -> Result<Self, PolicyError> {
        Self::new()
    }

    /// Whether `name` is a built-in policy's.
    pub fn check_name(name: &str) -> Result<(), PolicyError> {
        match tandem_policies::placement(name) {
            Some(_) => Ok(()),
            None if name.contains(['/', '.']) => Err(PolicyError::NoWasm { path: name.into() }),
            None => {
                let known = tandem_policies::PLACEMENTS.iter().map(|p| p.name).collect();
                Err(PolicyError::Unknown { name: name.to_owned(), known })
            }
        }
    }

    /// Whether `name` is a built-in power policy's.
    pub fn check_power_name(name: &str) -> Result<(), PolicyError> {
        match tandem_policies::power(name) {
            Some(_) => Ok(()),
            None if name.contains(['/', '.']) => Err(PolicyError::NoWasm { path: name.into() }),
            None => {
                let known = tandem_policies::POWERS.iter().map(|p| p.name).collect();
                Err(PolicyError::Unknown { name: name.to_owned(), known })
            }
        }
    }

    /// As [`Self::check_power_name`]: there is nothing to load.
    pub fn check_power(&self, name: &str) -> Result<(), PolicyError> {
        Self::check_power_name(name)
    }

    /// A power policy.
    pub fn power(&self, name: &str) -> Result<Box<dyn Power + Send>, PolicyError> {
        Self::check_power_name(name)?;
        let built_in = tandem_policies::power(name).unwrap_or(&tandem_policies::POWERS[0]);
        Ok((built_in.native)())
    }

    /// A policy for a slot.
    pub fn placement(&self, name: &str) -> Result<Box<dyn Placement + Send>, PolicyError> {
        Self::check_name(name)?;
        let built_in = tandem_policies::placement(name);
        let built_in =
            built_in.ok_or_else(|| PolicyError::Unknown { name: name.into(), known: Vec::new() })?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        Ok((built_in.native)())
    }

    /// Nothing to load again.
    pub fn reload(&self) -> Vec<PolicyError> {
        Vec::new()
    }

    /// The policies in use; native code has no counters.
    pub fn status(&self) -> Vec<PolicyStatus> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.iter()
            .map(|name| PolicyStatus { name: name.clone(), loads: 1, ..PolicyStatus::default() })
            .collect()
    }
}
