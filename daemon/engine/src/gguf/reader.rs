//! Reads the header: metadata entries and the tensor table.
//!
//! Nothing is allocated for a count before the bytes it stands for are known to be
//! in the file: vectors grow as entries are read, and each entry takes file bytes.

use std::collections::HashSet;
use std::ops::Range;

use super::metadata::{Entry, ValueType};
use super::tensor::{Declared, TensorTable};
use super::{
    DEFAULT_ALIGNMENT, GgufError, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_KEYS, MAX_NAME_BYTES, MAX_RANK,
    MAX_TENSORS,
};

/// The parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) entries: Vec<Entry>,
    pub(super) tensors: TensorTable,
}

/// Reads and checks the header of a whole file.
pub(super) fn read_header(file: &[u8]) -> Result<Header, GgufError> {
    let mut cursor = Cursor::new(file);
    if !file.starts_with(b"GGUF") {
        return Err(GgufError::Magic { found: file[..file.len().min(4)].to_vec() });
    }
    cursor.take(4, || "the magic number".into())?;
    let version = cursor.u32(|| "the version".into())?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::Version { version });
    }
    let tensor_count = cursor.u64(|| "the tensor count".into())?;
    let key_count = cursor.u64(|| "the key count".into())?;
    within("the tensor count", tensor_count, MAX_TENSORS)?;
    within("the metadata key count", key_count, MAX_KEYS)?;

    let entries = read_entries(&mut cursor, key_count)?;
    let alignment = alignment(file, &entries)?;
    if let Some(count) = unsigned(file, &entries, "split.count").filter(|&count| count > 1) {
        return Err(GgufError::Split { count });
    }
    let mut declared = Vec::new();
    for index in 0..tensor_count {
        declared.push(read_tensor(&mut cursor, index)?);
    }
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    let available = (file.len() as u64).saturating_sub(data_start);
    let tensors = TensorTable::checked(declared, data_start, available, alignment)?;
    Ok(Header { entries, tensors })
}

fn read_entries(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, GgufError> {
    let mut entries = Vec::new();
    let mut seen = HashSet::new();
    for index in 0..count {
        let what = || format!("metadata key {index}");
        let length = cursor.u64(what)?;
        within(&format!("the length of metadata key {index}"), length, MAX_KEY_BYTES)?;
        let range = cursor.take(length, what)?;
        let key = cursor.text(range, what)?.to_owned();
        let entry = read_entry(cursor, key)?;
        if !seen.insert(entry.key.clone()) {
            return Err(GgufError::DuplicateKey { key: entry.key });
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>, key: String) -> Result<Entry, GgufError> {
    let what = || format!("the value of metadata key {key:?}");
    let ty = read_type(cursor, &key)?;
    let (array, range) = match ty {
        ValueType::String => {
            let length = cursor.u64(what)?;
            let range = cursor.take(length, what)?;
            cursor.text(range.clone(), what)?;
            (None, range)
        }
        ValueType::Array => {
            let element = read_type(cursor, &key)?;
            let len = cursor.u64(what)?;
            let range = read_array(cursor, &key, element, len)?;
            // `read_array` consumed at least a byte an element.
            (Some((element, len as usize)), range)
        }
        scalar => {
            let range = cursor.take(scalar.size().unwrap_or(0) as u64, what)?;
            (None, range)
        }
    };
    let element = array.map_or(ty, |(element, _)| element);
    if element == ValueType::Bool {
        let bytes = &cursor.file[range.clone()];
        if let Some(&value) = bytes.iter().find(|&&b| b > 1) {
            return Err(GgufError::Bool { key, value });
        }
    }
    Ok(Entry { key, ty, array, range })
}

fn read_array(
    cursor: &mut Cursor<'_>,
    key: &str,
    element: ValueType,
    len: u64,
) -> Result<Range<usize>, GgufError> {
    let what = || format!("the {len} {element} elements of metadata key {key:?}");
    match element {
        ValueType::Array => Err(GgufError::NestedArray { key: key.to_owned() }),
        ValueType::String => {
            // Refused before walking: each string takes at least its length field.
            cursor.has(len.saturating_mul(8), what)?;
            let start = cursor.at;
            for _ in 0..len {
                let length = cursor.u64(what)?;
                cursor.take(length, what)?;
            }
            Ok(start..cursor.at)
        }
        scalar => cursor.take(len.saturating_mul(scalar.size().unwrap_or(1) as u64), what),
    }
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let id = cursor.u32(|| format!("the value type of metadata key {key:?}"))?;
    ValueType::from_id(id).ok_or_else(|| GgufError::ValueType { key: key.to_owned(), id })
}

fn read_tensor(cursor: &mut Cursor<'_>, index: u64) -> Result<Declared, GgufError> {
    let what = || format!("tensor {index}");
    let length = cursor.u64(what)?;
    within(&format!("the length of the name of tensor {index}"), length, MAX_NAME_BYTES)?;
    let range = cursor.take(length, what)?;
    let name = cursor.text(range, || format!("the name of tensor {index}"))?.to_owned();
    let what = || format!("the entry of tensor {name:?}");
    let rank = cursor.u32(what)?;
    if rank == 0 || rank > MAX_RANK {
        return Err(GgufError::Rank { tensor: name, rank, limit: MAX_RANK });
    }
    let shape = (0..rank).map(|_| cursor.u64(what)).collect::<Result<Vec<u64>, GgufError>>()?;
    let type_id = cursor.u32(what)?;
    let offset = cursor.u64(what)?;
    Ok(Declared { name, shape, type_id, offset })
}

fn alignment(file: &[u8], entries: &[Entry]) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let Some(entry) = entries.iter().find(|e| e.key == KEY) else {
        return Ok(DEFAULT_ALIGNMENT.into());
    };
    let value = unsigned(file, entries, KEY).ok_or_else(|| GgufError::WrongType {
        key: KEY.to_owned(),
        expected: "u32",
        actual: entry.ty.to_string(),
    })?;
    if !value.is_power_of_two() || !(8..=65_536).contains(&value) {
        return Err(GgufError::Alignment { value });
    }
    Ok(value)
}

/// The value of an unsigned scalar key that is needed before [`super::Metadata`] exists.
fn unsigned(file: &[u8], entries: &[Entry], key: &str) -> Option<u64> {
    let entry = entries.iter().find(|e| e.key == key)?;
    if !matches!(entry.ty, ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64) {
        return None;
    }
    let mut word = [0u8; 8];
    word[..entry.range.len()].copy_from_slice(&file[entry.range.clone()]);
    Some(u64::from_le_bytes(word))
}

fn within(what: &str, value: u64, limit: u64) -> Result<(), GgufError> {
    if value > limit {
        return Err(GgufError::Limit { what: what.to_owned(), value, limit });
    }
    Ok(())
}

/// A position in the file that never passes its end or the header limit.
struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    /// Checks that `need` more bytes are in the file and within the header limit.
    fn has(&self, need: u64, what: impl Fn() -> String) -> Result<(), GgufError> {
        let have = (self.file.len() - self.at) as u64;
        if need > have {
            return Err(GgufError::Truncated { what: what(), offset: self.at as u64, need, have });
        }
        let end = self.at as u64 + need;
        if end > MAX_HEADER_BYTES {
            return Err(GgufError::Limit {
                what: format!("the header size up to {}", what()),
                value: end,
                limit: MAX_HEADER_BYTES,
            });
        }
        Ok(())
    }

    fn take(&mut self, need: u64, what: impl Fn() -> String) -> Result<Range<usize>, GgufError> {
        self.has(need, what)?;
        let start = self.at;
        self.at += need as usize;
        Ok(start..self.at)
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, GgufError> {
        let range = self.take(4, what)?;
        let mut word = [0u8; 4];
        word.copy_from_slice(&self.file[range]);
        Ok(u32::from_le_bytes(word))
    }

    fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, GgufError> {
        let range = self.take(8, what)?;
        let mut word = [0u8; 8];
        word.copy_from_slice(&self.file[range]);
        Ok(u64::from_le_bytes(word))
    }

    fn text(&self, range: Range<usize>, what: impl Fn() -> String) -> Result<&'a str, GgufError> {
        std::str::from_utf8(&self.file[range]).map_err(|_| GgufError::Utf8 { what: what() })
    }
}
