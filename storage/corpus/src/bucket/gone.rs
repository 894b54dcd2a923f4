//! What was removed, told to every node: an append-only log whose entries are objects.
//!
//! Whoever removes something appends an entry that says which KV goes with it. Every node lists the log behind what it has seen, once in an
//! interval, applies what is new to its own tiers, and only then counts as being up to date.
//!
//! ```text
//! gone/TIME-NAME    TIME: 13 digits, milliseconds since 1970 by the bucket's clock, but never before what the writer has seen of the log
//! ```
//! An entry may appear behind later ones, as writers' clocks differ and requests take their time: the last [`OVERLAP`] is listed again every
//! time. Entries are removed once they are [`KEPT`] old; a node that was away for longer starts without its KV. One that ran on meanwhile is
//! not up to date again before it starts anew.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::Bucket;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Stopwatch;
use ragstone_env::lock::locked;

const GONE: &str = "gone";
/// Entries that are read at once.
const AT_ONCE: usize = 16;
/// How far behind the newest entry others may still appear: nodes' clocks and slow requests.
const OVERLAP: Duration = Duration::from_secs(300);
/// How long entries stay.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Intervals without a listing after which a node is not up to date any more.
const MOST_MISSED: u32 = 3;
/// How often it is looked how far this node's clock is from the bucket's.
const CLOCK: Duration = Duration::from_secs(60);
/// No shorter interval is counted.
const SHORTEST: Duration = Duration::from_millis(100);

/// What went. Of every tenant's KV: who may read the text elsewhere has it computed again, as nodes do not know each other's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneEntry {
    /// The segments of the KV store, as hexadecimal digests: nothing of a text can be read from them.
    pub segments: Vec<String>,
}

/// Appends to the log.
#[derive(Debug, Clone)]
pub struct Gone(Bucket);

/// What a look at the log found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// What is new, oldest first.
    pub entries: Vec<GoneEntry>,
    /// The log does not reach back to what this node applied last, or it never looked: nobody can say what went meanwhile, so that all its KV
    /// has to go. Where the first look says so, whoever follows begins without. Where a later one does, all that come after it do, and the
    /// node is not up to date again, whatever it applies: of the KV that it has open nobody can say what is gone.
    pub has_gap: bool,
}

/// Follows the log.
#[derive(Debug)]
pub struct Follower {
    bucket: Bucket,
    /// Entries of the overlap that were seen.
    seen: BTreeSet<Path>,
    /// The newest that was seen, in milliseconds, and that was applied.
    newest_ms: u64,
    applied_ms: u64,
    /// When it last looked and what it found was applied, by the bucket's clock; and when it looked last.
    looked_ms: u64,
    looking_ms: u64,
    /// Since that look began: what it says holds for that moment, however long it took to hear and to apply it.
    began: Option<Stopwatch>,
    /// It never looked before, also before its last start.
    is_new: bool,
    /// It looked since its last start.
    has_looked: bool,
    /// What it had not applied left the log while it ran.
    is_lost: bool,
    /// Since it looked at the bucket's clock.
    clock: Option<Stopwatch>,
    current: UpToDate,
}

/// Whether a node knows what others removed: it looked, and applied what it found, within three intervals. Clones share it.
#[derive(Debug, Clone)]
pub struct UpToDate {
    since: Arc<Mutex<Option<Stopwatch>>>,
    is_lost: Arc<AtomicBool>,
    most: Duration,
}

impl UpToDate {
    /// Whether it is now.
    pub fn is_now(&self) -> bool {
        locked(&self.since).as_ref().is_some_and(|since| since.elapsed() <= self.most)
    }

    /// Whether it will not be before it is started again.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

impl Gone {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self(bucket)
    }

    /// Tells all nodes that this is gone. On return it is in the log.
    ///
    /// # Errors
    /// `Unavailable`: then it has to be told again.
    pub async fn tell(&self, entry: &GoneEntry) -> Result<()> {
        let bucket = &self.0;
        bucket.env().fail_point("corpus.gone.tell")?;
        let text = serde_json::to_string(entry)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("write what is gone: {error}")))?;
        // Never before what others have: whoever follows has seen that.
        let listed =
            bucket.list(&Path::from(GONE), Some(&name_at(bucket.now_ms().saturating_sub(overlap_ms())))).await?;
        let newest_ms = listed.iter().filter_map(|object| time_of(&object.location)).max().unwrap_or_default();
        let at_ms = bucket.now_ms().max(newest_ms);
        loop {
            let path = Path::from(format!("{GONE}/{at_ms:013}-{}", bucket.new_name()));
            if bucket.create(&path, &text).await? {
                return Ok(());
            }
        }
    }

    /// Follows the log from where a node saw it last, `None`: it never did.
    pub fn follow(&self, since: Option<u64>) -> Follower {
        let newest_ms = since.unwrap_or_default();
        let most = self.0.interval().max(SHORTEST) * MOST_MISSED;
        let current = UpToDate { since: Arc::default(), is_lost: Arc::default(), most };
        let (seen, is_new) = (BTreeSet::new(), since.is_none());
        Follower {
            bucket: self.0.clone(),
            seen,
            newest_ms,
            applied_ms: newest_ms,
            looked_ms: newest_ms,
            looking_ms: newest_ms,
            began: None,
            is_new,
            has_looked: false,
            is_lost: false,
            clock: None,
            current,
        }
    }
}

impl Follower {
    /// Looks what is new. To be called once in an interval; whoever has applied it says so ([`applied`](Self::applied)).
    ///
    /// # Errors
    /// `Unavailable` where the log cannot be listed or read.
    pub async fn look(&mut self) -> Result<Followed> {
        let looked = self.look_once().await;
        if looked.is_err() {
            self.failed();
        }
        looked
    }

    async fn look_once(&mut self) -> Result<Followed> {
        let bucket = self.bucket.clone();
        if self.clock.as_ref().is_none_or(|since| since.elapsed() >= CLOCK) {
            bucket.look_at_clock().await?;
            self.clock = Some(bucket.env().stopwatch());
        }
        let looked_ms = (!self.is_new).then_some(self.looked_ms);
        if has_lost(looked_ms, bucket.now_ms()) {
            // This machine's clock may just have been set, by days.
            bucket.look_at_clock().await?;
        }
        let now_ms = bucket.now_ms();
        let has_gap = self.is_lost || has_lost(looked_ms, now_ms);
        let from = name_at(self.newest_ms.saturating_sub(overlap_ms()));
        self.began = Some(bucket.env().stopwatch());
        let listed = bucket.list(&Path::from(GONE), Some(&from)).await?;
        let mut followed = Followed { entries: Vec::new(), has_gap };
        let mut seen = BTreeSet::new();
        let mut new = Vec::new();
        for object in listed {
            let Some(at_ms) = time_of(&object.location) else { continue };
            // Where all KV goes, nobody asks what else was removed.
            if !self.seen.contains(&object.location) && !has_gap {
                new.push(object.location.clone());
            }
            self.newest_ms = self.newest_ms.max(at_ms);
            seen.insert(object.location);
        }
        for some in new.chunks(AT_ONCE) {
            let mut reading = Vec::with_capacity(some.len());
            for path in some {
                reading.push(bucket.read(path));
            }
            for (path, there) in some.iter().zip(join_all(reading).await) {
                if let Some(there) = there? {
                    followed.entries.push(entry_of(path, &there.bytes)?);
                }
            }
        }
        self.seen = seen;
        self.looking_ms = now_ms;
        if has_gap && self.has_looked {
            self.is_lost = true;
            self.current.is_lost.store(true, Ordering::Relaxed);
        } else if has_gap {
            // It begins without KV: from here on it misses nothing.
            self.looked_ms = now_ms;
            self.is_new = false;
        }
        self.has_looked = true;
        Ok(followed)
    }

    /// What the last look found is applied: the node is up to date, unless what it missed left the log while it ran. Where it saw the log
    /// last, to be kept over a restart.
    pub fn applied(&mut self) -> u64 {
        if !self.is_lost {
            self.applied_ms = self.newest_ms;
            self.looked_ms = self.looking_ms;
            *locked(&self.current.since) = self.began.clone();
        }
        self.looked_ms
    }

    /// What the last look found could not be applied: the next one finds it again.
    pub fn failed(&mut self) {
        self.seen.clear();
        self.newest_ms = self.applied_ms;
    }

    /// Whether what it looks at is up to date, for whoever asks.
    pub fn up_to_date(&self) -> UpToDate {
        self.current.clone()
    }

    /// Removes entries that every node has had time to see; how many.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn collect(&self) -> Result<usize> {
        let bucket = &self.bucket;
        let before_ms = bucket.now_ms().saturating_sub(kept_ms());
        let mut removed = 0;
        for object in bucket.list(&Path::from(GONE), None).await? {
            if time_of(&object.location).is_some_and(|at_ms| at_ms < before_ms) {
                bucket.remove(&object.location).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn overlap_ms() -> u64 {
    OVERLAP.as_millis() as u64
}

fn kept_ms() -> u64 {
    KEPT.as_millis() as u64
}

/// Whether entries may have left the log that a node has not applied: it last did so at `looked_ms`, or never. An entry may have the time of
/// as long ago as the overlap. Pure.
fn has_lost(looked_ms: Option<u64>, now_ms: u64) -> bool {
    looked_ms.is_none_or(|looked_ms| now_ms.saturating_sub(looked_ms) >= kept_ms() - overlap_ms())
}

fn name_at(at_ms: u64) -> Path {
    Path::from(format!("{GONE}/{at_ms:013}"))
}

fn time_of(path: &Path) -> Option<u64> {
    path.filename()?.split_once('-')?.0.parse().ok()
}

fn entry_of(path: &Path, bytes: &[u8]) -> Result<GoneEntry> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the entry {path} of the log of what is gone cannot be read: {error}; upgrade this node");
        Error::new(ErrorKind::Incompatible, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_never_saw_or_saw_too_long_ago_is_lost() {
        let (week_ms, overlap_ms) = (7 * 24 * 3600 * 1000, 300 * 1000);
        assert!(has_lost(None, 0));
        assert!(!has_lost(Some(5), 5) && !has_lost(Some(5), 4));
        assert!(!has_lost(Some(5), 4 + week_ms - overlap_ms) && has_lost(Some(5), 5 + week_ms - overlap_ms));
    }
}
