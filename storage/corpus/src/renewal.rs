//! Embeds a collection again, for another embedding model, while it is searched.
//!
//! A second table is filled beside the one that is searched, document by document, with the same passages: their texts, ids and token ids
//! stay, and with them all KV. How far it is follows from comparing the two tables' documents and versions, so that what changes meanwhile
//! is caught up with, and a kill costs a group of passages at the most. In the end nobody writes for a moment, the last difference is
//! copied, and the table gets a name that says that it has taken the other's place: that rename is the switch, which a kill leaves done or
//! undone. Whoever reads the older table at that moment goes on with it, and with the model that it was built with.
//!
//! ```text
//! passages-NAME   is searched       building-NAME   has some of its passages
//!     rename building-NAME -> rebuilt--NAME, which is searched from then on; passages-NAME goes with its last reader
//!     next start: passages-NAME goes, rename rebuilt--NAME -> passages-NAME
//! ```

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use serde::Serialize;

use super::disk::{caught, io_failed};
use super::folders::{State, discard, path_of, state};
use super::ingest::{GROUP_PASSAGES, Going, UpsertProgress};
use super::naming::{Stage, check_stored_name, unknown};
use super::table::{Collection, Writer};
use super::{Corpus, blocking};
use crate::{Error, ErrorKind, Result};

/// Groups between two looks at whether the new table's files and indexes want care.
const GROUPS_PER_CARE: usize = 8;
/// Differences that are caught up with while others write; the next one, however great, is while nobody does.
const MOST_ROUNDS: usize = 16;

/// A collection, and the embedding model that it was built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuiltWith {
    pub collection: String,
    /// The model's identity.
    pub embedder: String,
    /// It cannot be loaded: words alone are searched until the collection is embedded again.
    pub words_only: bool,
}

/// How far a collection is on its way to another embedding model. What it counts is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RenewalProgress {
    pub passages_done: usize,
    pub passages_total: usize,
}

/// What a new table lacks, or has too much.
struct Difference {
    /// Documents that are embedded together, and those of them that the new table has in another version.
    groups: Vec<(Vec<String>, Vec<String>)>,
    /// Documents that are not there any more.
    gone: Vec<String>,
    /// Passages that it lacks.
    missing: usize,
    progress: RenewalProgress,
}

/// Held by who renews a collection.
struct Turn<'a>(&'a Corpus, String);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.inner.renewing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Corpus {
    /// The identity of the embedding model in use.
    pub fn embedding(&self) -> String {
        self.encoder().identity()
    }

    /// Collections that were built with another embedding model, by name.
    pub async fn stale(&self) -> Vec<BuiltWith> {
        let (own, collections) = (self.embedding(), self.inner.collections.lock().await);
        collections.values().filter(|collection| collection.embedding() != own).map(|table| built_with(table)).collect()
    }

    /// What a collection was built with.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn built_with(&self, name: &str) -> Result<BuiltWith> {
        let table = self.find(name).await?;
        Ok(built_with(&table))
    }

    /// Embeds a collection with the model in use. It can be searched and changed meanwhile; what was done before a kill, or before
    /// `progress` returned an error, is not done again. One that is built with that model is left alone.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection, also one that is deleted meanwhile; `Unavailable` while it is renewed already; what `progress`
    /// returns.
    pub async fn renew(
        &self,
        name: &str,
        progress: &(dyn Fn(RenewalProgress) -> Result<()> + Send + Sync),
    ) -> Result<RenewalProgress> {
        let _turn = self.take_renewal(name)?;
        let old = self.find(name).await?;
        if old.embedding() == self.embedding() {
            return Ok(RenewalProgress::default());
        }
        let Some(folder) = self.inner.home.folder() else { return Err(embedded_elsewhere(name)) };
        let new = self.building(folder, name).await?;
        for round in 0.. {
            let difference = difference(&old, &new).await?;
            progress(difference.progress)?;
            let is_last = difference.missing <= GROUP_PASSAGES || round >= MOST_ROUNDS;
            if !is_last {
                self.catch_up((&old, &new), difference, progress).await?;
                continue;
            }
            // From here on nobody writes; readers go on.
            let _writing = old.write().await.ok_or_else(|| unknown(name))?;
            let difference = self::difference(&old, &new).await?;
            if difference.missing > GROUP_PASSAGES && round < MOST_ROUNDS {
                continue;
            }
            let total = difference.progress.passages_total;
            self.catch_up((&old, &new), difference, progress).await?;
            self.switch(folder, &old, new).await?;
            return Ok(RenewalProgress { passages_done: total, passages_total: total });
        }
        Err(Error::new(ErrorKind::Internal, "unreachable: the last round ends it"))
    }

    /// Removes what was done of a renewal that is not wanted any more.
    ///
    /// # Errors
    /// `Unavailable` while it runs; as the disk says.
    pub async fn abandon_renewal(&self, name: &str) -> Result<()> {
        let _turn = self.take_renewal(name)?;
        self.drop_building(name).await
    }

    fn take_renewal(&self, name: &str) -> Result<Turn<'_>> {
        check_stored_name(name)?;
        let mut renewing = self.inner.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if !renewing.insert(name.to_owned()) {
            let message = format!("collection `{name}` is being embedded again; wait for it, or cancel it");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(Turn(self, name.to_owned()))
    }

    /// Of a collection that is deleted: the files that its table took the place of, and what was begun to take its own, must not come back
    /// with the next start. What is being filled at the moment goes when that hears of it.
    pub(super) async fn forget_others(&self, table: &Collection) -> Result<()> {
        let Some(folder) = self.inner.home.folder() else { return Ok(()) };
        let serving = path_of(folder, &table.name, Stage::Serving);
        if table.folder() != Some(&serving) {
            discard_at(folder, serving).await?;
        }
        let is_renewed = self.inner.renewing.lock().unwrap_or_else(PoisonError::into_inner).contains(&table.name);
        if !is_renewed {
            self.drop_building(&table.name).await?;
        }
        Ok(())
    }

    /// The table that is to take the place of a collection's, which is open: one that was begun for the same model, or a new one. One that
    /// cannot be read has nothing that the open one has not.
    async fn building(&self, folder: &Path, name: &str) -> Result<Collection> {
        let (path, inner) = (path_of(folder, name, Stage::Building), &self.inner);
        let found = blocking("looking at a table", {
            let path = path.clone();
            move || Ok(path.exists().then(|| state(&path)))
        });
        if let Some(State::Whole) = found.await? {
            let opening = Collection::open(&inner.db, folder, (name, Stage::Building));
            match caught("open it", opening).await {
                Ok(mut begun) if begun.embedding() == self.embedding() => {
                    begun.embedder = Some(self.encoder().clone());
                    return Ok(begun);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(collection = name, %error, "embedding it again begins from the first passage")
                }
            }
        }
        self.drop_building(name).await?;
        Collection::create(&inner.db, folder, (name, Stage::Building), self.encoder().clone()).await
    }

    pub(super) async fn drop_building(&self, name: &str) -> Result<()> {
        match self.inner.home.folder() {
            Some(folder) => discard_at(folder, path_of(folder, name, Stage::Building)).await,
            None => Ok(()),
        }
    }

    /// Makes the new table have what the old one has, and nothing else.
    async fn catch_up(
        &self,
        (old, new): (&Collection, &Collection),
        difference: Difference,
        progress: &(dyn Fn(RenewalProgress) -> Result<()> + Send + Sync),
    ) -> Result<()> {
        let Difference { groups, gone, progress: mut state, .. } = difference;
        let writer = new.write().await.ok_or_else(|| unknown(&new.name))?;
        if !gone.is_empty() {
            writer.remove(&gone).await?;
        }
        for (at, (documents, replaced)) in groups.iter().enumerate() {
            state.passages_done += self.copy(old, &writer, documents, replaced).await?;
            self.inner.options.env.fail_point("renewal.after_commit")?;
            progress(state)?;
            if at % GROUPS_PER_CARE == GROUPS_PER_CARE - 1 {
                writer.maintain(self.inner.options.vector_index_rows).await?;
            }
        }
        writer.maintain(self.inner.options.vector_index_rows).await
    }

    /// Copies documents with new vectors; how many passages.
    async fn copy(
        &self,
        old: &Collection,
        new: &Writer<'_>,
        documents: &[String],
        replaced: &[String],
    ) -> Result<usize> {
        let mut rows = old.rows_of(documents).await?;
        if rows.is_empty() {
            // They were deleted meanwhile.
            return Ok(0);
        }
        // It computes when it likes: there is one at a time.
        let on = |_: UpsertProgress| Ok(Going::On);
        self.embed(new.collection().embedder()?, rows.iter_mut().collect(), &on, &mut |_| Ok(Going::On)).await?;
        new.put(&rows, replaced).await?;
        Ok(rows.len())
    }

    /// Puts `new` in the place of `old`, whose turn to write the caller has.
    async fn switch(&self, folder: &Path, old: &Collection, new: Collection) -> Result<()> {
        let Some(writer) = new.write().await else { return Err(unknown(&old.name)) };
        writer.sync().await?;
        drop(writer);
        drop(new);
        let (name, inner) = (old.name.as_str(), &self.inner);
        let (building, built) = (path_of(folder, name, Stage::Building), path_of(folder, name, Stage::Built));
        inner.options.env.fail_point("renewal.built")?;
        rename(building.clone(), built.clone()).await?;
        inner.options.env.fail_point("renewal.switched")?;
        let mut opened = match Collection::open(&inner.db, folder, (name, Stage::Built)).await {
            Ok(opened) => opened,
            Err(error) => {
                // The older one goes on, and what is written into it must not be lost to this one.
                rename(built, building).await?;
                return Err(error);
            }
        };
        opened.embedder = Some(self.encoder().clone());
        let mut collections = inner.collections.lock().await;
        collections.insert(name.to_owned(), Arc::new(opened));
        old.replace();
        Ok(())
    }
}

fn built_with(table: &Collection) -> BuiltWith {
    BuiltWith {
        collection: table.name.clone(),
        embedder: table.embedding().to_owned(),
        words_only: table.embedder.is_none(),
    }
}

async fn discard_at(corpus: &Path, table: PathBuf) -> Result<()> {
    let corpus = corpus.to_owned();
    blocking("taking a table out of the corpus", move || discard(&corpus, &table)).await
}

/// What takes another table's place by a rename cannot be done where other nodes have that one open.
fn embedded_elsewhere(name: &str) -> Error {
    let message = format!(
        "collection `{name}` is in a bucket that nodes share, where it cannot be embedded again in its place: start nodes with the new embedding \
         model on another prefix of `corpus_url`, add the documents there, and move the questions over"
    );
    Error::new(ErrorKind::InvalidInput, message)
}

async fn rename(from: PathBuf, to: PathBuf) -> Result<()> {
    blocking("renaming a table", move || {
        ragstone_env::damage::rename(&from, &to)
            .map_err(|error| io_failed(&format!("rename {} to {}", from.display(), to.display()), error))
    })
    .await
}

async fn difference(old: &Collection, new: &Collection) -> Result<Difference> {
    let (wanted, there) = (old.versions().await?, new.versions().await?);
    let gone = there.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
    let total = wanted.values().map(|document| document.passages).sum();
    let is_there = |id: &str, version: &str| there.get(id).is_some_and(|found| found.version == version);
    let mut missing: Vec<_> = wanted.iter().filter(|(id, document)| !is_there(id, &document.version)).collect();
    missing.sort_by_key(|(id, _)| *id);
    let (mut groups, mut passages, mut sum) = (Vec::new(), 0, 0);
    let mut group: (Vec<String>, Vec<String>) = Default::default();
    for (id, document) in missing {
        group.0.push(id.clone());
        if there.contains_key(id) {
            group.1.push(id.clone());
        }
        passages += document.passages;
        sum += document.passages;
        if passages >= GROUP_PASSAGES {
            groups.push(std::mem::take(&mut group));
            passages = 0;
        }
    }
    if !group.0.is_empty() {
        groups.push(group);
    }
    let progress = RenewalProgress { passages_done: total - sum.min(total), passages_total: total };
    Ok(Difference { groups, gone, missing: sum, progress })
}
