//! What can be wrong with a GGUF file.

use std::io;
use std::path::PathBuf;

/// Why a GGUF file was refused, or a key or tensor could not be had from it.
///
/// Names come from the file and are printed escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("cannot open model file {}: {source}", path.display())]
    Open {
        /// The path tried.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is a folder, pipe or device.
    #[error("model path {} is not a regular file", path.display())]
    NotAFile {
        /// The path tried.
        path: PathBuf,
    },
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with {found:02x?}, expected \"GGUF\"")]
    Magic {
        /// The first bytes found.
        found: Vec<u8>,
    },
    /// An unknown format version (or a big-endian file, whose version reads byte-swapped).
    #[error("GGUF version {version:#x} is not supported; versions 2 and 3, little-endian, are")]
    Version {
        /// The version field as read.
        version: u32,
    },
    /// The file ends inside the header.
    #[error("truncated GGUF: {what} needs {need} bytes at offset {offset}, the file has {have} left")]
    Truncated {
        /// What was being read, naming the key or tensor.
        what: String,
        /// Where, bytes from the file's start.
        offset: u64,
        /// Bytes needed.
        need: u64,
        /// Bytes left.
        have: u64,
    },
    /// A count or length above its limit.
    #[error("{what} is {value}, the limit is {limit}")]
    Limit {
        /// What is too large, naming the key or tensor.
        what: String,
        /// The value in the file.
        value: u64,
        /// The largest value accepted.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    Utf8 {
        /// Which text, naming the key or tensor.
        what: String,
    },
    /// A metadata key that occurs twice.
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type the format does not define.
    #[error("metadata key {key:?} has unknown value type {id}, the known ones are 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type id found.
        id: u32,
    },
    /// An array of arrays.
    #[error("metadata key {key:?} is an array of arrays, which no model key uses")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("metadata key {key:?} holds the bool value {value}, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte found.
        value: u8,
    },
    /// `general.alignment` is not a power of two in range.
    #[error("general.alignment is {value}, expected a power of two from 8 to 65536")]
    Alignment {
        /// The value found.
        value: u64,
    },
    /// A required key is absent.
    #[error("metadata key {key:?} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds another type than asked for.
    #[error("metadata key {key:?} is {actual}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// The type in the file.
        actual: String,
    },
    /// A number that does not fit the type or range it is used in.
    #[error("metadata key {key:?} is {value}, expected {expected}")]
    Range {
        /// The key.
        key: String,
        /// The value in the file.
        value: String,
        /// The range accepted.
        expected: String,
    },
    /// A tensor name that occurs twice.
    #[error("tensor {tensor:?} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor with no or too many dimensions.
    #[error("tensor {tensor:?} has {rank} dimensions, expected 1 to {limit}")]
    Rank {
        /// The tensor.
        tensor: String,
        /// The rank found.
        rank: u32,
        /// The largest rank accepted.
        limit: u32,
    },
    /// A dimension of zero.
    #[error("tensor {tensor:?}: dimension {axis} of {shape:?} is zero")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Index of the dimension, fastest first.
        axis: usize,
        /// The whole shape.
        shape: Vec<u64>,
    },
    /// A shape whose size in bytes overflows.
    #[error("tensor {tensor:?} of shape {shape:?} is larger than any file can be")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape, fastest dimension first.
        shape: Vec<u64>,
    },
    /// An element type this engine does not read.
    #[error("tensor {tensor:?} has element type {id} ({name}), which is not supported; {supported} are")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// The type id found.
        id: u32,
        /// The name ggml gives it.
        name: &'static str,
        /// The names of the types that are supported.
        supported: String,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor {tensor:?}: rows of {row} elements do not divide into {element} blocks of {block}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements in a row.
        row: u64,
        /// Name of the element type.
        element: &'static str,
        /// Elements in a block.
        block: u64,
    },
    /// A tensor offset that is not a multiple of the alignment.
    #[error("tensor {tensor:?} starts at data offset {offset}, not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that reaches beyond the end of the file.
    #[error(
        "tensor {tensor:?} takes {bytes} bytes at data offset {offset}, the data section has {available}"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Size of the data section.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {first:?} and {second:?} overlap: the first ends at data offset {end}, the second starts at {start}"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Where the first ends.
        end: u64,
        /// Where the second starts.
        start: u64,
    },
    /// A required tensor is absent.
    #[error("tensor {tensor:?} is missing")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape than the model's keys say.
    #[error("tensor {tensor:?} has shape {actual:?}, expected {expected:?} (fastest dimension first)")]
    Shape {
        /// The tensor.
        tensor: String,
        /// The shape the model's keys call for.
        expected: Vec<usize>,
        /// The shape in the file.
        actual: Vec<usize>,
    },
    /// One part of a model that was split over several files.
    #[error("the model is split over {count} files, which is not supported; merge them with gguf-split")]
    Split {
        /// Number of parts.
        count: u64,
    },
}
