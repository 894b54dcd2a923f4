//! Replacement policies: which entry leaves a tier when room is needed.
//!
//! A policy knows ids, sizes, costs and hits, and nothing else: no keys, no tiers, no parents. Which entries may leave at
//! all (nothing pinned, no parent before its children) is the business of whoever owns it, [`crate::tree`]; it tells the
//! policy by [`Policy::set_evictable`]. Every operation takes O(log n) time at most, S3-FIFO's choice amortised.
//!
//! | policy | leaves first | what it remembers of entries that left |
//! |---|---|---|
//! | [`PolicyKind::Pgdsf`] | least `clock + frequency · mean cost a token` | frequency within a window, cost |
//! | [`PolicyKind::Gdsf`] | least `clock + frequency` | nothing |
//! | [`PolicyKind::Lru`] | least recently used | nothing |
//! | [`PolicyKind::Lfu`] | least frequently used since it came | nothing |
//! | [`PolicyKind::S3Fifo`] | not used again while in the small queue | the ids that left lately |
//! | [`PolicyKind::HitDensity`] | least `mean cost a token · learned rate of reuse` | uses, cost, time of the last use |
//! | [`PolicyKind::Adaptive`] | what the best of hit density, PGDSF and LRU would not hold | what these three do |

mod adaptive;
mod frequency;
mod hit_density;
mod lru;
mod order;
mod pgdsf;
mod ranked;
mod s3_fifo;
pub mod shares;

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::adaptive::Adaptive;
pub use self::frequency::{Gdsf, Lfu};
pub use self::hit_density::HitDensity;
pub use self::lru::Lru;
pub(crate) use self::order::{Order, Rank};
pub use self::pgdsf::Pgdsf;
pub use self::s3_fifo::S3Fifo;
use crate::{Error, Result};

/// A small number that stands for an entry. Policies keep their state in vectors indexed by it, so that whoever hands
/// them out must keep them dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u32);

impl Id {
    /// As an index into a vector.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One request's use of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Access {
    /// Whether the entry's KV was there, in whichever tier; if not, the request computed it.
    pub is_cached: bool,
    /// `T(α, β) / β`, in microseconds a token: the request's prefill time by its cached tokens α and new tokens β, spread
    /// over the new ones. Only read if the entry was not cached.
    pub cost_per_token: f64,
    /// The number of the request: logical time, never falling.
    pub request: u64,
    /// Uses so far of the entry before it in its path, this request's included; 0 for the first of a path.
    pub parent_uses: u64,
    /// The entry that it stands behind, whether the request used that or not.
    pub parent: Option<Id>,
    /// 0 for a request's use. More: it was used so often before, by an earlier process say, and nobody knows when; then
    /// `request` is only the running one, and nothing is to be learned about times.
    pub past_uses: u32,
}

impl Access {
    /// Uses that it stands for.
    pub fn uses(&self) -> u32 {
        self.past_uses.max(1)
    }
}

/// The order in which entries leave one tier.
///
/// An id is unknown, known, resident (between [`insert`](Self::insert) and [`evict`](Self::evict) or
/// [`remove`](Self::remove)), and while resident evictable or not. Calls that do not fit the id's state do nothing.
pub trait Policy: Send + fmt::Debug {
    /// Which policy this is.
    fn kind(&self) -> PolicyKind;

    /// A request used `id`, resident or not. To be called before the insertions that the request leads to.
    fn access(&mut self, id: Id, access: Access);

    /// `id`, of `size_bytes`, is to enter the tier, and room is about to be made for it.
    fn arriving(&mut self, _id: Id, _size_bytes: u64) {}

    /// `id`, of `size_bytes`, entered the tier. It is not evictable yet.
    fn insert(&mut self, id: Id, size_bytes: u64);

    /// Whether a resident `id` may be chosen to leave.
    fn set_evictable(&mut self, id: Id, is_evictable: bool);

    /// Who of the evictable leaves next; `None` if nothing is evictable. Asking may move entries on in a policy's queues, so
    /// that the answer is to be acted on, by [`evict`](Self::evict).
    fn victim(&mut self) -> Option<Id>;

    /// `id` was chosen by [`victim`](Self::victim) and left.
    fn evict(&mut self, id: Id);

    /// `id` left for another reason: it was damaged, or its document is gone.
    fn remove(&mut self, id: Id);

    /// Nobody will speak of `id` again, until the number is given to another entry.
    fn forget(&mut self, id: Id);
}

/// The policies to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Prefix-aware Greedy-Dual-Size-Frequency: RAGCache, section 5.1, algorithm 1, equations 1 to 3.
    #[default]
    Pgdsf,
    /// Greedy-Dual-Size-Frequency (Cherkasova 1998) with a cost proportional to the size, as RAGCache's ablation has it.
    Gdsf,
    /// Least recently used.
    Lru,
    /// Least frequently used since it entered the tier; among equals the least recently used.
    Lfu,
    /// S3-FIFO (Yang et al., SOSP 2023).
    #[serde(rename = "s3-fifo")]
    S3Fifo,
    /// Expected savings for the room taken, from learned reuse times: ours.
    HitDensity,
    /// What the best of hit density, PGDSF and LRU would hold: ours.
    Adaptive,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Pgdsf, Self::Gdsf, Self::Lru, Self::Lfu, Self::S3Fifo, Self::HitDensity, Self::Adaptive];

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pgdsf => "pgdsf",
            Self::Gdsf => "gdsf",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::S3Fifo => "s3-fifo",
            Self::HitDensity => "hit-density",
            Self::Adaptive => "adaptive",
        }
    }

    /// A policy for a tier of `capacity_bytes`.
    pub fn build(self, capacity_bytes: u64) -> Box<dyn Policy> {
        match self {
            Self::Pgdsf => Box::new(Pgdsf::default()),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Lru => Box::new(Lru::default()),
            Self::Lfu => Box::new(Lfu::default()),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity_bytes)),
            Self::HitDensity => Box::new(HitDensity::default()),
            Self::Adaptive => Box::new(Adaptive::new(capacity_bytes)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            Error::invalid_input(format!("policy '{text}' is unknown; use {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

#[cfg(test)]
mod tests;
