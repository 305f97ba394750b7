//! Element types and their block layout.

use std::fmt;

/// How a tensor's elements are stored. Quantized types pack a block of elements
/// that share scales; a row is a whole number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(non_camel_case_types, missing_docs)]
pub enum ElementType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl ElementType {
    /// Every supported type.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// (name, ggml id, elements in a block, bytes in a block)
    const fn row(self) -> (&'static str, u32, usize, usize) {
        match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::BF16 => ("BF16", 30, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q4_K => ("Q4_K", 12, 256, 144),
            Self::Q5_K => ("Q5_K", 13, 256, 176),
            Self::Q6_K => ("Q6_K", 14, 256, 210),
        }
    }

    /// The name ggml gives it, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The id in a GGUF file.
    pub const fn id(self) -> u32 {
        self.row().1
    }

    /// Elements in a block (1 for plain types).
    pub const fn block(self) -> usize {
        self.row().2
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        self.row().3
    }

    /// The type with this GGUF id, if supported.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id)
    }

    /// Bytes of a row of `elements`; `None` if that is no whole number of blocks
    /// or overflows.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block()) {
            return None;
        }
        (elements / self.block()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// ggml's name for a type id this engine does not read, for error texts.
pub(super) fn unsupported_name(id: u32) -> &'static str {
    match id {
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 | 29 => "an IQ type",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        34 | 35 => "a ternary type",
        39 => "MXFP4",
        _ => "unknown",
    }
}
