//! The switches of the design: each changes speed, never answers.

use serde::{Deserialize, Serialize};

/// How KV cells are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// IEEE half: half the memory.
    #[default]
    F16,
    /// IEEE single.
    F32,
}

/// Every mechanism's switch. Parsed from `name=value` pairs ([`Switches::set`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switches {
    /// Save states inside passes; off: each save ends one.
    pub in_pass_saves: bool,
    /// The fewest prefill passes; off: llama.cpp's ends, 516 and 4 before the prompt's end.
    pub consolidate: bool,
    /// Gate and up products and their activation as one op.
    pub fused_swiglu: bool,
    /// Run the MTP block over every token, so that it can draft.
    pub mtp_drafts: bool,
    /// Cell type of the KV cache.
    pub kv_type: KvType,
}

impl Default for Switches {
    fn default() -> Self {
        Switches {
            in_pass_saves: true,
            consolidate: true,
            fused_swiglu: true,
            mtp_drafts: false,
            kv_type: KvType::F16,
        }
    }
}

/// A switch that does not exist, or a value it does not take.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SwitchError {
    /// No such switch.
    #[error("there is no switch {name:?}; the switches are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// No such value.
    #[error("switch {name}: {value:?} is not a value; it takes {takes}")]
    Value {
        /// The switch.
        name: String,
        /// The value given.
        value: String,
        /// Values it takes.
        takes: &'static str,
    },
    /// Not of the form `name=value`.
    #[error("{0:?} is not of the form switch=value")]
    Form(String),
}

fn on_off(name: &str, value: &str) -> Result<bool, SwitchError> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(SwitchError::Value { name: name.into(), value: value.into(), takes: "on or off" }),
    }
}

impl Switches {
    /// Names of all switches.
    pub const NAMES: &'static [&'static str] =
        &["in_pass_saves", "consolidate", "fused_swiglu", "mtp_drafts", "kv_type"];

    /// Applies one `name=value`.
    pub fn set(&mut self, pair: &str) -> Result<(), SwitchError> {
        let (name, value) = pair.split_once('=').ok_or_else(|| SwitchError::Form(pair.into()))?;
        match name.trim() {
            "in_pass_saves" => self.in_pass_saves = on_off(name, value)?,
            "consolidate" => self.consolidate = on_off(name, value)?,
            "fused_swiglu" => self.fused_swiglu = on_off(name, value)?,
            "mtp_drafts" => self.mtp_drafts = on_off(name, value)?,
            "kv_type" => {
                self.kv_type = match value {
                    "f16" => KvType::F16,
                    "f32" => KvType::F32,
                    _ => {
                        return Err(SwitchError::Value {
                            name: name.into(),
                            value: value.into(),
                            takes: "f16 or f32",
                        });
                    }
                }
            }
            _ => {
                return Err(SwitchError::Unknown { name: name.into(), known: Self::NAMES.join(", ") });
            }
        }
        Ok(())
    }
}
