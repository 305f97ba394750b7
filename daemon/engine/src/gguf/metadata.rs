//! Typed access to metadata, borrowed from the mapping.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{GgufError, Mapping};

/// The type of a metadata value or array element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with this GGUF id.
    pub const fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The id in a GGUF file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value, borrowed from the file.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A `u8`, `u16`, `u32` or `u64`.
    Unsigned(u64),
    /// An `i8`, `i16`, `i32` or `i64`.
    Signed(i64),
    /// An `f32` or `f64`.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// A string.
    String(&'a str),
    /// An array.
    Array(Array<'a>),
}

/// An array value: `len` elements of one type, still encoded.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, if they are numbers or bools (nothing otherwise).
    pub fn scalars(self) -> impl ExactSizeIterator<Item = Value<'a>> {
        let size = self.element.size();
        let bytes = if size.is_some() { self.bytes } else { &[] };
        bytes.chunks_exact(size.unwrap_or(1)).map(move |b| scalar(self.element, b))
    }
}

/// The strings of an array, decoded one by one from the file.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    key: &'a str,
    at: usize,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = Result<&'a str, GgufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.len {
            return None;
        }
        // The reader walked this array once; lengths are checked again all the same,
        // since the file may have changed under the mapping.
        let text = take_string(&mut self.bytes).ok_or_else(|| GgufError::Utf8 {
            what: format!("string {} of metadata key {:?}", self.at, self.key),
        });
        self.at += 1;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len - self.at, Some(self.len - self.at))
    }
}

impl ExactSizeIterator for Strings<'_> {}

fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (text, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

/// Decodes a scalar; `bytes` has the type's size.
fn scalar(ty: ValueType, bytes: &[u8]) -> Value<'static> {
    let mut word = [0u8; 8];
    let n = bytes.len().min(8);
    word[..n].copy_from_slice(&bytes[..n]);
    let unsigned = u64::from_le_bytes(word);
    let shift = 64 - 8 * n as u32;
    match ty {
        ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => Value::Unsigned(unsigned),
        ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64 => {
            Value::Signed((unsigned << shift) as i64 >> shift)
        }
        ValueType::F32 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
        ValueType::F64 => Value::Float(f64::from_bits(unsigned)),
        ValueType::Bool | ValueType::String | ValueType::Array => Value::Bool(unsigned != 0),
    }
}

/// Where a key's value lies in the file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) ty: ValueType,
    /// Element type and count, for arrays.
    pub(super) array: Option<(ValueType, usize)>,
    /// Scalars and arrays: the encoded value or elements. Strings: the text.
    pub(super) range: Range<usize>,
}

/// All metadata of a file. Every getter names the key in its error, with the type
/// asked for and the one found; the `opt_` forms give `None` where the key is absent
/// (but not where it has another type).
#[derive(Debug, Clone)]
pub struct Metadata {
    map: Arc<Mapping>,
    entries: Arc<[Entry]>,
    index: Arc<HashMap<String, usize>>,
}

macro_rules! optional {
    ($(#[$doc:meta])* $name:ident, $of:ident, $t:ty) => {
        $(#[$doc])*
        pub fn $name(&self, key: &str) -> Result<Option<$t>, GgufError> {
            if self.contains(key) { self.$of(key).map(Some) } else { Ok(None) }
        }
    };
}

impl Metadata {
    pub(super) fn new(map: Arc<Mapping>, entries: Vec<Entry>) -> Self {
        let index = entries.iter().enumerate().map(|(i, e)| (e.key.clone(), i)).collect();
        Self { map, entries: entries.into(), index: Arc::new(index) }
    }

    /// Whether the file has the key.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// All keys, in the file's order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|e| e.key.as_str())
    }

    /// The value of a key as it stands; `None` if absent.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.entry(key).ok().map(|e| self.value(e))
    }

    /// An unsigned number. Any integer type is taken if its value fits.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        let entry = self.entry(key)?;
        integer(key, self.value(entry), "u32", 0, u32::MAX.into(), || describe(entry)).map(|v| v as u32)
    }

    /// A signed number. Any integer type is taken if its value fits.
    pub fn i32(&self, key: &str) -> Result<i32, GgufError> {
        let entry = self.entry(key)?;
        integer(key, self.value(entry), "i32", i32::MIN.into(), i32::MAX.into(), || describe(entry))
            .map(|v| v as i32)
    }

    /// A floating-point number (`f32`, or `f64` rounded).
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        match self.typed(key)? {
            (Value::Float(v), _) => Ok(v as f32),
            (_, entry) => Err(wrong(entry, "f32")),
        }
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        match self.typed(key)? {
            (Value::Bool(v), _) => Ok(v),
            (_, entry) => Err(wrong(entry, "bool")),
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        match self.typed(key)? {
            (Value::String(v), _) => Ok(v),
            (_, entry) => Err(wrong(entry, "string")),
        }
    }

    /// The strings of an array, decoded as they are iterated.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        match self.typed(key)? {
            (Value::Array(a), entry) if a.element == ValueType::String => {
                Ok(Strings { key: &entry.key, at: 0, len: a.len, bytes: a.bytes })
            }
            (_, entry) => Err(wrong(entry, "array of string")),
        }
    }

    /// An array of unsigned numbers (any integer type whose values fit).
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>, GgufError> {
        self.array(key, "array of u32", |v, entry| {
            integer(key, v, "u32 elements", 0, u32::MAX.into(), || describe(entry)).map(|v| v as u32)
        })
    }

    /// An array of signed numbers (any integer type whose values fit).
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        self.array(key, "array of i32", |v, entry| {
            integer(key, v, "i32 elements", i32::MIN.into(), i32::MAX.into(), || describe(entry))
                .map(|v| v as i32)
        })
    }

    /// An array of floating-point numbers.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        self.array(key, "array of f32", |v, entry| match v {
            Value::Float(v) => Ok(v as f32),
            _ => Err(wrong(entry, "array of f32")),
        })
    }

    /// An array of bools.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        self.array(key, "array of bool", |v, entry| match v {
            Value::Bool(v) => Ok(v),
            _ => Err(wrong(entry, "array of bool")),
        })
    }

    /// A number for each of `layers` layers: an array of exactly that many, or one
    /// number that holds for all.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Vec<u32>, GgufError> {
        match self.typed(key)? {
            (Value::Array(a), _) if a.len != layers => Err(GgufError::Range {
                key: key.to_owned(),
                value: format!("an array of {}", a.len),
                expected: format!("one number or an array of {layers}, one a layer"),
            }),
            (Value::Array(_), _) => self.u32s(key),
            _ => Ok(vec![self.u32(key)?; layers]),
        }
    }

    optional!(/** As [`Self::u32`]. */ opt_u32, u32, u32);
    optional!(/** As [`Self::i32`]. */ opt_i32, i32, i32);
    optional!(/** As [`Self::f32`]. */ opt_f32, f32, f32);
    optional!(/** As [`Self::bool`]. */ opt_bool, bool, bool);
    optional!(/** As [`Self::str`]. */ opt_str, str, &str);
    optional!(/** As [`Self::u32s`]. */ opt_u32s, u32s, Vec<u32>);
    optional!(/** As [`Self::i32s`]. */ opt_i32s, i32s, Vec<i32>);
    optional!(/** As [`Self::f32s`]. */ opt_f32s, f32s, Vec<f32>);
    optional!(/** As [`Self::bools`]. */ opt_bools, bools, Vec<bool>);

    /// (type, element type and count, encoded bytes) of every key, for copying.
    pub(super) fn raw(&self) -> impl Iterator<Item = (&str, ValueType, Option<(ValueType, usize)>, &[u8])> {
        self.entries.iter().map(|e| (e.key.as_str(), e.ty, e.array, &(*self.map).as_ref()[e.range.clone()]))
    }

    fn entry(&self, key: &str) -> Result<&Entry, GgufError> {
        self.index
            .get(key)
            .map(|&i| &self.entries[i])
            .ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
    }

    fn typed(&self, key: &str) -> Result<(Value<'_>, &Entry), GgufError> {
        let entry = self.entry(key)?;
        Ok((self.value(entry), entry))
    }

    fn value<'a>(&'a self, entry: &'a Entry) -> Value<'a> {
        let bytes = &(*self.map).as_ref()[entry.range.clone()];
        match (entry.ty, entry.array) {
            (ValueType::String, _) => Value::String(std::str::from_utf8(bytes).unwrap_or("")),
            (_, Some((element, len))) => Value::Array(Array { element, len, bytes }),
            (ty, None) => scalar(ty, bytes),
        }
    }

    fn array<T>(
        &self,
        key: &str,
        expected: &'static str,
        element: impl Fn(Value<'_>, &Entry) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        match self.typed(key)? {
            (Value::Array(a), entry) if a.element.size().is_some() => {
                a.scalars().map(|v| element(v, entry)).collect()
            }
            (_, entry) => Err(wrong(entry, expected)),
        }
    }
}

fn integer(
    key: &str,
    value: Value<'_>,
    expected: &'static str,
    low: i64,
    high: i64,
    actual: impl Fn() -> String,
) -> Result<i64, GgufError> {
    let number = match value {
        Value::Unsigned(v) => i128::from(v),
        Value::Signed(v) => i128::from(v),
        _ => {
            return Err(GgufError::WrongType { key: key.to_owned(), expected, actual: actual() });
        }
    };
    if number < i128::from(low) || number > i128::from(high) {
        return Err(GgufError::Range {
            key: key.to_owned(),
            value: number.to_string(),
            expected: format!("{low} to {high}"),
        });
    }
    Ok(number as i64)
}

fn describe(entry: &Entry) -> String {
    match entry.array {
        Some((element, len)) => format!("array of {len} {element}"),
        None => entry.ty.to_string(),
    }
}

fn wrong(entry: &Entry, expected: &'static str) -> GgufError {
    GgufError::WrongType { key: entry.key.clone(), expected, actual: describe(entry) }
}
