//! Entries one by one, and what they are of.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use ragstone_corpus::Scope;
use ragstone_storage::key::SegmentDigest;
use ragstone_storage::segment::TEXT_TOKENS;
use ragstone_storage::store::EntryInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EntryFilter;
use crate::admission::blocking::blocking;
use crate::error::Result;
use crate::ragstone::Ragstone;
use crate::upkeep::library::PassageName;
use crate::upkeep::schemas::ModuleName;

/// Entries that are listed at once.
pub const MOST_LISTED: usize = 10_000;

/// What a filter lets pass.
#[derive(Debug, Default)]
struct Matching {
    /// Last used first; the bound holds.
    entries: Vec<EntryInfo>,
    count: u64,
    bytes: u64,
    /// The bucket was asked and did not answer: what only it has is not among them.
    object_unavailable: bool,
}

/// Entries that fit a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EntryPage {
    /// How many fit.
    pub entries: u64,
    /// Their bytes, each counted once.
    pub bytes: u64,
    /// Whether more fit than are listed.
    pub has_more: bool,
    /// Whether the bucket was asked and did not answer: what only it has is missing.
    pub object_unavailable: bool,
    /// The entries, last used first.
    pub data: Vec<ListedEntry>,
}

/// An entry, and what it is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListedEntry {
    /// The entry.
    #[serde(flatten)]
    pub entry: EntryInfo,
    /// What it is of.
    pub of: EntryOf,
}

/// What an entry is of. Questions are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryOf {
    /// A passage of this folder's corpus.
    Passage(PassageName),
    /// What questions over passages begin with.
    SystemPrompt,
    /// A passage of the primer, which comes with ragstone: others are computed behind it.
    Primer,
    /// Text of a module of a schema that is kept.
    Module(ModuleName),
    /// What another prompt begins with: a caller's own system prompt, or a conversation.
    PromptStart,
    /// Text that goes on from another entry: of a conversation, a prompt or an answer, which are stored 64 tokens at a time.
    Text,
    /// A passage that this folder's corpus does not have: it came with a request, or with an import.
    OtherPassage,
}

impl Ragstone {
    /// Entries that fit a filter, `limit` of them at most ([`MOST_LISTED`]), last used first, and what they are of. Await it on a
    /// multi-thread runtime.
    ///
    /// # Errors
    /// As [`EntryFilter::look_up`], and as the tiers say.
    pub async fn entries(&self, filter: &EntryFilter, limit: usize) -> Result<EntryPage> {
        let limit = limit.min(MOST_LISTED);
        let (matcher, ragstone) = (filter.look_up(self).await?, self.clone());
        let Matching { entries, count, bytes, object_unavailable } = blocking(move || {
            let mut found = Matching::default();
            let is_complete = ragstone.store().entries(&matcher.listed(), &mut |entry| {
                if matcher.matches(&entry) {
                    found.add(entry, limit);
                }
            })?;
            found.object_unavailable = !is_complete;
            found.cut(limit);
            Ok(found)
        })
        .await?;
        let has_more = count > entries.len() as u64;
        let within = (filter.collection.as_deref(), filter.document.as_deref());
        let data = named(self, entries, within).await?;
        Ok(EntryPage { entries: count, bytes, has_more, object_unavailable, data })
    }
}

impl Matching {
    fn add(&mut self, entry: EntryInfo, limit: usize) {
        self.count += 1;
        self.bytes += entry.summary.bytes;
        self.entries.push(entry);
        // Sorted and cut now and then: `KvStore::entries` holds a summary of every entry already, once is enough.
        if self.entries.len() >= 2 * limit + 1024 {
            self.cut(limit);
        }
    }

    fn cut(&mut self, limit: usize) {
        self.entries.sort_by_key(|entry| (Reverse(entry.last_use_unix_ms), entry.summary.key));
        self.entries.truncate(limit);
    }
}

/// Says what entries of some collection or document are of.
async fn named(
    ragstone: &Ragstone,
    entries: Vec<EntryInfo>,
    (collection, document): (Option<&str>, Option<&str>),
) -> Result<Vec<ListedEntry>> {
    let segments: HashSet<SegmentDigest> = entries.iter().map(|entry| entry.summary.segment).collect();
    let names = ragstone.library().names(&segments, Scope { collection, document }).await?;
    let modules = ragstone.schemas().names().await?;
    let (system_prompt, primer) = (ragstone.warmer().system_prompt()?, ragstone.warmer().primer());
    let of = |entry: &EntryInfo| match modules.get(&entry.summary.key) {
        Some(module) => EntryOf::Module(module.clone()),
        None => of(entry, &names, system_prompt, &primer),
    };
    Ok(entries.into_iter().map(|entry| ListedEntry { of: of(&entry), entry }).collect())
}

fn of(
    entry: &EntryInfo,
    names: &HashMap<SegmentDigest, PassageName>,
    system_prompt: Option<SegmentDigest>,
    primer: &HashSet<SegmentDigest>,
) -> EntryOf {
    let segment = entry.summary.segment;
    match names.get(&segment) {
        Some(name) => EntryOf::Passage(name.clone()),
        None if system_prompt == Some(segment) => EntryOf::SystemPrompt,
        None if primer.contains(&segment) => EntryOf::Primer,
        None if entry.summary.parent.is_none() => EntryOf::PromptStart,
        // What kind it was is not stored, and passages are of any length.
        None if entry.summary.tokens as usize == TEXT_TOKENS => EntryOf::Text,
        None => EntryOf::OtherPassage,
    }
}
