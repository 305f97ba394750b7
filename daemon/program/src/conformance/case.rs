//! One program with its buffers, run on any device and compared.

use super::Make;
use super::random::Random;
use crate::device::{Device, DeviceError, Exactness};
use crate::op::Op;
use crate::program::Program;
use crate::reference::Reference;
use crate::tensor::{BufferId, DType, Tensor};
use std::sync::Arc;

/// What outputs and gaps hold before the program runs.
const CANARY: u8 = 0xa5;

/// A program over buffers numbered from 0; a device's own numbers take their place in a run.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) what: String,
    pub(super) buffers: Vec<(Vec<u8>, bool)>,
    pub(super) program: Program,
}

/// The buffers after a run.
pub(super) type Results = Vec<Vec<u8>>;

impl Case {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Case { what: what.into(), buffers: Vec::new(), program: Program::new() }
    }

    pub(super) fn push(&mut self, op: Op) {
        self.program.push(op);
    }

    fn add(&mut self, bytes: Vec<u8>, read_only: bool) -> BufferId {
        self.buffers.push((bytes, read_only));
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Weights: dense rows in a read-only buffer, at an odd block.
    pub(super) fn weight(&mut self, r: &mut Random, dtype: DType, rows: u32, width: u32) -> Tensor {
        let skip = if dtype == DType::F32 { 4 } else { 2 } * u64::from(r.below(20));
        let mut bytes = vec![CANARY; skip as usize];
        bytes.extend(r.fill(dtype, rows as usize * width as usize, 1.0));
        Tensor::dense(self.add(bytes, true), skip, dtype, rows, width)
    }

    /// A dense tensor of random values up to `size`.
    pub(super) fn dense(&mut self, r: &mut Random, dtype: DType, rows: u32, width: u32, size: f32) -> Tensor {
        let bytes = r.fill(dtype, rows as usize * width as usize, size);
        Tensor::dense(self.add(bytes, false), 0, dtype, rows, width)
    }

    /// A tensor of random values up to `size`, dense or with gaps between its rows.
    pub(super) fn input(&mut self, r: &mut Random, dtype: DType, rows: u32, width: u32, size: f32) -> Tensor {
        let mut t = self.output(r, dtype, rows, width);
        let cell = dtype.block_bytes();
        for row in 0..rows as usize {
            let values = r.fill(dtype, width as usize, size);
            let at = t.offset as usize + row * t.stride as usize * cell;
            self.buffers[t.buffer.0 as usize].0[at..at + values.len()].copy_from_slice(&values);
        }
        t.rows = rows;
        t
    }

    /// A tensor with these values, dense.
    pub(super) fn values(&mut self, rows: u32, width: u32, values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor::dense(self.add(bytes, false), 0, DType::F32, rows, width)
    }

    /// A tensor that holds nothing yet, dense or with gaps between its rows.
    pub(super) fn output(&mut self, r: &mut Random, dtype: DType, rows: u32, width: u32) -> Tensor {
        let (gap, skip) = if r.below(2) == 0 { (0, 0) } else { (r.below(9), u64::from(r.below(9))) };
        let stride = width + gap;
        let offset = skip * dtype.block_bytes() as u64;
        let len = dtype.bytes_of(u64::from(rows) * u64::from(stride)).unwrap_or(0) + offset;
        let id = self.add(vec![CANARY; len as usize], false);
        Tensor { buffer: id, offset, dtype, rows, width, stride }
    }

    /// Runs on a device; buffers come back whole, and are freed.
    pub(super) fn run(&self, device: &mut dyn Device) -> Result<Results, DeviceError> {
        let mut ids = Vec::new();
        for (bytes, read_only) in &self.buffers {
            if *read_only {
                ids.push(device.import(Arc::new(bytes.clone()))?);
            } else {
                let id = device.create(bytes.len() as u64)?;
                device.write(id, 0, bytes)?;
                ids.push(id);
            }
        }
        let mut program = self.program.clone();
        for op in &mut program.ops {
            visit(op, &mut |t| {
                // A number beyond the case's buffers stands for a buffer that does not exist.
                t.buffer = ids.get(t.buffer.0 as usize).copied().unwrap_or(BufferId(u32::MAX));
            });
        }
        let ran = device.submit(&program).and_then(|ticket| device.wait(ticket));
        let mut results = Vec::new();
        for (id, (bytes, _)) in ids.iter().zip(&self.buffers) {
            let mut out = vec![0; bytes.len()];
            device.read(*id, 0, &mut out)?;
            results.push(out);
            device.destroy(*id)?;
        }
        match ran {
            Ok(()) => Ok(results),
            Err(e) => {
                for ((after, (before, _)), i) in results.iter().zip(&self.buffers).zip(0..) {
                    assert!(
                        after == before,
                        "{}: refused ({e}), but buffer {i} changed: nothing of a refused program may run",
                        self.what
                    );
                }
                Err(e)
            }
        }
    }

    /// Runs on a device; the case must be accepted.
    pub(super) fn must_run(&self, device: &mut dyn Device) -> Results {
        match self.run(device) {
            Ok(results) => results,
            Err(e) => panic!("{}: {} refused it: {e}", self.what, device.info().name),
        }
    }

    /// Runs on the reference and on the device, and compares.
    pub(super) fn check(&self, device: &mut dyn Device) {
        let want = self.must_run(&mut Reference::new());
        let got = self.must_run(device);
        self.compare(device, "the reference", &want, &got);
    }

    /// Compares the results of two runs: `other` says what `want` is.
    pub(super) fn compare(&self, device: &dyn Device, other: &str, want: &Results, got: &Results) {
        let exactness = device.info().exactness;
        self.compare_within(exactness, &device.info().name, other, want, got);
    }

    /// [`Case::compare`] to the bit, whatever the device promises against the reference.
    pub(super) fn compare_bits(&self, device: &dyn Device, other: &str, want: &Results, got: &Results) {
        self.compare_within(Exactness::Bits, &device.info().name, other, want, got);
    }

    fn compare_within(&self, exactness: Exactness, name: &str, other: &str, want: &Results, got: &Results) {
        let mut program = self.program.clone();
        for op in &mut program.ops {
            let op_name = op.name();
            let mut index = 0;
            visit(op, &mut |t| {
                index += 1;
                let buffer = t.buffer.0 as usize;
                if !self.buffers[buffer].1 {
                    let what = format!("{}: {op_name} operand {index} {t}", self.what);
                    compare_tensor(exactness, &what, name, other, t, &want[buffer], &got[buffer]);
                }
            });
        }
        // Outside tensors bits must agree everywhere; inside, small differences were accepted
        // above where the device promises no more.
        if exactness == Exactness::Bits {
            // Nor need the payload of a NaN: processors differ in what they make.
            let (mut want, mut got) = (want.clone(), got.clone());
            for op in &mut program.ops {
                visit(op, &mut |t| {
                    for results in [&mut want, &mut got] {
                        unify_nans(t, &mut results[t.buffer.0 as usize]);
                    }
                });
            }
            for (i, (want, got)) in want.iter().zip(&got).enumerate() {
                if let Some(at) = want.iter().zip(got).position(|(a, b)| a != b) {
                    panic!(
                        "{}: {name} wrote outside its outputs: byte {at} of buffer {i} is {:#04x}, {other} has {:#04x}",
                        self.what, got[at], want[at]
                    );
                }
            }
        }
    }
}

/// One tensor of both runs.
fn compare_tensor(
    exactness: Exactness,
    what: &str,
    name: &str,
    other: &str,
    t: &Tensor,
    want: &[u8],
    got: &[u8],
) {
    let cell = t.dtype.block_bytes();
    let value = |bytes: &[u8], row: usize, i: usize| {
        let at = t.offset as usize + (row * t.stride as usize + i) * cell;
        let mut v = [0.0f32];
        crate::scalar::weight::dequantize(t.dtype, &bytes[at..at + cell], &mut v);
        v[0]
    };
    let cells = || (0..t.rows as usize).flat_map(|r| (0..t.width as usize).map(move |i| (r, i)));
    let bound = match exactness {
        Exactness::Bits => None,
        Exactness::Relative(bound) => {
            let top = cells().map(|(r, i)| value(want, r, i).abs()).fold(0.0, f32::max);
            Some(bound * top)
        }
    };
    let differs = |(r, i): (usize, usize)| {
        let (a, b) = (value(want, r, i), value(got, r, i));
        match bound {
            None => a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()),
            Some(bound) => {
                !((a - b).abs() <= bound || a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
            }
        }
    };
    if let Some((r, i)) = cells().find(|at| differs(*at)) {
        let count = cells().filter(|at| differs(*at)).count();
        let (a, b) = (value(want, r, i), value(got, r, i));
        panic!(
            "{what}: row {r} value {i} is {b:e} ({:#010x}) on {name}, {a:e} ({:#010x}) on {other}; {count} of {} values differ",
            b.to_bits(),
            a.to_bits(),
            t.len()
        );
    }
}

/// Gives every NaN of a float tensor the same bits.
fn unify_nans(t: &Tensor, bytes: &mut [u8]) {
    if !matches!(t.dtype, DType::F32 | DType::F16) {
        return;
    }
    let cell = t.dtype.block_bytes();
    for row in 0..t.rows as usize {
        for i in 0..t.width as usize {
            let at = t.offset as usize + (row * t.stride as usize + i) * cell;
            let Some(value) = bytes.get_mut(at..at + cell) else { return };
            let mut v = [0.0f32];
            crate::scalar::weight::dequantize(t.dtype, value, &mut v);
            if v[0].is_nan() {
                value.fill(0xff);
            }
        }
    }
}

/// Calls `f` on every tensor of an op.
pub(super) fn visit(op: &mut Op, f: &mut dyn FnMut(&mut Tensor)) {
    let mut all = |tensors: &mut [&mut Tensor]| tensors.iter_mut().for_each(|t| f(t));
    match op {
        Op::Embed { table, out, .. } => all(&mut [table, out]),
        Op::RmsNorm { x, weight, out, .. } => all(&mut [x, weight, out]),
        Op::L2Norm { x, out, .. } | Op::Copy { x, out } | Op::Gather { x, out, .. } => all(&mut [x, out]),
        Op::MatMul { x, products } => {
            all(&mut [x]);
            products.iter_mut().for_each(|p| all(&mut [&mut p.weight, &mut p.out]));
        }
        Op::SwiGlu { x, gate, up, out, .. } => all(&mut [x, gate, up, out]),
        Op::SiluMul { gate: x, up: y, out }
        | Op::SigmoidMul { x, gate: y, out }
        | Op::Add { a: x, b: y, out }
        | Op::Rope { x, table: y, out, .. } => all(&mut [x, y, out]),
        Op::Attention { q, k, v, out, .. } => all(&mut [q, k, v, out]),
        Op::Conv { x, state, kernel, bias, out, states, .. } => {
            all(&mut [x, state, kernel, out]);
            bias.iter_mut().for_each(|b| all(&mut [b]));
            states.iter_mut().for_each(|s| all(&mut [&mut s.to]));
        }
        Op::DeltaGates { alpha, beta, a, dt, decay, beta_out } => {
            all(&mut [alpha, beta, a, dt, decay, beta_out]);
        }
        Op::GatedDelta { q, k, v, decay, beta, state, out, states, .. } => {
            all(&mut [q, k, v, decay, beta, state, out]);
            states.iter_mut().for_each(|s| all(&mut [&mut s.to]));
        }
        Op::GatedNorm { x, z, weight, out, .. } => all(&mut [x, z, weight, out]),
    }
}

/// Runs `build` for each case on one device.
pub(super) fn each<T>(make: Make<'_>, items: impl IntoIterator<Item = T>, mut build: impl FnMut(T) -> Case) {
    let mut device = make();
    for item in items {
        build(item).check(&mut *device);
    }
}
