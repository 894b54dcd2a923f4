//! Other nodes on the same corpus: this one hears what they removed, and takes it out of its own tiers.
//!
//! ```text
//! start       the bucket tries itself -> was this node away for longer than the log is kept, or never there? its KV goes
//! interval    which collections are there? -> what is new in the log? -> out of every tier of this node -> up to date
//! beside      out of the KV's bucket -> noted for the next start
//! hour        what is too old in the log, and tables of no collection, leave the bucket
//! ```
//! A node that ran on and could not look, or not apply what it found, for longer than the log is kept stays out of date until it is
//! started again.
//!
//! A node that is not up to date answers nothing: what is deleted must not be served. That the bucket of KV does not answer is no reason for that:
//! nothing is served from it then.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_corpus::{Bucket, BucketOptions, Corpus, Follower, UpToDate};
use ragstone_env::{Env, Stopwatch};
use ragstone_storage::key::SegmentDigest;
use ragstone_storage::tier::object;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::admission::blocking::blocking;
use crate::admission::jobs::Jobs;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::Settings;
use crate::upkeep::library::Library;
use crate::upkeep::library::elsewhere::segments_in;

/// Where it is noted what this node has seen of the log, below the data folder.
const SEEN: &str = "corpus-seen";
/// How often that is noted where nothing was removed.
const NOTE: Duration = Duration::from_secs(60);
/// How long the bucket of KV is left alone that did not remove what it was to.
const AGAIN: Duration = Duration::from_secs(30);
/// How often the bucket is cleaned.
const CLEAN: Duration = Duration::from_secs(3600);

/// The bucket of the corpus, before the corpus is open.
pub(crate) struct Joined {
    pub bucket: Bucket,
    follower: Follower,
    seen: PathBuf,
}

/// Follows the log for a node.
pub(crate) struct Following {
    corpus: Corpus,
    library: Library,
    follower: Follower,
    seen: PathBuf,
    /// Since what it saw was noted, and since the bucket was cleaned.
    noted: Option<Stopwatch>,
    cleaned: Stopwatch,
    owed: Owed,
    interval: Duration,
    /// Nobody can say any more what others removed since this node started.
    is_lost: bool,
    env: Env,
}

/// What others removed and is still to leave the bucket of KV.
#[derive(Default)]
struct Owed {
    segments: Vec<SegmentDigest>,
    /// The first so many of them are being removed.
    removing: Option<(usize, JoinHandle<Result<()>>)>,
    /// Since it failed.
    failed: Option<Stopwatch>,
}

impl Joined {
    /// Tries the bucket of the settings; `None`: the corpus is in the data folder. Call it before the KV store is open: where nobody can say what
    /// was removed meanwhile, its files go.
    pub async fn at(settings: &Settings, data: &Path, env: &Env) -> Result<Option<Self>> {
        let Some(options) = settings.corpus() else { return Ok(None) };
        let (store, prefix) = blocking(move || object::connect(&options)).await?;
        let interval = settings.corpus_interval();
        let bucket_options = BucketOptions { interval, ..BucketOptions::default() };
        let bucket = Bucket::open(store, prefix, bucket_options, env.clone()).await?;
        let (seen, kv) = (data.join(SEEN), data.join("kv"));
        let since = read_seen(&seen);
        let mut follower = bucket.gone().follow(since);
        if follower.look().await?.has_gap {
            tracing::info!("this node cannot know what others removed before: it begins without stored KV");
            blocking(move || forget(&kv)).await?;
        } else {
            // It is applied once the store is open.
            follower.failed();
        }
        Ok(Some(Self { bucket, follower, seen }))
    }

    /// Begins to follow, until the service stops; tells whether the node is up to date.
    pub fn follow(self, library: &Library, corpus: &Corpus, env: &Env, jobs: &Jobs, runtime: &Handle) -> UpToDate {
        let Self { bucket, follower, seen } = self;
        let up_to_date = follower.up_to_date();
        let (corpus, library, env) = (corpus.clone(), library.clone(), env.clone());
        let cleaned = env.stopwatch();
        let (stopping, interval) = (jobs.stopping().clone(), bucket.interval());
        let (noted, owed, is_lost) = (None, Owed::default(), false);
        let mut following = Following { corpus, library, follower, seen, noted, cleaned, owed, interval, is_lost, env };
        let work = async move {
            loop {
                if let Err(error) = following.once().await {
                    tracing::warn!(%error, "this node could not look what others changed in the corpus");
                }
                tokio::time::sleep(interval).await;
            }
        };
        drop(runtime.spawn(async move { stopping.run_until_cancelled_owned(work).await }));
        up_to_date
    }
}

impl Following {
    /// Looks once.
    async fn once(&mut self) -> Result<()> {
        if self.is_lost {
            return Ok(());
        }
        self.corpus.refresh().await?;
        let followed = self.follower.look().await?;
        if followed.has_gap {
            return self.lose_track().await;
        }
        let gone = segments_in(&followed.entries);
        if let Err(error) = self.library.apply_gone(gone.clone()).await {
            self.follower.failed();
            return Err(error);
        }
        let seen_ms = self.follower.applied();
        self.owed.segments.extend(gone);
        let is_paid = self.pay().await;
        let is_due = self.noted.as_ref().is_none_or(|since| since.elapsed() >= NOTE);
        // After a start the log tells again what is owed.
        if self.owed.segments.is_empty() && (is_paid || is_due) {
            let path = self.seen.clone();
            blocking(move || note_seen(&path, seen_ms)).await?;
            self.noted = Some(self.env.stopwatch());
        }
        if self.cleaned.elapsed() >= CLEAN {
            self.cleaned = self.env.stopwatch();
            self.follower.collect().await?;
            self.corpus.remove_orphans().await?;
        }
        Ok(())
    }
}

impl Following {
    /// The log has lost what this node did not apply. Its stored KV is open, and is removed by the next start.
    async fn lose_track(&mut self) -> Result<()> {
        self.is_lost = true;
        tracing::error!(
            "this node did not hear for seven days what others removed, and nobody can tell it any more: restart it. It answers nothing until \
             then, and begins without stored KV"
        );
        let path = self.seen.clone();
        // Where it stays, it is as old as that, and the next start finds out all the same.
        blocking(move || forget_seen(&path)).await
    }

    /// Removes what is owed from the bucket of KV, which is not waited for longer than half an interval; whether the last of it was.
    async fn pay(&mut self) -> bool {
        let Owed { segments, removing, failed } = &mut self.owed;
        let may_try = failed.as_ref().is_none_or(|since| since.elapsed() >= AGAIN);
        if removing.is_none() && may_try && !segments.is_empty() {
            let (library, some) = (self.library.clone(), segments.clone());
            let work = async move { library.remove_everywhere(some).await };
            *removing = Some((segments.len(), tokio::spawn(work)));
        }
        let Some((count, work)) = removing else { return false };
        let Ok(done) = tokio::time::timeout(self.interval / 2, work).await else { return false };
        match done.unwrap_or_else(|_| Err(Error::internal("the removal from the bucket broke off"))) {
            Ok(()) => {
                segments.drain(..*count);
                *failed = None;
            }
            Err(error) => {
                tracing::warn!(%error, "what other nodes removed is still in the bucket of KV; it is tried again");
                *failed = Some(self.env.stopwatch());
            }
        }
        *removing = None;
        segments.is_empty()
    }
}

/// What was seen, in milliseconds; a file that cannot be read says nothing.
fn read_seen(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn note_seen(path: &Path, seen_ms: u64) -> Result<()> {
    let beside = path.with_extension("new");
    let noted = std::fs::write(&beside, seen_ms.to_string())
        .and_then(|()| std::fs::File::open(&beside)?.sync_all())
        .and_then(|()| ragstone_env::damage::rename(&beside, path));
    noted.map_err(|error| {
        let message = format!("could not write {}: {error}; check the data folder", path.display());
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// Has the next start begin without stored KV.
fn forget_seen(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let message = format!("could not remove {}: {error}; check the data folder", path.display());
            Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
        }
        _ => Ok(()),
    }
}

/// Removes stored KV: everything in it can be computed again.
fn forget(kv: &Path) -> Result<()> {
    match std::fs::remove_dir_all(kv) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let message = format!(
                "could not remove {}: {error}; remove it by hand, it holds nothing that is not computed again",
                kv.display()
            );
            Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_noted_over_a_restart_and_nonsense_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SEEN);
        assert_eq!(read_seen(&path), None);
        note_seen(&path, 17).unwrap();
        note_seen(&path, 18).unwrap();
        assert_eq!(read_seen(&path), Some(18));
        std::fs::write(&path, "x").unwrap();
        assert_eq!(read_seen(&path), None);
        note_seen(&path, 19).unwrap();
        for _ in 0..2 {
            forget_seen(&path).unwrap();
            assert_eq!(read_seen(&path), None);
        }
    }
}
