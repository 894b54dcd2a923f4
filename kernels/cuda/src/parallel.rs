//! One model on several GPUs ("tensor parallelism"): each of them, a rank, has whole KV heads and a share of every matrix's outputs.
//!
//! Every value is computed by one rank alone, by the chain of sums that a single GPU makes. What the next product takes whole is gathered, which
//! only copies. So bits do not depend on how many GPUs there are: `docs/decisions/0090-tensor-parallel.md`.
//!
//! ```text
//! list      which GPUs
//! split     which rank has what
//! weights   each rank's share of a checkpoint
//! ranks     the ranks, and what goes from one to another
//! layer     the steps of a layer, over all of them
//! mixture   those of a mixture of experts
//! ```

mod layer;
mod list;
mod mixture;
mod ranks;
mod split;
mod weights;

pub(super) use layer::AllSteps;
pub use list::GpuList;
pub(super) use ranks::{Piece, Ranks};
pub(super) use split::joined;
pub(super) use weights::OnRanks;
