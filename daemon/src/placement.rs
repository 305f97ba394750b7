//! Placement policies by name.

use tandem_policy::Placement;

/// Names of the built-in policies.
pub const NAMES: &[&str] = &["anchor", "divergence", "chat"];

/// A fresh instance of a built-in policy.
pub fn by_name(name: &str) -> Option<Box<dyn Placement + Send>> {
    Some(match name {
        "anchor" => Box::new(tandem_policy_anchor::Anchor::default()),
        "divergence" => Box::new(tandem_policy_divergence::Divergence::default()),
        "chat" => Box::new(tandem_policy_chat::Chat),
        _ => return None,
    })
}
