//! The best of what the searches of one query found, and whether any of it is about the query.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::{SearchMode, SearchOptions};
use crate::candidates::{BriefHit, Candidates, Similarities, alone};
use crate::composed::{composed, other_words};
use crate::fusion::{Ranking, fuse, with_identifiers};
use crate::identifiers::Identifiers;
use crate::query::{MIN_CANDIDATES, Scored};
use crate::relevance::{Candidate, Unrelated, is_any_relevant};
use crate::schema::Brief;
use crate::table::Collection;
use crate::words::Keywords;

/// Of each ranking so many are looked at to find out whether anything is about the query.
const JUDGED: usize = 10;

/// As [`Outcome`](super::Outcome), with what ranked the hits.
pub(super) struct Best {
    pub hits: Vec<BriefHit>,
    pub is_relevant: Option<bool>,
    pub best_similarity: Option<f32>,
}

/// What a query's words say about it.
pub(super) struct Asked<'a> {
    query: Cow<'a, str>,
    keywords: Option<Keywords>,
    pub identifiers: Identifiers,
    /// What the text index is asked for.
    pub words: String,
    /// Of the collection's embedding model.
    unrelated: Option<Arc<Unrelated>>,
}

impl<'a> Asked<'a> {
    pub fn of(query: &'a str, collection: &Collection) -> Self {
        let unrelated = collection.embedder.as_ref().and_then(|embedder| embedder.unrelated());
        let composed = composed(query);
        let identifiers = Identifiers::of(&composed);
        let mut words = identifiers.with_joined(&composed);
        // Passages of earlier versions are found by what their words were cut into as they were written.
        for written in other_words(&composed, query) {
            words.extend([" ", written]);
        }
        Self { keywords: Keywords::of(&composed), query: composed, identifiers, words, unrelated }
    }

    /// Whether one of the first of each ranking is about the query.
    fn is_any_relevant(
        &self,
        candidates: &Candidates,
        rankings: [&Ranking; 3],
        similarities: &Similarities,
    ) -> Option<bool> {
        if candidates.passages.is_empty() {
            return Some(false);
        }
        let first = |ranking: &&Ranking| ranking.found.iter().take(JUDGED).map(|(at, _)| *at).collect::<Vec<_>>();
        let judged: BTreeSet<usize> = rankings.iter().flat_map(first).collect();
        let candidate = |at: usize| {
            let brief = &candidates.passages[at];
            Candidate { similarity: similarities.get(&brief.row).copied(), content: brief.content() }
        };
        let has_code = |at: &usize| self.identifiers.has_code_in(&candidate(*at).content);
        if !self.identifiers.is_empty() && judged.iter().any(has_code) {
            return Some(true);
        }
        let judged: Vec<Candidate> = judged.into_iter().map(candidate).collect();
        is_any_relevant(&self.query, self.unrelated.as_deref(), &judged)
    }
}

/// The best of what the searches found, and how many there are without editions of one text; `named` are passages that have what the query names.
pub(super) fn best(
    (asked, depth): (&Asked<'_>, usize),
    by_vector: Scored,
    by_text: Scored,
    named: Scored,
    (options, similarities): (&SearchOptions, &Similarities),
) -> (Best, usize) {
    let mut candidates = Candidates::default();
    let by_vector = candidates.rank(by_vector, depth);
    let mut by_text = candidates.rank(by_text, depth);
    let named = candidates.rank(named, depth);
    let count = candidates.passages.len();
    let mut scores = match options.mode {
        SearchMode::Vector => alone(&by_vector, count),
        SearchMode::FullText => alone(&by_text, count),
        SearchMode::Fused => {
            by_text.has_keywords = by_text.found.first().is_some_and(|(best, _)| {
                asked.keywords.as_ref().is_some_and(|keywords| keywords.are_in(&candidates.passages[*best].content()))
            });
            fuse(&by_vector, &by_text, count)
        }
    };
    if options.mode != SearchMode::Vector && !asked.identifiers.is_empty() {
        let has = |brief: &Arc<Brief>| asked.identifiers.in_passage(&brief.content());
        let found: Vec<f32> = candidates.passages.iter().map(has).collect();
        // However deep the searches go, the same ones say whether an identifier tells something.
        let first =
            |ranking: &Ranking| ranking.found.iter().take(MIN_CANDIDATES).map(|(at, _)| *at).collect::<Vec<_>>();
        let counted: HashSet<usize> = [&by_vector, &by_text, &named].into_iter().flat_map(first).collect();
        scores = with_identifiers(scores, &found, |at| counted.contains(&at));
    }
    // Words alone say of most languages too little: a search by words is not judged.
    let is_relevant = match options.mode {
        SearchMode::FullText if !candidates.passages.is_empty() => None,
        _ => asked.is_any_relevant(&candidates, [&by_vector, &by_text, &named], similarities),
    };
    let best_similarity =
        similarities.values().copied().filter(|similarity| similarity.is_finite()).max_by(f32::total_cmp);
    let kept = |(at, score): (usize, f32)| {
        let brief = &candidates.passages[at];
        let is_below = |bound: f32| similarities.get(&brief.row).is_some_and(|similarity| *similarity < bound);
        let is_out = options.min_similarity.is_some_and(is_below) && !asked.identifiers.has_code_in(&brief.content());
        (!is_out).then_some(score)
    };
    let scores: Vec<Option<f32>> = scores.into_iter().enumerate().map(kept).collect();
    let (hits, kept) = candidates.best(&scores, similarities, options.top_k);
    (Best { hits, is_relevant, best_similarity }, kept)
}
