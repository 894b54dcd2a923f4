//! What is told of each setting, once: the program's help, its list of settings, README and the page all take it from here. Values and
//! defaults are the struct's; a test holds the two together.

use serde_json::Value;

use super::MOST_DRAFTED;
use crate::error::{Error, ErrorKind, Result};
use crate::question::MAX_CANDIDATES;

/// One setting. Its environment variable follows from its key: `RAGSTONE_PROMPT__SYSTEM` of `prompt.system`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Definition {
    /// As files and `--set` take it, such as `prompt.system`.
    pub key: &'static str,
    /// What it is, its unit included; a sentence without its end.
    pub about: &'static str,
    /// What its default is called, where the value itself says too little.
    pub default: Option<&'static str>,
    /// The least and the greatest number that it may be.
    pub range: Option<(u64, u64)>,
    /// Whether there is a flag of its name.
    pub is_flag: bool,
    /// Whether README has it in one row with the setting before it.
    pub is_joined: bool,
}

impl Definition {
    /// A setting that is nothing but a value.
    pub const fn new(key: &'static str, about: &'static str) -> Self {
        Self { key, about, default: None, range: None, is_flag: false, is_joined: false }
    }

    /// What its default is called.
    #[must_use]
    pub const fn by_default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The least number that it may be.
    #[must_use]
    pub const fn at_least(self, least: u64) -> Self {
        self.within(least, u64::MAX)
    }

    /// The least and the greatest number that it may be.
    #[must_use]
    pub const fn within(self, least: u64, most: u64) -> Self {
        Self { range: Some((least, most)), ..self }
    }

    /// There is a flag of its name.
    #[must_use]
    pub const fn flag(self) -> Self {
        Self { is_flag: true, ..self }
    }

    /// In one row with the setting before it.
    #[must_use]
    pub const fn joined(self) -> Self {
        Self { is_joined: true, ..self }
    }
}

/// Compares the numbers of a struct, as JSON, with the bounds of its settings.
///
/// # Errors
/// `InvalidInput`; the message names the key.
pub fn check(table: &[Definition], values: &Value) -> Result<()> {
    for setting in table {
        let value = setting.key.split('.').fold(values, |value, part| &value[part]).as_u64();
        let (Some(value), Some((least, most))) = (value, setting.range) else { continue };
        let bound = match value {
            value if value < least => format!("at least {least}"),
            value if value > most => format!("at most {most}"),
            _ => continue,
        };
        return Err(Error::new(ErrorKind::InvalidInput, format!("setting `{}` must be {bound}", setting.key)));
    }
    Ok(())
}

const fn setting(key: &'static str, about: &'static str) -> Definition {
    Definition::new(key, about)
}

/// Those of [`Settings`](super::Settings).
pub const TABLE: &[Definition] = &[
    setting("device_bytes", "paged KV pool of running sequences, and of what they leave for later prompts"),
    setting("device_cache", "whether sequences leave anything there"),
    setting("device_policy", "what of it goes first").joined(),
    setting("host_bytes", "stored KV in host memory"),
    setting("disk_bytes", "stored KV on disk").joined(),
    setting(
        "host_policy",
        "who leaves host memory first: follows the best of `hit-density`, `pgdsf` and `lru`; also these alone, `gdsf`, `lfu`, `s3-fifo`",
    ),
    setting("disk_policy", "the same of the disk").joined(),
    setting("object_url", "the bucket that nodes share, such as `s3://bucket/prefix` or `file:///folder`").by_default("none"),
    setting("object_options", "how to reach it, such as `endpoint` or `region`").by_default("none").joined(),
    setting("object_codec", "how KV is written there: `plain`, `zstd`, or `q8`: 8 bits, for blending only").joined(),
    setting("object_ttl_s", "older entries leave the bucket, in seconds").by_default("0: no bound"),
    setting("object_max_bytes", "the oldest leave it beyond so many bytes").by_default("0: no bound").joined(),
    setting("object_gc_interval_s", "how often this node sees to that by itself, in seconds; 0: never"),
    setting("object_timeout_ms", "what a request to the bucket may take, and a second more a MiB").at_least(1),
    setting(
        "kv_admission",
        "disk and bucket keep, and prompts load, what loads faster than it computes, as measured; `always`: everything",
    ),
    setting(
        "prices.host",
        "a GB of host memory a month, in any currency: `ragstone explain` names the cheapest tier from which a prompt is no slower, and what does \
         as well there takes nobody's room in a dearer one",
    ),
    setting("prices.disk", "a GB of disk a month").joined(),
    setting("prices.object", "a GB in the bucket a month").joined(),
    setting("prices.object_request", "a request to the bucket"),
    setting("prices.reads_a_month", "how often an entry is read there in a month").joined(),
    setting("blend_uncalibrated", "blend a model that was not calibrated: its answers may change; else only what is exact is reused").flag(),
    setting("calibrate_when_idle", "calibrate a new model by itself, once there is nothing to do"),
    setting(
        "recompute_ratio",
        "least share of a blended passage that is recomputed, from 0 to 1; more where that hides under its loads",
    )
    .by_default("the calibration's (else 0.15)"),
    setting("selector", "the rule that chooses these tokens (`ragstone eval --help` names them)")
        .by_default("the calibration's (else `cacheblend`)"),
    setting("selection_layer", "the layer on which it does, from 0").by_default("the calibration's (else 2)").joined(),
    setting("top_k", "passages a question").within(1, 1000),
    setting("chunk_tokens", "tokens a passage").at_least(16).joined(),
    setting("chunk_overlap_tokens", "of them, those that it may share with the passage before it").joined(),
    setting("rerank", "passages that a search finds for the reranker to put in order; the best `top_k` are read")
        .by_default("0: none")
        .within(0, MAX_CANDIDATES as u64),
    setting("embed_query_prompt", "what the embedding model reads before a question").by_default("the model's own"),
    setting("embed_passage_prompt", "what it reads before a passage").by_default("the model's own").joined(),
    setting("vector_index_rows", "passages of a collection from which its vectors are indexed; below, every search compares all")
        .at_least(1),
    setting("speculate", "prefill what a slow search has found so far, while the engine has nothing else to do"),
    setting("prompt.system", "the system prompt over passages, where the caller sends none"),
    setting("prompt.passage", "how a passage is written"),
    setting("prompt.question", "how a question is").joined(),
    setting("prompt.rerank", "what the language model is asked after one passage where it reranks"),
    setting(
        "prompt.date",
        "what a chat template is told that prints a date: `pinned` (26 July 2024), a day (`\"2026-11-22\"`) or `today`, which loses all \
         entries at 00:00 UTC; see [docs/http.md](docs/http.md#how-a-conversation-becomes-a-prompt)",
    ),
    setting(
        "max_queued",
        "requests that wait or run; more get 429. One address, or with keys one tenant, has seven eighths of them at most",
    )
    .at_least(1),
    setting("max_batch", "answers that run together").at_least(1).joined(),
    setting("deadline_s", "seconds that a request may take; then it gets 504").at_least(1).joined(),
    setting(
        "inter_token_ms",
        "what may pass between two tokens of an answer while prompts are prefilled; 0: about twice what passes without",
    ),
    setting(
        "num_speculative_tokens",
        "most tokens of an answer that are drafted by look-up and verified in one step; 0: none. What an answer is does not depend on it; a \
         request may ask for fewer (`speculative.n_max`)",
    )
    .within(0, MOST_DRAFTED as u64),
    setting("prompt_lookup_min", "tokens at the answer's end that must have stood in prompt or answer before").at_least(1),
    setting("prompt_lookup_max", "those that are compared").within(1, MOST_DRAFTED as u64).joined(),
    setting(
        "reorder_window",
        "how often a waiting prompt may be overtaken by others of its tenant that have more cached; 0: first come, first served",
    ),
    setting("load_timeout_ms", "how long a layer of stored KV may take to come; then its passage is computed").at_least(1),
    setting("threads", "compute threads; more than there are cores only cost time").by_default("all cores").within(1, 1024).flag(),
    setting(
        "weights",
        "how the language model's weights are kept: `stored`, as the files have them; `f32`; `bf16`; `q8`: 8 bits, half of bf16's memory, \
         faster; `q4`: 4 bits, a third of it",
    )
    .by_default("`stored`")
    .flag(),
    setting("compute", "what products are computed in; `f32` is the reference").by_default("bf16 where the processor is faster at it").flag(),
    setting("kernels", "the instruction set: `amx`, `avx512bf16`, `avx512vnni`, `avx512`, `avx2`, `portable`")
        .by_default("the fastest")
        .flag(),
    setting("kv_dtype", "the type of stored KV: `f32`, `f16`, `bf16`").by_default("as the weights"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_out_of_bounds_name_their_key() {
        let table = [setting("a.b", "").within(2, 3), setting("c", "").at_least(1), setting("d", "")];
        for (values, error) in [
            (json!({ "a": { "b": 2 }, "c": 1, "d": 0 }), None),
            (json!({ "a": { "b": 1 } }), Some("setting `a.b` must be at least 2")),
            (json!({ "a": { "b": 4 } }), Some("setting `a.b` must be at most 3")),
            (json!({ "a": { "b": 3 }, "c": 0 }), Some("setting `c` must be at least 1")),
            (json!({ "c": null }), None),
        ] {
            let found = check(&table, &values).map_err(|error| error.to_string());
            assert_eq!(found.err().as_deref(), error, "{values}");
        }
    }
}
