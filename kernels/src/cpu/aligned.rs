//! Memory on cache-line borders, so that a 512-bit load never touches two lines.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// From this size on, memory is mapped on its own, and in huge pages where the system has them: a stream of weights
/// then misses the address translation once in two megabytes, and reads a quarter faster.
const HUGE: usize = 4 << 20;

/// Plain numbers for which all-zero bits are the number zero.
///
/// # Safety
/// All bit patterns of zeros MUST be a valid value, and the size MUST divide 64.
pub(crate) unsafe trait Number: Copy + Send + Sync {}
// SAFETY: four bytes each, and zero bits are 0.0.
unsafe impl Number for f32 {}
// SAFETY: four bytes each, and zero bits are 0.
unsafe impl Number for u32 {}
// SAFETY: as above.
unsafe impl Number for i32 {}
// SAFETY: two bytes each, and zero bits are 0.
unsafe impl Number for u16 {}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

enum Memory {
    Small(Box<[Line]>),
    Mapped(MmapMut),
}

/// A number of values that start on a cache line. The memory comes zeroed from the system, so that what is
/// never written is never resident.
pub(crate) struct Aligned<T> {
    memory: Memory,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Number> Aligned<T> {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("an array that no memory holds");
        let small = || {
            let lines = Box::<[Line]>::new_zeroed_slice(bytes.div_ceil(64));
            // SAFETY: zero bits are valid bytes.
            Memory::Small(unsafe { lines.assume_init() })
        };
        let mapped = || {
            let memory = MmapMut::map_anon(bytes).ok()?;
            // A system without huge pages refuses, and loses only speed.
            #[cfg(target_os = "linux")]
            let _ = memory.advise(memmap2::Advice::HugePage);
            Some(Memory::Mapped(memory))
        };
        // Miri knows of no huge pages.
        let memory = if bytes >= HUGE && !cfg!(miri) { mapped().unwrap_or_else(small) } else { small() };
        Self { memory, len, values: PhantomData }
    }

    /// Makes this at least `len` long; the values are lost where it was shorter.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeros(len);
        }
    }

    /// The memory as bytes, whole pages but for the last, if it is mapped on its own: it can be placed before it is written.
    pub(crate) fn mapping(&mut self) -> Option<&mut [u8]> {
        match &mut self.memory {
            Memory::Small(_) => None,
            Memory::Mapped(memory) => Some(memory),
        }
    }

    fn start(&self) -> *const u8 {
        match &self.memory {
            Memory::Small(lines) => lines.as_ptr().cast(),
            Memory::Mapped(memory) => memory.as_ptr(),
        }
    }
}

impl<T: Number> Default for Aligned<T> {
    fn default() -> Self {
        Self::zeros(0)
    }
}

impl<T: Number> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds at least `len` values, one after the other, on a border that suits them.
        unsafe { std::slice::from_raw_parts(self.start().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let start = match &mut self.memory {
            Memory::Small(lines) => lines.as_mut_ptr().cast(),
            Memory::Mapped(memory) => memory.as_mut_ptr().cast(),
        };
        // SAFETY: as above, and the values are borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
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
pub(crate) struct SharedMut<T = f32>(*mut T);

impl<T: Copy> SharedMut<T> {
    pub(crate) fn new(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr())
    }

    /// # Safety
    /// `index` must be inside the values, or one behind them.
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}

// SAFETY: a pointer is a number; what is done with it is answered for where it is dereferenced.
unsafe impl<T> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedMut<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_start_on_a_line_and_are_zero() {
        let large = if cfg!(miri) { 5000 } else { HUGE };
        for len in [0, 1, 16, 17, 1000, large] {
            let mut values = Aligned::<f32>::zeros(len);
            assert_eq!(values.len(), len);
            assert_eq!(values.as_ptr() as usize % 64, 0);
            assert!(values.iter().all(|value| *value == 0.0));
            values.fill(2.0);
            assert_eq!(values.iter().sum::<f32>(), 2.0 * len as f32);
        }
    }
}
