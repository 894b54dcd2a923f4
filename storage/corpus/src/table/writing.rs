//! Changes of one collection's table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::{Array, RecordBatchIterator};

use super::commit::{Added, Leaving};
use super::{Change, Collection, Counted, Files, Home, Shared, Writer, any_of};
use crate::bucket::{end_claims, remove_pointer};
use crate::checks::Checks;
use crate::disk::{caught, io_failed, sync_files};
use crate::folders::{discard, list_newest};
use crate::{Error, ErrorKind, Result, blocking, schema};
use ragstone_env::lock::locked;

impl Writer<'_> {
    /// What it may change.
    pub fn collection(&self) -> &Collection {
        self.collection
    }

    /// Commits `rows`, and takes out the older passages of the documents `replaced`, in one step that is on disk on return.
    pub async fn put(&self, rows: &[schema::Row], replaced: &[String]) -> Result<()> {
        let Collection { table, schema, dimension, .. } = self.collection;
        let batch = schema::encode(rows, schema, *dimension)?;
        let _counted = Counted::begin(&self.collection.commits);
        // Collections of other scripts ask for no terms, until one of their passages has some.
        let has_terms = batch.column_by_name("terms").is_some_and(|terms| terms.null_count() < terms.len());
        if let Home::Bucket(shared) = &self.collection.home {
            let first = rows.iter().filter(|row| row.passage.ordinal == 0);
            let added = first.map(|row| Added {
                id: row.passage.document_id.clone(),
                version: row.version.clone(),
                generation: row.generation,
            });
            let removed = replaced.iter().map(|id| Leaving::whole(id)).collect();
            let change = Change { added: added.collect(), rows: Some(batch), removed };
            shared.commit(change).await?;
            self.note_terms(has_terms);
            return Ok(());
        }
        let failed = self.collection.failed("write to");
        if replaced.is_empty() {
            table.add(batch).execute().await.map_err(failed)?;
        } else {
            // A new version's rows match no old ones: the version is part of the key.
            let mut merge = table.merge_insert(&["document_id", "version", "ordinal"]);
            merge.when_not_matched_insert_all().when_not_matched_by_source_delete_expr(any_of(replaced));
            let batches = RecordBatchIterator::new([Ok(batch)], schema.clone());
            merge.execute(Box::new(batches)).await.map_err(failed)?;
        }
        self.note_terms(has_terms);
        self.sync().await
    }

    fn note_terms(&self, has_terms: bool) {
        if has_terms {
            self.collection.note_terms();
        }
    }

    /// Takes out documents; how many passages went.
    pub async fn remove(&self, documents: &[String]) -> Result<usize> {
        let _counted = Counted::begin(&self.collection.commits);
        if let Home::Bucket(shared) = &self.collection.home {
            return self.remove_shared(shared, documents).await;
        }
        let deleted = self.collection.table.delete(&any_of(documents)).await;
        let deleted = deleted.map_err(self.collection.failed("delete from"))?;
        self.sync().await?;
        Ok(deleted.num_deleted_rows as usize)
    }

    /// Whoever is adding them at another node hears of it; then they go.
    async fn remove_shared(&self, shared: &Arc<Shared>, documents: &[String]) -> Result<usize> {
        end_claims(&shared.bucket, &self.collection.name, documents).await?;
        shared.refresh().await?;
        let there = self.collection.versions_of(documents).await?;
        if there.is_empty() {
            return Ok(0);
        }
        let removed = there.keys().map(|id| Leaving::whole(id)).collect();
        shared.commit(Change { removed, ..Change::default() }).await?;
        Ok(there.values().map(|document| document.passages).sum())
    }

    /// Takes out what documents have of this node's claims to them and of earlier ones, in object storage. What another node stored by a later
    /// claim stays: this one may have slept meanwhile. Whoever is adding them by an earlier claim must hear of it before, as by
    /// [`remove`](Self::remove), and from the claims themselves.
    pub async fn take_out(&self, mut documents: Vec<Leaving>) -> Result<()> {
        let Home::Bucket(shared) = &self.collection.home else {
            return Err(Error::new(ErrorKind::Internal, "documents in a folder are claimed by nobody"));
        };
        let _counted = Counted::begin(&self.collection.commits);
        let ids: Vec<String> = documents.iter().map(|document| document.id.clone()).collect();
        shared.refresh().await?;
        let there = self.collection.versions_of(&ids).await?;
        documents.retain(|document| there.contains_key(&document.id));
        if documents.is_empty() {
            return Ok(());
        }
        shared.commit(Change { removed: documents, ..Change::default() }).await
    }

    /// Drops the collection, which is on the disk on return; how many passages went, as far as that can be read. Waits for who reads it.
    pub async fn drop_table(&self) -> Result<usize> {
        let mut files = self.collection.files.write().await;
        let rows = caught("count its passages", self.collection.rows()).await.unwrap_or_else(|error| {
            tracing::warn!(collection = self.collection.name, %error, "a damaged collection is deleted");
            0
        });
        match &self.collection.home {
            Home::Bucket(shared) => remove_pointer(&shared.bucket, &self.collection.name, &shared.id).await?,
            Home::Folder(folder) => {
                let folder = folder.clone();
                let discarded = tokio::task::spawn_blocking(move || match folder.parent() {
                    Some(corpus) => discard(corpus, &folder),
                    None => Ok(()),
                });
                discarded.await.map_err(panicked)??;
            }
        }
        *files = Files::Gone;
        self.collection.gone.store(true, Ordering::Release);
        Ok(rows)
    }

    /// LanceDB leaves its files in the page cache, which outlives a kill but not a power cut. This waits for the disk, and notes the
    /// checksums of what is new.
    pub async fn sync(&self) -> Result<()> {
        if self.collection.shared().is_some() {
            // What the bucket took, it keeps.
            return Ok(());
        }
        let mut known = std::mem::take(&mut *locked(&self.collection.synced));
        let found = locked(&self.collection.found).clone().unwrap_or_default();
        let sync = move |folder: &Path, checks: &mut Checks| {
            sync_files(folder, &mut known)?;
            let relative = |path: &PathBuf| Some(path.strip_prefix(folder).ok()?.to_str()?.to_owned());
            let is_new = |name: &String| !checks.has(name) && !found.contains(name);
            let new: Vec<String> = known.iter().filter_map(relative).filter(is_new).collect();
            checks.add(folder, new.into_iter().filter(|name| folder.join(name).is_file()))?;
            Ok(known)
        };
        *locked(&self.collection.synced) = self.collection.with_checks(sync).await?;
        Ok(())
    }
}

impl Collection {
    /// As a writer's [`sync`](Writer::sync), in its turn. Nothing where the collection was dropped.
    pub(super) async fn sync(&self) -> Result<()> {
        match self.write().await {
            Some(writer) => writer.sync().await,
            None => Ok(()),
        }
    }

    /// Lists its newest version, which LanceDB has read, if its list does not tell which was acknowledged last. Before anything is written.
    pub(super) async fn list_newest(&self) -> Result<()> {
        let Some(folder) = self.folder().map(Path::to_owned) else { return Ok(()) };
        let doing = format!("list the files of collection `{}`", self.name);
        blocking("listing files", move || list_newest(&folder).map_err(|error| io_failed(&doing, error))).await
    }

    /// Does something with the checksums of its files, on a thread that may block. For one at a time, as writers are.
    pub(in super::super) async fn with_checks<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path, &mut Checks) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let Home::Folder(folder) = &self.home else {
            return Err(Error::new(ErrorKind::Internal, "tables in object storage have no checksums of ours"));
        };
        let (folder, known) = (folder.clone(), locked(&self.checks).take());
        let worked = tokio::task::spawn_blocking(move || {
            let mut checks = match known {
                Some(checks) => checks,
                None => match Checks::read(&folder) {
                    Ok(checks) => checks,
                    Err(error) => return (None, Err(error)),
                },
            };
            let done = work(&folder, &mut checks);
            (Some(checks), done)
        });
        let (checks, done) = worked.await.map_err(panicked)?;
        *locked(&self.checks) = checks;
        done.map_err(|error| io_failed(&format!("write collection `{}` to disk", self.name), error))
    }
}

fn panicked(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, "writing to disk panicked").with_source(error)
}
