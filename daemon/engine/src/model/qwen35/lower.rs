//! A pass becomes ops. The formulas are those of `transformers`' Qwen3.5 classes.

use super::weights::{Attention, Delta, Layer, Mixer, Mtp};
use super::{Config, Qwen35};
use crate::model::StateLayout;
use crate::pass::{Arena, Kind, Lowered, Pass, Segment};
use crate::switches::Switches;
use std::sync::Arc;
use tandem_program::{DeltaForm, Op, Product, Program, StateOut, Tensor};

/// Added under the root of the delta rule's key and query norms.
const L2_EPS: f32 = 1e-6;

pub(super) struct Lowering<'a> {
    model: &'a Qwen35,
    pass: &'a Pass,
    switches: &'a Switches,
    arena: &'a mut Arena,
    program: &'a mut Program,
    lowered: Lowered,
}

/// Rows `first .. first + count` of some activations, which attend in one cache from cell
/// `past` on.
#[derive(Clone, Copy)]
struct Span<'a> {
    first: u32,
    count: u32,
    past: u32,
    /// The segment's first column in the pass.
    column: u32,
    segment: &'a Segment,
}

impl Span<'_> {
    /// Columns of the segment in front of the span: 1 for the MTP entries of a sequence's
    /// beginning, else 0.
    fn skipped(&self) -> u32 {
        self.segment.tokens.len() as u32 - self.count
    }
}

/// The MTP entries that the pass's tokens complete. The token at position 0 completes none.
fn entries<'a>(spans: &[Span<'a>]) -> Vec<Span<'a>> {
    let mut first = 0;
    let mut entries = Vec::with_capacity(spans.len());
    for s in spans {
        let skip = u32::from(s.past == 0);
        let count = s.count - skip;
        if count > 0 {
            entries.push(Span { first, count, past: s.past + skip - 1, ..*s });
            first += count;
        }
    }
    entries
}

fn product(weight: Tensor, out: Tensor) -> Product {
    Product { weight, rows: None, out }
}

impl<'a> Lowering<'a> {
    pub(super) fn new(
        model: &'a Qwen35,
        pass: &'a Pass,
        switches: &'a Switches,
        arena: &'a mut Arena,
        program: &'a mut Program,
    ) -> Self {
        Lowering { model, pass, switches, arena, program, lowered: Lowered::default() }
    }

    fn config(&self) -> &'a Config {
        &self.model.config
    }

    fn layout(&self) -> &'a StateLayout {
        &self.model.layout
    }

    fn push(&mut self, op: Op) {
        self.program.push(op);
    }

    /// The pass's own columns, a span a segment.
    fn spans(&self) -> Vec<Span<'a>> {
        let mut first = 0;
        let mut spans = Vec::with_capacity(self.pass.segments.len());
        for segment in &self.pass.segments {
            let count = segment.tokens.len() as u32;
            spans.push(Span { first, count, past: segment.position, column: first, segment });
            first += count;
        }
        spans
    }

    pub(super) fn run(mut self) -> Lowered {
        let model = self.model;
        let c = self.config();
        let spans = self.spans();
        let n = self.pass.columns();
        let table = self.rope_table(&spans);
        let mtp = model.weights.mtp.as_ref().filter(|_| self.switches.mtp_drafts);
        let entries = if mtp.is_some() { entries(&spans) } else { Vec::new() };
        // Uploaded before the program runs, so it must lie below all that layers reuse.
        let entry_table = self.rope_table(&entries);
        let x = self.arena.take(n, c.hidden);
        let ids = self.pass.segments.iter().flat_map(|s| s.tokens.iter().copied()).collect();
        self.push(Op::Embed { table: model.weights.embed, ids, scale: 1.0, out: x });
        let (mut attention, mut recurrent) = (0, 0);
        for layer in &model.weights.layers {
            let index = match layer.mixer {
                Mixer::Attention(_) => &mut attention,
                Mixer::Delta(_) => &mut recurrent,
            };
            self.layer(layer, *index, x, table, &spans);
            *index += 1;
        }
        let hidden = self.arena.take(n, c.hidden);
        self.push(Op::RmsNorm { x, weight: model.weights.norm, eps: c.eps, out: hidden });
        let wanted = wanted(&spans, |s| &s.logits);
        self.lowered.logits = self.head(hidden, wanted, model.weights.output);
        if let Some(mtp) = mtp {
            self.keep_hidden(hidden, &spans);
            self.mtp(mtp, hidden, attention, &entries, entry_table);
        }
        self.lowered
    }

    /// Cosines and sines of every column, `[n x rotary]`. Interleaved M-RoPE: frequency `j`
    /// turns with the height for `j % 3 == 1` and `j < 3 * sections[1]`, the width for
    /// `j % 3 == 2` and `j < 3 * sections[2]`, else with the time; for text all are the position.
    fn rope_table(&mut self, spans: &[Span<'_>]) -> Tensor {
        let c = self.config();
        let half = c.rotary / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|j| libm::pow(f64::from(c.rope_base), -2.0 * f64::from(j) / f64::from(c.rotary)) as f32)
            .collect();
        let mut values = Vec::new();
        for span in spans {
            for i in 0..span.count {
                let axes = [span.past + i; 3];
                let angle = |j: usize| {
                    let axis = match j % 3 {
                        1 if j < 3 * c.sections[1] as usize => 1,
                        2 if j < 3 * c.sections[2] as usize => 2,
                        _ => 0,
                    };
                    f64::from(axes[axis] as f32 * frequencies[j])
                };
                values.extend((0..half as usize).map(|j| libm::cos(angle(j)) as f32));
                values.extend((0..half as usize).map(|j| libm::sin(angle(j)) as f32));
            }
        }
        let rows = spans.iter().map(|s| s.count).sum();
        let table = self.arena.take(rows, c.rotary);
        self.lowered.uploads.push((table, values));
        table
    }

    /// One decoder layer: mixer and feed-forward, each added to `x`.
    fn layer(&mut self, layer: &Layer, index: usize, x: Tensor, table: Tensor, spans: &[Span<'_>]) {
        let c = self.config();
        let mark = self.arena.mark();
        let h = self.arena.take(x.rows, c.hidden);
        let y = self.arena.take(x.rows, c.hidden);
        self.push(Op::RmsNorm { x, weight: layer.norm, eps: c.eps, out: h });
        match &layer.mixer {
            Mixer::Attention(w) => self.attention(w, index, h, y, table, spans),
            Mixer::Delta(w) => self.delta(w, index, h, y, spans),
        }
        self.push(Op::Add { a: x, b: y, out: x });
        self.push(Op::RmsNorm { x, weight: layer.ffn_norm, eps: c.eps, out: h });
        let f = self.arena.take(x.rows, c.ffn);
        if self.switches.fused_swiglu {
            self.push(Op::SwiGlu { x: h, gate: layer.ffn_gate, up: layer.ffn_up, out: f });
        } else {
            let up = self.arena.take(x.rows, c.ffn);
            self.push(Op::MatMul {
                x: h,
                products: vec![product(layer.ffn_gate, f), product(layer.ffn_up, up)],
            });
            self.push(Op::SiluMul { gate: f, up, out: f });
        }
        self.push(Op::MatMul { x: f, products: vec![product(layer.ffn_down, y)] });
        self.push(Op::Add { a: x, b: y, out: x });
        self.arena.release(mark);
    }

    /// Gated full attention: each query head's projection row holds the head, then its gate.
    fn attention(
        &mut self,
        w: &Attention,
        index: usize,
        h: Tensor,
        y: Tensor,
        table: Tensor,
        spans: &[Span<'_>],
    ) {
        let c = self.config();
        let n = h.rows;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let qg = self.arena.take(n, 2 * q_width);
        let k = self.arena.take(n, kv_width);
        let v = self.arena.take(n, kv_width);
        let out = self.arena.take(n, q_width);
        self.push(Op::MatMul { x: h, products: vec![product(w.q, qg), product(w.k, k), product(w.v, v)] });
        let heads = qg.split_rows(c.heads);
        let q = heads.slice_width(0, c.head_dim);
        let gate = heads.slice_width(c.head_dim, c.head_dim);
        let k_heads = k.split_rows(c.kv_heads);
        self.push(Op::RmsNorm { x: q, weight: w.q_norm, eps: c.eps, out: q });
        self.push(Op::RmsNorm { x: k_heads, weight: w.k_norm, eps: c.eps, out: k_heads });
        self.push(Op::Rope { x: q, heads: c.heads, table, out: q });
        self.push(Op::Rope { x: k_heads, heads: c.kv_heads, table, out: k_heads });
        for s in spans {
            let (keys, values) = s.segment.kv.layer(self.layout(), index);
            self.push(Op::Copy { x: k.slice_rows(s.first, s.count), out: keys.slice_rows(s.past, s.count) });
            self.push(Op::Copy {
                x: v.slice_rows(s.first, s.count),
                out: values.slice_rows(s.past, s.count),
            });
            self.push(Op::Attention {
                q: q.slice_rows(s.first * c.heads, s.count * c.heads),
                k: keys.slice_rows(0, s.past + s.count),
                v: values.slice_rows(0, s.past + s.count),
                heads: c.heads,
                kv_heads: c.kv_heads,
                past: s.past,
                scale: 1.0 / (c.head_dim as f32).sqrt(),
                out: out.split_rows(c.heads).slice_rows(s.first * c.heads, s.count * c.heads),
            });
        }
        let gated = out.split_rows(c.heads);
        self.push(Op::SigmoidMul { x: gated, gate, out: gated });
        self.push(Op::MatMul { x: out, products: vec![product(w.output, y)] });
    }

    /// Gated DeltaNet: convolution over queries, keys and values, then the delta rule.
    fn delta(&mut self, w: &Delta, index: usize, h: Tensor, y: Tensor, spans: &[Span<'_>]) {
        let c = self.config();
        let n = h.rows;
        let (key, value) = (c.key_width(), c.value_width());
        let raw = self.arena.take(n, c.conv_channels());
        let qkv = self.arena.take(n, c.conv_channels());
        let z = self.arena.take(n, value);
        let decay = self.arena.take(n, c.value_heads);
        let beta = self.arena.take(n, c.value_heads);
        let out = self.arena.take(n, value);
        self.push(Op::MatMul {
            x: h,
            products: vec![
                product(w.qkv, raw),
                product(w.gate, z),
                product(w.alpha, decay),
                product(w.beta, beta),
            ],
        });
        for s in spans {
            self.push(Op::Conv {
                x: raw.slice_rows(s.first, s.count),
                state: self.layout().conv(s.segment.state.buffer(), index),
                kernel: w.kernel,
                bias: None,
                silu: true,
                out: qkv.slice_rows(s.first, s.count),
                states: states(s.segment, |buffer| self.layout().conv(buffer, index)),
            });
        }
        let (q, k, v) = (qkv.slice_width(0, key), qkv.slice_width(key, key), qkv.slice_width(2 * key, value));
        let scale = 1.0 / (c.key_dim as f32).sqrt();
        self.push(Op::L2Norm { x: q, groups: c.key_heads, eps: L2_EPS, scale, out: q });
        self.push(Op::L2Norm { x: k, groups: c.key_heads, eps: L2_EPS, scale: 1.0, out: k });
        self.push(Op::DeltaGates { alpha: decay, beta, a: w.a, dt: w.dt, decay, beta_out: beta });
        for s in spans {
            let rows = |t: Tensor| t.slice_rows(s.first, s.count);
            self.push(Op::GatedDelta {
                form: match s.segment.kind {
                    Kind::Prefill => DeltaForm::Chunked { position: s.segment.position },
                    Kind::Decode => DeltaForm::PerToken,
                },
                q: rows(q),
                k: rows(k),
                v: rows(v),
                decay: rows(decay),
                beta: rows(beta),
                heads: c.value_heads,
                key_heads: c.key_heads,
                state: self.layout().state(s.segment.state.buffer(), index),
                out: rows(out),
                states: states(s.segment, |buffer| self.layout().state(buffer, index)),
            });
        }
        let heads = out.split_rows(c.value_heads);
        self.push(Op::GatedNorm {
            x: heads,
            z: z.split_rows(c.value_heads),
            weight: w.norm,
            eps: c.eps,
            out: heads,
        });
        self.push(Op::MatMul { x: out, products: vec![product(w.output, y)] });
    }

    /// Logits of the given rows of `hidden`.
    fn head(&mut self, hidden: Tensor, rows: Arc<[u32]>, weight: Tensor) -> Option<Tensor> {
        if rows.is_empty() {
            return None;
        }
        let count = rows.len() as u32;
        let picked = self.arena.take(count, hidden.width);
        let logits = self.arena.take(count, weight.rows);
        self.push(Op::Gather { x: hidden, rows, out: picked });
        self.push(Op::MatMul { x: picked, products: vec![product(weight, logits)] });
        Some(logits)
    }

    fn keep_hidden(&mut self, hidden: Tensor, spans: &[Span<'_>]) {
        for s in spans {
            for (after, to) in &s.segment.states {
                let row = hidden.slice_rows(s.first + after, 1);
                self.push(Op::Copy { x: row, out: self.layout().hidden(to.buffer()) });
            }
        }
    }

    /// The MTP block over the pass's tokens: entry `p` from the token at `p + 1` and the
    /// hidden state of `p`, which is the previous column's, or the one kept with the
    /// segment's first state.
    fn mtp(&mut self, w: &Mtp, hidden: Tensor, kv_layer: usize, entries: &[Span<'_>], table: Tensor) {
        let c = self.config();
        let Some(last) = entries.last() else { return };
        let n = last.first + last.count;
        let previous = self.arena.take(n, c.hidden);
        let mut ids = Vec::new();
        for e in entries {
            ids.extend_from_slice(&e.segment.tokens[e.skipped() as usize..]);
            let carried = 1 - e.skipped();
            if carried == 1 {
                let kept = self.layout().hidden(e.segment.state.buffer());
                self.push(Op::Copy { x: kept, out: previous.slice_rows(e.first, 1) });
            }
            if e.count > carried {
                let rows = e.count - carried;
                let x = hidden.slice_rows(e.column, rows);
                self.push(Op::Copy { x, out: previous.slice_rows(e.first + carried, rows) });
            }
        }
        let x = self.arena.take(n, c.hidden);
        let joined = self.arena.take(n, 2 * c.hidden);
        self.push(Op::Embed { table: w.embed, ids: ids.into(), scale: 1.0, out: x });
        self.push(Op::RmsNorm { x, weight: w.embed_norm, eps: c.eps, out: joined.slice_width(0, c.hidden) });
        self.push(Op::RmsNorm {
            x: previous,
            weight: w.hidden_norm,
            eps: c.eps,
            out: joined.slice_width(c.hidden, c.hidden),
        });
        self.push(Op::MatMul { x: joined, products: vec![product(w.project, x)] });
        self.layer(&w.layer, kv_layer, x, table, entries);
        let mut rows = Vec::new();
        for e in entries {
            let skip = e.skipped();
            rows.extend(e.segment.mtp_logits.iter().filter(|c| **c >= skip).map(|c| e.first + c - skip));
        }
        if rows.is_empty() {
            return;
        }
        let normed = self.arena.take(n, c.hidden);
        self.push(Op::RmsNorm { x, weight: w.head_norm, eps: c.eps, out: normed });
        self.lowered.mtp_logits = self.head(normed, rows.into(), w.head);
    }
}

fn wanted(spans: &[Span<'_>], columns: impl Fn(&Segment) -> &Vec<u32>) -> Arc<[u32]> {
    spans.iter().flat_map(|s| columns(s.segment).iter().map(move |c| s.first + c)).collect()
}

fn states(segment: &Segment, place: impl Fn(tandem_program::BufferId) -> Tensor) -> Vec<StateOut> {
    segment.states.iter().map(|(after, to)| StateOut { after: *after, to: place(to.buffer()) }).collect()
}
