//! The head of a GGUF file: its metadata, and where its tensors lie. Nothing in it is believed before it was compared with the
//! file's length, and lists stay in the mapped file.
//!
//! ```text
//! "GGUF"  version u32  tensors u64  pairs u64
//! pair    key string  kind u32  value                          `pairs` times
//! tensor  name string  dims u32  dim u64 * dims  type u32  offset u64    `tensors` times
//! padding to `general.alignment`, then the tensors' bytes, which the offsets count from
//! string  length u64  UTF-8     list  kind u32  length u64  values
//! ```
//!
//! candle's own reader copies lists into 32 bytes an element, mends what is no UTF-8 without a word, divides by an alignment of zero
//! and cannot say which tensor has a type that it does not know. So candle only unpacks the blocks here.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::folder;

use super::blocks::BlockType;

/// Bounds of what the file may say. Published files have some 40 pairs and 1,000 tensors with names of 30 bytes.
const MOST_PAIRS: u64 = 1 << 12;
const MOST_TENSORS: u64 = 1 << 16;
const MOST_KEY_BYTES: usize = 1 << 10;
const MOST_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const MOST_ALIGNMENT: u64 = 1 << 20;
const MAGIC: &[u8] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];

/// Kinds of values, as the file numbers them.
pub(super) const U32: u32 = 4;
pub(super) const I32: u32 = 5;
pub(super) const F32: u32 = 6;
pub(super) const STRING: u32 = 8;
const BOOL: u32 = 7;
const LIST: u32 = 9;

/// What a file says of itself.
#[derive(Debug)]
pub(super) struct Header {
    pub values: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// One value of the metadata. Strings and lists are ranges of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    String(Range<usize>),
    List { kind: u32, len: usize, bytes: Range<usize> },
}

/// One tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorInfo {
    pub kind: BlockType,
    /// Row-major, the outer dimension first: the file has them the other way round.
    pub shape: Vec<usize>,
    /// In the file.
    pub bytes: Range<usize>,
}

impl Header {
    /// Reads the head of a whole file.
    ///
    /// # Errors
    /// `InvalidModel` for a file that is damaged, `UnsupportedModel` for tensors or a version that this program does not read.
    pub fn read(file: &[u8]) -> Result<Self> {
        let mut cursor = Cursor { file, at: 0 };
        if cursor.take(MAGIC.len())? != MAGIC {
            return Err(damaged("it does not begin with \"GGUF\""));
        }
        let version = cursor.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(Error::unsupported(match VERSIONS.contains(&version.swap_bytes()) {
                true => "it is a big-endian file; take a little-endian one".to_owned(),
                false => format!("it is of version {version} of the format; take a file of version 2 or 3"),
            }));
        }
        let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
        if pairs > MOST_PAIRS || tensors > MOST_TENSORS {
            return Err(damaged(&format!("it announces {tensors} tensors and {pairs} values, as no model has")));
        }
        let mut values = BTreeMap::new();
        for _ in 0..pairs {
            let key = cursor.key()?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(damaged(&format!("it has two values of `{key}`")));
            }
        }
        let mut places = Vec::new();
        for _ in 0..tensors {
            places.push(cursor.place()?);
        }
        let start = (cursor.at as u64).next_multiple_of(alignment(&values)?);
        Ok(Self { tensors: locate(places, start, file.len() as u64, alignment(&values)?)?, values })
    }
}

fn alignment(values: &BTreeMap<String, Value>) -> Result<u64> {
    match values.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Integer(bytes)) if (8..=i128::from(MOST_ALIGNMENT)).contains(bytes) && bytes.count_ones() == 1 => {
            Ok(*bytes as u64)
        }
        Some(_) => Err(damaged("its `general.alignment` is no power of two from 8 on")),
    }
}

/// A tensor as the file states it.
struct Place {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

fn locate(places: Vec<Place>, start: u64, file_bytes: u64, alignment: u64) -> Result<BTreeMap<String, TensorInfo>> {
    let mut tensors = BTreeMap::new();
    for Place { name, shape, kind, offset } in places {
        let kind = BlockType::of(kind).map_err(|found| {
            Error::unsupported(format!(
                "tensor {name} is of type {found}, which is not supported; take a file with {}",
                BlockType::names()
            ))
        })?;
        let row = shape.last().copied().unwrap_or(1);
        let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim as u64));
        let Some(elements) = elements.filter(|elements| *elements > 0 && row.is_multiple_of(kind.elements())) else {
            return Err(damaged(&format!("tensor {name} has shape {shape:?}, which type {} cannot have", kind.name())));
        };
        let bytes = (elements / kind.elements() as u64).checked_mul(kind.bytes() as u64);
        let begin = start.checked_add(offset);
        let end = begin.zip(bytes).and_then(|(begin, bytes)| begin.checked_add(bytes));
        let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= file_bytes)) else {
            return Err(damaged(&format!("it is truncated: tensor {name} goes beyond its end")));
        };
        if !offset.is_multiple_of(alignment) {
            return Err(damaged(&format!("tensor {name} does not begin at a multiple of {alignment} bytes")));
        }
        let info = TensorInfo { kind, shape, bytes: begin as usize..end as usize };
        if tensors.insert(name.clone(), info).is_some() {
            return Err(damaged(&format!("it has two tensors {name}")));
        }
    }
    Ok(tensors)
}

/// Where reading is.
struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let range = self.skip(bytes as u64)?;
        Ok(&self.file[range])
    }

    fn skip(&mut self, bytes: u64) -> Result<Range<usize>> {
        let begin = self.at;
        let end = (begin as u64).checked_add(bytes).filter(|end| *end <= self.file.len() as u64);
        let Some(end) = end else { return Err(damaged("it is truncated")) };
        if end > folder::TABLE_BYTES {
            let most = folder::TABLE_BYTES >> 20;
            return Err(damaged(&format!("its metadata have more than {most} MiB, as no such file should")));
        }
        self.at = end as usize;
        Ok(begin..self.at)
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE]> {
        let range = self.skip(SIZE as u64)?;
        let mut bytes = [0; SIZE];
        bytes.copy_from_slice(&self.file[range]);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<Range<usize>> {
        let len = self.u64()?;
        self.skip(len)
    }

    fn key(&mut self) -> Result<String> {
        let range = self.string()?;
        match std::str::from_utf8(&self.file[range]) {
            Ok(key) if key.len() <= MOST_KEY_BYTES => Ok(key.to_owned()),
            Ok(_) => Err(damaged(&format!("it has a name of more than {MOST_KEY_BYTES} bytes"))),
            Err(_) => Err(damaged("it has a name that is no UTF-8")),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value> {
        Ok(match kind {
            BOOL => match self.array()? {
                [byte @ (0 | 1)] => Value::Bool(byte == 1),
                [other] => return Err(damaged(&format!("`{key}` is {other}, neither true nor false"))),
            },
            STRING => Value::String(self.string()?),
            LIST => {
                let (kind, len) = (self.u32()?, self.u64()?);
                let begin = self.at;
                match (kind, scalar_bytes(kind)) {
                    (_, Some(size)) => {
                        self.skip(len.saturating_mul(size))?;
                    }
                    // Each has its length at least, so that this ends with the file.
                    (STRING, _) => {
                        for _ in 0..len {
                            self.string()?;
                        }
                    }
                    _ => return Err(damaged(&format!("`{key}` is a list of what is neither number nor text"))),
                }
                Value::List { kind, len: len as usize, bytes: begin..self.at }
            }
            _ => {
                let Some(size) = scalar_bytes(kind) else {
                    return Err(damaged(&format!("`{key}` is of kind {kind}, which GGUF does not have")));
                };
                let bytes = self.take(size as usize)?;
                number(kind, bytes)
            }
        })
    }

    fn place(&mut self) -> Result<Place> {
        let name = self.key()?;
        let dims = self.u32()?;
        if !(1..=MOST_DIMS).contains(&dims) {
            return Err(damaged(&format!("tensor {name} has {dims} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = usize::try_from(self.u64()?);
            shape.push(dim.map_err(|_| damaged(&format!("tensor {name} is larger than any file")))?);
        }
        shape.reverse();
        Ok(Place { name, shape, kind: self.u32()?, offset: self.u64()? })
    }
}

/// Bytes of one value; none for strings and lists, whose lengths differ.
fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        U32 | I32 | F32 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// A number of as many bytes as its kind has.
pub(super) fn number(kind: u32, bytes: &[u8]) -> Value {
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(eight);
    // The sign bit of the narrower kinds is moved to the top, and back.
    let unused = 64 - 8 * bytes.len() as u32;
    let signed = (unsigned << unused) as i64 >> unused;
    match kind {
        1 | 3 | I32 | 11 => Value::Integer(signed.into()),
        F32 => Value::Float(f32::from_bits(unsigned as u32).into()),
        12 => Value::Float(f64::from_bits(unsigned)),
        _ => Value::Integer(unsigned.into()),
    }
}

fn damaged(why: &str) -> Error {
    Error::invalid_model(format!("{why}; fetch it again"))
}
