//! One collection's table: commits, snapshots to read from, and what keeps it fast and small.
//!
//! Each change of a collection is one commit of LanceDB, which a reader sees wholly or not at all, and which a kill
//! leaves either done or undone. A document that changed is replaced by one merge: its new passages go in and the older
//! version's go out in the same commit. So no state between two versions exists that somebody would have to repair.
//!
//! Writers take turns. Readers read from snapshots and wait for nobody but the removal of superseded files.

mod commit;
mod indexes;
mod segments;
mod shared;
mod upkeep;
mod writing;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use futures::TryStreamExt;
use lancedb::arrow::SendableRecordBatchStream;
use lancedb::datafusion::prelude::{Expr, col, lit};
use lancedb::query::ExecutableQuery;
use lancedb::table::NewColumnTransform;
use lancedb::{Connection, Table};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use self::commit::Leaving;
#[cfg(test)]
pub(crate) use self::commit::{Added, Commits, commit};
#[cfg(test)]
pub(super) use self::indexes::term_index;
pub(super) use self::indexes::{TERM_INDEX, TEXT_INDEX, text_index};
pub(super) use self::shared::{Change, Shared};
use super::bucket::Bucket;
use super::checks::Checks;
use super::disk::{failed, files, io_failed};
use super::folders::{discard, path_of};
use super::naming::{Stage, table_at, unknown};
use super::quiet::Quiet;
use super::unfinished::{begin, end};
use super::{PassageEncoder, blocking, schema};
use crate::{Error, ErrorKind, Result};
use ragstone_env::lock::locked;

/// The table of one collection.
pub(super) struct Collection {
    pub name: String,
    /// Gives it its vectors; `None` where that embedding model cannot be loaded any more, and words alone are searched.
    pub embedder: Option<Arc<dyn PassageEncoder>>,
    pub(super) table: Table,
    home: Home,
    schema: SchemaRef,
    dimension: usize,
    /// Another table has taken its place: whoever reads it may go on, nobody writes into it, and the last one takes its files along.
    replaced: AtomicBool,
    /// It was dropped: there is no such collection, whoever still holds it.
    gone: AtomicBool,
    /// Held by the one writer; in object storage by all writers, where others write beside them anyway.
    writer: RwLock<()>,
    /// Shared by readers; taken alone to remove files that a reader's snapshot may need.
    files: RwLock<Files>,
    /// Files that are known to be on the disk, not only in its cache.
    synced: Mutex<HashSet<PathBuf>>,
    /// The files that were there when the first writer came, by their names below the folder; `None` before that, and where they could not
    /// be listed. Those of them that have no checksum are left to the next comparison: a writer would read all of them in its turn.
    found: Mutex<Option<Arc<HashSet<String>>>>,
    /// Their checksums; `None` until they are read, and while somebody adds to them.
    checks: Mutex<Option<Checks>>,
    /// Which indexes a search met that could not be read.
    pub(super) broken: Broken,
    /// Whether the vectors are indexed, once that was looked up. Not of a table in object storage, where other nodes index them, too.
    vectors_indexed: Mutex<Option<bool>>,
    /// Whether some passage has terms and they are indexed, once that was looked up.
    terms_indexed: Mutex<Option<bool>>,
    /// Counts changes of documents since it was opened: whoever saw as many knows what it holds.
    commits: AtomicU64,
    /// Whether nobody writes any more.
    pub(super) quiet: Mutex<Quiet>,
}

/// Indexes that are to be built anew: they hold nothing that the rows have not.
#[derive(Default)]
pub(super) struct Broken {
    pub words: AtomicBool,
    pub vectors: AtomicBool,
    /// How often some were built anew since the start: where that does not help, it is not the index that is damaged.
    pub mended: AtomicUsize,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Files {
    #[default]
    There,
    /// The collection was dropped: whoever waited for it must look it up again.
    Gone,
}

/// A collection at one version. It stays readable for as long as this is held.
pub(super) struct Snapshot<'a> {
    pub table: Table,
    _files: RwLockReadGuard<'a, Files>,
}

impl Snapshot<'_> {
    /// Columns of these rows, in their order. Reads what is stored of them and plans no query.
    pub async fn take(&self, rows: &[u64], columns: &[&str]) -> Result<RecordBatch> {
        let failed = || failed("read passages".to_owned());
        let Some(dataset) = self.table.dataset() else {
            return Err(Error::new(ErrorKind::Internal, "a table of ours is none of LanceDB's own"));
        };
        let dataset = dataset.get().await.map_err(failed())?;
        let schema = dataset.schema().project(columns).map_err(|error| failed()(error.into()))?;
        let taken = dataset.take_rows(rows, schema).await.map_err(|error| failed()(error.into()))?;
        if taken.num_rows() != rows.len() {
            let message = format!("{} passages of {} could be read", taken.num_rows(), rows.len());
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(taken)
    }
}

/// Where a table is.
enum Home {
    Folder(PathBuf),
    Bucket(Arc<Shared>),
}

/// The right to change a collection.
pub(super) struct Writer<'a> {
    collection: &'a Collection,
    _turn: Turn<'a>,
}

/// Held, and not looked at.
#[expect(dead_code, reason = "a guard is there to be dropped")]
enum Turn<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    Beside(RwLockReadGuard<'a, ()>),
}

impl Collection {
    /// Makes the table of a new collection, with its full-text index. It is on the disk on return; of one that failed nothing stays.
    pub async fn create(
        db: &Connection,
        folder: &Path,
        (name, stage): (&str, Stage),
        embedder: Arc<dyn PassageEncoder>,
    ) -> Result<Self> {
        let doing = || format!("create collection `{name}`");
        let (corpus, path) = (folder.to_owned(), path_of(folder, name, stage));
        let of_disk = |failed| move |error: std::io::Error| io_failed(failed, error);
        let beginning = path.clone();
        blocking("making a table", move || begin(&beginning).map_err(of_disk("make a table"))).await?;
        let made = async {
            let schema = schema::table_schema(embedder.dimension(), &embedder.identity(), false);
            let table = db.create_empty_table(table_at(name, stage), schema.clone()).execute().await;
            let home = Home::Folder(path.clone());
            let mut collection = Self::new(table.map_err(failed(doing()))?, name, home, schema)?;
            collection.embedder = Some(embedder);
            collection.found = Mutex::new(Some(Arc::default()));
            collection.create_text_index().await?;
            collection.create_term_index().await?;
            collection.sync().await?;
            let ending = path.clone();
            blocking("making a table", move || end(&ending).map_err(of_disk("make a table"))).await?;
            Ok(collection)
        };
        let made = made.await;
        if made.is_err() {
            blocking("taking away what was made of a table", move || discard(&corpus, &path)).await?;
        }
        made
    }

    /// Opens a table that is there. Which embedding model it suits is for the caller to find out.
    pub async fn open(db: &Connection, folder: &Path, (name, stage): (&str, Stage)) -> Result<Self> {
        let doing = || format!("open collection `{name}`");
        let table = db.open_table(table_at(name, stage)).execute().await.map_err(failed(doing()))?;
        let schema = table.schema().await.map_err(failed(doing()))?;
        let mut opened = Self::new(table, name, Home::Folder(path_of(folder, name, stage)), schema)?;
        let upgraded = match opened.list_newest().await {
            Ok(()) => opened.add_columns().await,
            failed => failed,
        };
        match upgraded {
            Ok(()) => Ok(opened),
            // A full disk: it is as good as it was, and is tried again at the next start.
            Err(error) => {
                tracing::warn!(collection = name, %error, "it is of an earlier version, and is used as that made it");
                Ok(opened)
            }
        }
    }

    /// As [`create`](Self::create), in object storage. Nobody finds it before an object names it.
    pub async fn create_shared(
        db: &Connection,
        bucket: &Bucket,
        (name, id): (&str, &str),
        embedder: Arc<dyn PassageEncoder>,
    ) -> Result<Self> {
        let schema = schema::table_schema(embedder.dimension(), &embedder.identity(), true);
        let table = db.create_empty_table(id, schema.clone()).execute().await;
        let table = table.map_err(failed(format!("create collection `{name}`")))?;
        let home = Home::Bucket(Shared::new(bucket.clone(), (name, id), table.clone(), schema.clone()));
        let mut collection = Self::new(table, name, home, schema)?;
        collection.embedder = Some(embedder);
        collection.create_text_index().await?;
        Ok(collection)
    }

    /// As [`open`](Self::open), in object storage.
    pub async fn open_shared(db: &Connection, bucket: &Bucket, (name, id): (&str, &str)) -> Result<Self> {
        let doing = || format!("open collection `{name}`");
        let table = db.open_table(id).execute().await.map_err(failed(doing()))?;
        let schema = table.schema().await.map_err(failed(doing()))?;
        let home = Home::Bucket(Shared::new(bucket.clone(), (name, id), table.clone(), schema.clone()));
        Self::new(table, name, home, schema)
    }

    /// Gives a table of an earlier version the columns that it lacks, without values.
    async fn add_columns(&mut self) -> Result<()> {
        let later = schema::added_later();
        if later.fields().iter().all(|field| self.schema.field_with_name(field.name()).is_ok()) {
            return Ok(());
        }
        let missing = later.fields().iter().filter(|field| self.schema.field_with_name(field.name()).is_err());
        let missing = Arc::new(Schema::new(missing.cloned().collect::<Vec<_>>()));
        let adding = self.table.add_columns().transform(NewColumnTransform::AllNulls(missing)).execute();
        adding.await.map_err(self.failed("add a column to"))?;
        self.schema = self.table.schema().await.map_err(self.failed("read"))?;
        self.sync().await
    }

    /// The columns of a passage that its table has, and more.
    pub fn passage_columns(&self, more: &[&'static str]) -> Vec<&'static str> {
        let there = schema::PASSAGE_COLUMNS.into_iter().filter(|name| self.schema.field_with_name(name).is_ok());
        there.chain(more.iter().copied()).collect()
    }

    fn new(table: Table, name: &str, home: Home, schema: SchemaRef) -> Result<Self> {
        let vector = schema.field_with_name("vector").map(|field| field.data_type());
        let Ok(DataType::FixedSizeList(_, dimension)) = vector else {
            let message = format!("collection `{name}` has no column of vectors: it is none of ragstone's");
            return Err(Error::new(ErrorKind::Incompatible, message));
        };
        let dimension = *dimension as usize;
        Ok(Self {
            name: name.to_owned(),
            embedder: None,
            table,
            home,
            schema,
            dimension,
            replaced: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            writer: RwLock::default(),
            files: RwLock::default(),
            synced: Mutex::default(),
            found: Mutex::default(),
            checks: Mutex::default(),
            broken: Broken::default(),
            vectors_indexed: Mutex::default(),
            terms_indexed: Mutex::default(),
            commits: AtomicU64::new(0),
            quiet: Mutex::default(),
        })
    }

    /// The embedding model that its vectors are of.
    pub fn embedding(&self) -> &str {
        self.metadata(schema::EMBEDDING_KEY)
    }

    /// What embeds new passages.
    ///
    /// # Errors
    /// `Incompatible` where that model cannot be loaded any more.
    pub fn embedder(&self) -> Result<&Arc<dyn PassageEncoder>> {
        self.embedder.as_ref().ok_or_else(|| {
            let message = format!(
                "collection `{}` was built with the embedding model {}, which cannot be loaded any more: documents can be added \
                 once the collection is embedded again (`ragstone collections reembed`)",
                self.name,
                self.embedding()
            );
            Error::new(ErrorKind::Incompatible, message)
        })
    }

    /// Numbers in a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Another table takes its place. Whoever reads this one goes on; its files go with the last one. For whoever has the turn to write.
    pub fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Where it is; `None`: in object storage.
    pub fn folder(&self) -> Option<&Path> {
        match &self.home {
            Home::Folder(folder) => Some(folder),
            Home::Bucket(_) => None,
        }
    }

    /// What it has in object storage.
    pub fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.home {
            Home::Folder(_) => None,
            Home::Bucket(shared) => Some(shared),
        }
    }

    /// Another node dropped it, or made another one of its name.
    pub fn lose(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// A value of the table's own metadata.
    pub fn metadata(&self, key: &str) -> &str {
        self.schema.metadata().get(key).map(String::as_str).unwrap_or_default()
    }

    /// Whether it was dropped.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// A number that every change of documents raises.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// Waits for the turn to write. `None` where the collection was dropped in the meantime.
    pub async fn write(&self) -> Option<Writer<'_>> {
        let turn = match &self.home {
            Home::Folder(_) => Turn::Alone(self.writer.write().await),
            Home::Bucket(_) => Turn::Beside(self.writer.read().await),
        };
        let there =
            *self.files.read().await == Files::There && !self.replaced.load(Ordering::Acquire) && !self.is_gone();
        if !there {
            return None;
        }
        self.note_found().await;
        Some(Writer { collection: self, _turn: turn })
    }

    async fn note_found(&self) {
        if locked(&self.found).is_some() {
            return;
        }
        let Home::Folder(folder) = &self.home else { return };
        let folder = folder.clone();
        let found = tokio::task::spawn_blocking(move || files(&folder)).await;
        // Where that fails, so does the writer when it looks at them.
        *locked(&self.found) = found.ok().and_then(|found| found.ok()).map(Arc::new);
    }

    /// The collection as it is now. `NotFound` where it was dropped in the meantime.
    pub async fn snapshot(&self) -> Result<Snapshot<'_>> {
        let files = self.files.read().await;
        if *files == Files::Gone {
            return Err(unknown(&self.name));
        }
        let table = self.table.query_snapshot().await.map_err(self.failed("read"))?;
        Ok(Snapshot { table, _files: files })
    }

    /// How many passages there are.
    pub async fn rows(&self) -> Result<usize> {
        self.table.count_rows(None).await.map_err(self.failed("count the passages of"))
    }

    /// How many documents there are.
    pub async fn documents(&self) -> Result<usize> {
        let first = Some("ordinal = 0".to_owned());
        self.table.count_rows(first).await.map_err(self.failed("count the documents of"))
    }

    /// Runs a query to its end.
    pub async fn run(&self, query: impl ExecutableQuery) -> Result<Vec<RecordBatch>> {
        let stream = query.execute().await.map_err(self.failed("search"))?;
        stream.try_collect().await.map_err(self.failed("search"))
    }

    /// Runs a query; its rows come as they are read.
    pub async fn stream(&self, query: impl ExecutableQuery) -> Result<SendableRecordBatchStream> {
        query.execute().await.map_err(self.failed("read"))
    }

    /// Says which collection it was.
    pub fn failed(&self, doing: &str) -> impl FnOnce(lancedb::Error) -> Error + use<> {
        failed(format!("{doing} collection `{}`", self.name))
    }
}

/// Of a table whose place another took, which is open: the last one that read it takes its files along.
impl Drop for Collection {
    fn drop(&mut self) {
        if *self.replaced.get_mut()
            && let Home::Folder(folder) = &self.home
            && let Some(corpus) = folder.parent()
            && let Err(error) = discard(corpus, folder)
        {
            tracing::warn!(%error, folder = %folder.display(), "superseded files stay; the next start removes them");
        }
    }
}

/// Counts a commit before it and after it, whatever becomes of it: who looked meanwhile does not know which of both it saw.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn begin(commits: &'a AtomicU64) -> Self {
        commits.fetch_add(1, Ordering::AcqRel);
        Self(commits)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// An expression and not SQL text: ids are the caller's words.
pub(super) fn any_of(documents: &[String]) -> Expr {
    col("document_id").in_list(documents.iter().map(|id| lit(id.as_str())).collect(), false)
}

/// As [`any_of`], for one document.
pub(super) fn is_document(id: &str) -> Expr {
    col("document_id").eq(lit(id))
}
