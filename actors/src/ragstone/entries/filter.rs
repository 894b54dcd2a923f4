//! Which entries a verb is about.

use std::collections::HashSet;

use ragstone_corpus::Scope;
use ragstone_storage::catalog::ModelRecord;
use ragstone_storage::key::{Fingerprint, KvKey, SegmentDigest};
use ragstone_storage::store::EntryInfo;
use ragstone_storage::tier::{EntrySummary, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::ragstone::Ragstone;

/// Which entries are meant: everything given must be so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EntryFilter {
    /// Entries of this collection's passages, whatever stood before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Entries of the passages of the documents of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Entries of the modules of this schema, which the tenant keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Of these, those of the module of this path, and of what it contains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The tenant; the default one is the empty name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Entries that this tier has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Not used for this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<u64>,
    /// Used within this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub younger_than_s: Option<u64>,
    /// Entries of this model: its name, or the beginning of its fingerprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A filter with everything looked up.
pub struct EntryMatcher {
    keys: Option<HashSet<KvKey>>,
    segments: Option<HashSet<SegmentDigest>>,
    fingerprints: Option<Vec<Fingerprint>>,
    tenant: Option<String>,
    tier: Option<Tier>,
    used_before_unix_ms: u64,
    used_after_unix_ms: u64,
}

impl EntryFilter {
    /// Whether it lets everything pass.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Looks up passages, modules and models. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// `NotFound` for a collection, document, schema or model that is not there; `InvalidInput` for a module that its schema does not have.
    pub async fn look_up(&self, ragstone: &Ragstone) -> Result<EntryMatcher> {
        let now_unix_ms = ragstone.store().env().now_unix_ms();
        let scope = Scope { collection: self.collection.as_deref(), document: self.document.as_deref() };
        let segments = match (&self.collection, &self.document) {
            (None, None) => None,
            (_, document) => {
                let segments = ragstone.library().segments(scope).await?;
                if let (true, Some(document)) = (segments.is_empty(), document) {
                    return Err(Error::of_field(ErrorKind::NotFound, "document", missing(self, document)));
                }
                Some(segments)
            }
        };
        let keys = match (&self.schema, &self.module) {
            (None, None) => None,
            (None, Some(_)) => {
                let message = "say of which `schema` the module is";
                return Err(Error::of_field(ErrorKind::InvalidInput, "module", message));
            }
            (Some(schema), module) => {
                let (schemas, tenant) = (ragstone.schemas(), self.tenant.as_deref().unwrap_or_default());
                Some(schemas.entries(tenant, schema, module.as_deref(), Caller::default()).await?)
            }
        };
        let fingerprints = match &self.model {
            None => None,
            Some(model) => Some(fingerprints(model, &ragstone.catalog().models()?)?),
        };
        let ago = |seconds: u64| now_unix_ms.saturating_sub(seconds.saturating_mul(1000));
        Ok(EntryMatcher {
            keys,
            segments,
            fingerprints,
            tenant: self.tenant.clone(),
            tier: self.tier,
            used_before_unix_ms: self.older_than_s.map_or(u64::MAX, ago),
            used_after_unix_ms: self.younger_than_s.map_or(0, ago),
        })
    }
}

fn missing(filter: &EntryFilter, document: &str) -> String {
    match &filter.collection {
        Some(collection) => format!("there is no document `{document}` in collection `{collection}`"),
        None => format!("there is no document `{document}` in any collection"),
    }
}

fn fingerprints(wanted: &str, known: &[ModelRecord]) -> Result<Vec<Fingerprint>> {
    let is_wanted = |model: &&ModelRecord| {
        model.name == wanted || (wanted.len() >= 4 && model.fingerprint.to_string().starts_with(wanted))
    };
    let found: Vec<_> = known.iter().filter(is_wanted).map(|model| model.fingerprint).collect();
    if found.is_empty() {
        let names: Vec<String> =
            known.iter().map(|model| format!("{} ({:.12})", model.name, model.fingerprint.to_string())).collect();
        let message = format!("no entries of a model `{wanted}` are known here; known: {}", names.join(", "));
        return Err(Error::of_field(ErrorKind::NotFound, "model", message));
    }
    Ok(found)
}

impl EntryMatcher {
    /// Whether the filter lets an entry pass.
    pub fn matches(&self, entry: &EntryInfo) -> bool {
        self.matches_summary(&entry.summary)
            && self.tier.is_none_or(|tier| entry.tiers.contains(&tier))
            && entry.last_use_unix_ms <= self.used_before_unix_ms
            && entry.last_use_unix_ms >= self.used_after_unix_ms
    }

    /// The same without what only this node knows: where it is, and when it was used.
    pub fn matches_summary(&self, summary: &EntrySummary) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(&summary.key))
            && self.segments.as_ref().is_none_or(|segments| segments.contains(&summary.segment))
            && self.fingerprints.as_ref().is_none_or(|models| models.contains(&summary.fingerprint))
            && self.tenant.as_ref().is_none_or(|tenant| **tenant == *summary.tenant)
    }

    /// The tiers whose entries have to be listed for it, so that it is seen in which of this machine they are. The bucket is
    /// not, where another tier was asked for: that takes a request an entry.
    pub fn listed(&self) -> Vec<Tier> {
        Tier::ALL
            .into_iter()
            .filter(|tier| *tier != Tier::Object || self.tier.is_none_or(|wanted| wanted == *tier))
            .collect()
    }

    /// The tiers that it is about.
    pub fn tiers(&self) -> Vec<Tier> {
        self.tier.map_or(Tier::ALL.to_vec(), |tier| vec![tier])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tenant: &str, segment: u8, last_use_unix_ms: u64) -> EntryInfo {
        let summary = EntrySummary {
            key: KvKey([1; 32]),
            parent: None,
            segment: SegmentDigest([segment; 16]),
            fingerprint: Fingerprint([3; 32]),
            tenant: tenant.into(),
            tokens: 1,
            layers: 1,
            bytes: 1,
            compute_us: 1,
            created_unix_ms: 1,
        };
        EntryInfo { summary, tiers: vec![Tier::Disk], lossy: false, pinned: false, last_use_unix_ms, uses: 1 }
    }

    fn everything() -> EntryMatcher {
        EntryMatcher {
            keys: None,
            segments: None,
            fingerprints: None,
            tenant: None,
            tier: None,
            used_before_unix_ms: u64::MAX,
            used_after_unix_ms: 0,
        }
    }

    #[test]
    fn everything_given_must_be_so() {
        let one = entry("a", 7, 100);
        assert!(everything().matches(&one));
        let segments = |digest| Some(HashSet::from([SegmentDigest([digest; 16])]));
        let keys = |key| Some(HashSet::from([KvKey([key; 32])]));
        let cases: [(EntryMatcher, bool); 12] = [
            (EntryMatcher { keys: keys(1), ..everything() }, true),
            (EntryMatcher { keys: keys(2), ..everything() }, false),
            (EntryMatcher { segments: segments(7), ..everything() }, true),
            (EntryMatcher { segments: segments(8), ..everything() }, false),
            (EntryMatcher { fingerprints: Some(vec![Fingerprint([4; 32])]), ..everything() }, false),
            (EntryMatcher { tenant: Some("a".into()), ..everything() }, true),
            (EntryMatcher { tenant: Some(String::new()), ..everything() }, false),
            (EntryMatcher { tier: Some(Tier::Disk), ..everything() }, true),
            (EntryMatcher { tier: Some(Tier::Host), ..everything() }, false),
            (EntryMatcher { used_before_unix_ms: 99, ..everything() }, false),
            (EntryMatcher { used_after_unix_ms: 101, ..everything() }, false),
            (EntryMatcher { used_before_unix_ms: 100, used_after_unix_ms: 100, ..everything() }, true),
        ];
        for (index, (matcher, wanted)) in cases.iter().enumerate() {
            assert_eq!(matcher.matches(&one), *wanted, "case {index}");
        }
    }

    #[test]
    fn models_go_by_name_or_by_the_beginning_of_their_fingerprint() {
        let record = |byte, name: &str| ModelRecord {
            fingerprint: Fingerprint([byte; 32]),
            name: name.into(),
            first_used_unix_ms: 0,
            last_used_unix_ms: 0,
        };
        let known = [record(0xab, "demo"), record(0xcd, "demo"), record(0xef, "other")];
        assert_eq!(fingerprints("demo", &known).unwrap().len(), 2);
        assert_eq!(fingerprints("efef", &known).unwrap(), [Fingerprint([0xef; 32])]);
        let error = fingerprints("ef", &known).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("other (efefefefefef)"), "{error}");
    }
}
