//! Writes GGUF files: small ones for tests, large ones tensor by tensor.

use std::collections::HashSet;
use std::io::{self, Write};

use super::metadata::ValueType;
use super::tensor::Declared;
use super::{DEFAULT_ALIGNMENT, DType, Gguf, GgufError};

/// Why a GGUF file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A shape the reader would refuse.
    #[error(transparent)]
    Invalid(#[from] GgufError),
    /// The data given for a tensor has another size than its shape and type.
    #[error("tensor {tensor:?}: {written} bytes of data were given, its shape takes {expected}")]
    DataSize {
        /// The tensor.
        tensor: String,
        /// Bytes given.
        written: u64,
        /// Bytes its shape and element type take.
        expected: u64,
    },
    /// The output could not be written.
    #[error("cannot write the model file: {0}")]
    Io(#[from] io::Error),
}

/// A GGUF file in the making: keys and tensor shapes first, then [`Self::write`]
/// asks for each tensor's data in turn, so no more than one is ever in memory.
#[derive(Debug, Default)]
pub struct GgufWriter {
    keys: Vec<(String, ValueType, Vec<u8>)>,
    tensors: Vec<Declared>,
    data_end: u64,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a `u32` key, replacing an earlier value (so do all setters).
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, ValueType::U32, value.to_le_bytes().to_vec())
    }

    /// Sets an `f32` key.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, ValueType::F32, value.to_le_bytes().to_vec())
    }

    /// Sets a bool key.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, ValueType::Bool, vec![value.into()])
    }

    /// Sets a string key.
    pub fn str(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        push_string(&mut bytes, value);
        self.raw(key, ValueType::String, bytes)
    }

    /// Sets an array of `u32`.
    pub fn u32s(&mut self, key: &str, values: &[u32]) -> &mut Self {
        let elements = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        self.array(key, ValueType::U32, values.len(), &elements)
    }

    /// Sets an array of `i32`.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let elements = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        self.array(key, ValueType::I32, values.len(), &elements)
    }

    /// Sets an array of bools.
    pub fn bools(&mut self, key: &str, values: &[bool]) -> &mut Self {
        let elements = values.iter().map(|&v| v.into()).collect::<Vec<u8>>();
        self.array(key, ValueType::Bool, values.len(), &elements)
    }

    /// Sets an array of strings.
    pub fn strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        let mut elements = Vec::new();
        for value in values {
            push_string(&mut elements, value.as_ref());
        }
        self.array(key, ValueType::String, values.len(), &elements)
    }

    /// Copies the keys of another file that `wanted` accepts.
    pub fn copy_keys(&mut self, from: &Gguf, wanted: impl Fn(&str) -> bool) -> &mut Self {
        for (key, ty, array, bytes) in from.meta().raw() {
            if !wanted(key) {
                continue;
            }
            match (ty, array) {
                (_, Some((element, len))) => self.array(key, element, len, bytes),
                (ValueType::String, None) => {
                    let mut value = (bytes.len() as u64).to_le_bytes().to_vec();
                    value.extend_from_slice(bytes);
                    self.raw(key, ty, value)
                }
                (_, None) => self.raw(key, ty, bytes.to_vec()),
            };
        }
        self
    }

    /// Declares a tensor; `shape` in ggml order, fastest dimension first. Gives its
    /// size in bytes.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<u64, WriteError> {
        let declared = Declared {
            name: name.to_owned(),
            shape: shape.iter().map(|&d| d as u64).collect(),
            type_id: dtype.ggml_id(),
            offset: self.data_end,
        };
        if shape.is_empty() || shape.len() > super::MAX_RANK as usize {
            return Err(WriteError::Invalid(GgufError::Rank {
                tensor: declared.name,
                rank: shape.len() as u32,
                limit: super::MAX_RANK,
            }));
        }
        let (_, bytes) = declared.size()?;
        self.data_end = declared
            .offset
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(DEFAULT_ALIGNMENT.into()))
            .ok_or_else(|| GgufError::Overflow {
                tensor: declared.name.clone(),
                shape: declared.shape.clone(),
            })?;
        self.tensors.push(declared);
        Ok(bytes)
    }

    /// Writes the file. `data` is called once a tensor, in the order they were
    /// declared, and writes exactly its bytes.
    pub fn write(
        &self,
        out: &mut dyn Write,
        mut data: impl FnMut(&str, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let mut seen = HashSet::new();
        if let Some(twice) = self.tensors.iter().find(|t| !seen.insert(&t.name)) {
            return Err(WriteError::Invalid(GgufError::DuplicateTensor { tensor: twice.name.clone() }));
        }
        let header = self.header();
        out.write_all(&header)?;
        for tensor in &self.tensors {
            let (_, expected) = tensor.size()?;
            let mut counted = Counted { out: &mut *out, written: 0 };
            data(&tensor.name, &mut counted)?;
            let written = counted.written;
            if written != expected {
                return Err(WriteError::DataSize { tensor: tensor.name.clone(), written, expected });
            }
            let padding = written.next_multiple_of(DEFAULT_ALIGNMENT.into()) - written;
            out.write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
        }
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let mut header = b"GGUF".to_vec();
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        for (key, ty, value) in &self.keys {
            push_string(&mut header, key);
            header.extend(ty.id().to_le_bytes());
            header.extend(value);
        }
        for tensor in &self.tensors {
            push_string(&mut header, &tensor.name);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            header.extend(tensor.shape.iter().flat_map(|d| d.to_le_bytes()));
            header.extend(tensor.type_id.to_le_bytes());
            header.extend(tensor.offset.to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        header
    }

    fn array(&mut self, key: &str, element: ValueType, len: usize, elements: &[u8]) -> &mut Self {
        let mut value = element.id().to_le_bytes().to_vec();
        value.extend((len as u64).to_le_bytes());
        value.extend_from_slice(elements);
        self.raw(key, ValueType::Array, value)
    }

    fn raw(&mut self, key: &str, ty: ValueType, value: Vec<u8>) -> &mut Self {
        // The writer always lays tensors out on the default alignment.
        if key == "general.alignment" {
            return self;
        }
        match self.keys.iter_mut().find(|(k, ..)| k == key) {
            Some(entry) => (entry.1, entry.2) = (ty, value),
            None => self.keys.push((key.to_owned(), ty, value)),
        }
        self
    }
}

fn push_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
