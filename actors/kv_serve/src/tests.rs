//! The protocol, without an engine: a folder, a region file, a daemon in this process.

mod faults;
mod hostile;
mod model;
mod restart;
mod sharing;

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use ragstone_env::Env;
use ragstone_storage::tier::object::ObjectOptions;
use tempfile::TempDir;

use super::*;

/// Bytes of a block: no power of two, and not a multiple of what an entry's columns take.
const BLOCK: u64 = 4100;
const STRIDE: u64 = 4224;
const ROWS: u64 = 16;
const PLENTY: u64 = 1 << 30;

pub fn namespace() -> Namespace {
    Namespace {
        weights: "c0ffee00".repeat(8),
        dtype: "bfloat16".into(),
        layout: "LBHNC".into(),
        groups: "[24 layers]".into(),
        parallel_rank: 0,
        parallel_size: 2,
        isa: "amx".into(),
        tenant: "alice".into(),
        engine: "vllm".into(),
        engine_version: "0.32.0".into(),
    }
}

/// A data folder, and daemons on it, one after the other.
struct Place {
    dir: TempDir,
    env: Env,
    options: BlocksOptions,
}

impl Place {
    fn new(host_bytes: u64, disk_bytes: u64) -> Self {
        let options = BlocksOptions { host_bytes, disk_bytes, ..BlocksOptions::default() };
        Self { dir: TempDir::new().unwrap(), env: Env::seeded(1, 1_000_000), options }
    }

    fn with_bucket(mut self, url: &str) -> Self {
        self.options.object = Some(ObjectOptions::new(url));
        self
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("kv.sock")
    }

    fn daemon(&self) -> Server {
        let blocks = Blocks::open(&self.dir.path().join("data"), &self.options, self.env.clone()).unwrap();
        Server::start(&self.socket(), blocks, self.env.clone()).unwrap()
    }

    fn connect(&self) -> Client {
        Client::connect(&self.socket(), Duration::from_secs(60), Env::system()).unwrap()
    }

    /// An engine that said hello.
    fn engine(&self, name: &str, namespace: &Namespace) -> Engine {
        let mut engine = self.silent_engine(name);
        engine.hello(namespace);
        engine
    }

    fn silent_engine(&self, name: &str) -> Engine {
        let file = |what: &str| {
            let path = self.dir.path().join(format!("{name}.{what}"));
            let file =
                std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
            file.set_len(ROWS * STRIDE).unwrap();
            (RegionSpec { path, rows: ROWS, stride: STRIDE }, file)
        };
        Engine { client: self.connect(), region: file("region"), staging: file("staging"), next: 0 }
    }
}

/// What an engine's client does.
struct Engine {
    client: Client,
    region: (RegionSpec, std::fs::File),
    staging: (RegionSpec, std::fs::File),
    next: u64,
}

impl Engine {
    fn hello_of(&self, namespace: &Namespace) -> Hello {
        let (region, staging) = (self.region.0.clone(), self.staging.0.clone());
        Hello { version: VERSION, namespace: namespace.clone(), block_bytes: BLOCK, region, staging }
    }

    fn hello_request(&self, namespace: &Namespace) -> Request {
        Request::Hello(self.hello_of(namespace).into())
    }

    fn hello(&mut self, namespace: &Namespace) {
        let reply = self.client.call(&self.hello_request(namespace)).unwrap();
        assert!(matches!(reply, Reply::Hello { version: VERSION, .. }), "{reply:?}");
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn has(&mut self, ids: &[u64], pin: bool) -> Vec<bool> {
        let (id, keys) = (self.id(), keys(ids));
        match self.client.call(&Request::Has { id, keys, pin }).unwrap() {
            Reply::Has { id: of, has } if of == id => has,
            other => panic!("{other:?}"),
        }
    }

    /// Puts blocks into rows and stores them from there.
    fn store(&mut self, ids: &[u64]) -> Vec<Stored> {
        for (row, id) in (0..).zip(ids) {
            self.region.1.write_all_at(&bytes_of(*id), row * STRIDE).unwrap();
        }
        self.store_rows(ids, (0..ids.len() as u64).collect())
    }

    fn store_rows(&mut self, ids: &[u64], rows: Vec<u64>) -> Vec<Stored> {
        let id = self.id();
        match self.client.call(&Request::Store { id, keys: keys(ids), rows, after: None, compute_us: 0 }).unwrap() {
            Reply::Store { id: of, stored } if of == id => stored,
            other => panic!("{other:?}"),
        }
    }

    /// Loads blocks into the last rows; each that is said to be loaded must be right, and its neighbours must be untouched.
    fn load(&mut self, ids: &[u64]) -> Vec<bool> {
        let first = ROWS - ids.len() as u64;
        self.staging.1.write_all_at(&vec![0xEE; (ROWS * STRIDE) as usize], 0).unwrap();
        let (id, rows) = (self.id(), (first..ROWS).collect());
        let reply = self.client.call(&Request::Load { id, keys: keys(ids), rows }).unwrap();
        let Reply::Load { id: of, loaded } = reply else { panic!("{reply:?}") };
        assert_eq!((of, loaded.len()), (id, ids.len()));
        let mut expected = vec![0xEE; (ROWS * STRIDE) as usize];
        for ((id, row), loaded) in ids.iter().zip(first..).zip(&loaded) {
            if *loaded {
                let at = (row * STRIDE) as usize;
                expected[at..at + BLOCK as usize].copy_from_slice(&bytes_of(*id));
            }
        }
        let mut found = vec![0; expected.len()];
        self.staging.1.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected, "{ids:?} {loaded:?}: wrong bytes, or bytes beside a row");
        loaded
    }

    fn release(&mut self, ids: &[u64]) -> u64 {
        let (id, keys) = (self.id(), keys(ids));
        match self.client.call(&Request::Release { id, keys }).unwrap() {
            Reply::Release { released, .. } => released,
            other => panic!("{other:?}"),
        }
    }

    fn status(&mut self) -> Status {
        let id = self.id();
        match self.client.call(&Request::Status { id }).unwrap() {
            Reply::Status { status, .. } => *status,
            other => panic!("{other:?}"),
        }
    }

    fn evict(&mut self, namespace: &str, tenant: Option<&str>) -> ragstone_env::Result<(u64, u64)> {
        let (id, namespace, tenant) = (self.id(), namespace.to_owned(), tenant.map(ToOwned::to_owned));
        match self.client.call(&Request::Evict { id, namespace, tenant })? {
            Reply::Evict { blocks, bytes, .. } => Ok((blocks, bytes)),
            other => panic!("{other:?}"),
        }
    }
}

fn keys(ids: &[u64]) -> Vec<Key> {
    ids.iter().map(|id| Key([&[0xAB; 28][..], &id.to_be_bytes()].concat())).collect()
}

/// A block follows from its number; as numbers, many of its values are none.
fn bytes_of(id: u64) -> Vec<u8> {
    (0..BLOCK).map(|at| if at % 5 == 0 { 0xFF } else { (at * 31 + id * 7 + (at >> 8)) as u8 }).collect()
}

/// Until what a thread of the daemon does has come about.
fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}
