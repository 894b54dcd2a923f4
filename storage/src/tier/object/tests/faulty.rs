//! A bucket in memory that fails as it is told to, and counts what is asked of it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A server error, or throttling: they differ in their text only by the time they come here.
    Failing,
    /// No answer, ever.
    Hanging,
    /// A put is done and its answer lost.
    ResetAfterPut,
    /// The last byte of a read does not come.
    ShortRead,
    /// A read does not end.
    Endless,
    /// An answer to a range is that of another.
    OtherRange,
    /// Credentials are no longer valid.
    Denied,
    /// An object is deleted once its first bytes were read.
    GoneAfterHeader,
    /// An object is written anew, with other bytes, once its first bytes were read.
    ReplacedAfterHeader,
    /// Deletions fail, nothing else.
    Undeletable,
    /// The server finds nothing, not even the bucket.
    NoBucket,
}

#[derive(Debug)]
pub(crate) struct Faulty {
    pub inner: InMemory,
    fault: Mutex<Option<Fault>>,
    gets: Mutex<Vec<Range<u64>>>,
    pub requests: AtomicU64,
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

fn failed(why: &'static str) -> Error {
    Error::Generic { store: "Faulty", source: why.into() }
}

impl Faulty {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            fault: Mutex::new(None),
            gets: Mutex::default(),
            requests: AtomicU64::new(0),
        })
    }

    pub fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
    }

    /// The ranges that were read since the last call.
    pub fn take_gets(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.gets.lock().unwrap())
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// What strikes any request.
    async fn strike(&self, path: &Path) -> Result<Option<Fault>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some(Fault::Failing) => Err(failed("503 Slow Down")),
            Some(Fault::Hanging) => std::future::pending().await,
            Some(Fault::Denied) => {
                Err(Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() })
            }
            Some(Fault::NoBucket) => Err(Error::NotFound { path: path.to_string(), source: "NoSuchBucket".into() }),
            fault => Ok(fault),
        }
    }

    async fn after_header(&self, fault: Option<Fault>, path: &Path) -> Result<()> {
        match fault {
            Some(Fault::GoneAfterHeader) => self.inner.delete(path).await,
            Some(Fault::ReplacedAfterHeader) => {
                let size = self.inner.head(path).await?.size as usize;
                self.inner.put(path, vec![0x5A; size].into()).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.strike(path).await?;
        let put = self.inner.put_opts(path, payload, options).await;
        if fault == Some(Fault::ResetAfterPut) {
            return Err(failed("connection reset by peer"));
        }
        put
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.strike(path).await?;
        let is_read = !options.head;
        if let (true, Some(GetRange::Bounded(range))) = (is_read, &options.range) {
            self.gets.lock().unwrap().push(range.clone());
        }
        let mut options = options;
        if let (Some(Fault::OtherRange), true, Some(GetRange::Bounded(range))) = (fault, is_read, &mut options.range) {
            *range = range.start + 1..range.end + 1;
        }
        let got = self.inner.get_opts(path, options).await?;
        if !is_read {
            return Ok(got);
        }
        self.after_header(fault, path).await?;
        let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
        let changed = |stream| GetResult { payload: GetResultPayload::Stream(stream), meta, range, attributes };
        Ok(match fault {
            Some(Fault::ShortRead) => {
                let bytes = got.bytes().await?;
                let short = bytes.slice(..bytes.len() - 1);
                changed(stream::iter([Ok(short)]).boxed())
            }
            Some(Fault::Endless) => changed(stream::repeat_with(|| Ok(Bytes::from(vec![7; 1 << 20]))).boxed()),
            _ => got,
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match *self.fault.lock().unwrap() {
            Some(Fault::Failing | Fault::Denied | Fault::NoBucket) => {
                stream::iter([Err(failed("503 Slow Down"))]).boxed()
            }
            Some(Fault::Hanging) => stream::pending().boxed(),
            _ => self.inner.list(prefix),
        }
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match *self.fault.lock().unwrap() {
            Some(Fault::Failing | Fault::Denied | Fault::Undeletable) => {
                paths.map(|_| Err(failed("503 Slow Down"))).boxed()
            }
            Some(Fault::Hanging) => stream::pending().boxed(),
            _ => self.inner.delete_stream(paths),
        }
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(failed("not used"))
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(failed("not used"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(failed("not used"))
    }
}
