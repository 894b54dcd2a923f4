//! Which tenants' KV leaves with passages that no document has any more.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ragstone_corpus::tenant_of;
use ragstone_storage::catalog::LeavingPassage;
use ragstone_storage::key::SegmentDigest;

use super::{Library, Withdrawn};
use crate::admission::blocking::blocking;
use crate::error::Result;

impl Library {
    /// Takes the KV of these passages, tenant by tenant, where no document that the tenant may read has them any more; gives what is told to
    /// the one who `asks`. A tier that does not answer keeps nothing from leaving the others.
    pub(super) async fn withdraw_each(&self, asks: Option<&str>, passages: &[LeavingPassage]) -> Result<Withdrawn> {
        let segments: Vec<SegmentDigest> =
            passages.iter().flat_map(|passage| passage.segments.iter().copied()).collect();
        let (models, store, catalog) = (self.fingerprints()?, self.0.store.clone(), self.0.catalog.clone());
        let (found, keys) = blocking(move || {
            store.forbid_planned(&segments);
            Ok((store.tenants_of(&segments, &models), catalog.api_keys()?))
        })
        .await?;
        // As a rule all of them lose the same, and the tiers are looked through once.
        let mut alike: BTreeMap<(bool, BTreeSet<String>), BTreeSet<String>> = BTreeMap::new();
        for tenant in found.tenants {
            let granted: HashSet<&str> = (keys.iter().filter(|key| key.tenant == tenant))
                .flat_map(|key| key.collections.iter().map(String::as_str))
                .collect();
            let may_read = |collection: &str| tenant_of(collection) == tenant || granted.contains(collection);
            let absent = self.absent(passages, may_read).await?;
            let is_told = asks.is_none_or(|asks| asks == tenant);
            alike.entry((is_told, absent.into_iter().collect())).or_default().insert(tenant);
        }
        let (mut told, mut failed) = (Withdrawn::default(), found.failed);
        for ((is_told, absent), tenants) in alike {
            match self.withdraw(Some(tenants), passages, &absent.into_iter().collect()).await {
                Ok(withdrawn) if is_told => told.add(withdrawn),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(told), Err)
    }

    /// Those of the passages, by their ids, that no document of these collections has.
    pub(super) async fn absent(
        &self,
        passages: &[LeavingPassage],
        is_meant: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<HashSet<String>> {
        let mut absent: HashSet<String> = passages.iter().map(|passage| passage.id.clone()).collect();
        self.0.corpus.retain_absent(&is_meant, &mut absent).await?;
        Ok(absent)
    }

    /// Takes some tenants' KV (`None`: everybody's) of those of the passages out of the store that are `absent`.
    pub(super) async fn withdraw(
        &self,
        tenants: Option<BTreeSet<String>>,
        passages: &[LeavingPassage],
        absent: &HashSet<String>,
    ) -> Result<Withdrawn> {
        let gone = passages.iter().filter(|passage| absent.contains(&passage.id));
        let segments: HashSet<SegmentDigest> = gone.flat_map(|passage| passage.segments.iter().copied()).collect();
        let segments: Vec<SegmentDigest> = segments.into_iter().collect();
        let (models, store) = (self.fingerprints()?, self.0.store.clone());
        blocking(move || {
            let removed = store.invalidate_of(tenants.as_ref(), &segments, &models)?;
            Ok(Withdrawn {
                entries_removed: removed.entries,
                copies_removed: removed.copies,
                bytes_removed: removed.bytes,
                pending: false,
            })
        })
        .await
    }
}
