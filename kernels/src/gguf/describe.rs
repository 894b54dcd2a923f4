//! What a GGUF file says of itself, for people.

use super::Gguf;
use crate::generation::GenerationDefaults;
use crate::weights::TensorShape;

impl Gguf {
    /// Its tensors, by the names that the file has for them.
    pub fn shapes(&self) -> Vec<TensorShape> {
        let shape = |(name, info): (&String, &super::header::TensorInfo)| TensorShape {
            name: name.clone(),
            dtype: info.kind.name().to_owned(),
            shape: info.shape.clone(),
        };
        self.header.tensors.iter().map(shape).collect()
    }

    /// How its makers say that its answers are chosen; a value of another kind than it should be says nothing.
    pub fn generation_defaults(&self) -> GenerationDefaults {
        GenerationDefaults::from_gguf(|key| self.number(key).ok().flatten())
    }

    /// How many bytes from its beginning tell everything but the tensors' values; all of the file where it has no tensors.
    pub fn head_bytes(&self) -> u64 {
        let begins = self.header.tensors.values().map(|info| info.bytes.start as u64);
        begins.min().unwrap_or(self.map.len() as u64)
    }
}
