//! Products in half-precision tiles ([`Act::F16Tile`]). Small shapes: on the DSP's emulator they
//! are computed one by one, in tiles filled up to 32.

use super::Make;
use super::case::{Case, each};
use super::random::Random;
use crate::op::{Act, Op, Product};
use crate::tensor::{DType, Tensor};

/// Types of model files' large weights, then the others.
const TYPES: [DType; 10] = [
    DType::F16,
    DType::Q4_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_K,
    DType::F32,
    DType::BF16,
];
const USUAL: usize = 5;

/// Widths that end within a tile where the type allows it, and some of more than one block.
fn widths(dtype: DType) -> &'static [u32] {
    match dtype.block_len() {
        256 => &[256, 512, 768],
        32 => &[32, 64, 160, 288],
        _ => &[1, 31, 33, 64, 100, 257],
    }
}

const OUTPUTS: [u32; 6] = [1, 31, 32, 33, 40, 70];

fn product(weight: Tensor, out: Tensor) -> Product {
    Product { act: Act::F16Tile, ..Product::new(weight, out) }
}

pub(super) fn matmul_f16_tile(make: Make<'_>) {
    let mut r = Random::new("matmul_f16_tile");
    let mut shapes = Vec::new();
    for (i, dtype) in TYPES.into_iter().enumerate() {
        let columns: &[u32] = match i {
            0 | 1 => &[1, 2, 5, 31, 32, 33, 130],
            2..USUAL => &[1, 8, 33],
            _ => &[3],
        };
        for (j, columns) in columns.iter().enumerate() {
            // Every width of a type, wide ones with few columns.
            let all = widths(dtype);
            let width = if *columns > 40 { all[0] } else { all[j % all.len()] };
            shapes.push((dtype, *columns, width, OUTPUTS[(i + j) % OUTPUTS.len()]));
        }
    }
    each(make, shapes, |(dtype, columns, width, outputs)| {
        let mut case = Case::new(format!("{dtype} in tiles [{outputs} x {width}], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, width, 2.0);
        let weight = case.weight(&mut r, dtype, outputs, width);
        let out = case.output(&mut r, DType::F32, columns, outputs);
        case.push(Op::MatMul { x, products: vec![product(weight, out)] });
        case
    });
}

/// Both kinds of products of the same activations: each keeps its own rounding.
pub(super) fn matmul_of_both_kinds(make: Make<'_>) {
    let mut r = Random::new("matmul_of_both_kinds");
    each(make, [1u32, 40], |columns| {
        let mut case = Case::new(format!("tiles and rows, {columns} columns of 256"));
        let x = case.input(&mut r, DType::F32, columns, 256, 2.0);
        let mut products = Vec::new();
        for (i, dtype) in [DType::Q4_0, DType::F16, DType::Q6_K, DType::Q4_0].into_iter().enumerate() {
            for in_tiles in [i % 2 == 0, i % 2 == 1] {
                let outputs = r.pick(&OUTPUTS);
                let weight = case.weight(&mut r, dtype, outputs, 256);
                let out = case.output(&mut r, DType::F32, columns, outputs);
                products.push(if in_tiles { product(weight, out) } else { Product::new(weight, out) });
            }
        }
        case.push(Op::MatMul { x, products });
        case
    });
}

/// Inputs, weights and sums that halves cannot hold, that they hold as subnormals, and sums that
/// cancel.
pub(super) fn f16_tile_extremes(make: Make<'_>) {
    let mut r = Random::new("f16_tile_extremes");
    each(make, [DType::F32, DType::F16, DType::Q8_0], |dtype| {
        let (width, columns) = (96, 7);
        let mut case = Case::new(format!("{dtype} in tiles [33 x {width}]"));
        let mut values = Vec::new();
        for column in 0..columns {
            for i in 0..width {
                let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
                values.push(match column {
                    0 => 0.0,
                    1 => -0.0,
                    2 => f32::from_bits(0x3380_0000 + r.below(0x0040_0000)) * sign,
                    3 => 65_519.0 * sign,
                    4 if i == 50 => 65_520.0,
                    4 => 1.0,
                    5 => 60_000.0,
                    _ => r.unit() * 1e-3,
                });
            }
        }
        let x = case.values(columns, width, &values);
        let weight = case.weight(&mut r, dtype, 33, width);
        let out = case.output(&mut r, DType::F32, columns, 33);
        case.push(Op::MatMul { x, products: vec![product(weight, out)] });
        case
    });
}

pub(super) fn swiglu_f16_tile(make: Make<'_>) {
    let mut r = Random::new("swiglu_f16_tile");
    let cases = [
        (DType::Q4_0, DType::Q4_0, 1u32),
        (DType::Q4_K, DType::Q6_K, 34),
        (DType::F16, DType::F16, 3),
        (DType::Q8_0, DType::F32, 33),
    ];
    each(make, cases, |(gate_type, up_type, columns)| {
        let (width, ffn) = (256, r.pick(&OUTPUTS));
        let mut case =
            Case::new(format!("{gate_type} and {up_type} in tiles [{ffn} x {width}], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, width, 2.0);
        let gate = case.weight(&mut r, gate_type, ffn, width);
        let up = case.weight(&mut r, up_type, ffn, width);
        let out = case.output(&mut r, DType::F32, columns, ffn);
        // The last keeps one product's own rounding.
        let own = if up_type == DType::F32 { Act::F32 } else { Act::F16Tile };
        case.push(Op::SwiGlu { x, gate, up, acts: [Act::F16Tile, own], out });
        case
    });
}

/// All columns at once, each alone, and SwiGLU as three ops: the same bits.
pub(super) fn f16_tile_laws(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("f16_tile_laws");
    for (dtype, columns, ffn, width) in [(DType::Q4_0, 2u32, 33, 64), (DType::F16, 34, 5, 31)] {
        let mut case = Case::new(format!("{dtype} in tiles [{ffn} x {width}], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, width, 2.0);
        let gate = case.weight(&mut r, dtype, ffn, width);
        let up = case.weight(&mut r, dtype, ffn, width);
        let out = case.output(&mut r, DType::F32, columns, ffn);
        let (g, u) =
            (case.output(&mut r, DType::F32, columns, ffn), case.output(&mut r, DType::F32, columns, ffn));
        let swiglu = |first, count| {
            let (x, out) = (x.slice_rows(first, count), out.slice_rows(first, count));
            Op::SwiGlu { x, gate, up, acts: [Act::F16Tile; 2], out }
        };
        let products = |first, count| {
            let part = |t: Tensor| t.slice_rows(first, count);
            Op::MatMul { x: part(x), products: vec![product(gate, part(g)), product(up, part(u))] }
        };
        let mut steps = case.clone();
        case.push(swiglu(0, columns));
        case.push(products(0, columns));
        steps.push(products(0, columns));
        steps.push(Op::SiluMul { gate: g, up: u, out });
        let mut alone = case.clone();
        // Once more, one by one: the first, and those around the ends of a tile.
        for c in [0, 1, 31, 32, columns - 1].into_iter().filter(|c| *c < columns) {
            alone.push(swiglu(c, 1));
            alone.push(products(c, 1));
        }
        let got = case.must_run(&mut *device);
        let want = alone.must_run(&mut *device);
        case.compare_bits(&*device, "the same device, column by column", &want, &got);
        let want = steps.must_run(&mut *device);
        case.compare_bits(&*device, "matmul, then silu_mul", &want, &got);
    }
}
