//! Looks at the tiers now and then while somebody watches, and tells what changed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ragstone_storage::tier::{Tier, TierStatus};

use super::{Inner, Ragstone};
use crate::report::events::Happened;

/// How often the tiers are looked at while somebody watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Ragstone {
    /// Begins to look, in the background, until the service stops or is dropped.
    pub(super) fn watch_tiers(&self) {
        let (weak, stopping) = (Arc::downgrade(&self.inner), self.inner.jobs.stopping().clone());
        self.inner.pipeline.runtime.spawn(stopping.run_until_cancelled_owned(look(weak)));
    }

    /// Every tier that is there, fastest first, and what it holds and did. May block where a tier hangs.
    pub fn tiers(&self) -> Vec<(Tier, TierStatus)> {
        let store = self.inner.pipeline.store.status();
        let device = self.inner.engine.status().cache;
        let tiers = [(Tier::Host, Some(store.host)), (Tier::Disk, Some(store.disk)), (Tier::Object, store.object)];
        let tiers = tiers.into_iter().filter_map(|(tier, status)| Some((tier, status?)));
        std::iter::once((Tier::Device, device)).chain(tiers).collect()
    }
}

async fn look(inner: Weak<Inner>) {
    let mut before = Vec::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let ragstone = Ragstone { inner };
        if !ragstone.feed().is_watched() {
            before.clear();
            continue;
        }
        let looking = ragstone.clone();
        // A tier that hangs holds one thread, not one for each look.
        let Ok(now) = tokio::task::spawn_blocking(move || looking.tiers()).await else { continue };
        if now == before {
            continue;
        }
        let left = evictions(&before, &now);
        if !left.is_empty() {
            ragstone.feed().publish(|| Happened::Evictions(left.into()));
        }
        ragstone.feed().publish(|| Happened::Tiers(now.as_slice().into()));
        before = now;
    }
}

/// Entries that left each tier for room between two looks. What left before the first one is not news.
fn evictions(before: &[(Tier, TierStatus)], now: &[(Tier, TierStatus)]) -> Vec<(Tier, u64)> {
    let earlier = |tier: Tier| before.iter().find(|(other, _)| *other == tier).map(|(_, status)| status.evicted);
    let left = now.iter().filter_map(|(tier, status)| Some((*tier, status.evicted.saturating_sub(earlier(*tier)?))));
    left.filter(|(_, entries)| *entries > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_is_what_was_counted_since_the_last_look() {
        let tier = |tier, evicted| (tier, TierStatus { evicted, ..TierStatus::default() });
        let first = [tier(Tier::Host, 3), tier(Tier::Disk, 5)];
        assert_eq!(evictions(&[], &first), []);
        assert_eq!(evictions(&first, &first), []);
        let second = [tier(Tier::Host, 7), tier(Tier::Disk, 5), tier(Tier::Object, 1)];
        assert_eq!(evictions(&first, &second), [(Tier::Host, 4)]);
    }
}
