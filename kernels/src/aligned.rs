//! Memory on cache-line borders, so that a 512-bit load never touches two lines.

use std::ops::{Deref, DerefMut};

/// Plain numbers for which all-zero bits are the number zero.
///
/// # Safety
/// All bit patterns of zeros MUST be a valid value, and 16 values MUST fill 64 bytes.
pub(crate) unsafe trait Number: Copy + Send + Sync {}
// SAFETY: four bytes each, and zero bits are 0.0.
unsafe impl Number for f32 {}
// SAFETY: four bytes each, and zero bits are 0.
unsafe impl Number for u32 {}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line<T>([T; 16]);

/// A fixed number of values that start on a cache line. The memory comes zeroed from the system, so that what is
/// never written is never resident.
pub(crate) struct Aligned<T> {
    lines: Box<[Line<T>]>,
    len: usize,
}

impl<T: Number> Aligned<T> {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        const { assert!(size_of::<T>() == 4) };
        let lines = Box::<[Line<T>]>::new_zeroed_slice(len.div_ceil(16));
        // SAFETY: zero bits are valid numbers.
        Self { lines: unsafe { lines.assume_init() }, len }
    }
}

impl<T: Number> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least `len` values, one after the other.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the lines hold at least `len` values, one after the other.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> std::fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} values)", self.len)
    }
}

/// A pointer that several threads write through.
///
/// Whoever makes one answers for the threads writing disjoint places only, while nobody else reads them.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(*mut f32);

impl SharedMut {
    pub(crate) fn new(values: &mut [f32]) -> Self {
        Self(values.as_mut_ptr())
    }

    /// # Safety
    /// `index` must be inside the values, or one behind them.
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}

// SAFETY: a pointer is a number; what is done with it is answered for where it is dereferenced.
unsafe impl Send for SharedMut {}
// SAFETY: as above.
unsafe impl Sync for SharedMut {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_start_on_a_line_and_are_zero() {
        for len in [0, 1, 16, 17, 1000] {
            let mut values = Aligned::<f32>::zeros(len);
            assert_eq!(values.len(), len);
            assert_eq!(values.as_ptr() as usize % 64, 0);
            assert!(values.iter().all(|value| *value == 0.0));
            values.fill(2.0);
            assert_eq!(values.iter().sum::<f32>(), 2.0 * len as f32);
        }
    }
}
