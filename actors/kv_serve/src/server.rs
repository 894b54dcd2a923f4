//! The daemon's socket: who may connect, how many, and how it ends.

use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ragstone_env::lock::locked;
use ragstone_env::{Env, Error, ErrorKind, Result};

use crate::blocks::Blocks;
use crate::message::{Fault, Reply};
use crate::shared::Shared;
use crate::workers::Workers;
use crate::{peer, session, wire};

/// Clients at once.
pub const MOST_CONNECTIONS: usize = 64;
/// Jobs that copy blocks at once.
const WORKERS: usize = 4;
/// Jobs that wait, of all clients together.
const MOST_WAITING: usize = 512;
/// How often times of use are written.
const UPKEEP: Duration = Duration::from_secs(60);
/// Every so many upkeeps the bucket is collected.
const UPKEEPS_A_COLLECTION: u64 = 60;
/// How long what was stored may take to reach disk and bucket when the daemon ends.
const MOST_FLUSH: Duration = Duration::from_secs(30);

/// A daemon that listens. Dropped, it ends: connections first, then what is on its way to the disk.
pub struct Server {
    shared: Arc<Shared>,
    listener: UnixListener,
    path: PathBuf,
    /// Of the socket's file, so that only our own is removed.
    inode: u64,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens at `socket`, which only this user can connect to.
    ///
    /// # Errors
    /// `Unavailable` if a daemon listens there already; `InvalidInput` if there is something else than a socket, or none can be made there.
    pub fn start(socket: &Path, blocks: Blocks, env: Env) -> Result<Self> {
        let listener = listen(socket, &env)?;
        let inode = std::fs::symlink_metadata(socket).map(|metadata| metadata.ino()).unwrap_or_default();
        let shared = Arc::new(Shared::new(blocks, Workers::start(WORKERS, MOST_WAITING)?, env));
        let accepting = listener.try_clone().map_err(|error| Error::internal(format!("the socket: {error}")))?;
        let mut server = Self { shared, listener, path: socket.to_owned(), inode, threads: Vec::new() };
        let shared = Arc::clone(&server.shared);
        server.threads.push(Env::spawn("kv-serve-accept", move || accept(&accepting, &shared))?);
        let shared = Arc::clone(&server.shared);
        server.threads.push(Env::spawn("kv-serve-upkeep", move || keep_up(&shared))?);
        Ok(server)
    }

    /// The blocks that it serves.
    pub fn blocks(&self) -> &Blocks {
        &self.shared.blocks
    }

    /// Clients that are connected.
    pub fn connections(&self) -> u64 {
        self.shared.connections()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
        peer::stop_listening(&self.listener);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        let is_ours = |metadata: std::fs::Metadata| metadata.ino() == self.inode;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            drop(std::fs::remove_file(&self.path));
        }
        if !self.shared.blocks.flush(MOST_FLUSH) {
            tracing::warn!("some blocks did not reach disk or bucket in time; they are computed again");
        }
    }
}

/// Binds the socket within a folder that nobody else may enter, and moves it to its place: there is no moment at which others can connect, and a
/// socket that a killed daemon left is replaced.
fn listen(socket: &Path, env: &Env) -> Result<UnixListener> {
    let wrong = |what: String| Error::invalid_input(format!("socket {}: {what}", socket.display()));
    match std::fs::symlink_metadata(socket) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(wrong("there is something else".into())),
        Ok(_) if UnixStream::connect(socket).is_ok() => {
            let message = format!("a daemon listens at {} already; stop it, or take another path", socket.display());
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        _ => {}
    }
    let name = socket.file_name().ok_or_else(|| wrong("it names no file".into()))?;
    let private = socket.with_file_name(format!(".{}.{:x}", name.to_string_lossy(), env.random_u64()));
    std::fs::DirBuilder::new().mode(0o700).create(&private).map_err(|error| wrong(error.to_string()))?;
    let inside = private.join("s");
    let moved = UnixListener::bind(&inside).and_then(|listener| {
        std::fs::set_permissions(&inside, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        std::fs::rename(&inside, socket)?;
        Ok(listener)
    });
    drop(std::fs::remove_dir(&private));
    moved.map_err(|error| wrong(format!("cannot listen there: {error}; take a shorter path, in a folder of yours")))
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut number = 0;
    while !shared.is_stopping() {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if shared.is_stopping() => break,
            Err(error) => {
                // Too many open files, say: others end.
                tracing::warn!(%error, "a connection was not accepted");
                shared.wait(Duration::from_millis(100));
                continue;
            }
        };
        threads.retain(|thread| !thread.is_finished());
        number += 1;
        match admit(stream, number, shared) {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::warn!(%error, "a connection was refused"),
        }
    }
    // Nothing more is read. Each client sees the end once its jobs have ended: from then on its memory is its own.
    locked(&shared.connections).values().for_each(|stream| drop(stream.shutdown(Shutdown::Read)));
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// Starts a thread for a client, if it may come in.
fn admit(mut stream: UnixStream, number: u64, shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    // The socket's mode keeps others away; this holds also where somebody changed it.
    let is_known = peer::user_of(&stream).is_some_and(|user| user == 0 || user == peer::user());
    if !is_known {
        return Err(Error::new(
            ErrorKind::Forbidden,
            "another user's process connected; it must run as the daemon's user",
        ));
    }
    let for_stopping = stream.try_clone().map_err(|error| Error::internal(format!("a connection: {error}")))?;
    {
        let mut connections = locked(&shared.connections);
        if connections.len() >= MOST_CONNECTIONS {
            let message = format!("{MOST_CONNECTIONS} clients are connected; come back when one has ended");
            drop(stream.set_write_timeout(Some(session::TICK)));
            let busy = Reply::Error { id: None, kind: Fault::Busy, message: message.clone() };
            drop(wire::write(&mut stream, &busy));
            return Err(Error::new(ErrorKind::Overloaded, message));
        }
        connections.insert(number, for_stopping);
    }
    let registered = Registered { shared: Arc::clone(shared), number };
    Env::spawn("kv-serve-client", move || {
        if let Err(error) = session::serve(stream, &registered.shared) {
            tracing::info!(%error, "a connection ended");
        }
    })
}

/// A connection that counts while this lives, however its thread ends.
struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        locked(&self.shared.connections).remove(&self.number);
    }
}

fn keep_up(shared: &Shared) {
    let mut upkeeps = 0_u64;
    while !shared.wait(UPKEEP) {
        shared.blocks.keep_up();
        upkeeps += 1;
        if upkeeps.is_multiple_of(UPKEEPS_A_COLLECTION) {
            shared.blocks.collect(&|| !shared.is_stopping());
        }
    }
}
