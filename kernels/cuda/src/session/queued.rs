//! What a session did, in counts.

use std::iter::Sum;

/// What a session has given the driver to do, by calls. A graph counts once, however many kernels it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queued {
    /// Kernels that were launched one by one; those that were captured, too.
    pub kernels: u64,
    /// Graphs.
    pub graphs: u64,
    /// Copies to the device, from it and within it.
    pub copies: u64,
    /// Graphs that the driver refused: their kernels are launched one by one.
    pub refused: u64,
}

impl Sum for Queued {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            kernels: sum.kernels + one.kernels,
            graphs: sum.graphs + one.graphs,
            copies: sum.copies + one.copies,
            refused: sum.refused + one.refused,
        })
    }
}
