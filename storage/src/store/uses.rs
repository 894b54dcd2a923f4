//! When entries were used, and how often: it orders evictions after a restart.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::catalog::{Catalog, LastUse};
use crate::key::KvKey;
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// Uses that the catalog does not know yet which are worth a write.
const MANY_UNWRITTEN: usize = 4096;
/// Entries whose uses are remembered, those that left every tier among them: about 30 MB.
const MOST_KNOWN: usize = 1 << 19;

pub(super) struct Uses {
    pub catalog: Arc<Catalog>,
    state: Mutex<State>,
    /// [`MOST_KNOWN`].
    most_known: usize,
}

#[derive(Default)]
struct State {
    known: HashMap<KvKey, LastUse>,
    unwritten: HashSet<KvKey>,
    /// Forgotten here, and still to be forgotten by the catalog.
    dropped: Vec<KvKey>,
}

impl Uses {
    /// What the catalog knows. That it cannot be read is worth a warning and no more.
    pub fn read(catalog: Arc<Catalog>) -> Self {
        let known = catalog.last_uses().unwrap_or_else(|error| {
            tracing::warn!(%error, "the order of use is lost; entries count from their creation");
            HashMap::new()
        });
        Self { catalog, state: Mutex::new(State { known, ..State::default() }), most_known: MOST_KNOWN }
    }

    pub fn all(&self) -> HashMap<KvKey, LastUse> {
        locked(&self.state).known.clone()
    }

    pub fn get(&self, key: &KvKey) -> LastUse {
        locked(&self.state).known.get(key).copied().unwrap_or_default()
    }

    pub fn record(&self, key: &KvKey, env: &Env) {
        let mut state = locked(&self.state);
        let used = state.known.entry(*key).or_default();
        used.unix_ms = env.now_unix_ms();
        used.uses = used.uses.saturating_add(1);
        state.unwritten.insert(*key);
        state.trim(self.most_known);
    }

    /// An entry came from elsewhere: no use, but no reason to take it for the oldest of all either.
    pub fn note_arrival(&self, key: &KvKey, env: &Env) {
        let mut state = locked(&self.state);
        state.known.entry(*key).or_default().unix_ms = env.now_unix_ms();
        state.unwritten.insert(*key);
        state.trim(self.most_known);
    }

    /// Hands what is new to the catalog, if that is much.
    pub fn write_if_many(&self) {
        let unwritten = locked(&self.state).unwritten.len();
        if unwritten > MANY_UNWRITTEN {
            self.write();
        }
    }

    pub fn forget_all_but(&self, is_there: impl Fn(&KvKey) -> bool) {
        let mut state = locked(&self.state);
        let gone: Vec<KvKey> = state.known.keys().filter(|key| !is_there(key)).copied().collect();
        state.known.retain(|key, _| is_there(key));
        drop(state);
        if let Err(error) = self.catalog.forget_last_uses(&gone) {
            tracing::warn!(%error, "times of use of entries that are gone stay in the catalog");
        }
    }

    /// Forgets entries that are gone for good.
    pub fn forget(&self, keys: &[KvKey]) {
        let mut state = locked(&self.state);
        for key in keys {
            state.known.remove(key);
            state.unwritten.remove(key);
        }
        drop(state);
        if let Err(error) = self.catalog.forget_last_uses(keys) {
            tracing::warn!(%error, "times of use of entries that are gone stay in the catalog");
        }
    }

    /// Hands what is new to the catalog.
    pub fn write(&self) {
        let (batch, dropped): (HashMap<KvKey, LastUse>, Vec<KvKey>) = {
            let mut state = locked(&self.state);
            let unwritten = std::mem::take(&mut state.unwritten);
            let used = |key| Some((key, *state.known.get(&key)?));
            (unwritten.into_iter().filter_map(used).collect(), std::mem::take(&mut state.dropped))
        };
        // First what was dropped: some of it may have been used again since.
        let written = self.catalog.forget_last_uses(&dropped).and_then(|()| self.catalog.note_last_uses(&batch));
        if let Err(error) = written {
            tracing::warn!(%error, "times of use were not written");
        }
    }
}

impl State {
    /// Forgets the half that was used longest ago, where entries are many: they only order evictions after a restart.
    fn trim(&mut self, most_known: usize) {
        if self.known.len() <= most_known {
            return;
        }
        let mut times: Vec<u64> = self.known.values().map(|used| used.unix_ms).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        let Self { known, unwritten, dropped } = self;
        dropped.extend(known.extract_if(|_, used| used.unix_ms <= median).map(|(key, _)| key));
        unwritten.retain(|key| known.contains_key(key));
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_forgotten_here_leaves_the_catalog_too() {
        let dir = tempfile::TempDir::new().unwrap();
        let env = Env::seeded(1, 1_000_000);
        let catalog = Arc::new(Catalog::open(dir.path(), &env).unwrap());
        let mut uses = Uses::read(Arc::clone(&catalog));
        uses.most_known = 8;
        let key = |id: u8| KvKey([id; 32]);
        for id in 0..100 {
            uses.record(&key(id), &env);
            env.advance(Duration::from_millis(1));
            uses.write();
        }
        // One that was dropped and is used again before the next write stays.
        for id in 100..109 {
            uses.record(&key(id), &env);
            env.advance(Duration::from_millis(1));
        }
        uses.record(&key(100), &env);
        uses.write();
        let known = uses.all();
        assert!(known.len() <= 8 && known.contains_key(&key(100)), "{}", known.len());
        assert_eq!(catalog.last_uses().unwrap(), known);
    }
}
