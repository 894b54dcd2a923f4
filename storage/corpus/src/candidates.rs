//! What the searches found together, and the best of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::composed::searched;
use super::fusion::Ranking;
use super::query::{Scored, leave_out_chance};
use super::schema::{Brief, StoredPassage};
use super::scripts::{self, is_dense};
use super::search::{Elsewhere, Hit};

/// Other places of a hit's text that are named.
const MAX_ELSEWHERE: usize = 8;
/// Texts that are nearly the same: so many of them stand among the best.
const MOST_ALIKE: usize = 3;
/// Of the best so many are compared with what comes behind them.
const MOST_COMPARED: usize = 64;
/// Of the words of both, in hundredths.
const ALIKE_PERCENT: usize = 85;

/// A hit as it was stored: its token ids may be another tokenizer's.
pub(super) struct StoredHit {
    pub stored: StoredPassage,
    pub score: f32,
    /// Cosine similarity to the query, where it is known.
    pub similarity: Option<f32>,
    pub also_in: Vec<Elsewhere>,
}

/// As [`StoredHit`], with what ranked it.
pub(super) struct BriefHit {
    pub brief: Arc<Brief>,
    pub score: f32,
    pub similarity: Option<f32>,
    pub also_in: Vec<Arc<Brief>>,
}

impl StoredHit {
    /// For whom its token ids are right.
    pub fn into_hit(self) -> Hit {
        let Self { stored, score, similarity, also_in } = self;
        Hit { passage: stored.passage, score, similarity: similarity.map(told), also_in }
    }
}

/// Cosine similarity by the number of the passage's row.
pub(super) type Similarities = HashMap<u64, f32>;

/// A similarity as it is told: what one search computed and another read of an index are the same number.
pub(super) fn told(similarity: f32) -> f32 {
    (similarity * 1e4).round() / 1e4
}

/// What the two searches found, each passage once, and each search's ranking of it.
#[derive(Default)]
pub(super) struct Candidates {
    pub passages: Vec<Arc<Brief>>,
    at: HashMap<(String, u32), usize>,
}

/// One search's scores as they are.
pub(super) fn alone(ranking: &Ranking, candidates: usize) -> Vec<f32> {
    let mut scores = vec![0.0; candidates];
    for (candidate, score) in &ranking.found {
        scores[*candidate] = *score;
    }
    scores
}

impl Candidates {
    /// Adds what a search found, of which `depth` were asked for; its ranking, ties by document and place so that it is the same every time.
    pub fn rank(&mut self, mut found: Scored, depth: usize) -> Ranking {
        found.sort_by(|(a, a_score), (b, b_score)| b_score.total_cmp(a_score).then_with(|| order(a).cmp(&order(b))));
        let cut = leave_out_chance(&mut found, depth);
        let mut ranking = Ranking { found: Vec::with_capacity(found.len()), cut, has_keywords: false };
        for (brief, score) in found {
            let key = (brief.document_id.clone(), brief.ordinal);
            let candidate = *self.at.entry(key).or_insert(self.passages.len());
            if candidate == self.passages.len() {
                self.passages.push(brief);
            }
            ranking.found.push((candidate, score));
        }
        ranking
    }

    /// The `top_k` best, each text once: under its best title, of the document that had it first, with the others named. Of texts that are nearly
    /// the same, such as thirty editions of one, [`MOST_ALIKE`], and more of them only where nothing else is left. And how many there are without
    /// those. Of a passage that is to be left out the score is none.
    pub fn best(self, scores: &[Option<f32>], similarities: &Similarities, top_k: usize) -> (Vec<BriefHit>, usize) {
        let ranked = self.passages.into_iter().zip(scores);
        let mut ranked: Vec<(Arc<Brief>, f32)> = ranked.filter_map(|(brief, score)| Some((brief, (*score)?))).collect();
        ranked.sort_by(|(a, a_score), (b, b_score)| b_score.total_cmp(a_score).then_with(|| order(a).cmp(&order(b))));
        // With those that are left for the end, as there are enough like them.
        let mut hits: Vec<(BriefHit, bool)> = Vec::new();
        let (mut places, mut words, mut kept): (HashMap<String, usize>, Vec<Words>, usize) = Default::default();
        for (brief, score) in ranked {
            match places.entry(brief.text.clone()) {
                Entry::Vacant(place) if kept < top_k => {
                    let own = Words::of(&brief.text);
                    let alike = words.iter().filter(|other| own.are_like(other)).take(MOST_ALIKE).count();
                    if alike < MOST_ALIKE {
                        kept += 1;
                        if words.len() < MOST_COMPARED {
                            words.push(own);
                        }
                    }
                    place.insert(hits.len());
                    let similarity = similarities.get(&brief.row).copied();
                    hits.push((BriefHit { brief, score, similarity, also_in: Vec::new() }, alike == MOST_ALIKE));
                }
                Entry::Vacant(_) => {}
                Entry::Occupied(place) => hits[*place.get()].0.note(brief),
            }
        }
        let (left, best): (Vec<_>, Vec<_>) = hits.into_iter().partition(|(_, is_left)| *is_left);
        let mut hits: Vec<BriefHit> = best.into_iter().map(|(hit, _)| hit).collect();
        // Where there is nothing else, these are better than nothing, and no better than what stands before them.
        let last = hits.last().map_or(f32::MAX, |hit| hit.score);
        hits.extend(left.into_iter().take(top_k - kept).map(|(hit, _)| BriefHit { score: hit.score.min(last), ..hit }));
        (hits, kept)
    }
}

/// A text's words as they stand: their hashes, in order, each once.
struct Words(Vec<u64>);

impl Words {
    fn of(text: &str) -> Self {
        let hash = |word: &str| {
            let mut hasher = DefaultHasher::new();
            word.chars().flat_map(char::to_lowercase).for_each(|c| c.hash(&mut hasher));
            hasher.finish()
        };
        let plain = searched(text);
        let words = plain.split(|c: char| !c.is_alphanumeric() || is_dense(c)).filter(|word| !word.is_empty());
        let mut words: Vec<u64> = words.map(hash).collect();
        // A clause of a script without blanks is not one word: two editions would share none.
        words.extend(scripts::stored(text).iter().flat_map(|terms| terms.split(' ')).map(hash));
        words.sort_unstable();
        words.dedup();
        Self(words)
    }

    /// Whether two texts have nearly the same words: editions of one.
    fn are_like(&self, other: &Self) -> bool {
        let (few, many) = (self.0.len().min(other.0.len()), self.0.len().max(other.0.len()));
        if few * 100 < many * ALIKE_PERCENT {
            return false;
        }
        let (mut common, mut rest) = (0, &other.0[..]);
        for word in &self.0 {
            let at = rest.iter().position(|other| other >= word).unwrap_or(rest.len());
            rest = &rest[at..];
            common += usize::from(rest.first() == Some(word));
        }
        common * 100 >= (few + many - common) * ALIKE_PERCENT
    }
}

impl BriefHit {
    /// The same text is there, too. Of those under one title the hit is the one that was there first: a copy that comes later takes no
    /// citation away, and leaves the prompt as its KV is stored.
    fn note(&mut self, mut other: Arc<Brief>) {
        if other.title == self.brief.title && other.row < self.brief.row {
            std::mem::swap(&mut self.brief, &mut other);
        }
        if self.also_in.len() < MAX_ELSEWHERE {
            self.also_in.push(other);
        }
    }
}

fn order(passage: &Brief) -> (&str, u32) {
    (&passage.document_id, passage.ordinal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(texts: &[&str]) -> Scored {
        let brief = |(n, text): (usize, &&str)| {
            let (document_id, title, text) = (format!("{n:02}"), String::new(), (*text).to_owned());
            Arc::new(Brief { document_id, ordinal: 0, title, text, row: n as u64 })
        };
        texts.iter().enumerate().map(brief).zip((0..100).map(|n| 1.0 - n as f32 / 100.0)).collect()
    }

    fn best(texts: &[&str], top_k: usize) -> Vec<(String, f32)> {
        let mut candidates = Candidates::default();
        let ranking = candidates.rank(found(texts), 100);
        let scores: Vec<Option<f32>> = alone(&ranking, texts.len()).into_iter().map(Some).collect();
        candidates
            .best(&scores, &Similarities::default(), top_k)
            .0
            .into_iter()
            .map(|hit| (hit.brief.document_id.clone(), hit.score))
            .collect()
    }

    #[test]
    fn editions_are_alike_in_scripts_without_blanks() {
        let alike = |one: &str, other: &str| Words::of(one).are_like(&Words::of(other));
        let edition =
            |year: u32| format!("全体职工每年有三十天假期，须在三月提出申请，由部门负责人批准后生效。{year}年版");
        assert!(alike(&edition(2003), &edition(2011)));
        assert!(!alike(&edition(2003), "全体职工每年三月体检，由部门负责人安排时间和地点。2003年版"));
        assert!(!alike("자전거를 수리합니다", "재봉틀을 빌려줍니다"));
    }

    #[test]
    fn editions_of_one_text_leave_room_for_others() {
        let edition = |year: u32| {
            format!(
                "The leave of all staff is thirty days a year and is asked for in March, says the edition of {year}"
            )
        };
        let editions: Vec<String> = (2000..2010).map(edition).collect();
        let mut texts: Vec<&str> = editions.iter().map(String::as_str).collect();
        texts.push("Drivers have thirty five days.");
        let ids = |top_k| best(&texts, top_k).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(4), ["00", "01", "02", "10"]);
        // What there is besides comes behind.
        assert_eq!(ids(6), ["00", "01", "02", "10", "03", "04"]);
        let scores: Vec<f32> = best(&texts, 5).into_iter().map(|(_, score)| score).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        assert_eq!(best(&texts[..0], 5), []);
    }
}
