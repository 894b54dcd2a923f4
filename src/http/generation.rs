//! What chat and plain completions have in common: sampling, streaming, and ragstone's extension.

use std::time::Duration;

use ragstone_actors::{Context, InlineDocument, Reuse};
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::env::Env;
use serde::Deserialize;
use serde_json::Value;

use super::fields::{Fields, is_nothing};
use crate::error::{Error, ErrorKind, Result};
use crate::service::State;

/// Sampling, streaming and the extension of one request.
#[derive(Debug)]
pub struct Generation {
    pub sampling: SamplingParams,
    pub stream: bool,
    /// Send the token counts in a chunk of their own.
    pub include_usage: bool,
    pub extension: Extension,
    pub deadline: Duration,
}

/// `"ragstone": {…}` of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Extension {
    /// Answer from this collection.
    pub collection: Option<String>,
    /// Passages to retrieve.
    pub top_k: Option<usize>,
    /// Passages given in the request.
    pub documents: Vec<InlineDocument>,
    /// Which stored KV may serve this request.
    pub reuse: Reuse,
    /// Keeps this tenant's KV apart.
    pub tenant: String,
    /// Seconds this request may take; at most the configured deadline.
    pub deadline_s: Option<u64>,
}

impl Extension {
    /// Where passages come from; `None` for a plain conversation.
    pub fn context(&mut self) -> Option<Context> {
        (self.collection.is_some() || !self.documents.is_empty()).then(|| Context {
            collection: self.collection.take(),
            top_k: self.top_k,
            documents: std::mem::take(&mut self.documents),
        })
    }

    fn check(&self) -> Result<()> {
        if let Reuse::Ratio(ratio) = self.reuse
            && !(0.0..=1.0).contains(&ratio)
        {
            return Err(Error::param("ragstone.reuse.ratio", format!("`ratio` is {ratio}; use 0.0 to 1.0")));
        }
        if self.top_k == Some(0) {
            return Err(Error::param("ragstone.top_k", "`top_k` must be at least 1"));
        }
        if self.deadline_s == Some(0) {
            return Err(Error::param("ragstone.deadline_s", "`deadline_s` must be at least 1"));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

impl Generation {
    /// Takes the fields that both endpoints know. The caller adds `logprobs` and takes the rest.
    pub fn take(fields: &mut Fields, state: &State, default_max_tokens: usize) -> Result<Self> {
        let limit = Duration::from_secs(state.settings.deadline_s);
        Self::take_within(limit, fields, &state.env, default_max_tokens)
    }

    /// As [`take`](Self::take), where no request may take longer than `limit`.
    pub(super) fn take_within(
        limit: Duration,
        fields: &mut Fields,
        env: &Env,
        default_max_tokens: usize,
    ) -> Result<Self> {
        Self::refuse_unsupported(fields)?;
        let max_tokens = match fields.take::<usize>("max_completion_tokens")? {
            Some(count) => {
                fields.ignore(&["max_tokens"]);
                Some(count)
            }
            None => fields.take("max_tokens")?,
        };
        if max_tokens == Some(0) {
            return Err(Error::param("max_tokens", "`max_tokens` must be at least 1"));
        }
        let stop = match fields.take("stop")? {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Many(texts)) => texts,
        };
        if stop.iter().any(String::is_empty) {
            return Err(Error::param("stop", "`stop` must not hold an empty string"));
        }
        let seed = match fields.take::<i64>("seed")? {
            Some(seed) => seed.cast_unsigned(),
            None => env.random_u64(),
        };
        let sampling = SamplingParams {
            temperature: fields.take("temperature")?.unwrap_or(1.0),
            top_p: fields.take("top_p")?.unwrap_or(1.0),
            top_k: fields.take("top_k")?.unwrap_or(0),
            seed,
            max_tokens: max_tokens.unwrap_or(default_max_tokens),
            stop,
            logprobs: None,
        };
        sampling.validate()?;
        let extension: Extension = fields.take("ragstone")?.unwrap_or_default();
        extension.check()?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let deadline = extension.deadline_s.map_or(limit, |seconds| Duration::from_secs(seconds).min(limit));
        Ok(Self { sampling, stream, include_usage: stream && options.include_usage, extension, deadline })
    }

    fn refuse_unsupported(fields: &mut Fields) -> Result<()> {
        // Bookkeeping of OpenAI's platform: without effect on the answer.
        fields.ignore(&[
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "parallel_tool_calls",
        ]);
        if let Some(count) = fields.take::<u64>("n")?
            && count != 1
        {
            return Err(Error::param("n", format!("`n` is {count}; only one choice a request is supported")));
        }
        for name in ["frequency_penalty", "presence_penalty", "logit_bias", "tools", "functions", "audio", "prediction"]
        {
            fields.refuse_unless(name, is_nothing)?;
        }
        for name in ["web_search_options", "reasoning_effort", "verbosity", "moderation"] {
            fields.refuse_unless(name, |_| false)?;
        }
        for name in ["tool_choice", "function_call"] {
            fields.refuse_unless(name, |value| matches!(value.as_str(), Some("none" | "auto")))?;
        }
        fields.refuse_unless("response_format", |value| value["type"] == "text")?;
        fields.refuse_unless("modalities", |value| *value == serde_json::json!(["text"]))
    }
}

/// Checks that the request means this service's model; `None` and `default` do.
pub fn check_model(fields: &mut Fields, own: &str) -> Result<()> {
    match fields.take::<String>("model")? {
        None => Ok(()),
        Some(name) if name == own || name == "default" => Ok(()),
        Some(name) => Err(Error::param_of(
            ErrorKind::NotFound,
            "model",
            format!("model `{name}` is not served here; use `{own}`"),
        )),
    }
}

/// `logprobs` of a plain completion, `top_logprobs` of a chat: how many alternatives.
pub fn alternatives(name: &str, count: u64, most: u8) -> Result<u8> {
    u8::try_from(count)
        .ok()
        .filter(|count| *count <= most)
        .ok_or_else(|| Error::param(name, format!("`{name}` is {count}; use at most {most}")))
}

/// Text of a message, which clients send as a string or as parts.
pub fn text_of(content: Value, param: &str) -> Result<String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => parts
            .into_iter()
            .map(|part| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (kind, _) => {
                    let kind = kind.unwrap_or("?");
                    Err(Error::param(param, format!("content of type `{kind}` is not supported; send text")))
                }
            })
            .collect(),
        _ => Err(Error::param(param, format!("`{param}` must be a string or a list of text parts"))),
    }
}
