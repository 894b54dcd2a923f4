//! The corpus in object storage, which nodes share without knowing of each other.
//!
//! Tables are LanceDB's, which commits by a conditional put. Beside them stand a few small objects, each written by a create-only or a
//! conditional put, so that of two nodes one is told that the other was first:
//!
//! ```text
//! tables/ID.lance/…             a collection's table; ID is made up once for each, so that one that was deleted never comes back
//! collections/TABLE             which table a collection has: that object is the collection
//! claims/COLLECTION/DIGEST      a document that a node is adding or deleting (claims.rs)
//! leases/optimise/ID            who rewrites a table's files (leases.rs)
//! gone/TIME-NAME                what was removed, for every node's KV (gone.rs)
//! clock/NODE                    what a node writes to see the bucket's time; a start makes one
//! ```
//! Time is the bucket's: what `Last-Modified` says of an object that was just written. Nodes' clocks may be wrong.

mod bridge;
mod claims;
mod gone;
mod leases;
mod pointers;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use lancedb::ObjectStoreRegistry;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    Error as StoreError, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion,
};

pub(super) use self::claims::{Claims, Held, deleted_meanwhile, end as end_claims, sweep as sweep_claims, taken_over};
pub use self::gone::{Followed, Follower, Gone, GoneEntry, UpToDate};
pub(super) use self::leases::Lease;
pub(super) use self::pointers::{
    Pointers, create as create_pointer, of as pointer_of, remove as remove_pointer, remove_orphans,
};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;

/// How nodes share the bucket.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// How old what a node sees of others' commits may be, how often it commits to a collection at most, and how often it looks what others
    /// removed. Default 1 s.
    pub interval: Duration,
    /// How long a superseded version of a table stays, as other nodes' questions read it. Default 5 minutes: longer than a request may take, and
    /// than nodes' clocks differ.
    pub readers: Duration,
    /// How long a small request may take, retries included. Default 10 s.
    pub timeout: Duration,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), readers: Duration::from_secs(300), timeout: Duration::from_secs(10) }
    }
}

/// Object storage for a corpus. Clones share it.
#[derive(Debug, Clone)]
pub struct Bucket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    options: BucketOptions,
    env: Env,
    /// Names what this process writes.
    node: u64,
    /// Of the names it made up.
    names: AtomicU64,
    /// The bucket's clock less ours, in milliseconds.
    ahead_ms: AtomicI64,
}

/// An object as it was read.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub bytes: Bytes,
    /// What a replacement is bound to: some stores want the one (S3, Azure), some the other (Google).
    pub version: UpdateVersion,
    /// By the bucket's clock, in milliseconds since 1970.
    pub written_ms: u64,
}

impl Bucket {
    /// Tries the bucket, and takes it. All names are below `prefix`.
    ///
    /// # Errors
    /// `Incompatible` for a store that creates an object twice: nodes would overwrite each other's commits; `Unavailable` where it does not
    /// answer.
    pub async fn open(store: Arc<dyn ObjectStore>, prefix: Path, options: BucketOptions, env: Env) -> Result<Self> {
        let store: Arc<dyn ObjectStore> = match prefix.as_ref() {
            "" => store,
            _ => Arc::new(PrefixStore::new(store, prefix)),
        };
        let node = env.random_u64();
        let bucket =
            Self(Arc::new(Inner { store, options, env, node, names: AtomicU64::new(0), ahead_ms: AtomicI64::new(0) }));
        bucket.test_itself().await?;
        Ok(bucket)
    }

    /// Creates an object twice; the second time must fail. A store that ignores `If-None-Match` loses documents of whoever writes beside
    /// others, without a word. Then replaces it twice, bound to its first version: the first time must do, and the second fail, or else leases
    /// are nobody's or everybody's.
    async fn test_itself(&self) -> Result<()> {
        let path = Path::from(format!("self-test/{}", self.new_name()));
        self.within("try the bucket", self.0.store.put_opts(&path, "first".into(), PutMode::Create.into())).await?;
        let before_ms = self.0.env.now_unix_ms();
        let meta = self.within("try the bucket", self.0.store.head(&path)).await?;
        self.note_clock(&meta, before_ms);
        let second =
            self.timed("try the bucket", self.0.store.put_opts(&path, "second".into(), PutMode::Create.into()));
        let second = second.await?;
        let replaced = match second {
            Err(_) => self.try_replacing(&path).await,
            Ok(_) => Ok(()),
        };
        self.remove(&path).await?;
        match second {
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => replaced,
            Err(error) => Err(failed("try the bucket", error)),
            Ok(_) => Err(Error::new(
                ErrorKind::Incompatible,
                "the bucket of `corpus_url` creates an object that is there already (it ignores `If-None-Match: *`), so that nodes would \
                 overwrite each other's documents: use a store that answers 412, such as Amazon S3, MinIO or Ceph of 2024 and later; or leave \
                 `corpus_url` out, and keep the corpus in the data folder of one node",
            )),
        }
    }

    async fn try_replacing(&self, path: &Path) -> Result<()> {
        let Some(first) = self.read(path).await? else {
            return Err(Error::new(ErrorKind::Unavailable, "an object that was created is not there; try again"));
        };
        if !self.replace(path, &first, "third").await? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "an object that nobody else has was not replaced; try again",
            ));
        }
        if self.replace(path, &first, "fourth").await? {
            return Err(Error::new(
                ErrorKind::Incompatible,
                "the bucket of `corpus_url` replaces an object that has changed since it was read (it ignores `If-Match`), so that nodes would \
                 undo each other's work: use a store that answers 412, such as Amazon S3, MinIO or Ceph of 2024 and later; or leave \
                 `corpus_url` out, and keep the corpus in the data folder of one node",
            ));
        }
        Ok(())
    }

    /// LanceDB's address of the tables, and what it reaches them by.
    pub(super) fn for_lance(&self) -> (String, Arc<ObjectStoreRegistry>) {
        let registry = ObjectStoreRegistry::default();
        registry.insert(bridge::SCHEME, Arc::new(bridge::Provider(self.0.store.clone())));
        (format!("{}://corpus/{TABLES}", bridge::SCHEME), Arc::new(registry))
    }

    /// The log of what was removed.
    pub fn gone(&self) -> Gone {
        Gone::new(self.clone())
    }

    /// The interval that it was opened with.
    pub fn interval(&self) -> Duration {
        self.0.options.interval
    }

    /// How long superseded versions stay.
    pub(super) fn readers(&self) -> Duration {
        self.0.options.readers
    }

    pub(super) fn env(&self) -> &Env {
        &self.0.env
    }

    /// The bucket's time, in milliseconds since 1970, as far as it is known.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.env.now_unix_ms().saturating_add_signed(self.0.ahead_ms.load(Ordering::Relaxed))
    }

    /// A name that nobody else makes up.
    pub(super) fn new_name(&self) -> String {
        let number = self.0.names.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{:08x}{number:08x}", self.0.node, self.0.env.random_u64() as u32)
    }

    fn note_clock(&self, meta: &ObjectMeta, before_ms: u64) {
        let ahead = written_ms(meta) as i64 - before_ms as i64;
        self.0.ahead_ms.store(ahead, Ordering::Relaxed);
    }

    /// Looks at the bucket's clock again.
    pub(super) async fn look_at_clock(&self) -> Result<()> {
        let path = Path::from(format!("{CLOCKS}/{:016x}", self.0.node));
        let before_ms = self.0.env.now_unix_ms();
        self.within("write to the bucket", self.0.store.put(&path, "now".into())).await?;
        let meta = self.within("look at the bucket's clock", self.0.store.head(&path)).await?;
        self.note_clock(&meta, before_ms);
        Ok(())
    }

    /// Creates an object whose bytes nobody else writes; whether it was not there. An answer that was lost is found out about.
    pub(super) async fn create(&self, path: &Path, bytes: &str) -> Result<bool> {
        self.env().fail_point("corpus.bucket.create")?;
        let put = self.0.store.put_opts(path, PutPayload::from(bytes.to_owned()), PutMode::Create.into());
        match self.timed("create an object", put).await {
            Ok(Ok(_)) => Ok(true),
            // It may be ours: the first attempt's answer was lost.
            Ok(Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. })) => {
                Ok(self.read(path).await?.is_some_and(|there| there.bytes == bytes.as_bytes()))
            }
            unknown => match self.read(path).await? {
                Some(there) => Ok(there.bytes == bytes.as_bytes()),
                None => Err(unknown.map_or_else(
                    |error| error,
                    |put| match put {
                        Err(error) => failed("create an object", error),
                        Ok(_) => Error::new(ErrorKind::Unavailable, "an object that was created is not there"),
                    },
                )),
            },
        }
    }

    /// Replaces an object that is still as it was read; whether it was.
    pub(super) async fn replace(&self, path: &Path, seen: &Object, bytes: &str) -> Result<bool> {
        let update = PutMode::Update(seen.version.clone());
        let put = self.0.store.put_opts(path, PutPayload::from(bytes.to_owned()), update.into());
        match self.timed("replace an object", put).await {
            Ok(Ok(_)) => Ok(true),
            // A folder has no conditional put: who comes between is not told, and what this guards only saves work.
            Ok(Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. })) => {
                let is_same = self.read(path).await?.is_some_and(|there| there.bytes == seen.bytes);
                if is_same {
                    self.remove(path).await?;
                }
                Ok(is_same && self.create(path, bytes).await?)
            }
            Ok(Err(StoreError::NotFound { .. })) => Ok(false),
            // The answer to the first attempt may have been lost.
            put => match self.read(path).await? {
                Some(there) if there.bytes == bytes.as_bytes() => Ok(true),
                // Nobody came between: it is no refusal, and would be the same the next time.
                Some(there) if there.bytes == seen.bytes => Err(match put {
                    Ok(Err(error)) => failed("replace an object", error),
                    Ok(Ok(_)) => Error::new(ErrorKind::Unavailable, "an object that was replaced is as it was"),
                    Err(error) => error,
                }),
                _ => Ok(false),
            },
        }
    }

    /// An object; `None`: it is not there.
    pub(super) async fn read(&self, path: &Path) -> Result<Option<Object>> {
        let got = async {
            let got = self.0.store.get_opts(path, GetOptions::default()).await?;
            let meta = got.meta.clone();
            Ok((meta, got.bytes().await?))
        };
        match self.timed("read an object", got).await? {
            Ok((meta, bytes)) => {
                let written_ms = written_ms(&meta);
                let version = UpdateVersion { e_tag: meta.e_tag, version: meta.version };
                Ok(Some(Object { bytes, version, written_ms }))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read an object", error)),
        }
    }

    /// Removes an object; one that is not there is removed.
    pub(super) async fn remove(&self, path: &Path) -> Result<()> {
        match self.timed("remove an object", self.0.store.delete(path)).await? {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove an object", error)),
        }
    }

    /// All objects below `prefix` whose names come after `after`, in the order of their names.
    pub(super) async fn list(&self, prefix: &Path, after: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        self.env().fail_point("corpus.bucket.list")?;
        let listed = match after {
            Some(after) => self.0.store.list_with_offset(Some(prefix), after),
            None => self.0.store.list(Some(prefix)),
        };
        let mut found: Vec<ObjectMeta> = self.within("list the bucket", listed.try_collect()).await?;
        found.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }

    /// Removes everything below `prefix`.
    pub(super) async fn remove_all(&self, prefix: &Path) -> Result<()> {
        for object in self.list(prefix, None).await? {
            self.remove(&object.location).await?;
        }
        Ok(())
    }

    /// Removes what stands below `prefix` and was written so long ago.
    pub(super) async fn remove_older(&self, prefix: &Path, age: Duration) -> Result<()> {
        for object in self.list(prefix, None).await? {
            if self.now_ms().saturating_sub(written_ms(&object)) >= age.as_millis() as u64 {
                self.remove(&object.location).await?;
            }
        }
        Ok(())
    }

    /// With a deadline; what the store says.
    async fn timed<T>(
        &self,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<object_store::Result<T>> {
        let timeout = self.0.options.timeout;
        tokio::time::timeout(timeout, request).await.map_err(|_| {
            let message =
                format!("could not {doing}: the corpus's bucket gave no answer within {timeout:?}; try again");
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    async fn within<T>(&self, doing: &str, request: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        self.timed(doing, request).await?.map_err(|error| failed(doing, error))
    }
}

/// Where the tables are.
pub(super) const TABLES: &str = "tables";
/// Where nodes look at the bucket's clock.
const CLOCKS: &str = "clock";
/// How old what a node looked at the clock by must be to be removed: one that runs writes it again every minute.
const CLOCK_FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Removes what nodes looked at the clock by that do not run any more.
pub(super) async fn sweep_clocks(bucket: &Bucket) -> Result<()> {
    bucket.remove_older(&Path::from(CLOCKS), CLOCK_FORGOTTEN).await
}

/// Where the files of a table are.
pub(super) fn table_prefix(id: &str) -> Path {
    Path::from(format!("{TABLES}/{id}.lance"))
}

pub(super) fn written_ms(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or_default()
}

/// An error of the store in our terms.
fn failed(doing: &str, error: StoreError) -> Error {
    let advice = match &error {
        StoreError::NotFound { .. } => "; does the bucket exist?",
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            "; check the credentials, and that they permit to read, write, list and delete"
        }
        _ => "; try again",
    };
    Error::new(ErrorKind::Unavailable, format!("could not {doing} of the corpus: {error}{advice}")).with_source(error)
}
