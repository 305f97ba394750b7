//! What of a product lies in on-chip memory: how many columns at once, how many weight tiles in
//! a transfer, and whether SwiGLU's two products are one op.
//!
//! ```text
//! VTCM  │ columns: described, rounded │ room of worker 0 │ room of worker 1 │ ...
//! room  │ set of tiles in use │ set under way │ outputs of a set, all columns │
//! ```
//!
//! All weights of a product go by once for every group of columns that fits at once, so columns
//! come first, then tiles. The executor counts the same way (`dsp/run_product.c`) and refuses what does
//! not fit; a plan changes how often bytes move, never a result.

use crate::{abi, packed};
use tandem_program::DType;

/// The DSP's `struct column`, twice: for each rounding of a fused product. A 32-bit DSP needs half.
const DESCRIBED: u64 = 2 * 32;
/// Values of a packed tile's row: outputs of a tile.
const LANES: u64 = packed::LANES as u64;
/// Most columns of a batch of tasks (`POOL_TASKS`).
const MOST_COLUMNS: u32 = 0xf_ffff;
/// Sets of tiles a worker should get, so that all end at about the same time.
const SHARE: u64 = 4;

/// How a product uses on-chip memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Columns rounded at once, from 1.
    pub columns: u32,
    /// Tiles of 32 weight rows in one DMA transfer, up to 64; 0: the weights are read where they lie.
    pub tiles: u32,
}

impl Plan {
    /// As a packet's parameters.
    pub(crate) fn params(self) -> [u32; 4] {
        [self.columns, self.tiles, 0, 0]
    }
}

/// A product as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Type of the weight.
    pub weight: DType,
    /// Type of the weight fused with it (SwiGLU's `up`).
    pub fused: Option<DType>,
    /// Outputs of a column.
    pub outputs: u32,
    /// Only some rows: their tiles are read where they lie.
    pub chosen: bool,
}

/// Plans for one session's on-chip memory.
#[derive(Clone, Copy, Debug)]
pub struct Planner {
    /// Bytes of on-chip memory.
    pub vtcm: u64,
    /// Worker threads.
    pub workers: u64,
}

/// Bytes of one column of `width` inputs, rounded for this weight (`dsp/kernels/activation.c`).
fn rounded_bytes(weight: DType, width: u64) -> u64 {
    let whole = |bytes: u64| bytes.next_multiple_of(128);
    match weight {
        DType::F16 => whole(4 * width),
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 => whole(width) + 2 * whole(width / 32 * 4),
        DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            whole(width) + whole(width / 256 * 4) + whole(width / 16 * 4)
        }
        _ => 0,
    }
}

/// Types that share a rounding.
fn rounding(weight: DType) -> u32 {
    match weight {
        DType::F16 => 1,
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 => 2,
        DType::Q4_K | DType::Q5_K | DType::Q6_K => 3,
        _ => 0,
    }
}

impl Shape {
    /// A plain product over all rows of a weight.
    pub fn whole(weight: DType, outputs: u32) -> Shape {
        Shape { weight, fused: None, outputs, chosen: false }
    }

    fn tile_bytes(&self, width: u32) -> u64 {
        packed::tile_bytes(self.weight, width) + self.fused.map_or(0, |up| packed::tile_bytes(up, width))
    }

    fn tiles(&self) -> u64 {
        u64::from(self.outputs).div_ceil(LANES)
    }

    fn column_bytes(&self, width: u32) -> u64 {
        let own = rounded_bytes(self.weight, width.into());
        let other = self.fused.filter(|up| rounding(*up) != rounding(self.weight));
        own + other.map_or(0, |up| rounded_bytes(up, width.into()))
    }
}

impl Planner {
    /// Whether a plan's parts fit for this product.
    pub fn fits(&self, plan: Plan, shape: &Shape, width: u32) -> bool {
        let (columns, tiles) =
            (u64::from(plan.columns), if shape.chosen { 0 } else { u64::from(plan.tiles) });
        let described = (DESCRIBED * columns).next_multiple_of(128);
        let room = 2 * tiles * shape.tile_bytes(width) + columns * tiles * LANES * 4;
        described + columns * shape.column_bytes(width) + self.workers * room <= self.vtcm
    }

    /// Most columns, up to `rows`, with this many tiles in a transfer; 0 where not even one fits.
    fn most_columns(&self, tiles: u32, shapes: &[Shape], width: u32, rows: u32) -> u32 {
        let fits = |columns| shapes.iter().all(|s| self.fits(Plan { columns, tiles }, s, width));
        let (mut low, mut high) = (0, rows.min(MOST_COLUMNS));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// A plan for products of the same `rows` columns of `width` inputs; the plan holds for each.
    /// Where nothing fits it is the smallest one, and the executor says what is missing.
    pub fn plan(&self, shapes: &[Shape], width: u32, rows: u32) -> Plan {
        let in_place = self.most_columns(0, shapes, width, rows);
        let by_dma = self.most_columns(1, shapes, width, rows);
        // Each pass over the columns carries all weights once more.
        let passes = |columns: u32| if columns == 0 { u32::MAX } else { rows.div_ceil(columns) };
        if by_dma == 0 || passes(by_dma) > passes(in_place) {
            return Plan { columns: even(rows, in_place), tiles: 0 };
        }
        let columns = even(rows, by_dma);
        let fits = |tiles: u32| shapes.iter().all(|s| self.fits(Plan { columns, tiles }, s, width));
        let share = shapes.iter().map(|s| s.tiles().div_ceil(self.workers * SHARE)).max().unwrap_or(1);
        let most = share.clamp(1, abi::TILES.into()) as u32;
        let tiles = (1..=most).rev().find(|tiles| fits(*tiles)).unwrap_or(1);
        Plan { columns, tiles }
    }

    /// Bytes that a product moves: its weights for every pass, its outputs once.
    pub fn bytes(&self, plan: Plan, shape: &Shape, width: u32, rows: u32) -> u64 {
        let passes = u64::from(rows.div_ceil(plan.columns.max(1)));
        passes * shape.tiles() * shape.tile_bytes(width) + 4 * u64::from(rows) * u64::from(shape.outputs)
    }

    /// Whether SwiGLU is one op: unless both products at once leave room for so few columns that
    /// carrying the weights more often costs more than the products' results do.
    pub fn fuses(&self, gate: DType, up: DType, outputs: u32, width: u32, rows: u32) -> bool {
        let bytes = |shape: Shape| self.bytes(self.plan(&[shape], width, rows), &shape, width, rows);
        let both = Shape { weight: gate, fused: Some(up), outputs, chosen: false };
        if self.most_columns(0, &[both], width, 1) == 0 {
            return false;
        }
        // The separate op reads both results and writes a third.
        let product = 3 * 4 * u64::from(rows) * u64::from(outputs);
        bytes(both) <= bytes(Shape::whole(gate, outputs)) + bytes(Shape::whole(up, outputs)) + product
    }
}

/// The columns of the fewest passes, spread evenly.
pub(crate) fn even(rows: u32, most: u32) -> u32 {
    if most == 0 { 1 } else { rows.div_ceil(rows.div_ceil(most)).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [DType; 7] =
        [DType::F32, DType::F16, DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

    fn planners() -> impl Iterator<Item = Planner> {
        (16..=23).flat_map(|bits| [1, 2, 4, 8].map(|workers| Planner { vtcm: 1 << bits, workers }))
    }

    #[test]
    fn plans_fit_every_budget_from_64_kib_to_8_mib() {
        for planner in planners() {
            for weight in TYPES {
                for (width, rows, outputs) in
                    [(256, 1, 32), (1024, 5, 100), (2560, 64, 9216), (9216, 448, 2560), (2560, 1, 248_320)]
                {
                    let shape = Shape::whole(weight, outputs);
                    let plan = planner.plan(&[shape], width, rows);
                    assert!(
                        plan.columns >= 1 && plan.columns <= rows && plan.tiles <= abi::TILES,
                        "{plan:?}"
                    );
                    assert!(planner.fits(plan, &shape, width), "{planner:?} {shape:?} {width}: {plan:?}");
                }
            }
        }
    }

    #[test]
    fn more_memory_never_means_more_passes() {
        for weight in TYPES {
            for workers in [1, 2, 4, 8] {
                let shape = Shape::whole(weight, 2560);
                let passes = |bits: u32| {
                    let planner = Planner { vtcm: 1 << bits, workers };
                    448u32.div_ceil(planner.plan(&[shape], 2560, 448).columns)
                };
                for bits in 16..23 {
                    assert!(
                        passes(bits + 1) <= passes(bits),
                        "{weight:?}, {workers} workers, 2^{bits} bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn the_phone_carries_weights_of_a_prefill_pass_once_and_by_dma() {
        // 8 MiB, a 4-bit 4B model: 448 columns as in the paper's prefill batches.
        let planner = Planner { vtcm: 8 << 20, workers: 4 };
        for (width, outputs) in [(2560, 9216), (9216, 2560)] {
            let plan = planner.plan(&[Shape::whole(DType::Q4_0, outputs)], width, 448);
            assert_eq!(plan.columns, 448, "{width} to {outputs}: {plan:?}");
            assert!(plan.tiles >= 1, "{width} to {outputs}: {plan:?}");
        }
        assert!(planner.fuses(DType::Q4_0, DType::Q4_0, 9216, 2560, 448));
        assert!(planner.fuses(DType::Q4_0, DType::Q4_0, 9216, 2560, 1));
    }

    #[test]
    fn a_tight_budget_reads_weights_in_place_and_splits_swiglu() {
        let tight = Planner { vtcm: 64 << 10, workers: 2 };
        assert_eq!(tight.plan(&[Shape::whole(DType::Q6_K, 9216)], 4096, 1), Plan { columns: 1, tiles: 0 });
        // Rounded both ways a column of 16,384 inputs is larger than half of what there is.
        let roomy = Planner { vtcm: 8 << 20, workers: 2 };
        assert!(!tight.fuses(DType::Q8_0, DType::Q6_K, 4096, 12_288, 4));
        assert!(roomy.fuses(DType::Q8_0, DType::Q6_K, 4096, 12_288, 4));
    }

    #[test]
    fn where_nothing_fits_the_smallest_plan_is_asked_for() {
        let tight = Planner { vtcm: 64 << 10, workers: 2 };
        let shape = Shape::whole(DType::F16, 64);
        let plan = tight.plan(&[shape], 1 << 20, 7);
        assert_eq!(plan, Plan { columns: 1, tiles: 0 });
        assert!(!tight.fits(plan, &shape, 1 << 20));
    }

    #[test]
    fn a_plan_for_several_products_fits_each() {
        let planner = Planner { vtcm: 256 << 10, workers: 2 };
        let shapes = [
            Shape::whole(DType::Q4_K, 4096),
            Shape::whole(DType::F32, 32),
            Shape { chosen: true, ..Shape::whole(DType::Q6_K, 90) },
        ];
        let plan = planner.plan(&shapes, 1024, 40);
        assert!(shapes.iter().all(|shape| planner.fits(plan, shape, 1024)), "{plan:?}");
    }
}
