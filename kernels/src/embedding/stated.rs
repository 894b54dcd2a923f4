//! What the files of sentence-transformers say of a model: how it pools, how much it reads, and what stands before its texts.

use std::path::Path;

use serde_json::Value;

use super::{MAX_TOKENS, MOST_TOKENS, Prompts, ROLE};
use crate::error::{Error, Result};
use crate::tokenizer::read_json;

/// How a text's hidden states become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token, `[CLS]`.
    Cls,
}

/// What is pooled, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pooled {
    pub(super) how: Pooling,
    /// Whether what stands before a text is pooled with it, as nearly everywhere (`include_prompt`).
    pub(super) with_prompt: bool,
}

/// What would be computed after the pooling beside the length of 1, which every vector gets.
pub(super) fn refuse_other_modules(folder: &Path) -> Result<()> {
    let path = folder.join("modules.json");
    let Some(modules) = read_json(&path)? else { return Ok(()) };
    let kinds = modules.as_array().into_iter().flatten().filter_map(|module| module["type"].as_str());
    let mut names = kinds.filter_map(|kind| kind.rsplit('.').next());
    match names.find(|name| !["Transformer", "Pooling", "Normalize"].contains(name)) {
        None => Ok(()),
        Some(other) => Err(Error::unsupported(format!(
            "{} has a module `{other}`, which is not supported; {}",
            path.display(),
            ROLE.instead
        ))),
    }
}

/// Another pooling than the model's own would give vectors that look right and find the wrong passages.
pub(super) fn read_pooling(folder: &Path) -> Result<Pooled> {
    let path = folder.join("1_Pooling").join("config.json");
    let Some(config) = read_json(&path)? else { return Ok(Pooled { how: Pooling::Mean, with_prompt: true }) };
    let modes: Vec<&str> = match &config["pooling_mode"] {
        Value::Null => flagged(&config),
        // Since sentence-transformers 5.4: a name, or several. There, too, it counts before the flags.
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap_or_default()).collect(),
        name => vec![name.as_str().unwrap_or_default()],
    };
    let how = match modes.as_slice() {
        ["mean" | "mean_tokens"] => Pooling::Mean,
        ["cls" | "cls_token"] => Pooling::Cls,
        _ => {
            return Err(Error::unsupported(format!(
                "{} pools otherwise than by the mean or the first token; {}",
                path.display(),
                ROLE.instead
            )));
        }
    };
    Ok(Pooled { how, with_prompt: config["include_prompt"] != Value::Bool(false) })
}

/// What versions before 5.4 wrote: a flag for each way.
fn flagged(config: &Value) -> Vec<&str> {
    let set = config.as_object().into_iter().flatten().filter(|(_, value)| **value == Value::Bool(true));
    let modes: Vec<&str> = set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect();
    // A file that names none is from before there were others.
    if modes.is_empty() { vec!["mean"] } else { modes }
}

/// The length that the model was trained for. Versions from 5.4 on leave it to the tokenizer's `model_max_length`; where that says nothing, the
/// model's positions count, which whoever reads texts knows. A folder that is not sentence-transformers' is taken for all-MiniLM-L6-v2, whose
/// tokenizer names twice its length.
pub(super) fn read_max_tokens(folder: &Path) -> Result<usize> {
    let stated = read_json(&folder.join("sentence_bert_config.json"))?;
    let is_theirs = stated.is_some() || folder.join("modules.json").is_file();
    let length = match stated.and_then(|config| config["max_seq_length"].as_u64()) {
        Some(length) => length,
        None if is_theirs => {
            let tokenizer = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
            // Many tokenizers name 10^30 for no bound, which is no `u64`.
            tokenizer["model_max_length"].as_u64().filter(|length| *length > 0).unwrap_or(u64::MAX)
        }
        None => return Ok(MAX_TOKENS),
    };
    Ok(usize::try_from(length).unwrap_or(usize::MAX).clamp(2, MOST_TOKENS))
}

/// What the model's own files say is to stand before texts, by the names that sentence-transformers knows.
pub(super) fn read_prompts(folder: &Path) -> Result<Prompts> {
    let stated = read_json(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
    let prompt = |names: &[&str]| {
        let found = names.iter().find_map(|name| stated["prompts"][name].as_str());
        found.unwrap_or_default().to_owned()
    };
    Ok(Prompts { query: prompt(&["query"]), passage: prompt(&["document", "passage", "corpus"]) })
}
