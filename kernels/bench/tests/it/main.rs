//! `ragstone-gpu` and the kit that brings it to a machine with a GPU, on a stand-in for the driver (`kernels/cuda/tests/standin`).

mod kit;
mod parity;
mod standin;
