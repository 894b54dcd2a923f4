//! Collections that nodes share: which there are, as other nodes make and delete them too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lancedb::Session;

use super::bucket::{
    Bucket, Gone, Lease, Pointers, create_pointer, pointer_of, remove_orphans, sweep_claims, sweep_clocks,
};
use super::damaged::Damaged;
use super::disk::{caught, failed};
use super::embedders::Embedders;
use super::naming::{Stage, unknown};
use super::table::{Collection, Shared};
use super::{Corpus, CorpusOptions, Earlier, METADATA_CACHE_BYTES, PassageEncoder, checked, folders};
use crate::{ErrorKind, Result};

/// Where the collections are.
pub(super) enum Home {
    Folder(PathBuf),
    Bucket(Bucket, Pointers),
}

impl Home {
    /// The folder of a collection's table; `None`: it is in object storage.
    pub fn path_of(&self, name: &str, stage: Stage) -> Option<PathBuf> {
        Some(folders::path_of(self.folder()?, name, stage))
    }

    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Bucket(..) => None,
        }
    }

    /// In words.
    pub fn shown(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Bucket(..) => "the bucket of `corpus_url`".to_owned(),
        }
    }
}

impl Corpus {
    /// As [`open_with`](Self::open_with), in object storage, which any number of nodes may do at once. A collection that another node makes
    /// later is searched with the models that `earlier` had for those that are there now.
    ///
    /// # Errors
    /// As [`open`](Self::open)'s but the first; `Unavailable` where the bucket does not answer.
    pub async fn open_shared(
        bucket: Bucket,
        encoder: Arc<dyn PassageEncoder>,
        earlier: Earlier<'_>,
        options: CorpusOptions,
    ) -> Result<Self> {
        options.check()?;
        let (address, registry) = bucket.for_lance();
        let session = Arc::new(Session::new(options.index_cache_bytes(), METADATA_CACHE_BYTES, registry));
        let connecting = lancedb::connect(&address).session(session).read_consistency_interval(bucket.interval());
        let db = connecting.execute().await.map_err(failed("open the corpus in its bucket".to_owned()))?;
        let pointers = Pointers::default();
        let named = pointers.all(&bucket).await?;
        let (own, mut embedders) = (encoder.identity(), Embedders::new(&encoder));
        let (mut collections, damaged) = (BTreeMap::new(), Damaged::default());
        named.unreadable.iter().for_each(|name| damaged.note(name, &Pointers::unreadable(name)));
        for (name, id) in named.tables {
            let opened = caught("open it", Collection::open_shared(&db, &bucket, (&name, &id))).await;
            let mut collection = match opened.and_then(|opened| checked(opened, &own, true, "its bucket")) {
                Ok(collection) => collection,
                Err(error) => {
                    damaged.note(&name, &error);
                    continue;
                }
            };
            embedders.load(&mut collection, Some(earlier));
            collections.insert(name, Arc::new(collection));
        }
        Ok(Self::over(db, Home::Bucket(bucket, pointers), (encoder, embedders), options, collections, damaged))
    }

    /// The log of what was removed; `None`: nobody shares this corpus.
    pub fn gone(&self) -> Option<Gone> {
        self.bucket().map(Bucket::gone)
    }

    /// The bucket that it is in; `None`: it is in a folder, and no other node's.
    pub fn bucket(&self) -> Option<&Bucket> {
        match &self.inner.home {
            Home::Folder(_) => None,
            Home::Bucket(bucket, _) => Some(bucket),
        }
    }

    /// Learns which collections other nodes made and deleted. To be called once in an interval; nothing to do for a corpus in a folder. One
    /// whose object cannot be read stays as it was.
    ///
    /// # Errors
    /// `Unavailable` where the bucket does not answer.
    pub async fn refresh(&self) -> Result<()> {
        let Home::Bucket(bucket, pointers) = &self.inner.home else { return Ok(()) };
        let named = pointers.all(bucket).await?;
        self.forget_all_but(bucket, &named.tables, &named.unreadable).await?;
        for name in &named.unreadable {
            let damaged = &self.inner.damaged;
            if self.served(name).await.is_none() && damaged.unopened_why(name).is_none() {
                damaged.note(name, &Pointers::unreadable(name));
            }
        }
        for (name, id) in named.tables {
            if self.served(&name).await.is_some() {
                continue;
            }
            match self.adopt(bucket, &name, &id).await {
                // What kept it from being opened is over.
                Ok(_) => self.inner.damaged.forget(&name),
                Err(error) => {
                    tracing::warn!(collection = name, %error, "a collection of another node cannot be opened; it is tried again");
                }
            }
        }
        Ok(())
    }

    /// Another node deleted what is in neither; what is in the second may be as it was. The lists may be older than a collection that this
    /// node has just made, or found.
    pub(super) async fn forget_all_but(
        &self,
        bucket: &Bucket,
        tables: &BTreeMap<String, String>,
        unreadable: &BTreeSet<String>,
    ) -> Result<()> {
        for name in self.inner.damaged.unopened() {
            if !tables.contains_key(&name) && !unreadable.contains(&name) {
                self.inner.damaged.forget(&name);
            }
        }
        let all: Vec<Arc<Collection>> = self.inner.collections.lock().await.values().cloned().collect();
        for table in all {
            let Some(shared) = table.shared() else { continue };
            let name = &table.name;
            let is_listed = tables.get(name) == Some(&shared.id);
            if is_listed || unreadable.contains(name) || self.inner.changing.is_made(name) {
                continue;
            }
            let named = match pointer_of(bucket, name).await {
                // It cannot be read since, and may be as it was.
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                named => named?,
            };
            if named.as_ref() == Some(&shared.id) {
                continue;
            }
            table.lose();
            let mut collections = self.inner.collections.lock().await;
            // Another one may have taken its place meanwhile.
            if collections.get(name).is_some_and(|there| Arc::ptr_eq(there, &table)) {
                collections.remove(name);
            }
        }
        Ok(())
    }

    /// A collection that this node does not know yet: another one may have made it.
    pub(super) async fn find_elsewhere(&self, name: &str) -> Result<Arc<Collection>> {
        let Home::Bucket(bucket, _) = &self.inner.home else { return Err(unknown(name)) };
        match table_of(bucket, name).await? {
            Some(id) => self.adopt(bucket, name, &id).await,
            None => Err(unknown(name)),
        }
    }

    /// Opens a table that another node made.
    async fn adopt(&self, bucket: &Bucket, name: &str, id: &str) -> Result<Arc<Collection>> {
        let opened = caught("open it", Collection::open_shared(&self.inner.db, bucket, (name, id))).await?;
        let own = self.embedding();
        let mut collection = checked(opened, &own, true, &self.inner.home.shown())?;
        self.inner.embedders.give(&mut collection);
        let mut collections = self.inner.collections.lock().await;
        let is_same =
            |table: &Arc<Collection>| table.shared().is_some_and(|shared| shared.id == id) && !table.is_gone();
        if let Some(there) = collections.get(name).filter(|table| is_same(table)) {
            return Ok(there.clone());
        }
        let table = Arc::new(collection);
        if let Some(before) = collections.insert(name.to_owned(), table.clone()) {
            before.lose();
        }
        Ok(table)
    }

    /// Makes a collection's table, and then the object that names it. Of two nodes that do so at once, one finds the other's.
    pub(super) async fn create_shared(&self, bucket: &Bucket, name: &str) -> Result<Arc<Collection>> {
        let id = bucket.new_name();
        let made = Collection::create_shared(&self.inner.db, bucket, (name, &id), self.encoder().clone()).await;
        let is_first = match &made {
            Ok(_) => create_pointer(bucket, name, &id).await,
            Err(_) => Ok(false),
        };
        match (made, is_first) {
            (Ok(table), Ok(true)) => {
                let table = Arc::new(table);
                self.inner.collections.lock().await.insert(name.to_owned(), table.clone());
                Ok(table)
            }
            (made, is_first) => {
                if let Err(error) = Pointers::take_back(bucket, name, &id).await {
                    tracing::debug!(%error, "a table that nobody names stays for an hour");
                }
                made.and(is_first)?;
                self.find_elsewhere(name).await
            }
        }
    }

    /// Removes tables that no collection has, claims that nobody gave back, and what nodes that do not run any more looked at the clock by. Costs
    /// listings of the bucket; for once in an hour, by any node.
    ///
    /// # Errors
    /// `Unavailable` where the bucket does not answer.
    pub async fn remove_orphans(&self) -> Result<usize> {
        let Home::Bucket(bucket, pointers) = &self.inner.home else { return Ok(0) };
        sweep_claims(bucket).await?;
        sweep_clocks(bucket).await?;
        remove_orphans(bucket, pointers).await
    }
}

/// The table that a collection has; `None`: there is none of that name.
///
/// # Errors
/// `Unavailable` where the bucket does not answer, and, with what to do, where nobody can say which table it is.
pub(super) async fn table_of(bucket: &Bucket, collection: &str) -> Result<Option<String>> {
    pointer_of(bucket, collection).await.map_err(|error| match error.kind() {
        ErrorKind::Corrupt => folders::damaged(collection, &error.to_string()),
        _ => error,
    })
}

/// The right to optimise a shared table; `None`: another node has it, and does it.
pub(super) async fn lease_of(shared: &Shared) -> Result<Option<Lease>> {
    Lease::to_optimise(&shared.bucket, &shared.id).await
}
