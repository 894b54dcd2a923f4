//! The merges of a SentencePiece vocabulary, which only has scores.

use std::collections::HashMap;

use super::NORMAL;

/// Pairs of pieces that make a piece, best first: by its score, then the longer left part, then the longer right one, as transformers
/// derives them for its `tokenizer.json` (`generate_merges`).
pub(super) fn merges<'a>(tokens: &[&'a str], kinds: &[f64], scores: &[f64]) -> Vec<[&'a str; 2]> {
    let pieces = || tokens.iter().zip(kinds).zip(0..).filter(|((_, kind), _)| **kind == NORMAL);
    let ids: HashMap<&str, u32> = pieces().map(|((token, _), id)| (*token, id)).collect();
    let mut found = Vec::new();
    for ((piece, _), id) in pieces() {
        let begin = found.len();
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                found.push((scores[id as usize], [left, right], [*left_id, *right_id]));
            }
        }
        found[begin..].sort_by_key(|(_, _, ids)| *ids);
    }
    let chars = |piece: &str| piece.chars().count();
    // Stable: equal ones stay in the order of the vocabulary.
    found.sort_by(|(score, [left, right], _), (other, [other_left, other_right], _)| {
        let by_score = other.total_cmp(score);
        let by_left = || chars(other_left).cmp(&chars(left));
        by_score.then_with(by_left).then_with(|| chars(other_right).cmp(&chars(right)))
    });
    found.into_iter().map(|(_, pair, _)| pair).collect()
}
