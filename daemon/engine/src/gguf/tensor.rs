//! The tensor table and the checks on it.

use std::collections::HashMap;

use super::types::unsupported_name;
use super::{DType, GgufError};

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_norm.weight`.
    pub name: String,
    /// How its elements are stored.
    pub dtype: DType,
    /// Dimensions in ggml order, fastest first; one to four, none zero.
    pub shape: Vec<usize>,
    /// Where its data starts, bytes from the start of the file (and of the mapping).
    pub offset: usize,
    /// Size of its data, bytes.
    pub bytes: usize,
}

impl TensorInfo {
    /// Length of a row: the fastest dimension.
    pub fn row(&self) -> usize {
        self.shape[0]
    }

    /// Number of rows: the product of the other dimensions.
    pub fn rows(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A tensor as the file's table states it, before its checks.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) type_id: u32,
    /// From the start of the data section.
    pub(super) offset: u64,
}

impl Declared {
    /// Element type and size in bytes, from shape and type alone.
    pub(super) fn size(&self) -> Result<(DType, u64), GgufError> {
        if let Some(axis) = self.shape.iter().position(|&d| d == 0) {
            return Err(GgufError::ZeroDimension {
                tensor: self.name.clone(),
                axis,
                shape: self.shape.clone(),
            });
        }
        let dtype = DType::from_ggml_id(self.type_id).ok_or_else(|| GgufError::ElementType {
            tensor: self.name.clone(),
            id: self.type_id,
            name: unsupported_name(self.type_id),
            supported: DType::ALL.map(DType::name).join(", "),
        })?;
        let block = dtype.block_len() as u64;
        if !self.shape[0].is_multiple_of(block) {
            return Err(GgufError::PartialBlock {
                tensor: self.name.clone(),
                row: self.shape[0],
                element: dtype.name(),
                block,
            });
        }
        let bytes = self
            .shape
            .iter()
            .try_fold(1u64, |product, &d| product.checked_mul(d))
            .and_then(|elements| (elements / block).checked_mul(dtype.block_bytes() as u64))
            .filter(|&bytes| bytes <= isize::MAX as u64)
            .ok_or_else(|| GgufError::Overflow { tensor: self.name.clone(), shape: self.shape.clone() })?;
        Ok((dtype, bytes))
    }
}

/// All tensors of a file, by order and by name.
#[derive(Debug, Default)]
pub(super) struct TensorTable {
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl TensorTable {
    /// Checks `declared` against a data section of `available` bytes that starts at
    /// file offset `data_start`.
    pub(super) fn checked(
        declared: Vec<Declared>,
        data_start: u64,
        available: u64,
        alignment: u64,
    ) -> Result<Self, GgufError> {
        let mut table = Self::default();
        for tensor in declared {
            let (dtype, bytes) = tensor.size()?;
            let Declared { name, shape, offset, .. } = tensor;
            if !offset.is_multiple_of(alignment) {
                return Err(GgufError::Misaligned { tensor: name, offset, alignment });
            }
            if offset.checked_add(bytes).is_none_or(|end| end > available) {
                return Err(GgufError::OutOfFile { tensor: name, offset, bytes, available });
            }
            if table.index.insert(name.clone(), table.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { tensor: name });
            }
            // Below the file's length, so everything fits a usize from here on.
            table.tensors.push(TensorInfo {
                name,
                dtype,
                shape: shape.iter().map(|&d| d as usize).collect(),
                offset: (data_start + offset) as usize,
                bytes: bytes as usize,
            });
        }
        table.check_overlap(data_start as usize)?;
        Ok(table)
    }

    fn check_overlap(&self, data_start: usize) -> Result<(), GgufError> {
        let mut order: Vec<&TensorInfo> = self.tensors.iter().collect();
        order.sort_unstable_by_key(|t| t.offset);
        for pair in order.windows(2) {
            let end = pair[0].offset + pair[0].bytes;
            if end > pair[1].offset {
                return Err(GgufError::Overlap {
                    first: pair[0].name.clone(),
                    second: pair[1].name.clone(),
                    end: (end - data_start) as u64,
                    start: (pair[1].offset - data_start) as u64,
                });
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, TensorInfo> {
        self.tensors.iter()
    }
}
