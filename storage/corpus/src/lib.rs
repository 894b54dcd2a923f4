//! Keeps the documents: passages with their embeddings and token ids, in LanceDB, one table a collection.
//!
//! The corpus is the only primary data of ragstone; everything in the KV store can be computed again from it. A document
//! is cut into passages once, when it is ingested; each passage is embedded and tokenized then and never again.
//!
//! Why a table a collection: BM25's word statistics are the collection's own, so that what one collection holds neither
//! shows in nor changes another's ranking; no filter stands between a question and foreign passages; and dropping a
//! collection is dropping a folder.
//!
//! All functions that touch the disk are `async` and must be awaited on a multi-thread tokio runtime: LanceDB's plans
//! spawn tasks that wait for each other. Work that binds the processor (embedding, tokenizing) runs on that runtime's
//! blocking threads. One process at a time may have a corpus open that is in a folder; the data folder's lock sees to that. Any number share
//! one that is in object storage (`bucket.rs`).

mod bucket;
mod candidates;
mod changing;
mod checks;
mod chunk;
mod composed;
mod course;
mod damaged;
mod disk;
mod document;
mod embedders;
mod filter;
mod find;
mod folders;
mod found;
mod fusion;
mod identifiers;
mod ingest;
mod mend;
mod metadata;
mod naming;
mod options;
mod passage;
mod query;
mod quiet;
mod relevance;
mod renewal;
mod scan;
mod schema;
mod scripts;
mod search;
mod sharing;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod unfinished;
mod verify;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use lancedb::query::{ColumnOrdering, QueryBase, Select};
use lancedb::{ObjectStoreRegistry, Session};
use serde::{Deserialize, Serialize};

pub use self::bucket::{Bucket, BucketOptions, Followed, Follower, Gone, GoneEntry, UpToDate};
use self::changing::Changing;
pub use self::course::{Course, Piece};
use self::damaged::Damaged;
use self::disk::{caught, failed, io_failed};
pub use self::document::{DocumentInfo, StoredDocument};
use self::embedders::Embedders;
pub use self::filter::{Filter, Qualified, qualified};
pub use self::ingest::{Going, Taken, UpsertProgress, UpsertReport};
pub use self::metadata::Metadata;
use self::naming::Stage;
pub use self::naming::{COLLECTION, check_name, check_stored_name, full_name, is_name, shown_name, tenant_of};
pub use self::options::CorpusOptions;
pub use self::passage::{Passage, PassageEncoder};
pub use self::relevance::{Language, Unrelated};
pub use self::renewal::{BuiltWith, RenewalProgress};
pub use self::scan::{Departures, PassageTokens, Scope};
use self::schema::StoredPassage;
pub use self::search::{Elsewhere, Hit, SearchMode, SearchOptions, Searched, Took};
use self::sharing::Home;
use self::table::Collection;
pub use self::verify::{CorpusCheck, DamagedFile, Pace};
use ragstone_env::durable::{create_folder, sync_name};
use ragstone_env::{Error, ErrorKind, Result};

/// LanceDB would keep up to 1 GiB of metadata; the service promises to stay within its configured tiers.
const METADATA_CACHE_BYTES: usize = 16 << 20;

/// Collections of a tenant, and of a data folder: each is a table, which is open.
const MOST_OF_TENANT: usize = 1000;
const MOST_COLLECTIONS: usize = 10_000;

/// A collection's size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CollectionInfo {
    pub name: String,
    /// 0 where it cannot be read.
    pub documents: usize,
    /// 0 where it cannot be read.
    pub passages: usize,
    /// What is wrong with it, and what to do; not there where nothing is known to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// Counters since the corpus was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CorpusCounters {
    /// Passages that were tokenized again on read, because their ids belonged to another tokenizer.
    pub passages_retokenized: u64,
    /// Texts (passages and questions) that went through the embedding model.
    pub texts_embedded: u64,
}

/// Finds the encoder of an identity that is not in use any more.
pub type Earlier<'a> = &'a (dyn Fn(&str) -> Option<Arc<dyn PassageEncoder>> + Send + Sync);

/// The corpus of one data folder, or of a bucket. Clones share it.
#[derive(Clone)]
pub struct Corpus {
    inner: Arc<Inner>,
}

struct Inner {
    db: lancedb::Connection,
    home: Home,
    encoder: Arc<dyn PassageEncoder>,
    embedders: Embedders,
    options: CorpusOptions,
    /// Collections whose tables are being built anew.
    renewing: std::sync::Mutex<HashSet<String>>,
    /// Locked to look a table up, and not for longer.
    collections: tokio::sync::Mutex<BTreeMap<String, Arc<Collection>>>,
    changing: Changing,
    damaged: Damaged,
    passages_retokenized: AtomicU64,
    texts_embedded: AtomicU64,
}

impl Corpus {
    /// Opens the corpus in `dir`, which is created where it is missing.
    ///
    /// # Errors
    /// `Incompatible` where a collection was built with another embedding model; the message says what to do.
    /// `InvalidInput` for a passage length of less than 16 tokens, and an overlap of half of it.
    pub async fn open(dir: &Path, encoder: Arc<dyn PassageEncoder>, options: CorpusOptions) -> Result<Self> {
        Self::open_any(dir, encoder, None, options).await
    }

    /// As [`open`](Self::open). A collection that was built with another embedding model is searched with the one that `earlier` has for
    /// that identity, or by words alone where it has none, until [`renew`](Self::renew) has embedded it again.
    ///
    /// # Errors
    /// As [`open`](Self::open)'s but the first.
    pub async fn open_with(
        dir: &Path,
        encoder: Arc<dyn PassageEncoder>,
        earlier: Earlier<'_>,
        options: CorpusOptions,
    ) -> Result<Self> {
        Self::open_any(dir, encoder, Some(earlier), options).await
    }

    async fn open_any(
        dir: &Path,
        encoder: Arc<dyn PassageEncoder>,
        earlier: Option<Earlier<'_>>,
        options: CorpusOptions,
    ) -> Result<Self> {
        options.check()?;
        let opening = format!("open the corpus in {}", dir.display());
        let folder = dir.to_owned();
        let found = blocking("opening the corpus", move || {
            create_folder(&folder)
                .and_then(|()| sync_name(&folder))
                .and_then(|()| folders::find(&folder))
                .map_err(|error| io_failed(&format!("read the folder {}", folder.display()), error))
        });
        let folders::Tables { whole, damaged } = found.await?;
        let path = dir.to_str().ok_or_else(|| {
            let message = format!("the path {} is not UTF-8: choose another data folder", dir.display());
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let registry = Arc::new(ObjectStoreRegistry::default());
        let session = Arc::new(Session::new(options.index_cache_bytes(), METADATA_CACHE_BYTES, registry));
        let db = lancedb::connect(path).session(session).execute().await.map_err(failed(opening))?;
        let (own, mut embedders) = (encoder.identity(), Embedders::new(&encoder));
        let mut collections = BTreeMap::new();
        let damaged = Damaged::at_start(damaged);
        for name in whole {
            let opened = caught("open it", Collection::open(&db, dir, (&name, Stage::Serving))).await;
            let mut collection =
                match opened.and_then(|opened| checked(opened, &own, earlier.is_some(), &dir.display().to_string())) {
                    Ok(collection) => collection,
                    // One that nobody may search refuses the start: it is not damaged.
                    Err(error) if error.kind() == ErrorKind::Incompatible && earlier.is_none() => return Err(error),
                    Err(error) => {
                        damaged.note(&name, &error);
                        continue;
                    }
                };
            folders::forget_superseded(dir, &name);
            if collection.embedding() == own {
                // Somebody went back to it before the collection had the other model's vectors.
                let begun = folders::discard(dir, &folders::path_of(dir, &name, Stage::Building));
                begun.unwrap_or_else(|error| tracing::warn!(collection = name, %error, "what was begun of it stays"));
            }
            embedders.load(&mut collection, earlier);
            collections.insert(name, Arc::new(collection));
        }
        Ok(Self::over(db, Home::Folder(dir.to_owned()), (encoder, embedders), options, collections, damaged))
    }

    fn over(
        db: lancedb::Connection,
        home: Home,
        (encoder, embedders): (Arc<dyn PassageEncoder>, Embedders),
        options: CorpusOptions,
        collections: BTreeMap<String, Arc<Collection>>,
        damaged: Damaged,
    ) -> Self {
        let inner = Inner {
            db,
            home,
            encoder,
            embedders,
            options,
            renewing: std::sync::Mutex::default(),
            collections: tokio::sync::Mutex::new(collections),
            changing: Changing::default(),
            damaged,
            passages_retokenized: AtomicU64::new(0),
            texts_embedded: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Removes a document; how many passages went. 0 where there was none. `departures` hears of them first. Indexes are brought up to
    /// date by the next upsert, so that nobody waits for that here.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn delete(&self, collection: &str, document_id: &str, departures: &dyn Departures) -> Result<usize> {
        loop {
            let table = self.find(collection).await?;
            // Another table may have taken its place meanwhile.
            let Some(writer) = table.write().await else { continue };
            let documents = [document_id.to_owned()];
            self.announce(&table, Some((&documents, &HashSet::new())), departures).await?;
            let removed = writer.remove(&documents).await?;
            writer.prune_if_many().await?;
            return Ok(removed);
        }
    }

    /// The names of all collections, in order; those that cannot be opened, too.
    pub async fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.inner.collections.lock().await.keys().cloned().collect();
        names.extend(self.inner.damaged.unopened());
        names.sort();
        names
    }

    /// Whether there is a collection of that name; one that cannot be opened counts.
    pub async fn has(&self, collection: &str) -> bool {
        self.served(collection).await.is_some()
            || self.inner.damaged.unopened_why(collection).is_some()
            || self.find_elsewhere(collection).await.is_ok()
    }

    /// Documents `offset..offset + limit` of a collection, ordered by id; fewer only at its end. Where two nodes have just added one, what comes
    /// after it may be in two pages, and nothing is in none.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn documents(&self, collection: &str, offset: usize, limit: usize) -> Result<Vec<DocumentInfo>> {
        let table = self.find(collection).await?;
        if limit == 0 {
            return Ok(Vec::new());
        }
        let snapshot = table.snapshot().await?;
        let columns = ["document_id", "title", "source", "passages", "metadata"];
        let (mut documents, mut from): (Vec<DocumentInfo>, usize) = (Vec::new(), offset);
        loop {
            let wanted = limit - documents.len();
            let order = ColumnOrdering::asc_nulls_first("document_id".to_owned());
            let query = snapshot.table.query().only_if("ordinal = 0").order_by(Some(vec![order]));
            let query = query.offset(from).limit(wanted).select(Select::columns(&columns));
            let mut rows = 0;
            for batch in table.run(query).await? {
                rows += batch.num_rows();
                documents.append(&mut document_infos(&batch)?);
            }
            // Two nodes may just have added one: it is in the list once, and what comes after it takes the other place.
            documents.dedup_by(|one, other| one.id == other.id);
            from = from.saturating_add(rows);
            if rows < wanted || documents.len() >= limit {
                return Ok(documents);
            }
        }
    }

    /// One document with its passages.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection or document.
    pub async fn document(&self, collection: &str, document_id: &str) -> Result<StoredDocument> {
        let table = self.find(collection).await?;
        let snapshot = table.snapshot().await?;
        let columns = table.passage_columns(&["passages", "token_ids"]);
        let query = snapshot.table.query().only_if_expr(table::is_document(document_id));
        let (mut infos, mut stored) = (Vec::new(), Vec::new());
        for batch in table.run(query.select(Select::columns(&columns))).await? {
            infos.append(&mut document_infos(&batch)?);
            stored.append(&mut schema::decode(&batch, collection)?);
        }
        // Two nodes may just have added it.
        if let Some(newest) = stored.iter().map(|stored| stored.generation).max() {
            let mut is_newest = stored.iter().map(|stored| stored.generation == newest).collect::<Vec<_>>().into_iter();
            infos.retain(|_| is_newest.next().unwrap_or(true));
            stored.retain(|stored| stored.generation == newest);
        }
        let Some(info) = infos.into_iter().next() else {
            let message = format!("there is no document `{document_id}` in collection `{collection}`");
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        stored.iter().try_for_each(StoredPassage::check)?;
        stored.sort_by_key(|stored| stored.passage.ordinal);
        Ok(StoredDocument { info, passages: self.with_own_tokens(stored).await? })
    }

    /// Whether a collection has a document.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn has_document(&self, collection: &str, document_id: &str) -> Result<bool> {
        self.find(collection).await?.has(document_id).await
    }

    /// Counters since the start.
    pub fn counters(&self) -> CorpusCounters {
        CorpusCounters {
            passages_retokenized: self.inner.passages_retokenized.load(Ordering::Relaxed),
            texts_embedded: self.inner.texts_embedded.load(Ordering::Relaxed),
        }
    }

    fn encoder(&self) -> &Arc<dyn PassageEncoder> {
        &self.inner.encoder
    }

    /// How long passages are, with what stands around their text.
    fn passage_length(&self) -> chunk::Budget {
        let options = &self.inner.options;
        chunk::Budget { tokens: options.chunk_tokens, overlap: options.chunk_overlap_tokens }
    }

    fn texts_embedded(&self) -> &AtomicU64 {
        &self.inner.texts_embedded
    }

    async fn find(&self, name: &str) -> Result<Arc<Collection>> {
        check_stored_name(name)?;
        if let Some(table) = self.served(name).await {
            return Ok(table);
        }
        if self.inner.damaged.unopened_why(name).is_some() {
            return self.open_again(name).await;
        }
        self.find_elsewhere(name).await
    }

    /// Whether any collection is another's than the default tenant's.
    pub async fn has_tenants(&self) -> bool {
        self.names().await.iter().any(|name| !tenant_of(name).is_empty())
    }

    /// The passages with token ids of the encoder's tokenizer; ids of another are made again, and counted.
    async fn with_own_tokens(&self, stored: Vec<StoredPassage>) -> Result<Vec<Passage>> {
        let own = self.encoder().tokenizer_identity();
        if stored.iter().all(|stored| stored.tokenizer == own) {
            return Ok(stored.into_iter().map(|stored| stored.passage).collect());
        }
        let encoder = Arc::clone(self.encoder());
        let (passages, count) = blocking("tokenizing passages", move || {
            let mut passages = Vec::with_capacity(stored.len());
            let mut count = 0;
            for StoredPassage { mut passage, tokenizer, .. } in stored {
                if tokenizer != own {
                    passage.token_ids = encoder.tokenize_passage(&passage.title, &passage.text)?.into();
                    count += 1;
                }
                passages.push(passage);
            }
            Ok((passages, count))
        })
        .await?;
        self.inner.passages_retokenized.fetch_add(count, Ordering::Relaxed);
        Ok(passages)
    }
}

fn document_infos(batch: &RecordBatch) -> Result<Vec<DocumentInfo>> {
    let (ids, titles) = (schema::strings(batch, "document_id")?, schema::strings(batch, "title")?);
    let (sources, metadata) = (schema::strings(batch, "source")?, schema::strings(batch, "metadata")?);
    let passages = schema::numbers(batch, "passages")?;
    let info = |row| {
        Ok(DocumentInfo {
            id: ids.value(row).to_owned(),
            title: titles.value(row).to_owned(),
            source: schema::optional(sources, row),
            passages: passages.value(row) as usize,
            metadata: Metadata::stored(metadata.value(row)),
        })
    };
    (0..batch.num_rows()).map(info).collect()
}

/// A collection of another format is refused, and one of another embedding model unless it `may_be_stale`.
fn checked(collection: Collection, embedding: &str, may_be_stale: bool, home: &str) -> Result<Collection> {
    let (name, format) = (&collection.name, collection.metadata(schema::FORMAT_KEY));
    if format != schema::FORMAT {
        let message = format!(
            "collection `{name}` in {home} has format `{format}`, and this ragstone reads format {}: upgrade ragstone",
            schema::FORMAT
        );
        return Err(Error::new(ErrorKind::Incompatible, message));
    }
    let built_with = collection.embedding();
    if built_with != embedding && !may_be_stale {
        let message = format!(
            "collection `{name}` was built with the embedding model {built_with}, and the one in use is {embedding}: \
             start with that model, or use another data folder, or remove {home} and ingest the documents again"
        );
        return Err(Error::new(ErrorKind::Incompatible, message));
    }
    Ok(collection)
}

/// Runs work that binds the processor or a disk on a blocking thread. A panic there is an error here.
async fn blocking<T: Send + 'static>(doing: &str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::new(ErrorKind::Internal, format!("{doing} panicked")).with_source(error))?
}
