//! Collections that are damaged: what is known of them, and that the others go on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::bucket::{Pointers, pointer_of, remove_pointer};
use super::disk::{caught, io_failed};
use super::folders::{self, State, advice};
use super::naming::{Stage, tenant_of, unknown};
use super::sharing::Home;
use super::table::Collection;
use super::verify::{DamagedFile, Pace};
use super::{CollectionInfo, Corpus, Departures, PassageTokens, blocking, checked};
use crate::{Error, ErrorKind, Result};
use ragstone_env::damage::Damage;
use ragstone_env::lock::{NamedLocks, locked};

/// What is wrong with collections, by name.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    /// Cannot be opened.
    unopened: Mutex<BTreeMap<String, Unopened>>,
    /// Are open, and have files that are not what was written.
    files: Mutex<BTreeMap<String, Vec<String>>>,
    /// Who tries to open one again, or takes it away: both wait for disks.
    opening: NamedLocks,
}

#[derive(Debug, Clone)]
struct Unopened {
    why: String,
    /// Whether a look may find another thing than the last one did, and costs little.
    may_change: bool,
}

impl Damaged {
    pub fn at_start(unopened: BTreeMap<String, String>) -> Self {
        let damaged = Self::default();
        unopened.into_iter().for_each(|(name, why)| damaged.add(&name, why, true));
        damaged
    }

    /// A collection cannot be opened.
    pub fn note(&self, name: &str, error: &Error) {
        let may_change = !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Incompatible);
        self.add(name, error.to_string(), may_change);
    }

    fn add(&self, name: &str, why: String, may_change: bool) {
        tracing::error!(collection = name, why, "a collection is damaged and stays closed; nothing of it was removed");
        locked(&self.unopened).insert(name.to_owned(), Unopened { why, may_change });
    }

    pub fn unopened_why(&self, name: &str) -> Option<String> {
        locked(&self.unopened).get(name).map(|unopened| unopened.why.clone())
    }

    /// What is wrong with a collection, if anything is known to be.
    pub fn why(&self, name: &str) -> Option<String> {
        self.unopened_why(name).or_else(|| self.in_files(name))
    }

    pub fn unopened(&self) -> Vec<String> {
        locked(&self.unopened).keys().cloned().collect()
    }

    pub fn forget(&self, name: &str) {
        locked(&self.unopened).remove(name);
        locked(&self.files).remove(name);
    }

    /// What a comparison of all files of a collection found.
    pub fn set_files(&self, name: &str, damaged: &[DamagedFile]) {
        let mut files = locked(&self.files);
        match damaged {
            [] => drop(files.remove(name)),
            damaged => {
                let found = damaged.iter().map(|DamagedFile { file, error, .. }| format!("{file} {error}"));
                files.insert(name.to_owned(), found.collect());
            }
        }
    }

    /// A passage was read that is not what was stored.
    pub fn note_passage(&self, name: &str, document: &str) {
        let found = format!("a passage of document `{document}` is not what was stored");
        let mut files = locked(&self.files);
        let known = files.entry(name.to_owned()).or_default();
        if !known.contains(&found) {
            tracing::error!(collection = name, document, "a damaged passage was left out of a search");
            known.push(found);
        }
    }

    /// Of one that is open.
    fn in_files(&self, name: &str) -> Option<String> {
        locked(&self.files).get(name).map(|found| summed(found))
    }

    fn all(&self) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> =
            locked(&self.unopened).iter().map(|(name, unopened)| (name.clone(), unopened.why.clone())).collect();
        all.extend(locked(&self.files).iter().map(|(name, found)| (name.clone(), summed(found))));
        all
    }
}

/// The first of several, and how many there are.
fn summed(found: &[String]) -> String {
    match found {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first}, and {} more", rest.len()),
    }
}

impl Corpus {
    /// All collections by name, those that are damaged among them.
    ///
    /// # Errors
    /// None: what is wrong with one is in its row.
    pub async fn collections(&self) -> Result<Vec<CollectionInfo>> {
        let tables = self.tables(None).await?;
        let mut infos = Vec::with_capacity(tables.len());
        for table in tables {
            let name = table.name.clone();
            let passages = caught("count its passages", table.rows()).await;
            let documents = caught("count its documents", table.documents()).await;
            let failed = passages.as_ref().err().or(documents.as_ref().err()).map(ToString::to_string);
            let damaged = failed.or_else(|| self.inner.damaged.in_files(&name));
            let damaged = damaged.map(|why| format!("{why}; {}", advice(&name)));
            infos.push(CollectionInfo {
                name,
                documents: documents.unwrap_or_default(),
                passages: passages.unwrap_or_default(),
                damaged,
            });
        }
        for name in self.inner.damaged.unopened() {
            if let Some(why) = self.inner.damaged.unopened_why(&name) {
                let damaged = Some(format!("{why}; {}", advice(&name)));
                infos.push(CollectionInfo { name, damaged, ..CollectionInfo::default() });
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    /// Documents of all of a tenant's collections, counted in their tables. Those of one that cannot be read are not known, and count as none.
    ///
    /// # Errors
    /// As the corpus's folder or bucket says.
    pub async fn documents_of(&self, tenant: &str) -> Result<u64> {
        let mut documents = 0;
        for table in self.tables(None).await? {
            if tenant_of(&table.name) == tenant {
                documents += caught("count its documents", table.documents()).await.unwrap_or_default() as u64;
            }
        }
        Ok(documents)
    }

    /// Tells of a collection that was here and has no folder any more. Put back, it is found when somebody asks for it.
    pub fn miss(&self, name: &str) {
        self.inner.damaged.add(name, "its folder is gone".to_owned(), true);
    }

    /// What is known to be damaged. Memory only.
    pub fn damages(&self) -> Vec<Damage> {
        let damage = |(name, found): (String, String)| Damage {
            what: format!("collection `{name}`"),
            found,
            advice: advice(&name),
        };
        self.inner.damaged.all().into_iter().map(damage).collect()
    }

    /// Opens a collection that could not be opened before: somebody may have put its files back, or what kept them from being read is over.
    ///
    /// # Errors
    /// `Unavailable`, with what to do, where it is as it was.
    pub(super) async fn open_again(&self, name: &str) -> Result<Arc<Collection>> {
        // Not the lock of all collections: a medium that hangs would keep everybody from theirs.
        let _turn = self.inner.damaged.opening.lock(name).await;
        if let Some(table) = self.served(name).await {
            return Ok(table);
        }
        let unopened = locked(&self.inner.damaged.unopened).get(name).cloned();
        let Some(Unopened { why, may_change }) = unopened else { return Err(unknown(name)) };
        if !may_change {
            return Err(folders::damaged(name, &why));
        }
        let inner = &self.inner;
        let Home::Folder(folder) = &inner.home else {
            let found = self.find_elsewhere(name).await;
            inner.damaged.forget(name);
            return found.inspect_err(|error| inner.damaged.note(name, error));
        };
        let at = |stage| folders::path_of(folder, name, stage);
        let (path, newer) = (at(Stage::Serving), at(Stage::Built));
        let found = blocking("looking at a table", move || {
            // One that was embedded again, and took its place, has what was written since.
            if newer.try_exists().map_err(|error| io_failed("look at a table", error))? {
                return Ok(None);
            }
            Ok(path.exists().then(|| folders::state(&path)))
        });
        match found.await? {
            Some(State::Whole) => {}
            Some(State::Damaged(why)) => return Err(folders::damaged(name, &why)),
            _ => return Err(folders::damaged(name, &why)),
        }
        let opened = caught("open it", Collection::open(&inner.db, folder, (name, Stage::Serving))).await;
        let own = self.embedding();
        match opened.and_then(|opened| checked(opened, &own, true, &inner.home.shown())) {
            Ok(mut collection) => {
                inner.embedders.give(&mut collection);
                let table = Arc::new(collection);
                inner.collections.lock().await.insert(name.to_owned(), Arc::clone(&table));
                inner.damaged.forget(name);
                tracing::info!(collection = name, "a collection that was damaged can be read again");
                Ok(table)
            }
            Err(error) => {
                inner.damaged.note(name, &error);
                Err(folders::damaged(name, &error.to_string()))
            }
        }
    }

    /// Takes a collection out of the corpus that cannot be opened; whether there was one. Nobody can say what is in it, so that stored KV of
    /// its passages stays until it is evicted.
    pub(super) async fn delete_damaged(&self, name: &str) -> Result<bool> {
        let _turn = self.inner.damaged.opening.lock(name).await;
        if self.served(name).await.is_some() || self.inner.damaged.unopened_why(name).is_none() {
            return Ok(false);
        }
        let folder = match &self.inner.home {
            Home::Folder(folder) => folder,
            Home::Bucket(bucket, _) => {
                match pointer_of(bucket, name).await {
                    Ok(Some(id)) => remove_pointer(bucket, name, &id).await?,
                    Ok(None) => {}
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        Pointers::remove_unreadable(bucket, name).await?;
                    }
                    Err(error) => return Err(error),
                }
                self.inner.damaged.forget(name);
                return Ok(true);
            }
        };
        for stage in [Stage::Serving, Stage::Built, Stage::Building] {
            let (corpus, table) = (folder.clone(), folders::path_of(folder, name, stage));
            blocking("taking a table out of the corpus", move || folders::discard(&corpus, &table)).await?;
        }
        let (corpus, superseded) = (folder.clone(), name.to_owned());
        let forgetting = move || {
            folders::forget_superseded(&corpus, &superseded);
            Ok(())
        };
        blocking("removing what another table took the place of", forgetting).await?;
        self.inner.damaged.forget(name);
        tracing::warn!(
            collection = name,
            "a damaged collection is deleted; KV of its passages stays until it is evicted"
        );
        Ok(true)
    }

    /// Tells of all passages of a collection that goes. One that is damaged can be deleted, too: then of those that can be read.
    pub(super) async fn announce_readable(&self, table: &Collection, departures: &dyn Departures) -> Result<()> {
        let refused = Mutex::new(None);
        let hearing = Hearing { departures, refused: &refused };
        let announced = caught("read its passages", self.announce(table, None, &hearing)).await;
        let refused = refused.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (announced, refused) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) if table.shared().is_some() => Err(error),
            (Err(error), None) if table.compare(Pace::Fast, &mut |_| true).await?.0.damaged.is_empty() => Err(error),
            (Err(error), None) => {
                tracing::warn!(collection = table.name, %error, "not all passages of a damaged collection can be named: their KV stays until it is evicted");
                Ok(())
            }
        }
    }
}

/// Tells apart what keeps passages from being noted, and what keeps them from being read.
struct Hearing<'a> {
    departures: &'a dyn Departures,
    refused: &'a Mutex<Option<Error>>,
}

impl Hearing<'_> {
    fn heard(&self, noted: Result<()>) -> Result<()> {
        noted.map_err(|error| {
            let same = Error::new(error.kind(), error.to_string());
            *locked(self.refused) = Some(error);
            same
        })
    }
}

impl Departures for Hearing<'_> {
    fn departing(&self, passages: Vec<PassageTokens>) -> Result<()> {
        self.heard(self.departures.departing(passages))
    }

    fn leaving(&self, collection: &str) -> Result<()> {
        self.heard(self.departures.leaving(collection))
    }
}
