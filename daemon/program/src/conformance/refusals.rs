//! What a device must refuse, and what it must leave untouched then.

use super::Make;
use super::case::{Case, visit};
use super::random::Random;
use super::sequence::delta_inputs;
use crate::device::DeviceError;
use crate::op::{Act, DeltaForm, Op, Product, StateOut};
use crate::tensor::{BufferId, DType, Tensor};
use std::sync::Arc;

/// A valid program with one of every op.
fn everything(r: &mut Random) -> Case {
    let mut case = Case::new("one of every op");
    let f32s = DType::F32;
    let x = case.dense(r, f32s, 4, 64, 1.0);
    let y = case.dense(r, f32s, 4, 64, 1.0);
    let norm = case.weight(r, f32s, 1, 64);
    let weight = case.weight(r, DType::Q4_0, 64, 64);
    let mut out = || case.dense(r, f32s, 4, 64, 1.0);
    let outs: Vec<Tensor> = (0..12).map(|_| out()).collect();
    let half = case.dense(r, DType::F16, 4, 64, 1.0);
    let angles = case.dense(r, f32s, 4, 32, 1.0);
    let kernel = case.weight(r, f32s, 64, 4);
    let conv_state = case.dense(r, f32s, 3, 64, 1.0);
    let conv_to = case.dense(r, f32s, 3, 64, 1.0);
    let gates = case.dense(r, f32s, 4, 2, 1.0);
    let gates_out = case.dense(r, f32s, 4, 2, 1.0);
    let [q, k, v, decay, beta, state] = delta_inputs(&mut case, r, 4, (2, 2), (32, 32));
    let delta_to = case.dense(r, f32s, 64, 32, 1.0);
    let a = case.weight(r, f32s, 1, 2);
    let ops = [
        Op::Embed { table: weight, ids: Arc::new([3, 63, 0, 1]), scale: 1.0, out: outs[0] },
        Op::RmsNorm { x, weight: norm, eps: 1e-6, out: outs[1] },
        Op::L2Norm { x, groups: 2, eps: 1e-6, scale: 1.0, out: outs[2] },
        Op::MatMul { x, products: vec![Product::new(weight, outs[3])] },
        Op::SwiGlu { x, gate: weight, up: weight, acts: Act::for_weights([weight; 2]), out: outs[4] },
        Op::SiluMul { gate: x, up: y, out: outs[5] },
        Op::SigmoidMul { x, gate: y, out: outs[6] },
        Op::Add { a: x, b: y, out: outs[7] },
        Op::Rope { x, heads: 1, table: angles, out: outs[8] },
        Op::Copy { x, out: half },
        Op::Gather { x, rows: Arc::new([3, 0, 0, 1]), out: outs[9] },
        Op::Attention { q: x, k: half, v: half, heads: 1, kv_heads: 1, past: 0, scale: 1.0, out: outs[10] },
        Op::Conv {
            x,
            state: conv_state,
            kernel,
            bias: Some(norm),
            silu: true,
            out: outs[11],
            states: vec![StateOut { after: 2, to: conv_to }],
        },
        Op::DeltaGates { alpha: gates, beta: gates_out, a, dt: a, decay: gates, beta_out: gates_out },
        Op::GatedNorm { x, z: y, weight: norm, eps: 1e-6, out: outs[0] },
        Op::GatedDelta {
            form: DeltaForm::Chunked { position: 5 },
            q,
            k,
            v,
            decay,
            beta,
            heads: 2,
            key_heads: 2,
            state,
            out: outs[1],
            states: vec![StateOut { after: 1, to: delta_to }],
        },
    ];
    ops.into_iter().for_each(|op| case.push(op));
    case
}

/// Every tensor of every op damaged in every way, and every index pushed out of range. The
/// damaged op comes last in its program, so a device that runs ops as it checks them is
/// caught by what the earlier ones wrote.
pub(super) fn malformed_programs_are_refused_untouched(make: Make<'_>) {
    let mut device = make();
    let mut r = Random::new("malformed_programs_are_refused_untouched");
    let whole = everything(&mut r);
    whole.check(&mut *device);
    type Damage = (&'static str, fn(&mut Tensor));
    let damages: [Damage; 10] = [
        ("a buffer that does not exist", |t| t.buffer = BufferId(1000)),
        ("an offset past the end", |t| t.offset += 1 << 40),
        ("an offset that overflows", |t| t.offset = u64::MAX - 7),
        ("an odd offset", |t| t.offset += 1),
        ("a row too many", |t| t.rows += 1),
        ("no width", |t| (t.width, t.stride) = (0, 0)),
        ("the largest shape", |t| (t.rows, t.width, t.stride) = (u32::MAX, u32::MAX, u32::MAX)),
        ("a stride below the width", |t| t.stride = t.width - 1),
        ("another width", |t| (t.width, t.stride) = (t.width + 32, t.stride + 32)),
        ("a type of other size", |t| t.dtype = DType::Q6_K),
    ];
    for at in 0..whole.program.ops.len() {
        let mut count = 0;
        visit(&mut whole.program.ops[at].clone(), &mut |_| count += 1);
        for operand in 0..count {
            for (name, damage) in damages {
                let mut case = whole.clone();
                let mut op = case.program.ops.remove(at);
                let mut i = 0;
                visit(&mut op, &mut |t| {
                    if i == operand {
                        damage(t);
                    }
                    i += 1;
                });
                case.what = format!("{} with {name} as operand {}", op.name(), operand + 1);
                case.push(op);
                refused(&case, &mut *device);
            }
        }
    }
    for (name, op) in bad_ops(&whole) {
        let mut case = whole.clone();
        case.what = format!("{} with {name}", op.name());
        case.push(op);
        refused(&case, &mut *device);
    }
    // Still in working order.
    whole.check(&mut *device);
}

fn refused(case: &Case, device: &mut dyn crate::Device) {
    match case.run(device) {
        Err(DeviceError::Program(e)) => {
            let last = case.program.ops.len() - 1;
            assert_eq!(e.index, last, "{}: the error blames op {}: {e}", case.what, e.index);
        }
        Err(e) => panic!("{}: refused for another reason: {e}", case.what),
        Ok(_) => panic!("{}: accepted", case.what),
    }
}

/// Faults that no single tensor shows.
fn bad_ops(whole: &Case) -> Vec<(&'static str, Op)> {
    let mut bad = Vec::new();
    for op in &whole.program.ops {
        match op.clone() {
            Op::Embed { table, scale, out, .. } => {
                let ids = Arc::new([3, 64, 0, 1]);
                bad.push(("an id past the table", Op::Embed { table, ids, scale, out }));
            }
            Op::Gather { x, out, .. } => {
                bad.push(("a row past the input", Op::Gather { x, rows: Arc::new([0, 4, 0, 0]), out }));
                let out = Tensor { buffer: x.buffer, ..x };
                bad.push(("its input as output", Op::Gather { x, rows: Arc::new([3, 2, 1, 0]), out }));
            }
            Op::MatMul { x, products } => {
                let Product { weight, out, .. } = products[0].clone();
                let with = |rows: &[u32], out| {
                    let rows = Some(rows.into());
                    Op::MatMul { x, products: vec![Product { rows, ..Product::new(weight, out) }] }
                };
                let narrow = Tensor { width: 2, ..out };
                bad.push(("a row past the weight", with(&[0, 64], narrow)));
                bad.push(("more rows than outputs", with(&[0, 1, 2], narrow)));
                bad.push(("no rows", with(&[], Tensor { width: 0, ..out })));
                let with = |product: Product| Op::MatMul { x, products: vec![product] };
                let other = Product { act: Act::Q8K_256, ..Product::new(weight, out) };
                bad.push(("the rounding of another weight type", with(other)));
                let rows = Some([0u32, 1].as_slice().into());
                let chosen = Product { act: Act::F16Tile, rows, ..Product::new(weight, narrow) };
                bad.push(("chosen rows in tiles", with(chosen)));
                let product = Product::new(weight, x);
                bad.push(("its input as output", Op::MatMul { x, products: vec![product] }));
                let product = Product::new(weight, out);
                let products = vec![product.clone(), product];
                bad.push(("one output twice", Op::MatMul { x, products }));
                let out = Tensor { buffer: weight.buffer, offset: 0, ..out };
                let small = Tensor { rows: 1, width: 1, ..out };
                let rows = Some([0u32].as_slice().into());
                let product = Product { rows, ..Product::new(weight, small) };
                let x = x.slice_rows(0, 1);
                bad.push(("a read-only output", Op::MatMul { x, products: vec![product] }));
            }
            Op::SwiGlu { x, gate, up, out, .. } => {
                let acts = [Act::F16Tile, Act::F16];
                bad.push(("the rounding of another weight type", Op::SwiGlu { x, gate, up, acts, out }));
            }
            Op::Add { a, b, out } => {
                let (a, out) = (a.slice_rows(0, 3), out.slice_rows(0, 3));
                let shifted = Tensor { buffer: a.buffer, offset: a.offset + 256, ..a };
                let b = b.slice_rows(0, 3);
                bad.push(("an output that half covers an input", Op::Add { a, b, out: shifted }));
                let wide = Tensor { width: 63, stride: 64, ..a };
                let by_one = Tensor { offset: wide.offset + 4, ..wide };
                let (b, _) = (Tensor { width: 63, ..b }, out);
                bad.push(("an output shifted by one value", Op::Add { a: wide, b, out: by_one }));
            }
            Op::Attention { q, k, v, scale, out, .. } => {
                let with =
                    |heads, kv_heads, past| Op::Attention { q, k, v, heads, kv_heads, past, scale, out };
                bad.push(("a past beyond the cells", with(1, 1, 1)));
                bad.push(("a past that overflows", with(1, 1, u32::MAX)));
                bad.push(("no heads", with(0, 1, 0)));
                bad.push(("no KV heads", with(1, 0, 0)));
                bad.push(("more KV heads than heads", with(1, 2, 0)));
                bad.push(("heads that do not divide the rows", with(3, 1, 0)));
            }
            Op::Rope { x, table, out, .. } => {
                bad.push(("no heads", Op::Rope { x, heads: 0, table, out }));
                let odd = Tensor { width: 31, ..table };
                bad.push(("an odd table", Op::Rope { x, heads: 1, table: odd, out }));
            }
            Op::L2Norm { x, eps, scale, out, .. } => {
                bad.push(("no groups", Op::L2Norm { x, groups: 0, eps, scale, out }));
                bad.push(("groups that do not divide", Op::L2Norm { x, groups: 3, eps, scale, out }));
            }
            Op::Conv { x, state, kernel, bias, silu, out, states } => {
                let with = |states| Op::Conv { x, state, kernel, bias, silu, out, states };
                let to = states[0].to;
                bad.push(("a state after a column it lacks", with(vec![StateOut { after: 4, to }])));
                bad.push(("its state as state output", with(vec![StateOut { after: 1, to: state }])));
                let twice = vec![StateOut { after: 1, to }, StateOut { after: 2, to }];
                bad.push(("two states in one place", with(twice)));
            }
            Op::GatedDelta { form, q, k, v, decay, beta, heads, key_heads, state, out, states } => {
                let to = states[0].to;
                let with = |form, heads, key_heads, states| Op::GatedDelta {
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
                    states,
                };
                let late = vec![StateOut { after: 4, to }];
                bad.push(("a state after a column it lacks", with(form, heads, key_heads, late)));
                let own = vec![StateOut { after: 1, to: state }];
                bad.push(("its state as state output", with(form, heads, key_heads, own)));
                bad.push(("no heads", with(form, 0, key_heads, vec![])));
                bad.push(("no key heads", with(form, heads, 0, vec![])));
                bad.push(("more key heads than heads", with(form, 2, 4, vec![])));
                let far = DeltaForm::Chunked { position: u32::MAX };
                bad.push(("a position out of range", with(far, heads, key_heads, vec![])));
            }
            _ => {}
        }
    }
    bad
}

pub(super) fn buffers_are_zeroed_bounded_and_counted(make: Make<'_>) {
    let mut device = make();
    let used = device.used();
    let id = match device.create(1000) {
        Ok(id) => id,
        Err(e) => panic!("no buffer of 1000 bytes: {e}"),
    };
    assert_eq!(device.used(), used + 1000);
    let mut bytes = [7u8; 1000];
    assert!(device.read(id, 0, &mut bytes).is_ok());
    assert_eq!(bytes, [0; 1000], "a new buffer is not zeroed");
    assert!(device.write(id, 990, &[1; 10]).is_ok());
    for (offset, len) in [(991u64, 10usize), (1001, 0), (u64::MAX, 2), (1 << 40, 1)] {
        let mut into = vec![9u8; len];
        let read = device.read(id, offset, &mut into);
        assert!(matches!(read, Err(DeviceError::Access { .. })), "read of {len} at {offset}: {read:?}");
        assert!(into.iter().all(|b| *b == 9), "a refused read wrote");
        let write = device.write(id, offset, &vec![3; len]);
        assert!(matches!(write, Err(DeviceError::Access { .. })), "write of {len} at {offset}: {write:?}");
    }
    assert!(device.read(id, 0, &mut bytes).is_ok());
    assert!(bytes[..990].iter().all(|b| *b == 0) && bytes[990..] == [1; 10]);
    let other = device.create(16);
    assert!(matches!(other, Ok(other) if other != id));
    assert!(device.destroy(id).is_ok());
    assert_eq!(device.used(), used + 16);
    assert!(matches!(device.destroy(id), Err(DeviceError::NoBuffer(_))));
    assert!(matches!(device.read(id, 0, &mut bytes), Err(DeviceError::NoBuffer(_))));
    assert!(matches!(device.write(id, 0, &bytes), Err(DeviceError::NoBuffer(_))));
    let huge = device.create(u64::MAX);
    assert!(matches!(huge, Err(DeviceError::OutOfMemory { .. })), "{huge:?}");
    assert_eq!(device.used(), used + 16);
}

pub(super) fn imported_regions_are_read_only(make: Make<'_>) {
    let mut device = make();
    let bytes: Vec<u8> = (0..=255).collect();
    let region = Arc::new(bytes.clone());
    let id = match device.import(region) {
        Ok(id) => id,
        Err(e) => panic!("import refused: {e}"),
    };
    let mut out = vec![0; 100];
    assert!(device.read(id, 50, &mut out).is_ok());
    assert_eq!(out, bytes[50..150]);
    let write = device.write(id, 0, &[1, 2, 3]);
    assert!(matches!(write, Err(DeviceError::Access { read_only: true, .. })), "{write:?}");
    let mut whole = vec![0; 256];
    assert!(device.read(id, 0, &mut whole).is_ok());
    assert_eq!(whole, bytes);
    assert!(device.destroy(id).is_ok());
    assert!(matches!(device.read(id, 0, &mut out), Err(DeviceError::NoBuffer(_))));
}
