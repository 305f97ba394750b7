//! What a Tandem policy is asked and may answer.
//!
//! A *placement* policy decides where the recurrent state of a hybrid model is
//! saved while a prompt is processed, so that the next prompt, which shares its
//! beginning, need not be processed from the start. A *power* policy decides
//! when an idle device may drop its power votes.
//!
//! These are the only contract types in Tandem: the engine calls [`Placement`]
//! natively, the simulator too, and [`export_placement!`] makes the component
//! that the daemon loads from the same source. The frozen wire form is
//! `policies/wit/1.0.0`.
//!
//! A whole policy:
//!
//! ```
//! # /*
//! #![no_std]
//! # */
//! use tandem_policy::{Placement, PlaceRequest, Positions};
//!
//! /// Saves at the end of every prompt.
//! #[derive(Default)]
//! pub struct AtEnd;
//!
//! impl Placement for AtEnd {
//!     fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
//!         positions.push(request.prompt);
//!     }
//! }
//!
//! tandem_policy::export_placement!(AtEnd);
//! # fn main() {}
//! ```
#![no_std]

mod expected;
mod placement;
mod positions;
mod power;

pub use expected::{MAX_POINTS, Point, choose_saves, least_loss};
pub use placement::{
    Boundary, BoundaryKind, Cost, Kept, Observation, PlaceRequest, Placement, least_recently_used,
};
pub use positions::Positions;
pub use power::{PauseClock, Power, PowerAction, PowerDecision, PowerEvent, PowerEventKind};

/// Most boundaries that a request carries.
pub const MAX_BOUNDARIES: usize = 4096;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod wasm;

#[cfg(not(target_family = "wasm"))]
mod native;
