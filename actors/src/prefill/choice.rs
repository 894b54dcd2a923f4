//! One prompt's choice of tokens to recompute, as far as it has come.

use std::collections::BTreeMap;
use std::ops::Range;

use ragstone_kernels::backend::Backend;
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::forward::Placed;
use ragstone_storage::prompt::plan::{LOOKING_TOKENS, LoadPlan, SegmentPlan, Source};
use ragstone_storage::segment::SegmentKind;

use super::selector::{Candidates, Look, Selection};

/// The choice of tokens to recompute.
pub(super) struct Choice {
    selection: Selection,
    layers: usize,
    ratio: f32,
    blended_tokens: u32,
    /// The slots of each blended passage, in order.
    passages: Vec<Range<u32>>,
    /// The slots whose attention counts.
    question: Range<u32>,
    state: State,
}

enum State {
    /// Nothing is blended, or all or nothing of it is recomputed.
    None,
    /// What is not stored runs ahead over stored KV; whether the last chunk has ended there.
    Probing { attention: Attention, has_ended: bool },
    /// What the rows that reached the choosing layer show so far; whether the last chunk stopped there for the others.
    Open { looked: Looked, attention: Attention, has_parked: bool },
    /// It is made.
    Made,
}

/// Rows of blended passages that a layer has computed, and how much each wants to be recomputed.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Ascending.
    slots: Vec<u32>,
    scores: Vec<f32>,
}

impl Looked {
    pub fn extend(&mut self, slots: &[u32], scores: &[f32]) {
        self.slots.extend_from_slice(slots);
        self.scores.extend_from_slice(scores);
    }
}

/// What rows of the question look at: by row, so that where the prompt is cut does not show in a sum.
#[derive(Debug, Default)]
struct Attention(BTreeMap<u32, Vec<f32>>);

impl Attention {
    fn add(&mut self, row: u32, weights: &[f32]) {
        let sums = self.0.entry(row).or_default();
        sums.resize(weights.len().max(sums.len()), 0.0);
        sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
    }

    fn of(&self, slot: u32) -> f32 {
        self.0.values().filter_map(|weights| weights.get(slot as usize)).sum()
    }
}

impl Choice {
    /// A prompt's, and the slots that its first layer computes first, ascending.
    pub fn new(plan: &LoadPlan, selection: Selection, layers: usize) -> (Self, Vec<u32>) {
        let blended = plan.segments.iter().filter(|segment| is_blended(segment) && !segment.range.is_empty());
        let passages: Vec<Range<u32>> = blended.map(|segment| segment.range.clone()).collect();
        // A long question is several segments; what of it is stored does not run.
        let computed =
            |segment: &&SegmentPlan| segment.source == Source::Compute && segment.kind != SegmentKind::Passage;
        let with_tokens = plan.segments.iter().rev().filter(|segment| !segment.range.is_empty());
        let start = with_tokens.take_while(computed).last().map_or(plan.total_tokens, |first| first.range.start);
        let chooses = !passages.is_empty() && plan.ratio > 0.0 && plan.ratio < 1.0;
        let mut choice = Self {
            selection,
            layers,
            ratio: plan.ratio,
            blended_tokens: plan.blended_tokens,
            passages,
            question: plan.total_tokens.saturating_sub(LOOKING_TOKENS).max(start)..plan.total_tokens,
            state: State::None,
        };
        let all = rows(plan, plan.ratio > 0.0);
        if !chooses {
            return (choice, all);
        }
        if selection.probed(layers).is_some() {
            choice.state = State::Probing { attention: Attention::default(), has_ended: false };
            return (choice, rows(plan, false));
        }
        choice.state = State::Open { looked: Looked::default(), attention: Attention::default(), has_parked: false };
        let is_known = selection.looks_at() == Look::Nothing && choice.first_layer() == 0 && !selection.is_gradual();
        let active = if is_known { choice.make(&all) } else { all };
        (choice, active)
    }

    /// A passage of the slots `passage` is computed as a whole after all.
    pub fn drop_passage(&mut self, passage: &Range<u32>) {
        self.passages.retain(|other| other != passage);
        self.blended_tokens = self.blended_tokens.saturating_sub(passage.len() as u32);
    }

    /// The first layer that computes no more than what was chosen.
    pub fn first_layer(&self) -> usize {
        self.selection.first_layer(self.layers)
    }

    pub fn is_gradual(&self) -> bool {
        self.selection.is_gradual()
    }

    pub fn is_probing(&self) -> bool {
        matches!(self.state, State::Probing { .. })
    }

    /// Whether a probe ends before `layer`.
    pub fn ends_before(&mut self, layer: usize) -> bool {
        let last = self.selection.probed(self.layers).map_or(0, |probed| probed.end);
        match &mut self.state {
            State::Probing { has_ended, .. } if layer >= last => {
                *has_ended = true;
                true
            }
            _ => false,
        }
    }

    /// Whether the rows that `layer` has now come to it again, once the choice is made.
    pub fn comes_again(&self, layer: usize) -> bool {
        match self.state {
            State::Probing { .. } => true,
            State::Open { .. } => layer == self.first_layer(),
            State::None | State::Made => false,
        }
    }

    /// What is compared of the fresh K and V of `layer`, if rows are looked at there before its attention: `Some(None)`, nothing,
    /// but they are counted.
    pub fn looks_on(&self, layer: usize) -> Option<Option<Compared>> {
        let compared = match self.selection.looks_at() {
            Look::Deviation(compared) => Some(compared),
            Look::Nothing => None,
            Look::Attention | Look::Probe(_) => return None,
        };
        let looks = match self.state {
            State::Open { .. } => layer == self.first_layer(),
            State::Made => self.selection.is_gradual() && layer > self.first_layer(),
            State::None | State::Probing { .. } => false,
        };
        looks.then_some(compared)
    }

    /// Takes what a chunk's rows showed.
    pub fn note(&mut self, more: &Looked) {
        if let State::Open { looked, .. } = &mut self.state {
            looked.extend(&more.slots, &more.scores);
        }
    }

    /// Looks at what the question's rows of a chunk look at in a layer, where that counts. `true`: the chunk waits there for the others,
    /// and all of its K and V stay in that layer, as they have been computed.
    pub fn watch<B: Backend>(&mut self, seen: &Placed<'_, B>) -> bool {
        let first = self.first_layer();
        let (attention, waits) = match &mut self.state {
            State::Probing { attention, .. }
                if self.selection.probed(self.layers).is_some_and(|probed| probed.contains(&seen.layer)) =>
            {
                (attention, false)
            }
            State::Open { attention, has_parked, .. } if seen.layer == first => {
                *has_parked = true;
                if self.selection.looks_at() != Look::Attention {
                    return true;
                }
                (attention, true)
            }
            _ => return false,
        };
        let slots = &seen.places.slots;
        let place = |slot: u32| slots.partition_point(|other| *other < slot);
        let rows = place(self.question.start)..place(self.question.end);
        if !rows.is_empty() {
            let weights = seen.attention_weights(rows.clone());
            rows.clone().for_each(|row| attention.add(slots[row], weights.row(row - rows.start)));
        }
        waits
    }

    /// Whether the chunk that stopped did so to wait for the choice, or because its probe has ended; once a stop.
    pub fn takes_stop(&mut self) -> bool {
        match &mut self.state {
            State::Open { has_parked: stopped, .. } | State::Probing { has_ended: stopped, .. } => {
                std::mem::take(stopped)
            }
            State::None | State::Made => false,
        }
    }

    /// Makes the choice among the rows that were seen: of the slots `active`, those that go on, ascending.
    pub fn make(&mut self, active: &[u32]) -> Vec<u32> {
        let by_attention = |attention: &Attention, passages: &[Range<u32>]| {
            let slots: Vec<u32> = passages.iter().cloned().flatten().collect();
            let scores = slots.iter().map(|slot| attention.of(*slot)).collect();
            Looked { slots, scores }
        };
        let looked = match std::mem::replace(&mut self.state, State::Made) {
            State::Open { looked, .. } if !looked.slots.is_empty() => looked,
            State::Open { attention, .. } | State::Probing { attention, .. } => {
                by_attention(&attention, &self.passages)
            }
            State::None | State::Made => return active.to_vec(),
        };
        self.among(self.first_layer(), active, &looked)
    }

    /// The choice on a later layer.
    pub fn among(&self, layer: usize, active: &[u32], looked: &Looked) -> Vec<u32> {
        let candidates = Candidates {
            slots: &looked.slots,
            scores: &looked.scores,
            passages: &self.passages,
            seed: self.selection.seed,
        };
        self.selection.choose((self.ratio, self.blended_tokens), (layer, self.layers), active, &candidates)
    }

    /// Rows of the passages that are blended, among `slots`.
    pub fn blended<'a>(&'a self, slots: &'a [u32]) -> impl Iterator<Item = Range<usize>> + 'a {
        let place = |slot: u32| slots.partition_point(|other| *other < slot);
        self.passages.iter().map(move |passage| place(passage.start)..place(passage.end))
    }
}

pub(super) fn is_blended(segment: &SegmentPlan) -> bool {
    matches!(segment.source, Source::Blend { .. })
}

/// Slots that are computed, ascending, those of blended passages among them or not.
pub(super) fn rows(plan: &LoadPlan, with_blended: bool) -> Vec<u32> {
    let computed = |segment: &&SegmentPlan| match segment.source {
        Source::Compute => true,
        Source::Blend { .. } => with_blended,
        Source::Load { .. } => false,
    };
    plan.segments.iter().filter(computed).flat_map(|segment| segment.range.clone()).collect()
}

#[cfg(test)]
mod tests {
    use ragstone_storage::key::{Fingerprint, KvKey};
    use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode, plan};
    use ragstone_storage::prompt::primer::Primer;
    use ragstone_storage::prompt::residency::{Candidate, CandidateKind, Residency, prompt_keys};
    use ragstone_storage::segment::Segment;
    use ragstone_storage::tier::Tier;

    use super::*;
    use crate::prefill::Rule;

    /// The slots whose attention counts, of a prompt that ends so; its passages are blended.
    fn looking(end: &[(SegmentKind, u32)]) -> Range<u32> {
        let segment = |(content, (kind, tokens)): (usize, &(SegmentKind, u32))| Segment {
            kind: *kind,
            tokens: (0..*tokens).map(|at| content as u32 * 1000 + at).collect(),
            place: None,
        };
        let start = [(SegmentKind::SystemPrompt, 10), (SegmentKind::Passage, 30), (SegmentKind::Passage, 30)];
        let segments: Vec<Segment> = start.iter().chain(end).enumerate().map(segment).collect();
        let mut found = prompt_keys(&Fingerprint([0; 32]), "", &Primer::none(), &segments).unwrap();
        let stored = |kind, key: Option<KvKey>| {
            let tiers = vec![Tier::Host];
            key.map(|key| Candidate { kind, key, tier: Tier::Host, tiers, bytes: 1 }).into_iter().collect()
        };
        found[0].candidates = stored(CandidateKind::Exact, found[0].chain_key);
        for at in &mut found[1..3] {
            at.candidates = stored(CandidateKind::Standalone, at.standalone_key);
        }
        let residency = Residency { segments: found, ..Residency::default() };
        let plan = plan(&residency, &PlanOptions::fixed(0.3, ReuseMode::Auto), None).unwrap();
        Choice::new(&plan, Selection::by(Rule::TwoStage), 4).0.question
    }

    #[test]
    fn a_question_looks_by_its_last_tokens_however_it_is_cut() {
        use SegmentKind::{Passage, Question, Text};
        assert_eq!(looking(&[(Question, 20)]), 70..90);
        assert_eq!(looking(&[(Text, 64), (Question, 1)]), 71..135, "64 of 65, not the one that is left over");
        assert_eq!(looking(&[(Text, 64), (Text, 64), (Question, 6)]), 140..204);
        assert_eq!(looking(&[(Text, 64), (Question, 0)]), 70..134);
        assert_eq!(
            looking(&[(Passage, 50), (Question, 5)]),
            120..125,
            "what is not stored of the passages does not ask"
        );
    }
}
