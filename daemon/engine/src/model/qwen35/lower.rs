//! A pass becomes ops. The formulas are those of `transformers`' Qwen3.5 classes.

use super::weights::{Attention, Delta, Layer, Mixer, Mtp};
use super::{Config, Qwen35};
use crate::model::StateLayout;
use crate::pass::{Arena, DraftColumn, DraftHead, Kind, Lowered, LoweredDraft, Pass, Segment};
use crate::switches::{PrefillProducts, Switches};
use std::sync::Arc;
use tandem_program::{Act, DType, DeltaForm, Op, Product, Program, StateOut, Tensor};

/// Added under the root of the delta rule's key and query norms.
const L2_EPS: f32 = 1e-6;

pub(super) struct Lowering<'a> {
    model: &'a Qwen35,
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

/// Rows of some activations that are multiplied together.
struct Group {
    first: u32,
    count: u32,
    kind: Kind,
}

/// The segments' own columns, a span each.
fn spans<'a>(segments: impl Iterator<Item = &'a Segment>) -> Vec<Span<'a>> {
    let mut first = 0;
    let mut spans = Vec::new();
    for segment in segments {
        let count = segment.tokens.len() as u32;
        spans.push(Span { first, count, past: segment.position, column: first, segment });
        first += count;
    }
    spans
}

/// The MTP entries that the pass's tokens complete. The token at position 0 completes none.
fn entries<'a>(spans: &[Span<'a>]) -> Vec<Span<'a>> {
    let mut first = 0;
    let mut entries = Vec::with_capacity(spans.len());
    for s in spans.iter().filter(|s| s.segment.mtp) {
        let skip = u32::from(s.past == 0);
        let count = s.count - skip;
        if count > 0 {
            entries.push(Span { first, count, past: s.past + skip - 1, ..*s });
            first += count;
        }
    }
    entries
}

impl<'a> Lowering<'a> {
    pub(super) fn new(
        model: &'a Qwen35,
        switches: &'a Switches,
        arena: &'a mut Arena,
        program: &'a mut Program,
    ) -> Self {
        Lowering { model, switches, arena, program, lowered: Lowered::default() }
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

    /// Products of activations whose rows are those of `spans`. Without shared verification
    /// every column after a prompt reads the weights for itself.
    fn matmul(&mut self, x: Tensor, products: Vec<Product>, spans: &[Span<'_>]) {
        for Group { first, count, kind } in self.groups(x.rows, spans) {
            let part = |p: &Product| Product {
                out: p.out.slice_rows(first, count),
                act: self.act(&p.weight, kind),
                ..p.clone()
            };
            let products = products.iter().map(part).collect();
            self.push(Op::MatMul { x: x.slice_rows(first, count), products });
        }
    }

    /// How a weight is multiplied with columns of this kind: as its type asks, or a prompt's in
    /// tiles.
    fn act(&self, weight: &Tensor, kind: Kind) -> Act {
        let own = Act::for_weight(weight.dtype);
        let tiles = self.switches.prefill_products == PrefillProducts::F16Tile && kind == Kind::Prefill;
        let float = matches!(weight.dtype, DType::F32 | DType::BF16);
        if tiles && !float { Act::F16Tile } else { own }
    }

    /// Rows that share the weights they are multiplied with. A prompt's columns and those behind
    /// it share them unless they are multiplied otherwise: the kind of column decides that, so a
    /// column's result is the same whatever else is in its pass.
    fn groups(&self, rows: u32, spans: &[Span<'_>]) -> Vec<Group> {
        let one_kind = self.switches.prefill_products == PrefillProducts::Integer;
        if self.switches.shared_verify && one_kind {
            return vec![Group { first: 0, count: rows, kind: Kind::Decode }];
        }
        let mut groups: Vec<Group> = Vec::new();
        for s in spans {
            let (first, count, kind) = (s.first, s.count, s.segment.kind);
            if kind == Kind::Decode && !self.switches.shared_verify {
                groups.extend((first..first + count).map(|first| Group { first, count: 1, kind }));
                continue;
            }
            match groups.last_mut() {
                Some(group) if group.kind == kind && self.switches.shared_verify => group.count += count,
                _ => groups.push(Group { first, count, kind }),
            }
        }
        groups
    }

    pub(super) fn run(mut self, pass: &'a Pass) -> Lowered {
        let model = self.model;
        let c = self.config();
        let spans = spans(pass.segments.iter());
        let n = pass.columns();
        let table = self.rope_table(&spans);
        let entries = if model.weights.mtp.is_some() { entries(&spans) } else { Vec::new() };
        // Uploaded before the program runs, so it must lie below all that layers reuse.
        let entry_table = (!entries.is_empty()).then(|| self.rope_table(&entries));
        let x = self.arena.take(n, c.hidden);
        let ids = pass.segments.iter().flat_map(|s| s.tokens.iter().copied()).collect();
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
        self.restricted(hidden, &spans);
        if let Some(mtp) = &model.weights.mtp {
            self.keep_hidden(hidden, &spans);
            if let Some(table) = entry_table {
                self.mtp(mtp, hidden, attention, &entries, table);
            }
        }
        self.lowered
    }

    /// A step of the MTP block alone; `None` where the model has none.
    pub(super) fn draft(mut self, columns: &'a [DraftColumn]) -> Option<LoweredDraft> {
        let model = self.model;
        let c = self.config();
        let mtp = model.weights.mtp.as_ref()?;
        let segment = |d: &DraftColumn| Segment {
            mtp: true,
            ..Segment::new(Kind::Decode, vec![d.token], d.position, d.kv, Arc::clone(&d.state))
        };
        let segments: Vec<Segment> = columns.iter().map(segment).collect();
        let entries = entries(&spans(segments.iter()));
        let n = columns.len() as u32;
        let table = self.rope_table(&entries);
        // Uploads lie below all that layers reuse.
        let previous = self.arena.take(n, c.hidden);
        for (i, column) in columns.iter().enumerate() {
            let row = previous.slice_rows(i as u32, 1);
            match &column.hidden {
                Some(values) => self.lowered.uploads.push((row, values.clone())),
                None => {
                    let kept = self.layout().hidden(column.state.buffer());
                    self.push(Op::Copy { x: kept, out: row });
                }
            }
        }
        let ids = columns.iter().map(|d| d.token).collect();
        let attention = self.layout().kv.len() - 1;
        let x = self.mtp_input(mtp, previous, ids, &entries);
        self.layer(&mtp.layer, attention, x, table, &entries);
        let normed = self.arena.take(n, c.hidden);
        self.push(Op::RmsNorm { x, weight: mtp.head_norm, eps: c.eps, out: normed });
        let mut logits = Vec::with_capacity(columns.len());
        for (i, column) in columns.iter().enumerate() {
            let row = normed.slice_rows(i as u32, 1);
            logits.push(match &column.head {
                DraftHead::None => None,
                DraftHead::Whole => {
                    let trimmed = mtp.draft.as_ref().filter(|_| self.switches.trimmed_head);
                    let weight = trimmed.map_or(mtp.head, |d| d.matrix);
                    let out = self.arena.take(1, weight.rows);
                    self.push(Op::MatMul { x: row, products: vec![Product::new(weight, out)] });
                    Some(out)
                }
                DraftHead::Rows(rows) => {
                    let out = self.arena.take(1, rows.len() as u32);
                    let some = Product { rows: Some(Arc::clone(rows)), ..Product::new(mtp.head, out) };
                    self.push(Op::MatMul { x: row, products: vec![some] });
                    Some(out)
                }
            });
        }
        Some(LoweredDraft { uploads: self.lowered.uploads, hidden: Some(normed), logits })
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
            let (gate, up) = (layer.ffn_gate, layer.ffn_up);
            for Group { first, count, kind } in self.groups(h.rows, spans) {
                let part = |t: Tensor| t.slice_rows(first, count);
                let acts = [self.act(&gate, kind), self.act(&up, kind)];
                self.push(Op::SwiGlu { x: part(h), gate, up, acts, out: part(f) });
            }
        } else {
            let up = self.arena.take(x.rows, c.ffn);
            self.matmul(h, vec![Product::new(layer.ffn_gate, f), Product::new(layer.ffn_up, up)], spans);
            self.push(Op::SiluMul { gate: f, up, out: f });
        }
        self.matmul(f, vec![Product::new(layer.ffn_down, y)], spans);
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
        self.matmul(h, vec![Product::new(w.q, qg), Product::new(w.k, k), Product::new(w.v, v)], spans);
        let heads = qg.split_rows(c.heads);
        let q = heads.slice_width(0, c.head_dim);
        let gate = heads.slice_width(c.head_dim, c.head_dim);
        self.push(Op::RmsNorm { x: q, weight: w.q_norm, eps: c.eps, out: q });
        self.push(Op::Rope { x: q, heads: c.heads, table, out: q });
        self.turn_keys(w, k, table);
        for s in spans {
            let (keys, values) = self.put_cells(s, index, k, v);
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
        self.matmul(out, vec![Product::new(w.output, y)], spans);
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
        let products = vec![
            Product::new(w.qkv, raw),
            Product::new(w.gate, z),
            Product::new(w.alpha, decay),
            Product::new(w.beta, beta),
        ];
        self.matmul(h, products, spans);
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
        self.matmul(out, vec![Product::new(w.output, y)], spans);
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
        let group = if self.switches.shared_verify { count } else { 1 };
        for first in (0..count).step_by(group as usize) {
            let part = |t: Tensor| t.slice_rows(first, group);
            self.push(Op::MatMul { x: part(picked), products: vec![Product::new(weight, part(logits))] });
        }
        Some(logits)
    }

    /// Some logits of some columns.
    fn restricted(&mut self, hidden: Tensor, spans: &[Span<'_>]) {
        for s in spans {
            for (column, rows) in &s.segment.restricted {
                let out = self.arena.take(1, rows.len() as u32);
                let some =
                    Product { rows: Some(Arc::clone(rows)), ..Product::new(self.model.weights.output, out) };
                let x = hidden.slice_rows(s.first + column, 1);
                self.push(Op::MatMul { x, products: vec![some] });
                self.lowered.restricted.push(out);
            }
        }
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
        let mut rows = Vec::new();
        for e in entries {
            let skip = e.skipped();
            rows.extend(e.segment.mtp_logits.iter().filter(|c| **c >= skip).map(|c| e.first + c - skip));
        }
        let x = self.mtp_input(w, previous, ids.into(), entries);
        if rows.is_empty() {
            self.mtp_cells(w, kv_layer, x, entries, table);
            return;
        }
        self.layer(&w.layer, kv_layer, x, table, entries);
        let normed = self.arena.take(n, c.hidden);
        self.push(Op::RmsNorm { x, weight: w.head_norm, eps: c.eps, out: normed });
        self.lowered.mtp_logits = self.head(normed, rows.into(), w.head);
    }

    /// What the block's layer takes: tokens' embeddings joined with the hidden rows `previous`.
    fn mtp_input(&mut self, w: &Mtp, previous: Tensor, ids: Arc<[u32]>, entries: &[Span<'_>]) -> Tensor {
        let c = self.config();
        let n = previous.rows;
        let x = self.arena.take(n, c.hidden);
        let joined = self.arena.take(n, 2 * c.hidden);
        self.push(Op::Embed { table: w.embed, ids, scale: 1.0, out: x });
        self.push(Op::RmsNorm { x, weight: w.embed_norm, eps: c.eps, out: joined.slice_width(0, c.hidden) });
        self.push(Op::RmsNorm {
            x: previous,
            weight: w.hidden_norm,
            eps: c.eps,
            out: joined.slice_width(c.hidden, c.hidden),
        });
        self.matmul(joined, vec![Product::new(w.project, x)], entries);
        x
    }

    /// The block's cells alone, where nothing is drafted from its output: all that later
    /// entries need of these.
    fn mtp_cells(&mut self, w: &Mtp, kv_layer: usize, x: Tensor, entries: &[Span<'_>], table: Tensor) {
        let Mixer::Attention(attention) = &w.layer.mixer else { return };
        let c = self.config();
        let (n, width) = (x.rows, c.kv_heads * c.head_dim);
        let h = self.arena.take(n, c.hidden);
        let k = self.arena.take(n, width);
        let v = self.arena.take(n, width);
        self.push(Op::RmsNorm { x, weight: w.layer.norm, eps: c.eps, out: h });
        self.matmul(h, vec![Product::new(attention.k, k), Product::new(attention.v, v)], entries);
        self.turn_keys(attention, k, table);
        for e in entries {
            self.put_cells(e, kv_layer, k, v);
        }
    }

    /// Norm and rotation of the keys.
    fn turn_keys(&mut self, w: &Attention, k: Tensor, table: Tensor) {
        let c = self.config();
        let heads = k.split_rows(c.kv_heads);
        self.push(Op::RmsNorm { x: heads, weight: w.k_norm, eps: c.eps, out: heads });
        self.push(Op::Rope { x: heads, heads: c.kv_heads, table, out: heads });
    }

    /// Writes a span's cells and gives the cache's keys and values.
    fn put_cells(&mut self, s: &Span<'_>, layer: usize, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        let (keys, values) = s.segment.kv.layer(self.layout(), layer);
        for (x, cells) in [(k, keys), (v, values)] {
            self.push(Op::Copy { x: x.slice_rows(s.first, s.count), out: cells.slice_rows(s.past, s.count) });
        }
        (keys, values)
    }
}

fn wanted(spans: &[Span<'_>], columns: impl Fn(&Segment) -> &Vec<u32>) -> Arc<[u32]> {
    spans.iter().flat_map(|s| columns(s.segment).iter().map(move |c| s.first + c)).collect()
}

fn states(segment: &Segment, place: impl Fn(tandem_program::BufferId) -> Tensor) -> Vec<StateOut> {
    segment.states.iter().map(|(after, to)| StateOut { after: *after, to: place(to.buffer()) }).collect()
}
