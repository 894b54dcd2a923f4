//! What goes on beside answers: the corpus and what leaves it, ingests, warm-ups, calibration, other nodes, the bucket's collector.

pub mod calibration;
pub(crate) mod collector;
pub mod ingests;
pub mod library;
pub(crate) mod nodes;
pub mod renewal;
pub mod schemas;
pub mod warm;
