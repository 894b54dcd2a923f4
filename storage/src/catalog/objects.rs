//! Objects that are to leave the bucket, and entries that are to come there, for when it can be reached.

use std::collections::HashSet;

use super::records::Kept;
use super::{Catalog, sled_error};
use crate::Result;
use crate::entry::EntryId;
use crate::key::{Fingerprint, KvKey, SegmentDigest};

/// Where the parts of a row's key end.
const MODEL_END: usize = 32;
const SEGMENT_END: usize = 48;
const ROW_BYTES: usize = 80;

impl Catalog {
    /// Notes that these entries of these models are to be removed from object storage; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn add_object_removals(&self, named: &HashSet<(Fingerprint, EntryId)>) -> Result<()> {
        if named.is_empty() {
            return Ok(());
        }
        let rows = named.iter().map(|name| (to_row(name).to_vec(), Some(Vec::new()))).collect();
        self.write(&mut self.changing(), Kept::ObjectRemovals, rows, true)
    }

    /// What is noted.
    ///
    /// # Errors
    /// As sled says.
    pub fn object_removals(&self) -> Result<HashSet<(Fingerprint, EntryId)>> {
        Ok(self.object_removals.all().iter().filter_map(|(row, _)| from_row(row)).collect())
    }

    /// Forgets what was removed. Not synced: what is removed twice is removed.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_object_removals(&self, named: &HashSet<(Fingerprint, EntryId)>) -> Result<()> {
        let rows = named.iter().map(|name| (to_row(name).to_vec(), None)).collect();
        self.write(&mut self.changing(), Kept::ObjectRemovals, rows, false)
    }
}

impl Catalog {
    /// Notes that the bucket is owed an entry of this model. Not synced: what is lost is computed and uploaded again some day.
    ///
    /// # Errors
    /// As sled says.
    pub fn add_upload(&self, model: &Fingerprint, id: &EntryId) -> Result<()> {
        self.uploads.insert(to_row(&(*model, *id)), &[]).map(drop).map_err(sled_error)
    }

    /// What the bucket is owed of this model.
    ///
    /// # Errors
    /// As sled says.
    pub fn uploads(&self, model: &Fingerprint) -> Result<Vec<EntryId>> {
        let rows = self.uploads.scan_prefix(model.0).keys();
        let read = rows.filter_map(|row| row.map(|row| from_row(&row)).map_err(sled_error).transpose());
        read.map(|row| row.map(|(_, id)| id)).collect()
    }

    /// Forgets what it has, or is not to have any more.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_upload(&self, model: &Fingerprint, id: &EntryId) -> Result<()> {
        self.uploads.remove(to_row(&(*model, *id))).map(drop).map_err(sled_error)
    }
}

fn to_row((model, id): &(Fingerprint, EntryId)) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..MODEL_END].copy_from_slice(&model.0);
    row[MODEL_END..SEGMENT_END].copy_from_slice(&id.segment.0);
    row[SEGMENT_END..].copy_from_slice(&id.key.0);
    row
}

/// A row that is not ours counts as none.
fn from_row(row: &[u8]) -> Option<(Fingerprint, EntryId)> {
    let model = Fingerprint(row.get(..MODEL_END)?.try_into().ok()?);
    let segment = SegmentDigest(row.get(MODEL_END..SEGMENT_END)?.try_into().ok()?);
    let key = KvKey(row.get(SEGMENT_END..)?.try_into().ok()?);
    Some((model, EntryId { key, segment }))
}
