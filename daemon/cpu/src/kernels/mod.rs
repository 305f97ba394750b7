//! The kernels: bodies written once over [`simd::Simd`], compiled once for each instruction
//! set, and reached through a [`Kernels`] table that is picked at start-up.
//!
//! ```text
//! rows  float  half_tile  round  repacked  panel  tile  sixes  recurrent      bodies, generic over Simd
//!        └───────────────────┬──────────────────┘
//!   portable   avx2   avx512   neon              Simd for one instruction set, and its table
//! ```

mod elementary;
mod float;
mod half_tile;
mod panel;
mod recurrent;
mod repacked;
mod round;
mod rows;
mod simd;
mod sixes;
mod tile;

pub(crate) mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

pub(crate) use float::{Cell, Matrix};
pub(crate) use half_tile::PANEL_ROWS;
pub(crate) use panel::Panel;
pub(crate) use recurrent::{Convolution, DeltaToken};
pub(crate) use repacked::{deinterleave, interleave};
pub(crate) use round::RoundedOut;
pub(crate) use simd::WIDTH;
pub(crate) use tile::Columns;

use tandem_program::DType;

/// Orders what this thread has written past the caches ([`simd::Simd::stream`]) before what it
/// writes next.
pub(crate) fn settle() {
    // SAFETY: part of every x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Defines [`Kernels`] and `table!`, which fills one for an instruction set, from one list.
macro_rules! kernels {
    ($d:tt $(fn $module:ident::$name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        /// Entry points of one instruction set.
        ///
        /// Calling any needs that instruction set (the table is handed out only where the
        /// host has it) and pointers valid for the sizes that the body's documentation states.
        pub(crate) struct Kernels {
            $(pub(crate) $name: unsafe fn($($type),*) $(-> $ret)?,)*
        }

        /// The table of an implementor of `Simd`; the attributes go on every entry point.
        macro_rules! table {
            ($d simd:ty, [$d ($d attribute:tt)*]) => {
                #[allow(unused_imports)]
                use super::{Columns, Convolution, DeltaToken, Matrix, Panel, RoundedOut};
                use tandem_program::DType;

                $(
                    $d ($d attribute)*
                    unsafe fn $name($($arg: $type),*) $(-> $ret)? {
                        // SAFETY: the caller's contract, passed on.
                        unsafe { super::$module::$name::<$d simd>($($arg),*) }
                    }
                )*

                /// This instruction set's entry points.
                pub(crate) static KERNELS: super::Kernels = super::Kernels { $($name),* };
            };
        }
    };
}

kernels! { $
    fn rows::rms_norm(x: *const f32, weight: *const f32, eps: f32, out: *mut f32, n: usize);
    fn rows::l2_norm(x: *const f32, eps: f32, scale: f32, out: *mut f32, n: usize);
    fn rows::gated_norm(x: *const f32, z: *const f32, weight: *const f32, eps: f32, out: *mut f32, n: usize);
    fn rows::silu_mul(gate: *const f32, up: *const f32, out: *mut f32, n: usize);
    fn rows::sigmoid_mul(x: *const f32, gate: *const f32, out: *mut f32, n: usize);
    fn rows::add(a: *const f32, b: *const f32, out: *mut f32, n: usize);
    fn rows::scale(x: *const f32, s: f32, out: *mut f32, n: usize);
    fn rows::divide(x: *const f32, s: f32, out: *mut f32, n: usize);
    fn rows::rope(x: *const f32, angles: *const f32, half: usize, out: *mut f32);
    fn rows::to_f16(x: *const f32, out: *mut u16, n: usize);
    fn rows::from_f16(x: *const u16, out: *mut f32, n: usize);
    fn rows::round_f16(x: *const f32, out: *mut f32, n: usize);
    fn rows::softmax(scores: *mut f32, n: usize) -> f32;
    fn float::dots(rows: &Matrix, columns: *const f32, column_step: usize, count: usize, scale: f32, out: *mut f32, out_step: usize);
    fn float::weigh(rows: &Matrix, weights: *const f32, weight_step: usize, count: usize, out: *mut f32, out_step: usize, fresh: bool);
    fn half_tile::add_panel(panel: *const f32, depth: usize, x: *const f32, x_step: usize, columns: usize, sums: *mut f32);
    fn round::round_32(x: *const f32, n: usize, out: RoundedOut);
    fn round::round_256(x: *const f32, n: usize, out: RoundedOut);
    fn tile::tile(dtype: DType, rows: &[*const u8; 8], next: &[*const u8; 8], columns: &Columns, panel: &mut Panel, acc: *mut f32);
    fn tile::tile_repacked(dtype: DType, rows: *const u8, next: *const u8, columns: &Columns, panel: &mut Panel, acc: *mut f32);
    fn recurrent::conv(block: &Convolution);
    fn recurrent::delta_token(token: &DeltaToken);
    fn recurrent::fade(gamma: f32, gammas: *const f32, dots: *const f32, out: *mut f32, n: usize);
    fn recurrent::correct(beta: f32, v: *const f32, a: *const f32, out: *mut f32, n: usize);
}
// Gives the macro a path that the instruction sets' modules can name.
#[allow(clippy::single_component_path_imports)]
use table;
