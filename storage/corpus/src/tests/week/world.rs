//! A world without clocks and threads: tasks that wait for simulated time, and a bucket that takes some and fails as the seed says.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use ragstone_env::lock::locked;
use std::sync::Mutex;

use super::*;

/// When the world begins, in milliseconds since 1970.
pub const BEGIN_MS: u64 = 1_700_000_000_000;
/// The longest that a listing may lack what was just written.
pub const LIST_LAGS_MS: u64 = 2000;

/// What goes wrong, each in so many of a million requests.
#[derive(Debug, Clone, Copy)]
pub struct Odds {
    /// It is not done, and that is said.
    pub refused: u64,
    /// It is done, and the answer is lost.
    pub lost: u64,
    /// It takes seconds, but less than the deadline.
    pub slow: u64,
    /// What was written is not listed at once.
    pub lags: u64,
}

pub const ODDS: Odds = Odds { refused: 10_000, lost: 15_000, slow: 3000, lags: 100_000 };

/// Simulated time, chance and the bucket's objects. Clones share them.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    random: Env,
    now_ms: AtomicU64,
    waiting: Mutex<BinaryHeap<Reverse<(u64, u64)>>>,
    wakers: Mutex<BTreeMap<u64, Waker>>,
    next: AtomicU64,
    objects: Mutex<BTreeMap<String, Kept>>,
    odds: Odds,
    is_down: AtomicBool,
    pub lost: AtomicU64,
}

#[derive(Clone)]
struct Kept {
    bytes: Bytes,
    tag: u64,
    written_ms: u64,
    listed_ms: u64,
}

impl World {
    pub fn new(seed: u64, odds: Odds) -> Self {
        Self(Arc::new(Inner {
            random: Env::seeded(seed, 0),
            now_ms: AtomicU64::new(BEGIN_MS),
            waiting: Mutex::default(),
            wakers: Mutex::default(),
            next: AtomicU64::new(0),
            objects: Mutex::default(),
            odds,
            is_down: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        }))
    }

    pub fn now_ms(&self) -> u64 {
        self.0.now_ms.load(Ordering::Relaxed)
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.0.random.random_u64() % bound
    }

    fn happens(&self, of_a_million: u64) -> bool {
        self.below(1_000_000) < of_a_million
    }

    /// Answers that were lost so far.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    pub fn set_down(&self, is_down: bool) {
        self.0.is_down.store(is_down, Ordering::Relaxed);
    }

    pub fn sleep(&self, ms: u64) -> Sleep {
        Sleep { world: self.clone(), until_ms: self.now_ms() + ms, id: None }
    }

    /// Moves time to the next moment for which somebody waits; by how much. `None`: nobody waits.
    fn advance(&self) -> Option<u64> {
        let Reverse((at_ms, id)) = locked(&self.0.waiting).pop()?;
        let past = at_ms.saturating_sub(self.now_ms());
        self.0.now_ms.fetch_add(past, Ordering::Relaxed);
        if let Some(waker) = locked(&self.0.wakers).remove(&id) {
            waker.wake();
        }
        Some(past)
    }

    /// What a request takes before it is done, or after.
    async fn takes(&self) {
        let ms = if self.happens(self.0.odds.slow) { 500 + self.below(4000) } else { 2 + self.below(60) };
        self.sleep(ms).await;
    }

    /// On its way to the bucket.
    async fn goes(&self) -> Result<()> {
        self.takes().await;
        if self.0.is_down.load(Ordering::Relaxed) || self.happens(self.0.odds.refused) {
            return Err(Error::Generic { store: "world", source: "503 Slow Down".into() });
        }
        Ok(())
    }

    /// On its way back.
    async fn comes(&self) -> Result<()> {
        self.takes().await;
        if self.happens(self.0.odds.lost) {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Generic { store: "world", source: "connection reset by peer".into() });
        }
        Ok(())
    }

    fn put(&self, path: &Name, payload: PutPayload, mode: &PutMode) -> Result<PutResult> {
        let mut objects = locked(&self.0.objects);
        let name = path.to_string();
        let there = objects.get(&name);
        match mode {
            PutMode::Create if there.is_some() => {
                return Err(Error::AlreadyExists { path: name, source: "412".into() });
            }
            PutMode::Update(version) if there.map(|kept| kept.tag.to_string()) != version.e_tag => {
                return Err(Error::Precondition { path: name, source: "412".into() });
            }
            _ => {}
        }
        let tag = self.0.next.fetch_add(1, Ordering::Relaxed);
        // What tables are made of is listed at once: LanceDB asks that of a store, and every store has it today.
        let may_lag = !name.starts_with(crate::bucket::TABLES) && self.happens(self.0.odds.lags);
        let now_ms = self.now_ms();
        let listed_ms = if may_lag { now_ms + self.below(LIST_LAGS_MS) } else { now_ms };
        objects.insert(name, Kept { bytes: payload.into(), tag, written_ms: now_ms, listed_ms });
        Ok(PutResult { e_tag: Some(tag.to_string()), version: None })
    }

    /// What is listed below a prefix behind a name.
    fn list_behind(&self, prefix: Option<&Name>, name: String) -> BoxStream<'static, Result<ObjectMeta>> {
        let (world, prefix) = (self.clone(), prefix.map(|prefix| format!("{prefix}/")).unwrap_or_default());
        let listing = async move {
            if let Err(error) = world.goes().await {
                return vec![Err(error)];
            }
            let now_ms = world.now_ms();
            let listed: Vec<_> = locked(&world.0.objects)
                .range(prefix.clone().max(name.clone())..)
                .take_while(|(other, _)| other.starts_with(&prefix))
                .filter(|(other, kept)| **other != name && kept.listed_ms <= now_ms)
                .map(|(other, kept)| Ok(world.meta(other, kept)))
                .collect();
            match world.comes().await {
                Ok(()) => listed,
                Err(error) => vec![Err(error)],
            }
        };
        futures::stream::once(listing).flat_map(futures::stream::iter).boxed()
    }

    fn meta(&self, name: &str, kept: &Kept) -> ObjectMeta {
        ObjectMeta {
            location: Name::from(name),
            last_modified: (UNIX_EPOCH + Duration::from_millis(kept.written_ms)).into(),
            size: kept.bytes.len() as u64,
            e_tag: Some(kept.tag.to_string()),
            version: None,
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

#[async_trait]
impl ObjectStore for World {
    async fn put_opts(&self, path: &Name, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.goes().await?;
        let put = self.put(path, payload, &options.mode);
        self.comes().await?;
        put
    }

    async fn put_multipart_opts(&self, _: &Name, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".into(), implementer: "World".into() })
    }

    async fn get_opts(&self, path: &Name, _: GetOptions) -> Result<GetResult> {
        self.goes().await?;
        let name = path.to_string();
        let kept = locked(&self.0.objects).get(&name).cloned();
        self.comes().await?;
        let Some(kept) = kept else { return Err(Error::NotFound { path: name, source: "404".into() }) };
        let (meta, bytes) = (self.meta(&name, &kept), kept.bytes);
        let range = 0..meta.size;
        let payload = GetResultPayload::Stream(futures::stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes: object_store::Attributes::default() })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Name>>) -> BoxStream<'static, Result<Name>> {
        let world = self.clone();
        let one = move |path: Result<Name>| {
            let world = world.clone();
            async move {
                let path = path?;
                world.goes().await?;
                locked(&world.0.objects).remove(path.as_ref());
                world.comes().await?;
                Ok(path)
            }
        };
        paths.then(one).boxed()
    }

    fn list(&self, prefix: Option<&Name>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_behind(prefix, String::new())
    }

    fn list_with_offset(&self, prefix: Option<&Name>, offset: &Name) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_behind(prefix, offset.to_string())
    }

    async fn list_with_delimiter(&self, _: Option<&Name>) -> Result<ListResult> {
        Err(Error::NotImplemented { operation: "delimiter".into(), implementer: "World".into() })
    }

    async fn copy_opts(&self, _: &Name, _: &Name, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".into(), implementer: "World".into() })
    }
}

/// Waits for simulated time.
pub struct Sleep {
    world: World,
    until_ms: u64,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now_ms() >= self.until_ms {
            return Poll::Ready(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = self.world.0.next.fetch_add(1, Ordering::Relaxed);
                locked(&self.world.0.waiting).push(Reverse((self.until_ms, id)));
                self.id = Some(id);
                id
            }
        };
        locked(&self.world.0.wakers).insert(id, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            locked(&self.world.0.wakers).remove(&id);
        }
    }
}

struct Awake(AtomicBool);

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task, which may be dropped at any of its awaits, or not be polled for a while.
pub struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    awake: Arc<Awake>,
    pub asleep_until_ms: u64,
}

impl Task {
    pub fn new(future: impl Future<Output = ()> + 'static) -> Self {
        Self { future: Box::pin(future), awake: Arc::new(Awake(AtomicBool::new(true))), asleep_until_ms: 0 }
    }

    /// Goes as far as it can; whether it has ended.
    fn poll(&mut self) -> bool {
        let waker = Waker::from(self.awake.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }

    fn is_due(&self, now_ms: u64) -> bool {
        self.asleep_until_ms <= now_ms && self.awake.0.swap(false, Ordering::Relaxed)
    }
}

/// Runs tasks until the world is so old. `moves` is told of every step of time, and may drop, add and stop tasks.
pub fn run(
    world: &World,
    until_ms: u64,
    tasks: &mut Vec<Option<Task>>,
    moves: &mut dyn FnMut(u64, &mut Vec<Option<Task>>),
) {
    while world.now_ms() < until_ms {
        let now_ms = world.now_ms();
        let mut polled = false;
        for slot in tasks.iter_mut() {
            let Some(task) = slot else { continue };
            if task.is_due(now_ms) {
                polled = true;
                if task.poll() {
                    *slot = None;
                }
            }
        }
        if polled {
            continue;
        }
        let Some(past_ms) = world.advance() else { return };
        moves(past_ms, tasks);
    }
}
