//! The engine: one OS thread that owns the model and the device's KV pool.
//!
//! Requests come through a bounded queue. Between prefills every running sequence advances by one token a step
//! (iteration-level batching, as in Orca and vLLM); the kernels' row invariance makes the batch invisible in the bits of
//! each row. Background work (entries for later questions) runs only when nobody waits.

mod decode;
mod prefiller;
mod queue;

pub use prefiller::{PrefillRequest, Prefiller};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ragstone_kernels::model::Model;
use ragstone_kernels::pool::KvPool;
use ragstone_kernels::sampling::{Sampled, Sampler};
use ragstone_storage::block::{BlockCopy, BlockTable};
use ragstone_storage::env::{Env, Stopwatch};
use ragstone_storage::plan::LoadPlan;
use ragstone_storage::tier::device::{DevicePath, DeviceTier, KeptSegment, LostPath, Refused};
use tokio::sync::{mpsc, oneshot};

use self::decode::Running;
use self::queue::JobQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::LayerLoads;
use crate::prefill::{FreshSegment, PrefillError, Prefilled, Prompt, Selection, prefill_selecting};
use crate::ragstone::DeviceStatus;
use crate::report::{FinishReason, TierLoad, TokenAccount};
use crate::worker::panic_text;

/// A handle on the engine thread. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<JobQueue>,
    device: DeviceTier,
    model: Arc<Model>,
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
    /// What to do behind the prompt; `None` computes the prompt's KV only.
    pub decode: Option<DecodeSpec>,
    /// Who waits for the prefill.
    pub reply: oneshot::Sender<Result<Prefill, PrefillError>>,
    /// Started when it was queued.
    pub queued: Stopwatch,
}

impl Job {
    /// Whether somebody still waits for what comes of it: for its prefill and, where tokens follow, for those.
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed() && self.decode.as_ref().is_none_or(|decode| !decode.output.is_closed())
    }
}

/// How to continue a prompt.
pub struct DecodeSpec {
    /// Draws tokens.
    pub sampler: Sampler,
    /// Most tokens to generate; at least 1.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub end_tokens: Arc<[u32]>,
    /// Where tokens go. Its capacity must be `max_tokens + 1`, so that a slow reader never stops the batch; a closed
    /// one cancels the sequence.
    pub output: mpsc::Sender<Decoded>,
}

/// What a running sequence produced.
#[derive(Debug)]
pub enum Decoded {
    /// The next token. An end token is not sent.
    Token(Sampled),
    /// The last item of a sequence that ended.
    End(FinishReason),
    /// The last item of a sequence that failed.
    Failed(Error),
}

/// What a prefill reports.
pub struct Prefill {
    /// KV that may be kept.
    pub fresh: Vec<FreshSegment>,
    /// Where each token's KV came from.
    pub account: TokenAccount,
    /// What was loaded.
    pub loads: Vec<TierLoad>,
    /// Waiting for the engine.
    pub queue_ms: f64,
    /// Waiting for layers.
    pub load_wait_ms: f64,
    /// Everything else of the prefill.
    pub compute_ms: f64,
}

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits.
    Answer,
    /// Useful later.
    Background,
}

impl Engine {
    /// Starts the thread. `tier` has the blocks, `max_queued` bounds each of the two queues, `max_batch` the sequences that
    /// decode together.
    pub fn start(model: Arc<Model>, tier: DeviceTier, max_queued: usize, max_batch: usize, env: Env) -> Result<Self> {
        let queue = Arc::new(JobQueue::new(max_queued));
        let mut device = Device {
            pool: model.new_pool(tier.options().blocks),
            model: model.clone(),
            tier: tier.clone(),
            queue: queue.clone(),
            running: Vec::new(),
            max_batch,
            env,
        };
        let thread = Mutex::new(Some(Env::spawn("engine", move || device.run())?));
        Ok(Self { shared: Arc::new(Shared { queue, device: tier, model, thread }) })
    }

    /// Queues a job.
    ///
    /// # Errors
    /// `Overloaded` where the queue is full, `ContextLength` where prompt and answer exceed the model's context or the
    /// device tier.
    pub fn submit(&self, job: Job, urgency: Urgency) -> Result<()> {
        self.check_fits(job.tokens.len(), job.decode.as_ref().map_or(0, |decode| decode.max_tokens))?;
        self.shared.queue.push(job, urgency)
    }

    /// How many tokens an answer to such a prompt may have.
    ///
    /// # Errors
    /// `ContextLength` where there is no place for one.
    pub fn room(&self, prompt_tokens: usize) -> Result<usize> {
        self.check_fits(prompt_tokens, 1)?;
        let blocks = self.shared.device.allocator().usable_blocks();
        let device = blocks.saturating_mul(ragstone_kernels::pool::BLOCK_TOKENS);
        Ok(self.context().min(device).saturating_sub(prompt_tokens))
    }

    /// Tokens of prompt and answer together, as far as the model goes.
    pub fn context(&self) -> usize {
        self.shared.model.config().max_positions
    }

    /// How many tokens the model knows.
    pub fn vocabulary(&self) -> usize {
        self.shared.model.config().vocab_size
    }

    /// Whether a prompt and its answer can ever be served.
    pub fn check_fits(&self, prompt_tokens: usize, max_tokens: usize) -> Result<()> {
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
        if wanted.div_ceil(ragstone_kernels::pool::BLOCK_TOKENS) > self.shared.device.allocator().usable_blocks() {
            return Err(Error::new(
                ErrorKind::ContextLength,
                format!(
                    "a prompt of {prompt_tokens} tokens with {max_tokens} to generate does not fit the device tier; raise \
                     `device_bytes`"
                ),
            ));
        }
        Ok(())
    }

    /// The device's memory was lost: forgets what was in it, and says what to bring back first, half of what fits.
    pub fn device_lost(&self) -> Vec<LostPath> {
        let device = &self.shared.device;
        let lost = device.hottest(device.status().capacity_bytes / 2);
        device.lose();
        lost
    }

    /// The device tier.
    pub fn status(&self) -> DeviceStatus {
        let device = &self.shared.device;
        DeviceStatus {
            blocks: device.allocator().total_blocks(),
            free_blocks: device.allocator().free_blocks(),
            cached_blocks: device.evictable_blocks(),
            policy: device.options().policy,
            cache: device.status(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // The loop catches its panics; a join error would have been logged there.
            drop(thread.join());
        }
    }
}

/// What the engine thread owns.
struct Device {
    model: Arc<Model>,
    pool: KvPool,
    tier: DeviceTier,
    queue: Arc<JobQueue>,
    running: Vec<Running>,
    max_batch: usize,
    env: Env,
}

impl Device {
    fn run(&mut self) {
        let mut waiting: Option<Job> = None;
        loop {
            if waiting.is_none() && self.running.len() < self.max_batch {
                match self.queue.pop(self.running.is_empty()) {
                    queue::Popped::Job(job) => waiting = Some(*job),
                    queue::Popped::Nothing => {}
                    queue::Popped::Closed => return,
                }
            }
            if let Some(job) = waiting.take() {
                waiting = self.admit(job);
            }
            decode::step(&mut self.running, &self.model, &mut self.pool);
        }
    }

    /// Prefills `job`, or gives it back where the running sequences leave no room yet.
    fn admit(&mut self, job: Job) -> Option<Job> {
        if !job.is_wanted() {
            return None;
        }
        let tokens = job.tokens.len() + job.decode.as_ref().map_or(0, |decode| decode.max_tokens);
        let (is_alone, prefix) = (self.running.is_empty(), job.plan.device_tokens() as usize);
        match self.tier.begin(job.device.as_ref(), prefix, tokens, is_alone) {
            Ok((table, copy)) => self.prefill(job, table, copy),
            Err(Refused::Gone) => reply(job.reply, Err(PrefillError::DeviceMiss)),
            // `submit` made sure that it fits an empty pool, so running sequences hold the rest: wait for them.
            Err(Refused::Full(_)) if !is_alone => return Some(job),
            Err(Refused::Full(error)) => reply(job.reply, Err(PrefillError::Failed(error.into()))),
        }
        None
    }

    fn prefill(&mut self, mut job: Job, mut table: BlockTable, copy: Option<BlockCopy>) {
        let queue_ms = job.queued.elapsed_ms();
        let started = self.env.stopwatch();
        let (loads, blocks, env) = (&job.loads, table.blocks(), &self.env);
        let is_wanted = &|| job.is_wanted();
        let prompt = Prompt { tokens: &job.tokens, plan: &job.plan, loads, blocks, env, is_wanted };
        let span = tracing::info_span!("prefill", tokens = job.tokens.len());
        let outcome = span.in_scope(|| {
            catch_unwind(AssertUnwindSafe(|| {
                self.env.fail_point("engine.prefill").map_err(|error| PrefillError::Failed(error.into()))?;
                copy_block(&mut self.pool, copy)?;
                prefill_selecting(&self.model, &mut self.pool, &prompt, job.selection)
            }))
        });
        let done = match outcome {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => return reply(job.reply, Err(error)),
            Err(panic) => return reply(job.reply, Err(PrefillError::Failed(engine_panicked(panic.as_ref())))),
        };
        let paths = match self.keep(&mut job, &done, &mut table, &started) {
            Ok(paths) => paths,
            Err(error) => return reply(job.reply, Err(PrefillError::Failed(error))),
        };
        if let Some(decode) = job.decode {
            let position = job.tokens.len() as u32;
            if let Some(running) = Running::begin(decode, table, paths, position, &done.logits) {
                self.running.push(running);
            }
        } else {
            // Before the reply: who has it finds the blocks free.
            drop((table, paths));
        }
        let compute_ms = started.elapsed_ms() - done.load_wait_ms;
        let (fresh, account, loads) = (done.fresh, done.account, done.loads);
        let load_wait_ms = done.load_wait_ms;
        reply(job.reply, Ok(Prefill { fresh, account, loads, queue_ms, load_wait_ms, compute_ms }));
    }

    /// Leaves the prompt's exact path on the device for later prompts, and makes the sequence's next slot its own. The result
    /// is to be held for as long as the sequence runs.
    fn keep(
        &mut self,
        job: &mut Job,
        done: &Prefilled,
        table: &mut BlockTable,
        started: &Stopwatch,
    ) -> Result<Vec<DevicePath>> {
        let Some(seen) = job.device.take() else { return Ok(Vec::new()) };
        if !done.is_finite {
            return Ok(vec![seen]);
        }
        let path = KeptSegment::path_of(&job.plan, &job.tokens);
        let new_tokens = job.plan.total_tokens.saturating_sub(job.plan.device_tokens()).max(1);
        let us_per_token = started.elapsed_s() * 1e6 / f64::from(new_tokens);
        let kept = self.tier.keep(&seen, &path, table, us_per_token);
        if job.decode.is_some() {
            let copy = self.tier.own_slot(&kept, table, job.tokens.len())?;
            copy_block(&mut self.pool, copy)?;
        }
        Ok(vec![seen, kept])
    }
}

/// Gives a sequence its own block in the place of a shared one.
fn copy_block(pool: &mut KvPool, copy: Option<BlockCopy>) -> Result<(), ragstone_kernels::Error> {
    copy.map_or(Ok(()), |copy| pool.copy_block(copy.from(), copy.to()))
}

/// A caller that went away meanwhile is no error.
fn reply<T>(sender: oneshot::Sender<T>, value: T) {
    if sender.send(value).is_err() {
        tracing::debug!("nobody waited for a prefill any more");
    }
}

fn engine_panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic_text(panic);
    tracing::error!(worker = "engine", panic = what, "request panicked; the engine goes on");
    metrics::counter!("ragstone_panics_total", "worker" => "engine").increment(1);
    Error::new(ErrorKind::Internal, format!("the engine failed on this request ({what}); the service goes on"))
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
