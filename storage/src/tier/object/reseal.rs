//! Sealing anew: what lies under a key that is on its way out comes under the first one, so that the other can be forgotten.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;

use super::client::{Bucket, Operation};
use super::names::{Name, Space};
use super::reader::ObjectEntry;
use super::requests::{Opened, create, delete};
use super::{Known, ObjectTier};
use crate::{ErrorKind, Result, frame};

impl ObjectTier {
    /// Whether a collection has entries to seal anew: more than one key is named, or what is not sealed is accepted beside one.
    pub fn reseals(&self) -> bool {
        self.names.has_older()
    }

    /// Seals by the first key what this model has under the others and, where that is accepted, under none; how many entries. What it
    /// cannot read or verify stays, under the name that it has. Other nodes may do the same at the same time: at the worst an entry is lost
    /// by that, and computed again. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if the bucket fails; that of `go_on`, which is asked before each entry. What was sealed by then is.
    pub(super) fn reseal(&self, go_on: &dyn Fn() -> Result<()>) -> Result<u64> {
        let mut resealed = 0;
        for space in Space::ALL {
            let written = self.names.written(space);
            for room in self.names.read(space).filter(|room| *room != written) {
                let mut listing = self.listing(self.names.model(room, &self.fingerprint));
                while let Some(objects) = listing.next()? {
                    for name in objects.iter().filter_map(|object| self.names.parse(&object.location)) {
                        go_on()?;
                        resealed += u64::from(self.reseal_one(name)?);
                    }
                }
            }
        }
        if resealed > 0 {
            tracing::info!(resealed, "entries of the bucket were sealed by its first key");
        }
        Ok(resealed)
    }

    /// Whether an entry is under the first key now, and no more where it was.
    fn reseal_one(&self, name: Name) -> Result<bool> {
        let opened = match self.start_open(vec![name]).map(super::client::Pending::wait) {
            Some(Ok(Some(opened))) => opened,
            // Hidden, or gone meanwhile.
            None | Some(Ok(None)) => return Ok(false),
            Some(Err(error)) => return left_alone(&name, error),
        };
        self.seal_anew(&name, &opened)
    }

    /// As [`reseal_one`](Self::reseal_one), of an entry that was there when it was opened.
    pub(super) fn seal_anew(&self, name: &Name, opened: &Opened) -> Result<bool> {
        let (new, is_new) = match self.write_sealed(opened) {
            Ok(written) => written,
            Err(error) => return left_alone(name, error),
        };
        // Its text may have been deleted since it was opened, and then both names were looked at before the new one was there.
        let take_back = || {
            self.known().remove(&new);
            self.delete_object("remove what was deleted while it was sealed anew", &self.names.object(&new))
        };
        // Where nobody can say, it is made again.
        let is_there = self.is_there(&opened.path).inspect_err(|_| {
            if is_new {
                drop(take_back())
            }
        })?;
        if is_new && !is_there {
            take_back()?;
            return Ok(false);
        }
        self.delete_object("remove what was sealed anew", &opened.path)?;
        self.known().remove(name);
        Ok(true)
    }

    fn is_there(&self, path: &Path) -> Result<bool> {
        let (bucket, path) = (self.client.bucket.clone(), path.clone());
        let operation = Operation { doing: "look for an entry", failpoint: "object.head", bytes: 0 };
        let look = async move { bucket.operate(operation, bucket.head(&path)).await };
        Ok(self.client.wait(look)?.is_some())
    }

    fn delete_object(&self, doing: &'static str, path: &Path) -> Result<()> {
        let (bucket, path) = (self.client.bucket.clone(), path.clone());
        let operation = Operation { doing, failpoint: "object.delete", bytes: 0 };
        self.client.wait(async move { bucket.operate(operation, delete(&bucket, &path)).await })
    }

    /// Its name under the first key, and whether nothing was there.
    fn write_sealed(&self, opened: &Opened) -> Result<(Name, bool)> {
        let header = Arc::clone(&opened.layout.header);
        let codec = opened.layout.codec;
        let new = self.name(Space::of(codec), &header.id());
        let entry = self.entry(opened);
        // As they stand there: what is lossy must not lose twice.
        let frames = (0..header.layers).map(|layer| {
            let stored = entry.stored_frame(layer)?;
            let frame = codec.decode(&header, layer, stored.clone())?;
            frame::decode(&frame, &header.key, layer, &header.frame_shape())?;
            Ok(stored)
        });
        let frames = frames.collect::<Result<Vec<Bytes>>>()?;
        let pieces = self.pieces(&header, codec, frames, &new)?;
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let (bucket, path): (Arc<Bucket>, _) = (self.client.bucket.clone(), self.names.object(&new));
        let operation = Operation { doing: "seal an entry anew", failpoint: "object.before_put", bytes };
        let is_new =
            self.client.wait(async move { bucket.operate(operation, create(&bucket, &path, pieces, bytes)).await })?;
        self.learn(new, Known { key: header.key, parent: header.parent, bytes: header.total_bytes() });
        Ok((new, is_new))
    }

    pub(super) fn entry(&self, opened: &Opened) -> ObjectEntry {
        let Opened { path, etag, layout, whole, .. } = opened;
        ObjectEntry::new(self.client.clone(), path.clone(), etag.clone(), layout.clone(), whole.as_ref())
    }
}

/// What is wrong with one entry is no reason to leave the others.
fn left_alone(name: &Name, error: crate::Error) -> Result<bool> {
    if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::InvalidInput) {
        tracing::warn!(%error, "{name} was not sealed anew");
        return Ok(false);
    }
    Err(error)
}
