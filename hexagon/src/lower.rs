//! Ops to packets.

use crate::abi;
use crate::planner::{Planner, Shape};
use crate::tiles::TileShape;
use std::sync::Arc;
use tandem_program::{Act, DType, DeltaForm, Op, Product, StateOut, Tensor};

/// A tensor of an op, in the packet's order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) tensor: Tensor,
    /// A weight or table, which the DSP wants packed.
    pub(crate) packed: bool,
}

/// Chosen rows, ids or indices of one packet.
const WORDS: usize = 1 << 16;
/// Products of one packet.
const PRODUCTS: usize = 8;
/// States of one packet.
const STATES: usize = 48;

/// The op in parts that fit packets, in order; none where it has no columns.
pub(crate) fn parts(op: &Op) -> Vec<Op> {
    match op {
        Op::Embed { table, ids, scale, out } => chunks(ids, WORDS)
            .map(|(first, ids)| {
                let out = out.slice_rows(first, ids.len() as u32);
                Op::Embed { table: *table, ids, scale: *scale, out }
            })
            .collect(),
        Op::Gather { x, rows, out } => chunks(rows, WORDS)
            .map(|(first, rows)| Op::Gather { x: *x, out: out.slice_rows(first, rows.len() as u32), rows })
            .collect(),
        Op::MatMul { x, .. } | Op::SwiGlu { x, .. } if x.rows == 0 => Vec::new(),
        Op::MatMul { x, products } => {
            let mut whole = Vec::new();
            for p in products {
                match &p.rows {
                    None => whole.push(p.clone()),
                    Some(rows) => whole.extend(chunks(rows, WORDS).map(|(first, rows)| {
                        let out = p.out.slice_width(first, rows.len() as u32);
                        Product { rows: Some(rows), out, ..p.clone() }
                    })),
                }
            }
            // Chosen rows fill a packet of their own, and so do tiles.
            let mut parts: Vec<Vec<Product>> = Vec::new();
            let together = |a: &Product, b: &Product| {
                a.rows.is_none() && b.rows.is_none() && in_tiles(a.act) == in_tiles(b.act)
            };
            for p in whole {
                match parts.last_mut() {
                    Some(part) if part.len() < PRODUCTS && together(&part[0], &p) => part.push(p),
                    _ => parts.push(vec![p]),
                }
            }
            parts.into_iter().map(|products| Op::MatMul { x: *x, products }).collect()
        }
        // The same columns again with the next states: the op reads nothing it writes.
        Op::Conv { states, .. } | Op::GatedDelta { states, .. } if states.len() > STATES => states
            .chunks(STATES)
            .map(|part| {
                let mut op = op.clone();
                if let Op::Conv { states, .. } | Op::GatedDelta { states, .. } = &mut op {
                    *states = part.to_vec();
                }
                op
            })
            .collect(),
        _ if operands(op)[0].tensor.rows == 0 => Vec::new(),
        _ => vec![op.clone()],
    }
}

/// Whether a product is the matrix unit's.
pub(crate) fn in_tiles(act: Act) -> bool {
    act == Act::F16Tile
}

fn chunks(words: &Arc<[u32]>, size: usize) -> impl Iterator<Item = (u32, Arc<[u32]>)> + '_ {
    words.chunks(size).enumerate().map(move |(i, part)| ((i * size) as u32, part.into()))
}

/// The op's tensors in the order its packet wants them.
pub(crate) fn operands(op: &Op) -> Vec<Operand> {
    let plain = |tensor: &Tensor| Operand { tensor: *tensor, packed: false };
    let packed = |tensor: &Tensor| Operand { tensor: *tensor, packed: true };
    let states = |fixed: Vec<Operand>, states: &[StateOut]| {
        fixed.into_iter().chain(states.iter().map(|s| plain(&s.to))).collect()
    };
    match op {
        Op::Embed { table, out, .. } => vec![packed(table), plain(out)],
        Op::RmsNorm { x, weight, out, .. } => vec![plain(x), plain(weight), plain(out)],
        Op::L2Norm { x, out, .. } | Op::Copy { x, out } | Op::Gather { x, out, .. } => {
            vec![plain(x), plain(out)]
        }
        Op::MatMul { x, products } => {
            let products = products.iter().flat_map(|p| [packed(&p.weight), plain(&p.out)]);
            std::iter::once(plain(x)).chain(products).collect()
        }
        Op::SwiGlu { x, gate, up, out, .. } => vec![plain(x), packed(gate), packed(up), plain(out)],
        Op::SiluMul { gate: x, up: y, out }
        | Op::SigmoidMul { x, gate: y, out }
        | Op::Add { a: x, b: y, out }
        | Op::Rope { x, table: y, out, .. } => vec![plain(x), plain(y), plain(out)],
        Op::Attention { q, k, v, out, .. } => vec![plain(q), plain(k), plain(v), plain(out)],
        Op::Conv { x, state, kernel, bias, out, states: to, .. } => {
            let mut fixed = vec![plain(x), plain(state), plain(kernel), plain(out)];
            fixed.extend(bias.as_ref().map(plain));
            states(fixed, to)
        }
        Op::DeltaGates { alpha, beta, a, dt, decay, beta_out } => {
            [alpha, beta, a, dt, decay, beta_out].map(plain).into()
        }
        Op::GatedDelta { q, k, v, decay, beta, state, out, states: to, .. } => {
            states([q, k, v, decay, beta, state, out].map(plain).into(), to)
        }
        Op::GatedNorm { x, z, weight, out, .. } => vec![plain(x), plain(z), plain(weight), plain(out)],
    }
}

/// Parameters of a product's packet: its plan.
pub(crate) type PlanParams = [u32; 4];

/// The packet's op number, parameters and words.
fn head(op: &Op, plan: PlanParams) -> (u32, Vec<u32>, Vec<u32>) {
    let after = |states: &[StateOut]| states.iter().map(|s| s.after).collect();
    match op {
        Op::Embed { ids, scale, .. } => (abi::EMBED, vec![scale.to_bits()], ids.to_vec()),
        Op::RmsNorm { eps, .. } => (abi::RMS_NORM, vec![eps.to_bits()], vec![]),
        Op::L2Norm { groups, eps, scale, .. } => {
            (abi::L2_NORM, vec![*groups, eps.to_bits(), scale.to_bits()], vec![])
        }
        Op::MatMul { products, .. } if in_tiles(products[0].act) => {
            (abi::MATMUL_TILES, plan.to_vec(), vec![])
        }
        Op::SwiGlu { acts, .. } if in_tiles(acts[0]) => (abi::SWIGLU_TILES, plan.to_vec(), vec![]),
        Op::MatMul { products, .. } => {
            let words = products.iter().flat_map(|p| match &p.rows {
                None => vec![abi::ALL_ROWS],
                Some(rows) => std::iter::once(rows.len() as u32).chain(rows.iter().copied()).collect(),
            });
            (abi::MATMUL, plan.to_vec(), words.collect())
        }
        Op::SwiGlu { .. } => (abi::SWIGLU, plan.to_vec(), vec![]),
        Op::SiluMul { .. } => (abi::SILU_MUL, vec![], vec![]),
        Op::SigmoidMul { .. } => (abi::SIGMOID_MUL, vec![], vec![]),
        Op::Add { .. } => (abi::ADD, vec![], vec![]),
        Op::Rope { heads, .. } => (abi::ROPE, vec![*heads], vec![]),
        Op::Copy { .. } => (abi::COPY, vec![], vec![]),
        Op::Gather { rows, .. } => (abi::GATHER, vec![], rows.to_vec()),
        Op::Attention { heads, kv_heads, past, scale, .. } => {
            (abi::ATTENTION, vec![*heads, *kv_heads, *past, scale.to_bits()], vec![])
        }
        Op::Conv { silu, bias, states, .. } => {
            (abi::CONV, vec![u32::from(*silu), u32::from(bias.is_some())], after(states))
        }
        Op::DeltaGates { .. } => (abi::DELTA_GATES, vec![], vec![]),
        Op::GatedDelta { form, heads, key_heads, states, .. } => {
            let (chunked, position) = match form {
                DeltaForm::Chunked { position } => (1, *position),
                DeltaForm::PerToken => (0, 0),
            };
            (abi::GATED_DELTA, vec![chunked, position, *heads, *key_heads], after(states))
        }
        Op::GatedNorm { eps, .. } => (abi::GATED_NORM, vec![eps.to_bits()], vec![]),
    }
}

/// A tensor at this place on the DSP.
pub(crate) fn tensor(operand: &Operand, map: u32, offset: u32) -> abi::Tensor {
    let Tensor { dtype, rows, width, stride, .. } = operand.tensor;
    // With one row the stride says nothing; without it the DSP's limits are out of the way.
    let stride = if rows <= 1 || operand.packed { width } else { stride };
    let packed = if operand.packed { abi::PACKED } else { 0 };
    abi::Tensor { map, offset, dtype: dtype_number(dtype) | packed, rows, width, stride }
}

fn dtype_number(dtype: DType) -> u32 {
    dtype.ggml_id()
}

/// The plan of a product; of no meaning for other ops.
pub(crate) fn plan(op: &Op, planner: &Planner) -> PlanParams {
    match op {
        Op::MatMul { x, products } if in_tiles(products[0].act) => {
            let shapes: Vec<TileShape> = products.iter().map(|p| TileShape::new(&[p.weight])).collect();
            planner.plan_tiles(&shapes, x.rows).params()
        }
        Op::SwiGlu { x, gate, up, acts, .. } if in_tiles(acts[0]) => {
            planner.plan_tiles(&[TileShape::new(&[*gate, *up])], x.rows).params()
        }
        Op::MatMul { x, products } => {
            let shape = |p: &Product| Shape {
                weight: p.weight.dtype,
                fused: None,
                outputs: p.out.width,
                chosen: p.rows.is_some(),
            };
            let shapes: Vec<Shape> = products.iter().map(shape).collect();
            planner.plan(&shapes, x.width, x.rows).params()
        }
        Op::SwiGlu { x, gate, up, .. } => {
            let shape = Shape { fused: Some(up.dtype), ..Shape::whole(gate.dtype, gate.rows) };
            planner.plan(&[shape], x.width, x.rows).params()
        }
        _ => NO_PLAN,
    }
}

const NO_PLAN: PlanParams = [0; 4];

/// Appends the packet of `op` with its operands where `tensors` says.
pub(crate) fn encode(op: &Op, plan: PlanParams, tensors: &[abi::Tensor], batch: &mut Vec<u8>) {
    let (number, params, words) = head(op, plan);
    let bytes = size_of::<abi::Packet>() + size_of_val(tensors) + 4 * words.len();
    let mut put = |word: u32| batch.extend(word.to_le_bytes());
    [bytes as u32, number, tensors.len() as u32, words.len() as u32].into_iter().for_each(&mut put);
    (0..8).for_each(|i| put(params.get(i).copied().unwrap_or(0)));
    for t in tensors {
        [t.map, t.offset, t.dtype, t.rows, t.width, t.stride].into_iter().for_each(&mut put);
    }
    words.into_iter().for_each(put);
}

/// Bytes [`encode`] appends.
pub(crate) fn encoded_bytes(op: &Op) -> usize {
    let (_, _, words) = head(op, NO_PLAN);
    size_of::<abi::Packet>() + operands(op).len() * size_of::<abi::Tensor>() + 4 * words.len()
}
