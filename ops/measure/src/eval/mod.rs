//! Measures retrieval and answers on data sets of questions that come with their own passages.
//!
//! ```text
//! dataset -> variants -> answers -asks-> journal -> Answered -> report (means, bootstrap) -> table, JSON, plot
//! ```

pub mod answers;
pub mod bootstrap;
pub mod chart;
pub mod dataset;
pub mod journal;
mod map;
pub mod plot;
pub mod report;
pub mod retrieval;
pub mod rouge;
pub mod score;
pub mod table;
pub mod variant;
