//! The numbers of one request, as `generate` and `replay` report them.

use serde::Serialize;
use serde_json::{Map, Value};
use tandem_sdk::{DraftsByKind, Stats};

/// Numbers of one request. `None`, in JSON null: the server does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Numbers {
    /// Tokens of the prompt.
    pub(crate) prompt: Option<u64>,
    /// Tokens shared with what the slot had cached.
    pub(crate) shared: Option<u64>,
    /// Position of the state that was restored: tokens reused.
    pub(crate) restored: Option<u64>,
    /// Prompt tokens processed.
    pub(crate) new: Option<u64>,
    /// Prefill passes.
    pub(crate) passes: Option<u64>,
    /// States saved.
    pub(crate) saves: Option<u64>,
    /// Tokens of the answer.
    pub(crate) decode_tokens: Option<u64>,
    /// Passes that made them.
    pub(crate) decode_passes: Option<u64>,
    /// Tokens drafted.
    pub(crate) drafted: Option<u64>,
    /// Drafts accepted.
    pub(crate) accepted: Option<u64>,
    /// Of `drafted`, tokens that the schema forces.
    pub(crate) drafted_schema: Option<u64>,
    /// Of these, accepted.
    pub(crate) accepted_schema: Option<u64>,
    /// Of `drafted`, tokens copied from the prompt.
    pub(crate) drafted_lookup: Option<u64>,
    /// Of these, accepted.
    pub(crate) accepted_lookup: Option<u64>,
    /// Of `drafted`, tokens from the MTP block.
    pub(crate) drafted_mtp: Option<u64>,
    /// Of these, accepted.
    pub(crate) accepted_mtp: Option<u64>,
    /// Time in prefill, milliseconds.
    pub(crate) prefill_ms: Option<f64>,
    /// Time in decode, milliseconds.
    pub(crate) decode_ms: Option<f64>,
    /// Time of the request, milliseconds: in the daemon with the wait in its queue, on
    /// another server from here.
    pub(crate) ms: Option<f64>,
}

impl From<&Stats> for Numbers {
    fn from(stats: &Stats) -> Numbers {
        let count = |n: u32| Some(u64::from(n));
        Numbers {
            prompt: count(stats.prompt),
            shared: count(stats.shared),
            restored: count(stats.restored),
            new: count(stats.new),
            passes: count(stats.passes),
            saves: count(stats.saves),
            decode_tokens: count(stats.decode_tokens),
            decode_passes: count(stats.decode_passes),
            drafted: count(stats.drafted),
            accepted: count(stats.accepted),
            drafted_schema: count(stats.drafts.schema.drafted),
            accepted_schema: count(stats.drafts.schema.accepted),
            drafted_lookup: count(stats.drafts.lookup.drafted),
            accepted_lookup: count(stats.drafts.lookup.accepted),
            drafted_mtp: count(stats.drafts.mtp.drafted),
            accepted_mtp: count(stats.drafts.mtp.accepted),
            prefill_ms: Some(stats.prefill_ms),
            decode_ms: Some(stats.decode_ms),
            ms: Some(stats.ms),
        }
    }
}

impl Numbers {
    fn fields(&self) -> [(&'static str, Option<f64>); 19] {
        let of = |n: Option<u64>| n.map(|n| n as f64);
        [
            ("prompt", of(self.prompt)),
            ("shared", of(self.shared)),
            ("restored", of(self.restored)),
            ("new", of(self.new)),
            ("passes", of(self.passes)),
            ("saves", of(self.saves)),
            ("decode_tokens", of(self.decode_tokens)),
            ("decode_passes", of(self.decode_passes)),
            ("drafted", of(self.drafted)),
            ("accepted", of(self.accepted)),
            ("drafted_schema", of(self.drafted_schema)),
            ("accepted_schema", of(self.accepted_schema)),
            ("drafted_lookup", of(self.drafted_lookup)),
            ("accepted_lookup", of(self.accepted_lookup)),
            ("drafted_mtp", of(self.drafted_mtp)),
            ("accepted_mtp", of(self.accepted_mtp)),
            ("prefill_ms", self.prefill_ms),
            ("decode_ms", self.decode_ms),
            ("ms", self.ms),
        ]
    }

    /// Mean of each number over the requests that have it.
    pub(crate) fn mean(all: &[&Numbers]) -> Map<String, Value> {
        Numbers::default()
            .fields()
            .iter()
            .enumerate()
            .map(|(at, (name, _))| {
                let known = all.iter().filter_map(|numbers| numbers.fields()[at].1);
                ((*name).to_owned(), mean(known).into())
            })
            .collect()
    }

    /// Prompt tokens to process if the cache could be cut anywhere.
    pub(crate) fn unshared(&self) -> Option<f64> {
        Some((self.prompt? - self.shared?.min(self.prompt?)) as f64)
    }

    /// A line for a person.
    pub(crate) fn words(&self) -> String {
        let n = |n: Option<u64>| n.map_or_else(|| "?".into(), |n| n.to_string());
        let ms = |ms: Option<f64>| ms.map_or_else(|| "?".into(), |ms| format!("{ms:.1}"));
        format!(
            "prompt: tokens {}, reused {}, new {}, passes {}, saves {}, {} ms; \
             answer: tokens {}, passes {}, drafts accepted {} of {}, {} ms; in all {} ms",
            n(self.prompt),
            n(self.restored),
            n(self.new),
            n(self.passes),
            n(self.saves),
            ms(self.prefill_ms),
            n(self.decode_tokens),
            n(self.decode_passes),
            n(self.accepted),
            n(self.drafted),
            ms(self.decode_ms),
            ms(self.ms),
        )
    }
}

/// Drafts by where they came from.
pub(crate) fn drafts(drafts: &DraftsByKind) -> Value {
    let of = |c: tandem_sdk::DraftCounts| serde_json::json!({"drafted": c.drafted, "accepted": c.accepted});
    serde_json::json!({
        "schema": of(drafts.schema), "lookup": of(drafts.lookup), "mtp": of(drafts.mtp)
    })
}

/// The mean, if there is anything.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_has_every_number_of_a_step_under_the_same_name() {
        let step = serde_json::to_value(Numbers::from(&Stats::default())).unwrap();
        let names: Vec<&String> = step.as_object().unwrap().keys().collect();
        let mean = Numbers::mean(&[&Numbers::default()]);
        assert_eq!(names, mean.keys().collect::<Vec<_>>());
    }

    #[test]
    fn a_number_that_some_requests_lack_is_averaged_over_the_others() {
        let with = |new| Numbers { new, ..Numbers::default() };
        let mean = Numbers::mean(&[&with(Some(1)), &with(None), &with(Some(4))]);
        assert_eq!(mean["new"], 2.5);
        assert!(mean["passes"].is_null());
    }
}
