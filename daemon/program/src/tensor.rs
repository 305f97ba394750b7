//! Tensors: typed two-dimensional views of device buffers.

use std::fmt;

/// A device buffer. Handed out by [`Device::create`](crate::Device::create) and
/// [`Device::import`](crate::Device::import); never reused while the device lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Element types. The quantized ones are llama.cpp's block formats, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum DType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 32 values: f16 scale, 32 signed bytes.
    Q8_0,
    /// 32 values: f16 scale, 16 bytes of nibbles; value = scale * (nibble - 8).
    Q4_0,
    /// 32 values: f16 scale, f16 minimum, 16 bytes of nibbles; value = scale * nibble + minimum.
    Q4_1,
    /// 32 values: f16 scale, 32 high bits, 16 bytes of nibbles; value = scale * (q - 16).
    Q5_0,
    /// 256 values: f16 scale, f16 minimum scale, eight 6-bit (scale, minimum) pairs, nibbles.
    Q4_K,
    /// As `Q4_K` with a fifth bit for each value.
    Q5_K,
    /// 256 values: 4 low bits, 2 high bits, sixteen i8 scales, f16 scale; value = d * scale * (q - 32).
    Q6_K,
}

impl DType {
    /// Every element type, for suites that must cover all.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
    ];

    /// Values in one block (1 for plain floats).
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 => 32,
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
        }
    }

    /// Bytes of `values` consecutive values; `None` where that is no whole number of blocks
    /// or does not fit in 64 bits.
    pub fn bytes_of(self, values: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !values.is_multiple_of(block) {
            return None;
        }
        (values / block).checked_mul(self.block_bytes() as u64)
    }

    /// ggml's name for it, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::Q8_0 => "Q8_0",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
        }
    }

    /// Its number in a GGUF file.
    pub const fn ggml_id(self) -> u32 {
        match self {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::BF16 => 30,
            DType::Q8_0 => 8,
            DType::Q4_0 => 2,
            DType::Q4_1 => 3,
            DType::Q5_0 => 6,
            DType::Q4_K => 12,
            DType::Q5_K => 13,
            DType::Q6_K => 14,
        }
    }

    /// The type with this number in a GGUF file, if known here.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.ggml_id() == id)
    }

    /// True for the block formats, whose rows cannot be written by an op.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A view of `rows` rows of `width` values in one buffer.
///
/// ```text
/// offset ─▶ │ width values │ gap │ width values │ gap │ …      (rows)
///           └────── stride values ──────┘
/// ```
///
/// Activations hold a token column a row; weights hold an output a row (ggml's order). A
/// head's view of a token row is the same buffer with more rows and a smaller width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// The buffer it lies in.
    pub buffer: BufferId,
    /// Byte offset of the first value.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Number of rows.
    pub rows: u32,
    /// Values in a row.
    pub width: u32,
    /// Values from the start of one row to the start of the next (at least `width`).
    pub stride: u32,
}

impl Tensor {
    /// A dense tensor: rows follow each other without gaps.
    pub fn dense(buffer: BufferId, offset: u64, dtype: DType, rows: u32, width: u32) -> Self {
        Tensor { buffer, offset, dtype, rows, width, stride: width }
    }

    /// The rows `first .. first + count`. The caller keeps within `rows`; programs are
    /// validated again before they run.
    pub fn slice_rows(&self, first: u32, count: u32) -> Self {
        let row_bytes = self.dtype.bytes_of(u64::from(self.stride)).unwrap_or(0);
        Tensor { offset: self.offset + u64::from(first) * row_bytes, rows: count, ..*self }
    }

    /// The values `first .. first + width` of every row.
    pub fn slice_width(&self, first: u32, width: u32) -> Self {
        let skip = self.dtype.bytes_of(u64::from(first)).unwrap_or(0);
        Tensor { offset: self.offset + skip, width, ..*self }
    }

    /// Each row cut into `parts` rows of equal width. Needs rows that follow each other
    /// without gaps (`stride == width`), so that the parts are evenly spaced.
    pub fn split_rows(&self, parts: u32) -> Self {
        debug_assert_eq!(self.stride, self.width);
        debug_assert_eq!(self.width % parts, 0);
        let width = self.width / parts;
        Tensor { rows: self.rows * parts, width, stride: width, ..*self }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows as usize * self.width as usize
    }

    /// True where it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The byte range from the first to the last value, or `None` where rows are no whole
    /// blocks or the end does not fit in 64 bits.
    pub fn byte_range(&self) -> Option<std::ops::Range<u64>> {
        if self.is_empty() {
            return Some(self.offset..self.offset);
        }
        let row = self.dtype.bytes_of(u64::from(self.width))?;
        let step = self.dtype.bytes_of(u64::from(self.stride))?;
        let end = step.checked_mul(u64::from(self.rows) - 1)?.checked_add(row)?.checked_add(self.offset)?;
        Some(self.offset..end)
    }

    /// True where the two views share a byte. Views that interleave with the same stride
    /// (query and gate halves of one projection) are told apart.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        if self.buffer != other.buffer {
            return false;
        }
        let (Some(a), Some(b)) = (self.byte_range(), other.byte_range()) else {
            return true;
        };
        if a.start >= b.end || b.start >= a.end {
            return false;
        }
        let bytes = |t: &Tensor, n: u32| t.dtype.bytes_of(u64::from(n));
        let (Some(step), Some(step_b)) = (bytes(self, self.stride), bytes(other, other.stride)) else {
            return true;
        };
        let (Some(row), Some(row_b)) = (bytes(self, self.width), bytes(other, other.width)) else {
            return true;
        };
        if step != step_b || step == 0 {
            return true;
        }
        let phase = (other.offset % step + step - self.offset % step) % step;
        // Within one period, `self` covers [0, row) and `other` covers [phase, phase + row_b).
        !(phase >= row && phase + row_b <= step)
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{} x {}]", self.dtype, self.rows, self.width)?;
        if self.stride != self.width {
            write!(f, "/{}", self.stride)?;
        }
        write!(f, "@{}+{}", self.buffer.0, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_halves_do_not_overlap() {
        let whole = Tensor::dense(BufferId(1), 0, DType::F32, 6, 16).split_rows(1);
        let query = whole.slice_width(0, 8);
        let gate = whole.slice_width(8, 8);
        assert!(!query.overlaps(&gate));
        assert!(!gate.overlaps(&query));
        assert!(query.overlaps(&whole));
        assert!(query.overlaps(&query.slice_rows(2, 2)));
        assert!(!query.slice_rows(0, 2).overlaps(&query.slice_rows(2, 2)));
    }

    #[test]
    fn byte_range_of_lying_shapes_is_none_or_in_64_bits() {
        let t = Tensor {
            buffer: BufferId(0),
            offset: u64::MAX - 3,
            dtype: DType::F32,
            rows: 2,
            width: 1,
            stride: 1,
        };
        assert_eq!(t.byte_range(), None);
        let t = Tensor::dense(BufferId(0), 0, DType::Q4_K, 1, 100);
        assert_eq!(t.byte_range(), None);
    }
}
