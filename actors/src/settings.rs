//! What an operator can set, with defaults that work on a laptop.

mod bucket;
mod table;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::embedding::{Prompts, SentenceEncoder};
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::numa::{self, Numa};
use ragstone_kernels::simd;
use ragstone_storage::catalog::Quota;
use ragstone_storage::cost::Prices;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::AdmissionRule;
use ragstone_storage::tier::object::{Codec, ConnectionOptions, KeySources};
use serde::{Deserialize, Serialize};

use crate::admission::quotas::read_quotas;
use crate::admission::size;
use crate::engine::{EngineOptions, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::models::language_model::Device;
use crate::prefill::Rule;
use crate::question::prompt::PromptFormat;
use crate::report::nothing_found::{MinSimilarity, OnNothingFound};
use crate::upstream::UpstreamOptions;

pub use table::{Definition, TABLE, check};

/// The threads and nodes that the process computes with.
static PREPARED: OnceLock<(usize, Numa)> = OnceLock::new();

/// The longest draft, and the longest end that is looked up, in tokens.
const MOST_DRAFTED: usize = 64;

/// Capacities, limits and defaults of the running service. Sizes are in bytes, and may be given with a unit ([`size`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Bytes of the device tier: the paged KV pool of running sequences, and of what they left there. Of each device, where several share the
    /// model. None given: 512 MiB of the processor's memory; of a GPU's nine tenths of what the weights leave free.
    #[serde(deserialize_with = "size::deserialize_some")]
    pub device_bytes: Option<u64>,
    /// Whether the device tier keeps the KV of exact paths behind the sequences that computed them.
    pub device_cache: bool,
    /// What leaves the device tier first.
    pub device_policy: PolicyKind,
    /// Bytes of stored KV kept in host memory.
    #[serde(deserialize_with = "size::deserialize")]
    pub host_bytes: u64,
    /// Bytes of stored KV kept on disk.
    #[serde(deserialize_with = "size::deserialize")]
    pub disk_bytes: u64,
    /// Who leaves host memory first: `adaptive`, `hit-density`, `pgdsf`, `gdsf`, `lru`, `lfu` or `s3-fifo`.
    pub host_policy: PolicyKind,
    /// Who leaves the disk first.
    pub disk_policy: PolicyKind,
    /// The bucket that nodes share, such as `s3://bucket/prefix` or `file:///folder`; none given: no object tier.
    pub object_url: Option<String>,
    /// Where the corpus is that nodes share, such as `s3://bucket/prefix`, reached by `object_options`, too; none given: in the data folder, and
    /// no other node's.
    pub corpus_url: Option<String>,
    /// How often this node commits to a collection of that corpus at most, and looks what others changed there, in milliseconds.
    pub corpus_interval_ms: u64,
    /// How to reach it, such as `endpoint`, `region` or `allow_http`; the cloud's environment variables count, too.
    pub object_options: ConnectionOptions,
    /// How KV is written into the bucket: `plain`; `zstd`, compressed without loss; or `q8`, 8 bits an element: about half
    /// of bf16, and only close to what was computed. What is read from there is then blended, never reused as it is.
    pub object_codec: Codec,
    /// Where the keys stand that entries of the bucket are sealed by, as `file:PATH` or `env:VARIABLE`: the first seals what is written,
    /// each opens what is read, and what none of them opens is not used. None given: nothing is sealed.
    pub object_keys: KeySources,
    /// Whether what is written into the bucket is encrypted, too, so that nobody without a key can read it.
    pub object_encrypt: bool,
    /// Whether entries of the bucket that are not sealed are used although there are keys: while a bucket changes over to them.
    pub object_accept_unsealed: bool,
    /// Entries of the bucket that are older leave it, in seconds; 0: none leaves for its age.
    pub object_ttl_s: u64,
    /// The oldest entries leave the bucket until it holds no more bytes, those of all models together; a larger entry is not
    /// put there. 0: no bound.
    #[serde(deserialize_with = "size::deserialize")]
    pub object_max_bytes: u64,
    /// How often this node collects what is to leave the bucket, in seconds; 0: never by itself. Any number of nodes may.
    pub object_gc_interval_s: u64,
    /// How long a look-up in the bucket, or any other request to it, may take, in milliseconds; a second more for each MiB
    /// that it moves. What takes longer is a miss.
    pub object_timeout_ms: u64,
    /// Seconds within which text that was deleted or replaced, and what was computed from it, has left the files of the data folder. They
    /// are rewritten for that.
    pub vacuum_within_s: u64,
    /// How often all files of the corpus are compared with their checksums, in seconds from one comparison's end to the next one's begin; the
    /// first is after the start. 0: no other.
    pub verify_interval_s: u64,
    /// Whether the disk and object storage take everything (`always`), or what loads faster than it computes (`cost`).
    pub kv_admission: AdmissionRule,
    /// What keeping KV costs in money: the plan says in which tier it costs least without a prompt being slower, and an entry that does
    /// as well where it is takes nobody's room in a dearer one.
    pub prices: Prices,
    /// Whether a model that was not calibrated is blended all the same. Else it reuses what is exact, and no more.
    pub blend_uncalibrated: bool,
    /// Whether a model that was not calibrated is, by itself, once there is nothing else to do.
    pub calibrate_when_idle: bool,
    /// Least share of a blended passage's tokens that is recomputed, in `0.0..=1.0`; more where that hides under the loads. None
    /// given: the calibration's, or 0.15.
    pub recompute_ratio: Option<f32>,
    /// The rule that chooses these tokens. None given: the calibration's, or `cacheblend`.
    pub selector: Option<Rule>,
    /// The layer, the first is 0, that chooses them, or of `critical-layer` the one that is looked at. None given: the
    /// calibration's, or the rule's own.
    pub selection_layer: Option<usize>,
    /// Passages of the primer that standalone entries are computed behind; none given takes the calibration's.
    pub primer_passages: Option<usize>,
    /// From how many passages a collection's vectors are indexed; below, every search compares all of them. Looked at whenever documents
    /// are added.
    pub vector_index_rows: usize,
    /// Bytes of collections' search indexes that stay in memory, of all together.
    pub index_cache_bytes: u64,
    /// Whether a prompt's prefill may begin with what its search has found so far, when the engine has nothing else to do
    /// and searching takes a while beside it.
    pub speculate: bool,
    /// Whether the passages of a prompt may stand in the order in which more of them is stored.
    pub arrange: bool,
    /// Passages retrieved for a question.
    pub top_k: Option<usize>,
    /// Passages that are retrieved for a question to be put in order by the reranker, of which the best `top_k` are taken; 0: none, the
    /// search's own order counts.
    pub rerank: usize,
    /// How similar a passage must be to a question: `auto`, as the embedding model was measured; `off`; or cosine similarity from -1 to 1.
    pub min_similarity: MinSimilarity,
    /// What is done with a question about which nothing is found.
    pub on_nothing_found: OnNothingFound,
    /// What the embedding model reads before a question; none given takes what its own files say, mostly nothing.
    pub embed_query_prompt: Option<String>,
    /// What it reads before a passage; with another one its vectors are others, and what was ingested is to be ingested again.
    pub embed_passage_prompt: Option<String>,
    /// Greatest length of a passage, in tokens of the language model.
    pub chunk_tokens: usize,
    /// Tokens that a passage may begin with although the one before it ends with them; 0: none.
    pub chunk_overlap_tokens: usize,
    /// Quotas of tenants that have none of their own, each as `NAME=NUMBER`; none of the default tenant, and no shares.
    pub tenant_quota: Vec<String>,
    /// Requests waiting or running before new ones are refused with 429.
    pub max_queued: usize,
    /// Answers that run together.
    pub max_batch: usize,
    /// What a step of the engine may take while answers run, in milliseconds: the most that is to pass between two of their tokens
    /// while other prompts are prefilled. 0: about twice what it takes without those.
    pub inter_token_ms: u64,
    /// Most tokens of an answer that are drafted and verified in one step, found by looking up where the answer's end stood before in prompt
    /// and answer; 0: none. Answers stay the same, token for token.
    pub num_speculative_tokens: usize,
    /// Fewest tokens at the answer's end that must have stood before.
    pub prompt_lookup_min: usize,
    /// Tokens at the answer's end that are compared: the place where most of them stood is drafted from.
    pub prompt_lookup_max: usize,
    /// How often a waiting prompt may be overtaken by others of its tenant that have more of their tokens cached. 0: first come,
    /// first served.
    pub reorder_window: u32,
    /// How long a layer of stored KV may take to come, in milliseconds; then its passage is computed.
    pub load_timeout_ms: u64,
    /// Seconds a request may take.
    pub deadline_s: u64,
    /// The engine elsewhere that answers in the place of this process's model, such as `http://127.0.0.1:8000`; none given: this one does.
    pub engine: Option<String>,
    /// The model that is asked there; none given: the only one that it serves.
    pub engine_model: Option<String>,
    /// Where that engine's API key stands, as `file:PATH` or `env:VARIABLE`; none given: it wants none.
    pub engine_key: Option<String>,
    /// Where the language model computes.
    pub device: Device,
    /// Compute threads; none given takes every core.
    pub threads: Option<usize>,
    /// Whether compute threads, weights and the KV pool are divided among the NUMA nodes of the processor.
    pub numa: Numa,
    /// How the language model's weights are kept; none given keeps them as its files have them.
    pub weights: Option<WeightFormat>,
    /// What the language model's products are computed in; none given takes bf16 where weights are bf16 and the
    /// processor multiplies that faster, else f32. Stored KV of one serves no other: nodes of different processors that
    /// share a store should all be given the same.
    pub compute: Option<ComputeDtype>,
    /// The instruction set of the kernels; none given takes the fastest. Paths differ in the last bits, and reuse each
    /// other's KV.
    pub kernels: Option<String>,
    /// Type of stored KV; none given takes that of the weights.
    pub kv_dtype: Option<KvDtype>,
    /// How passages and questions are written into a prompt.
    pub prompt: PromptFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            device_bytes: None,
            device_cache: true,
            device_policy: PolicyKind::Adaptive,
            host_bytes: 1 << 30,
            disk_bytes: 16 << 30,
            host_policy: PolicyKind::Adaptive,
            disk_policy: PolicyKind::Adaptive,
            object_url: None,
            corpus_url: None,
            corpus_interval_ms: 1000,
            object_options: ConnectionOptions::default(),
            object_codec: Codec::Plain,
            object_keys: KeySources::default(),
            object_encrypt: false,
            object_accept_unsealed: false,
            object_ttl_s: 0,
            object_max_bytes: 0,
            object_gc_interval_s: 3600,
            object_timeout_ms: 3000,
            vacuum_within_s: 3600,
            verify_interval_s: 24 * 3600,
            kv_admission: AdmissionRule::Cost,
            prices: Prices::default(),
            blend_uncalibrated: false,
            calibrate_when_idle: true,
            recompute_ratio: None,
            selector: None,
            selection_layer: None,
            primer_passages: None,
            vector_index_rows: 50_000,
            index_cache_bytes: 512 << 20,
            speculate: true,
            arrange: true,
            top_k: None,
            rerank: 0,
            min_similarity: MinSimilarity::default(),
            on_nothing_found: OnNothingFound::default(),
            embed_query_prompt: None,
            embed_passage_prompt: None,
            chunk_tokens: 256,
            chunk_overlap_tokens: 0,
            tenant_quota: Vec::new(),
            max_queued: 128,
            max_batch: 80,
            inter_token_ms: 0,
            num_speculative_tokens: 7,
            prompt_lookup_min: 2,
            prompt_lookup_max: 5,
            reorder_window: 32,
            load_timeout_ms: 5000,
            deadline_s: 120,
            engine: None,
            engine_model: None,
            engine_key: None,
            threads: None,
            numa: Numa::default(),
            weights: None,
            compute: None,
            device: Device::default(),
            kernels: None,
            kv_dtype: None,
            prompt: PromptFormat::default(),
        }
    }
}

impl Settings {
    /// How a model is loaded with these settings.
    pub fn load_options(&self) -> LoadOptions<'static> {
        LoadOptions {
            kv_dtype: self.kv_dtype,
            weights: self.weights,
            compute: self.compute,
            adapter: None,
            progress: None,
        }
    }

    /// Bytes of the KV pool where it lies in the processor's memory.
    pub fn pool_bytes(&self) -> u64 {
        self.device_bytes.unwrap_or(512 << 20)
    }

    /// Checks every value; the error names the key.
    pub fn validate(&self) -> Result<()> {
        let bad = |key: &str, why: &str| Err(Error::new(ErrorKind::InvalidInput, format!("setting `{key}` {why}")));
        if self.recompute_ratio.is_some_and(|ratio| !(0.0..=1.0).contains(&ratio)) {
            return bad("recompute_ratio", "must lie between 0.0 and 1.0");
        }
        let values = serde_json::to_value(self).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        check(TABLE, &values)?;
        if self.prompt_lookup_min > self.prompt_lookup_max {
            return bad("prompt_lookup_min", "must be at most `prompt_lookup_max`");
        }
        if self.chunk_overlap_tokens >= self.chunk_tokens / 2 {
            return bad("chunk_overlap_tokens", "must be less than half of `chunk_tokens`");
        }
        if let Some(Err(error)) = self.kernels.as_deref().map(simd::Path::from_name) {
            return bad("kernels", &format!("has a wrong value: {error}"));
        }
        if !self.prices.is_valid() {
            return bad("prices", "must be numbers that are not negative");
        }
        if self.object_keys.is_empty() && self.object_encrypt {
            return bad("object_encrypt", "wants a key to encrypt by: name one in `object_keys`");
        }
        if self.object_keys.is_empty() && self.object_accept_unsealed {
            return bad("object_accept_unsealed", "has no meaning without `object_keys`: nothing is sealed then");
        }
        self.tenant_quota()?;
        self.upstream().validate()?;
        self.prompt.validate()
    }

    /// How often this node looks at what others changed in the corpus.
    pub fn corpus_interval(&self) -> Duration {
        Duration::from_millis(self.corpus_interval_ms)
    }

    /// Quotas of tenants that have none of their own.
    ///
    /// # Errors
    /// `InvalidInput` for what is no quota, and for shares: nobody knows for how many tenants a tier would have to have them.
    pub fn tenant_quota(&self) -> Result<Quota> {
        let told = |error: Error| Error::new(error.kind(), format!("setting `tenant_quota`: {error}"));
        let read = read_quotas(self.tenant_quota.iter().map(String::as_str)).map_err(told)?;
        if let Some((name, _)) = read.iter().find(|(name, _)| name.is_share()) {
            let message = format!(
                "setting `tenant_quota` has `{name}`, which is guaranteed to tenants one by one: `ragstone keys set`"
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(Quota(read.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()))
    }

    /// The engine elsewhere, where there is one.
    pub fn upstream(&self) -> UpstreamOptions {
        UpstreamOptions { url: self.engine.clone(), model: self.engine_model.clone(), key: self.engine_key.clone() }
    }

    /// How the engine of this process runs.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            max_queued: self.max_queued,
            max_batch: self.max_batch,
            inter_token_ms: self.inter_token_ms as f64,
            reorder_window: self.reorder_window,
            load_deadline: Duration::from_millis(self.load_timeout_ms),
        }
    }

    /// Loads the embedding model of a folder, with what it is to read before texts.
    ///
    /// # Errors
    /// As [`SentenceEncoder::load`]; `InvalidInput` for prompts that are too long.
    pub fn load_embedder(&self, folder: &Path) -> Result<SentenceEncoder> {
        let encoder = SentenceEncoder::load(folder)?;
        let own = encoder.prompts().clone();
        let prompts = Prompts {
            query: self.embed_query_prompt.clone().unwrap_or(own.query),
            passage: self.embed_passage_prompt.clone().unwrap_or(own.passage),
        };
        encoder.with_prompts(prompts)
    }

    /// How drafts of an answer are made, of `most` tokens at most where the question says.
    pub fn lookup(&self, most: Option<usize>) -> Lookup {
        let most = self.num_speculative_tokens.min(most.unwrap_or(usize::MAX));
        let (least_match, most_match) = (self.prompt_lookup_min, self.prompt_lookup_max);
        Lookup { most, least_match, most_match, counts: Arc::default() }
    }

    /// The time within which deleted text has left the files.
    pub fn vacuum_within(&self) -> Duration {
        Duration::from_secs(self.vacuum_within_s)
    }

    /// The pause between two comparisons of the corpus with its checksums; `None`: there is no second one.
    pub fn verify_interval(&self) -> Option<Duration> {
        (self.verify_interval_s > 0).then_some(Duration::from_secs(self.verify_interval_s))
    }

    /// Sizes the compute threads and chooses the kernels, for the whole process: only the first call can.
    ///
    /// # Errors
    /// `InvalidInput` if this machine does not have the kernels asked for, or others are in use already.
    pub fn prepare_compute(&self) -> Result<()> {
        // 0 takes what the machine has. Unnamed they would bear the name of whoever computes first.
        let threads = self.threads.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("compute-{index}"));
        let wanted = (threads, self.numa);
        match numa::build_global(pool, threads, self.numa) {
            Ok(team) => {
                let _ = PREPARED.set(wanted);
                if let Some(team) = team {
                    tracing::info!("{team}");
                    if let Some(why) = team.refusal() {
                        tracing::warn!(why, "the system does not let memory be placed on NUMA nodes");
                    }
                }
            }
            Err(_) if PREPARED.get() == Some(&wanted) => {}
            // Somebody who embeds this may have threads of his own.
            Err(_) if wanted == (0, Numa::default()) => {}
            Err(error) => {
                tracing::warn!(%error, "the compute threads were set up already; `threads` and `numa` have no effect")
            }
        }
        if let Some(kernels) = &self.kernels {
            simd::Path::from_name(kernels)?.force()?;
        }
        Ok(())
    }
}
