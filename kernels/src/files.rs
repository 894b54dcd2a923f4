//! A model's files: a Hugging Face folder, or one GGUF file. What everything else asks a model for is here, so that nothing but this
//! knows the difference.

use std::path::{Path, PathBuf};

use crate::chat::ChatTemplate;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::folder;
use crate::generation::GenerationDefaults;
use crate::gguf::Gguf;
use crate::tokenizer::Tokenizer;
use crate::weights::{Checkpoint, TensorShape, TensorSource};

/// Where a model is.
#[derive(Debug)]
pub enum ModelFiles {
    /// A folder in Hugging Face form.
    Folder(PathBuf),
    /// An opened GGUF file.
    Gguf(Box<Gguf>),
}

impl ModelFiles {
    /// Opens the folder or the GGUF file at `path`. A folder's files are read when they are asked for.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn open(path: &Path) -> Result<Self> {
        if Gguf::is_one(path) {
            return Ok(Self::Gguf(Box::new(Gguf::open(path)?)));
        }
        Ok(Self::Folder(path.to_owned()))
    }

    /// Shapes and rules of the model.
    ///
    /// # Errors
    /// As [`ModelConfig::from_folder`] and [`Gguf::config`].
    pub fn config(&self) -> Result<ModelConfig> {
        match self {
            Self::Folder(folder) => ModelConfig::from_folder(folder),
            Self::Gguf(file) => file.config(),
        }
    }

    /// Its tokenizer, which knows the marks of turns that its chat template writes.
    ///
    /// # Errors
    /// As [`Tokenizer::from_folder`] and [`Gguf::tokenizer`].
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        self.with_marks(match self {
            Self::Folder(folder) => Tokenizer::from_folder(folder)?,
            Self::Gguf(file) => file.tokenizer()?,
        })
    }

    /// Most tokenizers call every mark special: then the template is not read for it. One that is not understood is refused where it is asked for.
    fn with_marks(&self, tokenizer: Tokenizer) -> Result<Tokenizer> {
        let bracketed = tokenizer.bracketed();
        if bracketed.is_empty() {
            return Ok(tokenizer);
        }
        let marks = self.chat_template().ok().flatten().map(|template| template.marks(bracketed)).unwrap_or_default();
        if marks.is_empty() { Ok(tokenizer) } else { tokenizer.with_marks(marks) }
    }

    /// Both [`tokenizer`](Self::tokenizer) and [`tokenizer_json`](Self::tokenizer_json): a GGUF file's is put together once.
    ///
    /// # Errors
    /// As those.
    pub fn tokenizer_and_json(&self) -> Result<(Tokenizer, Vec<u8>)> {
        match self {
            Self::Folder(_) => Ok((self.tokenizer()?, self.tokenizer_json()?)),
            Self::Gguf(file) => {
                let (tokenizer, json) = file.tokenizer_and_json()?;
                Ok((self.with_marks(tokenizer)?, json))
            }
        }
    }

    /// Its chat template; none where it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_folder`] and [`Gguf::chat_template`].
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match self {
            Self::Folder(folder) => ChatTemplate::from_folder(folder),
            Self::Gguf(file) => file.chat_template(),
        }
    }

    /// How its makers say that its answers are chosen.
    ///
    /// # Errors
    /// As [`GenerationDefaults::from_folder`].
    pub fn generation_defaults(&self) -> Result<GenerationDefaults> {
        match self {
            Self::Folder(folder) => GenerationDefaults::from_folder(folder),
            Self::Gguf(file) => Ok(file.generation_defaults()),
        }
    }

    /// Its `config.json`, or what stands for it: part of the model's fingerprint.
    ///
    /// # Errors
    /// `InvalidModel` where there is none.
    pub fn config_json(&self) -> Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => read(folder, "config.json", folder::CONFIG_BYTES),
            Self::Gguf(file) => Ok(file.config_json()?.into_bytes()),
        }
    }

    /// Its `tokenizer.json`, or what stands for it.
    ///
    /// # Errors
    /// `InvalidModel` where there is none.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => read(folder, "tokenizer.json", folder::TABLE_BYTES),
            Self::Gguf(file) => file.tokenizer_json(),
        }
    }

    /// The files with its weights, in name order: what a fingerprint hashes.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn weight_files(&self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Folder(folder) => Ok(Checkpoint::open(folder)?.files().to_vec()),
            Self::Gguf(file) => Ok(vec![file.path().to_owned()]),
        }
    }

    /// Its tensors, as its files state them.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn shapes(&self) -> Result<Vec<TensorShape>> {
        match self {
            Self::Folder(folder) => Ok(Checkpoint::open(folder)?.shapes()),
            Self::Gguf(file) => Ok(file.shapes()),
        }
    }

    /// Hands its tensors to `work`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and those of `work`.
    pub fn with_tensors<T>(&self, work: impl FnOnce(&dyn TensorSource) -> Result<T>) -> Result<T> {
        match self {
            Self::Folder(folder) => work(&Checkpoint::open(folder)?),
            Self::Gguf(file) => work(file.as_ref()),
        }
    }
}

fn read(model: &Path, name: &str, most_bytes: u64) -> Result<Vec<u8>> {
    let path = model.join(name);
    folder::read(&path, most_bytes)
        .map_err(|error| Error::invalid_model(format!("cannot read {}: {error}", path.display())).with_source(error))
}
