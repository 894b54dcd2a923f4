//! What an engine is thought to have of prompts' beginnings: what was sent to it lately, as far as what it says of its cache does not tell
//! otherwise. Passages are put in order by it.

use std::collections::{BTreeMap, HashMap};

use ragstone_storage::key::KvKey;

/// Passages behind what stands before them that are remembered. An engine's cache is bounded, too; what it has forgotten costs an order that
/// gains nothing.
const MOST: usize = 8192;
/// What a token of a prompt takes, in milliseconds, before one was measured.
const TOKEN_MS: f64 = 0.1;
/// Engines cache by blocks: of fewer tokens than that one may well have nothing.
const TOLD: u64 = 128;
/// The weight of the newest measurement.
const NEWEST: f64 = 0.2;

/// The beginnings that it may have.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// When each was asked for last.
    used: HashMap<KvKey, u64>,
    by_use: BTreeMap<u64, KvKey>,
    now: u64,
    token_ms: f64,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { used: HashMap::new(), by_use: BTreeMap::new(), now: 0, token_ms: TOKEN_MS }
    }
}

impl Prefixes {
    /// Whether it may have it.
    pub fn has(&self, key: &KvKey) -> bool {
        self.used.contains_key(key)
    }

    /// What a token of a prompt is thought to take, in milliseconds.
    pub fn token_ms(&self) -> f64 {
        self.token_ms
    }

    /// A prompt was answered that begins with each of these; `cached` of its tokens were in the engine's cache, where it says so, and about
    /// `expected` should have been.
    pub fn sent(&mut self, keys: &[KvKey], expected: u64, cached: Option<u32>) {
        // It had nothing of what it should have had: it was started again, or others' prompts took the room of all of ours.
        if cached == Some(0) && expected >= TOLD {
            self.used.clear();
            self.by_use.clear();
        }
        for key in keys {
            self.now += 1;
            if let Some(before) = self.used.insert(*key, self.now) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.now, *key);
        }
        while self.used.len() > MOST {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.used.remove(&oldest);
        }
    }

    /// The first token came after `ms`, of a prompt of which so many tokens were computed.
    pub fn took(&mut self, ms: f64, computed: u32) {
        // A few tokens say more about the way there than about the engine.
        if computed >= 64 {
            self.token_ms += NEWEST * (ms / f64::from(computed) - self.token_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> KvKey {
        KvKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    #[test]
    fn the_oldest_are_forgotten_and_all_where_the_engine_has_none() {
        let mut prefixes = Prefixes::default();
        for number in 0..MOST {
            prefixes.sent(&[key(number)], 0, None);
        }
        prefixes.sent(&[key(0)], 200, Some(64));
        prefixes.sent(&[key(MOST)], 10, Some(0));
        assert!(prefixes.has(&key(0)) && !prefixes.has(&key(1)) && prefixes.has(&key(MOST)));
        assert_eq!((prefixes.used.len(), prefixes.by_use.len()), (MOST, MOST));
        // It says that it had nothing of what it was sent before.
        prefixes.sent(&[key(0), key(5)], 200, Some(0));
        assert!(prefixes.has(&key(0)) && prefixes.has(&key(5)) && !prefixes.has(&key(MOST)));
    }

    #[test]
    fn what_a_token_takes_is_learned_from_what_prompts_took() {
        let mut prefixes = Prefixes::default();
        for _ in 0..50 {
            prefixes.took(2000.0, 1000);
        }
        assert!((prefixes.token_ms() - 2.0).abs() < 0.01);
        prefixes.took(500.0, 3);
        assert!((prefixes.token_ms() - 2.0).abs() < 0.01, "the way there is no measure");
    }
}
