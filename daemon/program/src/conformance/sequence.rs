//! Ops that look along the sequence: attention, convolution, the delta rule.

use super::Make;
use super::case::{Case, each};
use super::random::Random;
use crate::op::{DeltaForm, Op, StateOut};
use crate::tensor::{DType, Tensor};

pub(super) fn attention(make: Make<'_>) {
    let mut r = Random::new("attention");
    // Query heads, KV heads, head dimension.
    let heads = [(1, 1, 16), (2, 1, 64), (3, 3, 17), (8, 2, 256), (6, 3, 80), (5, 1, 100)];
    let columns = [1u32, 2, 3, 5, 8, 64, 65];
    let cases = heads.into_iter().flat_map(|h| columns.map(|n| (h, n)));
    each(make, cases, |((heads, kv_heads, dim), columns)| {
        let past = r.pick(&[0, 0, 1, 7, 64, 131]);
        let dtype = r.pick(&[DType::F32, DType::F16]);
        let cells = past + columns + r.below(3);
        let mut case = Case::new(format!(
            "{columns} columns after {past}, {heads} heads on {kv_heads} of {dim}, {dtype} cells"
        ));
        let q = case.input(&mut r, DType::F32, columns * heads, dim, 4.0);
        let k = case.input(&mut r, dtype, cells, kv_heads * dim, 2.0);
        let v = case.input(&mut r, dtype, cells, kv_heads * dim, 2.0);
        let out = case.output(&mut r, DType::F32, columns * heads, dim);
        let scale = 1.0 / (dim as f32).sqrt();
        case.push(Op::Attention { q, k, v, heads, kv_heads, past, scale, out });
        case
    });
}

/// States after random columns, the last one always among them; some twice.
pub(super) fn states(
    case: &mut Case,
    r: &mut Random,
    columns: u32,
    rows: u32,
    width: u32,
    dense: bool,
) -> Vec<StateOut> {
    let count = r.below(4);
    let mut after: Vec<u32> = (0..count).map(|_| r.below(columns)).collect();
    after.push(columns - 1);
    after
        .into_iter()
        .map(|after| {
            let mut to = case.output(r, DType::F32, rows, width);
            if dense {
                (to.stride, to.offset) = (width, 0);
            }
            StateOut { after, to }
        })
        .collect()
}

pub(super) fn conv(make: Make<'_>) {
    let mut r = Random::new("conv");
    let columns = [1u32, 2, 3, 4, 5, 8, 63, 64, 65, 130];
    let channels = [1u32, 7, 8, 17, 100, 256, 300];
    let cases = columns.into_iter().flat_map(|n| channels.map(|c| (n, c)));
    each(make, cases, |(columns, channels)| {
        let taps = r.pick(&[2, 3, 4, 4, 5]);
        let mut case = Case::new(format!("{columns} columns, {channels} channels, {taps} taps"));
        let x = case.input(&mut r, DType::F32, columns, channels, 2.0);
        let state = case.input(&mut r, DType::F32, taps - 1, channels, 2.0);
        let kernel = case.weight(&mut r, DType::F32, channels, taps);
        let bias = (r.below(2) == 0).then(|| case.weight(&mut r, DType::F32, 1, channels));
        let out = case.output(&mut r, DType::F32, columns, channels);
        let states = states(&mut case, &mut r, columns, taps - 1, channels, false);
        let silu = r.below(3) != 0;
        case.push(Op::Conv { x, state, kernel, bias, silu, out, states });
        case
    });
}

/// The delta rule's inputs for these shapes: q, k, v, decay, beta, state.
pub(super) fn delta_inputs(
    case: &mut Case,
    r: &mut Random,
    columns: u32,
    (heads, key_heads): (u32, u32),
    (key_dim, value_dim): (u32, u32),
) -> [Tensor; 6] {
    // Keys and queries of about unit length, as the models normalise them.
    let size = 2.0 / (key_dim as f32).sqrt();
    let q = case.input(r, DType::F32, columns, key_heads * key_dim, size);
    let k = case.input(r, DType::F32, columns, key_heads * key_dim, size);
    let v = case.input(r, DType::F32, columns, heads * value_dim, 2.0);
    let gates: Vec<f32> = (0..columns * heads).map(|_| -r.unit().abs() * 0.7).collect();
    let decay = case.values(columns, heads, &gates);
    let steps: Vec<f32> = (0..columns * heads).map(|_| r.unit().abs()).collect();
    let beta = case.values(columns, heads, &steps);
    let state = case.dense(r, DType::F32, heads * key_dim, value_dim, 1.0);
    [q, k, v, decay, beta, state]
}

const DELTA_SHAPES: [DeltaShape; 6] = [
    ((1, 1), (8, 8)),
    ((2, 2), (16, 16)),
    ((3, 1), (17, 24)),
    ((4, 2), (32, 40)),
    ((6, 3), (20, 100)),
    ((2, 1), (128, 128)),
];

/// Heads and key heads, key and value dimensions.
type DeltaShape = ((u32, u32), (u32, u32));

fn delta(
    make: Make<'_>,
    name: &str,
    shapes: &[DeltaShape],
    columns: &[u32],
    form: impl Fn(&mut Random) -> DeltaForm,
) {
    let mut r = Random::new(name);
    let cases = shapes.iter().copied().flat_map(|shape| columns.iter().map(move |n| (shape, *n)));
    each(make, cases, |((heads, dims), columns)| {
        let form = form(&mut r);
        let mut case = Case::new(format!(
            "{form:?}, {columns} columns, {} heads on {}, {} x {}",
            heads.0, heads.1, dims.0, dims.1
        ));
        let [q, k, v, decay, beta, state] = delta_inputs(&mut case, &mut r, columns, heads, dims);
        let out = case.output(&mut r, DType::F32, columns, heads.0 * dims.1);
        // Large states are written differently where they lie as a model's do.
        let dense = state.rows * state.width >= 1 << 16;
        let states = states(&mut case, &mut r, columns, state.rows, state.width, dense);
        let (heads, key_heads) = heads;
        case.push(Op::GatedDelta { form, q, k, v, decay, beta, heads, key_heads, state, out, states });
        case
    });
}

pub(super) fn delta_per_token(make: Make<'_>) {
    delta(make, "delta_per_token", &DELTA_SHAPES, &[1, 2, 3, 5, 8, 20], |_| DeltaForm::PerToken);
}

/// States of 256 KiB: as large as a model's, which devices write differently.
pub(super) fn delta_of_large_states(make: Make<'_>) {
    delta(make, "delta_of_large_states", &[((4, 2), (128, 128))], &[1, 2, 4], |_| DeltaForm::PerToken);
}

pub(super) fn delta_chunked(make: Make<'_>) {
    delta(make, "delta_chunked", &DELTA_SHAPES, &[1, 2, 5, 63, 64, 65, 130, 200], |r| DeltaForm::Chunked {
        position: r.pick(&[0, 0, 1, 63, 64, 100, 1000]),
    });
}
