//! How often passages were asked for lately.

use std::collections::HashMap;

use crate::key::{Fingerprint, KvKey};

/// Prompts after which a use counts half.
const HALF_LIFE: f64 = 500.0;
/// Passages that are remembered, at the most.
const MOST_PASSAGES: usize = 1 << 16;

/// Uses of passages, each of which counts less with every prompt that comes after it. A prompt counts when it arrives, so that those who
/// wait make the passages popular that they share.
#[derive(Debug, Default)]
pub struct Popularity {
    uses: HashMap<KvKey, Uses>,
    prompts: u64,
}

#[derive(Debug, Clone, Copy)]
struct Uses {
    count: f64,
    /// The prompt at which it was so many.
    at: u64,
}

impl Uses {
    fn now(self, prompts: u64) -> f64 {
        self.count * 0.5_f64.powf((prompts - self.at) as f64 / HALF_LIFE)
    }
}

impl Popularity {
    /// How popular passages are for a prompt of the tenant `salt`, which does not count: whether it will be anybody's is not known yet, or it
    /// counts as part of another.
    pub fn of<'a>(
        &self,
        fingerprint: &Fingerprint,
        salt: &str,
        passages: impl IntoIterator<Item = &'a [u32]>,
    ) -> Vec<f64> {
        // As it would be if it had arrived.
        let next = self.prompts + 1;
        let popular = |tokens: &[u32]| {
            let key = KvKey::derive(fingerprint, salt, None, tokens);
            self.uses.get(&key).map_or(0.0, |uses| uses.now(next))
        };
        passages.into_iter().map(popular).collect()
    }

    /// A prompt of the tenant `salt` has these passages. How popular each was before it: of one tenant nothing follows for another.
    pub fn arrived<'a>(
        &mut self,
        fingerprint: &Fingerprint,
        salt: &str,
        passages: impl IntoIterator<Item = &'a [u32]>,
    ) -> Vec<f64> {
        self.prompts += 1;
        let prompts = self.prompts;
        let popular = |tokens: &[u32]| {
            let key = KvKey::derive(fingerprint, salt, None, tokens);
            let uses = self.uses.entry(key).or_insert(Uses { count: 0.0, at: prompts });
            let before = uses.now(prompts);
            *uses = Uses { count: before + 1.0, at: prompts };
            before
        };
        let before = passages.into_iter().map(popular).collect();
        self.bound();
        before
    }

    /// Forgets the less popular half where there are too many.
    fn bound(&mut self) {
        if self.uses.len() <= MOST_PASSAGES {
            return;
        }
        let prompts = self.prompts;
        let mut counts: Vec<f64> = self.uses.values().map(|uses| uses.now(prompts)).collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable_by(middle, f64::total_cmp);
        let median = *median;
        self.uses.retain(|_, uses| uses.now(prompts) > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Fingerprint = Fingerprint([7; 32]);

    #[test]
    fn uses_count_by_tenant_and_fade() {
        let mut popularity = Popularity::default();
        let mut arrived = |salt: &str, passages: &[&[u32]]| popularity.arrived(&MODEL, salt, passages.iter().copied());
        assert_eq!(arrived("", &[&[1], &[2]]), [0.0, 0.0]);
        assert_eq!(arrived("other", &[&[1]]), [0.0], "another tenant's are its own");
        let second = arrived("", &[&[1]])[0];
        assert!((0.99..1.0).contains(&second), "{second}");
        for _ in 0..HALF_LIFE as usize {
            arrived("", &[&[3]]);
        }
        let faded = arrived("", &[&[1]])[0];
        assert!((0.9..1.0).contains(&faded), "about two, halved: {faded}");
    }

    #[test]
    fn who_looks_changes_nothing() {
        let mut popularity = Popularity::default();
        let asked: [&[u32]; 2] = [&[1], &[2]];
        assert_eq!(popularity.of(&MODEL, "", asked), [0.0, 0.0]);
        popularity.arrived(&MODEL, "", asked);
        let seen = popularity.of(&MODEL, "", asked);
        assert_eq!(popularity.of(&MODEL, "", asked), seen);
        assert_eq!(popularity.of(&MODEL, "other", asked), [0.0, 0.0]);
        assert_eq!(popularity.arrived(&MODEL, "", asked), seen, "as if it had arrived");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_popular_stay() {
        let mut popularity = Popularity::default();
        popularity.arrived(&MODEL, "", [[0].as_slice(), &[0]]);
        for passage in 1..=MOST_PASSAGES as u32 + 1 {
            popularity.arrived(&MODEL, "", [[passage].as_slice()]);
        }
        assert!(popularity.uses.len() <= MOST_PASSAGES);
        // A use of long ago counts nothing beside one of today.
        assert!(popularity.arrived(&MODEL, "", [[MOST_PASSAGES as u32].as_slice()])[0] > 0.9);
        assert_eq!(popularity.arrived(&MODEL, "", [[9].as_slice()]), [0.0]);
    }
}
