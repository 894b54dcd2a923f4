//! A bucket on loopback, as slow as asked for: as much of S3 as entries need, over HTTP, so that what is measured passes the
//! client that reads real buckets. It begins empty, is in memory, and nobody has to install anything.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::body::SizedStream;
use actix_web::dev::ServerHandle;
use actix_web::http::header;
use actix_web::web::{self, Bytes};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use ragstone_env::Stopwatch;
use ragstone_storage::tier::object::{ConnectionOptions, ObjectOptions};

use crate::error::{Error, Result};

/// An entry of 32,768 tokens of the shape that is measured fits.
const MOST_OBJECT_BYTES: usize = 1 << 30;
/// Answers that go out at the same time share the bandwidth by pieces of so many bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Timers are coarse: a piece that went out this much too late does not delay the next one.
const SLACK_S: f64 = 0.005;
/// Of all objects: nothing here replaces one.
const ETAG: &str = "\"1\"";

/// How slow a bucket is. Only reading is: filling it is not measured.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Before each answer.
    pub latency: Duration,
    /// Of all answers together, in bytes a second.
    pub bytes_per_s: f64,
}

/// The server. It ends with [`stop`](Self::stop).
pub struct Bucket {
    address: SocketAddr,
    server: ServerHandle,
}

struct Shared {
    objects: Mutex<HashMap<String, Bytes>>,
    /// `None`: as fast as the machine is.
    pace: Option<Pace>,
    clock: Stopwatch,
    /// When the line will have carried all that was promised to it, in seconds of the clock.
    free_at_s: Mutex<f64>,
}

impl Bucket {
    /// Starts a bucket on a free port. In a runtime of tokio's.
    ///
    /// # Errors
    /// `Internal` if there is no port, or no thread.
    pub fn start(pace: Option<Pace>) -> Result<Self> {
        let failed = |error: std::io::Error| Error::internal(format!("the benchmark's bucket cannot start: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (objects, clock, free_at_s) = (Mutex::default(), Stopwatch::start(), Mutex::new(0.0));
        let shared = web::Data::new(Shared { objects, pace, clock, free_at_s });
        let app = move || {
            let object = web::resource("/bucket/{name:.*}")
                .route(web::put().to(put))
                .route(web::get().to(get))
                .route(web::head().to(get));
            App::new().app_data(shared.clone()).app_data(web::PayloadConfig::new(MOST_OBJECT_BYTES)).service(object)
        };
        let server = HttpServer::new(app).workers(1).disable_signals().shutdown_timeout(0);
        let server = server.listen(listener).map_err(failed)?.run();
        let handle = server.handle();
        tokio::spawn(server);
        Ok(Self { address, server: handle })
    }

    /// What a tier is opened with.
    pub fn options(&self) -> ObjectOptions {
        let endpoint = format!("http://{}", self.address);
        let given = [("endpoint", endpoint.as_str()), ("region", "us-east-1"), ("allow_http", "true")];
        let given = given.into_iter().chain([("skip_signature", "true"), ("virtual_hosted_style_request", "false")]);
        let given: BTreeMap<_, _> = given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        ObjectOptions { options: ConnectionOptions(given), ..ObjectOptions::new("s3://bucket/kv") }
    }

    /// Closes every connection.
    pub async fn stop(self) {
        self.server.stop(false).await;
    }
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, HashMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a piece takes that is given to the line now, behind what others gave it.
    fn carry(&self, pace: Pace, bytes: usize) -> Duration {
        let now_s = self.clock.elapsed_s();
        let mut free_at_s = self.free_at_s.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at_s = free_at_s.max(now_s - SLACK_S) + bytes as f64 / pace.bytes_per_s;
        Duration::from_secs_f64((*free_at_s - now_s).max(0.0))
    }
}

async fn put(shared: web::Data<Shared>, name: web::Path<String>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let mut objects = shared.objects();
    if objects.contains_key(name.as_str()) && request.headers().contains_key(header::IF_NONE_MATCH) {
        return HttpResponse::PreconditionFailed().finish();
    }
    objects.insert(name.into_inner(), body);
    HttpResponse::Ok().insert_header((header::ETAG, ETAG)).finish()
}

/// Also answers HEAD, whose answer is the same without its body.
async fn get(shared: web::Data<Shared>, name: web::Path<String>, request: HttpRequest) -> HttpResponse {
    if let Some(pace) = shared.pace {
        tokio::time::sleep(pace.latency).await;
    }
    let Some(object) = shared.objects().get(name.as_str()).cloned() else { return HttpResponse::NotFound().finish() };
    let asked = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok());
    let range = match asked.map(|asked| range(asked, object.len())) {
        None => 0..object.len(),
        Some(Some(range)) => range,
        Some(None) => return HttpResponse::RangeNotSatisfiable().finish(),
    };
    let mut answer = match asked {
        None => HttpResponse::Ok(),
        Some(_) => {
            let place = format!("bytes {}-{}/{}", range.start, range.end - 1, object.len());
            let mut answer = HttpResponse::PartialContent();
            answer.insert_header((header::CONTENT_RANGE, place));
            answer
        }
    };
    answer.insert_header((header::ETAG, ETAG)).insert_header((header::LAST_MODIFIED, "Mon, 01 Jan 2024 00:00:00 GMT"));
    let bytes = object.slice(range);
    match shared.pace {
        Some(pace) => answer.body(paced(shared, pace, bytes)),
        None => answer.body(bytes),
    }
}

/// `bytes=FIRST-LAST`, as far as an object of so many bytes has them; `None` for what it has nothing of, and other forms.
fn range(asked: &str, object_bytes: usize) -> Option<Range<usize>> {
    let (first, last) = asked.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1)?.min(object_bytes);
    (first < end).then_some(first..end)
}

/// Bytes, as the line carries them.
fn paced(
    shared: web::Data<Shared>,
    pace: Pace,
    bytes: Bytes,
) -> SizedStream<impl futures::Stream<Item = std::result::Result<Bytes, std::convert::Infallible>>> {
    let total = bytes.len() as u64;
    let pieces = futures::stream::unfold((Arc::clone(&shared), bytes), move |(shared, mut rest)| async move {
        if rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(PIECE_BYTES.min(rest.len()));
        tokio::time::sleep(shared.carry(pace, piece.len())).await;
        Some((Ok(piece), (shared, rest)))
    });
    SizedStream::new(total, Box::pin(pieces))
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use ragstone_kernels::dtype::KvDtype;
    use ragstone_storage::entry::{Entry, EntryBuilder, NewEntry};
    use ragstone_storage::key::Fingerprint;
    use ragstone_storage::tier::object::ObjectTier;
    use ragstone_storage::tier::{EntryTier, Put};

    use super::*;

    const MODEL: Fingerprint = Fingerprint([3; 32]);
    const LAYERS: u32 = 4;

    /// Of 2 MiB; entries of other tokens are others.
    fn entry(token: u32) -> Arc<Entry> {
        let tokens: Arc<[u32]> = vec![token; 256].into();
        let new = NewEntry {
            fingerprint: MODEL,
            salt: "".into(),
            parent: None,
            tokens,
            layers: LAYERS,
            kv_dim: 512,
            dtype: KvDtype::Bf16,
        };
        let mut builder = EntryBuilder::new(new).unwrap();
        (0..LAYERS).for_each(|layer| builder.push_layer(&[layer as u8; 256 << 10], &[7; 256 << 10]).unwrap());
        Arc::new(builder.finish(1, 1).unwrap())
    }

    /// Reads an entry whole, and compares it.
    fn read(tier: &ObjectTier, entry: &Entry) {
        let found = tier.open(&entry.header().id()).unwrap().expect("it was put");
        for (layer, expected) in (0..LAYERS).zip(entry.frames()) {
            assert_eq!(&found.frame(layer).unwrap()[..], &expected[..]);
        }
    }

    async fn with_tier(pace: Option<Pace>, work: impl FnOnce(ObjectTier) + Send + 'static) {
        let bucket = Bucket::start(pace).unwrap();
        let tier = ObjectTier::open(&bucket.options(), MODEL, Env::seeded(1, 1)).unwrap();
        tokio::task::spawn_blocking(move || work(tier)).await.unwrap();
        bucket.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_tiers_client_writes_and_reads_entries() {
        with_tier(None, |tier| {
            let entry = entry(1);
            assert!(tier.open(&entry.header().id()).unwrap().is_none());
            assert!(matches!(tier.put(&entry).unwrap(), Put::Stored { .. }));
            assert_eq!(tier.put(&entry).unwrap(), Put::AlreadyThere);
            read(&tier, &entry);
            assert_eq!(tier.counts().failed, 0);
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_share_the_line() {
        let pace = Pace { latency: Duration::from_millis(30), bytes_per_s: 40e6 };
        with_tier(Some(pace), move |tier| {
            let tier = Arc::new(tier);
            let entries = [entry(1), entry(2)];
            entries.iter().for_each(|entry| assert!(matches!(tier.put(entry).unwrap(), Put::Stored { .. })));
            let bytes: u64 = entries.iter().map(|entry| entry.header().frames_bytes()).sum();
            let started = Stopwatch::start();
            let readers = entries.map(|entry| {
                let tier = tier.clone();
                Env::spawn("reader", move || read(&tier, &entry)).unwrap()
            });
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            // A header, then the frames.
            let least_s = 2.0 * pace.latency.as_secs_f64() + bytes as f64 / pace.bytes_per_s - 2.0 * SLACK_S;
            assert!(started.elapsed_s() >= least_s, "{} s of at least {least_s}", started.elapsed_s());
        })
        .await;
    }

    #[test]
    fn ranges_end_with_the_object() {
        assert_eq!(range("bytes=2-4", 10), Some(2..5));
        assert_eq!(range("bytes=2-40", 10), Some(2..10));
        for asked in ["bytes=10-12", "bytes=4-2", "bytes=-3", "bytes=2-", "lines=1-2", "bytes=0-18446744073709551615x"]
        {
            assert_eq!(range(asked, 10), None, "{asked}");
        }
        assert_eq!(range("bytes=0-18446744073709551615", 10), None, "no number has one more");
    }
}
