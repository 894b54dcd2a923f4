//! Collections that come and go. One change at a time of a name, and who means another collection does not wait: making a table writes an
//! index and waits for the disk, and removing one waits for who reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::disk::caught;
use super::folders;
use super::ingest::Going;
use super::naming::{Stage, tenant_of};
use super::sharing::Home;
use super::table::Collection;
use super::{Corpus, Departures, Inner, MOST_COLLECTIONS, MOST_OF_TENANT};
use crate::{Error, ErrorKind, Result};
use ragstone_env::lock::{NamedLocks, locked};

/// Who changes which names.
#[derive(Default)]
pub(super) struct Changing {
    /// One change at a time of a name.
    names: NamedLocks,
    /// Names whose tables are being made: they count as if they were there.
    made: Arc<Mutex<BTreeSet<String>>>,
}

/// A place among the collections, until its table is there or was not made.
pub(super) struct Making(Arc<Mutex<BTreeSet<String>>>, String);

impl Drop for Making {
    fn drop(&mut self) {
        locked(&self.0).remove(&self.1);
    }
}

impl Changing {
    /// Whether a table of that name is being made.
    pub fn is_made(&self, name: &str) -> bool {
        locked(&self.made).contains(name)
    }

    /// Takes a place for a collection that is not among `there`.
    ///
    /// # Errors
    /// `InvalidInput` where there are as many as there may be.
    pub fn make(&self, name: &str, there: &BTreeMap<String, Arc<Collection>>) -> Result<Making> {
        let mut made = locked(&self.made);
        let all = || there.keys().filter(|other| !made.contains(*other)).chain(&*made);
        let of_tenant = all().filter(|other| tenant_of(other) == tenant_of(name)).count();
        if of_tenant >= MOST_OF_TENANT || all().count() >= MOST_COLLECTIONS {
            let message = format!(
                "{MOST_OF_TENANT} collections of a tenant, and {MOST_COLLECTIONS} in all, are the most there may be: delete some, or put \
                 the documents into one that is there"
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        made.insert(name.to_owned());
        Ok(Making(self.made.clone(), name.to_owned()))
    }
}

impl Corpus {
    /// Removes a collection; how many passages went. `NotFound` where there was none. `departures` hears of them first; of one that is
    /// damaged, of those that can be read. To be awaited to its end: files are removed one after the other.
    pub async fn delete_collection(&self, collection: &str, departures: &dyn Departures) -> Result<usize> {
        let _turn = self.inner.changing.names.lock(collection).await;
        loop {
            if self.delete_damaged(collection).await? {
                return Ok(0);
            }
            let table = self.find(collection).await?;
            let Some(writer) = table.write().await else { continue };
            self.announce_readable(&table, departures).await?;
            self.forget_others(&table).await?;
            let removed = writer.drop_table().await?;
            // Still in the turn to write: whoever waits for it finds nothing, and does not find this table again.
            self.inner.collections.lock().await.remove(collection);
            self.inner.damaged.forget(collection);
            return Ok(removed);
        }
    }

    /// `None` where a new one is not wanted any more, which is asked while nobody can remove it.
    pub(super) async fn find_or_create(
        &self,
        name: &str,
        asked: &(dyn Fn() -> Result<Going> + Send + Sync),
    ) -> Result<Option<Arc<Collection>>> {
        if let Some(table) = self.served(name).await {
            return Ok(Some(table));
        }
        let Inner { home, changing, collections, .. } = &*self.inner;
        let turn = changing.names.lock(name).await;
        if let Some(table) = self.served(name).await {
            return Ok(Some(table));
        }
        if let Some(why) = self.inner.damaged.unopened_why(name) {
            return Err(folders::damaged(name, &why));
        }
        if asked()? == Going::Enough {
            return Ok(None);
        }
        let place = {
            let there = collections.lock().await;
            changing.make(name, &there)?
        };
        if let Some(other) = self.found_elsewhere(name).await? {
            return Ok(Some(other));
        }
        if home.path_of(name, Stage::Serving).is_some_and(|path| path.exists()) {
            let message =
                format!("the files of a collection `{name}` that was deleted are still read; try again in a moment");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let (corpus, name) = (self.clone(), name.to_owned());
        // It goes on if its caller leaves: files without their index would be in everybody's way.
        let made = tokio::spawn(async move {
            let _held = (turn, place);
            let Inner { db, home, encoder, collections, options, .. } = &*corpus.inner;
            options.env.fail_point("corpus.create")?;
            let folder = match home {
                Home::Folder(folder) => folder,
                Home::Bucket(bucket, _) => return corpus.create_shared(bucket, &name).await.map(Some),
            };
            let table = Collection::create(db, folder, (&name, Stage::Serving), encoder.clone()).await.map(Arc::new)?;
            collections.lock().await.insert(name, Arc::clone(&table));
            Ok(Some(table))
        });
        made.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "making a collection broke off").with_source(error))
        })
    }

    /// A collection that another node made.
    async fn found_elsewhere(&self, name: &str) -> Result<Option<Arc<Collection>>> {
        match self.find_elsewhere(name).await {
            Ok(table) => Ok(Some(table)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One that was dropped is none, also where whoever dropped it was cut off there.
    pub(super) async fn served(&self, name: &str) -> Option<Arc<Collection>> {
        self.inner.collections.lock().await.get(name).filter(|table| !table.is_gone()).cloned()
    }

    /// Rewrites the files of a collection without what was deleted from it, or replaced: on return no file has it. Nothing is done where
    /// there is no such collection. Whoever reads goes on; who writes into it waits.
    ///
    /// # Errors
    /// As the disk says; `Unavailable` for one that is damaged, whose files stay as they are, and while it is embedded again: the files that are
    /// to take the place of its own may have been copied from before. Then some is left.
    pub async fn vacuum(&self, collection: &str) -> Result<()> {
        loop {
            if let Some(why) = self.inner.damaged.why(collection) {
                return Err(folders::damaged(collection, &why));
            }
            let Some(table) = self.served(collection).await else { return Ok(()) };
            // Another table may have taken its place meanwhile.
            let Some(writer) = table.write().await else { continue };
            self.inner.options.env.fail_point("corpus.vacuum")?;
            caught("rewrite its files", writer.vacuum(self.inner.options.vector_index_rows)).await?;
            drop(writer);
            if self.is_built_anew(collection) {
                let message = format!(
                    "collection `{collection}` is being embedded again: what was deleted from it meanwhile leaves the files once that has ended, \
                     or was cancelled"
                );
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            return Ok(());
        }
    }

    /// Whether there are files, whole or not, that are to take the place of a collection's.
    fn is_built_anew(&self, collection: &str) -> bool {
        self.inner.home.path_of(collection, Stage::Building).is_some_and(|path| path.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_are_being_made_count_too() {
        let (changing, there) = (Changing::default(), BTreeMap::new());
        let mut made: Vec<Making> =
            (0..MOST_OF_TENANT).map(|n| changing.make(&format!("t/{n}"), &there).unwrap()).collect();
        assert!(changing.make("t/more", &there).is_err());
        changing.make("other/more", &there).unwrap();
        made.pop();
        changing.make("t/more", &there).unwrap();
        drop(made);
        assert!(locked(&changing.made).is_empty());
    }
}
