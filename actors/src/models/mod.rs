//! The models that a service has: how the language model is loaded, what embedding and encoding cost, what was measured.

pub mod costs;
pub mod embedding;
pub(crate) mod encoder;
pub(crate) mod folders;
pub mod kernel_choice;
pub mod language_model;
pub(crate) mod measured;
