//! Copies of weights in the order that the kernels read best, made when a program is prepared or first
//! multiplies with them.
//!
//! ```text
//! imported tensor:   │ row 0 │ row 1 │ … │ row 7 │ row 8 │ …         │ rows left over │
//!                     └──────────┬─────────────┘
//! repacked:          │  group 0, interleaved    │ group 1 │ … │       (stay where they are)
//! ```
//!
//! A group is as large as its eight rows, so a copy takes what the tensor takes, and the
//! region it came from is told to let go of its pages. Rows that are looked up one by one are
//! still read there.

use crate::cache::Kept;
use crate::kernels::{WIDTH, interleave};
use crate::memory::{Own, View};
use crate::pool::Pool;
use std::ops::Range;

/// Bytes that are copied before their originals are let go of.
const PART_BYTES: usize = 16 << 20;

/// See the module.
pub(crate) struct Repacked {
    bytes: Storage,
    group_bytes: usize,
    groups: usize,
}

enum Storage {
    Own(Own),
    Kept(Kept),
}

/// Groups as a product reads them.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    start: *const u8,
    group_bytes: usize,
    count: usize,
}

// SAFETY: an address and a shape; items only read through it.
unsafe impl Send for Groups {}
// SAFETY: as above.
unsafe impl Sync for Groups {}

impl Groups {
    /// Address of the group whose first row is `row`, where there is one.
    pub(crate) fn at(&self, row: usize) -> Option<*const u8> {
        let group = row / WIDTH;
        (row.is_multiple_of(WIDTH) && group < self.count)
            .then(|| self.start.wrapping_add(group * self.group_bytes))
    }
}

impl Repacked {
    /// Bytes of a copy of `weight`; none where it has no whole group or is not of blocks.
    pub(crate) fn bytes(weight: &View) -> Option<usize> {
        let groups = weight.rows / WIDTH;
        (weight.dtype.is_quantized() && groups > 0).then(|| groups * WIDTH * row_bytes(weight))
    }

    /// A copy of a weight whose rows follow each other; none where memory is short. `copied` is
    /// told of each part of the weight, in bytes from its start, that is not needed any more.
    ///
    /// # Safety
    ///
    /// The view is of validated, dense rows that nothing writes meanwhile.
    pub(crate) unsafe fn new(
        weight: &View,
        pool: &Pool,
        mut copied: impl FnMut(Range<usize>),
    ) -> Option<Repacked> {
        let (bytes, group_bytes) = (Repacked::bytes(weight)?, WIDTH * row_bytes(weight));
        let own = Own::streamed(bytes)?;
        let to = Groups { start: own.start(), group_bytes, count: bytes / group_bytes };
        // A megabyte or so an item.
        let step = (1 << 20) / group_bytes + 1;
        // Original and copy are both in memory for a part of the weight only.
        let part = PART_BYTES / group_bytes + 1;
        for first in (0..to.count).step_by(part) {
            let end = to.count.min(first + part);
            pool.run((end - first).div_ceil(step), &|_, item| {
                for group in first + item * step..end.min(first + (item + 1) * step) {
                    let Some(start) = to.at(group * WIDTH) else { continue };
                    // SAFETY: the weight's rows are dense, so a group's eight lie one after the
                    // other; the copy has room for every group, and each item has its own.
                    let (from, to) = unsafe {
                        (
                            std::slice::from_raw_parts(weight.row_bytes(group * WIDTH), group_bytes),
                            std::slice::from_raw_parts_mut(start.cast_mut(), group_bytes),
                        )
                    };
                    interleave(weight.dtype, from, to);
                }
            });
            copied(first * group_bytes..end * group_bytes);
        }
        Some(Repacked { bytes: Storage::Own(own), group_bytes, groups: to.count })
    }

    /// A copy that the cache has kept of `weight`.
    pub(crate) fn kept(weight: &View, kept: Kept) -> Repacked {
        let group_bytes = WIDTH * row_bytes(weight);
        let groups = kept.bytes().len() / group_bytes;
        Repacked { bytes: Storage::Kept(kept), group_bytes, groups }
    }

    /// The groups, one after the other.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: the memory is ours, that long, and not written once a `Repacked` has it.
            Storage::Own(own) => unsafe { std::slice::from_raw_parts(own.start(), own.len()) },
            Storage::Kept(kept) => kept.bytes(),
        }
    }

    /// What a product with the first `rows` of its rows reads.
    pub(crate) fn groups(&self, rows: usize) -> Groups {
        Groups {
            start: self.as_slice().as_ptr(),
            group_bytes: self.group_bytes,
            count: self.groups.min(rows / WIDTH),
        }
    }

    /// Bytes it takes.
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }
}

fn row_bytes(weight: &View) -> usize {
    weight.width / weight.dtype.block_len() * weight.dtype.block_bytes()
}
