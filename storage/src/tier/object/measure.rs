//! What reading entries costs over plain requests for the same bytes: for benchmarks.

use std::time::Duration;

use super::client::Operation;
use super::names::Space;
use super::{ObjectTier, reader};
use crate::tier::{EntryId, EntryTier};
use crate::{Error, Result, frame};
use ragstone_env::Stopwatch;

/// Times of loading the same entries in three ways, in turn, from one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// Bytes of the frames in the bucket.
    pub bytes: u64,
    /// Ours: open, read and verify every layer.
    pub entries: Duration,
    /// Of that, what comes once the entry is found.
    pub frames: Duration,
    /// The first of those requests, by which an entry is found: it tells where the frames are.
    pub open: Duration,
    /// Plain ranged GETs of the frames' bytes, by the ranges that ours are read by, one after the other.
    pub gets: Duration,
    /// The same GETs, all of an entry's at once.
    pub gets_at_once: Duration,
}

impl ObjectTier {
    /// Loads entries whole in three ways, entry by entry in turn, so that what else the machine does meets all alike.
    ///
    /// # Errors
    /// `NotFound` if an entry is not there; else as the bucket says.
    pub fn measure_load(&self, ids: &[EntryId]) -> Result<LoadTimes> {
        let mut times = LoadTimes::default();
        for id in ids {
            let gone = || Error::not_found(format!("entry {} is not in object storage", id.key));
            let started = Stopwatch::start();
            let pending = self.start_open(self.names_read(Space::Exact, id)).ok_or_else(gone)?;
            let opened = pending.wait()?.ok_or_else(gone)?;
            times.open += started.elapsed();
            let ranges = reader::ranges(&opened.layout);
            times.bytes += ranges.iter().map(|range| range.end - range.start).sum::<u64>();

            let started = Stopwatch::start();
            let entry = self.open(id)?.ok_or_else(gone)?;
            let header = entry.header().clone();
            let found = started.elapsed();
            for layer in 0..header.layers {
                frame::decode(&entry.frame(layer)?, &header.key, layer, &header.frame_shape())?;
            }
            times.entries += started.elapsed();
            times.frames += started.elapsed().saturating_sub(found);

            let get = |range: &std::ops::Range<u64>| {
                let (bucket, path, range) = (self.client.bucket.clone(), opened.path.clone(), range.clone());
                let bytes = range.end - range.start;
                let operation = Operation { doing: "read a range", failpoint: "object.get_range", bytes };
                self.client.start(async move { bucket.operate(operation, bucket.get(&path, None, range)).await })
            };
            let started = Stopwatch::start();
            ranges.iter().try_for_each(|range| get(range).wait().map(drop))?;
            times.gets += started.elapsed();

            let started = Stopwatch::start();
            let pending: Vec<_> = ranges.iter().map(get).collect();
            pending.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
            times.gets_at_once += started.elapsed();
        }
        Ok(times)
    }
}
