//! What all connections of a daemon share.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ragstone_env::Env;
use ragstone_env::lock::locked;

use crate::blocks::Blocks;
use crate::workers::Workers;

/// The store, the threads that copy, and who is connected.
pub struct Shared {
    pub blocks: Arc<Blocks>,
    pub workers: Workers,
    pub env: Env,
    pub connections: Mutex<HashMap<u64, UnixStream>>,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

impl Shared {
    pub fn new(blocks: Blocks, workers: Workers, env: Env) -> Self {
        let (connections, stopping) = Default::default();
        Self { blocks: Arc::new(blocks), workers, env, connections, stopping, stopped: Condvar::new() }
    }

    /// Clients that are connected.
    pub fn connections(&self) -> u64 {
        locked(&self.connections).len() as u64
    }

    /// The daemon ends from now on.
    pub fn stop(&self) {
        *locked(&self.stopping) = true;
        self.stopped.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        *locked(&self.stopping)
    }

    /// Waits; true once the daemon is to end.
    pub fn wait(&self, time: Duration) -> bool {
        let waited = self.stopped.wait_timeout_while(locked(&self.stopping), time, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
