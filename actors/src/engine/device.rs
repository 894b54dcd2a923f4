//! The engine's thread: looks at what there is, decides a step, makes it. It never waits for a disk, a network or a client.

mod drafting;
mod pass;
mod speculative;
mod swap;
mod views;

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ragstone_env::Env;
use ragstone_kernels::backend::Backend;
use ragstone_storage::block::{BlockCopy, BlockTable};
use ragstone_storage::tier::device::{DeviceTier, Refused};

use self::views::{begun, view, view_of_waiting};
use super::inbox::{Inbox, Waiting};
use super::pace::Pace;
use super::schedule::{Limits, Phase, Step, View, schedule};
use super::sequence::{Prefilling, Reply, Sequence, State, Tail};
use super::shares::{Party, Present, Shares};
use super::{EngineOptions, Job, Urgency, engine_panicked};
use crate::admission::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::prefill::Interruption;
use crate::prefill::{Prefill, PrefillError, Prompt};

/// How many passes take one prefill along after one of several broke a pass.
const CAREFUL_PASSES: usize = 64;

/// How long the engine sleeps at most while loads are under way: a caller that leaves does not wake it.
const NAP: Duration = Duration::from_millis(100);

/// What the engine's thread owns.
pub(super) struct Device<B: Backend> {
    pub backend: Arc<B>,
    pub pool: B::Pool,
    pub tier: DeviceTier,
    pub inbox: Arc<Inbox>,
    pub options: EngineOptions,
    pub env: Env,
    /// Those that have begun, in the order they came.
    sequences: Vec<Sequence<B>>,
    pace: Pace,
    shares: Shares,
    /// Whether background work was there at the last look.
    background_waits: bool,
    /// Passes that take one prefill along at most: one of several broke a pass.
    careful: usize,
    /// What was asked of the device has shown that it is lost.
    is_lost: bool,
}

/// Who takes part in a pass: a prefill, or one tail of a sequence.
#[derive(Clone, Copy)]
enum Part {
    Prefill(usize),
    Tail(usize, usize),
}

impl<B: Backend> Device<B> {
    pub(super) fn new(backend: Arc<B>, tier: DeviceTier, inbox: Arc<Inbox>, options: EngineOptions, env: Env) -> Self {
        let pool = backend.new_pool(tier.options().blocks);
        let (sequences, pace, shares) = (Vec::new(), Pace::default(), Shares::default());
        let (background_waits, careful, is_lost) = (false, 0, false);
        Self { backend, pool, tier, inbox, options, env, sequences, pace, shares, background_waits, careful, is_lost }
    }

    pub(super) fn run(&mut self) {
        loop {
            self.inbox.heed();
            self.sequences.iter_mut().for_each(Sequence::drop_unwanted);
            self.take_on_released();
            self.sequences.retain(|sequence| !matches!(sequence.state, State::Ended));
            self.give_up_loads();
            let Some(step) = self.decide() else { return };
            if step == Step::default() {
                self.sleep();
                continue;
            }
            self.make(&step);
        }
    }

    /// Something broke outside of a pass: whatever was under way begins again.
    pub(super) fn start_over(&mut self, error: impl Fn() -> Error) {
        self.sequences.drain(..).for_each(|mut sequence| sequence.interrupt(Interruption::Broken, &error));
    }

    /// The device's memory is gone, and with it what running sequences had there. What is swapped out is in host memory, and stays.
    fn lose_device(&mut self) {
        tracing::error!("the device's memory was lost; what ran goes on from stored KV");
        metrics::counter!("ragstone_device_lost_total").increment(1);
        let hottest = self.tier.hottest(self.tier.status().capacity_bytes / 2);
        let lost = || Error::new(ErrorKind::Internal, "the device was lost while it was answering; try again");
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.swapped.is_none()) {
            sequence.interrupt(Interruption::Broken, lost);
        }
        self.sequences.retain(|sequence| !matches!(sequence.state, State::Ended));
        self.tier.lose();
        // The old one first: there is no room for two.
        self.pool = self.backend.new_pool(0);
        self.pool = self.backend.new_pool(self.tier.options().blocks);
        self.inbox.tell_lost(hottest);
    }

    /// Whether an error says that the device is lost; then the step ends with that.
    fn is_loss(&mut self, error: &Error) -> bool {
        let is_loss = error.kind() == ErrorKind::DeviceLost;
        self.is_lost |= is_loss;
        is_loss
    }

    /// Nothing can go on before a load or a prompt comes.
    fn sleep(&self) {
        self.gauge();
        let is_loading = self.sequences.iter().any(|sequence| matches!(&sequence.state, State::Prefilling(_)));
        self.inbox.wait(is_loading.then_some(NAP));
    }

    /// A layer that does not come within the deadline is a late miss.
    fn give_up_loads(&mut self) {
        let patience = self.options.load_deadline;
        for sequence in &mut self.sequences {
            if let State::Prefilling(prefilling) = &mut sequence.state
                && prefilling.held.is_none()
                && !prefilling.prefill.is_ready()
                && prefilling.prefill.waits().is_some_and(|waits| waits > patience)
            {
                prefilling.prefill.give_up_load(patience);
            }
        }
    }

    /// The next step; `None` where the engine is to end.
    fn decide(&mut self) -> Option<Step> {
        let mut present = Present::default();
        let (pace, under_way) = (&self.pace, self.under_way());
        let is_busy = !under_way.is_empty();
        let mut views: Vec<View> = self.inbox.look(|waiting| {
            shed_hopeless(waiting, pace, is_busy);
            waiting.iter().map(|it| view_of_waiting(it, present.number(&Party::of(&it.job)))).collect()
        })?;
        let is_prefill = |sequence: &Sequence<B>| matches!(sequence.state, State::Prefilling(_));
        self.draft(!views.is_empty() || self.sequences.iter().any(is_prefill));
        let callers = self.decoding_by_caller();
        let decoding_rows = self.pace.decoding_rows(&callers);
        if decoding_rows < usize::MAX {
            self.pace.doubt(&callers, decoding_rows);
        }
        let rows = self.pace.rows(&callers, decoding_rows, self.options.inter_token_ms);
        for sequence in &mut self.sequences {
            let owner = present.number(&sequence.party);
            views.push(view(sequence, owner, rows));
        }
        let takes_rows = |view: &&View| matches!(view.phase, Phase::Waiting { .. } | Phase::Prefilling { .. });
        for view in views.iter().filter(|view| !view.background).filter(takes_rows) {
            present.wants(view.owner);
        }
        let served = self.shares.of(&present);
        let limits = Limits {
            rows,
            background_rows: self.pace.background_rows(),
            decoding_rows,
            sequences: self.options.max_batch,
            free_blocks: self.tier.allocator().free_blocks() + self.tier.evictable_blocks(),
            watermark_blocks: self.tier.allocator().watermark_blocks(),
            window: self.options.reorder_window,
        };
        let step = schedule(&views, &served, limits);
        self.inbox.note_begun(begun(&views, &step));
        self.count_overtaken(&views, &step);
        for sequence in &mut self.sequences {
            let advances = step.rows.iter().any(|(id, _)| *id == sequence.id);
            sequence.left_out = if advances { 0 } else { sequence.left_out + 1 };
        }
        self.inbox.note_pace(self.pace.least_row_ms(), under_way, self.speculative_and_decoding());
        self.background_waits = views.iter().any(|view| view.background);
        Some(step)
    }

    /// Rows of a step that answers have, of each caller that has a use for the step: one that waits for a load or for blocks has none.
    fn decoding_by_caller(&mut self) -> Vec<usize> {
        let mut rows: HashMap<Caller, usize> = HashMap::new();
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.swapped.is_none()) {
            let decoding = match &mut sequence.state {
                State::Decoding(tails) => tails.len(),
                State::Prefilling(prefilling) => match prefilling.is_ready() {
                    true => 0,
                    false => continue,
                },
                State::Ended => continue,
            };
            if sequence.urgency == Urgency::Answer {
                *rows.entry(sequence.party.caller()).or_default() += decoding;
            }
        }
        rows.into_values().collect()
    }

    /// Rows that the prompts of answers still have to compute, by caller.
    fn under_way(&self) -> HashMap<Caller, usize> {
        let mut rows: HashMap<Caller, usize> = HashMap::new();
        for sequence in self.sequences.iter().filter(|sequence| sequence.urgency == Urgency::Answer) {
            if let State::Prefilling(prefilling) = &sequence.state {
                *rows.entry(sequence.party.caller()).or_default() += prefilling.prefill.rows_left();
            }
        }
        rows
    }

    /// Whoever could have gone on, and saw a later one do so instead, was overtaken.
    fn count_overtaken(&mut self, views: &[View], step: &Step) {
        let could = |view: &&View| matches!(view.phase, Phase::Waiting { .. } | Phase::Prefilling { .. });
        let is_chosen = |view: &View| step.rows.iter().any(|(id, _)| *id == view.id);
        let last = views.iter().filter(could).filter(|view| is_chosen(view)).map(|view| view.id).max();
        let is_passed = |view: &&View| !is_chosen(view) && last.is_some_and(|last| view.id < last);
        let passed: BTreeSet<u64> = views.iter().filter(could).filter(is_passed).map(|view| view.id).collect();
        if passed.is_empty() {
            return;
        }
        for sequence in self.sequences.iter_mut().filter(|sequence| passed.contains(&sequence.id)) {
            sequence.overtaken += 1;
        }
        self.inbox.look(|waiting| {
            waiting.iter_mut().filter(|it| passed.contains(&it.id)).for_each(|waiting| waiting.overtaken += 1);
        });
    }

    fn make(&mut self, step: &Step) {
        self.let_go(|sequence| step.let_go.contains(&sequence.id));
        for id in &step.swap_out {
            self.preempt(*id);
            if std::mem::take(&mut self.is_lost) {
                return self.lose_device();
            }
        }
        for id in &step.swap_in {
            // Where the estimate was wrong it comes back in a later step.
            if let Err(error) = self.swap_in(*id)
                && !self.is_loss(&error)
            {
                tracing::debug!(%error, "a sequence stays swapped out");
            }
            if std::mem::take(&mut self.is_lost) {
                return self.lose_device();
            }
        }
        let started = self.env.stopwatch();
        for (id, _) in &step.rows {
            if let Some(waiting) = self.inbox.take(*id)
                && let Some(waiting) = self.begin(waiting)
            {
                self.inbox.put_back(waiting);
            }
            if std::mem::take(&mut self.is_lost) {
                return self.lose_device();
            }
        }
        let (mut parts, lacks_blocks) = self.make_room(step);
        if std::mem::take(&mut self.is_lost) {
            return self.lose_device();
        }
        if parts.is_empty() && lacks_blocks {
            // Blocks that were counted as free were not: what waiting prompts found is in the way of everybody.
            self.tier.clear();
            self.let_go(Sequence::is_speculative);
        }
        if self.careful > 0 {
            self.careful -= 1;
            let mut prefills = 0;
            parts.retain(|(part, _)| match part {
                Part::Prefill(_) => std::mem::replace(&mut prefills, 1) == 0,
                Part::Tail(..) => true,
            });
        }
        if parts.is_empty() {
            return;
        }
        match self.env.fail_point("engine.device") {
            Ok(()) => self.pass(&parts, &started, false),
            Err(_) => self.is_lost = true,
        }
        if std::mem::take(&mut self.is_lost) {
            self.lose_device();
        }
        self.gauge();
    }

    /// Lets a waiting prompt begin with what it has on the device; given back where there is no room after all.
    fn begin(&mut self, waiting: Waiting) -> Option<Waiting> {
        let is_speculative = waiting.urgency == Urgency::Speculative;
        let is_alone = self.sequences.is_empty() && !is_speculative;
        let (job, prefix) = (&waiting.job, waiting.job.plan.device_tokens() as usize);
        let begun = catch_unwind(AssertUnwindSafe(|| {
            self.env.fail_point("engine.prefill").map_err(PrefillError::Failed)?;
            match self.tier.begin(job.device.as_ref(), prefix, prefix, is_alone) {
                Ok((table, copy)) => {
                    copy_block(&*self.backend, &mut self.pool, copy)?;
                    Ok(Some(table))
                }
                Err(Refused::Gone) => Err(PrefillError::DeviceMiss),
                Err(Refused::Full(error)) if is_alone => Err(PrefillError::Failed(error)),
                Err(Refused::Full(_)) => Ok(None),
            }
        }));
        let table = match begun {
            Ok(Ok(Some(table))) => Ok(table),
            // What it would take is not idle.
            Ok(Ok(None)) if is_speculative => Err(PrefillError::Interrupted(Interruption::Preempted)),
            Ok(Ok(None)) => return Some(waiting),
            Ok(Err(PrefillError::Failed(error))) if self.is_loss(&error) => {
                Err(PrefillError::Interrupted(Interruption::Broken))
            }
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(PrefillError::Failed(engine_panicked(panic.as_ref()))),
        };
        let Waiting { id, urgency, overtaken, job } = waiting;
        let (party, reply) = (Party::of(&job), Reply::new(job.reply));
        let table = match table {
            Ok(table) => table,
            Err(error) => {
                reply.send(Err(error));
                return None;
            }
        };
        let Job { tokens, plan, loads, device, selection, decode, queued, hold, computed, .. } = job;
        let (waits, outputs) = (reply.clone(), decode.iter().map(|spec| spec.output.clone()).collect::<Vec<_>>());
        let is_wanted = move || waits.is_wanted() && (outputs.is_empty() || outputs.iter().any(|to| !to.is_closed()));
        let env = self.env.clone();
        let files_answer = decode.iter().any(|spec| spec.file.is_some());
        let is_wanted = Arc::new(is_wanted);
        // Whoever goes on with an answer that was interrupted has been told already.
        let asking = decode.first().filter(|spec| !spec.is_begun);
        let scores = asking.and_then(|spec| spec.sampler.params().prompt_logprobs);
        let prompt = Prompt { tokens: tokens.clone(), plan, loads, selection, env, files_answer, is_wanted, scores };
        let prefill = Prefill::new(&*self.backend, prompt);
        let inbox = self.inbox.clone();
        prefill.wake(Arc::new(move || inbox.stir()));
        let (queue_ms, begun, held) = (queued.elapsed_ms(), self.env.stopwatch(), None);
        let prefilling = Prefilling { prefill, table, device, decode, reply, tokens, queue_ms, begun, held, computed };
        let state = State::Prefilling(Box::new(prefilling));
        let sequence = Sequence { overtaken, hold, ..Sequence::new(id, party, urgency, state) };
        let place = self.sequences.partition_point(|other| other.id < id);
        self.sequences.insert(place, sequence);
        None
    }

    /// Grows the tables of whoever advances, names who can, and says whether somebody could not for want of blocks.
    fn make_room(&mut self, step: &Step) -> (Vec<(Part, usize)>, bool) {
        let (mut parts, mut lacks_blocks) = (Vec::new(), false);
        let is_only = self.sequences.iter().filter(|sequence| sequence.swapped.is_none()).count() == 1;
        for (index, sequence) in self.sequences.iter_mut().enumerate() {
            let Some((_, rows)) = step.rows.iter().find(|(id, _)| *id == sequence.id) else { continue };
            let is_speculative = sequence.is_speculative();
            let Sequence { state, paths, .. } = sequence;
            let kept = paths.last();
            let mut grow = |table: &mut BlockTable, slots: usize| -> Result<()> {
                let tokens = slots.saturating_sub(table.tokens());
                let mut grown = self.tier.grow(kept, table, tokens);
                if grown.is_err() && is_only && !is_speculative {
                    // Only what waiting prompts found can be in the way: it is not worth more than a prompt that runs.
                    self.tier.clear();
                    grown = self.tier.grow(None, table, tokens);
                }
                copy_block(&*self.backend, &mut self.pool, grown?)
            };
            let grown: Result<Vec<(Part, usize)>> = match state {
                State::Prefilling(prefilling) => {
                    if !prefilling.is_ready() {
                        continue;
                    }
                    let slots = prefilling.prefill.slots_needed(*rows);
                    grow(&mut prefilling.table, slots).map(|()| vec![(Part::Prefill(index), *rows)])
                }
                State::Decoding(tails) if sequence.swapped.is_none() => {
                    if *rows == tails.len() {
                        tails.iter_mut().for_each(Tail::drop_draft);
                    }
                    let mut grow_for = |(at, tail): (usize, &mut Tail)| {
                        let (slots, drafts) = (tail.slot() + 1, tail.draft.len());
                        // No answer fails for a draft.
                        if drafts == 0 || grow(&mut tail.table, slots + drafts).is_err() {
                            tail.drop_draft();
                            grow(&mut tail.table, slots)?;
                        }
                        Ok((Part::Tail(index, at), 1 + tail.draft.len()))
                    };
                    // A beam that has heard waits for the others.
                    let riding = tails.iter_mut().enumerate().filter(|(_, tail)| tail.heard().is_none());
                    riding.map(&mut grow_for).collect()
                }
                _ => continue,
            };
            match grown {
                Ok(grown) => parts.extend(grown),
                Err(error) if error.kind() == ErrorKind::DeviceLost => self.is_lost = true,
                // What it would take is not idle.
                Err(_) if sequence.is_speculative() => {
                    sequence.interrupt(Interruption::Preempted, || Error::new(ErrorKind::Cancelled, "let go"));
                }
                // Nobody else will free a block.
                Err(error) if is_only => sequence.fail(|| Error::new(error.kind(), error.to_string())),
                Err(error) => {
                    lacks_blocks = true;
                    tracing::debug!(%error, "a sequence waits for blocks");
                }
            }
        }
        (parts, lacks_blocks)
    }

    fn gauge(&self) {
        let blocks: usize = self.sequences.iter().map(Sequence::blocks).sum();
        let empty: usize = self.sequences.iter().map(Sequence::empty_slots).sum();
        metrics::gauge!("ragstone_kv_blocks_reserved").set(blocks as f64);
        metrics::gauge!("ragstone_kv_slots_empty").set(empty as f64);
    }
}

/// Takes out what cannot be prefilled in the time that is left, were it the only one: its rows are others' to have. Where there are no
/// others, it is to show what the engine can.
pub(super) fn shed_hopeless(waiting: &mut Vec<Waiting>, pace: &Pace, is_busy: bool) {
    let answers = waiting.iter().filter(|it| it.urgency == Urgency::Answer).count();
    if !is_busy && answers < 2 {
        return;
    }
    let is_hopeless = |it: &mut Waiting| {
        it.urgency == Urgency::Answer
            && !it.job.is_begun()
            && pace.least_row_ms() * it.job.least_rows() as f64 > it.job.left_ms()
    };
    for Waiting { job, .. } in waiting.extract_if(.., is_hopeless) {
        metrics::counter!("ragstone_shed_total", "worker" => "engine").increment(1);
        let message = format!("{} tokens cannot be computed before the request's deadline; try again", job.rows());
        Reply::new(job.reply).send(Err(PrefillError::Failed(Error::new(ErrorKind::DeadlineExceeded, message))));
    }
}

/// Gives a sequence its own block in the place of a shared one.
fn copy_block<B: Backend>(backend: &B, pool: &mut B::Pool, copy: Option<BlockCopy>) -> Result<(), Error> {
    copy.map_or(Ok(()), |copy| backend.copy_block(pool, copy.from(), copy.to()))
}
