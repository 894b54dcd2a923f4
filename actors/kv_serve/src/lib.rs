//! A store of KV for other engines: opaque blocks over a Unix socket, kept in ragstone's tiers.
//!
//! vLLM, SGLang and others lose their KV when they restart, or find that of other weights. Here an engine names its blocks by digests of
//! their tokens, says once what shapes their bytes ([`Namespace`]), and gets them back bit for bit or not at all: after a restart of either side, from host memory,
//! disk or a bucket that machines share, within bounds, with a checksum over every block. Bytes do not cross the socket: both sides know the same file
//! of shared memory, and messages have keys and numbers of rows. `docs/kv-protocol.md` describes them.
//!
//! ```text
//! engine ── keys, rows ──► Server ── session (one a client: hello, pins, jobs) ── workers ──► Blocks ── ragstone-storage: host, disk, bucket
//!    └────── /dev/shm ─────────────────────────────── region: pread, pwrite ─────────────────────┘
//! ```
//!
//! Three types: [`Blocks`] is the store, [`Server`] listens, [`Client`] asks.
//!
//! ```
//! use std::time::Duration;
//! use ragstone_env::Env;
//! use ragstone_kv_serve::{Blocks, BlocksOptions, Client, Hello, Key, Namespace, RegionSpec, Reply, Request, Server, VERSION};
//!
//! # fn main() -> ragstone_env::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let env = Env::system();
//! let blocks = Blocks::open(&dir.path().join("data"), &BlocksOptions::default(), env.clone())?;
//! let socket = dir.path().join("kv.sock");
//! let server = Server::start(&socket, blocks, env.clone())?;
//!
//! // The engine's memory, and where it wants to have what is loaded: two blocks of 4 KiB each.
//! let memory = |name: &str, byte: u8| {
//!     let path = dir.path().join(name);
//!     std::fs::write(&path, [byte; 8192]).unwrap();
//!     RegionSpec { path, rows: 2, stride: 4096 }
//! };
//! let (region, staging) = (memory("region", 7), memory("staging", 0));
//! let loaded_into = staging.path.clone();
//!
//! let mut client = Client::connect(&socket, Duration::from_secs(10), env)?;
//! let namespace = Namespace {
//!     weights: "c0ffee00".repeat(8),
//!     dtype: "bfloat16".into(),
//!     layout: "LBHNC".into(),
//!     groups: "1 group of 24 layers".into(),
//!     parallel_rank: 0,
//!     parallel_size: 1,
//!     isa: String::new(),
//!     tenant: String::new(),
//!     engine: "vllm".into(),
//!     engine_version: "0.32.0".into(),
//! };
//! let hello = Hello { version: VERSION, namespace, block_bytes: 4096, region, staging };
//! client.call(&Request::Hello(hello.into()))?;
//!
//! let keys = vec![Key(b"digest of the first tokens".to_vec())];
//! client.call(&Request::Store { id: 1, keys: keys.clone(), rows: vec![0], after: None, compute_us: 0 })?;
//! assert_eq!(client.call(&Request::Has { id: 2, keys: keys.clone(), pin: false })?, Reply::Has { id: 2, has: vec![true] });
//! client.call(&Request::Load { id: 3, keys, rows: vec![1] })?;
//! let loaded = std::fs::read(loaded_into).unwrap();
//! assert!(loaded[..4096].iter().all(|byte| *byte == 0) && loaded[4096..].iter().all(|byte| *byte == 7));
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! Linux only: the memory that is shared is Linux's.

#![cfg(target_os = "linux")]

mod blocks;
mod client;
mod evictions;
mod message;
mod namespace;
mod peer;
mod region;
mod server;
mod session;
mod shared;
mod wire;
mod workers;

pub use self::blocks::{Blocks, BlocksOptions, PinnedBlock, Space};
pub use self::client::Client;
pub use self::message::{
    Fault, Hello, Key, Limits, MOST_KEY_BYTES, MOST_KEYS, NamespaceStatus, RegionSpec, Reply, Request, Status, Stored,
    VERSION,
};
pub use self::namespace::Namespace;
pub use self::server::{MOST_CONNECTIONS, Server};
pub use self::wire::MOST_MESSAGE_BYTES;

#[cfg(test)]
mod tests;
