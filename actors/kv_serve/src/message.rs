//! What is asked and answered. docs/kv-protocol.md describes it for who writes a client.

use std::path::PathBuf;

use ragstone_storage::store::StoreStatus;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::namespace::Namespace;

/// The version of the protocol that this daemon speaks.
pub const VERSION: u32 = 1;
/// Keys in one request.
pub const MOST_KEYS: usize = 4096;
/// Bytes of a key.
pub const MOST_KEY_BYTES: usize = 64;

/// The name of a block: the engine's digest of the tokens up to its end, and of its group of layers. Hexadecimal digits on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub Vec<u8>);

/// A file of shared memory: `rows` places of `stride` bytes; a block lies at the begin of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionSpec {
    /// Where it is, such as `/dev/shm/vllm_offload_….mmap`. Opened once; it may be unlinked then.
    pub path: PathBuf,
    /// Places.
    pub rows: u64,
    /// Bytes from one place to the next.
    pub stride: u64,
}

/// Who a client is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// What its blocks are.
    pub namespace: Namespace,
    /// Bytes of each block.
    pub block_bytes: u64,
    /// The engine's memory: [`Request::Store`] reads it, and nothing writes it unless it is the staging area, too.
    pub region: RegionSpec,
    /// What [`Request::Load`] writes.
    pub staging: RegionSpec,
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Who it is. Before anything about blocks, and once.
    Hello(Box<Hello>),
    /// Which blocks are stored.
    Has {
        /// Stands in the answer.
        id: u64,
        /// The blocks.
        keys: Vec<Key>,
        /// Keep those that are, until they are loaded or released, for a minute at the most.
        #[serde(default)]
        pin: bool,
    },
    /// Store rows of the region.
    Store {
        /// Stands in the answer.
        id: u64,
        /// The blocks, in the order of the chain.
        keys: Vec<Key>,
        /// For each, its row in the region.
        rows: Vec<u64>,
        /// The block before the first one, where there is one and it is known.
        #[serde(default)]
        after: Option<Key>,
        /// What computing one block took, in microseconds; 0: not known.
        #[serde(default)]
        compute_us: u64,
    },
    /// Load blocks into rows of the staging area.
    Load {
        /// Stands in the answer.
        id: u64,
        /// The blocks, in the order of the chain.
        keys: Vec<Key>,
        /// For each, its row in the staging area.
        rows: Vec<u64>,
    },
    /// Keep these no longer.
    Release {
        /// Stands in the answer.
        id: u64,
        /// The blocks.
        keys: Vec<Key>,
    },
    /// Answered when every job of this connection has ended; then the connection ends.
    Done {
        /// Stands in the answer.
        id: u64,
    },
    /// What the daemon holds. Needs no hello.
    Status {
        /// Stands in the answer.
        id: u64,
    },
    /// Remove every block of a namespace, for every tenant or for one. Needs no hello.
    Evict {
        /// Stands in the answer.
        id: u64,
        /// Its digest, or enough of its first digits.
        namespace: String,
        /// Whose; everybody's if left out.
        #[serde(default)]
        tenant: Option<String>,
    },
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "re", rename_all = "snake_case")]
pub enum Reply {
    /// Welcome.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The namespace's digest, in hexadecimal digits.
        namespace: String,
        /// What one connection may do.
        limits: Limits,
    },
    /// For each key, whether it is stored.
    Has {
        /// Of the request.
        id: u64,
        /// In the order of the keys.
        has: Vec<bool>,
    },
    /// A store has ended.
    Store {
        /// Of the request.
        id: u64,
        /// In the order of the keys.
        stored: Vec<Stored>,
    },
    /// A load has ended.
    Load {
        /// Of the request.
        id: u64,
        /// For each key, whether its row has it.
        loaded: Vec<bool>,
    },
    /// How many were kept until now.
    Release {
        /// Of the request.
        id: u64,
        /// Pins that were there.
        released: u64,
    },
    /// Every job has ended.
    Done {
        /// Of the request.
        id: u64,
    },
    /// What the daemon holds.
    Status {
        /// Of the request.
        id: u64,
        /// The figures.
        status: Box<Status>,
    },
    /// What left.
    Evict {
        /// Of the request.
        id: u64,
        /// Blocks, each counted once.
        blocks: u64,
        /// Bytes of all their copies.
        bytes: u64,
    },
    /// A request that was not done.
    Error {
        /// Of the request; none where it could not be read.
        id: Option<u64>,
        /// What to do about it.
        kind: Fault,
        /// For people.
        message: String,
    },
}

/// Why a request was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The request is wrong. The connection ends.
    Protocol,
    /// Too much at once: come back later.
    Busy,
    /// There is no such namespace, or more than one.
    NotFound,
    /// The store failed.
    Failed,
}

/// What became of a block that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stored {
    /// It was there.
    Present,
    /// It was read, and is on its way to the tiers, which may still decline it.
    Accepted,
    /// It is not stored: its row could not be read, or the client is gone.
    Refused,
}

/// What one connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Keys in a request.
    pub keys: u64,
    /// Stores and loads that are not answered yet.
    pub jobs: u64,
}

/// What the daemon holds and did since it started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of this daemon.
    pub version: u32,
    /// Clients that are connected.
    pub connections: u64,
    /// Namespaces that have blocks on this machine, or were said hello to.
    pub namespaces: Vec<NamespaceStatus>,
    /// Namespaces that the message had no room for.
    #[serde(default)]
    pub left_out: u64,
    /// The store's own counters.
    pub store: StoreStatus,
}

/// One namespace of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// Its digest, in hexadecimal digits.
    pub namespace: String,
    /// Whose.
    pub tenant: String,
    /// As a client described it; `None` for one that nobody said hello to since the daemon started.
    pub description: Option<Namespace>,
    /// Blocks in host memory or on disk.
    pub blocks: u64,
    /// Bytes of them in host memory.
    pub host_bytes: u64,
    /// Bytes of them on disk.
    pub disk_bytes: u64,
    /// Blocks that were asked for and are stored.
    pub hits: u64,
    /// Blocks that were asked for and are not.
    pub misses: u64,
    /// Blocks that were loaded.
    pub loaded: u64,
    /// Blocks that were to be loaded and could not be.
    pub not_loaded: u64,
    /// Blocks that were stored and not there before.
    pub stored: u64,
}

impl Status {
    /// Fits it into a message of `most` bytes: without descriptions first, then without the last namespaces.
    pub(crate) fn fit(mut self, most: usize) -> Self {
        let is_too_long = |status: &Self| serde_json::to_vec(status).is_ok_and(|body| body.len() > most);
        if is_too_long(&self) {
            self.namespaces.iter_mut().for_each(|namespace| namespace.description = None);
        }
        while is_too_long(&self) && !self.namespaces.is_empty() {
            let kept = self.namespaces.len() * 7 / 8;
            self.left_out += (self.namespaces.len() - kept) as u64;
            self.namespaces.truncate(kept);
        }
        self
    }
}

impl Request {
    /// What stands in the answer; a hello has none.
    pub fn id(&self) -> Option<u64> {
        match self {
            Self::Hello(_) => None,
            Self::Has { id, .. }
            | Self::Store { id, .. }
            | Self::Load { id, .. }
            | Self::Release { id, .. }
            | Self::Done { id }
            | Self::Status { id }
            | Self::Evict { id, .. } => Some(*id),
        }
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = hex::decode(&text).ok().filter(|bytes| (1..=MOST_KEY_BYTES).contains(&bytes.len()));
        let wrong = || serde::de::Error::custom(format!("a key is 1 to {MOST_KEY_BYTES} bytes, in hexadecimal digits"));
        bytes.map(Self).ok_or_else(wrong)
    }
}
