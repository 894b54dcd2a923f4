//! The CPU backend: kernels over plain slices, on every instruction set that [`simd`] knows.

pub mod activation;
pub(crate) mod aligned;
pub mod attention;
mod backend;
pub(crate) mod caches;
pub(crate) mod crew;
pub mod deviation;
pub mod linear;
pub mod measure;
pub mod model;
pub mod numa;
pub mod pool;
pub mod profile;
pub mod rope;
pub(crate) mod scratch;
pub mod simd;
