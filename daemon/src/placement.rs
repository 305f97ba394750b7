//! Placement policies by name: those that come with Tandem, natively compiled.

use tandem_policy::Placement;

/// Names of the built-in policies, the default first.
pub fn names() -> impl Iterator<Item = &'static str> {
    tandem_policies::PLACEMENTS.iter().map(|p| p.name)
}

/// A fresh instance of a built-in policy.
pub fn by_name(name: &str) -> Option<Box<dyn Placement + Send>> {
    tandem_policies::placement(name).map(|p| (p.native)())
}
