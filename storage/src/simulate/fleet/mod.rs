//! Many nodes on one bucket: each is the simulated node of [`service`](super::service), with its tiers, policies and plans; between them stand
//! a router, the bucket's bandwidth, the corpus's commits and the log of what was removed.
//!
//! ```text
//! question -> router (route.rs) -> node: look-up and plan (service.rs) -> loads (link.rs) -> engine (engine.rs) -> answer
//!                ^ 503, or the node is gone: again elsewhere, twice            |
//!                                                        uploads, entries computed beside
//! change -> commit at some node, once an interval (corpus.rs) -> log -> every node's next look -> out of its tiers
//! ```
//! Time is counted, not slept; what is drawn is drawn from a seed.
//!
//! What is left out: transfers do not stop in an outage, and the bucket keeps what it has (its collector leaves alone what is younger than an hour).

mod corpus;
mod engine;
mod kit;
mod link;
mod load;
mod machine;
mod moment;
mod options;
mod outcome;
mod plan;
mod questions;
mod route;
mod run;
mod sharing;

use self::kit::{Calendar, Fast};
pub use self::load::{Asked, Load};
pub use self::machine::{BucketPrices, Machine, ModelShape, Offers};
pub use self::options::{Bucket, Corpus, Faults, Fleet, MOST_NODES};
pub use self::outcome::{Changes, Hits, Outcome, stops_scaling};
pub use self::plan::{Money, PlanReport, Planned, Wanted, plan_fleet};
pub use self::route::Routing;
use self::run::Run;
use crate::Result;

/// Runs the questions through the nodes. `progress` is told how many are done.
///
/// # Errors
/// `InvalidInput` for nodes that cannot be.
pub fn replay_fleet(fleet: &Fleet, asked: &Asked, progress: &dyn Fn(usize)) -> Result<Outcome> {
    Ok(Run::<Fast>::new(fleet, asked)?.until_all_ended(progress)?.outcome())
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
