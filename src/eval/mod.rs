//! Measures retrieval and answers on data sets of questions that come with their own passages.

pub mod answers;
pub mod dataset;
pub mod report;
pub mod retrieval;
pub mod score;
