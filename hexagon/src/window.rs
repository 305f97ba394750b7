//! Weights larger than a map: cut by rows into slices that are mapped one after another.
//!
//! The DSP's addresses have 32 bits and it sees a window of the model at a time; a slice takes at
//! most a quarter of it, so that an op's slices, inputs and outputs are there together.

use crate::{abi, packed};
use std::ops::Range;
use tandem_program::{Op, Product, Tensor};

/// The largest slice for a window of `window` bytes.
pub(crate) fn slice_bytes(window: u64) -> u64 {
    (window / 4).min(abi::MAP_BYTES.into())
}

/// Rows of a slice of this weight: whole tiles, at least one.
fn slice_rows(weight: &Tensor, limit: u64) -> u32 {
    let tiles = limit / packed::tile_bytes(weight.dtype, weight.width).max(1);
    let rows = tiles.max(1).saturating_mul(packed::LANES as u64);
    u32::try_from(rows).unwrap_or(u32::MAX / 32 * 32)
}

/// Rows `0 .. rows` in runs of `each`.
fn runs(rows: u32, each: u32) -> impl Iterator<Item = Range<u32>> {
    (0..rows.div_ceil(each)).map(move |i| {
        let first = i * each;
        first..rows.min(first.saturating_add(each))
    })
}

/// Runs of neighbours that lie in the same slice: places in `rows`, and the slice's first row.
fn same_slice(rows: &[u32], each: u32) -> Vec<(Range<usize>, u32)> {
    let mut found: Vec<(Range<usize>, u32)> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let first = row / each * each;
        match found.last_mut() {
            Some((run, slice)) if *slice == first => run.end = i + 1,
            _ => found.push((i..i + 1, first)),
        }
    }
    found
}

fn slice(weight: &Tensor, first: u32, each: u32) -> Tensor {
    weight.slice_rows(first, each.min(weight.rows - first))
}

/// The op as ops whose weights are slices of at most `limit` bytes each, packed. What fits stays
/// as it is. Every result is that of the whole weight: outputs do not see each other.
pub(crate) fn windowed(op: &Op, limit: u64) -> Vec<Op> {
    let bytes = |weight: &Tensor| packed::bytes(weight.dtype, weight.rows, weight.width);
    match op {
        Op::Embed { table, ids, scale, out } if bytes(table) > limit => {
            let each = slice_rows(table, limit);
            let part = |(run, first): (Range<usize>, u32)| Op::Embed {
                table: slice(table, first, each),
                ids: ids[run.clone()].iter().map(|id| id - first).collect(),
                scale: *scale,
                out: out.slice_rows(run.start as u32, run.len() as u32),
            };
            same_slice(ids, each).into_iter().map(part).collect()
        }
        Op::SwiGlu { x, gate, up, acts, out } if bytes(gate).max(bytes(up)) > limit => {
            let each = slice_rows(gate, limit).min(slice_rows(up, limit));
            let part = |rows: Range<u32>| {
                let (first, count) = (rows.start, rows.end - rows.start);
                let (gate, up) = (gate.slice_rows(first, count), up.slice_rows(first, count));
                Op::SwiGlu { x: *x, gate, up, acts: *acts, out: out.slice_width(first, count) }
            };
            runs(gate.rows, each).map(part).collect()
        }
        Op::MatMul { x, products } if products.iter().map(|p| bytes(&p.weight)).sum::<u64>() > limit => {
            let parts = products.iter().flat_map(|product| product_parts(product, limit));
            // Slices of one op are mapped together.
            let mut ops: Vec<(Vec<Product>, u64)> = Vec::new();
            for part in parts {
                let bytes = bytes(&part.weight);
                match ops.last_mut() {
                    Some((products, sum)) if *sum + bytes <= limit => {
                        products.push(part);
                        *sum += bytes;
                    }
                    _ => ops.push((vec![part], bytes)),
                }
            }
            ops.into_iter().map(|(products, _)| Op::MatMul { x: *x, products }).collect()
        }
        _ => vec![op.clone()],
    }
}

fn product_parts(product: &Product, limit: u64) -> Vec<Product> {
    let Product { weight, act, rows, out } = product;
    if packed::bytes(weight.dtype, weight.rows, weight.width) <= limit {
        return vec![product.clone()];
    }
    let each = slice_rows(weight, limit);
    match rows {
        None => {
            let part = |rows: Range<u32>| {
                let (first, count) = (rows.start, rows.end - rows.start);
                Product {
                    weight: weight.slice_rows(first, count),
                    act: *act,
                    rows: None,
                    out: out.slice_width(first, count),
                }
            };
            runs(weight.rows, each).map(part).collect()
        }
        Some(rows) => {
            let part = |(run, first): (Range<usize>, u32)| Product {
                weight: slice(weight, first, each),
                act: *act,
                rows: Some(rows[run.clone()].iter().map(|row| row - first).collect()),
                out: out.slice_width(run.start as u32, run.len() as u32),
            };
            same_slice(rows, each).into_iter().map(part).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_program::{Act, BufferId, DType};

    fn tensor(dtype: DType, rows: u32, width: u32) -> Tensor {
        Tensor::dense(BufferId(1), 0, dtype, rows, width)
    }

    #[test]
    fn slices_are_whole_tiles_below_the_limit_and_cover_every_row_once() {
        let weight = tensor(DType::Q8_0, 1000, 256);
        let limit = 100_000;
        let product = Product::new(weight, tensor(DType::F32, 3, 1000));
        let op = Op::MatMul { x: tensor(DType::F32, 3, 256), products: vec![product] };
        let mut next = 0;
        for part in windowed(&op, limit) {
            let Op::MatMul { products, .. } = part else { panic!("another op") };
            for Product { weight: slice, out, .. } in products {
                assert_eq!(slice.offset, weight.slice_rows(next, 1).offset);
                assert_eq!((out.offset, out.width), (u64::from(next) * 4, slice.rows));
                assert!(packed::bytes(DType::Q8_0, slice.rows, 256) <= limit);
                assert!(slice.rows % 32 == 0 || next + slice.rows == 1000);
                next += slice.rows;
            }
        }
        assert_eq!(next, 1000);
    }

    #[test]
    fn chosen_rows_are_counted_from_their_slice() {
        let weight = tensor(DType::F32, 96, 64);
        let rows = [70, 95, 3, 2, 40].into();
        let product = Product { rows: Some(rows), ..Product::new(weight, tensor(DType::F32, 1, 5)) };
        let op = Op::MatMul { x: tensor(DType::F32, 1, 64), products: vec![product] };
        let parts = windowed(&op, 8192);
        let found: Vec<(u64, Vec<u32>, u64)> = parts
            .iter()
            .map(|part| {
                let Op::MatMul { products, .. } = part else { panic!("another op") };
                let Product { weight, rows, out, .. } = &products[0];
                (weight.offset, rows.as_ref().map_or(vec![], |rows| rows.to_vec()), out.offset)
            })
            .collect();
        let row = 64 * 4;
        assert_eq!(found, [(64 * row, vec![6, 31], 0), (0, vec![3, 2], 8), (32 * row, vec![8], 16)]);
    }

    #[test]
    fn what_fits_stays_whole() {
        let weight = tensor(DType::Q4_K, 64, 256);
        let op = Op::SwiGlu {
            x: tensor(DType::F32, 1, 256),
            gate: weight,
            up: weight,
            acts: Act::for_weights([weight; 2]),
            out: tensor(DType::F32, 1, 64),
        };
        assert_eq!(windowed(&op, packed::bytes(DType::Q4_K, 64, 256)).len(), 1);
        assert_eq!(windowed(&op, packed::bytes(DType::Q4_K, 64, 256) - 1).len(), 2);
    }
}
