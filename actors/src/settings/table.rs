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
    /// What it is, its unit included: whole short sentences, in Markdown that README shows as it is and other places without its marks.
    pub about: &'static str,
    /// What its default is called, where the value itself says too little.
    pub default: Option<&'static str>,
    /// The least and the greatest number that it may be.
    pub range: Option<(u64, u64)>,
    /// Whether there is a flag of its name.
    pub is_flag: bool,
    /// Whether it is a text to the last blank: what is not in quotes is taken as it was written.
    pub is_text: bool,
    /// The heading before it in docs/settings.md; without one it is of the group that stands there.
    pub heading: Option<&'static str>,
}

impl Definition {
    /// A setting that is nothing but a value.
    pub const fn new(key: &'static str, about: &'static str) -> Self {
        Self { key, about, default: None, range: None, is_flag: false, is_text: false, heading: None }
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

    /// It is a text to the last blank.
    #[must_use]
    pub const fn text(self) -> Self {
        Self { is_text: true, ..self }
    }

    /// The first of a group of this name.
    #[must_use]
    pub const fn under(self, heading: &'static str) -> Self {
        Self { heading: Some(heading), ..self }
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
    setting(
        "device_bytes",
        "Size of the paged KV pool, on each GPU where several share the model: running sequences keep their KV there, and what they leave for later prompts.",
    ).by_default("512 MiB; on a GPU nine tenths of what the weights leave free").under("Where stored KV is kept"),
    setting("device_cache", "Whether sequences that end leave their KV in the pool for later prompts."),
    setting("device_policy", "Which of that KV is evicted first, as `host_policy` has it."),
    setting("host_bytes", "Most bytes of stored KV in host memory."),
    setting("disk_bytes", "Most bytes of stored KV on disk."),
    setting(
        "host_policy",
        "Which KV leaves host memory first. `adaptive` follows the best of `hit-density`, `pgdsf` and `lru`; each of these, `gdsf`, `lfu` and \
         `s3-fifo` can be named alone.",
    ),
    setting("disk_policy", "Which KV leaves the disk first, in the same words."),
    setting(
        "kv_admission",
        "`cost`: KV is stored on disk and in the bucket, and loaded from there, where that was measured to be faster than computing it. \
         `always`: all KV is.",
    ),
    setting(
        "vacuum_within_s",
        "Seconds within which deleted or replaced text, and its KV, has left every file of the data folder; they are rewritten for that. \
         `ragstone documents delete --now` waits for it.",
    ).at_least(1),
    setting(
        "verify_interval_s",
        "How often every file of the corpus is compared with its checksum, in seconds, beside once after a start; 0 is never. At half of the \
         disk's pace. Until then a damaged file's metadata, vectors and token ids may be served; its words never are.",
    ),
    setting("object_url", "The bucket that nodes share, such as `s3://bucket/prefix` or `file:///folder`.").by_default("none").under("A bucket for several nodes"),
    setting(
        "corpus_url",
        "The bucket that nodes keep one corpus in, such as `s3://bucket/corpus`; `object_options` count for it, too. Several nodes may add, delete \
         and ask. See docs/nodes.md.",
    )
    .by_default("none: the corpus is in the data folder"),
    setting(
        "corpus_interval_ms",
        "How often this node commits to a collection of that corpus at most, and how old what it sees of other nodes' changes may be, in \
         milliseconds. A node that could not look for three times as long answers 503.",
    )
    .within(100, 60_000),
    setting("object_options", "How the bucket is reached, such as `object_options.endpoint` or `object_options.region`.")
        .by_default("none"),
    setting(
        "object_codec",
        "How KV is written to the bucket: `plain`, `zstd`, or `q8`, which keeps 8 bits and is used for blending only.",
    ),
    setting(
        "object_keys",
        "Keys that entries of the bucket are sealed by, as `file:PATH` or `env:VARIABLE`, each with 32 bytes in hexadecimal digits or base64; \
         several with commas. The first seals what is written, each opens what is read, and what none opens is computed again. See \
         docs/operating.md.",
    )
    .by_default("none: nothing is sealed"),
    setting("object_encrypt", "Encrypt what is written to the bucket, too (AES-256-GCM), so that nobody without a key reads it."),
    setting(
        "object_accept_unsealed",
        "Use entries of the bucket that are not sealed although there are keys, and seal them: while a bucket changes over, if you trust \
         who wrote them.",
    ),
    setting("object_ttl_s", "Entries that are older leave the bucket, in seconds.").by_default("0: no bound"),
    setting("object_max_bytes", "The oldest entries leave the bucket when it has more bytes.").by_default("0: no bound"),
    setting("object_gc_interval_s", "How often this node removes from the bucket what is over these bounds, in seconds; 0 is never."),
    setting("object_timeout_ms", "How long a request to the bucket may take, in milliseconds; each MiB has a second more.").at_least(1),
    setting(
        "prices.host",
        "What a GB of host memory costs a month, in any currency. `ragstone explain` compares these prices and names the cheapest tier from \
         which a prompt is no slower; what is as fast from there takes no room in a dearer one.",
    ).under("What storage costs"),
    setting("prices.disk", "What a GB of disk costs a month."),
    setting("prices.object", "What a GB in the bucket costs a month."),
    setting("prices.object_request", "What a request to the bucket costs."),
    setting("prices.reads_a_month", "How often an entry is read from the bucket in a month, for these prices."),
    setting(
        "blend_uncalibrated",
        "Blend also with a model that was not calibrated, although its answers may change; otherwise only exact KV is reused.",
    )
    .flag().under("Blending and calibration"),
    setting("calibrate_when_idle", "Calibrate a new model as soon as the service has nothing else to do."),
    setting(
        "recompute_ratio",
        "Share of a blended passage's tokens that is recomputed at the least, from 0 to 1. More are recomputed where that takes no longer than loading it.",
    )
    .by_default("the calibration's (else 0.15)"),
    setting("selector", "The rule that chooses which tokens are recomputed; `ragstone eval --help` lists them.")
        .by_default("the calibration's (else `cacheblend`)"),
    setting("selection_layer", "The layer, counted from 0, at which these tokens are chosen.")
        .by_default("the calibration's (else 2)"),
    setting(
        "primer_passages",
        "Unrelated passages that come with ragstone, behind which a passage's KV is computed so that it can stand anywhere in a prompt; 0: none.",
    )
    .by_default("the calibration's (else 2)")
    .within(0, 4),
    setting("top_k", "Passages that are found for a question.")
        .by_default("2 for models of 50 to 500 million weights, 5 for others and for searches")
        .within(1, 1000)
        .under("Passages and searching"),
    setting("chunk_tokens", "Most tokens in a passage.").at_least(16),
    setting("chunk_overlap_tokens", "Most tokens that a passage shares with the passage before it."),
    setting("rerank", "Passages that a search finds for the reranker to put in order; the best `top_k` of them are read.")
        .by_default("0: none")
        .within(0, MAX_CANDIDATES as u64),
    setting(
        "min_similarity",
        "How similar to the question a passage must be. `auto`: nothing is left out, and where no passage at all is about the question, nothing was \
         found. A number from -1 to 1 is cosine similarity, and leaves out what has less; the embedding model decides what that means. `off`: \
         whatever is nearest.",
    ),
    setting(
        "on_nothing_found",
        "What is done with a question about which nothing was found. `say`: it is said that the documents have nothing, and no model is asked; \
         later questions of a conversation, forms and tools are answered as usual. `answer`: the model answers without passages, behind a note. \
         `as_usual`: over the nearest passages, and the report says that they are not about it.",
    ),
    setting("embed_query_prompt", "What the embedding model reads before a question.").text().by_default("the model's own"),
    setting("embed_passage_prompt", "What the embedding model reads before a passage.").text().by_default("the model's own"),
    setting(
        "vector_index_rows",
        "A collection with so many passages gets a vector index. In a smaller one every search compares all vectors.",
    )
    .at_least(1),
    setting(
        "index_cache_bytes",
        "Most bytes of collections' search indexes in memory, of all together. 100,000 passages have 160 MB of them; where what is searched often has \
         no room, each search reads it again and takes several times as long.",
    ),
    setting("speculate", "Prefill the passages that a slow search has found so far, while the engine has nothing else to do."),
    setting("arrange", "Let the passages of a prompt stand in the order in which more of them is stored, where that saves more than the ranking is worth."),
    setting("prompt.system", "The system prompt before the passages, where the caller sends none.").text().under("The prompt"),
    setting("prompt.passage", "How a passage is written in the prompt.").text(),
    setting("prompt.question", "How the question is written in the prompt.").text(),
    setting("prompt.rerank", "What the language model is asked after each passage, where it is the reranker.").text(),
    setting(
        "prompt.date",
        "The date that a chat template prints: `pinned` (26 July 2024), a day such as `\"2026-11-22\"`, or `today`, with which no stored KV is \
         found again after 00:00 UTC. docs/http.md: \"How a conversation becomes a prompt\".",
    ),
    setting(
        "max_queued",
        "Requests that may wait or run; more get 429. One address (with keys: one tenant) has seven eighths of them at most.",
    )
    .at_least(1).under("Scheduling and decoding"),
    setting("max_batch", "Answers that run together.").at_least(1),
    setting(
        "tenant_quota",
        "What each tenant with keys may use that has no quota of its own (docs/operating.md), such as `[\"requests_per_minute=600\", \
         \"disk_bytes=4GiB\"]`. The default tenant is not meant.",
    )
    .by_default("none"),
    setting("deadline_s", "Seconds that a request may take; then it gets 504.").at_least(1),
    setting(
        "inter_token_ms",
        "Most milliseconds between two tokens of an answer while other prompts are prefilled. 0 takes about twice the time without a prefill.",
    ),
    setting(
        "num_speculative_tokens",
        "Most tokens that look-up decoding drafts and verifies in one step; 0 switches it off. Answers do not depend on it, and a request may \
         ask for fewer (`speculative.n_max`).",
    )
    .within(0, MOST_DRAFTED as u64),
    setting(
        "prompt_lookup_min",
        "Least tokens at an answer's end that must occur earlier in prompt or answer, for what follows there to be drafted.",
    )
    .at_least(1),
    setting("prompt_lookup_max", "Most tokens at an answer's end that are compared.").within(1, MOST_DRAFTED as u64),
    setting(
        "reorder_window",
        "How often prompts of the same tenant that have more KV stored may overtake a waiting one. 0: first come, first served.",
    ),
    setting("load_timeout_ms", "Milliseconds that a layer of stored KV may take to load; then its passage is computed.").at_least(1),
    setting(
        "engine",
        "The engine elsewhere that answers in the place of this process's model, such as `http://127.0.0.1:8000`, or several with commas: vLLM, \
         SGLang, llama.cpp, whatever speaks OpenAI's HTTP. No language model is loaded then. See docs/engines.md.",
    )
    .by_default("none: this process answers")
    .flag()
    .under("An engine elsewhere"),
    setting("engine_model", "The model that is asked there.").by_default("the only one that it serves"),
    setting("engine_key", "Where its API key stands, as `file:PATH` or `env:VARIABLE`.").by_default("none"),
    setting(
        "device",
        "Where the language model computes: `cpu`, `cuda` (the first NVIDIA GPU), `cuda:1` (the second), `cuda:0,1` (shared by both, up to one GPU \
         for each KV head), or `auto` (a GPU if there is one that runs the model).",
    )
    .flag().under("How the model computes"),
    setting("threads", "Threads that compute. More than there are cores make it slower.").by_default("all cores").within(1, 1024).flag(),
    setting(
        "numa",
        "`auto`: where the processor's memory is in several NUMA nodes, threads stay on their node, and weights and the KV pool are split among \
         the nodes, so that each mostly reads its own memory; a policy of `numactl` is kept. `off`: the system decides. Answers and stored KV \
         are the same.",
    )
    .flag(),
    setting(
        "weights",
        "How the language model's weights are kept: `stored` (as in its files), `f32`, `bf16`, `q8` (8 bits: half of bf16's memory, and faster) \
         or `q4` (4 bits: a third of it).",
    )
    .by_default("`stored`")
    .flag(),
    setting("compute", "The type that matrix products are computed in: `f32`, the reference, or `bf16`.")
        .by_default("bf16 where the processor is faster at it")
        .flag(),
    setting("kernels", "The instruction set to use: `amx`, `avx512bf16`, `avx512vnni`, `avx512`, `avx2` or `portable`. Without it, each kind of work has the one that was measured to be the fastest on this processor.")
        .by_default("measured")
        .flag(),
    setting("kv_dtype", "The type of stored KV: `f32`, `f16` or `bf16`.").by_default("as the weights"),
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
