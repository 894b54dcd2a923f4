//! The requests that make up an operation on one object.

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutPayload};

use super::client::{Bucket, fault};
use super::layout::{self, Layout, Name};
use crate::{Error, ErrorKind, Result};

/// The first read of an object: the header of an entry of up to about 16,000 tokens.
pub(super) const FIRST_READ_BYTES: u64 = 64 << 10;
/// A larger object is looked for before it is sent, because the bucket refuses one that is there after the sending only.
const LOOK_FIRST_BYTES: u64 = 1 << 20;

/// A header that was read.
pub(super) struct Opened {
    pub path: Path,
    pub etag: Option<String>,
    pub layout: Layout,
    /// The object's bytes, if they all came with the header.
    pub whole: Option<Bytes>,
}

/// Reads and verifies a header; `None`: there is no such object.
pub(super) async fn read_header(bucket: &Bucket, path: Path, name: &Name) -> Result<Option<Opened>> {
    let opened = async || -> Result<Opened> {
        let (meta, start) = bucket.get(&path, None, 0..FIRST_READ_BYTES).await?;
        let promise = layout::promise(&start, meta.size, &name.id.key)?;
        let have = start.len() as u64;
        let layout = if promise.header_bytes <= have {
            layout::decode(&start[..promise.header_bytes as usize], &promise, name)?
        } else {
            let (_, rest) = bucket.get(&path, meta.e_tag.as_deref(), have..promise.header_bytes).await?;
            let mut header = BytesMut::from(&start[..]);
            header.extend_from_slice(&rest);
            layout::decode(&header, &promise, name)?
        };
        let whole = (have == meta.size).then_some(start);
        Ok(Opened { path: path.clone(), etag: meta.e_tag, layout, whole })
    };
    match opened().await {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
