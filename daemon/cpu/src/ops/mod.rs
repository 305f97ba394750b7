//! One function an op: validated views in, kernels called, rows shared out over the pool.
//!
//! Every `unsafe` block here rests on the same two facts: the program was validated before
//! (see [`crate::memory`]), and an item of a job touches only output rows that no other item
//! of it touches. Each block names what splits the rows.

mod attention;
mod delta;
mod product;
mod row;
mod short_conv;
mod tiles;

use crate::kernels::{Kernels, Panel};
use crate::memory::{Store, View};
use crate::pool::Pool;
use product::Rounding;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tandem_program::{DeviceError, Op, Tensor};

/// What a worker keeps between items.
pub(crate) struct Scratch {
    panel: Box<Panel>,
    floats: Vec<f32>,
}

impl Scratch {
    /// At least `n` floats of any value.
    fn floats(&mut self, n: usize) -> &mut [f32] {
        if self.floats.len() < n {
            self.floats.resize(n, 0.0);
        }
        &mut self.floats[..n]
    }
}

/// What ops run with.
pub(crate) struct Context {
    pub(crate) kernels: &'static Kernels,
    pub(crate) pool: Pool,
    pub(crate) store: Store,
    workers: Vec<Mutex<Scratch>>,
    rounding: Rounding,
}

/// Values below which a job is not worth waking a thread.
const SMALL: usize = 16 * 1024;

impl Context {
    pub(crate) fn new(kernels: &'static Kernels, pool: Pool, store: Store) -> Self {
        let workers = (0..pool.threads())
            .map(|_| Mutex::new(Scratch { panel: Panel::boxed(), floats: Vec::new() }))
            .collect();
        Context { kernels, pool, store, workers, rounding: Rounding::default() }
    }

    fn view(&self, t: &Tensor) -> Result<View, DeviceError> {
        self.store.view(t)
    }

    /// Calls `f` for each of `rows` rows that cost about `cost` values each.
    fn rows(&self, rows: usize, cost: usize, f: impl Fn(usize) + Sync) {
        if rows * cost < SMALL {
            (0..rows).for_each(f);
            return;
        }
        let chunk = (SMALL / 4 / cost.max(1)).max(1);
        self.pool.run(rows.div_ceil(chunk), &|_, item| {
            (item * chunk..rows.min((item + 1) * chunk)).for_each(&f);
        });
    }

    /// Repacks the weights that a validated op multiplies with, those it has not seen.
    pub(crate) fn repack(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::MatMul { products, .. } => {
                let whole = products.iter().filter(|p| p.rows.is_none());
                whole.map(|p| &p.weight).try_for_each(|weight| self.store.repack(weight, &self.pool))
            }
            Op::SwiGlu { gate, up, .. } => {
                [gate, up].into_iter().try_for_each(|weight| self.store.repack(weight, &self.pool))
            }
            _ => Ok(()),
        }
    }

    /// Runs one op of a validated program.
    pub(crate) fn run(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::MatMul { x, products } => product::matmul(self, x, products),
            Op::SwiGlu { x, gate, up, acts, out } => product::swiglu(self, x, [gate, up], *acts, out),
            Op::Attention { .. } => attention::attention(self, op),
            Op::Conv { .. } => short_conv::conv(self, op),
            Op::GatedDelta { .. } => delta::gated_delta(self, op),
            _ => row::run(self, op),
        }
    }
}

/// A worker's scratch. No two items share a worker at once, so this never waits.
fn scratch(workers: &[Mutex<Scratch>], worker: usize) -> MutexGuard<'_, Scratch> {
    workers[worker].lock().unwrap_or_else(PoisonError::into_inner)
}
