//! The S3 client over a real socket, against a server that speaks as much of S3 as an entry needs and breaks it on demand:
//! what the client retries, and what it does not.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::catalog::Catalog;
use crate::cost::{CostProfile, Costs};
use crate::policy::PolicyKind;
use crate::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_env::Stopwatch;

/// How the server treats one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treat {
    /// Answers with this status, and does nothing.
    Status(u16),
    /// Does what is asked and closes the connection.
    DoAndReset,
    /// Closes the connection.
    Reset,
    /// Announces the whole body and sends half of it.
    HalfBody,
    /// Never answers.
    Hang,
    /// Ignores the range and sends everything.
    Oversize,
}

#[derive(Default)]
struct Shared {
    objects: Mutex<HashMap<String, Arc<Vec<u8>>>>,
    treats: Mutex<VecDeque<Treat>>,
    log: Mutex<Vec<String>>,
    closing: AtomicBool,
}

/// This process's bucket. A client of another test may still ask for its server, which is gone, at what is now our port.
fn bucket() -> String {
    format!("bucket-{}", std::process::id())
}

/// Listens on a port of the system's choice until it is dropped.
struct Server {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Shared::default()));
        let of_thread = shared.clone();
        let accept = move || {
            for stream in listener.incoming() {
                if of_thread.closing.load(Ordering::Relaxed) {
                    return;
                }
                let shared = of_thread.clone();
                Env::spawn("connection", move || serve(stream.unwrap(), &shared)).unwrap();
            }
        };
        Env::spawn("server", accept).unwrap();
        Self { address, shared }
    }

    fn tier(&self, timeout: Duration) -> ObjectTier {
        self.tier_in(timeout, env())
    }

    fn tier_in(&self, timeout: Duration, env: Env) -> ObjectTier {
        let options = s3(&format!("http://{}", self.address), &format!("s3://{}/kv", bucket()), timeout);
        ObjectTier::open(&options, MODEL, env).unwrap()
    }

    /// Treats the next requests so.
    fn treat(&self, treats: &[Treat]) {
        self.shared.log.lock().unwrap().clear();
        *self.shared.treats.lock().unwrap() = treats.iter().copied().collect();
    }

    /// The methods of the requests since then.
    fn log(&self) -> Vec<String> {
        self.shared.log.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((key, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(key.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body })
}

fn serve(stream: TcpStream, shared: &Shared) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        if !request.path.starts_with(&format!("/{}", bucket())) {
            let _ = answer(&mut writer, 404, &[], b"", 0);
            return;
        }
        shared.log.lock().unwrap().push(request.method.clone());
        let treat = shared.treats.lock().unwrap().pop_front();
        match treat {
            Some(Treat::Reset) => return,
            Some(Treat::Hang) => {
                // Until the client gives up.
                let _ = reader.read(&mut [0]);
                return;
            }
            Some(Treat::Status(status)) => {
                // An answer to HEAD has no body: the client would take it for the next answer.
                let body: &[u8] = if request.method == "HEAD" { b"" } else { b"<Error/>" };
                if answer(&mut writer, status, &[], body, body.len()).is_err() {
                    return;
                }
                continue;
            }
            _ => {}
        }
        let answered = act(shared, request, treat, &mut writer);
        if treat.is_some() || answered.is_err() {
            return;
        }
    }
}

fn act(shared: &Shared, request: Request, treat: Option<Treat>, writer: &mut TcpStream) -> std::io::Result<()> {
    let mut objects = shared.objects.lock().unwrap();
    let object = objects.get(&request.path).cloned();
    if request.method == "PUT" && (object.is_none() || !request.headers.contains_key("if-none-match")) {
        objects.insert(request.path.clone(), Arc::new(request.body));
    } else if request.method == "POST" {
        let removed = delete_listed(&mut objects, &request);
        drop(objects);
        return answer(writer, 200, &[], removed.as_bytes(), removed.len());
    }
    drop(objects);
    if treat == Some(Treat::DoAndReset) {
        return Ok(());
    }
    let Some(object) = object else {
        return match request.method.as_str() {
            "PUT" => answer(writer, 200, &[], b"", 0),
            _ => answer(writer, 404, &[], b"", 0),
        };
    };
    match request.method.as_str() {
        "PUT" => answer(writer, 412, &[], b"", 0),
        "HEAD" => answer(writer, 200, &[], b"", object.len()),
        _ => {
            let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")).unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let (start, end) = (start.parse::<usize>().unwrap(), end.parse::<usize>().unwrap().min(object.len() - 1));
            let place = format!("bytes {start}-{end}/{}", object.len());
            let body = &object[start..=end];
            match treat {
                Some(Treat::HalfBody) => {
                    answer(writer, 206, &[("Content-Range", &place)], &body[..body.len() / 2], body.len())
                }
                Some(Treat::Oversize) => {
                    let long = vec![7; body.len() + 100];
                    answer(writer, 206, &[("Content-Range", &place)], &long, long.len())
                }
                _ => answer(writer, 206, &[("Content-Range", &place)], body, body.len()),
            }
        }
    }
}

/// S3's request to delete what its body lists.
fn delete_listed(objects: &mut HashMap<String, Arc<Vec<u8>>>, request: &Request) -> String {
    let bucket = request.path.split('?').next().unwrap();
    let body = std::str::from_utf8(&request.body).unwrap();
    let keys = body.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap());
    let deleted: String = keys
        .map(|key| {
            objects.remove(&format!("{bucket}/{key}"));
            format!("<Deleted><Key>{key}</Key></Deleted>")
        })
        .collect();
    format!("<DeleteResult>{deleted}</DeleteResult>")
}

fn answer(
    to: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    length: usize,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nETag: \"tag\"\r\n");
    head.push_str("Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n");
    headers.iter().for_each(|(key, value)| head.push_str(&format!("{key}: {value}\r\n")));
    head.push_str("\r\n");
    to.write_all(head.as_bytes())?;
    to.write_all(body)
}

const PATIENT: Duration = Duration::from_secs(20);

#[test]
fn the_s3_client_puts_reads_and_removes() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    for entry in [entry(None, &[1]), wide([1, 2], 30_000)] {
        assert_missed(&tier, &entry);
        assert_eq!(tier.put(&entry).unwrap(), stored(&entry));
        assert_eq!(tier.put(&entry).unwrap(), Put::AlreadyThere);
        assert_found(&tier, &entry);
        assert!(tier.remove(&entry.header().id()).unwrap());
        assert_missed(&tier, &entry);
    }
}

#[test]
fn server_errors_throttling_and_resets_are_retried() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    let entry = entry(None, &[1]);
    server.treat(&[Treat::Status(500), Treat::Status(503), Treat::Reset]);
    assert_eq!(tier.put(&entry).unwrap(), stored(&entry));
    assert_eq!(server.log(), ["PUT"; 4]);
    server.treat(&[Treat::Reset, Treat::Status(429), Treat::Status(503)]);
    assert_found(&tier, &entry);
    assert_eq!(server.log(), ["GET"; 4]);
    server.treat(&[Treat::HalfBody]);
    assert_found(&tier, &entry);
    assert_eq!(server.log(), ["GET"; 2], "the rest of a body that broke off is asked for");
    assert_eq!(tier.counts().failed, 0);
}

#[test]
fn retries_end() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    let entry = entry(None, &[1]);
    tier.put(&entry).unwrap();
    server.treat(&[Treat::Status(503); 100]);
    let error = tier.open(&entry.header().id()).err().expect("503");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(server.log().len(), 4, "one and three more");
    server.treat(&[Treat::Status(403); 100]);
    assert_eq!(tier.open(&entry.header().id()).err().expect("403").kind(), ErrorKind::Unavailable);
    assert_eq!(server.log().len(), 1, "a permission does not come back by asking again");
    assert_eq!(tier.counts().failed, 2);
}

#[test]
fn a_put_that_was_done_before_the_connection_broke_counts_as_there() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    let entry = entry(None, &[1]);
    server.treat(&[Treat::DoAndReset]);
    let put = tier.put(&entry).unwrap();
    assert!(put == stored(&entry) || put == Put::AlreadyThere, "{put:?}");
    assert_found(&tier, &entry);
}

#[test]
fn a_server_that_does_not_answer_is_left_at_the_deadline() {
    let server = Server::start();
    let tier = server.tier(Duration::from_millis(300));
    let entry = entry(None, &[1]);
    server.treat(&[Treat::Hang; 100]);
    let started = Stopwatch::start();
    assert_eq!(tier.open(&entry.header().id()).err().expect("no answer").kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(tier.counts().timed_out, 1);
}

#[test]
fn more_than_was_asked_for_is_not_taken() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    let entry = entry(None, &[1]);
    tier.put(&entry).unwrap();
    server.treat(&[Treat::Oversize]);
    assert_eq!(tier.open(&entry.header().id()).err().expect("oversize").kind(), ErrorKind::Unavailable);
    assert_found(&tier, &entry);
}

#[test]
fn nobody_listening_is_an_error_and_no_hang() {
    let server = Server::start();
    let tier = server.tier(PATIENT);
    drop(server);
    let entry = entry(None, &[1]);
    // The listener may take one more connection before its thread ends; it closes it at once.
    assert_eq!(tier.open(&entry.header().id()).err().expect("nobody").kind(), ErrorKind::Unavailable);
    assert_eq!(tier.put(&entry).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn a_large_entry_is_loaded_as_fast_as_plain_requests_load_its_bytes() {
    assert_loads_fast(&Server::start().tier(PATIENT), 10);
}

fn node(server: &Server, dir: &TempDir, env: &Env) -> KvStore {
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), env).unwrap());
    let tier = TierOptions { capacity_bytes: 1 << 30, policy: PolicyKind::Lru };
    let object: Arc<dyn SharedTier> = Arc::new(server.tier_in(PATIENT, env.clone()));
    let (admission, costs) = (AdmissionRule::Always, Costs::new(CostProfile::assumed().unwrap()));
    let options = StoreOptions { host: tier, disk: tier, object: Some(object), shape: None, admission, costs };
    KvStore::open(&dir.path().join("kv"), options, MODEL, env.clone(), catalog).unwrap()
}

/// A policy of the bucket is changed while nodes run: 403, from one request to the next.
#[test]
fn a_permission_that_is_lost_costs_reuse_and_comes_back() {
    let (server, env) = (Server::start(), env());
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let large = wide([1, 2], 30_000);
    let id = large.header().id();
    let writer = node(&server, &a, &env);
    assert!(writer.keep(entry_of_width(None, &[1, 2], 30_000), 0).unwrap() && writer.drain(PATIENT));
    let store = node(&server, &b, &env);
    let found = store.look_up(&id.key, &[1, 2]).unwrap();
    let reader = store.open_found(&found);
    assert_eq!(reader.tier(), Tier::Object);

    server.treat(&[Treat::Status(403); 1000]);
    let started = Stopwatch::start();
    let error = reader.layer(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    store.late_miss(&reader.id(), reader.tier(), error.kind());
    assert!(store.look_up(&id.key, &[1, 2]).is_none());
    assert!(store.look_up(&entry(None, &[9]).header().key, &[9]).is_none());
    assert!(store.keep(entry_behind(None, &[5]), store.epoch()).unwrap());
    assert!(store.drain(PATIENT) && started.elapsed() < PATIENT, "nobody waits for a bucket that refuses");
    let status = store.status();
    assert_eq!((status.late_misses, status.object.unwrap().failed), (1, 3), "the layer, the look-up, the upload");
    assert_eq!(store.contains(&entry(None, &[5]).header().key), Some(Tier::Host));

    server.treat(&[]);
    env.advance(Duration::from_secs(60));
    let found = store.look_up(&id.key, &[1, 2]).unwrap();
    assert_eq!(found.tier, Tier::Object);
    assert_right(&*found.entry, &large);
}
