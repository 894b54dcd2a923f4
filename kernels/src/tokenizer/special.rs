//! The special tokens that a model folder's configuration files name.

use std::io;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::folder;

/// Special tokens by their text, and the ids that end an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub unk: Option<String>,
    pub pad: Option<String>,
    /// `add_bos_token`, where it is stated.
    pub add_bos: Option<bool>,
    /// `eos_token_id` of `generation_config.json`, or else of `config.json`.
    pub eos_ids: Vec<u32>,
}

impl SpecialTokens {
    /// Reads the files that are there; each may be missing.
    pub fn from_folder(model: &Path) -> Result<Self> {
        let tokenizer = read_json(&model.join("tokenizer_config.json"))?.unwrap_or_default();
        let mut eos_ids = Vec::new();
        for file in ["generation_config.json", "config.json"] {
            if eos_ids.is_empty() {
                let path = model.join(file);
                eos_ids = end_ids(&path, &read_json(&path)?.unwrap_or_default())?;
            }
        }
        Ok(Self {
            bos: token_text(&tokenizer, "bos_token"),
            eos: token_text(&tokenizer, "eos_token"),
            unk: token_text(&tokenizer, "unk_token"),
            pad: token_text(&tokenizer, "pad_token"),
            add_bos: tokenizer.get("add_bos_token").and_then(Value::as_bool),
            eos_ids,
        })
    }

    /// The configured end ids together with the tokenizer's own EOS: chat models often state only one of the two,
    /// and either ends an answer.
    pub(super) fn end_ids(&self, id_of: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
        let mut ids = self.eos_ids.clone();
        ids.extend(self.eos.as_deref().and_then(id_of));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub(super) fn is_end(&self, token: Option<String>) -> bool {
        token.is_some() && token == self.eos && self.eos != self.bos
    }
}

/// The JSON of a file that may be missing.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let text = match folder::read_text(path, folder::CONFIG_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("cannot read", path, error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        let message = format!("{} is not valid JSON ({error}); fetch it again", path.display());
        Error::invalid_model(message).with_source(error)
    })
}

/// A token is written as its text, or as an object that carries it.
fn token_text(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn end_ids(path: &Path, config: &Value) -> Result<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let read = match config.get("eos_token_id") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        // Some published files write -1 for "none".
        Some(Value::Number(number)) if number.as_i64() == Some(-1) => Some(Vec::new()),
        Some(value) => id(value).map(|id| vec![id]),
    };
    read.ok_or_else(|| {
        Error::invalid_model(format!(
            "{}: `eos_token_id` is neither a token id nor a list of them; fetch it again",
            path.display()
        ))
    })
}
