//! The reference device: copies operands out, runs [`crate::scalar`], copies results back.
//!
//! Slow, safe, single-threaded, and the definition every other device is held to.

use crate::device::{Device, DeviceError, DeviceInfo, Exactness, Region, Ticket};
use crate::op::{DeltaForm, Op, Product, StateOut};
use crate::program::{BufferInfo, Program};
use crate::scalar::{self, delta, weight};
use crate::tensor::{BufferId, DType, Tensor};
use std::collections::HashMap;

enum Memory {
    Own(Vec<u8>),
    Imported(Region),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Imported(region) => (**region).as_ref(),
        }
    }
}

/// See the module.
pub struct Reference {
    info: DeviceInfo,
    buffers: HashMap<BufferId, Memory>,
    next: u32,
    ticket: u64,
    used: u64,
}

impl Default for Reference {
    fn default() -> Self {
        Self::new()
    }
}

impl Reference {
    /// A device with no buffers.
    pub fn new() -> Self {
        Reference {
            info: DeviceInfo {
                name: "reference".into(),
                detail: "scalar, one thread".into(),
                threads: 1,
                memory: u64::MAX,
                exactness: Exactness::Bits,
            },
            buffers: HashMap::new(),
            next: 1,
            ticket: 0,
            used: 0,
        }
    }

    fn insert(&mut self, memory: Memory) -> BufferId {
        let id = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(id, memory);
        id
    }

    /// Bytes of row `r`. Validation has shown that they exist.
    fn row(&self, t: &Tensor, r: u32) -> &[u8] {
        let bytes = |n: u32| t.dtype.bytes_of(u64::from(n)).unwrap_or(0) as usize;
        let start = t.offset as usize + r as usize * bytes(t.stride);
        &self.buffers[&t.buffer].bytes()[start..start + bytes(t.width)]
    }

    /// All values, row by row.
    fn load(&self, t: &Tensor) -> Vec<f32> {
        let mut out = vec![0.0; t.len()];
        for r in 0..t.rows {
            let width = t.width as usize;
            weight::dequantize(t.dtype, self.row(t, r), &mut out[r as usize * width..][..width]);
        }
        out
    }

    fn store(&mut self, t: &Tensor, values: &[f32]) {
        let Some(Memory::Own(bytes)) = self.buffers.get_mut(&t.buffer) else {
            return;
        };
        let size = t.dtype.block_bytes();
        for (r, row) in values.chunks_exact(t.width as usize).enumerate() {
            let start = t.offset as usize + r * t.stride as usize * size;
            for (i, v) in row.iter().enumerate() {
                let at = start + i * size;
                match t.dtype {
                    DType::F16 => bytes[at..at + 2].copy_from_slice(&half::f16::from_f32(*v).to_le_bytes()),
                    _ => bytes[at..at + 4].copy_from_slice(&v.to_le_bytes()),
                }
            }
        }
    }

    /// `rows(out)` from `f(row index, out row)`.
    fn by_row(&mut self, out: &Tensor, mut f: impl FnMut(usize, &mut [f32])) {
        let width = out.width as usize;
        let mut values = vec![0.0; out.len()];
        for (r, row) in values.chunks_exact_mut(width).enumerate() {
            f(r, row);
        }
        self.store(out, &values);
    }

    fn product(&self, x: &[f32], n: usize, p: &Product) -> Vec<f32> {
        let width = p.weight.width as usize;
        let mut rounded = weight::Rounded::default();
        let outputs = p.out.width as usize;
        let mut out = vec![0.0; n * outputs];
        for c in 0..n {
            weight::round(p.act, &x[c * width..(c + 1) * width], &mut rounded);
            for o in 0..outputs {
                let r = p.rows.as_ref().map_or(o as u32, |rows| rows[o]);
                out[c * outputs + o] =
                    weight::dot_row(p.act, p.weight.dtype, self.row(&p.weight, r), &rounded);
            }
        }
        out
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Embed { table, ids, scale, out } => {
                let mut values = vec![0.0; out.len()];
                for (row, id) in values.chunks_exact_mut(out.width as usize).zip(ids.iter()) {
                    weight::dequantize(table.dtype, self.row(table, *id), row);
                    row.iter_mut().for_each(|v| *v *= scale);
                }
                self.store(out, &values);
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let (x, w) = (self.load(x), self.load(weight));
                self.by_row(out, |r, o| scalar::norm::rms_norm(&x[r * w.len()..][..w.len()], &w, *eps, o));
            }
            Op::L2Norm { x, groups, eps, scale, out } => {
                let (v, width) = (self.load(x), x.width as usize);
                let part = width / *groups as usize;
                self.by_row(out, |r, o| {
                    let parts = v[r * width..][..width].chunks_exact(part);
                    for (x, o) in parts.zip(o.chunks_exact_mut(part)) {
                        scalar::norm::l2_norm(x, *eps, *scale, o);
                    }
                });
            }
            Op::MatMul { x, products } => {
                let values = self.load(x);
                for p in products {
                    let out = self.product(&values, x.rows as usize, p);
                    self.store(&p.out, &out);
                }
            }
            Op::SwiGlu { x, gate, up, acts, out } => {
                let values = self.load(x);
                let part = |weight: &Tensor, act| Product { act, ..Product::new(*weight, *out) };
                let g = self.product(&values, x.rows as usize, &part(gate, acts[0]));
                let u = self.product(&values, x.rows as usize, &part(up, acts[1]));
                let values: Vec<f32> = g.iter().zip(&u).map(|(g, u)| scalar::silu(*g) * u).collect();
                self.store(out, &values);
            }
            Op::SiluMul { gate: x, up: y, out } => self.zip(x, y, out, |g, u| scalar::silu(g) * u),
            Op::SigmoidMul { x, gate: y, out } => self.zip(x, y, out, |x, g| x * scalar::sigmoid(g)),
            Op::Add { a: x, b: y, out } => self.zip(x, y, out, |a, b| a + b),
            Op::Rope { x, heads, table, out } => {
                let (v, t) = (self.load(x), self.load(table));
                let (width, angles) = (x.width as usize, table.width as usize);
                self.by_row(out, |r, o| {
                    let column = r / *heads as usize;
                    scalar::norm::rope(&v[r * width..][..width], &t[column * angles..][..angles], o);
                });
            }
            Op::Copy { x, out } => {
                let values = self.load(x);
                self.store(out, &values);
            }
            Op::Gather { x, rows, out } => {
                let (v, width) = (self.load(x), x.width as usize);
                self.by_row(out, |r, o| o.copy_from_slice(&v[rows[r] as usize * width..][..width]));
            }
            Op::Attention { q, k, v, heads, kv_heads, past, scale, out } => {
                self.attention(q, k, v, (*heads, *kv_heads), *past, *scale, out);
            }
            Op::Conv { x, state, kernel, bias, silu, out, states } => {
                self.conv(x, state, kernel, bias.as_ref(), *silu, out, states);
            }
            Op::DeltaGates { alpha, beta, a, dt, decay, beta_out } => {
                let (al, be, a, dt) = (self.load(alpha), self.load(beta), self.load(a), self.load(dt));
                let heads = a.len();
                let g: Vec<f32> = al
                    .iter()
                    .enumerate()
                    .map(|(i, x)| a[i % heads] * scalar::softplus(x + dt[i % heads]))
                    .collect();
                let b: Vec<f32> = be.iter().map(|x| scalar::sigmoid(*x)).collect();
                self.store(decay, &g);
                self.store(beta_out, &b);
            }
            Op::GatedDelta { .. } => self.gated_delta(op),
            Op::GatedNorm { x, z, weight, eps, out } => {
                let (x, z, w) = (self.load(x), self.load(z), self.load(weight));
                let n = w.len();
                self.by_row(out, |r, o| {
                    scalar::norm::gated_norm(&x[r * n..][..n], &z[r * n..][..n], &w, *eps, o)
                });
            }
        }
    }

    fn zip(&mut self, x: &Tensor, y: &Tensor, out: &Tensor, f: impl Fn(f32, f32) -> f32) {
        let values: Vec<f32> = self.load(x).iter().zip(&self.load(y)).map(|(x, y)| f(*x, *y)).collect();
        self.store(out, &values);
    }

    #[allow(clippy::too_many_arguments)]
    fn attention(
        &mut self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        heads: (u32, u32),
        past: u32,
        scale: f32,
        out: &Tensor,
    ) {
        let (heads, kv_heads) = (heads.0 as usize, heads.1 as usize);
        let columns = q.rows as usize / heads;
        let cells = (past as usize + columns) as u32;
        let (q_values, keys, values) =
            (self.load(q), self.load(&k.slice_rows(0, cells)), self.load(&v.slice_rows(0, cells)));
        let (dim, width) = (q.width as usize, k.width as usize);
        let mut scores = Vec::new();
        self.by_row(out, |r, o| {
            let (column, head) = (r / heads, r % heads);
            let skip = head / (heads / kv_heads) * dim;
            let visible = past as usize + column + 1;
            let rows = |cells: &'_ [f32]| -> Vec<Vec<f32>> {
                cells.chunks_exact(width).take(visible).map(|c| c[skip..skip + dim].to_vec()).collect()
            };
            let (keys, values) = (rows(&keys), rows(&values));
            scalar::attention::attend(
                &q_values[r * dim..][..dim],
                keys.iter().map(Vec::as_slice),
                values.iter().map(Vec::as_slice),
                scale,
                &mut scores,
                o,
            );
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn conv(
        &mut self,
        x: &Tensor,
        state: &Tensor,
        kernel: &Tensor,
        bias: Option<&Tensor>,
        silu: bool,
        out: &Tensor,
        states: &[StateOut],
    ) {
        let (channels, taps) = (x.width as usize, kernel.width as usize);
        let kernel = self.load(kernel);
        let bias = bias.map(|b| self.load(b));
        // The state's rows and the columns' rows follow each other in time.
        let mut inputs = self.load(state);
        inputs.extend(self.load(x));
        self.by_row(out, |t, row| {
            for (c, o) in row.iter_mut().enumerate() {
                let taken = (0..taps).map(|j| inputs[(t + j) * channels + c]);
                let b = bias.as_ref().map_or(0.0, |b| b[c]);
                *o = scalar::conv::tap(&kernel[c * taps..][..taps], taken, b, silu);
            }
        });
        for s in states {
            let first = (s.after as usize + 1) * channels;
            self.store(&s.to, &inputs[first..first + (taps - 1) * channels]);
        }
    }

    fn gated_delta(&mut self, op: &Op) {
        let Op::GatedDelta { form, q, k, v, decay, beta, heads, key_heads, state, out, states } = op else {
            return;
        };
        let (heads, key_heads) = (*heads as usize, *key_heads as usize);
        let (key_dim, value_dim) = (q.width as usize / key_heads, v.width as usize / heads);
        let n = q.rows as usize;
        let (qs, ks, vs) = (self.load(q), self.load(k), self.load(v));
        let (gs, bs, s0) = (self.load(decay), self.load(beta), self.load(state));
        let mut outs = vec![0.0; n * heads * value_dim];
        let mut saved: Vec<Vec<f32>> = states.iter().map(|_| vec![0.0; s0.len()]).collect();
        let size = key_dim * value_dim;
        for h in 0..heads {
            let kh = h % key_heads;
            let columns: Vec<delta::Column<'_>> = (0..n)
                .map(|t| delta::Column {
                    q: &qs[(t * key_heads + kh) * key_dim..][..key_dim],
                    k: &ks[(t * key_heads + kh) * key_dim..][..key_dim],
                    v: &vs[(t * heads + h) * value_dim..][..value_dim],
                    g: gs[t * heads + h],
                    beta: bs[t * heads + h],
                })
                .collect();
            let mut s = s0[h * size..][..size].to_vec();
            let mut head_out = vec![0.0; n * value_dim];
            match form {
                DeltaForm::PerToken => {
                    let mut d = vec![0.0; value_dim];
                    for (t, c) in columns.iter().enumerate() {
                        delta::token(&mut s, *c, &mut d, &mut head_out[t * value_dim..][..value_dim]);
                        for (to, _) in saved.iter_mut().zip(states).filter(|(_, o)| o.after as usize == t) {
                            to[h * size..][..size].copy_from_slice(&s);
                        }
                    }
                }
                DeltaForm::Chunked { position } => {
                    let mut first = 0usize;
                    while first < n {
                        let len = delta::chunk_len(*position + first as u32, (n - first) as u32) as usize;
                        let part = &columns[first..first + len];
                        let chunk =
                            delta::chunk(&s, part, &mut head_out[first * value_dim..][..len * value_dim]);
                        for (to, o) in saved.iter_mut().zip(states) {
                            let after = o.after as usize;
                            if (first..first + len).contains(&after) {
                                delta::chunk_state(
                                    &s,
                                    part,
                                    &chunk,
                                    after - first,
                                    &mut to[h * size..][..size],
                                );
                            }
                        }
                        if first + len < n {
                            let mut next = vec![0.0; size];
                            delta::chunk_state(&s, part, &chunk, len - 1, &mut next);
                            s = next;
                        }
                        first += len;
                    }
                }
            }
            for t in 0..n {
                outs[(t * heads + h) * value_dim..][..value_dim]
                    .copy_from_slice(&head_out[t * value_dim..][..value_dim]);
            }
        }
        self.store(out, &outs);
        for (s, values) in states.iter().zip(&saved) {
            self.store(&s.to, values);
        }
    }

    fn range(
        &self,
        id: BufferId,
        access: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<std::ops::Range<usize>, DeviceError> {
        let memory = self.buffers.get(&id).ok_or(DeviceError::NoBuffer(id.0))?;
        let size = memory.bytes().len() as u64;
        let read_only = matches!(memory, Memory::Imported(_));
        let end = offset.checked_add(len as u64);
        match end {
            Some(end) if end <= size && !(access == "write" && read_only) => {
                Ok(offset as usize..end as usize)
            }
            _ => Err(DeviceError::Access { buffer: id.0, access, offset, len: len as u64, size, read_only }),
        }
    }
}

impl Device for Reference {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        let refused = |used| DeviceError::OutOfMemory {
            device: "reference".into(),
            bytes,
            used,
            limit: isize::MAX as u64,
        };
        let mut memory = Vec::new();
        let len = usize::try_from(bytes).map_err(|_| refused(self.used))?;
        memory.try_reserve_exact(len).map_err(|_| refused(self.used))?;
        memory.resize(len, 0);
        self.used += bytes;
        Ok(self.insert(Memory::Own(memory)))
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        Ok(self.insert(Memory::Imported(region)))
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        match self.buffers.remove(&buffer) {
            None => Err(DeviceError::NoBuffer(buffer.0)),
            Some(Memory::Own(bytes)) => {
                self.used -= bytes.len() as u64;
                Ok(())
            }
            Some(Memory::Imported(_)) => Ok(()),
        }
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = self.range(buffer, "write", offset, bytes.len())?;
        if let Some(Memory::Own(memory)) = self.buffers.get_mut(&buffer) {
            memory[range].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let range = self.range(buffer, "read", offset, bytes.len())?;
        bytes.copy_from_slice(&self.buffers[&buffer].bytes()[range]);
        Ok(())
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        program.validate(&|id| {
            let memory = self.buffers.get(&id)?;
            Some(BufferInfo {
                bytes: memory.bytes().len() as u64,
                read_only: matches!(memory, Memory::Imported(_)),
            })
        })?;
        for op in &program.ops {
            self.run(op);
        }
        self.ticket += 1;
        Ok(Ticket(self.ticket))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<(), DeviceError> {
        Ok(())
    }

    fn used(&self) -> u64 {
        self.used
    }
}
