//! Fuses the two searches' rankings into one.
//!
//! Each search's scores are stretched to 0..1 and added with weights (a convex combination, which loses less than adding
//! reciprocal ranks: Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", 2023). Which of the two knows more depends on
//! the question, and no weight is right for all: questions of MuSiQue are answered by vectors, sentences and keywords by words. The
//! words' own scores tell them apart. BM25 counts from zero, so that a tenth passage with nearly the best one's score says that the
//! words are everywhere and tell nothing, and one with a third of it that the best ones have words that others lack. So the words' weight is
//! the share of the best score that the tenth does not have. A few words as people type them into a search box ask for passages that have
//! them: an embedding of them says little, and the words count for nearly all. There is nothing to tune for a collection; docs/decisions
//! has the figures.

/// The place whose score is compared with the best. Questions are answered from about so many passages.
const PLACE: usize = 10;
/// The words' weight where somebody typed a few words that a passage has.
const KEYWORDS_WEIGHT: f32 = 0.95;
/// Passages that have an identifier, where it tells them from others.
const MOST_NAMED: usize = 24;
/// Of the best score: what a passage gains that has all identifiers.
const ENOUGH: f32 = 1.01;
/// Neither search is left without a say: what the other does not find at all is in its order.
const LEAST_WEIGHT: f32 = 0.2;

/// One search's ranking, best first.
#[derive(Default)]
pub(super) struct Ranking {
    /// Which candidate, and its score.
    pub found: Vec<(usize, f32)>,
    /// The score behind which the rest was cut off; `None` where everything is in it that the search could find.
    pub cut: Option<f32>,
    /// Of words: whether the query is what people type into a search box, and the best passage has it.
    pub has_keywords: bool,
}

/// The fused score of each of `candidates`, in 0..=1.
pub(super) fn fuse(vector: &Ranking, text: &Ranking, candidates: usize) -> Vec<f32> {
    let mut fused = vec![0.0; candidates];
    let of_words = words_weight(text);
    for (ranking, weight) in [(vector, 1.0 - of_words), (text, of_words)] {
        let (Some((_, best)), Some((_, last))) = (ranking.found.first(), ranking.found.last()) else { continue };
        // What a search did not find scores no more than where it was cut off, or else nothing.
        let floor = ranking.cut.unwrap_or(last.min(0.0));
        let range = best - floor;
        if range <= 0.0 {
            continue;
        }
        for (candidate, score) in &ranking.found {
            fused[*candidate] += weight * (score - floor) / range;
        }
    }
    fused
}

/// Scores in which a passage that has the query's identifiers stands before those that have not: `found` of each candidate, in 0..=1. Where many
/// of those that are `counted` have them, they tell nothing, and the scores stay.
pub(super) fn with_identifiers(mut scores: Vec<f32>, found: &[f32], counted: impl Fn(usize) -> bool) -> Vec<f32> {
    let with = found.iter().enumerate().filter(|(at, found)| **found > 0.0 && counted(*at)).count();
    if with > MOST_NAMED || found.iter().all(|found| *found <= 0.0) {
        return scores;
    }
    let best = scores.iter().copied().fold(0.0, f32::max);
    // Where the searches found nothing, what has the identifier is all there is.
    let best = if best > 0.0 { best } else { 1.0 };
    for (score, found) in scores.iter_mut().zip(found) {
        // More than the best one has, so that it is enough.
        *score += best * ENOUGH * found;
    }
    // Then within what the scores were.
    let most = scores.iter().copied().fold(best, f32::max);
    scores.into_iter().map(|score| (score / most * best).min(best)).collect()
}

/// Nearly all where the best passage has what somebody typed into a search box. Else how much of the best passage's score the one at
/// [`PLACE`] lacks, within bounds; all of it where so few have any of the words.
fn words_weight(text: &Ranking) -> f32 {
    let Some((_, best)) = text.found.first().filter(|(_, best)| *best > 0.0) else { return LEAST_WEIGHT };
    if text.has_keywords {
        return KEYWORDS_WEIGHT;
    }
    let at_place = text.found.get(PLACE - 1).map_or(0.0, |(_, score)| *score);
    (1.0 - at_place / best).clamp(LEAST_WEIGHT, 1.0 - LEAST_WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranking(found: &[(usize, f32)], complete: bool) -> Ranking {
        let cut = found.last().filter(|_| !complete).map(|(_, score)| *score);
        Ranking { found: found.to_vec(), cut, has_keywords: false }
    }

    fn order(fused: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..fused.len()).collect();
        order.sort_by(|a, b| fused[*b].total_cmp(&fused[*a]));
        order
    }

    #[test]
    fn what_both_find_beats_what_one_finds() {
        let vector = ranking(&[(0, 0.9), (1, 0.8), (2, 0.1)], false);
        let text = ranking(&[(1, 12.0), (3, 11.0), (4, 2.0)], false);
        let fused = fuse(&vector, &text, 5);
        assert_eq!(order(&fused), [1, 3, 0, 2, 4]);
        assert!(fused.iter().all(|score| (0.0..=1.0).contains(score)), "{fused:?}");
    }

    /// The vectors' best is passage 0, the words' best passage 19.
    #[test]
    fn words_that_stand_out_count_for_more_than_words_that_are_everywhere() {
        let vector: Vec<(usize, f32)> = (0..20).map(|n| (n, 0.8 - 0.03 * n as f32)).collect();
        let words = |drop: f32| -> Vec<(usize, f32)> { (0..20).map(|n| (19 - n, 10.0 - drop * n as f32)).collect() };
        for (drop, weight, first) in [(0.1, 0.2, 0), (0.5, 0.45, 0), (0.7, 0.63, 19), (1.0, 0.8, 19)] {
            let text = ranking(&words(drop), false);
            assert!((words_weight(&text) - weight).abs() < 1e-6, "{drop}");
            assert_eq!(order(&fuse(&ranking(&vector, false), &text, 20))[0], first, "{drop}");
        }
    }

    #[test]
    fn words_of_a_search_box_that_one_passage_has_count_for_nearly_all() {
        let vector = ranking(&[(0, 0.9), (1, 0.3), (2, 0.2)], false);
        // Ten passages have nearly the same words.
        let text = [1, 2, 0].into_iter().chain(3..12).enumerate();
        let text: Vec<(usize, f32)> = text.map(|(place, n)| (n, 10.0 - 0.1 * place as f32)).collect();
        let text = ranking(&text, false);
        assert_eq!(order(&fuse(&vector, &text, 12))[..2], [0, 1]);
        let text = Ranking { has_keywords: true, ..text };
        assert_eq!(order(&fuse(&vector, &text, 12))[..2], [1, 2]);
    }

    #[test]
    fn who_has_the_identifier_is_first_unless_many_have_it() {
        let scores = with_identifiers(vec![0.9, 0.4, 0.0, 0.8], &[0.0, 0.0, 1.0, 1.0], |_| true);
        assert_eq!(order(&scores), [3, 2, 0, 1]);
        assert!((scores[3] - 0.9).abs() < 1e-6 && scores.iter().all(|score| (0.0..=0.9).contains(score)), "{scores:?}");
        assert_eq!(with_identifiers(vec![0.5; 30], &[1.0; 30], |_| true), [0.5; 30]);
        assert_eq!(with_identifiers(vec![0.5, 0.2], &[0.0, 0.0], |_| true), [0.5, 0.2]);
        // Those far down do not count.
        let falling: Vec<f32> = (0..30).map(|n| 1.0 - n as f32 / 100.0).collect();
        let found: Vec<f32> = (0..30).map(|n| if n < 4 { 0.0 } else { 1.0 }).collect();
        assert_eq!(order(&with_identifiers(falling.clone(), &found, |at| at < 10))[0], 4);
        assert_eq!(with_identifiers(falling.clone(), &found, |_| true), falling);
        assert_eq!(order(&with_identifiers(vec![0.0, 0.0], &[0.0, 1.0], |_| true)), [1, 0]);
    }

    #[test]
    fn what_the_words_do_not_find_is_in_the_vectors_order() {
        let vector = ranking(&[(0, 0.9), (1, 0.8), (2, 0.7)], true);
        let fused = fuse(&vector, &ranking(&[(2, 9.0)], true), 3);
        assert_eq!(order(&fused), [2, 0, 1]);
        assert_eq!(words_weight(&Ranking::default()), LEAST_WEIGHT);
    }

    #[test]
    fn one_ranking_alone_keeps_its_order() {
        let vector = ranking(&[(2, 0.5), (0, 0.4), (1, -0.2)], true);
        let fused = fuse(&vector, &Ranking::default(), 3);
        assert!(fused[2] > fused[0] && fused[0] > fused[1] && fused[1] >= 0.0, "{fused:?}");
    }

    #[test]
    fn a_single_match_of_a_complete_search_counts() {
        let vector = ranking(&[(0, 0.5), (1, 0.49)], true);
        let fused = fuse(&vector, &ranking(&[(1, 3.0)], true), 2);
        assert!(fused[1] > fused[0]);
    }

    #[test]
    fn equal_scores_and_nothing_at_all_are_no_division_by_zero() {
        let same = ranking(&[(0, 0.5), (1, 0.5)], false);
        assert_eq!(fuse(&same, &Ranking::default(), 2), [0.0, 0.0]);
        assert_eq!(fuse(&Ranking::default(), &Ranking::default(), 0), [0.0; 0]);
    }
}
