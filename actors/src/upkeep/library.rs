//! The corpus, and the KV that was computed from it, changed together: what a document does not say any more can be found
//! in no tier either.
//!
//! Every removal (a document or collection deleted) goes the same way, and each step is journaled before it is taken, so that the next
//! start finishes what a kill cut off. A text that is replaced, and what an ingest prunes, begin at the passages that leave:
//!
//! ```text
//! journal what is wanted -> forget ingests that may bring it back -> journal the passages that leave -> commit the corpus
//!     -> take what was wanted out of the journal -> take their KV out of every tier -> take the passages out of the journal
//! ```
//! KV is content-addressed: documents with the same passage share it. A passage that some document of any collection
//! still has keeps its KV; its last document takes it along. Where tenants are kept apart ([`Reach::Each`]), each one's KV follows the documents
//! that it may read, so that nobody keeps or learns anything by what others have. Whoever has the very text of another can still have that one's KV
//! computed again, by adding the text and deleting it.

pub(crate) mod elsewhere;
mod naming;
mod preview;
mod settling;
mod taking;
#[cfg(test)]
mod tests;
mod vacuum;
mod withdrawal;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ragstone_corpus::{Corpus, Departures, DocumentInfo, PassageTokens, Scope};
use ragstone_env::lock::locked;
use ragstone_storage::catalog::{Catalog, Holder, LeavingPassage, Reach, Removal, RemovalRow};
use ragstone_storage::key::{Fingerprint, SegmentDigest};
use ragstone_storage::store::KvStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedRwLockWriteGuard;

pub use self::naming::PassageName;
use self::taking::Pieces;
use self::vacuum::PutOff;
use crate::admission::blocking::blocking;
use crate::admission::jobs::{JobKind, Jobs};
use crate::admission::quotas::Quotas;
use crate::error::{Error, ErrorKind, Result};
use crate::upkeep::ingests::Ingests;

/// Documents that are listed together.
const DOCUMENTS_AT_ONCE: usize = 10_000;

/// Corpus, journal and store. Clones share them. Await its futures on a multi-thread runtime.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    corpus: Corpus,
    catalog: Arc<Catalog>,
    store: KvStore,
    ingests: Ingests,
    jobs: Jobs,
    /// What tenants may add.
    quotas: Quotas,
    /// Rows of the journal whose operation is over, but whose KV could not be removed yet.
    left_over: Mutex<Vec<u64>>,
    /// Turns at the pieces of upserts.
    pieces: Pieces,
    /// One vacuum at a time.
    vacuuming: tokio::sync::Mutex<()>,
    /// Vacuums that failed.
    put_off: PutOff,
}

/// KV that left the store with its passages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Withdrawn {
    /// Entries, each counted once.
    pub entries_removed: u64,
    /// Their copies: each entry as often as there were tiers that had it.
    pub copies_removed: u64,
    /// The copies' bytes.
    pub bytes_removed: u64,
    /// A tier did not answer: what it has leaves once it does. Nothing finds it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pending: bool,
}

/// What a removal did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Removed {
    /// Passages that left the corpus.
    pub passages_removed: usize,
    /// Unfinished ingests that would have brought it back, and were cancelled and forgotten before.
    pub jobs_cancelled: usize,
    /// And their KV.
    #[serde(flatten)]
    pub kv: Withdrawn,
}

/// One change of the corpus on its way. However it ends, its rows of the journal are looked after.
struct Change {
    library: Library,
    fingerprints: Vec<Fingerprint>,
    reach: Reach,
    rows: Mutex<Vec<u64>>,
}

impl Departures for Change {
    fn departing(&self, passages: Vec<PassageTokens>) -> ragstone_storage::Result<()> {
        let leaving: Vec<_> = passages
            .into_iter()
            .map(|passage| LeavingPassage {
                segments: segments_of(&self.fingerprints, &passage).collect(),
                id: passage.id,
            })
            .collect();
        if leaving.is_empty() {
            return Ok(());
        }
        let row = self.library.0.catalog.add_removal(Removal::of(&self.reach, leaving))?;
        locked(&self.rows).push(row);
        self.library.0.store.env().fail_point("removal.journaled")
    }

    fn leaving(&self, collection: &str) -> ragstone_storage::Result<()> {
        let (catalog, now) = (&self.library.0.catalog, self.library.0.store.env().now_unix_ms());
        // Its KV is noted where that leaves.
        catalog.note_remains(&Holder::Collection(collection.to_owned()), now)
    }
}

/// A change that failed half way: what left the corpus leaves the store, too.
impl Drop for Change {
    fn drop(&mut self) {
        let rows = std::mem::take(self.rows.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !rows.is_empty() {
            locked(&self.library.0.left_over).extend(rows);
            let library = self.library.clone();
            // What it could not remove is told there.
            let settled = async move { Ok::<_, Error>(library.settle_left_over().await) };
            drop(self.library.0.jobs.run(JobKind::Change, settled));
        }
    }
}

impl Library {
    /// Over an open corpus and store.
    pub(crate) fn new(corpus: Corpus, catalog: Arc<Catalog>, (store, jobs, quotas): (KvStore, Jobs, Quotas)) -> Self {
        let ingests = Ingests::new(catalog.clone());
        let (left_over, pieces, vacuuming, put_off) =
            (Mutex::default(), Pieces::new(store.env()), tokio::sync::Mutex::default(), PutOff::default());
        Self(Arc::new(Inner { corpus, catalog, store, ingests, jobs, quotas, left_over, pieces, vacuuming, put_off }))
    }

    /// The journal of ingests.
    pub fn ingests(&self) -> &Ingests {
        &self.0.ingests
    }

    /// Finishes what the journal holds. Call it before anybody asks.
    pub(crate) async fn recover(&self) -> Result<()> {
        if self.0.catalog.damage().is_some() {
            self.note_all_remains().await?;
        }
        let catalog = self.0.catalog.clone();
        let rows = blocking(move || catalog.removals()).await?;
        self.miss_collections(&rows).await?;
        let is_passages =
            |row: &RemovalRow| matches!(row.removal, Removal::Passages(_) | Removal::PassagesOfEach { .. });
        let (passages, wanted): (Vec<RemovalRow>, Vec<RemovalRow>) = rows.into_iter().partition(is_passages);
        locked(&self.0.left_over).extend(passages.iter().map(|row| row.id));
        let mut failed = None;
        for RemovalRow { id, removal } in wanted {
            tracing::info!("going on with an unfinished removal");
            let (collection, document, reach) = match &removal {
                Removal::Document { collection, document, reach } => (collection, Some(document.as_str()), reach),
                Removal::Collection { collection, reach } => (collection, None, reach),
                Removal::Passages(_) | Removal::PassagesOfEach { .. } => continue,
            };
            let gate = self.0.ingests.removing(collection).await;
            let removed = self.remove(gate, id, (collection, document), reach).await;
            failed = failed.or(found(removed).err());
        }
        self.settle_left_over().await;
        let store = self.0.store.clone();
        if blocking(move || store.has_object_removals()).await? {
            failed = failed.or(self.remove_objects_again().await.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Tells of collections that were here and are not, but for those that were being removed; notes those that are.
    async fn miss_collections(&self, rows: &[RemovalRow]) -> Result<()> {
        let removed = |name: &str| {
            rows.iter().any(|row| matches!(&row.removal, Removal::Collection { collection, .. } if collection == name))
        };
        let (names, catalog) = (self.0.corpus.names().await, self.0.catalog.clone());
        let noting = move || {
            let noted = catalog.noted_collections()?;
            names.iter().try_for_each(|name| catalog.note_collection(name))?;
            Ok(noted.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>())
        };
        let missing = blocking(noting).await?;
        // Another node may have deleted it.
        if self.0.corpus.bucket().is_none() {
            missing.iter().filter(|name| !removed(name)).for_each(|name| self.0.corpus.miss(name));
        }
        Ok(())
    }

    /// Removes a document and its KV. Goes on if the caller goes away.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection or document. After any other, the document may have left the corpus; then the
    /// rest is tried again by the next removal or start.
    pub async fn delete_document(&self, collection: &str, document: &str, asks: Option<&str>) -> Result<Removed> {
        let (name, id, reach) = (collection.to_owned(), document.to_owned(), self.reach(asks).await);
        let removal = Removal::Document { collection: name.clone(), document: id.clone(), reach: reach.clone() };
        let removed = self.delete(removal, name, Some(id), reach).await?;
        if removed.passages_removed == 0 {
            let message = format!("there is no document `{document}` in collection `{collection}`");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(removed)
    }

    /// Removes a collection with all its documents, and their KV. As [`delete_document`](Self::delete_document).
    pub async fn delete_collection(&self, collection: &str, asks: Option<&str>) -> Result<Removed> {
        let (name, reach) = (collection.to_owned(), self.reach(asks).await);
        self.delete(Removal::Collection { collection: name.clone(), reach: reach.clone() }, name, None, reach).await
    }

    async fn delete(
        &self,
        removal: Removal,
        collection: String,
        document: Option<String>,
        reach: Reach,
    ) -> Result<Removed> {
        let library = self.clone();
        // One that is cut off in the middle would leave its KV behind until the next one.
        let change = self.0.jobs.run(JobKind::Change, async move {
            // Before the row, so that every ingest that is begun later has a later number.
            let gate = library.0.ingests.removing(&collection).await;
            let catalog = library.0.catalog.clone();
            let row = blocking(move || catalog.add_removal(removal)).await?;
            library.remove(gate, row, (&collection, document.as_deref()), &reach).await
        });
        change.await
    }

    /// Does what row `row` of the journal wants. It is taken out of the journal once the corpus has done it, so that what somebody makes
    /// anew is not removed by the next start. A removal that failed was not done, but for the ingests that it cancelled, and its caller hears of both.
    async fn remove(
        &self,
        gate: OwnedRwLockWriteGuard<()>,
        row: u64,
        what: (&str, Option<&str>),
        reach: &Reach,
    ) -> Result<Removed> {
        let change = self.change(reach.clone())?;
        let left = self.leave_corpus(row, what, &change).await;
        let catalog = self.0.catalog.clone();
        blocking(move || catalog.finish_removals(&[row])).await?;
        drop(gate);
        let removed = left?;
        self.0.store.env().fail_point("removal.left_corpus")?;
        change.finish().await.map(|kv| Removed { kv, ..removed })
    }

    /// Forgets the ingests that may bring it back; then takes a document, or without one a collection, out of the corpus.
    async fn leave_corpus(
        &self,
        row: u64,
        (collection, document): (&str, Option<&str>),
        change: &Change,
    ) -> Result<Removed> {
        let Inner { corpus, catalog, ingests, store, .. } = &*self.0;
        // What is not there takes nobody's ingest along.
        if let Some(document) = document
            && !corpus.has_document(collection, document).await?
        {
            return Ok(Removed::default());
        }
        let jobs_cancelled = ingests.forget(collection, row).await?;
        if document.is_none() {
            // From here on the row of the journal stands for it.
            let (catalog, name) = (catalog.clone(), collection.to_owned());
            blocking(move || catalog.forget_collection(&name)).await?;
        }
        let removed = match (store.env().fail_point("removal.forgot_ingests"), document) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(document)) => corpus.delete(collection, document, change).await,
            (Ok(()), None) => corpus.delete_collection(collection, change).await,
        };
        let passages_removed = match removed {
            // Its first documents were still to come.
            Err(error) if error.kind() == ErrorKind::NotFound && jobs_cancelled > 0 => 0,
            Err(error) if jobs_cancelled > 0 => {
                let message = format!(
                    "{error}; unfinished ingests into the collection were cancelled before ({jobs_cancelled}): run them again if their files are wanted"
                );
                return Err(Error::new(error.kind(), message));
            }
            removed => removed?,
        };
        Ok(Removed { passages_removed, jobs_cancelled, kv: Withdrawn::default() })
    }

    /// Names of all collections.
    pub async fn collections(&self) -> Vec<String> {
        self.0.corpus.names().await
    }

    /// What `pick` takes of the id and the source of a collection's documents that have one; nothing where there is no such collection.
    pub async fn pick_documents<T: Send + 'static>(
        &self,
        collection: &str,
        pick: impl Fn(String, &str) -> Option<T> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        let (mut picked, mut offset) = (Vec::new(), 0);
        let pick = Arc::new(pick);
        loop {
            let page = match self.0.corpus.documents(collection, offset, DOCUMENTS_AT_ONCE).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(picked),
                page => page?,
            };
            offset += page.len();
            let (is_last, pick) = (page.len() < DOCUMENTS_AT_ONCE, pick.clone());
            // It may look at files.
            let of_page = blocking(move || {
                let of_page = page.into_iter().filter_map(|DocumentInfo { id, source, .. }| pick(id, &source?));
                Ok(of_page.collect::<Vec<_>>())
            });
            picked.extend(of_page.await?);
            if is_last {
                return Ok(picked);
            }
        }
    }

    /// The segments of the passages of `scope`, for every model that this folder has been used with.
    pub async fn segments(&self, scope: Scope<'_>) -> Result<HashSet<SegmentDigest>> {
        let fingerprints = self.fingerprints()?;
        let mut segments = HashSet::new();
        let mut each = |passages: Vec<PassageTokens>| {
            segments.extend(passages.iter().flat_map(|passage| segments_of(&fingerprints, passage)));
            Ok(())
        };
        self.0.corpus.scan(scope, &mut each).await?;
        Ok(segments)
    }

    /// Whose KV goes with a text. Where there are keys, or were, tenants are kept apart, however this program was started.
    async fn reach(&self, asks: Option<&str>) -> Reach {
        if self.0.catalog.has_api_keys() || self.0.corpus.has_tenants().await {
            Reach::Each { asks: asks.map(str::to_owned) }
        } else {
            Reach::Everyone
        }
    }

    fn change(&self, reach: Reach) -> Result<Change> {
        let fingerprints = self.fingerprints()?;
        Ok(Change { library: self.clone(), fingerprints, reach, rows: Mutex::default() })
    }

    fn fingerprints(&self) -> Result<Vec<Fingerprint>> {
        let mut fingerprints: Vec<_> = self.0.catalog.models()?.into_iter().map(|model| model.fingerprint).collect();
        let own = *self.0.store.fingerprint();
        if !fingerprints.contains(&own) {
            fingerprints.push(own);
        }
        Ok(fingerprints)
    }
}

impl Withdrawn {
    fn add(&mut self, more: Self) {
        self.entries_removed += more.entries_removed;
        self.copies_removed += more.copies_removed;
        self.bytes_removed += more.bytes_removed;
        self.pending |= more.pending;
    }
}

/// Each passage's segment for every model, also in the ids that an earlier tokenizer gave it.
fn segments_of(fingerprints: &[Fingerprint], passage: &PassageTokens) -> impl Iterator<Item = SegmentDigest> {
    let ids = std::iter::once(&passage.token_ids).chain(&passage.earlier_token_ids);
    ids.flat_map(|ids| fingerprints.iter().map(|fingerprint| SegmentDigest::of(fingerprint, ids)))
}

/// What is gone already is removed.
fn found(removed: Result<Removed>) -> Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}
