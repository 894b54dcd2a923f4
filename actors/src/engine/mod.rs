//! The engine: one OS thread that owns the model and the device's KV pool, and never waits for a disk, a network or a client.
//!
//! Each step is one pass over the weights for everybody: chunks of prefills, rows of blends, one token of each running answer
//! and the draft behind it ([`schedule`], [`lookup`]); the kernels' row invariance makes the company invisible in the bits of each row. Blocks are allocated as
//! sequences grow; where they run out, the sequence that came last is swapped to host memory, and comes back bit for bit.

mod beams;
mod device;
mod inbox;
mod lookup;
mod pace;
mod prefiller;
mod schedule;
mod sequence;
mod shares;
pub mod status;
mod text;

pub use lookup::{DraftCounts, Lookup};
pub use prefiller::{PrefillRequest, Prefiller};
pub use text::{FileText, FullText};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::pool::BLOCK_TOKENS;
use ragstone_kernels::sampling::{Sampled, Sampler, Scored};
use ragstone_storage::prompt::plan::LoadPlan;
use ragstone_storage::tier::device::{DevicePath, DeviceTier, LostPath};
use tokio::sync::{mpsc, oneshot};

use self::device::Device;
use self::inbox::Inbox;
use crate::admission::caller::Caller;
use crate::admission::turns::ComputeTime;
use crate::engine::status::DeviceStatus;
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::{FailedLoad, LayerLoads};
use crate::prefill::{FreshSegment, Interruption, PrefillError, Selection};
use crate::report::{FinishReason, TierLoad, TokenAccount};
use crate::speculation::{Hold, Load};
use crate::worker::panic_text;

/// A handle on the engine thread. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    inbox: Arc<Inbox>,
    device: DeviceTier,
    model: ModelConfig,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// One prompt for the engine.
pub struct Job {
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// Where each segment's KV comes from.
    pub plan: LoadPlan,
    /// The reused layers.
    pub loads: LayerLoads,
    /// What is on the device already; `None` takes nothing from there and leaves nothing.
    pub device: Option<DevicePath>,
    /// Which tokens of blended passages are recomputed.
    pub selection: Selection,
    /// The answers that go on behind the prompt; none computes the prompt's KV only.
    pub decode: Vec<DecodeSpec>,
    /// Who asks: callers that wait have equal shares.
    pub caller: Caller,
    /// Whose it is: tenants of a caller have equal shares of its share.
    pub tenant: Arc<str>,
    /// Who waits for the prefill.
    pub reply: oneshot::Sender<Result<PrefillReport, PrefillError>>,
    /// Started when it was queued.
    pub queued: Stopwatch,
    /// How long from then on somebody waits for the prefill.
    pub within: Duration,
    /// Until it is released, the prompt is one that the request may turn out not to have: see [`Urgency::Speculative`].
    pub hold: Option<Hold>,
    /// Where its part of each pass is counted, whatever comes of it.
    pub computed: ComputeTime,
}

impl Job {
    /// Rows that the engine has to compute for it.
    fn rows(&self) -> usize {
        (self.plan.computed_tokens + self.plan.blended_tokens) as usize
    }

    /// As [`rows`](Self::rows), if of blended tokens only the chosen ones are computed: the least that it can come to.
    fn least_rows(&self) -> usize {
        (f64::from(self.plan.computed_tokens) + f64::from(self.plan.blended_tokens) * f64::from(self.plan.ratio))
            as usize
    }

    /// Whether it goes on with an answer of which the client has a part.
    fn is_begun(&self) -> bool {
        self.decode.iter().any(|decode| decode.is_begun)
    }

    /// Milliseconds that are left to prefill it.
    fn left_ms(&self) -> f64 {
        self.within.as_secs_f64() * 1e3 - self.queued.elapsed_ms()
    }

    /// Whether somebody still waits for what comes of it: for its prefill and, where tokens follow, for those.
    fn is_wanted(&self) -> bool {
        let has_reader = self.decode.iter().any(|decode| !decode.output.is_closed());
        !self.reply.is_closed() && (has_reader || self.decode.is_empty())
    }
}

/// Goes on with an answer that was interrupted, behind the tokens that were generated already. Called on the engine's thread: it
/// must not wait.
pub type Resume = Arc<dyn Fn(DecodeSpec, Vec<u32>, Interruption) + Send + Sync>;

/// Told what was on the device and is worth bringing back first, when its memory was lost. On the engine's thread, too.
pub type WhenLost = Arc<dyn Fn(Vec<LostPath>) + Send + Sync>;

/// How to continue a prompt.
#[derive(Clone)]
pub struct DecodeSpec {
    /// Draws tokens.
    pub sampler: Sampler,
    /// Most tokens to generate; 0: none, the prompt alone is wanted.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub end_tokens: Arc<[u32]>,
    /// How drafts of it are made. They change when tokens come, and never which.
    pub lookup: Lookup,
    /// Files the answer's K and V as it grows; `None`: they are not kept.
    pub file: Option<FileText>,
    /// Who goes on where the device is lost or the engine breaks; `None`: the answer fails.
    pub resume: Option<Resume>,
    /// Whether the client has a part of the answer already: it is not refused for want of room or time any more.
    pub is_begun: bool,
    /// Where tokens go. Its capacity must be `max_tokens + 1`, so that a slow reader never stops the batch; a closed
    /// one cancels the sequence.
    pub output: mpsc::Sender<Decoded>,
}

/// What a running sequence produced.
#[derive(Debug)]
pub enum Decoded {
    /// The next token. An end token is not sent so.
    Token(Sampled),
    /// The end token, where the answer ends with one and log-probabilities of the prompt were asked for: whoever measures a text wants
    /// those of its end, too.
    EndToken(Sampled),
    /// The last item of a sequence that ended.
    End(FinishReason),
    /// The last item of a sequence that failed.
    Failed(Error),
}

/// What a prefill reports.
pub struct PrefillReport {
    /// What the model thought of each token of the prompt but the first, where a sampler's parameters ask for it.
    pub scores: Vec<Scored>,
    /// KV that may be kept.
    pub fresh: Vec<FreshSegment>,
    /// Where each token's KV came from.
    pub account: TokenAccount,
    /// What was done in the end: what could not be loaded was computed.
    pub plan: LoadPlan,
    /// What could not be loaded, to be dropped.
    pub late_misses: Vec<FailedLoad>,
    /// What was loaded.
    pub loads: Vec<TierLoad>,
    /// Waiting for the engine.
    pub queue_ms: f64,
    /// Waiting for layers.
    pub load_wait_ms: f64,
    /// Everything else of the prefill.
    pub compute_ms: f64,
    /// Its part of the passes that it shared: less than `compute_ms` where others ran beside it.
    pub computing_ms: f64,
}

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits.
    Answer,
    /// Somebody may wait for it: the request's search goes on. It has the steps that nobody else has a use for, keeps its blocks as long
    /// as nobody needs them, leaves nothing on the device, and waits behind its last token until it is released; then it is an
    /// [`Urgency::Answer`] (RAGCache, section 5.3).
    Speculative,
    /// Useful later. Where an answer needs its blocks it ends, and is planned again.
    Background,
}

/// How the engine runs.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Prompts of each urgency that may wait.
    pub max_queued: usize,
    /// Answers that run at once.
    pub max_batch: usize,
    /// What a step may take while answers run, in milliseconds; 0: about twice what it takes without prefills.
    pub inter_token_ms: f64,
    /// How often a waiting prompt is overtaken at most (RAGCache, section 5.2).
    pub reorder_window: u32,
    /// How long a layer of stored KV may take to come; then it is a late miss.
    pub load_deadline: Duration,
}

impl Engine {
    /// Starts the thread. `tier` has the blocks.
    ///
    /// # Errors
    /// If the system has no thread left, or the device no memory for `tier`.
    pub fn start<B: Backend>(backend: Arc<B>, tier: DeviceTier, options: EngineOptions, env: Env) -> Result<Self> {
        let inbox = Arc::new(Inbox::new(options.max_queued));
        let model = backend.config().clone();
        let mut device = Device::new(backend.clone(), tier.clone(), inbox.clone(), options, env);
        // Whether there was memory for the pool.
        backend.check()?;
        let supervised = move || {
            // What a pass can panic on it catches; this is for the rest, which costs what is under way and not the service.
            while let Err(panic) = catch_unwind(AssertUnwindSafe(|| device.run())) {
                device.start_over(|| engine_panicked(panic.as_ref()));
            }
        };
        let thread = Mutex::new(Some(Env::spawn("engine", supervised)?));
        Ok(Self { shared: Arc::new(Shared { inbox, device: tier, model, thread }) })
    }

    /// Queues a job.
    ///
    /// # Errors
    /// `Overloaded` where the queue is full or too long for the time that it has, `ContextLength` where prompt and answer exceed the model's context or the
    /// device tier.
    pub fn submit(&self, job: Job, urgency: Urgency) -> Result<()> {
        if job.tokens.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "the prompt is empty; send at least one token"));
        }
        let answers: Vec<usize> = job.decode.iter().map(|decode| decode.max_tokens).collect();
        self.check_fits(job.tokens.len(), &answers)?;
        self.shared.inbox.push(job, urgency)
    }

    /// Lets a speculative prefill go on to its answer, from the next step on.
    pub fn release(&self, hold: &Hold) {
        hold.release();
        self.shared.inbox.stir();
    }

    /// What there is to do, as of the last step.
    pub fn load(&self) -> Load {
        self.shared.inbox.load(pace::MOST_ROWS)
    }

    /// Whether its thread runs.
    pub fn is_alive(&self) -> bool {
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// How many tokens each of so many answers to such a prompt may have.
    ///
    /// # Errors
    /// `ContextLength` where there is no place for one.
    pub fn room(&self, prompt_tokens: usize, answers: usize) -> Result<usize> {
        self.check_fits(prompt_tokens, &vec![1; answers])?;
        let blocks = self.shared.device.allocator().usable_blocks();
        // What is left beside the prompt's whole blocks; each answer has a copy of the last one.
        let behind = prompt_tokens % BLOCK_TOKENS;
        let each = (blocks - prompt_tokens / BLOCK_TOKENS) / answers.max(1) * BLOCK_TOKENS;
        Ok((self.context() - prompt_tokens).min(each - behind))
    }

    /// Tokens of prompt and answer together, as far as the model goes.
    pub fn context(&self) -> usize {
        self.shared.model.max_positions
    }

    /// How many tokens the model knows.
    pub fn vocabulary(&self) -> usize {
        self.shared.model.vocab_size
    }

    /// The model's layers.
    pub fn layers(&self) -> usize {
        self.shared.model.layers
    }

    /// Whether a prompt and its answers can ever be served.
    fn check_fits(&self, prompt_tokens: usize, answers: &[usize]) -> Result<()> {
        let max_tokens = answers.iter().copied().max().unwrap_or(0);
        let wanted = prompt_tokens.saturating_add(max_tokens);
        let context = self.context();
        if wanted > context {
            return Err(Error::new(
                ErrorKind::ContextLength,
                format!(
                    "the prompt has {prompt_tokens} tokens and {max_tokens} more may be generated, but the model's context is \
                     {context}; shorten the prompt, or ask for fewer passages"
                ),
            ));
        }
        if blocks_of(prompt_tokens, answers) > self.shared.device.allocator().usable_blocks() {
            let count = answers.len();
            return Err(Error::new(
                ErrorKind::ContextLength,
                format!(
                    "a prompt of {prompt_tokens} tokens with {count} answers of {max_tokens} to generate does not fit the device \
                     tier; raise `device_bytes`"
                ),
            ));
        }
        Ok(())
    }

    /// Calls `when_lost` whenever the device's memory is lost.
    pub fn when_lost(&self, when_lost: WhenLost) {
        self.shared.inbox.when_lost(when_lost);
    }

    /// The device tier.
    pub fn status(&self) -> DeviceStatus {
        let device = &self.shared.device;
        DeviceStatus {
            blocks: device.allocator().total_blocks(),
            free_blocks: device.allocator().free_blocks(),
            cached_blocks: device.evictable_blocks(),
            preemptions: self.shared.inbox.preemptions(),
            groups: self.shared.inbox.sharing(),
            sequences: self.shared.inbox.sequences(),
            policy: device.options().policy,
            cache: device.status(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // The loop catches its panics; a join error would have been logged there. The thread itself may drop the last handle.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

/// Blocks of a prompt and its answers: each answer has the prompt's last block, where that is not full, to itself.
fn blocks_of(prompt_tokens: usize, answers: &[usize]) -> usize {
    let (shared, behind) = (prompt_tokens / BLOCK_TOKENS, prompt_tokens % BLOCK_TOKENS);
    let own = answers.iter().map(|tokens| tokens.saturating_add(behind).div_ceil(BLOCK_TOKENS));
    shared.saturating_add(own.fold(0, usize::saturating_add).max(behind.div_ceil(BLOCK_TOKENS)))
}

fn engine_panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic_text(panic);
    tracing::error!(worker = "engine", panic = what, "request panicked; the engine goes on");
    metrics::counter!("ragstone_panics_total", "worker" => "engine").increment(1);
    Error::new(ErrorKind::Internal, format!("the engine failed on this request ({what}); the service goes on"))
}

#[cfg(test)]
mod beam_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod scored_tests;
#[cfg(test)]
mod soak_tests;
#[cfg(test)]
mod tests;
