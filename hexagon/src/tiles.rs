//! What of a product in tiles of 32 x 32 halves lies in on-chip memory at once.
//!
//! ```text
//! VTCM  │ scales │ results: columns x rows │ activations: columns x depth │ weights: rows x depth │ rooms
//! ```
//!
//! All weights are unpacked once for every group of columns that is there at once, by as many
//! workers as there are blocks of rows, so a plan seeks few groups, and a block of rows a worker.
//! The executor counts the same way (`dsp/run_tiles.c`) and refuses what does not fit; a plan
//! changes how often bytes move, never a result.

use crate::packed;
use crate::planner::{Planner, even};
use tandem_program::Tensor;

/// Rows, columns and values along the width of a tile.
const TILE: u32 = 32;
/// Bytes of a tile.
const TILE_BYTES: u64 = 2048;

/// How a product in tiles uses on-chip memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePlan {
    /// Blocks of 32 columns at once, from 1.
    pub columns: u32,
    /// Blocks of 32 weight rows at once, from 1.
    pub rows: u32,
    /// Tiles along the width at once: all, or fewer with one block of each.
    pub depth: u32,
    /// Packed weights come by DMA; else they are read where they lie.
    pub dma: bool,
}

impl TilePlan {
    /// As a packet's parameters.
    pub(crate) fn params(self) -> [u32; 4] {
        [self.columns, self.rows, self.depth, self.dma.into()]
    }
}

/// A product in tiles as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct TileShape {
    outputs: u32,
    width: u32,
    /// Weights of a row of outputs: 2 for the fused SwiGLU.
    weights: u64,
    /// Bytes of 32 packed rows: of all weights, and of the largest.
    bytes: u64,
    largest: u64,
}

impl TileShape {
    /// A product with one weight, or SwiGLU with two of equal shape.
    pub fn new(weights: &[Tensor]) -> TileShape {
        let bytes = || weights.iter().map(|w| packed::tile_bytes(w.dtype, w.width));
        TileShape {
            outputs: weights.first().map_or(0, |w| w.rows),
            width: weights.first().map_or(0, |w| w.width),
            weights: weights.len() as u64,
            bytes: bytes().sum(),
            largest: bytes().max().unwrap_or(0),
        }
    }

    fn depth(&self) -> u32 {
        self.width.div_ceil(TILE)
    }

    fn rows(&self) -> u32 {
        self.outputs.div_ceil(TILE)
    }
}

/// The largest of `1 ..= most` that fits, given that all smaller ones do; 0 where none does.
fn most(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

impl Planner {
    /// Whether a plan's parts fit for this product of `columns` columns.
    pub fn fits_tiles(&self, plan: TilePlan, shape: &TileShape, columns: u32) -> bool {
        let across = u64::from(plan.columns.min(columns.div_ceil(TILE)));
        let down = u64::from(plan.rows.min(shape.rows())) * shape.weights;
        let tiles = 1 + across * down + (across + down) * u64::from(plan.depth);
        let rooms = if plan.dma { 2 * self.workers * shape.largest } else { 0 };
        tiles * TILE_BYTES + rooms <= self.vtcm
    }

    /// A plan for products of the same `columns` columns; it holds for each. Where not even a tile
    /// of each kind fits it is the smallest one, and the executor says what is missing.
    pub fn plan_tiles(&self, shapes: &[TileShape], columns: u32) -> TilePlan {
        let depth = shapes.iter().map(TileShape::depth).max().unwrap_or(1);
        let rows = shapes.iter().map(TileShape::rows).max().unwrap_or(1).max(1);
        let blocks = columns.div_ceil(TILE).max(1);
        let fits = |plan| shapes.iter().all(|s| self.fits_tiles(plan, s, columns));
        let workers = self.workers.clamp(1, u64::from(rows)) as u32;
        // Every pass over the columns unpacks all weights, in turns where workers are more than
        // the blocks of rows that are there at once.
        let mut best: Option<(u32, TilePlan)> = None;
        for (rows, dma) in (1..=workers).rev().flat_map(|rows| [(rows, true), (rows, false)]) {
            let columns = most(blocks, |columns| fits(TilePlan { columns, rows, depth, dma }));
            if columns > 0 {
                let turns = blocks.div_ceil(columns) * workers.div_ceil(rows);
                if best.is_none_or(|(least, _)| turns < least) {
                    best = Some((turns, TilePlan { columns: even(blocks, columns), rows, depth, dma }));
                }
            }
        }
        if let Some((_, plan)) = best {
            return TilePlan { rows: most(rows, |rows| fits(TilePlan { rows, ..plan })), ..plan };
        }
        let part = |depth| TilePlan { columns: 1, rows: 1, depth, dma: false };
        part(even(depth, most(depth, |depth| fits(part(depth)))))
    }

    /// Bytes of packed weights that a product moves.
    pub fn bytes_in_tiles(&self, plan: TilePlan, shape: &TileShape, columns: u32) -> u64 {
        let passes = u64::from(columns.div_ceil(TILE).div_ceil(plan.columns.max(1)));
        passes * u64::from(shape.rows()) * shape.bytes
    }

    /// Whether SwiGLU in tiles is one op: unless both weights at once leave room for so few columns
    /// that carrying them more often costs more than the products' results do, or only for a part
    /// of their sums.
    pub fn fuses_tiles(&self, weights: &[Tensor; 2], columns: u32) -> bool {
        let shapes = [&weights[..], &weights[..1], &weights[1..]].map(TileShape::new);
        let plans = shapes.map(|shape| self.plan_tiles(&[shape], columns));
        if plans[0].depth < shapes[0].depth() {
            return false;
        }
        let [both, gate, up] = [0, 1, 2].map(|i| self.bytes_in_tiles(plans[i], &shapes[i], columns));
        both <= gate + up + 3 * 4 * u64::from(columns) * u64::from(shapes[0].outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_program::{BufferId, DType};

    fn weight(dtype: DType, rows: u32, width: u32) -> Tensor {
        Tensor::dense(BufferId(1), 0, dtype, rows, width)
    }

    fn planners() -> impl Iterator<Item = Planner> {
        (16..=23).flat_map(|bits| [1, 2, 4, 8].map(|workers| Planner { vtcm: 1 << bits, workers }))
    }

    /// Columns, outputs, inputs.
    const SHAPES: [(u32, u32, u32); 6] =
        [(1, 32, 256), (5, 100, 1024), (64, 9216, 2560), (448, 2560, 9216), (575, 1, 17), (1, 9216, 16_384)];

    #[test]
    fn plans_fit_every_budget_from_64_kib_to_8_mib() {
        for planner in planners() {
            for dtype in DType::ALL {
                for (columns, outputs, width) in SHAPES {
                    if !(width as usize).is_multiple_of(dtype.block_len()) {
                        continue;
                    }
                    let one = weight(dtype, outputs, width);
                    for shape in [TileShape::new(&[one]), TileShape::new(&[one, one])] {
                        let plan = planner.plan_tiles(&[shape], columns);
                        let what = format!("{planner:?} {dtype} {outputs} x {width}, {columns}: {plan:?}");
                        assert!(planner.fits_tiles(plan, &shape, columns), "{what}");
                        let whole = plan.depth == width.div_ceil(32);
                        let part = TilePlan { columns: 1, rows: 1, dma: false, ..plan };
                        assert!(whole || plan.depth > 0 && plan == part, "{what}");
                        assert!(plan.columns >= 1 && plan.columns <= columns.div_ceil(32), "{what}");
                        assert!(plan.rows >= 1 && plan.rows <= outputs.div_ceil(32), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_phone_unpacks_weights_of_a_prefill_pass_once_or_twice_with_all_workers() {
        let planner = Planner { vtcm: 8 << 20, workers: 4 };
        for (width, outputs, passes) in [(2560, 9216, 1), (9216, 2560, 2)] {
            let shape = TileShape::new(&[weight(DType::Q4_0, outputs, width)]);
            let plan = planner.plan_tiles(&[shape], 448);
            assert!(plan.dma && plan.depth == width / 32 && plan.rows >= 4, "{plan:?}");
            assert_eq!(14u32.div_ceil(plan.columns), passes, "{plan:?}");
        }
        assert!(planner.fuses_tiles(&[weight(DType::Q4_0, 9216, 2560); 2], 448));
    }

    #[test]
    fn a_tight_budget_takes_sums_in_parts_and_splits_swiglu() {
        let tight = Planner { vtcm: 64 << 10, workers: 2 };
        let wide = weight(DType::Q6_K, 320, 4096);
        let plan = tight.plan_tiles(&[TileShape::new(&[wide])], 200);
        // 32 tiles: the scales and a result are two, the others activations and weights.
        assert_eq!(plan, TilePlan { columns: 1, rows: 1, depth: 15, dma: false });
        assert!(!tight.fuses_tiles(&[wide; 2], 200));
        assert!(Planner { vtcm: 8 << 20, workers: 2 }.fuses_tiles(&[wide; 2], 200));
    }

    #[test]
    fn where_no_tile_fits_the_smallest_plan_is_asked_for() {
        let none = Planner { vtcm: 4096, workers: 2 };
        let shape = TileShape::new(&[weight(DType::F16, 64, 640)]);
        let plan = none.plan_tiles(&[shape], 7);
        assert_eq!(plan, TilePlan { columns: 1, rows: 1, depth: 1, dma: false });
        assert!(!none.fits_tiles(plan, &shape, 7));
        assert!(Planner { vtcm: 4 * 2048, workers: 2 }.fits_tiles(plan, &shape, 7));
    }

    #[test]
    fn a_plan_for_several_products_fits_each() {
        let planner = Planner { vtcm: 512 << 10, workers: 2 };
        let shapes = [weight(DType::Q4_K, 4096, 1024), weight(DType::F32, 31, 1024)];
        let shapes = shapes.map(|w| TileShape::new(&[w]));
        let plan = planner.plan_tiles(&shapes, 100);
        assert!(shapes.iter().all(|shape| planner.fits_tiles(plan, shape, 100)), "{plan:?}");
    }
}
