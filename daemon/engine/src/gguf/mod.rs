//! GGUF model files, read through one shared mapping.
//!
//! [`Gguf::open`] maps the file, checks every count, length, offset and shape in
//! it before anything is allocated for them, and hands out borrowed views:
//! [`Metadata`] by key and type, [`TensorInfo`] by name, weights as slices of the
//! map. The mapping is shared ([`Gguf::map`]), so a device imports the weights
//! without a second copy, however many sequences use them.
//!
//! ```text
//! "GGUF" u32 version  u64 tensor count  u64 key count
//! key count    x { u64 length, key bytes, u32 type, value }
//! tensor count x { u64 length, name bytes, u32 rank, rank x u64 dims, u32 type, u64 offset }
//! padding to general.alignment
//! tensor data, each tensor at (data start + offset), offsets multiples of the alignment
//! ```
//!
//! All integers are little-endian. A file is refused with a [`GgufError`] that
//! names the key or tensor at fault; the limits it states are the constants here.

mod error;
mod map;
mod metadata;
mod reader;
mod tensor;
mod types;
mod writer;

use std::path::Path;
use std::sync::Arc;

pub use error::GgufError;
pub use map::Mapping;
pub use metadata::{Array, Metadata, Strings, Value, ValueType};
pub use tandem_program::DType;
pub use tensor::TensorInfo;
pub use writer::{GgufWriter, WriteError};

/// Most metadata keys a file may have; real files have under 100.
pub const MAX_KEYS: u64 = 16_384;
/// Longest metadata key, bytes.
pub const MAX_KEY_BYTES: u64 = 512;
/// Most tensors a file may have; real files have under 2,000.
pub const MAX_TENSORS: u64 = 65_536;
/// Longest tensor name, bytes.
pub const MAX_NAME_BYTES: u64 = 127;
/// Most dimensions a tensor may have.
pub const MAX_RANK: u32 = 4;
/// Longest header (metadata and tensor table), bytes. The largest vocabulary in
/// use takes 11 MB.
pub const MAX_HEADER_BYTES: u64 = 32 << 20;
/// Tensor alignment where the file states none, bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// An open, checked GGUF file.
#[derive(Debug, Clone)]
pub struct Gguf {
    metadata: Metadata,
    tensors: Arc<tensor::TensorTable>,
    map: Arc<Mapping>,
}

impl Gguf {
    /// Maps and checks the file at `path`.
    ///
    /// The file must not be truncated or rewritten while it is open: see [`Mapping`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::from_map(Arc::new(Mapping::open(path.as_ref())?))
    }

    /// Checks a file held in memory; copies the bytes once into a page-aligned map.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GgufError> {
        Self::from_map(Arc::new(Mapping::copy_of(bytes)?))
    }

    /// Checks an already mapped file.
    pub fn from_map(map: Arc<Mapping>) -> Result<Self, GgufError> {
        let header = reader::read_header((*map).as_ref())?;
        Ok(Self {
            metadata: Metadata::new(Arc::clone(&map), header.entries),
            tensors: Arc::new(header.tensors),
            map,
        })
    }

    /// The metadata.
    pub fn meta(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor called `name`, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor called `name`, which must have exactly `shape` (ggml order,
    /// fastest dimension first).
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, GgufError> {
        let info = self.tensor(name).ok_or_else(|| GgufError::MissingTensor { tensor: name.to_owned() })?;
        if info.shape != shape {
            return Err(GgufError::Shape {
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                actual: info.shape.clone(),
            });
        }
        Ok(info)
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The bytes of a tensor of this file, in its element type's block layout.
    ///
    /// # Panics
    /// If `info` comes from a different, longer file.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        &(*self.map).as_ref()[info.offset..info.offset + info.bytes]
    }

    /// The whole mapping; [`TensorInfo::offset`] is an index into it.
    pub fn map(&self) -> Arc<Mapping> {
        Arc::clone(&self.map)
    }
}
