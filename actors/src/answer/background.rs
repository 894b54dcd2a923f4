//! Work behind the answers: filing fresh KV, computing the entries that later questions will want, and bringing back to the
//! device what it lost.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::KvStore;
use ragstone_storage::tier::device::LostPath;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::deadline::{deadline_after, deadline_error};
use crate::admission::turns::ComputeTime;
use crate::answer::runner::{Dropping, Run, Runner};
use crate::engine::Urgency;
use crate::error::Result;
use crate::eviction::{Evictor, FreshKv};
use crate::prefill::Selection;
use crate::worker::{Supervised, panic_text};

/// Passages that may wait to be computed. More are dropped: the next question that meets them asks again.
const MAX_WAITING: usize = 256;
/// Chains among them: each is up to a prompt's length of work.
const MAX_CHAINS: usize = 8;

/// Nobody waits for background work; this bounds what a hung disk can hold up.
const DEADLINE: Duration = Duration::from_secs(600);

/// A handle on the background work.
#[derive(Clone)]
pub(crate) struct Background {
    queue: mpsc::Sender<(Work, Pending)>,
    pending: Arc<watch::Sender<usize>>,
    chains: Chains,
    runtime: Handle,
    workers: Arc<Workers>,
}

/// The chains that wait or are computed, by their last keys.
#[derive(Clone, Default)]
struct Chains(Arc<Mutex<HashSet<KvKey>>>);

/// A chain's place among them.
struct ChainPlace {
    key: KvKey,
    chains: Chains,
}

impl Chains {
    /// Whether there is a place for it.
    fn begin(&self, key: KvKey) -> bool {
        let mut chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chains.len() < MAX_CHAINS && chains.insert(key)
    }
}

impl Drop for ChainPlace {
    fn drop(&mut self) {
        self.chains.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// An entry to compute before anybody asks: of a passage behind system prompt and primer, so that it can stand anywhere in a later prompt,
/// or of a module.
#[derive(Clone)]
pub(crate) struct Precompute {
    pub key: KvKey,
    /// The prompt in which it is computed: its last segment is the entry's.
    pub prompt: Arc<[Segment]>,
    /// The store's epoch before its text was read: what was invalidated since is not filed.
    pub found_in: u64,
}

/// The beginning of a prompt, to compute after exactly what stands before each of its segments.
pub(crate) struct Chain {
    pub tenant: Arc<str>,
    /// Each with its key behind those before it.
    pub segments: Vec<(KvKey, Segment)>,
    /// As a [`Precompute`]'s.
    pub found_in: u64,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precomputed {
    /// It is in the store now, as far as a tier took it.
    Computed,
    /// A tier of this machine had it; the disk is offered it again, if it was not there.
    AlreadyThere,
    /// The bucket has it.
    InBucket,
    /// It holds values that are not finite, and nothing keeps it.
    Unkeepable,
}

impl Precompute {
    /// A passage behind `root` and `primer`; `None` where prompts have no root.
    pub(crate) fn standalone(
        (fingerprint, tenant): (&Fingerprint, &str),
        root: Option<&Segment>,
        primer: &Primer,
        passage: Segment,
        found_in: u64,
    ) -> Self {
        let root_key = root.map(|root| KvKey::derive(fingerprint, tenant, None, &root.tokens));
        let primed = primer.key(fingerprint, tenant, root_key);
        let key = KvKey::derive(fingerprint, tenant, primed.as_ref(), &passage.tokens);
        Self { key, prompt: primer.prompt(root, passage).into(), found_in }
    }

    /// A module, as it is computed apart; `None` for a segment that is none.
    pub(crate) fn module(fingerprint: &Fingerprint, tenant: &str, module: &Segment, found_in: u64) -> Option<Self> {
        let (key, prompt) = module.apart(fingerprint, tenant)?;
        Some(Self { key, prompt: prompt.into(), found_in })
    }

    /// The entry's tokens.
    pub(crate) fn tokens(&self) -> Arc<[u32]> {
        self.prompt.last().map_or_else(|| Arc::from([]), |segment| segment.tokens.clone())
    }
}

/// For whom something is computed.
pub(crate) struct Whose {
    pub tenant: Arc<str>,
    pub caller: Caller,
    pub urgency: Urgency,
    pub deadline: Instant,
}

impl Whose {
    /// Nobody waits for it.
    pub(crate) fn background(tenant: Arc<str>) -> Self {
        let (caller, deadline) = (Caller::default(), deadline_after(DEADLINE));
        Self { tenant, caller, urgency: Urgency::Background, deadline }
    }
}

/// One piece of work for the engine.
enum Work {
    Entry(Arc<str>, Precompute),
    Chain(Chain, ChainPlace),
    /// And the store's epoch when it was lost.
    Restore(LostPath, u64),
}

/// The workers that background work uses.
pub(crate) struct Workers {
    pub runner: Runner,
    pub evictor: Supervised<Evictor>,
}

/// Counts one piece of work until it is done, however it ends.
struct Pending(Arc<watch::Sender<usize>>);

impl Pending {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Background {
    /// Starts the task that works through the queue, one passage after the other.
    pub(crate) fn start(workers: Workers, runtime: Handle) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(Work, Pending)>(MAX_WAITING);
        let workers = Arc::new(workers);
        let theirs = workers.clone();
        runtime.spawn(async move {
            while let Some((wanted, _pending)) = waiting.recv().await {
                let done = async {
                    match wanted {
                        Work::Entry(tenant, wanted) => {
                            precompute(&theirs, &Whose::background(tenant), wanted).await.map(drop)
                        }
                        Work::Chain(wanted, _place) => make_exact(&theirs, wanted).await,
                        Work::Restore(path, lost_in) => restore(&theirs, path, lost_in).await,
                    }
                };
                let done = done.instrument(tracing::info_span!("background"));
                // Those behind it have their turn, whatever it met.
                match AssertUnwindSafe(done).catch_unwind().await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "a passage was not computed in the background"),
                    Err(panic) => {
                        let what = panic_text(panic.as_ref());
                        tracing::error!(panic = what, "background work panicked; it goes on with the next piece");
                        metrics::counter!("ragstone_panics_total", "worker" => "background").increment(1);
                    }
                }
            }
        });
        Self { queue, pending: Arc::new(watch::Sender::new(0)), chains: Chains::default(), runtime, workers }
    }

    /// Queues an entry; drops it where the queue is full.
    pub(crate) fn precompute(&self, tenant: Arc<str>, wanted: Precompute) {
        self.queue(Work::Entry(tenant, wanted));
    }

    /// Queues the beginning of a prompt; drops it where it is queued already, or enough others are: passages' own entries, which serve any
    /// order, must not wait for hours.
    pub(crate) fn chain(&self, wanted: Chain) {
        let Some(key) = wanted.segments.last().map(|(key, _)| *key) else { return };
        if self.chains.begin(key) {
            self.queue(Work::Chain(wanted, ChainPlace { key, chains: self.chains.clone() }));
        }
    }

    /// Queues a path that the device lost; drops it where the queue is full.
    pub(crate) fn restore(&self, path: LostPath, lost_in: u64) {
        self.queue(Work::Restore(path, lost_in));
    }

    fn queue(&self, work: Work) {
        if self.queue.try_send((work, Pending::new(&self.pending))).is_err() {
            metrics::counter!("ragstone_precompute_dropped_total").increment(1);
        }
    }

    /// Computes an entry now where no tier has it, before those in the queue, and says what became of it.
    pub(crate) async fn compute(&self, whose: &Whose, wanted: Precompute) -> Result<Precomputed> {
        let span = tracing::info_span!(parent: None, "background");
        precompute(&self.workers, whose, wanted).instrument(span).await
    }

    /// Files fresh KV without making the answer wait, behind what is dropped first. Where the eviction worker is overloaded it is not kept.
    pub(crate) fn keep(&self, evictor: &Supervised<Evictor>, keep: FreshKv, dropping: Option<Dropping>) {
        self.keep_or(evictor, keep, dropping, || ());
    }

    /// As [`keep`](Self::keep); tells `lost` where it is not kept.
    pub(crate) fn keep_or(
        &self,
        evictor: &Supervised<Evictor>,
        keep: FreshKv,
        dropping: Option<Dropping>,
        lost: impl FnOnce() + Send + 'static,
    ) {
        let pending = Pending::new(&self.pending);
        let evictor = evictor.clone();
        self.runtime.spawn(async move {
            Dropping::end(dropping).await;
            if let Err(error) = evictor.ask(keep, DEADLINE).await {
                tracing::warn!(%error, "fresh KV was not kept; it will be computed again");
                lost();
            }
            drop(pending);
        });
    }

    /// Pieces of work that are not done.
    pub(crate) fn pending(&self) -> usize {
        *self.pending.borrow()
    }

    /// Waits until everything is done.
    pub(crate) async fn settle(&self) {
        let mut watched = self.pending.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        drop(watched.wait_for(|count| *count == 0).await);
    }
}

/// Whether any tier has it; object storage is asked last.
async fn is_there(store: &KvStore, key: KvKey, tokens: Arc<[u32]>) -> Result<bool> {
    if store.contains(&key).is_some() {
        return Ok(true);
    }
    let store = store.clone();
    blocking(move || Ok(store.find_objects([(&key, &tokens[..])]).contains(&key))).await
}

/// Computes one entry where no tier has it, and files it.
async fn precompute(workers: &Workers, whose: &Whose, wanted: Precompute) -> Result<Precomputed> {
    let key = wanted.key;
    if is_there(&workers.runner.store, key, wanted.tokens()).await? {
        // An answer has no time for what was lost on its way to the disk.
        if whose.urgency == Urgency::Background {
            workers.runner.store.write_again(&key);
        }
        let is_local = workers.runner.store.contains(&key).is_some();
        return Ok(if is_local { Precomputed::AlreadyThere } else { Precomputed::InBucket });
    }
    let filed = compute(workers, whose, wanted.prompt, wanted.found_in).await?;
    Ok(if filed.contains(&key) { Precomputed::Computed } else { Precomputed::Unkeepable })
}

/// Computes what no tier has of a chain, and files it: segment by segment, each of which finds those before it, so that what is done stays
/// done, and an answer that comes meanwhile waits for one of them at the most.
async fn make_exact(workers: &Workers, wanted: Chain) -> Result<()> {
    let store = &workers.runner.store;
    let mut path = Vec::with_capacity(wanted.segments.len());
    for (key, segment) in wanted.segments {
        let tokens = segment.tokens.clone();
        path.push(segment);
        if store.epoch() != wanted.found_in {
            // A passage of it may be gone.
            return Ok(());
        }
        if !is_there(store, key, tokens).await? {
            let whose = Whose::background(wanted.tenant.clone());
            compute(workers, &whose, path.clone().into(), wanted.found_in).await?;
        }
    }
    Ok(())
}

/// Brings a path back to the device from the slower tiers. Only what is behind it is computed: one token.
async fn restore(workers: &Workers, lost: LostPath, lost_in: u64) -> Result<()> {
    let last = lost.segments.iter().rev().find_map(|segment| segment.tokens.last().copied());
    let behind = Segment { kind: SegmentKind::Question, tokens: last.into_iter().collect(), place: None };
    let segments = lost.segments.into_iter().chain([behind]).collect();
    compute(workers, &Whose::background(lost.tenant), segments, lost_in).await.map(drop)
}

/// Prefills a prompt, and files what is fresh, unless it was invalidated after the epoch `found_in`; the keys
/// of what was filed.
async fn compute(workers: &Workers, whose: &Whose, segments: Arc<[Segment]>, found_in: u64) -> Result<Vec<KvKey>> {
    let Whose { tenant, caller, urgency, deadline } = whose;
    let run = Run {
        segments,
        caller: *caller,
        tenant: tenant.clone(),
        primer: Primer::none(),
        options: PlanOptions::fixed(0.0, ReuseMode::ExactOnly),
        selection: Selection::default(),
        found_in,
        urgency: *urgency,
        deadline: *deadline,
        explain: false,
        hold: None,
        computed: ComputeTime::default(),
    };
    let ran = workers.runner.run(&run, |_, _| (Vec::new(), ())).await?;
    Dropping::end(ran.dropping).await;
    let planned_in = ran.prefill.plan.epoch.min(found_in);
    let keys = ran.prefill.fresh.iter().map(|segment| segment.key).collect();
    let keep = FreshKv { tenant: tenant.clone(), segments: ran.prefill.fresh, planned_in };
    if *urgency == Urgency::Background {
        return workers.evictor.ask(keep, DEADLINE).await.map(|()| keys);
    }
    // Somebody waits, and does not need it: what is not filed is computed with the prompt.
    let kept = timeout_at(*deadline, workers.evictor.ask(keep, DEADLINE)).await;
    match kept.unwrap_or_else(|_| Err(deadline_error())) {
        Ok(()) => Ok(keys),
        Err(error) => {
            tracing::warn!(%error, "a module was computed and not kept");
            Ok(Vec::new())
        }
    }
}
