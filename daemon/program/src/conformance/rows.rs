//! Ops that work row by row.

use super::Make;
use super::case::{Case, each};
use super::random::Random;
use crate::op::Op;
use crate::tensor::DType;

/// Rows: one, few, enough to be shared out.
const ROWS: [u32; 6] = [1, 2, 5, 9, 64, 130];
/// Widths with and without tails of 8 and 16.
const WIDTHS: [u32; 9] = [1, 7, 8, 15, 16, 17, 100, 256, 1031];

fn shapes() -> impl Iterator<Item = (u32, u32)> {
    ROWS.into_iter().flat_map(|rows| WIDTHS.into_iter().map(move |width| (rows, width)))
}

pub(super) fn embed(make: Make<'_>) {
    let mut r = Random::new("embed");
    let cases = DType::ALL.into_iter().flat_map(|dtype| [1u32, 3, 70].map(|n| (dtype, n)));
    each(make, cases, |(dtype, n)| {
        let width = if dtype.is_quantized() { dtype.block_len() as u32 * (1 + r.below(3)) } else { 37 };
        let mut case = Case::new(format!("{dtype} table, {n} ids, width {width}"));
        let table = case.weight(&mut r, dtype, 19, width);
        let ids = (0..n).map(|_| r.below(19)).collect();
        let out = case.output(&mut r, DType::F32, n, width);
        let scale = r.pick(&[1.0, 12.0, -0.3]);
        case.push(Op::Embed { table, ids, scale, out });
        case
    });
}

pub(super) fn rms_norm(make: Make<'_>) {
    let mut r = Random::new("rms_norm");
    each(make, shapes(), |(rows, width)| {
        let mut case = Case::new(format!("[{rows} x {width}]"));
        let x = case.input(&mut r, DType::F32, rows, width, 3.0);
        let weight = case.weight(&mut r, DType::F32, 1, width);
        let out = if r.below(2) == 0 { x } else { case.output(&mut r, DType::F32, rows, width) };
        case.push(Op::RmsNorm { x, weight, eps: 1e-6, out });
        case
    });
}

pub(super) fn l2_norm(make: Make<'_>) {
    let mut r = Random::new("l2_norm");
    each(make, shapes(), |(rows, part)| {
        let groups = r.pick(&[1, 2, 3]);
        let width = part * groups;
        let mut case = Case::new(format!("[{rows} x {groups} groups of {part}]"));
        let x = case.input(&mut r, DType::F32, rows, width, 3.0);
        let out = if r.below(2) == 0 { x } else { case.output(&mut r, DType::F32, rows, width) };
        case.push(Op::L2Norm { x, groups, eps: 1e-6, scale: r.pick(&[1.0, 0.088_388_35]), out });
        case
    });
}

pub(super) fn gated_norm(make: Make<'_>) {
    let mut r = Random::new("gated_norm");
    each(make, shapes(), |(rows, width)| {
        let mut case = Case::new(format!("[{rows} x {width}]"));
        let x = case.input(&mut r, DType::F32, rows, width, 3.0);
        let z = case.input(&mut r, DType::F32, rows, width, 20.0);
        let weight = case.weight(&mut r, DType::F32, 1, width);
        let out = match r.below(3) {
            0 => x,
            1 => z,
            _ => case.output(&mut r, DType::F32, rows, width),
        };
        case.push(Op::GatedNorm { x, z, weight, eps: 1e-6, out });
        case
    });
}

/// A two-operand op over all shapes, in place half the time, and over extreme values.
fn binary(make: Make<'_>, name: &str, op: fn(crate::Tensor, crate::Tensor, crate::Tensor) -> Op) {
    let mut r = Random::new(name);
    each(make, shapes(), |(rows, width)| {
        let mut case = Case::new(format!("[{rows} x {width}]"));
        let a = case.input(&mut r, DType::F32, rows, width, 20.0);
        let b = case.input(&mut r, DType::F32, rows, width, 20.0);
        let out = match r.below(4) {
            0 => a,
            1 => b,
            _ => case.output(&mut r, DType::F32, rows, width),
        };
        case.push(op(a, b, out));
        case
    });
    let extreme = [0.0, -0.0, 1e-40, -1e-40, 87.0, -87.5, 88.5, -89.0, 1e30, -1e30, f32::MAX, f32::MIN];
    each(make, [extreme], |values| {
        let n = values.len() as u32;
        let mut case = Case::new("extreme values");
        let a = case.values(n, n, &values.iter().flat_map(|_| values).collect::<Vec<_>>());
        let b = case.values(n, n, &values.iter().flat_map(|v| [*v; 12]).collect::<Vec<_>>());
        let out = case.output(&mut r, DType::F32, n, n);
        case.push(op(a, b, out));
        case
    });
}

pub(super) fn silu_mul(make: Make<'_>) {
    binary(make, "silu_mul", |gate, up, out| Op::SiluMul { gate, up, out });
}

pub(super) fn sigmoid_mul(make: Make<'_>) {
    binary(make, "sigmoid_mul", |x, gate, out| Op::SigmoidMul { x, gate, out });
}

pub(super) fn add(make: Make<'_>) {
    binary(make, "add", |a, b, out| Op::Add { a, b, out });
}

pub(super) fn rope(make: Make<'_>) {
    let mut r = Random::new("rope");
    let shapes = [(1, 1, 256, 64), (5, 3, 64, 64), (9, 2, 256, 64), (130, 2, 128, 128), (7, 1, 30, 22)];
    each(make, shapes, |(columns, heads, dim, turned)| {
        let mut case = Case::new(format!("{columns} columns, {heads} heads of {dim}, {turned} turned"));
        let x = case.input(&mut r, DType::F32, columns * heads, dim, 3.0);
        let table = case.input(&mut r, DType::F32, columns, turned, 1.0);
        let out = if r.below(2) == 0 { x } else { case.output(&mut r, DType::F32, columns * heads, dim) };
        case.push(Op::Rope { x, heads, table, out });
        case
    });
}

pub(super) fn copy(make: Make<'_>) {
    let mut r = Random::new("copy");
    let cells = [DType::F32, DType::F16];
    let pairs = cells.into_iter().flat_map(|a| cells.map(|b| (a, b)));
    let cases = pairs.flat_map(|pair| shapes().map(move |shape| (pair, shape)));
    each(make, cases, |((from, to), (rows, width))| {
        let mut case = Case::new(format!("{from} to {to} [{rows} x {width}]"));
        // Some values overflow a half, some are subnormal halves.
        let size = r.pick(&[1.0, 1e-5, 1e6]);
        let x = case.input(&mut r, from, rows, width, size);
        let out = case.output(&mut r, to, rows, width);
        case.push(Op::Copy { x, out });
        case
    });
}

pub(super) fn gather(make: Make<'_>) {
    let mut r = Random::new("gather");
    each(make, shapes(), |(rows, width)| {
        let count = 1 + r.below(70);
        let mut case = Case::new(format!("{count} of [{rows} x {width}]"));
        let x = case.input(&mut r, DType::F32, rows, width, 1.0);
        let out = case.output(&mut r, DType::F32, count, width);
        let rows = (0..count).map(|_| r.below(rows)).collect();
        case.push(Op::Gather { x, rows, out });
        case
    });
}

pub(super) fn delta_gates(make: Make<'_>) {
    let mut r = Random::new("delta_gates");
    let shapes = [1u32, 2, 5, 65, 130].into_iter().flat_map(|n| [1u32, 2, 16, 17].map(|h| (n, h)));
    each(make, shapes, |(columns, heads)| {
        let mut case = Case::new(format!("{columns} columns, {heads} heads"));
        let alpha = case.input(&mut r, DType::F32, columns, heads, 60.0);
        let beta = case.input(&mut r, DType::F32, columns, heads, 20.0);
        let a = case.weight(&mut r, DType::F32, 1, heads);
        let dt = case.weight(&mut r, DType::F32, 1, heads);
        let decay = if r.below(2) == 0 { alpha } else { case.output(&mut r, DType::F32, columns, heads) };
        let beta_out = if r.below(2) == 0 { beta } else { case.output(&mut r, DType::F32, columns, heads) };
        case.push(Op::DeltaGates { alpha, beta, a, dt, decay, beta_out });
        case
    });
}
