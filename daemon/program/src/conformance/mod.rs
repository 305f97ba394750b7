//! One suite for every device: the same seeded programs on the device and on
//! [`Reference`](crate::reference::Reference), results compared as closely as
//! [`DeviceInfo::exactness`](crate::DeviceInfo::exactness) promises, plus laws that hold
//! between runs of the device alone.
//!
//! A device gets all of it with one line in a test file:
//!
//! ```ignore
//! tandem_program::conformance_tests!(|| MyDevice::new());
//! ```
//!
//! Whole buffers are compared, so a write outside an output is found as well. A failure
//! names the check, the case (op, types, shapes, seed), the first value that differs, and
//! both values.

mod case;
mod laws;
mod products;
mod random;
mod refusals;
mod rows;
mod sequence;
mod tiles;

use crate::Device;

/// Makes a fresh device.
pub type Make<'a> = &'a dyn Fn() -> Box<dyn Device>;

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it is called; also the name of the test.
    pub name: &'static str,
    /// Runs it; panics with a full account of the first failure.
    pub run: fn(Make<'_>),
}

macro_rules! checks {
    ($($module:ident::$name:ident),* $(,)?) => {
        &[$(Check { name: stringify!($name), run: $module::$name }),*]
    };
}

/// The whole suite. [`conformance_tests`](crate::conformance_tests) makes a test of each;
/// harnesses that pick devices at run time can walk it themselves.
pub const CHECKS: &[Check] = checks![
    rows::embed,
    rows::rms_norm,
    rows::l2_norm,
    rows::gated_norm,
    rows::silu_mul,
    rows::sigmoid_mul,
    rows::add,
    rows::rope,
    rows::copy,
    rows::gather,
    rows::delta_gates,
    products::matmul_f32,
    products::matmul_f16,
    products::matmul_bf16,
    products::matmul_q8_0,
    products::matmul_q4_0,
    products::matmul_q4_1,
    products::matmul_q5_0,
    products::matmul_q4_k,
    products::matmul_q5_k,
    products::matmul_q6_k,
    products::matmul_of_several_types,
    products::matmul_of_chosen_rows,
    products::matmul_of_extreme_activations,
    products::matmul_of_extreme_weights,
    products::swiglu,
    tiles::matmul_f16_tile,
    tiles::matmul_of_both_kinds,
    tiles::f16_tile_extremes,
    tiles::swiglu_f16_tile,
    tiles::f16_tile_laws,
    sequence::attention,
    sequence::conv,
    sequence::delta_per_token,
    sequence::delta_of_large_states,
    sequence::delta_chunked,
    laws::columns_do_not_see_each_other,
    laws::swiglu_equals_matmul_then_silu_mul,
    laws::in_place_equals_out_of_place,
    laws::saves_change_nothing_else,
    laws::a_saved_state_is_the_end_state_of_a_shorter_run,
    laws::ops_run_in_order,
    laws::runs_repeat_to_the_bit,
    refusals::malformed_programs_are_refused_untouched,
    refusals::buffers_are_zeroed_bounded_and_counted,
    refusals::imported_regions_are_read_only,
];

/// Runs one check by name.
///
/// # Panics
///
/// Where the check fails, or no check has that name.
pub fn run(name: &str, make: Make<'_>) {
    match CHECKS.iter().find(|c| c.name == name) {
        Some(check) => (check.run)(make),
        None => panic!("no conformance check is called {name}"),
    }
}

/// One `#[test]` for each of [`CHECKS`], on the devices that the closure makes.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_tests! {
            @ $make;
            embed rms_norm l2_norm gated_norm silu_mul sigmoid_mul add rope copy gather delta_gates
            matmul_f32 matmul_f16 matmul_bf16 matmul_q8_0 matmul_q4_0 matmul_q4_1 matmul_q5_0
            matmul_q4_k matmul_q5_k matmul_q6_k
            matmul_of_several_types matmul_of_chosen_rows matmul_of_extreme_activations
            matmul_of_extreme_weights swiglu
            matmul_f16_tile matmul_of_both_kinds f16_tile_extremes swiglu_f16_tile f16_tile_laws
            attention conv delta_per_token delta_of_large_states delta_chunked
            columns_do_not_see_each_other swiglu_equals_matmul_then_silu_mul
            in_place_equals_out_of_place saves_change_nothing_else
            a_saved_state_is_the_end_state_of_a_shorter_run ops_run_in_order runs_repeat_to_the_bit
            malformed_programs_are_refused_untouched buffers_are_zeroed_bounded_and_counted
            imported_regions_are_read_only
        }
    };
    (@ $make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run(stringify!($name), &|| Box::new($make()));
            }
        )*

        #[test]
        fn the_suite_is_complete() {
            let here = [$(stringify!($name)),*];
            let all: Vec<&str> = $crate::conformance::CHECKS.iter().map(|c| c.name).collect();
            assert_eq!(here.as_slice(), all, "conformance_tests! and CHECKS list different checks");
        }
    };
}

#[cfg(test)]
mod tests {
    crate::conformance_tests!(crate::reference::Reference::new);
}
