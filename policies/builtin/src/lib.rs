//! The policies that come with Tandem, by name.
//!
//! Each is one source compiled twice: natively, which the simulator runs and the daemon falls
//! back to, and to the Wasm component that the daemon loads.

use tandem_policy::{Placement, Power};

/// A placement policy that comes with Tandem.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// What the config and the command line call it.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Makes one for a slot, natively compiled.
    pub native: fn() -> Box<dyn Placement + Send>,
    /// The Wasm component, built from the same source by `cargo xtask policies`.
    pub component: &'static [u8],
}

/// All of them, the default first.
pub const PLACEMENTS: &[Builtin] = &[
    Builtin {
        name: "anchor",
        summary: "saves ahead of time where the next prompt will most likely part",
        native: || Box::new(tandem_policy_anchor::Anchor::default()),
        component: include_bytes!("../../built/anchor.wasm"),
    },
    Builtin {
        name: "divergence",
        summary: "saves where this prompt parts from the last one (the paper's rule)",
        native: || Box::new(tandem_policy_divergence::Divergence::default()),
        component: include_bytes!("../../built/divergence.wasm"),
    },
    Builtin {
        name: "chat",
        summary: "saves near the prompt's end and at the last user message (llama.cpp's rule)",
        native: || Box::new(tandem_policy_chat::Chat),
        component: include_bytes!("../../built/chat.wasm"),
    },
    Builtin {
        name: "marconi",
        summary: "saves at branch points, evicts by recency and compute saved per byte",
        native: || Box::new(tandem_policy_marconi::Marconi),
        component: include_bytes!("../../built/marconi.wasm"),
    },
    Builtin {
        name: "sparse",
        summary: "saves by dynamic programming over the shared prefix lengths seen",
        native: || Box::new(tandem_policy_sparse::Sparse::default()),
        component: include_bytes!("../../built/sparse.wasm"),
    },
];

/// The policy of that name.
#[must_use]
pub fn placement(name: &str) -> Option<&'static Builtin> {
    PLACEMENTS.iter().find(|p| p.name == name)
}

/// A power policy that comes with Tandem.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinPower {
    /// What the config calls it.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Makes one, natively compiled.
    pub native: fn() -> Box<dyn Power + Send>,
    /// The Wasm component, built from the same source by `cargo xtask policies`.
    pub component: &'static [u8],
}

/// All of them, the default first.
pub const POWERS: &[BuiltinPower] = &[
    BuiltinPower {
        name: "idle-timer",
        summary: "drops the votes after three seconds without work (the paper's rule)",
        native: || Box::new(tandem_policy_idle_timer::IdleTimer::default()),
        component: include_bytes!("../../built/idle-timer.wasm"),
    },
    BuiltinPower {
        name: "adaptive",
        summary: "rent or buy: the timeout that would have cost least over the pauses seen",
        native: || Box::new(tandem_policy_adaptive::Adaptive::default()),
        component: include_bytes!("../../built/adaptive.wasm"),
    },
];

/// The power policy of that name.
#[must_use]
pub fn power(name: &str) -> Option<&'static BuiltinPower> {
    POWERS.iter().find(|p| p.name == name)
}

/// `divergence` with another threshold, in tokens.
#[must_use]
pub fn divergence_with_threshold(threshold: u32) -> Box<dyn Placement + Send> {
    Box::new(tandem_policy_divergence::Divergence::with_threshold(threshold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_once() {
        for p in PLACEMENTS {
            assert_eq!(PLACEMENTS.iter().filter(|q| q.name == p.name).count(), 1);
            assert!(placement(p.name).is_some());
        }
        assert!(placement("no-such-policy").is_none());
        for p in POWERS {
            assert_eq!(POWERS.iter().filter(|q| q.name == p.name).count(), 1);
            assert!(power(p.name).is_some());
        }
        assert!(power("anchor").is_none());
    }
}
