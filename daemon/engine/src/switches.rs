//! The switches of the design: each changes speed, never answers, but for the two numeric choices
//! ([`KvType`], [`PrefillProducts`]), which are the same on every device.

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

/// How the end of a prompt is run, with regard to drafts that may have to be taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RollbackPrefill {
    /// The prompt in chunks, and behind it the opening of the answer: forced and looked-up
    /// tokens as columns of their own, with a state for each that can be taken back.
    #[default]
    Planes,
    /// The last `drafts` tokens of every pass one by one, a state kept after each (the form of
    /// the Tandem paper).
    Tail,
    /// Every token one by one (the form of llama.cpp).
    PerToken,
}

/// How a prompt's columns are multiplied with quantized and F16 weights. A numeric choice, as
/// [`KvType`] is: the same on every device. Decode and verify columns, the output head and weights
/// of other types always round as the weight's type asks, and so do prompt columns that
/// [`RollbackPrefill`] has go one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillProducts {
    /// As the weight's type asks: bytes for quantized weights. Fast on CPUs and vector units.
    #[default]
    Integer,
    /// [`Act::F16Tile`](tandem_program::Act::F16Tile): what matrix units of half-precision tiles
    /// compute. Products of a prompt beyond 65,504 become infinite; models that have such keep
    /// `integer`.
    F16Tile,
}

/// The most drafts that can be taken back: a pass has eight columns, one of them certain.
pub const MAX_DRAFTS: u8 = 7;

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
    /// Draft tokens and verify them together; off: none of the three kinds below.
    pub speculate: bool,
    /// Drafts from the model's MTP block, which then runs over every token.
    pub mtp_drafts: bool,
    /// Tokens that the schema forces take no pass of their own.
    pub schema_drafts: bool,
    /// Drafts copied from the prompt.
    pub lookup_drafts: bool,
    /// The most drafts in a pass that may be rejected, 0 to [`MAX_DRAFTS`]; each keeps a state.
    #[serde(deserialize_with = "drafts")]
    pub drafts: u8,
    /// Where the schema allows few tokens, only their rows of the output matrix.
    pub restricted_head: bool,
    /// MTP drafts from the draft matrix, where the model file has one.
    pub trimmed_head: bool,
    /// Columns after a prompt share the weights they are multiplied with.
    pub shared_verify: bool,
    /// How the end of a prompt is run.
    pub rollback_prefill: RollbackPrefill,
    /// Cell type of the KV cache.
    pub kv_type: KvType,
    /// How a prompt's columns are multiplied.
    pub prefill_products: PrefillProducts,
}

impl Default for Switches {
    fn default() -> Self {
        Switches {
            in_pass_saves: true,
            consolidate: true,
            fused_swiglu: true,
            speculate: true,
            mtp_drafts: true,
            schema_drafts: true,
            lookup_drafts: true,
            drafts: 3,
            restricted_head: true,
            trimmed_head: true,
            shared_verify: true,
            rollback_prefill: RollbackPrefill::Planes,
            kv_type: KvType::F16,
            prefill_products: PrefillProducts::Integer,
        }
    }
}

fn drafts<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let value = u8::deserialize(from)?;
    if value <= MAX_DRAFTS {
        return Ok(value);
    }
    Err(serde::de::Error::custom(format!("drafts is {value}; it takes {DRAFTS}")))
}

const DRAFTS: &str = "0 to 7: a pass has eight columns, one of them certain";

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
    pub const NAMES: &'static [&'static str] = &[
        "in_pass_saves",
        "consolidate",
        "fused_swiglu",
        "speculate",
        "mtp_drafts",
        "schema_drafts",
        "lookup_drafts",
        "drafts",
        "restricted_head",
        "trimmed_head",
        "shared_verify",
        "rollback_prefill",
        "kv_type",
        "prefill_products",
    ];

    /// Whether the MTP block drafts, and so must run over every token.
    pub fn drafts_with_mtp(&self) -> bool {
        self.speculate && self.mtp_drafts && self.drafts > 0
    }

    /// Applies one `name=value`.
    pub fn set(&mut self, pair: &str) -> Result<(), SwitchError> {
        let (name, value) = pair.split_once('=').ok_or_else(|| SwitchError::Form(pair.into()))?;
        let refused = |takes| SwitchError::Value { name: name.trim().into(), value: value.into(), takes };
        match name.trim() {
            "in_pass_saves" => self.in_pass_saves = on_off(name, value)?,
            "consolidate" => self.consolidate = on_off(name, value)?,
            "fused_swiglu" => self.fused_swiglu = on_off(name, value)?,
            "speculate" => self.speculate = on_off(name, value)?,
            "mtp_drafts" => self.mtp_drafts = on_off(name, value)?,
            "schema_drafts" => self.schema_drafts = on_off(name, value)?,
            "lookup_drafts" => self.lookup_drafts = on_off(name, value)?,
            "restricted_head" => self.restricted_head = on_off(name, value)?,
            "trimmed_head" => self.trimmed_head = on_off(name, value)?,
            "shared_verify" => self.shared_verify = on_off(name, value)?,
            "drafts" => {
                let count = value.trim().parse().ok().filter(|n| *n <= MAX_DRAFTS);
                self.drafts = count.ok_or_else(|| refused(DRAFTS))?;
            }
            "rollback_prefill" => {
                self.rollback_prefill = match value {
                    "planes" => RollbackPrefill::Planes,
                    "tail" => RollbackPrefill::Tail,
                    "per_token" => RollbackPrefill::PerToken,
                    _ => return Err(refused("planes, tail or per_token")),
                }
            }
            "kv_type" => {
                self.kv_type = match value {
                    "f16" => KvType::F16,
                    "f32" => KvType::F32,
                    _ => return Err(refused("f16 or f32")),
                }
            }
            "prefill_products" => {
                self.prefill_products = match value {
                    "integer" => PrefillProducts::Integer,
                    "f16_tile" => PrefillProducts::F16Tile,
                    _ => return Err(refused("integer or f16_tile")),
                }
            }
            _ => {
                return Err(SwitchError::Unknown { name: name.into(), known: Self::NAMES.join(", ") });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_switch_and_takes_its_default() {
        let values = serde_json::to_value(Switches::default()).unwrap();
        for name in Switches::NAMES {
            let value = match &values[name] {
                serde_json::Value::Bool(on) => if *on { "on" } else { "off" }.to_owned(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let mut switches = Switches::default();
            switches.set(&format!("{name}={value}")).unwrap();
            assert_eq!(switches, Switches::default());
        }
        assert_eq!(values.as_object().unwrap().len(), Switches::NAMES.len());
    }

    #[test]
    fn more_drafts_than_a_pass_has_columns_are_refused() {
        let mut switches = Switches::default();
        for drafts in ["8", "-1", "many"] {
            let text = switches.set(&format!("drafts={drafts}")).unwrap_err().to_string();
            assert!(text.contains(drafts) && text.contains("0 to 7"), "{text}");
        }
        let text = serde_json::from_str::<Switches>(r#"{"drafts": 8}"#).unwrap_err().to_string();
        assert!(text.contains("drafts is 8"), "{text}");
        switches.set("drafts=7").unwrap();
        assert_eq!(switches.drafts, 7);
    }
}
