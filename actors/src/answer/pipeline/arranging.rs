//! In which order a prompt's passages stand: as they were ranked, or so that more of the prompt is stored.

use std::ops::Range;
use std::sync::PoisonError;

use ragstone_storage::key::KvKey;
use ragstone_storage::prompt::arrange::{Arrangement, Arranging};
use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode};
use ragstone_storage::prompt::residency::prompt_keys;
use ragstone_storage::segment::{Segment, SegmentKind};

use super::Pipeline;
use super::search::free;
use crate::answer::blend::Blend;
use crate::question::{Input, Question, RootCut};
use crate::report::ArrangementReport;

/// The price of a pair that does not stand as it was ranked, in passages that are computed: chosen by simulation, see docs/decisions/0110.
pub(super) const TURNED: f64 = 0.1;

/// The order of a prompt's passages.
pub(super) struct Arranged {
    /// The first passage that could move.
    free: usize,
    order: Vec<usize>,
    pub report: ArrangementReport,
}

impl Arranged {
    /// Puts the prompt's passages, of whatever kind, into its order.
    pub fn put_in_order<T: Clone>(&self, passages: &mut [T]) {
        permute(&mut passages[self.free..self.free + self.order.len()], &self.order);
    }
}

impl Pipeline {
    /// Puts passages of a prompt from the `free`th on into the order that saves most. `None` where they stand as they came: that is not wanted,
    /// or there are not two.
    pub(super) fn arrange(
        &self,
        question: &Question,
        segments: &mut [Segment],
        free: usize,
        blend: &Blend,
    ) -> Option<Arranged> {
        let options = self.plan_options(question, blend);
        let range = self.movable(question, segments, free, options.reuse)?;
        let (fingerprint, salt) = (self.store.fingerprint(), question.tenant.as_str());
        let tokens = segments[range.clone()].iter().map(|segment| &*segment.tokens);
        let popular = self.popularity.lock().unwrap_or_else(PoisonError::into_inner).of(fingerprint, salt, tokens);
        // Where passages are blended, prompts that begin alike have little to gain: the ranking stays.
        let blends = options.reuse == ReuseMode::Auto;
        let uses = if blends { Vec::new() } else { popular };

        let costs = self.store.costs().model();
        let load_ms = |key: &KvKey, tokens: f64| {
            let bytes = tokens * costs.prefill.grid.kv_bytes_per_token() as f64;
            let tier = self.store.contains_placed(key)?;
            Some(costs.entry_us(tier, costs.prefill.layers, bytes as u64) / 1e3)
        };
        // All that is computed goes through the model together, with the question: what a pass takes by itself is nobody's.
        let keys = prompt_keys(fingerprint, salt, &self.known.primer(), segments).ok()?;
        let before: u32 = keys[..range.start].iter().map(|at| at.tokens).sum();
        let all: f64 = keys[range.clone()].iter().map(|at| f64::from(at.tokens)).sum();
        let token_ms = costs.prefill.prefill_us(f64::from(before), all) / 1e3 / all.max(1.0);
        // What is done with a passage whose KV behind what stands before it is not stored: it may be blended.
        let blended_share = share_of_blend(&options, costs.prefill.layers);
        let otherwise_ms = |index: usize, tokens: f64| {
            let computed = tokens * token_ms;
            let standalone = keys[index].standalone_key.filter(|_| blends);
            let blended = standalone.and_then(|key| load_ms(&key, tokens));
            blended.map_or(computed, |load| computed.min(load + computed * blended_share))
        };
        let saves = |key: &KvKey, passage: usize| {
            let index = range.start + passage;
            let tokens = f64::from(keys[index].tokens);
            Some((otherwise_ms(index, tokens) - load_ms(key, tokens)?).max(0.0))
        };
        let turned_ms = TURNED * token_ms * all / range.len() as f64;
        let arranging = Arranging { fingerprint, salt, segments, range: range.clone(), uses: &uses, turned_ms };
        let Arrangement { order, stored, saved_ms, turned, .. } = arranging.best(saves);
        permute(&mut segments[range.clone()], &order);
        let report =
            ArrangementReport { passages: order.len() as u32, stored: stored as u32, saved_ms, turned: turned as u32 };
        Some(Arranged { free, order, report })
    }

    /// The passages from the `free`th on, where there are several that may change places.
    fn movable(
        &self,
        question: &Question,
        segments: &[Segment],
        free: usize,
        reuse: ReuseMode,
    ) -> Option<Range<usize>> {
        let Input::Chat { context: Some(context), .. } = &question.input else { return None };
        if !context.arrange.unwrap_or(self.settings.arrange) || question.root == RootCut::FirstToken {
            return None;
        }
        let range = free_passages(segments, free, self.manner.is_best_last);
        (range.len() >= 2 && reuse != ReuseMode::Off).then_some(range)
    }

    /// Counts that a question asked for the passages of its prompt: of one prompt, however many were begun before it was known. One that was begun
    /// beside its search counts when it is prefilled, as its segments are not known before; all others when they arrive.
    pub(super) fn count_passages(&self, question: &Question, segments: &[Segment]) {
        let given = match &question.input {
            Input::Chat { context: Some(context), .. } => context.documents.len(),
            _ => 0,
        };
        let reuse = self.plan_options(question, &self.blend(question)).reuse;
        let Some(range) = self.movable(question, segments, free(question, given), reuse) else { return };
        let tokens = segments[range].iter().map(|segment| &*segment.tokens);
        let (fingerprint, salt) = (self.store.fingerprint(), question.tenant.as_str());
        self.popularity.lock().unwrap_or_else(PoisonError::into_inner).arrived(fingerprint, salt, tokens);
    }
}

/// The passages of a prompt, from the `free`th on, that may change places: not the best one where the model reads that best at the end.
fn free_passages(segments: &[Segment], free: usize, is_best_last: bool) -> Range<usize> {
    let is_passage = |segment: &Segment| segment.kind == SegmentKind::Passage;
    let first = segments.iter().position(is_passage).unwrap_or(segments.len());
    let end = first + segments[first..].iter().take_while(|segment| is_passage(segment)).count();
    let end = end - usize::from(is_best_last && end > first);
    (first + free).min(end)..end
}

/// The share of a blended passage that is computed: all of it in the layers before the choosing one, what is chosen behind it.
fn share_of_blend(options: &PlanOptions, layers: u32) -> f64 {
    let ratio = f64::from(options.ratio.floor());
    let all = f64::from(options.choosing.layer.min(layers)) / f64::from(layers.max(1));
    if ratio > 0.0 { ratio + (1.0 - ratio) * all } else { 0.0 }
}

/// Puts first what `order` names first.
pub(super) fn permute<T: Clone>(items: &mut [T], order: &[usize]) {
    let ordered: Vec<T> = order.iter().map(|index| items[*index].clone()).collect();
    items.clone_from_slice(&ordered);
}
