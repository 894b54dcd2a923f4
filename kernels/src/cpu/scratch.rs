//! Memory that a thread keeps for its next task.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use crate::aligned::Aligned;

thread_local! {
    static SPARE: Cell<Option<Aligned<f32>>> = const { Cell::new(None) };
}

/// f32 of any value that start on a cache line. The memory is the thread's own and is kept, so that nothing is allocated
/// in the loop over layers; one that is taken while another is held gets memory of its own.
pub(crate) struct Scratch {
    memory: Aligned<f32>,
    len: usize,
}

impl Scratch {
    /// `len` values.
    pub(crate) fn take(len: usize) -> Self {
        let mut memory = SPARE.take().unwrap_or_default();
        memory.grow(len);
        Self { memory, len }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SPARE.set(Some(std::mem::take(&mut self.memory)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_and_what_is_held_is_apart() {
        let mut outer = Scratch::take(100);
        outer.fill(1.0);
        Scratch::take(50).fill(2.0);
        assert!(outer.iter().all(|value| *value == 1.0));
        let first = outer.as_ptr() as usize;
        assert_eq!(first % 64, 0);
        drop(outer);
        assert_eq!(Scratch::take(100).as_ptr() as usize, first);
    }
}
