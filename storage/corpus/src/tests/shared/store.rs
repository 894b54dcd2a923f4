//! A bucket in memory that breaks its promises as it is told to.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicI64;

use async_trait::async_trait;
use futures::StreamExt;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use ragstone_env::lock::locked;

use super::*;

#[derive(Debug, Default)]
pub(super) struct Shaky {
    inner: InMemory,
    /// Takes a create-only put for any other.
    pub ignores_create: AtomicBool,
    /// Takes a put that is bound to a version for any other.
    pub ignores_update: AtomicBool,
    /// Has versions and no ETags, as Google's client does.
    pub is_googles: AtomicBool,
    /// Every so many puts are done, and fail.
    pub loses_every: AtomicU64,
    puts: AtomicU64,
    pub lost: AtomicU64,
    /// Nothing is answered.
    pub is_down: AtomicBool,
    /// So many gets are not answered, from now on.
    pub refused_gets: AtomicU64,
    /// How far its clock is ahead.
    pub ahead_ms: AtomicI64,
    /// How far it was when an object was written.
    written: Mutex<HashMap<Name, i64>>,
}

impl fmt::Display for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shaky")
    }
}

impl Shaky {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub async fn names(&self) -> Vec<String> {
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap();
        let names = all.into_iter().map(|meta| meta.location.to_string());
        names.filter(|name| !name.contains("/clock/")).collect()
    }

    pub async fn has_text(&self, text: &str) -> bool {
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap();
        for meta in all {
            let bytes = self.inner.get(&meta.location).await.unwrap().bytes().await.unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                return true;
            }
        }
        false
    }

    fn answers(&self) -> Result<()> {
        match self.is_down.load(Ordering::Relaxed) {
            true => Err(Error::Generic { store: "Shaky", source: "503 Slow Down".into() }),
            false => Ok(()),
        }
    }

    fn at_its_time(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let ahead_ms = locked(&self.written).get(&meta.location).copied().unwrap_or_default();
        meta.last_modified += std::time::Duration::from_millis(ahead_ms.unsigned_abs());
        meta
    }
}

#[async_trait]
impl ObjectStore for Shaky {
    async fn put_opts(&self, path: &Name, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        self.answers()?;
        if self.ignores_create.load(Ordering::Relaxed) && options.mode == PutMode::Create {
            options.mode = PutMode::Overwrite;
        }
        if let PutMode::Update(version) = &mut options.mode {
            if self.is_googles.load(Ordering::Relaxed) {
                let Some(generation) = version.version.take() else {
                    return Err(Error::Generic {
                        store: "Shaky",
                        source: "Version required for conditional update".into(),
                    });
                };
                version.e_tag = Some(generation);
            }
            if self.ignores_update.load(Ordering::Relaxed) {
                options.mode = PutMode::Overwrite;
            }
        }
        let put = self.inner.put_opts(path, payload, options).await;
        if put.is_ok() {
            locked(&self.written).insert(path.clone(), self.ahead_ms.load(Ordering::Relaxed));
        }
        let (every, number) = (self.loses_every.load(Ordering::Relaxed), self.puts.fetch_add(1, Ordering::Relaxed));
        if every > 0 && number % every == 0 {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Generic { store: "Shaky", source: "connection reset by peer".into() });
        }
        put
    }

    async fn put_multipart_opts(&self, path: &Name, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.answers()?;
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Name, options: GetOptions) -> Result<GetResult> {
        self.answers()?;
        let refused = self.refused_gets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if refused.is_ok() {
            return Err(Error::Generic { store: "Shaky", source: "503 Slow Down".into() });
        }
        let mut got = self.inner.get_opts(path, options).await?;
        got.meta = self.at_its_time(got.meta);
        if self.is_googles.load(Ordering::Relaxed) {
            got.meta.version = got.meta.e_tag.take();
        }
        Ok(got)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Name>>) -> BoxStream<'static, Result<Name>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Name>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(error) = self.answers() {
            return futures::stream::iter([Err(error)]).boxed();
        }
        let all = futures::executor::block_on(self.inner.list(prefix).collect::<Vec<_>>());
        let all: Vec<_> = all.into_iter().map(|meta| meta.map(|meta| self.at_its_time(meta))).collect();
        futures::stream::iter(all).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Name>) -> Result<ListResult> {
        self.answers()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Name, to: &Name, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
