//! Tensors of a model folder, mapped rather than read: one `model.safetensors`, or shards with an index.

mod head;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::f16;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::folder;
use crate::linear::GroupedRows;

pub use head::{HEAD_BYTES, MOST_HEAD_BYTES, head_length, main_dtype, shapes_of_head};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The values of one tensor, row-major. Borrowed from the mapped file where the element type allows.
#[derive(Debug, Clone, PartialEq)]
pub enum Tensor<'a> {
    F32(Cow<'a, [f32]>),
    /// Raw bfloat16: the upper half of an f32's bits.
    Bf16(Cow<'a, [u16]>),
}

impl Tensor<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(bits) => bits.len(),
        }
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as f32. Widening bfloat16 loses nothing.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values.into_owned(),
            Self::Bf16(bits) => bits.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect(),
        }
    }
}

/// A tensor as a file's head states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorShape {
    pub name: String,
    /// What the file calls its element type: `BF16`, `F32`, `Q4_K`.
    pub dtype: String,
    /// Row-major, the outer dimension first.
    pub shape: Vec<usize>,
}

impl TensorShape {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, dim| product.saturating_mul(*dim as u64))
    }

    /// Whether its elements are bfloat16.
    pub fn is_bf16(&self) -> bool {
        self.dtype == "BF16"
    }
}

/// Where a model's tensors come from. Names and the order of elements are Hugging Face's, whatever the files have.
pub trait TensorSource {
    /// Bytes of all tensors, as [`TensorSource::tensor`] gives them.
    fn size_in_bytes(&self) -> u64;

    /// The values of tensor `name`, which must have exactly `shape`.
    ///
    /// # Errors
    /// `InvalidModel` for a missing tensor or another shape; `UnsupportedModel` for another element type.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>>;

    /// The same where the caller rounds to bf16 anyhow: what has to be unpacked may come in bf16 at once.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    fn tensor_bf16(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        self.tensor(name, shape)
    }

    /// The rows of a matrix `[rows, columns]` of quantized blocks, as they are; nothing of any other tensor.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    fn grouped(&self, name: &str, shape: [usize; 2]) -> Result<Option<GroupedRows<'_>>> {
        let _ = (name, shape);
        Ok(None)
    }
}

/// An opened set of safetensors files. Dropping it unmaps them.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<PathBuf>,
    maps: Vec<Mmap>,
    tensors: HashMap<String, Location>,
}

#[derive(Debug, Clone)]
struct Location {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// In the mapped file.
    bytes: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the weights of a Hugging Face folder, and checks every file's header and length.
    ///
    /// # Errors
    /// `InvalidModel` when there are no safetensors, a shard is missing, or a file is truncated or not safetensors;
    /// [`Error::io`]'s when the file system refuses.
    pub fn open(folder: &Path) -> Result<Self> {
        let single = folder.join(SINGLE);
        if single.is_file() {
            return Self::map(vec![single]);
        }
        let index = folder.join(INDEX);
        if index.is_file() {
            return Self::open_sharded(folder, &index);
        }
        let legacy =
            folder.join("pytorch_model.bin").is_file() || folder.join("pytorch_model.bin.index.json").is_file();
        let advice = if legacy {
            "it only has PyTorch pickles: convert them with transformers' save_pretrained, or fetch a revision with \
             safetensors"
        } else {
            "fetch the model again"
        };
        Err(Error::invalid_model(format!("{} holds neither {SINGLE} nor {INDEX}; {advice}", folder.display())))
    }

    /// Opens one safetensors file.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub(crate) fn of_file(path: PathBuf) -> Result<Self> {
        Self::map(vec![path])
    }

    /// The shape of a tensor of exactly this name.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|location| location.shape.as_slice())
    }

    fn open_sharded(model: &Path, index: &Path) -> Result<Self> {
        let text = folder::read_text(index, folder::TABLE_BYTES).map_err(|error| unreadable(index, error))?;
        let map = serde_json::from_str::<Index>(&text)
            .map_err(|error| {
                Error::invalid_model(format!("{}: {error}; fetch it again", index.display())).with_source(error)
            })?
            .weight_map;
        let shards: BTreeSet<&str> = map.values().map(String::as_str).collect();
        let mut files = Vec::with_capacity(shards.len());
        for shard in &shards {
            // An index is data from elsewhere: it may only name files beside itself.
            if Path::new(shard).file_name().and_then(|name| name.to_str()) != Some(*shard) {
                return Err(Error::invalid_model(format!("{}: \"{shard}\" is not a file name", index.display())));
            }
            let path = model.join(shard);
            if !path.is_file() {
                return Err(Error::invalid_model(format!(
                    "shard {} is missing, though {INDEX} names it; fetch the model again",
                    path.display()
                )));
            }
            files.push(path);
        }
        let checkpoint = Self::map(files)?;
        for (name, shard) in &map {
            let found = checkpoint.tensors.get(name).map(|location| &checkpoint.files[location.file]);
            if found != Some(&model.join(shard)) {
                return Err(Error::invalid_model(format!(
                    "tensor {name} is not in {}, though {INDEX} says so; fetch the model again",
                    model.join(shard).display()
                )));
            }
        }
        Ok(checkpoint)
    }

    fn map(files: Vec<PathBuf>) -> Result<Self> {
        let mut maps = Vec::with_capacity(files.len());
        let mut tensors = HashMap::new();
        for (file, path) in files.iter().enumerate() {
            let handle = File::open(path).map_err(|error| unreadable(path, error))?;
            // SAFETY: the mapping is read-only and private to this value. Another process that shortens the file
            // while it is mapped would fault this one; model folders are written once, and the mapping lives only
            // while weights are packed.
            let map = unsafe { Mmap::map(&handle) }.map_err(|error| unreadable(path, error))?;
            let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| damaged(path, error))?;
            // 8 bytes of header length, the header, then the data that offsets count from.
            let start = 8 + header;
            for (name, info) in metadata.tensors() {
                let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
                let location = Location { file, dtype: info.dtype, shape: info.shape.clone(), bytes };
                tensors.insert(name, location);
            }
            maps.push(map);
        }
        Ok(Self { files, maps, tensors })
    }

    /// The weight files, in name order: what a fingerprint hashes.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// All tensors, in the order of their names.
    pub fn shapes(&self) -> Vec<TensorShape> {
        let shape = |(name, location): (&String, &Location)| TensorShape {
            name: name.clone(),
            dtype: format!("{:?}", location.dtype),
            shape: location.shape.clone(),
        };
        let mut shapes: Vec<TensorShape> = self.tensors.iter().map(shape).collect();
        shapes.sort_by(|a, b| a.name.cmp(&b.name));
        shapes
    }

    /// Bytes of all tensors.
    pub fn size_in_bytes(&self) -> u64 {
        self.tensors.values().map(|location| location.bytes.len() as u64).sum()
    }

    /// Whether the checkpoint has a tensor of this name, see [`Checkpoint::tensor`].
    pub fn contains(&self, name: &str) -> bool {
        self.locate(name).is_some()
    }

    /// The values of tensor `name`, which must have exactly `shape`.
    ///
    /// A name that begins with `model.` or `transformer.` is also found without that prefix, which checkpoints saved from the bare
    /// decoder lack. f16 is widened to f32; bf16 stays as it is.
    ///
    /// # Errors
    /// `InvalidModel` for a missing tensor or another shape; `UnsupportedModel` for another element type.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        let Some(location) = self.locate(name) else {
            let folder = self.files[0].parent().unwrap_or(Path::new("")).display();
            return Err(Error::invalid_model(format!(
                "tensor {name} is missing from the weights in {folder}; the download is incomplete or config.json \
                 belongs to another model: fetch the model again"
            )));
        };
        let path = self.files[location.file].display();
        if location.shape != shape {
            return Err(Error::invalid_model(format!(
                "tensor {name} in {path} has shape {:?}, config.json asks for {shape:?}; config.json belongs to \
                 another model: fetch the model again",
                location.shape
            )));
        }
        let bytes = &self.maps[location.file][location.bytes.clone()];
        match location.dtype {
            Dtype::F32 => Ok(Tensor::F32(cast(bytes, f32::from_le_bytes))),
            Dtype::BF16 => Ok(Tensor::Bf16(cast(bytes, u16::from_le_bytes))),
            Dtype::F16 => {
                let (pairs, _) = bytes.as_chunks::<2>();
                Ok(Tensor::F32(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect()))
            }
            other => Err(Error::unsupported(format!(
                "tensor {name} in {path} has dtype {other:?}; take a checkpoint with f32, f16 or bf16 weights"
            ))),
        }
    }

    /// [`Checkpoint::tensor`], widened to f32.
    pub fn tensor_f32(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.tensor(name, shape).map(Tensor::into_f32)
    }

    fn locate(&self, name: &str) -> Option<&Location> {
        let bare = || ["model.", "transformer."].iter().find_map(|prefix| name.strip_prefix(prefix));
        self.tensors.get(name).or_else(|| self.tensors.get(bare()?))
    }
}

impl TensorSource for Checkpoint {
    fn size_in_bytes(&self) -> u64 {
        Self::size_in_bytes(self)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        Self::tensor(self, name, shape)
    }
}

/// Plain numbers that any bit pattern is valid for.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}

/// Little-endian bytes as numbers, without a copy where the machine and the alignment allow.
pub(crate) fn cast<T: Plain, const SIZE: usize>(bytes: &[u8], decode: fn([u8; SIZE]) -> T) -> Cow<'_, [T]> {
    const { assert!(size_of::<T>() == SIZE) };
    if cfg!(target_endian = "little") {
        // SAFETY: `Plain` types have no invalid bit patterns, and `align_to` only hands out aligned elements.
        let (before, values, after) = unsafe { bytes.align_to::<T>() };
        if before.is_empty() && after.is_empty() {
            return Cow::Borrowed(values);
        }
    }
    let (chunks, _) = bytes.as_chunks::<SIZE>();
    Cow::Owned(chunks.iter().map(|chunk| decode(*chunk)).collect())
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::io("cannot read", path, error)
}

fn damaged(path: &Path, error: SafeTensorError) -> Error {
    let path = path.display();
    let message = match &error {
        SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength
        | SafeTensorError::MetadataIncompleteBuffer => {
            format!("{path} is truncated: fetch it again")
        }
        other => format!("{path} is not a valid safetensors file ({other}): fetch it again"),
    };
    Error::invalid_model(message).with_source(error)
}
