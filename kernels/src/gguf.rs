//! GGUF files, as llama.cpp and its converters write them: a whole model in one file. Matrices of quantized blocks are handed on as they are
//! ([`native`]), or unpacked into numbers.

mod blocks;
mod config;
mod describe;
mod family;
mod header;
mod native;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::linear::GroupedRows;
use crate::weights::{Tensor, TensorSource, cast};
use blocks::BlockType;
use family::{FileFamily, LONG_FACTORS, SHORT_FACTORS};
use header::{Header, Value};
pub(crate) use native::grouping;

/// An opened GGUF file. Dropping it unmaps it.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    header: Header,
    family: &'static FileFamily,
    /// Names of a layer's tensors: Hugging Face's and the file's.
    layer_names: Vec<(&'static str, &'static str)>,
    /// Names of an expert's tensors, and of the file's that have those of all experts.
    expert_names: Vec<(&'static str, &'static str)>,
    /// Of one head: how some architectures' rows of Q and K are reordered.
    head_dim: usize,
}

/// Where a tensor's values are.
struct Found {
    kind: BlockType,
    /// In the file.
    bytes: Range<usize>,
}

impl Gguf {
    /// Whether a file is meant to be GGUF, by its name or its first bytes.
    pub fn is_one(path: &Path) -> bool {
        let is_named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        let begins = |mut file: File| {
            let mut magic = [0; 4];
            std::io::Read::read_exact(&mut file, &mut magic).is_ok() && magic == *b"GGUF"
        };
        // Opening a pipe would wait for a writer.
        fs::metadata(path).is_ok_and(|found| found.is_file()) && (is_named || File::open(path).is_ok_and(begins))
    }

    /// Opens a file, and checks what it says against its length and against what this program runs.
    ///
    /// # Errors
    /// `InvalidModel` for a damaged file, `UnsupportedModel` for an architecture, a tensor or a type of tensors that this version
    /// does not know, [`Error::io`]'s when the file system refuses.
    pub fn open(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| Error::io("cannot read", path, error);
        let file = File::open(path).map_err(unreadable)?;
        // SAFETY: the mapping is read-only and private to this value. Another process that shortens the file while it is mapped
        // would fault this one; model files are written once, and the mapping lives only while weights are packed.
        let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        let named = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let header = Header::read(&map).map_err(named)?;
        // Which it is follows from the metadata.
        let (family, layer_names, expert_names) = (&family::FAMILIES[0], Vec::new(), Vec::new());
        let mut opened = Self { path: path.to_owned(), map, header, family, layer_names, expert_names, head_dim: 0 };
        opened.family = opened.read_family().map_err(named)?;
        let names = opened.family.architecture.tensors();
        (opened.layer_names, opened.expert_names) = (family::layer_names(names), family::expert_names(names));
        opened.head_dim = opened.read_head_dim().map_err(named)?;
        opened.refuse_unknown_tensors().map_err(named)?;
        Ok(opened)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn named(&self, error: Error) -> Error {
        Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }

    fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Integer(value)) if u64::try_from(*value).is_ok() => Ok(Some(*value as u64)),
            // Some architectures have one number a layer.
            Some(Value::List { .. }) => {
                Err(Error::unsupported(format!("`{key}` differs by layer, which is not supported")))
            }
            Some(_) => Err(wrong(key, "a positive integer")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.header.values.get(key) {
            None => Ok(None),
            // JSON, which this is on the way to, has no others.
            Some(Value::Float(value)) if value.is_finite() => Ok(Some(*value)),
            Some(Value::Integer(value)) => Ok(Some(*value as f64)),
            Some(_) => Err(wrong(key, "a number")),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(wrong(key, "true or false")),
        }
    }

    fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::String(range)) => {
                std::str::from_utf8(&self.map[range.clone()]).map(Some).map_err(|_| wrong(key, "UTF-8"))
            }
            Some(_) => Err(wrong(key, "a text")),
        }
    }

    /// The texts of a list; none where there is no list.
    fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let (len, bytes) = match self.header.values.get(key) {
            None => return Ok(None),
            Some(Value::List { kind: header::STRING, len, bytes }) => (*len, bytes.clone()),
            Some(_) => return Err(wrong(key, "a list of texts")),
        };
        // The header was read through: every length is inside of the list.
        let mut rest = &self.map[bytes];
        let mut texts = Vec::with_capacity(len);
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let (text, after) = after.split_at(u64::from_le_bytes(*length) as usize);
            texts.push(std::str::from_utf8(text).map_err(|_| wrong(key, "UTF-8"))?);
            rest = after;
        }
        Ok(Some(texts))
    }

    /// The numbers of a list of 4 bytes each; none where there is no list.
    fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::List { kind: kind @ (header::U32 | header::I32 | header::F32), bytes, .. }) => {
                let values = self.map[bytes.clone()].chunks_exact(4).map(|four| match header::number(*kind, four) {
                    Value::Integer(value) => value as f64,
                    Value::Float(value) => value,
                    _ => 0.0,
                });
                Ok(Some(values.collect()))
            }
            Some(_) => Err(wrong(key, "a list of numbers")),
        }
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<Found> {
        let file = self.path.display();
        let (ggml, expert) = self.ggml_name(name).unwrap_or_else(|| (name.to_owned(), None));
        let Some(info) = self.header.tensors.get(&ggml) else {
            return Err(Error::invalid_model(format!(
                "tensor {ggml} is missing from {file}, though its metadata ask for it; fetch the file again"
            )));
        };
        // Of all experts' values those of one.
        let (experts, own) = match expert {
            Some(expert) if info.shape.first().is_some_and(|experts| expert < *experts) => {
                (info.shape[0], &info.shape[1..])
            }
            _ => (1, &info.shape[..]),
        };
        if own != shape {
            return Err(Error::invalid_model(format!(
                "tensor {name} in {file} has shape {:?}, its metadata ask for {shape:?}; fetch the file again",
                info.shape
            )));
        }
        let len = info.bytes.len() / experts;
        let begin = info.bytes.start + expert.unwrap_or(0) * len;
        Ok(Found { kind: info.kind, bytes: begin..begin + len })
    }

    /// From a row of Hugging Face's order to the file's, see [`FileFamily::has_pairs_together`].
    fn row_in_file(&self, name: &str) -> impl Fn(usize) -> usize + Sync + use<> {
        let is_rotated = name.contains(".q_proj.") || name.contains(".k_proj.");
        let half = match self.family.has_pairs_together && is_rotated {
            true => self.head_dim / 2,
            false => 0,
        };
        move |row| match half {
            0 => row,
            half => {
                let (head, within) = (row / (2 * half), row % (2 * half));
                head * 2 * half + 2 * (within % half) + within / half
            }
        }
    }

    fn is_reordered(&self, name: &str) -> bool {
        self.row_in_file(name)(1) != 1
    }

    /// Rows of Q and K are only put back head by head.
    fn check_heads(&self, name: &str, shape: &[usize], kind: BlockType) -> Result<()> {
        let fits_heads = shape[0].is_multiple_of(self.head_dim) && (shape.len() > 1 || !kind.is_quantized());
        if self.is_reordered(name) && !fits_heads {
            return Err(
                self.named(Error::invalid_model(format!("tensor {name} has no whole heads; fetch the file again")))
            );
        }
        Ok(())
    }

    fn unpack(&self, name: &str, shape: &[usize], to_bf16: bool) -> Result<Tensor<'_>> {
        let found = self.find(name, shape)?;
        self.check_heads(name, shape, found.kind)?;
        let bytes = &self.map[found.bytes];
        // A bias is a column of rows of one element.
        let row = if shape.len() == 1 && self.is_reordered(name) { 1 } else { shape.last().copied().unwrap_or(1) };
        let from = self.row_in_file(name);
        Ok(match found.kind {
            BlockType::F32 if !self.is_reordered(name) => Tensor::F32(cast(bytes, f32::from_le_bytes)),
            BlockType::BF16 if !self.is_reordered(name) => Tensor::Bf16(cast(bytes, u16::from_le_bytes)),
            // What is one bf16 is not rounded by the way over f32.
            kind if to_bf16 || kind == BlockType::BF16 => Tensor::Bf16(kind.to_bf16(bytes, row, from).into()),
            kind => Tensor::F32(kind.to_f32(bytes, row, from).into()),
        })
    }
}

impl TensorSource for Gguf {
    fn size_in_bytes(&self) -> u64 {
        let bytes = |info: &header::TensorInfo| {
            info.shape.iter().product::<usize>() * if info.kind == BlockType::BF16 { 2 } else { 4 }
        };
        self.header.tensors.values().map(|info| bytes(info) as u64).sum()
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        self.unpack(name, shape, false)
    }

    fn tensor_bf16(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        self.unpack(name, shape, true)
    }

    fn grouped(&self, name: &str, shape: [usize; 2]) -> Result<Option<GroupedRows<'_>>> {
        let found = self.find(name, &shape)?;
        self.check_heads(name, &shape, found.kind)?;
        Ok(found.kind.grouped(&self.map[found.bytes], shape[1], self.row_in_file(name)))
    }
}

/// Names outside of the layers.
const OTHER_NAMES: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// What a rotary frequency is divided by, one a pair.
const ROPE_FACTORS: &str = "rope_freqs.weight";
const ROPE_TENSORS: [&str; 3] = [ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS];

impl Gguf {
    /// The values of a tensor outside of the layers.
    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.unpack(name, shape, false).map(Tensor::into_f32)
    }

    /// The file's name of a tensor; of one that is an expert's, that of all experts and which of them it is.
    fn ggml_name(&self, name: &str) -> Option<(String, Option<usize>)> {
        if ROPE_TENSORS.contains(&name) {
            return Some((name.to_owned(), None));
        }
        if let Some((_, ggml)) = OTHER_NAMES.iter().find(|(hf, _)| *hf == name) {
            return Some(((*ggml).to_owned(), None));
        }
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, suffix) = part.rsplit_once('.')?;
        let in_file = |names: &[(&str, &str)], part: &str| {
            let (_, ggml) = names.iter().find(|(hf, _)| *hf == part)?;
            Some(format!("blk.{layer}.{ggml}.{suffix}"))
        };
        if let Some(found) = in_file(&self.layer_names, part) {
            return Some((found, None));
        }
        let each = self.family.architecture.tensors().experts.each;
        let (expert, part) = part.strip_prefix(each)?.strip_prefix('.')?.split_once('.')?;
        Some((in_file(&self.expert_names, part)?, Some(expert.parse().ok()?)))
    }

    /// Whether the forward would use a tensor of this name.
    fn is_known(&self, name: &str) -> bool {
        if ROPE_TENSORS.contains(&name) || OTHER_NAMES.iter().any(|(_, ggml)| *ggml == name) {
            return true;
        }
        let names = || self.layer_names.iter().chain(&self.expert_names);
        let mut parts = name.split('.');
        parts.next() == Some("blk")
            && parts.next().is_some_and(|layer| layer.parse::<u32>().is_ok())
            && parts.next().is_some_and(|part| names().any(|(_, ggml)| *ggml == part))
            && matches!(parts.next(), Some("weight" | "bias"))
            && parts.next().is_none()
    }
}

fn wrong(key: &str, expected: &str) -> Error {
    Error::invalid_model(format!("`{key}` should be {expected}; fetch the file again"))
}
