//! The files below a prefix of a bucket: S3 and what speaks as it does, Google's and Azure's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, path::Path as Key};
use ragstone_documents::{MAX_FILE_BYTES, is_read};
use ragstone_storage::tier::object::{ConnectionOptions, ObjectOptions, connect};

use super::keep::keep;
use super::{Fetched, FetchedFile, Progress, Wanted, memory, name, refused, unreachable};
use ragstone_env::Result;

/// Objects that are fetched at a time.
const AT_ONCE: usize = 8;
/// What one ingest takes, as of folders.
const MOST_OBJECTS: usize = 250_000;

/// One that was named: `s3://bucket/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    url: String,
}

/// One that can be asked.
pub struct Opened {
    bucket: Bucket,
    store: Arc<dyn ObjectStore>,
    prefix: Key,
}

/// An object, and the address that its documents are known by.
struct Object {
    meta: ObjectMeta,
    source: String,
}

impl Bucket {
    pub(super) fn of(text: &str) -> Self {
        Self { url: text.trim_end_matches('/').to_owned() }
    }

    /// What the addresses of all its files begin with.
    pub(super) fn base(&self) -> String {
        format!("{}/", self.url)
    }

    /// Asks nothing of the network.
    pub(super) fn open(&self, connection: &ConnectionOptions) -> Result<Opened> {
        let options = ObjectOptions { options: connection.clone(), ..ObjectOptions::new(&self.url) };
        let (store, prefix) = connect(&options)?;
        Ok(Opened { bucket: self.clone(), store, prefix })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Opened {
    pub(super) fn base(&self) -> String {
        self.bucket.base()
    }

    pub(super) async fn fetch(self, wanted: Wanted<'_>, told: &(dyn Fn(Progress) + Sync)) -> Result<Fetched> {
        let Wanted { folder, stored, memory, .. } = wanted;
        let mut fetched = Fetched { gone: stored.clone(), ..Fetched::default() };
        let (mut wanted, mut noted) = (Vec::new(), BTreeMap::new());
        for object in self.list().await? {
            fetched.gone.remove(&object.source);
            if !is_read(Path::new(object.meta.location.filename().unwrap_or_default())) {
                let ending = object.meta.location.extension().map(|ending| format!(".{ending}")).unwrap_or_default();
                *fetched.left_alone.entry(ending).or_default() += 1;
                continue;
            }
            let page = memory::Page { etag: state(&object.meta), ..memory::Page::default() };
            let is_known = page.etag.is_some() && memory.pages.get(&object.source) == Some(&page);
            if is_known && stored.contains(&object.source) {
                fetched.unchanged += 1;
                noted.insert(object.source, page);
            } else if object.meta.size > MAX_FILE_BYTES {
                let why = format!("more than the {} MiB that one file may have", MAX_FILE_BYTES >> 20);
                fetched.left_out.push((object.source, why));
            } else {
                wanted.push((object, page));
            }
        }
        let (total, mut bytes) = (wanted.len(), 0);
        let fetches = wanted.into_iter().map(|(object, page)| async {
            let kept = self.keep(folder, &object).await;
            (object, page, kept)
        });
        let mut fetches = stream::iter(fetches).buffered(AT_ONCE);
        while let Some((object, page, kept)) = fetches.next().await {
            match kept? {
                Ok(path) => {
                    bytes += object.meta.size;
                    noted.insert(object.source.clone(), page);
                    fetched.files.push(FetchedFile { path, source: object.source });
                }
                Err(why) => fetched.left_out.push((object.source, why)),
            }
            let done = fetched.files.len() + fetched.left_out.len();
            told(Progress { files: fetched.files.len(), bytes, waiting: Some(total.saturating_sub(done)) });
        }
        drop(fetches);
        memory.pages = noted;
        Ok(fetched)
    }

    /// The objects below the prefix, in order.
    async fn list(&self) -> Result<Vec<Object>> {
        let listed = self.store.list(Some(&self.prefix)).take(MOST_OBJECTS + 1).try_collect::<Vec<_>>().await;
        let mut listed = listed.map_err(|error| unreachable(format!("cannot list {}: {error}", self.bucket)))?;
        if listed.len() > MOST_OBJECTS {
            return Err(refused(format!(
                "{}: more than {MOST_OBJECTS} objects, which one ingest takes; ingest its prefixes one by one",
                self.bucket
            )));
        }
        if listed.is_empty() {
            return Err(refused(format!("{} has no objects; is the prefix right?", self.bucket)));
        }
        listed.sort_by(|one, other| one.location.cmp(&other.location));
        let object = |meta: ObjectMeta| {
            let below = meta.location.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned());
            let below = below.collect::<Vec<_>>().join("/");
            // Behind a `#` stands the place of one of a file's documents.
            let below = below.replace('#', "%23");
            let source = if below.is_empty() { self.bucket.url.clone() } else { self.bucket.base() + &below };
            Some(Object { meta, source })
        };
        Ok(listed.into_iter().filter_map(object).collect())
    }

    /// Fetches an object into the folder; why it could not be, where that is the object's matter.
    async fn keep(&self, folder: &Path, object: &Object) -> Result<std::result::Result<PathBuf, String>> {
        let got = match self.store.get(&object.meta.location).await {
            Ok(got) => got.bytes().await,
            Err(error) => Err(error),
        };
        let bytes = match got {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let name = name::of_parts(object.meta.location.parts().map(|part| part.as_ref().to_owned()));
        let path = keep(folder, &name, &object.source, &bytes, Some(object.meta.last_modified.into())).await?;
        Ok(Ok(path))
    }
}

/// What tells an object's states apart.
fn state(meta: &ObjectMeta) -> Option<String> {
    let mark = meta.e_tag.clone().or_else(|| meta.version.clone())?;
    Some(format!("{mark} {} {}", meta.size, meta.last_modified.timestamp()))
}
