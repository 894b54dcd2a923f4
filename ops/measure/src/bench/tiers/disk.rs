//! Entries in RocksDB, beside the same bytes in a plain file. Both are read from a cold page cache.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ragstone_env::{Env, Stopwatch};
use ragstone_storage::entry::Entry;
use ragstone_storage::frame;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::tier::EntryTier;
use ragstone_storage::tier::disk::{DiskTier, Remembered};
use ragstone_storage::tree::TierOptions;
use tempfile::TempDir;

use crate::error::{Error, Result};

/// A disk tier and a file in a temporary folder of the system's.
pub(super) struct Disk {
    tier: DiskTier,
    raw: Arc<File>,
    entries: Vec<Arc<Entry>>,
    folder: TempDir,
}

impl Disk {
    /// Writes `entries` in both forms.
    pub(super) fn fill(entries: &[Arc<Entry>]) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|error| Error::internal(format!("no temporary folder: {error}")))?;
        let options = TierOptions { capacity_bytes: 1 << 40, policy: PolicyKind::Lru };
        let tier = DiskTier::open(&folder.path().join("kv"), options, Env::system(), &Remembered::default())?;
        for entry in entries {
            tier.put(entry)?;
        }
        tier.compact()?;
        let raw = Arc::new(raw_file(&folder.path().join("raw"), entries)?);
        Ok(Self { tier, raw, entries: entries.to_vec(), folder })
    }

    /// Reads all of it by `lanes` threads, through the tier and from the plain file. Seconds of both.
    pub(super) fn round(&self, lanes: usize) -> Result<(f64, f64)> {
        let dir = self.folder.path().join("kv");
        let failed = |error: std::io::Error| Error::io("cannot read", &dir, error);
        for file in std::fs::read_dir(&dir).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            if path.is_file() {
                forget_pages(&File::open(&path).map_err(failed)?)?;
            }
        }
        let tier = self.tier.clone();
        let ours = in_lanes(&self.entries, lanes, move |_, entry| read_verified(&tier, entry))?;
        forget_pages(&self.raw)?;
        let raw = self.raw.clone();
        Ok((ours, in_lanes(&self.entries, lanes, move |start, entry| read_raw(&raw, start, entry))?))
    }
}

/// Deals entries, with where each begins in a file of all, to so many threads, as loads are (`prompt::plan::lanes`). Seconds.
fn in_lanes(
    entries: &[Arc<Entry>],
    lanes: usize,
    read: impl Fn(u64, &Entry) -> Result<()> + Clone + Send + 'static,
) -> Result<f64> {
    let mut dealt = vec![Vec::new(); lanes.max(1)];
    let mut start = 0;
    for (index, entry) in entries.iter().enumerate() {
        dealt[index % lanes.max(1)].push((start, Arc::clone(entry)));
        start += entry.header().frames_bytes();
    }
    let started = Stopwatch::start();
    let reading = dealt.into_iter().map(|entries| {
        let read = read.clone();
        Env::spawn("bench-read", move || entries.iter().try_for_each(|(start, entry)| read(*start, entry)))
    });
    // All are begun before the first is waited for.
    let reading = reading.collect::<std::result::Result<Vec<_>, _>>()?;
    for lane in reading {
        lane.join().map_err(|_| Error::internal("a reading thread ended early"))??;
    }
    Ok(started.elapsed_s())
}

/// Reads and verifies an entry's frames.
fn read_verified(tier: &DiskTier, entry: &Entry) -> Result<()> {
    let held = tier
        .open(&entry.header().id())?
        .ok_or_else(|| Error::internal("an entry left a tier that has room for all of them"))?;
    let header = held.header();
    for layer in 0..header.layers {
        let bytes = held.frame(layer)?;
        std::hint::black_box(frame::decode(&bytes, &header.key, layer, &header.frame_shape())?);
    }
    Ok(())
}

/// Reads the same bytes in the same pieces.
fn read_raw(file: &File, start: u64, entry: &Entry) -> Result<()> {
    let mut at = start;
    for frame in entry.frames() {
        let mut buffer = vec![0; frame.len()];
        file.read_exact_at(&mut buffer, at)
            .map_err(|error| Error::internal(format!("the raw file could not be read: {error}")))?;
        std::hint::black_box(&buffer);
        at += frame.len() as u64;
    }
    Ok(())
}

fn raw_file(path: &Path, entries: &[Arc<Entry>]) -> Result<File> {
    let write = || {
        let mut file = File::options().create_new(true).read(true).write(true).open(path)?;
        for frame in entries.iter().flat_map(|entry| entry.frames()) {
            file.write_all(frame)?;
        }
        file.sync_all()?;
        Ok(file)
    };
    write().map_err(|error: std::io::Error| Error::io("cannot write", path, error))
}

/// Has the system drop a file's pages from its cache.
fn forget_pages(file: &File) -> Result<()> {
    // SAFETY: it takes numbers only, and the descriptor is open for as long as `file` is borrowed.
    let failed = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if failed == 0 {
        return Ok(());
    }
    let error = std::io::Error::from_raw_os_error(failed);
    Err(Error::internal(format!("the page cache could not be emptied: {error}")))
}
