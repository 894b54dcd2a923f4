//! The requests that make up an operation on one object.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutPayload};

use super::client::{Bucket, fault};
use super::layout::{self, Layout};
use super::names::{Name, Names};
use super::sealed;
use crate::cost::Costs;
use crate::entry::EntryHeader;
use crate::{Error, ErrorKind, Result};

/// The first read of an object: the header of an entry of up to about 16,000 tokens.
pub(super) const FIRST_READ_BYTES: u64 = 64 << 10;
/// A larger object is looked for before it is sent, because the bucket refuses one that is there after the sending only.
const LOOK_FIRST_BYTES: u64 = 1 << 20;

/// Of what a bucket says of another node's computing: no node that serves anybody is slower, in microseconds a token.
const MOST_US_PER_TOKEN: u64 = 1_000_000;
/// How many times slower than this machine another may have been, once this one was measured.
const MOST_TIMES_SLOWER: f64 = 8.0;

/// What computing an entry took, as far as a bucket is believed: an entry that says it took for ever would never leave host memory and
/// disk for another one. `own_us`: what it takes here, where that was measured. Pure.
fn believed_us(said_us: u64, tokens: usize, own_us: Option<f64>) -> u64 {
    let most = MOST_US_PER_TOKEN.saturating_mul(tokens as u64);
    said_us.min(own_us.map_or(most, |own_us| (own_us * MOST_TIMES_SLOWER) as u64))
}

/// A header that was read.
pub(super) struct Opened {
    /// Under which it lies.
    pub name: Name,
    pub path: Path,
    pub etag: Option<String>,
    pub layout: Layout,
    /// The object's bytes, if they all came with the header.
    pub whole: Option<Bytes>,
}

/// Reads and verifies a header; `None`: there is no such object.
pub(super) async fn read_header(bucket: &Bucket, names: &Names, name: &Name) -> Result<Option<Opened>> {
    match open(bucket, names, name).await {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bucket.refused(name.room.key.is_some(), error)),
    }
}

async fn open(bucket: &Bucket, names: &Names, name: &Name) -> Result<Opened> {
    let path = names.object(name);
    let (meta, start) = bucket.get(&path, None, 0..FIRST_READ_BYTES).await?;
    let is_sealed = name.room.key.is_some();
    let promise = if is_sealed {
        sealed::promise(&start, meta.size, (names, name))?
    } else {
        layout::promise(&start, meta.size, &name.id.key)?
    };
    let have = start.len() as u64;
    let header = if promise.header_bytes <= have {
        start.slice(..promise.header_bytes as usize)
    } else {
        let (_, rest) = bucket.get(&path, meta.e_tag.as_deref(), have..promise.header_bytes).await?;
        let mut header = BytesMut::from(&start[..]);
        header.extend_from_slice(&rest);
        header.freeze()
    };
    let layout = match is_sealed {
        true => sealed::decode(&header, &promise, (names, name))?,
        false => layout::decode(&header, &promise, name)?,
    };
    let whole = (have == meta.size).then_some(start);
    let layout = believed(bucket, layout);
    Ok(Opened { name: *name, path, etag: meta.e_tag, layout, whole })
}

/// As [`read_header`], from the first of these names that is an entry's.
///
/// # Errors
/// The first, if none is.
pub(super) async fn read_first(bucket: &Bucket, names: &Names, asked: &[Name]) -> Result<Option<Opened>> {
    // At once: while a key is changed, an entry may lie under either.
    let all = futures::future::join_all(asked.iter().map(|name| read_header(bucket, names, name))).await;
    let mut failed = None;
    for opened in all {
        match opened {
            Ok(Some(opened)) => return Ok(Some(opened)),
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// What a bucket says of an entry and no checksum covers, as far as it can be true: what it took, and when that was.
fn believed(bucket: &Bucket, mut layout: Layout) -> Layout {
    let model = bucket.costs.get().map(Costs::model).filter(|model| model.prefill.is_measured);
    let tokens = layout.header.tokens.len();
    let own_us = model.map(|model| model.prefill.prefill_us(0.0, tokens as f64));
    let compute_us = believed_us(layout.header.compute_us, tokens, own_us);
    let created_unix_ms = layout.header.created_unix_ms.min(bucket.env.now_unix_ms());
    if (compute_us, created_unix_ms) != (layout.header.compute_us, layout.header.created_unix_ms) {
        layout.header = Arc::new(EntryHeader { compute_us, created_unix_ms, ..(*layout.header).clone() });
    }
    layout
}

/// Creates an object; false if there is one of that name.
pub(super) async fn create(bucket: &Bucket, path: &Path, pieces: Vec<Bytes>, bytes: u64) -> Result<bool> {
    if bytes > LOOK_FIRST_BYTES && bucket.head(path).await?.is_some() {
        return Ok(false);
    }
    let put = bucket.store.put_opts(path, PutPayload::from_iter(pieces), PutMode::Create.into()).await;
    let error = match put {
        Ok(_) => match bucket.env.fail_point("object.after_put") {
            Ok(()) => return Ok(true),
            Err(error) => error,
        },
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => return Ok(false),
        // Not the object is missing but what is to hold it.
        Err(error @ object_store::Error::NotFound { .. }) => {
            let message = format!("object storage: write object {path}: {error}; does the bucket exist?");
            return Err(Error::new(ErrorKind::Unavailable, message).with_source(error));
        }
        Err(error) => fault("write", path, error),
    };
    // The connection may have failed after the put was done. The name says what the object holds.
    match bucket.head(path).await {
        Ok(Some(meta)) if meta.size == bytes => Ok(true),
        _ => Err(error),
    }
}

pub(super) async fn delete(bucket: &Bucket, path: &Path) -> Result<()> {
    match bucket.store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(fault("delete", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_believed_as_far_as_computing_takes() {
        assert_eq!(believed_us(1_500, 2, None), 1_500);
        assert_eq!(believed_us(u64::MAX, 2, None), 2_000_000);
        assert_eq!(believed_us(u64::MAX, usize::MAX, None), u64::MAX);
        assert_eq!((believed_us(u64::MAX, 2, Some(100.0)), believed_us(700, 2, Some(100.0))), (800, 700));
        assert_eq!(believed_us(0, 0, None), 0);
    }
}
