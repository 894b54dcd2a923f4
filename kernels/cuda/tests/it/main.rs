//! The CUDA backend, on a stand-in for the driver that runs the same kernels on the CPU and checks each access (`tests/standin/README.md`).

mod check;
mod figures;
#[allow(dead_code, reason = "the tests of the CPU use more of it")]
#[path = "../../../tests/it/fixtures.rs"]
mod fixtures;
#[allow(dead_code, reason = "as above")]
#[path = "../../../tests/it/forward.rs"]
mod forward;
mod graphs;
mod loading;
mod lost;
mod parallel;
mod parity;
mod quantized;
mod standin;
mod stored;
