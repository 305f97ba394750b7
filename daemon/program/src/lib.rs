//! What one pass over the model is made of, and what each piece means.
//!
//! The engine lowers a pass (some token columns of some sequences) to a [`Program`]: a flat
//! list of [`Op`]s over [`Tensor`]s that live in device buffers. A [`Device`] executes it.
//! Nothing above this crate knows which device that is.
//!
//! ```text
//! engine:  Pass -> Program ──submit──▶ Device ──▶ buffers ──read──▶ logits, states
//!                   │                     ▲
//!                   └── validate ─────────┘  (shapes, bounds, aliasing: checked once, before any op runs)
//! ```
//!
//! The meaning of every op is the scalar code in [`scalar`], rounding and summation order
//! included, and [`reference::Reference`] is the device that runs just that.
//! [`conformance`] holds one suite that compares any device with it.
//!
//! Two rules hold for every op, and the rest of Tandem leans on them:
//!
//! * a column's result does not depend on which other columns share the pass;
//! * multiplication and addition round separately (no fused multiply-add), and sums run in
//!   the order that `scalar` states, so that AVX2, AVX-512, NEON and portable code agree to
//!   the bit.

pub mod conformance;
pub mod device;
pub mod op;
pub mod power;
pub mod program;
pub mod reference;
pub mod scalar;
pub mod tensor;

pub use device::{Bytes, Device, DeviceError, DeviceInfo, Exactness, Region, Ticket};
pub use op::{Act, DeltaForm, Op, Product, StateOut};
pub use power::{Corner, Power, Votes};
pub use program::{BufferInfo, Program, ProgramError};
pub use tensor::{BufferId, DType, Tensor};
