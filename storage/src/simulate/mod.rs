//! The simulator: a workload against the production tree, policies and plan, without a model.
//!
//! What is simulated is which entries are there when a request comes. Times are not slept but taken from a measured grid of
//! prefill times, [`crate::cost::CostGrid`]; the scheduling times in the report are real. [`replay`] asks what a policy keeps of one
//! tier, or two in one tree; [`replay_service`] what that is worth on a node with all its tiers, whose loads take time; [`replay_fleet`] what many such nodes
//! on one bucket do.

mod bound;
mod family;
mod fleet;
mod habit;
mod prices;
mod rag;
mod random;
mod report;
mod run;
mod service;
mod trace;
mod workload;

pub use self::bound::{BOUND_METHOD, Bound, bound};
pub use self::family::{FAMILY_REQUESTS, Family};
pub use self::fleet::{
    Asked, Bucket, BucketPrices, Changes, Corpus, Faults, Fleet, Hits, Load, MOST_NODES, Machine, ModelShape, Money,
    Offers, Outcome as FleetOutcome, PlanReport, Planned, Routing, Wanted, plan_fleet, replay_fleet, stops_scaling,
};
pub use self::prices::{TIGHT_BOUND_METHOD, tight_bound};
pub use self::rag::{Drift, Lengths, RagWorkload, Skew};
pub use self::report::{AtCapacity, Comparison, PolicyOutcome, Report, compare};
pub use self::run::{Capacity, Outcome, Replay, replay};
pub use self::service::{
    BytesIn, ServiceAtCapacity, ServiceComparison, ServiceOutcome, ServiceReplay, ServiceReport, ServiceRow,
    ServiceTiers, compare_service, replay_service, reuse_options,
};
pub use self::trace::{TRACE_BLOCK_TOKENS, read_trace};
pub use self::workload::{PathNode, Request, Workload, WorkloadSummary};

#[cfg(test)]
mod tests;
