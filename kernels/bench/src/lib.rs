//! What kernels and models take, and whether a GPU computes what the processor does: what `ragstone bench` and the program `ragstone-gpu` have in
//! common.
//!
//! `ragstone-gpu` is made of the kernels alone, so that it is small: it is brought to machines that have a GPU and little else (`ops/gpu/kit`).
//!
//! ```text
//! model      a whole model: prefill and decode
//! predicted  what these take at least
//! gpu        products and attention of a GPU, one by one
//! parity     every kernel of a GPU beside the host, each family in a process of its own
//! golden     a model's answers on a GPU beside those of the processor in f32
//! cases      shapes and results of kernels, and measuring them in turn
//! shape      models of random weights
//! ```

pub mod cases;
pub mod golden;
pub mod gpu;
mod machine;
pub mod model;
pub mod parity;
mod predicted;
pub mod realtime;
pub mod shape;
mod spread;

pub use machine::Machine;
use ragstone_env::error;
pub use shape::Shape;
pub use spread::{Percentiles, Spread};
