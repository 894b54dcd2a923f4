//! A bucket in memory that answers reads with other bytes than it was given, as if they were the right ones.

use std::sync::Mutex;

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

/// What an answer is instead of the truth. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub(super) enum Lie {
    /// Nothing is wrong.
    Truth,
    /// A bit of the answer is another.
    Bit(usize),
    /// The range lies elsewhere in the object, and says that it does not.
    OtherRange(u64),
    /// The same range of an object that lay there, or lies elsewhere.
    OtherObject(usize),
    /// Two pieces of the range change places.
    Swapped(usize, usize),
    /// The object is said to end early, and does.
    Cut(u64),
    /// The object is said to be longer, and is, by zeros.
    Longer(u64),
    /// The object is said to be so long, and the range is not.
    Claims(u64),
    /// Bytes too few come.
    Short(usize),
    /// Bytes too many come.
    Long(usize),
    /// An object of another tag, though one was asked for by its own.
    OtherTag,
    /// Some bytes come, and then none.
    Drips(usize),
    /// There is no such object.
    Gone,
    /// The server is at fault.
    Fails,
}

#[derive(Debug)]
pub(super) struct Lying {
    pub inner: InMemory,
    /// What replays are taken from.
    pub others: Mutex<Vec<Bytes>>,
    /// One for each read, from the first on; then the truth.
    lies: Mutex<Vec<Lie>>,
}

impl std::fmt::Display for Lying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lying")
    }
}

impl Lying {
    pub fn new() -> Self {
        Self { inner: InMemory::new(), others: Mutex::default(), lies: Mutex::default() }
    }

    pub fn tell(&self, lies: Vec<Lie>) {
        *self.lies.lock().unwrap() = lies.into_iter().rev().collect();
    }

    /// What the bucket says instead of `whole`: the object's bytes, and how long it says that it is.
    fn told(&self, lie: &Lie, whole: &Bytes, range: &std::ops::Range<u64>) -> (Vec<u8>, u64) {
        let mut bytes = whole.to_vec();
        let window = range.start as usize..range.end.min(bytes.len() as u64) as usize;
        match lie {
            Lie::Bit(at) if !window.is_empty() => bytes[window.start + at % window.len()] ^= 1 << (at % 8),
            Lie::OtherRange(by) => {
                let by = (*by as usize) % bytes.len().max(1);
                bytes.rotate_left(by);
            }
            Lie::OtherObject(which) => {
                let others = self.others.lock().unwrap();
                if !others.is_empty() {
                    bytes = others[which % others.len()].to_vec();
                }
            }
            Lie::Swapped(a, b) if window.len() > 16 => {
                let piece = window.len() / 4;
                let at = |which: &usize| window.start + (which % 4) * piece;
                let (a, b) = (at(a), at(b));
                let first = bytes[a..a + piece].to_vec();
                bytes.copy_within(b..b + piece, a);
                bytes[b..b + piece].copy_from_slice(&first);
            }
            Lie::Cut(to) => bytes.truncate((*to % whole.len().max(1) as u64) as usize),
            Lie::Longer(by) => bytes.resize(bytes.len() + 1 + (by % 1000) as usize, 0),
            _ => {}
        }
        let claimed = if let Lie::Claims(length) = lie { *length } else { bytes.len() as u64 };
        (bytes, claimed)
    }
}

#[async_trait]
impl ObjectStore for Lying {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(asked)) = options.range.clone().filter(|_| !options.head) else {
            return self.inner.get_opts(path, options).await;
        };
        let lie = self.lies.lock().unwrap().pop().unwrap_or(Lie::Truth);
        let gone = || Error::NotFound { path: path.to_string(), source: "a lie".into() };
        match lie {
            Lie::Gone => return Err(gone()),
            Lie::Fails => return Err(Error::Generic { store: "Lying", source: "503 Slow Down".into() }),
            _ => {}
        }
        let mut meta = self.inner.head(path).await?;
        let whole = self.inner.get(path).await?.bytes().await?;
        let (bytes, claimed) = self.told(&lie, &whole, &asked);
        meta.size = claimed;
        if matches!(lie, Lie::OtherTag) {
            meta.e_tag = Some("another".to_owned());
        }
        // Whatever tag was asked for: this bucket does not look.
        let range = asked.start.min(claimed)..asked.end.min(claimed);
        if range.is_empty() {
            return Err(gone());
        }
        let within = |at: u64| at.min(bytes.len() as u64) as usize;
        let mut answer = Bytes::copy_from_slice(&bytes[within(range.start)..within(range.end)]);
        let rest: BoxStream<'static, Result<Bytes>> = match lie {
            Lie::Drips(_) => stream::pending().boxed(),
            Lie::Long(by) => stream::iter([Ok(Bytes::from(vec![7; 1 + by % 100]))]).boxed(),
            _ => stream::empty().boxed(),
        };
        if let Lie::Short(by) | Lie::Drips(by) = lie {
            answer.truncate(answer.len().saturating_sub(1 + by % 100));
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(answer)]).chain(rest).boxed());
        Ok(GetResult { payload, meta, range, attributes: object_store::Attributes::default() })
    }

    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
