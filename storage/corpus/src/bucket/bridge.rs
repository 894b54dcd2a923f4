//! LanceDB on a store of ours: the same bucket, credentials, retries and faults as the KV's.
//!
//! LanceDB has another version of the crate `object_store` than DataFusion, and ours is DataFusion's. Both have the same trait; what passes
//! between them is given the other's types, and nothing else happens here.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use lance_io::object_store::{ObjectStore as LanceStore, ObjectStoreParams, ObjectStoreProvider};
use lance_object_store as lance;
use object_store as ours;
use ours::ObjectStore as _;
use url::Url;

/// The scheme that LanceDB commits by a conditional put for; which store is below, it need not know.
pub(super) const SCHEME: &str = "s3";
/// Reads of one query under way at once, as LanceDB has it for clouds.
const PARALLEL_READS: usize = 64;
/// Times that a download is tried again; the store below retries, too.
const DOWNLOADS: usize = 3;

/// Gives LanceDB the store.
#[derive(Debug)]
pub(super) struct Provider(pub Arc<dyn ours::ObjectStore>);

#[async_trait]
impl ObjectStoreProvider for Provider {
    async fn new_store(&self, base_path: Url, params: &ObjectStoreParams) -> lance_core::Result<LanceStore> {
        let store: Arc<dyn lance::ObjectStore> = Arc::new(Bridge(self.0.clone()));
        let block_size = params.block_size;
        Ok(LanceStore::new(store, base_path, block_size, None, false, true, PARALLEL_READS, DOWNLOADS, None))
    }
}

/// LanceDB's trait over our store.
#[derive(Debug)]
struct Bridge(Arc<dyn ours::ObjectStore>);

impl fmt::Display for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl lance::ObjectStore for Bridge {
    async fn put_opts(
        &self,
        location: &lance::path::Path,
        payload: lance::PutPayload,
        options: lance::PutOptions,
    ) -> lance::Result<lance::PutResult> {
        let mode = match options.mode {
            lance::PutMode::Overwrite => ours::PutMode::Overwrite,
            lance::PutMode::Create => ours::PutMode::Create,
            lance::PutMode::Update(version) => {
                ours::PutMode::Update(ours::UpdateVersion { e_tag: version.e_tag, version: version.version })
            }
        };
        let put = self.0.put_opts(&to_ours(location), to_payload(payload), mode.into()).await;
        put.map(to_put).map_err(to_error)
    }

    async fn put_multipart_opts(
        &self,
        location: &lance::path::Path,
        _: lance::PutMultipartOptions,
    ) -> lance::Result<Box<dyn lance::MultipartUpload>> {
        let upload = self.0.put_multipart_opts(&to_ours(location), ours::PutMultipartOptions::default()).await;
        Ok(Box::new(Upload(upload.map_err(to_error)?)))
    }

    async fn get_opts(
        &self,
        location: &lance::path::Path,
        options: lance::GetOptions,
    ) -> lance::Result<lance::GetResult> {
        let options = ours::GetOptions {
            if_match: options.if_match,
            if_none_match: options.if_none_match,
            if_modified_since: options.if_modified_since,
            if_unmodified_since: options.if_unmodified_since,
            range: options.range.map(|range| match range {
                lance::GetRange::Bounded(range) => ours::GetRange::Bounded(range),
                lance::GetRange::Offset(from) => ours::GetRange::Offset(from),
                lance::GetRange::Suffix(bytes) => ours::GetRange::Suffix(bytes),
            }),
            version: options.version,
            head: options.head,
            ..ours::GetOptions::default()
        };
        let got = self.0.get_opts(&to_ours(location), options).await.map_err(to_error)?;
        let (meta, range) = (to_meta(got.meta.clone()), got.range.clone());
        let stream = got.into_stream().map(|bytes| bytes.map_err(to_error)).boxed();
        Ok(lance::GetResult {
            payload: lance::GetResultPayload::Stream(stream),
            meta,
            range,
            attributes: lance::Attributes::default(),
            extensions: lance::Extensions::default(),
        })
    }

    async fn get_ranges(&self, location: &lance::path::Path, ranges: &[Range<u64>]) -> lance::Result<Vec<Bytes>> {
        self.0.get_ranges(&to_ours(location), ranges).await.map_err(to_error)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, lance::Result<lance::path::Path>>,
    ) -> BoxStream<'static, lance::Result<lance::path::Path>> {
        let named = locations.map(|location| match location {
            Ok(location) => Ok(to_ours(&location)),
            Err(error) => Err(ours::Error::Generic { store: "LanceDB", source: Box::new(error) }),
        });
        self.0.delete_stream(named.boxed()).map(|deleted| deleted.map(to_path).map_err(to_error)).boxed()
    }

    fn list(&self, prefix: Option<&lance::path::Path>) -> BoxStream<'static, lance::Result<lance::ObjectMeta>> {
        let listed = self.0.list(prefix.map(to_ours).as_ref());
        listed.map(|meta| meta.map(to_meta).map_err(to_error)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&lance::path::Path>,
        offset: &lance::path::Path,
    ) -> BoxStream<'static, lance::Result<lance::ObjectMeta>> {
        let listed = self.0.list_with_offset(prefix.map(to_ours).as_ref(), &to_ours(offset));
        listed.map(|meta| meta.map(to_meta).map_err(to_error)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&lance::path::Path>) -> lance::Result<lance::ListResult> {
        let listed = self.0.list_with_delimiter(prefix.map(to_ours).as_ref()).await.map_err(to_error)?;
        Ok(lance::ListResult {
            common_prefixes: listed.common_prefixes.into_iter().map(to_path).collect(),
            objects: listed.objects.into_iter().map(to_meta).collect(),
            extensions: lance::Extensions::default(),
        })
    }

    async fn copy_opts(
        &self,
        from: &lance::path::Path,
        to: &lance::path::Path,
        options: lance::CopyOptions,
    ) -> lance::Result<()> {
        let mode = match options.mode {
            lance::CopyMode::Overwrite => ours::CopyMode::Overwrite,
            lance::CopyMode::Create => ours::CopyMode::Create,
        };
        let options = ours::CopyOptions { mode, ..ours::CopyOptions::default() };
        self.0.copy_opts(&to_ours(from), &to_ours(to), options).await.map_err(to_error)
    }
}

/// An upload in parts.
#[derive(Debug)]
struct Upload(Box<dyn ours::MultipartUpload>);

#[async_trait]
impl lance::MultipartUpload for Upload {
    fn put_part(&mut self, data: lance::PutPayload) -> lance::UploadPart {
        let part = self.0.put_part(to_payload(data));
        Box::pin(async move { part.await.map_err(to_error) })
    }

    async fn complete(&mut self) -> lance::Result<lance::PutResult> {
        self.0.complete().await.map(to_put).map_err(to_error)
    }

    async fn abort(&mut self) -> lance::Result<()> {
        self.0.abort().await.map_err(to_error)
    }
}

fn to_ours(path: &lance::path::Path) -> ours::path::Path {
    // Its parts are encoded already, in the same way.
    ours::path::Path::parse(path.as_ref()).unwrap_or_else(|_| ours::path::Path::from(path.as_ref()))
}

fn to_path(path: ours::path::Path) -> lance::path::Path {
    lance::path::Path::parse(path.as_ref()).unwrap_or_else(|_| lance::path::Path::from(path.as_ref()))
}

fn to_payload(payload: lance::PutPayload) -> ours::PutPayload {
    ours::PutPayload::from_iter(payload)
}

fn to_put(put: ours::PutResult) -> lance::PutResult {
    lance::PutResult { e_tag: put.e_tag, version: put.version, extensions: lance::Extensions::default() }
}

fn to_meta(meta: ours::ObjectMeta) -> lance::ObjectMeta {
    lance::ObjectMeta {
        location: to_path(meta.location),
        last_modified: meta.last_modified,
        size: meta.size,
        e_tag: meta.e_tag,
        version: meta.version,
    }
}

fn to_error(error: ours::Error) -> lance::Error {
    use lance::Error as Theirs;
    use ours::Error as Ours;
    match error {
        Ours::NotFound { path, source } => Theirs::NotFound { path, source },
        Ours::AlreadyExists { path, source } => Theirs::AlreadyExists { path, source },
        Ours::Precondition { path, source } => Theirs::Precondition { path, source },
        Ours::NotModified { path, source } => Theirs::NotModified { path, source },
        Ours::PermissionDenied { path, source } => Theirs::PermissionDenied { path, source },
        Ours::Unauthenticated { path, source } => Theirs::Unauthenticated { path, source },
        Ours::NotSupported { source } => Theirs::NotSupported { source },
        error => Theirs::Generic { store: "bucket", source: Box::new(error) },
    }
}
