//! What must hold between runs of one device, to the bit on every device.

use super::Make;
use super::case::{Case, Results};
use super::products::widths;
use super::random::Random;
use super::sequence::{delta_inputs, states};
use crate::op::{Act, DeltaForm, Op, Product, StateOut};
use crate::tensor::{DType, Tensor};

fn rows_of(results: &Results, t: &Tensor) -> Vec<Vec<u8>> {
    let (cell, bytes) = (t.dtype.block_bytes(), &results[t.buffer.0 as usize]);
    (0..t.rows as usize)
        .map(|r| {
            let at = t.offset as usize + r * t.stride as usize * cell;
            bytes[at..at + t.width as usize * cell].to_vec()
        })
        .collect()
}

fn assert_rows(what: &str, want: &[Vec<u8>], got: &[Vec<u8>]) {
    for (r, (want, got)) in want.iter().zip(got).enumerate() {
        if let Some(i) = want.chunks(4).zip(got.chunks(4)).position(|(a, b)| a != b) {
            let value = |b: &[u8]| f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]);
            panic!("{what}: row {r} value {i} is {:e}, expected {:e}", value(got), value(want));
        }
    }
}

/// All columns at once, and each in a program of its own.
pub(super) fn columns_do_not_see_each_other(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("columns_do_not_see_each_other");
    for dtype in DType::ALL {
        for columns in [2u32, 3, 5, 9, 66] {
            // Many columns of few values: under emulation every float costs.
            let all = widths(dtype);
            let width = r.pick(if columns > 9 { &all[..all.len() / 2] } else { all });
            let mut case = Case::new(format!("{dtype} [21 x {width}], {columns} columns"));
            let x = case.input(&mut r, DType::F32, columns, width, 2.0);
            let weight = case.weight(&mut r, dtype, 21, width);
            let up = case.weight(&mut r, dtype, 21, width);
            let out = case.output(&mut r, DType::F32, columns, 21);
            let fused = case.output(&mut r, DType::F32, columns, 21);
            let acts = Act::for_weights([weight, up]);
            let op = |first: u32, count: u32| {
                let x = x.slice_rows(first, count);
                let product = Product::new(weight, out.slice_rows(first, count));
                [
                    Op::MatMul { x, products: vec![product] },
                    Op::SwiGlu { x, gate: weight, up, acts, out: fused.slice_rows(first, count) },
                ]
            };
            let mut alone = case.clone();
            op(0, columns).into_iter().for_each(|op| case.push(op));
            (0..columns).for_each(|c| op(c, 1).into_iter().for_each(|op| alone.push(op)));
            let (want, got) = (alone.must_run(&mut *device), case.must_run(&mut *device));
            case.compare_bits(&*device, "the same device, column by column", &want, &got);
        }
    }
    for (columns, past) in [(2u32, 0u32), (5, 3), (65, 40)] {
        let mut case = Case::new(format!("attention of {columns} columns after {past}"));
        let (heads, kv_heads, dim) = (4, 2, 40);
        let q = case.input(&mut r, DType::F32, columns * heads, dim, 4.0);
        let k = case.input(&mut r, DType::F16, past + columns, kv_heads * dim, 2.0);
        let v = case.input(&mut r, DType::F16, past + columns, kv_heads * dim, 2.0);
        let out = case.output(&mut r, DType::F32, columns * heads, dim);
        let op = |first: u32, count: u32| Op::Attention {
            q: q.slice_rows(first * heads, count * heads),
            k,
            v,
            heads,
            kv_heads,
            past: past + first,
            scale: 0.2,
            out: out.slice_rows(first * heads, count * heads),
        };
        let mut alone = case.clone();
        case.push(op(0, columns));
        (0..columns).for_each(|c| alone.push(op(c, 1)));
        let (want, got) = (alone.must_run(&mut *device), case.must_run(&mut *device));
        case.compare_bits(&*device, "the same device, column by column", &want, &got);
    }
}

pub(super) fn swiglu_equals_matmul_then_silu_mul(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("swiglu_equals_matmul_then_silu_mul");
    for dtype in DType::ALL {
        for columns in [1u32, 2, 4, 7, 65] {
            let (width, ffn) = (r.pick(widths(dtype)), r.pick(&[1, 8, 19, 70]));
            let mut case = Case::new(format!("{dtype} [{ffn} x {width}], {columns} columns"));
            let x = case.input(&mut r, DType::F32, columns, width, 2.0);
            let gate = case.weight(&mut r, dtype, ffn, width);
            let up = case.weight(&mut r, dtype, ffn, width);
            let out = case.output(&mut r, DType::F32, columns, ffn);
            let mut steps = case.clone();
            let g = steps.output(&mut r, DType::F32, columns, ffn);
            let u = steps.output(&mut r, DType::F32, columns, ffn);
            let product = |weight, out| Product::new(weight, out);
            steps.push(Op::MatMul { x, products: vec![product(gate, g), product(up, u)] });
            steps.push(Op::SiluMul { gate: g, up: u, out });
            case.push(Op::SwiGlu { x, gate, up, acts: Act::for_weights([gate, up]), out });
            let (want, got) = (steps.must_run(&mut *device), case.must_run(&mut *device));
            case.compare_bits(&*device, "matmul, then silu_mul", &want, &got);
        }
    }
}

pub(super) fn in_place_equals_out_of_place(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("in_place_equals_out_of_place");
    for (rows, width) in [(1u32, 7u32), (3, 64), (130, 256)] {
        let mut base = Case::new(format!("[{rows} x {width}]"));
        let x = base.input(&mut r, DType::F32, rows, width, 3.0);
        let y = base.input(&mut r, DType::F32, rows, width, 3.0);
        let weight = base.weight(&mut r, DType::F32, 1, width);
        let table = base.input(&mut r, DType::F32, rows, width / 2 * 2, 1.0);
        let apart = base.output(&mut r, DType::F32, rows, width);
        let ops: [&dyn Fn(Tensor) -> Op; 7] = [
            &|out| Op::RmsNorm { x, weight, eps: 1e-6, out },
            &|out| Op::L2Norm { x, groups: 1, eps: 1e-6, scale: 0.5, out },
            &|out| Op::GatedNorm { x, z: y, weight, eps: 1e-6, out },
            &|out| Op::SiluMul { gate: x, up: y, out },
            &|out| Op::SigmoidMul { x, gate: y, out },
            &|out| Op::Add { a: x, b: y, out },
            &|out| Op::Rope { x, heads: 1, table, out },
        ];
        for op in ops {
            let mut run = |out: Tensor| {
                let mut case = base.clone();
                case.push(op(out));
                rows_of(&case.must_run(&mut *device), &out)
            };
            let what = format!("{} {}", op(x).name(), base.what);
            assert_rows(&what, &run(apart), &run(x));
        }
    }
}

/// The recurrent ops with and without states in the middle.
pub(super) fn saves_change_nothing_else(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("saves_change_nothing_else");
    for columns in [1u32, 4, 63, 64, 65, 150] {
        let mut case = Case::new(format!("{columns} columns"));
        let ((heads, key_heads), dims) = ((4, 2), (24, 40));
        let [q, k, v, decay, beta, state] =
            delta_inputs(&mut case, &mut r, columns, (heads, key_heads), dims);
        let x = case.input(&mut r, DType::F32, columns, 50, 1.0);
        let conv_state = case.input(&mut r, DType::F32, 3, 50, 1.0);
        let kernel = case.weight(&mut r, DType::F32, 50, 4);
        let conv_out = case.output(&mut r, DType::F32, columns, 50);
        let out = case.output(&mut r, DType::F32, columns, heads * dims.1);
        let forms =
            [DeltaForm::PerToken, DeltaForm::Chunked { position: 0 }, DeltaForm::Chunked { position: 37 }];
        for form in forms {
            let ops = |delta_states: Vec<StateOut>, conv_states: Vec<StateOut>| {
                [
                    Op::GatedDelta {
                        form,
                        q,
                        k,
                        v,
                        decay,
                        beta,
                        heads,
                        key_heads,
                        state,
                        out,
                        states: delta_states,
                    },
                    Op::Conv {
                        x,
                        state: conv_state,
                        kernel,
                        bias: None,
                        silu: true,
                        out: conv_out,
                        states: conv_states,
                    },
                ]
            };
            let mut plain = case.clone();
            plain.what = format!("{form:?}, {columns} columns, no saves");
            ops(vec![], vec![]).into_iter().for_each(|op| plain.push(op));
            let mut saving = case.clone();
            let delta_states = states(&mut saving, &mut r, columns, state.rows, state.width, false);
            let conv_states = states(&mut saving, &mut r, columns, 3, 50, false);
            ops(delta_states, conv_states).into_iter().for_each(|op| saving.push(op));
            let (want, mut got) = (saving.must_run(&mut *device), plain.must_run(&mut *device));
            let shared = want[..got.len()].to_vec();
            plain.compare_bits(&*device, "the same with saves", &shared, &got);
            got.clear();
        }
    }
}

/// The state saved after column `p`, and everything up to there, is what a run of only
/// `p + 1` columns leaves.
pub(super) fn a_saved_state_is_the_end_state_of_a_shorter_run(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("a_saved_state_is_the_end_state_of_a_shorter_run");
    let forms =
        [DeltaForm::PerToken, DeltaForm::Chunked { position: 0 }, DeltaForm::Chunked { position: 50 }];
    for (form, columns) in forms.into_iter().flat_map(|f| [5u32, 64, 90, 140].map(|n| (f, n))) {
        let mut case = Case::new(format!("{form:?}, {columns} columns"));
        let ((heads, key_heads), dims) = ((2, 1), (24, 40));
        let [q, k, v, decay, beta, state] =
            delta_inputs(&mut case, &mut r, columns, (heads, key_heads), dims);
        let out = case.output(&mut r, DType::F32, columns, heads * dims.1);
        let to = case.output(&mut r, DType::F32, state.rows, state.width);
        for after in [0, columns / 2, columns - 2, columns - 1] {
            let mut run = |n: u32| {
                let mut case = case.clone();
                let first = |t: &Tensor| t.slice_rows(0, n);
                case.push(Op::GatedDelta {
                    form,
                    q: first(&q),
                    k: first(&k),
                    v: first(&v),
                    decay: first(&decay),
                    beta: first(&beta),
                    heads,
                    key_heads,
                    state,
                    out: first(&out),
                    states: vec![StateOut { after, to }],
                });
                let results = case.must_run(&mut *device);
                (rows_of(&results, &to), rows_of(&results, &out.slice_rows(0, after + 1)))
            };
            let (long, short) = (run(columns), run(after + 1));
            assert_rows(&format!("{}: state after {after}", case.what), &short.0, &long.0);
            assert_rows(&format!("{}: outputs to {after}", case.what), &short.1, &long.1);
        }
    }
}

/// A chain in which every op needs the one before, over one buffer used again and again.
pub(super) fn ops_run_in_order(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("ops_run_in_order");
    for columns in [1u32, 6, 80] {
        let mut case = Case::new(format!("chain of {columns} columns"));
        let x = case.input(&mut r, DType::F32, columns, 256, 2.0);
        let y = case.output(&mut r, DType::F32, columns, 256);
        let norm = case.weight(&mut r, DType::F32, 1, 256);
        let weights =
            [DType::Q4_0, DType::F32, DType::Q6_K, DType::F16].map(|t| case.weight(&mut r, t, 256, 256));
        for weight in weights {
            case.push(Op::RmsNorm { x, weight: norm, eps: 1e-6, out: y });
            let into = case.output(&mut r, DType::F32, columns, 256);
            case.push(Op::MatMul { x: y, products: vec![Product::new(weight, into)] });
            case.push(Op::Add { a: x, b: into, out: x });
        }
        case.check(&mut *device);
    }
}

/// The same program twice, with other work between.
pub(super) fn runs_repeat_to_the_bit(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("runs_repeat_to_the_bit");
    let mut case = Case::new("large product");
    let x = case.input(&mut r, DType::F32, 70, 2304, 2.0);
    let weight = case.weight(&mut r, DType::Q4_K, 333, 2304);
    let out = case.output(&mut r, DType::F32, 70, 333);
    case.push(Op::MatMul { x, products: vec![Product::new(weight, out)] });
    let first = case.must_run(&mut *device);
    for _ in 0..3 {
        let again = case.must_run(&mut *device);
        case.compare_bits(&*device, "its first run", &first, &again);
    }
    case.check(&mut *device);
}
