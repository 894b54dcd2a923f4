//! How a prompt's passages stand for an engine: in the order of which its cache likely has the beginning. Pure.

use std::ops::Range;
use std::sync::Arc;

use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::prompt::arrange::{Arrangement, Arranging};
use ragstone_storage::segment::{Segment, SegmentKind};

use crate::answer::pipeline::arranging::{TURNED, permute};
use crate::report::ArrangementReport;
use crate::upstream::{Prefixes, likely_tokens};

/// A prompt as texts, none of whose tokens are known here: what stands before the passages, these, and the turns behind them.
pub(super) struct Texts {
    /// Names engine and model in keys.
    fingerprint: Fingerprint,
    /// The tenant.
    salt: String,
    /// Each stands for one text.
    segments: Vec<Segment>,
    /// Tokens that each likely has.
    likely: Vec<f64>,
    /// The passages that may change places.
    free: Range<usize>,
    /// How popular each of these is.
    uses: Vec<f64>,
}

/// An order of the passages that may change places, for one engine.
pub(super) struct Standing {
    pub order: Vec<usize>,
    /// Where there was a choice.
    pub report: Option<ArrangementReport>,
    /// Of each text behind what stands before it, without the first.
    pub keys: Vec<KvKey>,
    /// What it is predicted to save, less the price of pairs that are turned round, in milliseconds.
    pub worth_ms: f64,
    /// Tokens that should be in the engine's cache.
    pub expected: u64,
}

impl Texts {
    /// `before`, then `passages` of which those from `free` on may change places, then `turns`.
    pub fn new(model: &str, salt: &str, before: &str, passages: &[String], free: usize, turns: &[String]) -> Self {
        let of = |kind| move |text: &String| Segment { kind, tokens: digest(text), place: None };
        let before = before.to_owned();
        let segments = [of(SegmentKind::SystemPrompt)(&before)].into_iter();
        let segments = segments.chain(passages.iter().map(of(SegmentKind::Passage)));
        let segments = segments.chain(turns.iter().map(of(SegmentKind::Text))).collect();
        let texts = [&before].into_iter().chain(passages).chain(turns);
        Self {
            fingerprint: Fingerprint(*blake3::hash(model.as_bytes()).as_bytes()),
            salt: salt.to_owned(),
            segments,
            likely: texts.map(|text| likely_tokens(text.len()) as f64).collect(),
            free: 1 + free.min(passages.len())..1 + passages.len(),
            uses: Vec::new(),
        }
    }

    /// How often passages are asked for counts, as `arrived` has it.
    pub fn with_uses(self, arrived: impl FnOnce(&Fingerprint, &str, &[Segment]) -> Vec<f64>) -> Self {
        let uses = arrived(&self.fingerprint, &self.salt, &self.segments[self.free.clone()]);
        Self { uses, ..self }
    }

    /// Tokens that it likely has.
    pub fn tokens(&self) -> f64 {
        self.likely.iter().sum()
    }

    /// The best order for an engine that is thought to have `prefixes`; where the passages may `move`, else as they are.
    pub fn stand(&self, prefixes: &Prefixes, may_move: bool) -> Standing {
        let token_ms = prefixes.token_ms();
        let count = self.free.len();
        let arrangement = (may_move && count > 1).then(|| {
            let mean = self.likely[self.free.clone()].iter().sum::<f64>() / count as f64;
            let turned_ms = TURNED * mean * token_ms;
            let saves = |key: &KvKey, passage: usize| {
                prefixes.has(key).then(|| self.likely[self.free.start + passage] * token_ms)
            };
            let arranging = Arranging {
                fingerprint: &self.fingerprint,
                salt: &self.salt,
                segments: &self.segments,
                range: self.free.clone(),
                uses: &self.uses,
                turned_ms,
            };
            (arranging.best(saves), turned_ms)
        });
        let (order, report, price_ms) = match arrangement {
            Some((Arrangement { order, stored, saved_ms, turned, .. }, turned_ms)) => {
                let report = ArrangementReport {
                    passages: count as u32,
                    stored: stored as u32,
                    saved_ms,
                    turned: turned as u32,
                };
                (order, Some(report), turned_ms * turned as f64)
            }
            None => ((0..count).collect(), None, 0.0),
        };
        let (mut segments, mut likely) = (self.segments.clone(), self.likely.clone());
        permute(&mut segments[self.free.clone()], &order);
        permute(&mut likely[self.free.clone()], &order);
        let (mut parent, mut keys) = (None, Vec::with_capacity(segments.len()));
        for segment in &segments {
            let key = KvKey::derive(&self.fingerprint, &self.salt, parent.as_ref(), &segment.tokens);
            keys.push(key);
            parent = Some(key);
        }
        // What all prompts begin with is known of none of them alone.
        let known = 1 + keys[1..].iter().take_while(|key| prefixes.has(key)).count();
        let expected = if known > 1 { likely[..known].iter().sum::<f64>() } else { 0.0 };
        keys.remove(0);
        Standing { order, report, keys, worth_ms: expected * token_ms - price_ms, expected: expected as u64 }
    }
}

/// What stands for a text in keys.
fn digest(text: &str) -> Arc<[u32]> {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: &[&str], free: usize, tenant: &str, turns: &[&str]) -> Texts {
        let long = |text: &&str| format!("{text} ").repeat(200);
        let passages: Vec<String> = passages.iter().map(long).collect();
        let turns: Vec<String> = turns.iter().map(long).collect();
        Texts::new("m", tenant, "Answer.", &passages, free, &turns)
    }

    #[test]
    fn passages_stand_as_the_engine_has_them_where_they_may() {
        let mut prefixes = Prefixes::default();
        let first = texts(&["a", "b", "c"], 0, "", &["q"]).stand(&prefixes, true);
        assert_eq!((&first.order[..], first.expected), (&[0, 1, 2][..], 0));
        prefixes.sent(&first.keys, first.expected, None);
        let again = texts(&["c", "a", "b"], 0, "", &["p"]);
        let arranged = again.stand(&prefixes, true);
        assert_eq!((&arranged.order[..], arranged.report.unwrap().stored), (&[1, 2, 0][..], 3));
        assert!(arranged.worth_ms > 0.0 && arranged.expected >= 230, "{}", arranged.expected);
        let fixed = again.stand(&prefixes, false);
        assert_eq!((&fixed.order[..], fixed.worth_ms, fixed.report), (&[0, 1, 2][..], 0.0, None));
        // Those that came with the question stay in front.
        assert_eq!(texts(&["c", "a", "b"], 1, "", &["p"]).stand(&prefixes, true).order, [0, 1]);
        // Nobody gains by another tenant's prompts.
        assert_eq!(texts(&["c", "a", "b"], 0, "other", &["p"]).stand(&prefixes, true).expected, 0);
    }

    #[test]
    fn a_conversation_goes_on_where_it_was() {
        let mut prefixes = Prefixes::default();
        let first = texts(&[], 0, "", &["hello"]).stand(&prefixes, true);
        prefixes.sent(&first.keys, 0, None);
        let next = texts(&[], 0, "", &["hello", "hi", "and?"]).stand(&prefixes, true);
        assert!(next.expected > 0 && next.report.is_none());
        assert_eq!(texts(&[], 0, "", &["other"]).stand(&prefixes, true).expected, 0);
    }
}
