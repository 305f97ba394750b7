//! Products with weights of every type.

use super::Make;
use super::case::{Case, each};
use super::random::Random;
use crate::op::{Act, Op, Product};
use crate::tensor::DType;

/// Column counts that kernels group differently.
pub(super) const COLUMNS: [u32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 63, 64, 65, 130];

/// Widths with tails of every kind, and beyond what a kernel may unpack at once.
pub(super) fn widths(dtype: DType) -> &'static [u32] {
    match dtype.block_len() {
        1 => &[1, 7, 8, 15, 16, 17, 96, 100, 256, 288],
        32 => &[32, 64, 96, 256, 288, 1024, 1056, 2080],
        _ => &[256, 512, 768, 1024, 1280, 2304],
    }
}

const OUTPUTS: [u32; 11] = [1, 3, 7, 8, 9, 15, 16, 17, 33, 40, 71];

fn matmul(make: Make<'_>, dtype: DType) {
    let mut r = Random::new(dtype.name());
    let mut shapes = Vec::new();
    for columns in COLUMNS {
        shapes.push((columns, r.pick(widths(dtype)), r.pick(&OUTPUTS)));
    }
    for width in widths(dtype) {
        shapes.push((1, *width, r.pick(&OUTPUTS)));
        shapes.push((1 + r.below(9), *width, r.pick(&OUTPUTS)));
    }
    for outputs in OUTPUTS {
        shapes.push((1, r.pick(widths(dtype)), outputs));
        shapes.push((1 + r.below(9), r.pick(widths(dtype)), outputs));
    }
    each(make, shapes, |(columns, width, outputs)| {
        let mut case = Case::new(format!("{dtype} [{outputs} x {width}], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, width, 2.0);
        let weight = case.weight(&mut r, dtype, outputs, width);
        let out = case.output(&mut r, DType::F32, columns, outputs);
        case.push(Op::MatMul { x, products: vec![Product::new(weight, out)] });
        case
    });
}

pub(super) fn matmul_f32(make: Make<'_>) {
    matmul(make, DType::F32);
}

pub(super) fn matmul_f16(make: Make<'_>) {
    matmul(make, DType::F16);
}

pub(super) fn matmul_bf16(make: Make<'_>) {
    matmul(make, DType::BF16);
}

pub(super) fn matmul_q8_0(make: Make<'_>) {
    matmul(make, DType::Q8_0);
}

pub(super) fn matmul_q4_0(make: Make<'_>) {
    matmul(make, DType::Q4_0);
}

pub(super) fn matmul_q4_1(make: Make<'_>) {
    matmul(make, DType::Q4_1);
}

pub(super) fn matmul_q5_0(make: Make<'_>) {
    matmul(make, DType::Q5_0);
}

pub(super) fn matmul_q4_k(make: Make<'_>) {
    matmul(make, DType::Q4_K);
}

pub(super) fn matmul_q5_k(make: Make<'_>) {
    matmul(make, DType::Q5_K);
}

pub(super) fn matmul_q6_k(make: Make<'_>) {
    matmul(make, DType::Q6_K);
}

pub(super) fn matmul_of_several_types(make: Make<'_>) {
    let mut r = Random::new("matmul_of_several_types");
    each(make, [1, 2, 5, 66], |columns| {
        let mut case = Case::new(format!("every type at once, {columns} columns of 512"));
        let x = case.input(&mut r, DType::F32, columns, 512, 2.0);
        let products = DType::ALL
            .into_iter()
            .rev()
            .map(|dtype| {
                let outputs = r.pick(&OUTPUTS);
                let weight = case.weight(&mut r, dtype, outputs, 512);
                let out = case.output(&mut r, DType::F32, columns, outputs);
                Product::new(weight, out)
            })
            .collect();
        case.push(Op::MatMul { x, products });
        case
    });
}

pub(super) fn matmul_of_chosen_rows(make: Make<'_>) {
    let mut r = Random::new("matmul_of_chosen_rows");
    let cases = DType::ALL.into_iter().flat_map(|dtype| [1u32, 2, 7, 8, 9, 41].map(|n| (dtype, n)));
    each(make, cases, |(dtype, count)| {
        let columns = r.pick(&[1, 2, 4, 7]);
        let mut case = Case::new(format!("{count} rows of {dtype} [50 x 256], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, 256, 2.0);
        let weight = case.weight(&mut r, dtype, 50, 256);
        let out = case.output(&mut r, DType::F32, columns, count);
        // Any order, repetitions too.
        let rows = Some((0..count).map(|_| r.below(50)).collect());
        case.push(Op::MatMul { x, products: vec![Product { rows, ..Product::new(weight, out) }] });
        case
    });
}

/// Columns of zeros, of subnormals, of one outlier, of the largest values.
pub(super) fn matmul_of_extreme_activations(make: Make<'_>) {
    let mut r = Random::new("matmul_of_extreme_activations");
    each(make, DType::ALL, |dtype| {
        let width = 512;
        let mut case = Case::new(format!("{dtype} [20 x {width}]"));
        let mut values = Vec::new();
        for column in 0..6u32 {
            for i in 0..width {
                values.push(match column {
                    0 => 0.0,
                    1 => -0.0,
                    2 => f32::from_bits(1 + r.below(400)) * if i % 2 == 0 { 1.0 } else { -1.0 },
                    3 if i == 300 => -1e4,
                    3 => r.unit() * 1e-3,
                    4 => {
                        if r.below(2) == 0 {
                            1000.0
                        } else {
                            -1000.0
                        }
                    }
                    _ => r.unit() * 1e20,
                });
            }
        }
        let x = case.values(6, width, &values);
        let weight = case.weight(&mut r, dtype, 20, width);
        let out = case.output(&mut r, DType::F32, 6, 20);
        case.push(Op::MatMul { x, products: vec![Product::new(weight, out)] });
        case
    });
}

/// Smallest and largest weights with smallest and largest activations, in all pairs of signs that
/// a kernel's narrow sums may meet.
pub(super) fn matmul_of_extreme_weights(make: Make<'_>) {
    let mut r = Random::new("matmul_of_extreme_weights");
    each(make, DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()), |dtype| {
        let (rows, width, columns) = (16u32, 256, 8);
        let mut case = Case::new(format!("{dtype} [{rows} x {width}]"));
        // By bits of the column: the sign of the first two of every four values, of the others, and
        // whether it turns from one four to the next.
        let value = |column: u32, i: u32| {
            let half = column >> (i / 2 % 2) & 1;
            let turn = if column & 4 != 0 { i / 4 % 2 } else { 0 };
            if half ^ turn == 0 { 1000.0 } else { -1000.0 }
        };
        let values: Vec<f32> = (0..columns).flat_map(|c| (0..width).map(move |i| value(c, i))).collect();
        let x = case.values(columns, width, &values);
        let weight = case.weight(&mut r, dtype, rows, width);
        let skip = match dtype {
            DType::Q4_1 => 4,
            DType::Q4_K | DType::Q5_K => 16,
            DType::Q6_K => 0,
            _ => 2,
        };
        let end = if dtype == DType::Q6_K { 192 } else { dtype.block_bytes() };
        let bytes = &mut case.buffers[weight.buffer.0 as usize].0[weight.offset as usize..];
        for (b, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
            for (i, byte) in block[skip..end].iter_mut().enumerate() {
                // Rows of the smallest, of the largest, of both in turn, of either.
                *byte = match b % 5 {
                    0 => 0x00,
                    1 => 0xff,
                    2 => [0x00, 0xff][i / 2 % 2],
                    3 => [0xff, 0x00][i % 2],
                    _ => [0x00, 0xff][r.below(2) as usize],
                };
            }
        }
        let out = case.output(&mut r, DType::F32, columns, rows);
        case.push(Op::MatMul { x, products: vec![Product::new(weight, out)] });
        case
    });
}

pub(super) fn swiglu(make: Make<'_>) {
    let mut r = Random::new("swiglu");
    let cases = DType::ALL.into_iter().flat_map(|dtype| COLUMNS.map(|n| (dtype, n)));
    each(make, cases, |(dtype, columns)| {
        let (width, ffn) = (r.pick(widths(dtype)), r.pick(&OUTPUTS));
        // Files mix types; both products keep their own rounding.
        let up_type = if r.below(4) == 0 { DType::F32 } else { dtype };
        let mut case = Case::new(format!("{dtype} and {up_type} [{ffn} x {width}], {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, width, 2.0);
        let gate = case.weight(&mut r, dtype, ffn, width);
        let up = case.weight(&mut r, up_type, ffn, width);
        let out = case.output(&mut r, DType::F32, columns, ffn);
        case.push(Op::SwiGlu { x, gate, up, acts: Act::for_weights([gate, up]), out });
        case
    });
}
