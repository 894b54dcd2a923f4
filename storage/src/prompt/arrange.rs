//! Arrangement: which order of a prompt's passages reuses most of what is stored (the idea of RAGBoost, arXiv 2511.03475). Pure.
//!
//! A stored path is its own set of passages in its own order. So a depth-first search over what is stored behind the system prompt, going
//! on with passages of this prompt alone, finds the best stored prefix after a few look-ups, and does not try all k! orders:
//!
//! ```text
//! asked for: A B C, best first        stored: system ─┬─ B ─── A        the order B A C loads two passages,
//!                                                     └─ D ─── A        A B C none
//! ```
//!
//! An order is worth the time that its stored prefix saves, less a price for every pair of passages that it turns round: the retriever's
//! order is how well each passage fits, and models read the places differently. What is not stored follows by how often it is asked for,
//! so that other prompts come to begin as this one does; by rank where that is about the same.

mod popularity;

use std::ops::Range;

pub use self::popularity::Popularity;
use crate::key::{Fingerprint, KvKey};
use crate::segment::{Links, Segment};

/// Look-ups at the most: many stored paths of many passages could otherwise take as long as what they save.
const MOST_LOOK_UPS: u32 = 512;

/// A prompt whose passages may stand in another order.
pub struct Arranging<'a> {
    /// The model.
    pub fingerprint: &'a Fingerprint,
    /// The tenant.
    pub salt: &'a str,
    /// The prompt; none of its segments has a place of its own.
    pub segments: &'a [Segment],
    /// Those that may change places with one another, in the order that counts: retrieval's.
    pub range: Range<usize>,
    /// How popular each of these is ([`Popularity::of`]).
    pub uses: &'a [f64],
    /// The price of a pair that is turned round, in milliseconds.
    pub turned_ms: f64,
}

/// An order of passages.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrangement {
    /// Which of them stands at each place, counted from the first that may move.
    pub order: Vec<usize>,
    /// Of these, the first so many are stored behind what stands before them.
    pub stored: usize,
    /// What that is predicted to save, in milliseconds.
    pub saved_ms: f64,
    /// Pairs that do not stand as they were ranked.
    pub turned: usize,
    /// Keys that were looked for.
    pub looked_up: u32,
}

impl Arranging<'_> {
    /// The best order. `saves` says what is saved, in milliseconds, where the entry of a key is loaded: the key and the passage, counted from the
    /// first that may move; `None` where it is not stored.
    pub fn best(&self, saves: impl Fn(&KvKey, usize) -> Option<f64>) -> Arrangement {
        let mut links = Links::new(self.fingerprint, self.salt);
        self.segments[..self.range.start].iter().for_each(|segment| {
            links.push(&segment.tokens);
        });
        let mut search = Search { arranging: self, saves, looked_up: 0, best: None };
        search.visit(&links, &mut Vec::new(), 0.0);
        let nothing_stored = || self.complete(&[], 0.0);
        let best = search.best.unwrap_or_else(nothing_stored);
        Arrangement { looked_up: search.looked_up, ..best }
    }

    /// The order that begins with `prefix`, which saves `saved_ms`.
    fn complete(&self, prefix: &[usize], saved_ms: f64) -> Arrangement {
        let mut rest: Vec<usize> = (0..self.range.len()).filter(|passage| !prefix.contains(passage)).collect();
        // Stable: by rank where two are about as popular.
        rest.sort_by_key(|passage| std::cmp::Reverse(class(self.uses.get(*passage).copied().unwrap_or(0.0))));
        let order = [prefix, &rest].concat();
        Arrangement { turned: turned(&order), stored: prefix.len(), saved_ms, looked_up: 0, order }
    }

    fn value(&self, arrangement: &Arrangement) -> f64 {
        arrangement.saved_ms - self.turned_ms * arrangement.turned as f64
    }
}

/// A search under way.
struct Search<'a, F> {
    arranging: &'a Arranging<'a>,
    saves: F,
    looked_up: u32,
    best: Option<Arrangement>,
}

impl<F: Fn(&KvKey, usize) -> Option<f64>> Search<'_, F> {
    fn visit(&mut self, links: &Links<'_>, prefix: &mut Vec<usize>, saved_ms: f64) {
        let arranging = self.arranging;
        let this = arranging.complete(prefix, saved_ms);
        if self.best.as_ref().is_none_or(|best| arranging.value(best) < arranging.value(&this)) {
            self.best = Some(this);
        }
        for (passage, segment) in arranging.segments[arranging.range.clone()].iter().enumerate() {
            if prefix.contains(&passage) || self.looked_up == MOST_LOOK_UPS {
                continue;
            }
            let mut behind = links.clone();
            let Some(key) = behind.push(&segment.tokens) else { continue };
            self.looked_up += 1;
            if let Some(saves) = (self.saves)(&key, passage) {
                prefix.push(passage);
                self.visit(&behind, prefix, saved_ms + saves);
                prefix.pop();
            }
        }
    }
}

/// Passages of one class are about as popular: one of the next is asked for twice as often.
fn class(uses: f64) -> u32 {
    (1.0 + uses.max(0.0)).log2() as u32
}

/// Pairs whose second one is ranked before the first.
fn turned(order: &[usize]) -> usize {
    let behind = |at: usize| order[at + 1..].iter().filter(|later| **later < order[at]).count();
    (0..order.len()).map(behind).sum()
}

#[cfg(test)]
mod tests;
