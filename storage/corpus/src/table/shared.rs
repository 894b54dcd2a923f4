//! Commits to a table in object storage, by one task a node and collection: what is added and deleted within an interval goes together, as
//! every commit of every node waits for those before it.
//!
//! ```text
//! changes that wait -> those of different documents together -> one commit -> look: is it there? -> whoever waits hears
//!        ^                                                          |  the answer was lost: look whether it is there, before another try
//!        +---------------- at most one in an interval --------------+
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use futures::TryStreamExt;
use lancedb::Table;
use lancedb::datafusion::prelude::{Expr, col, lit};
use lancedb::query::{ExecutableQuery, QueryBase, Select};
use tokio::sync::oneshot;

use super::commit::{Added, Commits, Leaving, commit};
use super::{any_of, is_document};
use crate::bucket::Bucket;
use crate::disk::failed;
use crate::schema;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Stopwatch;
use ragstone_env::lock::locked;

/// Rows of one commit, unless one change has more.
const MOST_ROWS: usize = 4096;

/// What a table in object storage has that one in a folder has not.
pub(crate) struct Shared {
    pub bucket: Bucket,
    /// Of its table.
    pub id: String,
    collection: String,
    table: Table,
    schema: SchemaRef,
    queue: Mutex<Queue>,
    /// Commits that took something out.
    removals: AtomicU64,
    /// When its files were last rewritten without what was deleted, and how many removals there had been.
    pub(super) rewritten: Mutex<Option<(Stopwatch, u64)>>,
    /// When it was last looked whether its indexes and files want care.
    pub(super) tidied: Mutex<Option<Stopwatch>>,
    /// When its superseded versions were last removed.
    pub(super) pruned: Mutex<Option<Stopwatch>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    is_running: bool,
    /// Since the last commit began.
    last: Option<Stopwatch>,
}

struct Waiting {
    change: Change,
    done: oneshot::Sender<Result<()>>,
}

/// What is to be committed together.
#[derive(Default)]
pub(crate) struct Change {
    pub rows: Option<RecordBatch>,
    /// The documents of the rows: id, version, generation.
    pub added: Vec<Added>,
    /// Documents whose older rows go.
    pub removed: Vec<Leaving>,
}

impl Change {
    fn documents(&self) -> impl Iterator<Item = &str> {
        self.added.iter().map(|added| added.id.as_str()).chain(self.removed.iter().map(|one| one.id.as_str()))
    }

    fn rows(&self) -> usize {
        self.rows.as_ref().map_or(0, RecordBatch::num_rows)
    }
}

impl Shared {
    pub fn new(bucket: Bucket, (collection, id): (&str, &str), table: Table, schema: SchemaRef) -> Arc<Self> {
        Arc::new(Self {
            bucket,
            id: id.to_owned(),
            collection: collection.to_owned(),
            table,
            schema,
            queue: Mutex::default(),
            removals: AtomicU64::new(0),
            rewritten: Mutex::default(),
            tidied: Mutex::default(),
            pruned: Mutex::default(),
        })
    }

    /// Sees what all nodes committed until now.
    pub async fn refresh(&self) -> Result<()> {
        self.table.checkout_latest().await.map_err(failed(format!("read collection `{}`", self.collection)))
    }

    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Commits a change, with others that wait; on return it is in the bucket. It goes on if its caller leaves.
    ///
    /// # Errors
    /// `NotFound` where the collection was deleted meanwhile; `Unavailable` where the bucket does not answer: then nobody knows whether it is
    /// there, and the same change again does no harm.
    pub async fn commit(self: &Arc<Self>, change: Change) -> Result<()> {
        let (done, hearing) = oneshot::channel();
        let begins = {
            let mut queue = locked(&self.queue);
            queue.waiting.push(Waiting { change, done });
            !std::mem::replace(&mut queue.is_running, true)
        };
        if begins {
            tokio::spawn(self.clone().run());
        }
        let broken = |_| Error::new(ErrorKind::Internal, "the task that commits to a collection broke off; try again");
        hearing.await.map_err(broken)?
    }

    /// Commits until nothing waits.
    async fn run(self: Arc<Self>) {
        let mut running = Running::begin(&self.queue);
        loop {
            let pause = {
                let queue = locked(&self.queue);
                let since = queue.last.as_ref().map(Stopwatch::elapsed);
                since.and_then(|since| self.bucket.interval().checked_sub(since))
            };
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            let batch = {
                let mut queue = locked(&self.queue);
                let batch = together(&mut queue.waiting);
                if batch.is_empty() {
                    running.end(&mut queue);
                    return;
                }
                queue.last = Some(self.bucket.env().stopwatch());
                batch
            };
            let (changes, hearing): (Vec<Change>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.change, waiting.done)).unzip();
            let committed = self.commit_all(merged(changes)).await;
            for done in hearing {
                let same = match &committed {
                    Ok(()) => Ok(()),
                    Err(error) => Err(Error::new(error.kind(), error.to_string())),
                };
                // Who does not wait any more need not hear of it.
                let _ = done.send(same);
            }
        }
    }

    async fn commit_all(&self, (rows, added, removed): (Vec<RecordBatch>, Vec<Added>, Vec<Leaving>)) -> Result<()> {
        let at = (self.collection.as_str(), self.id.as_str());
        let removals = commit(self, &self.bucket, at, &rows, &added, &removed).await;
        if removals.took_out > 0 {
            self.removals.fetch_add(removals.took_out, Ordering::AcqRel);
        }
        removals.end
    }
}

/// LanceDB's table.
impl Commits for Shared {
    type Rows = Vec<RecordBatch>;

    async fn refresh(&self) -> Result<()> {
        self.refresh().await
    }

    /// Where it is the first try, rows are simply added; a merge finds those that are there already.
    async fn write(&self, rows: &Vec<RecordBatch>, leaving: &[Leaving], is_first: bool) -> Result<()> {
        let doing = || failed(format!("write to collection `{}`", self.collection));
        if rows.is_empty() {
            return self.table.delete(&leaves(leaving)).await.map(drop).map_err(doing());
        }
        if leaving.is_empty() && is_first {
            return self.table.add(rows.clone()).execute().await.map(drop).map_err(doing());
        }
        let mut merge = self.table.merge_insert(&["document_id", "version", "ordinal"]);
        merge.when_not_matched_insert_all();
        if !leaving.is_empty() {
            merge.when_not_matched_by_source_delete_expr(leaves(leaving));
        }
        let rows = rows.to_owned();
        let batches = RecordBatchIterator::new(rows.into_iter().map(Ok), self.schema.clone());
        merge.execute(Box::new(batches)).await.map(drop).map_err(doing())
    }

    async fn drop_earlier(&self, id: &str, generation: u64) -> Result<()> {
        tracing::info!(
            collection = self.collection,
            document = id,
            "two nodes added a document; the later one's stays"
        );
        let earlier = is_document(id).and(col("generation").lt(lit(generation)));
        let deleted = self.table.delete(&earlier).await;
        deleted.map(drop).map_err(failed(format!("delete from collection `{}`", self.collection)))
    }

    /// What is there of documents, by their ids.
    async fn present(&self, documents: &[String]) -> Result<HashMap<String, Vec<Added>>> {
        let doing = || failed(format!("read collection `{}`", self.collection));
        let columns = Select::columns(&["document_id", "version", "generation"]);
        let first = any_of(documents).and(col("ordinal").eq(lit(0_u32)));
        let stream = self.table.query().only_if_expr(first).select(columns).execute().await.map_err(doing())?;
        let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(doing())?;
        let mut present: HashMap<String, Vec<Added>> = HashMap::new();
        for batch in batches {
            let (ids, versions) = (schema::strings(&batch, "document_id")?, schema::strings(&batch, "version")?);
            let generations = batch.column_by_name("generation").map(|column| column.as_primitive::<UInt64Type>());
            for row in 0..batch.num_rows() {
                let generation = generations.map_or(0, |generations| generations.value(row));
                let added =
                    Added { id: ids.value(row).to_owned(), version: versions.value(row).to_owned(), generation };
                present.entry(added.id.clone()).or_default().push(added);
            }
        }
        Ok(present)
    }
}

/// Held by the task that commits: where it breaks off, whoever waits hears of it, and whoever comes later begins another one.
struct Running<'a> {
    queue: &'a Mutex<Queue>,
    has_ended: bool,
}

impl<'a> Running<'a> {
    fn begin(queue: &'a Mutex<Queue>) -> Self {
        Self { queue, has_ended: false }
    }

    /// Nothing waits any more. Once the queue is unlocked, another task may run, and what waits is that one's.
    fn end(&mut self, queue: &mut Queue) {
        queue.is_running = false;
        self.has_ended = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut queue = locked(self.queue);
        queue.is_running = false;
        queue.waiting.clear();
    }
}

/// The rows that leave. Documents of which all leave are one list, as they may be many.
fn leaves(leaving: &[Leaving]) -> Expr {
    let whole: Vec<String> = leaving.iter().filter(|one| one.up_to.is_none()).map(|one| one.id.clone()).collect();
    let earlier = leaving.iter().filter_map(|one| {
        let generation = one.up_to?;
        Some(is_document(&one.id).and(col("generation").lt_eq(lit(generation))))
    });
    let all = (!whole.is_empty()).then(|| any_of(&whole)).into_iter().chain(earlier);
    all.reduce(Expr::or).unwrap_or_else(|| lit(false))
}

/// Takes what may go into one commit: changes of different documents, in the order in which they came. Pure.
fn together(waiting: &mut Vec<Waiting>) -> Vec<Waiting> {
    let (mut documents, mut rows, mut count) = (HashSet::new(), 0, 0);
    for next in waiting.iter() {
        let own: HashSet<&str> = next.change.documents().collect();
        rows += next.change.rows();
        if count > 0 && (rows > MOST_ROWS || own.iter().any(|id| documents.contains(*id))) {
            break;
        }
        documents.extend(own.into_iter().map(str::to_owned));
        count += 1;
    }
    waiting.drain(..count).collect()
}

fn merged(changes: Vec<Change>) -> (Vec<RecordBatch>, Vec<Added>, Vec<Leaving>) {
    let (mut rows, mut added, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for change in changes {
        rows.extend(change.rows.filter(|rows| rows.num_rows() > 0));
        added.extend(change.added);
        removed.extend(change.removed);
    }
    (rows, added, removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(added: &[&str], removed: &[&str]) -> Waiting {
        let added = added.iter().map(|id| Added { id: (*id).into(), version: "v".into(), generation: 1 }).collect();
        let removed = removed.iter().map(|id| Leaving::whole(id)).collect();
        Waiting { change: Change { rows: None, added, removed }, done: oneshot::channel().0 }
    }

    #[test]
    fn changes_of_one_document_are_committed_one_after_the_other() {
        let mut waiting = vec![change(&["a"], &["a"]), change(&["b"], &[]), change(&[], &["a"]), change(&["c"], &[])];
        assert_eq!(together(&mut waiting).len(), 2);
        assert_eq!(together(&mut waiting).len(), 2, "and what comes behind it goes with it");
        assert!(together(&mut waiting).is_empty());
    }

    #[test]
    fn a_task_that_ended_leaves_alone_what_the_next_one_is_to_commit() {
        let queue = Mutex::new(Queue { is_running: true, ..Queue::default() });
        let mut first = Running::begin(&queue);
        first.end(&mut locked(&queue));
        assert!(!locked(&queue).is_running);
        // Between the end of the first task and that of its future somebody commits, and begins a second one.
        let next = Queue { waiting: vec![change(&["a"], &[])], is_running: true, last: None };
        *locked(&queue) = next;
        drop(first);
        assert!(locked(&queue).is_running);
        assert_eq!(locked(&queue).waiting.len(), 1);
        // The second one breaks off.
        drop(Running::begin(&queue));
        assert!(!locked(&queue).is_running);
        assert!(locked(&queue).waiting.is_empty());
    }
}
