//! One client's connection: its hello, its pins and its jobs.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ragstone_env::lock::locked;
use ragstone_env::{Env, Error, ErrorKind, Result, Stopwatch};
use ragstone_storage::store::Found;

use crate::blocks::{Blocks, PinnedBlock, Space};
use crate::message::{Fault, Hello, Key, Limits, MOST_KEYS, Reply, Request, Status, VERSION};
use crate::region::{Access, Region};
use crate::shared::Shared;
use crate::{peer, wire};

/// How long a pin is kept that is neither loaded nor released.
const LEASE: Duration = Duration::from_secs(60);
/// How often pins are looked at where the client says nothing.
pub const TICK: Duration = Duration::from_secs(1);
/// How long a client may take to read an answer.
const MOST_WRITE_TIME: Duration = Duration::from_secs(10);
/// Stores and loads of one client that are not answered yet.
pub const MOST_JOBS: usize = 32;
/// Blocks of one client that are pinned.
const MOST_PINS: usize = MOST_KEYS;
/// Bytes of a status: the rest of the message is what stands around it.
const MOST_STATUS_BYTES: usize = wire::MOST_MESSAGE_BYTES - 1024;

/// A connection, shared by the thread that reads it and by its jobs.
pub struct Session {
    stream: UnixStream,
    /// Held while an answer is written.
    writing: Mutex<()>,
    is_open: AtomicBool,
    /// Jobs that are queued or under way.
    jobs: Mutex<usize>,
    job_ended: Condvar,
    client: OnceLock<Client>,
    pins: Mutex<HashMap<Key, (PinnedBlock, Stopwatch)>>,
    env: Env,
}

/// What a client said hello with.
struct Client {
    space: Space,
    region: Region,
    staging: Region,
}

/// A job that counts as running while it lives.
struct Running(Arc<Session>);

impl Drop for Running {
    fn drop(&mut self) {
        *locked(&self.0.jobs) -= 1;
        self.0.job_ended.notify_all();
    }
}

/// Serves one connection until it ends. BLOCKS.
pub fn serve(stream: UnixStream, shared: &Arc<Shared>) -> Result<()> {
    let unusable = |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("a connection failed: {error}"));
    stream.set_read_timeout(Some(TICK)).map_err(unusable)?;
    stream.set_write_timeout(Some(MOST_WRITE_TIME)).map_err(unusable)?;
    let mut reading = stream.try_clone().map_err(unusable)?;
    let session = Arc::new(Session {
        stream,
        writing: Mutex::default(),
        is_open: AtomicBool::new(true),
        jobs: Mutex::default(),
        job_ended: Condvar::new(),
        client: OnceLock::new(),
        pins: Mutex::default(),
        env: shared.env.clone(),
    });
    let ended = session.converse(&mut reading, shared);
    session.close();
    ended
}

impl Session {
    /// Reads and answers requests until the client goes, errs or is done.
    fn converse(self: &Arc<Self>, reading: &mut UnixStream, shared: &Arc<Shared>) -> Result<()> {
        while self.is_open() && !shared.is_stopping() {
            let message = match wire::read(reading, &self.env, &mut || self.let_old_pins_go()) {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.refuse(None, error)),
            };
            self.let_old_pins_go();
            let request: Request = match serde_json::from_slice(&message) {
                Ok(request) => request,
                Err(error) => {
                    let error = Error::invalid_input(format!("this is no request: {error}; see docs/kv-protocol.md"));
                    return Err(self.refuse(None, error));
                }
            };
            let id = request.id();
            match self.answer(request, shared) {
                Ok(Some(reply)) => {
                    let is_last = matches!(reply, Reply::Done { .. });
                    self.send(&reply);
                    if is_last {
                        return Ok(());
                    }
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(self.refuse(id, error)),
                Err(error) => {
                    let kind = if error.kind() == ErrorKind::NotFound { Fault::NotFound } else { Fault::Failed };
                    self.send(&Reply::Error { id, kind, message: error.to_string() });
                }
            }
        }
        Ok(())
    }

    /// The answer; `None` where a job gives it. An `InvalidInput` ends the connection.
    fn answer(self: &Arc<Self>, request: Request, shared: &Arc<Shared>) -> Result<Option<Reply>> {
        Ok(Some(match request {
            Request::Hello(hello) => self.hello(*hello, &shared.blocks)?,
            Request::Has { id, keys, pin } => {
                let client = self.client(&keys)?;
                let evictions = shared.blocks.evictions();
                let found = shared.blocks.find(&client.space, &keys);
                let has = found.iter().map(Option::is_some).collect();
                if pin {
                    let pins = keys.into_iter().zip(found).filter_map(|(key, found)| Some((key, found?)));
                    self.pin(pins, evictions, &client.space, &shared.blocks);
                }
                Reply::Has { id, has }
            }
            Request::Store { id, keys, rows, after, compute_us } => {
                let client = self.client(&keys)?;
                check_rows(&keys, &rows, &client.region)?;
                let (session, blocks) = (Arc::clone(self), Arc::clone(&shared.blocks));
                let job = move || session.store(id, &keys, &rows, after.as_ref(), compute_us, &blocks);
                return Ok(self.begin(id, shared, job));
            }
            Request::Load { id, keys, rows } => {
                let client = self.client(&keys)?;
                check_rows(&keys, &rows, &client.staging)?;
                self.renew(&keys);
                let (session, blocks) = (Arc::clone(self), Arc::clone(&shared.blocks));
                let job = move || session.load(id, &keys, &rows, &blocks);
                return Ok(self.begin(id, shared, job));
            }
            Request::Release { id, keys } => {
                self.client(&keys)?;
                let mut pins = locked(&self.pins);
                let released: Vec<_> = keys.iter().filter_map(|key| pins.remove(key)).collect();
                drop(pins);
                Reply::Release { id, released: released.len() as u64 }
            }
            Request::Done { id } => {
                self.wait_for_jobs();
                Reply::Done { id }
            }
            Request::Status { id } => {
                let namespaces = shared.blocks.namespaces()?;
                let (connections, store) = (shared.connections(), shared.blocks.inner().status());
                let status = Status { version: VERSION, connections, namespaces, left_out: 0, store };
                Reply::Status { id, status: Box::new(status.fit(MOST_STATUS_BYTES)) }
            }
            Request::Evict { id, namespace, tenant } => {
                let (blocks, bytes) = shared.blocks.evict(&namespace, tenant.as_deref())?;
                Reply::Evict { id, blocks, bytes }
            }
        }))
    }

    fn hello(&self, hello: Hello, blocks: &Blocks) -> Result<Reply> {
        let Hello { version, namespace, block_bytes, region, staging } = hello;
        if version != VERSION {
            let message =
                format!("version {version} of the protocol is not spoken here, {VERSION} is; update the older side");
            return Err(Error::invalid_input(message));
        }
        let space = blocks.space(&namespace, block_bytes)?;
        let owner = peer::user_of(&self.stream).unwrap_or_else(peer::user);
        let region = Region::open(&region, block_bytes, owner, Access::Read)?;
        let staging = Region::open(&staging, block_bytes, owner, Access::Write)?;
        let namespace = space.digest();
        if self.client.set(Client { space, region, staging }).is_err() {
            return Err(Error::invalid_input("a second hello; open another connection for another namespace"));
        }
        let limits =
            Limits { message_bytes: wire::MOST_MESSAGE_BYTES as u64, keys: MOST_KEYS as u64, jobs: MOST_JOBS as u64 };
        Ok(Reply::Hello { version: VERSION, namespace, limits })
    }

    fn client(&self, keys: &[Key]) -> Result<&Client> {
        if keys.is_empty() || keys.len() > MOST_KEYS {
            return Err(Error::invalid_input(format!("{} keys; 1 to {MOST_KEYS} are allowed", keys.len())));
        }
        self.client.get().ok_or_else(|| Error::invalid_input("a hello must come first"))
    }

    /// Queues a job; the answer, if it has no room.
    fn begin(self: &Arc<Self>, id: u64, shared: &Shared, job: impl FnOnce() + Send + 'static) -> Option<Reply> {
        let busy = |what: &str| Some(Reply::Error { id: Some(id), kind: Fault::Busy, message: what.to_owned() });
        let running = {
            let mut jobs = locked(&self.jobs);
            if *jobs >= MOST_JOBS {
                return busy("too many jobs of this connection are under way; wait for an answer");
            }
            *jobs += 1;
            Running(Arc::clone(self))
        };
        let work = move || {
            if running.0.is_open() {
                job();
            }
            drop(running);
        };
        if shared.workers.offer(Box::new(work)) { None } else { busy("the daemon has too many jobs; try again later") }
    }

    fn store(&self, id: u64, keys: &[Key], rows: &[u64], after: Option<&Key>, compute_us: u64, blocks: &Blocks) {
        let Some(client) = self.client.get() else { return };
        let stored = blocks.store(&client.space, after, keys, compute_us, &mut |at| {
            let read = self.is_open().then(|| client.region.read(rows[at]))?;
            let bytes = read.inspect_err(|error| tracing::warn!(%error, "a block was not stored")).ok()?;
            self.env.fail_point("kv_serve.copied").ok()?;
            // A client that gave the job up hangs up before it uses the row for something else: looked at after the copy, never before.
            if peer::has_hung_up(&self.stream) {
                self.is_open.store(false, Ordering::Release);
                return None;
            }
            Some(bytes)
        });
        self.send(&Reply::Store { id, stored });
    }

    fn load(&self, id: u64, keys: &[Key], rows: &[u64], blocks: &Blocks) {
        let Some(client) = self.client.get() else { return };
        // Taken when the job begins: one that finds no room leaves them.
        let pinned = {
            let mut pins = locked(&self.pins);
            keys.iter().map(|key| pins.remove(key).map(|(pin, _)| pin)).collect()
        };
        let loaded = blocks.load(&client.space, keys, pinned, &|| self.is_open(), &mut |at, frame| {
            // Reading may have taken long.
            if !self.is_open() {
                return false;
            }
            let written = client.staging.write(rows[at], [&frame.k, &frame.v]);
            written.inspect_err(|error| tracing::warn!(%error, "a block was not loaded")).is_ok()
        });
        self.send(&Reply::Load { id, loaded });
    }

    fn pin(&self, found: impl Iterator<Item = (Key, Found)>, evictions: u64, space: &Space, blocks: &Arc<Blocks>) {
        let mut pins = locked(&self.pins);
        for (key, found) in found {
            if pins.len() >= MOST_PINS && !pins.contains_key(&key) {
                break;
            }
            let Some(pin) = blocks.pin(space, found, evictions) else { break };
            pins.insert(key, (pin, self.env.stopwatch()));
        }
    }

    /// What is to be loaded is kept for another minute: its job may wait for others.
    fn renew(&self, keys: &[Key]) {
        let mut pins = locked(&self.pins);
        for key in keys {
            if let Some((_, since)) = pins.get_mut(key) {
                *since = self.env.stopwatch();
            }
        }
    }

    fn let_old_pins_go(&self) {
        locked(&self.pins).retain(|_, (_, since)| since.elapsed() < LEASE);
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Tells the client why the connection ends.
    fn refuse(&self, id: Option<u64>, error: Error) -> Error {
        self.send(&Reply::Error { id, kind: Fault::Protocol, message: error.to_string() });
        error
    }

    /// A client that does not take its answers is gone. Nothing more is read of it; it sees the end once its jobs have ended ([`close`](Self::close)).
    fn send(&self, reply: &Reply) {
        let _writing = locked(&self.writing);
        // Asked behind the lock: who waited for a write that failed would wait as long again, and write behind half a message.
        if !self.is_open() {
            return;
        }
        if let Err(error) = wire::write(&mut &self.stream, reply) {
            tracing::debug!(%error, "an answer was not taken");
            self.is_open.store(false, Ordering::Release);
            drop(self.stream.shutdown(Shutdown::Read));
        }
    }

    fn wait_for_jobs(&self) {
        let waited = self.job_ended.wait_while(locked(&self.jobs), |jobs| *jobs > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends what is under way, then the connection: who sees it end knows that nothing touches its memory any more.
    fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        locked(&self.pins).clear();
        self.wait_for_jobs();
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

fn check_rows(keys: &[Key], rows: &[u64], region: &Region) -> Result<()> {
    if keys.len() != rows.len() {
        return Err(Error::invalid_input(format!("{} keys and {} rows; each key wants one", keys.len(), rows.len())));
    }
    match rows.iter().find(|row| **row >= region.rows()) {
        Some(row) => Err(Error::invalid_input(format!("row {row} of a region of {} rows", region.rows()))),
        None => Ok(()),
    }
}
