//! One pass over the weights, and what it made of each that took part. A draft rides as rows behind its answer's token, at the positions
//! that follow: what a row's logits are depends on the rows before it alone, so that those behind right tokens are what they would be
//! one at a time, bit for bit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::ErrorKind;
use ragstone_env::Stopwatch;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::forward::{Chunk, Forward, Outcome, Passed, Places, Rider, Selector, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_storage::block::BlockTable;
use ragstone_storage::tier::device::{DevicePath, DeviceTier, KeptSegment};

use super::{Device, Part};
use crate::engine::beams::BeamGroup;
use crate::engine::sequence::{FinishedPrefill, Prefilling, Sequence, State, Tail};
use crate::engine::status::{GroupBlocks, GroupsStatus};
use crate::engine::text::GrowingText;
use crate::engine::{Decoded, PrefillReport, Urgency, engine_panicked};
use crate::prefill::Interruption;
use crate::prefill::{PrefillError, Prefilled};

impl<B: Backend> Device<B> {
    /// One pass over the weights for all parts. A panic is charged to whoever causes it: tails are repeated one at a time, which row
    /// invariance and idempotent writes make harmless; prefills are planned again, or fail where they were alone.
    pub(super) fn pass(&mut self, parts: &[(Part, usize)], started: &Stopwatch, is_repeat: bool) {
        let passed = catch_unwind(AssertUnwindSafe(|| self.riders_pass(parts)));
        self.is_lost |= self.sequences.iter().any(|sequence| match &sequence.state {
            State::Prefilling(prefilling) => prefilling.prefill.has_met_loss(),
            _ => false,
        });
        if self.is_lost {
            // Once this step is over: what is repeated goes by its place among the sequences.
            return;
        }
        let (passed, parts) = match passed {
            Ok(passed) => passed,
            Err(panic) if parts.len() == 1 => {
                let (Part::Prefill(index) | Part::Tail(index, _)) = parts[0].0;
                return self.sequences[index].fail(|| engine_panicked(panic.as_ref()));
            }
            Err(panic) => {
                engine_panicked(panic.as_ref());
                return self.repeat(parts, started);
            }
        };
        let ms = started.elapsed_ms();
        let Passed { outcomes, logits, layer_rows } = passed;
        let is_lost =
            |outcome: &Outcome<B>| matches!(outcome, Outcome::Failed(error) if error.kind() == ErrorKind::DeviceLost);
        if outcomes.iter().any(is_lost) {
            self.is_lost = true;
            return;
        }
        let layers = self.backend.config().layers;
        let all_rows: usize = layer_rows.iter().sum::<usize>().max(1);
        let mut prefilling = [0, 0];
        let (mut decoding, mut is_described) = (0, false);
        let mut over: Vec<(usize, usize)> = Vec::new();
        for ((part, rows), outcome) in parts.iter().zip(layer_rows).zip(outcomes) {
            let (Part::Prefill(index) | Part::Tail(index, _)) = *part;
            // As if each row had passed all layers.
            let whole_rows = rows.div_ceil(layers);
            if !self.sequences[index].is_speculative() {
                self.shares.add(&self.sequences[index].party, whole_rows as u64);
            }
            match *part {
                Part::Prefill(index) => {
                    let share = ms * rows as f64 / all_rows as f64;
                    let is_background = self.sequences[index].urgency == Urgency::Background;
                    prefilling[usize::from(is_background)] += whole_rows;
                    is_described |= self.has_scores(index);
                    self.prefilled(index, outcome, &logits, share);
                }
                Part::Tail(index, at) => {
                    let State::Decoding(tails) = &self.sequences[index].state else { continue };
                    decoding += 1 + tails[at].draft.len();
                    let goes_on = self.advance(index, at, outcome, &logits);
                    if !goes_on {
                        over.push((index, at));
                    }
                }
            }
        }
        self.end_tails(over);
        self.step_beams();
        self.note_sharing();
        if !is_repeat {
            let after_ms = started.elapsed_ms() - ms;
            // To look through the logits of each row takes as long as some rows do.
            let spent_ms = if is_described { ms + after_ms } else { ms };
            self.pace.observe(decoding, prefilling[0] + prefilling[1], spent_ms);
            tracing::trace!(decoding, prefilling = prefilling[0], background = prefilling[1], ms, after_ms, "a step");
            if self.background_waits {
                self.pace.owe(prefilling[0], prefilling[1]);
            }
        }
    }

    /// Whether it is asked what the model thinks of a prompt's tokens.
    fn has_scores(&self, index: usize) -> bool {
        let State::Prefilling(prefilling) = &self.sequences[index].state else { return false };
        prefilling.prefill.most_rows() < usize::MAX
    }

    /// Answers that are over, as (sequence, tail) in ascending order: their text is filed, their blocks are free.
    fn end_tails(&mut self, over: Vec<(usize, usize)>) {
        // From the last on: a tail that ends moves those behind it.
        for (index, at) in over.into_iter().rev() {
            let sequence = &mut self.sequences[index];
            if let State::Decoding(tails) = &mut sequence.state {
                leave_text(&self.tier, &sequence.paths, &sequence.path, tails.remove(at));
                if tails.is_empty() {
                    sequence.state = State::Ended;
                }
            }
        }
    }

    /// Takes a tail on by what a pass made of it; whether it goes on. A beam waits for the others.
    fn advance(&mut self, index: usize, at: usize, outcome: Outcome<B>, logits: &Matrix) -> bool {
        let sequence = &mut self.sequences[index];
        let State::Decoding(tails) = &mut sequence.state else { return true };
        match outcome {
            Outcome::Done(rows) if sequence.beams.is_some() => tails[at].hear(logits.row(rows.start).to_vec()),
            Outcome::Done(rows) => return tails[at].advance(logits, rows),
            Outcome::Failed(error) if sequence.beams.is_some() => {
                sequence.fail(|| crate::error::Error::new(error.kind(), error.to_string()));
            }
            Outcome::Failed(error) => {
                tails[at].send(Decoded::Failed(error));
                return false;
            }
            Outcome::Stopped(_) => {}
        }
        true
    }

    /// Takes the searches on whose beams have all heard what may come next.
    fn step_beams(&mut self) {
        for sequence in &mut self.sequences {
            let (State::Decoding(tails), Some(beams)) = (&mut sequence.state, &mut sequence.beams) else { continue };
            if tails.iter().all(|tail| tail.heard().is_some()) {
                *tails = beams.step(std::mem::take(tails));
                if tails.is_empty() {
                    sequence.state = State::Ended;
                }
            }
        }
    }

    /// Counts what groups that answer hold, and what their tails would hold apart; before that they have one table, whatever their kind.
    fn note_sharing(&self) {
        let answers =
            |sequence: &&Sequence<B>| matches!(sequence.state, State::Decoding(_)) && sequence.swapped.is_none();
        let groups = self.sequences.iter().filter(answers).filter(|sequence| sequence.tails() > 1);
        let mut step = GroupsStatus::default();
        for group in groups {
            let apart = group.tables().iter().map(|table| table.blocks().len() as u64).sum::<u64>();
            let blocks = GroupBlocks { held: group.blocks() as u64, apart };
            let of_its_kind = if group.beams.is_some() { &mut step.beams } else { &mut step.samples };
            *of_its_kind += blocks;
        }
        self.inbox.note_sharing(step);
    }

    /// After a pass of several that broke: tails one at a time; prefills are planned again.
    fn repeat(&mut self, parts: &[(Part, usize)], started: &Stopwatch) {
        self.careful = super::CAREFUL_PASSES;
        // From the last on: a tail that ends moves those behind it.
        for part in parts.iter().rev() {
            match part.0 {
                Part::Tail(..) => self.pass(&[*part], started, true),
                Part::Prefill(index) => {
                    if let State::Prefilling(prefilling) = &self.sequences[index].state {
                        prefilling.reply.send(Err(PrefillError::Interrupted(Interruption::Broken)));
                    }
                    self.sequences[index].state = State::Ended;
                }
            }
        }
    }

    /// The pass itself; with it those that took part, as a prefill that cannot be embedded does not.
    fn riders_pass(&mut self, parts: &[(Part, usize)]) -> (Passed<B>, Vec<Part>) {
        let (mut riders, mut riding) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        let backend = &*self.backend;
        for (index, sequence) in self.sequences.iter_mut().enumerate() {
            match &mut sequence.state {
                State::Prefilling(prefilling) => {
                    let Prefilling { prefill, table, reply, .. } = &mut **prefilling;
                    let rows = parts.iter().find(|(part, _)| matches!(part, Part::Prefill(at) if *at == index));
                    let Some((part, rows)) = rows else { continue };
                    match prefill.rider(backend, *rows, table.blocks()) {
                        Ok(rider) => {
                            riding.push(*part);
                            riders.push(rider);
                        }
                        Err(PrefillError::Failed(error)) if error.kind() == crate::error::ErrorKind::DeviceLost => {
                            self.is_lost = true;
                        }
                        Err(error) => reply.send(Err(error)),
                    }
                }
                State::Decoding(tails) => {
                    for (at, tail) in tails.iter_mut().enumerate() {
                        let is_it = |part: &Part| matches!(part, Part::Tail(i, j) if (*i, *j) == (index, at));
                        let rides = parts.iter().any(|(part, _)| is_it(part));
                        if !rides {
                            continue;
                        }
                        let slots = tail.slot()..tail.slot() + 1 + tail.draft.len();
                        let is_own = |slot| tail.table.is_writable(slot);
                        debug_assert!(slots.clone().all(is_own), "nobody else reads what is written");
                        let places = Places::of(slots.map(|slot| slot as u32), &tail.key_positions);
                        let tokens = [&[tail.token], &tail.draft[..]].concat();
                        match Chunk::embed(backend, &tokens, places, Wanted::All) {
                            Ok(chunk) => {
                                let (blocks, key_positions) = (tail.table.blocks(), &tail.key_positions[..]);
                                let selector = tail.text.as_mut().map(|text| text as &mut dyn Selector<B>);
                                riders.push(Rider { chunk, blocks, key_positions, selector });
                                riding.push(Part::Tail(index, at));
                            }
                            Err(error) if error.kind() == ErrorKind::DeviceLost => self.is_lost = true,
                            // The sampler draws from the vocabulary.
                            Err(error) => {
                                tail.send(Decoded::Failed(error));
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        if self.is_lost {
            riders.clear();
        }
        (Forward::new(backend, &mut self.pool).pass(riders), riding)
    }

    /// Takes a prefill on by what a pass made of it.
    fn prefilled(&mut self, index: usize, outcome: Outcome<B>, logits: &Matrix, ms: f64) {
        let sequence = &mut self.sequences[index];
        let State::Prefilling(prefilling) = &mut sequence.state else { return };
        prefilling.prefill.spend_ms(ms);
        // At once: whoever waits may leave before the end.
        prefilling.computed.add_ms(ms);
        match prefilling.prefill.passed(&*self.backend, outcome, logits) {
            Ok(None) => {}
            Ok(Some(logits)) => {
                let done = FinishedPrefill { logits, took_ms: prefilling.begun.elapsed_ms() };
                match sequence.urgency {
                    Urgency::Speculative => prefilling.held = Some(done),
                    Urgency::Answer | Urgency::Background => self.answer(index, done),
                }
            }
            Err(error) => {
                prefilling.reply.send(Err(error));
                sequence.state = State::Ended;
            }
        }
    }

    /// The prompt is prefilled: keeps its exact path on the device, draws first tokens, and replies.
    pub(super) fn answer(&mut self, index: usize, FinishedPrefill { logits, took_ms }: FinishedPrefill) {
        let State::Prefilling(prefilling) = std::mem::replace(&mut self.sequences[index].state, State::Ended) else {
            return;
        };
        let Prefilling { prefill, mut table, device, decode, reply, tokens, queue_ms, .. } = *prefilling;
        let done: Prefilled = prefill.finish(logits);
        let (key_positions, plan) = (done.plan.key_positions(), &done.plan);
        let new_tokens = plan.total_tokens.saturating_sub(plan.device_tokens()).max(1);
        let us_per_token = done.computing_ms * 1e3 / f64::from(new_tokens);
        let (mut paths, mut path) = (Vec::new(), Vec::new());
        if let Some(seen) = device {
            if done.is_finite {
                path = plan.kept_segments(&tokens);
                paths = keep(&self.tier, seen, &path, &mut table, us_per_token);
            } else {
                paths.push(seen);
            }
        }
        let mut tails = Vec::with_capacity(decode.len());
        let mut beams = BeamGroup::of(&decode);
        if let Some(beams) = &mut beams {
            tails = beams.begin(&decode, table.take(), key_positions.clone(), done.logits.clone());
        }
        let mut left = decode.len();
        for spec in decode.into_iter().filter(|_| beams.is_none()) {
            left -= 1;
            // The last one goes on in the prompt's own table.
            let own = if left > 0 { table.fork() } else { table.take() };
            let text = spec.file.clone().zip(done.question.clone());
            let text = text.map(|(file, open)| GrowingText::new(open, file, tokens.len(), us_per_token));
            tails.extend(Tail::begin(spec, &tokens, own, key_positions.clone(), text, &done.logits));
        }
        let compute_ms = took_ms - done.load_wait_ms;
        let report = PrefillReport {
            scores: done.scores,
            fresh: done.fresh,
            account: done.account,
            plan: done.plan,
            late_misses: done.late_misses,
            loads: done.loads,
            queue_ms,
            load_wait_ms: done.load_wait_ms,
            compute_ms,
            computing_ms: done.computing_ms,
        };
        if tails.is_empty() {
            // Before the reply: who has it finds the blocks free.
            drop((table, paths));
        } else {
            self.sequences[index].state = State::Decoding(tails);
            self.sequences[index].paths = paths;
            self.sequences[index].path = path;
            self.sequences[index].beams = beams;
        }
        reply.send(Ok(report));
    }
}

/// Leaves the text of an answer that ended on the device, as far as it was filed, for a prompt that goes on from it.
fn leave_text(tier: &DeviceTier, paths: &[DevicePath], prompt: &[KeptSegment], mut tail: Tail) {
    let (Some(text), Some(seen)) = (&tail.text, paths.first()) else { return };
    if !text.kept().is_empty() {
        let path = [prompt, text.kept()].concat();
        // Nobody runs on it any more: it may go when blocks are needed.
        drop(tier.keep(seen, &path, &mut tail.table, text.us_per_token()));
    }
}

/// Leaves the exact path of a prompt on the device for later prompts. The result is to be held for as long as the sequence runs.
fn keep(
    tier: &DeviceTier,
    seen: DevicePath,
    path: &[KeptSegment],
    table: &mut BlockTable,
    us_per_token: f64,
) -> Vec<DevicePath> {
    let kept = tier.keep(&seen, path, table, us_per_token);
    vec![seen, kept]
}
