//! The CUDA backend, on a stand-in for the driver that runs the same kernels on the CPU and checks each access (`tests/standin/README.md`).

mod check;
mod graphs;
mod lost;
mod parallel;
mod parity;
mod quantized;
mod standin;
mod stored;
