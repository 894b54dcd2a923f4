//! Device memory with an owner.

use std::sync::Arc;

use super::Session;

/// Device memory. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(super) session: Arc<Session>,
    pub(super) start: u64,
    pub(super) bytes: usize,
    /// Of launches that were recorded: it stays theirs.
    pub(super) is_scratch: bool,
}

impl Buffer {
    /// Where it begins, in the device's memory.
    pub(crate) fn pointer(&self) -> u64 {
        self.start
    }

    /// Bytes, rounded up.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Its session.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        if self.is_scratch {
            state.graphs.give_back(self.start, self.bytes);
        } else if self.session.keeps_freed {
            state.free.entry(self.bytes).or_default().push(self.start);
        } else if self.session.context.enter().is_ok() {
            // SAFETY: it was used on the compute stream alone, and nobody has it any more.
            unsafe { state.compute.free(self.start) };
        }
    }
}
