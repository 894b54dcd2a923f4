//! Rows on their way through the layers.

use std::sync::OnceLock;

use super::layer::Hidden;
use super::parallel::AllSteps;
use super::session::Buffer;
use ragstone_kernels::error::Result;

/// Hidden states in device memory, f32 `[count, hidden]`, whole on every rank. Rows that enter the first layer get there when an operation wants them: until then
/// they are tokens, of which a step's are uploaded together.
#[derive(Debug)]
pub struct CudaRows {
    /// What they were embedded from; nothing once they are something else.
    tokens: Option<Tokens>,
    /// One a rank.
    memory: OnceLock<Vec<Buffer>>,
    count: usize,
}

#[derive(Debug)]
struct Tokens {
    ids: Vec<u32>,
    positions: Vec<u32>,
}

impl CudaRows {
    /// Tokens, each at its position.
    pub(super) fn of_tokens(ids: &[u32], positions: &[u32]) -> Self {
        let tokens = Tokens { ids: ids.to_vec(), positions: positions.to_vec() };
        Self { tokens: Some(tokens), memory: OnceLock::new(), count: ids.len() }
    }

    /// What was computed; nothing where that failed.
    pub(super) fn of_memory(buffers: Option<Vec<Buffer>>, count: usize) -> Self {
        Self { tokens: None, memory: buffers.map_or_else(OnceLock::new, OnceLock::from), count }
    }

    /// Rows of several, if all of them are still tokens.
    pub(super) fn pick(parts: &[(&Self, &[usize])]) -> Option<Self> {
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        for (from, rows) in parts {
            let tokens = from.tokens.as_ref()?;
            ids.extend(rows.iter().map(|row| tokens.ids[*row]));
            positions.extend(rows.iter().map(|row| tokens.positions[*row]));
        }
        Some(Self::of_tokens(&ids, &positions))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The tokens that they still are, and their positions.
    pub(super) fn tokens(&self) -> Option<(&[u32], &[u32])> {
        self.tokens.as_ref().map(|tokens| (&tokens.ids[..], &tokens.positions[..]))
    }

    /// The rows in the memory of each rank.
    ///
    /// # Errors
    /// The driver's; `DeviceLost` for what lay in an earlier session's memory.
    pub(super) fn hidden(&self, steps: &AllSteps<'_>) -> Result<Vec<Hidden>> {
        if let (None, Some(tokens)) = (self.memory.get(), &self.tokens) {
            let rows = steps.embed(&tokens.ids, &tokens.positions)?;
            // Of two threads that embed them, either has the same rows.
            let _ = self.memory.set(rows);
        }
        let memory = steps.on.own(self.memory.get().map(Vec::as_slice), |buffer| buffer)?;
        Ok(memory.iter().map(|buffer| Hidden { start: buffer.pointer(), rows: self.count }).collect())
    }

    /// The same, to be written to.
    pub(super) fn hidden_to_change(&mut self, steps: &AllSteps<'_>) -> Result<Vec<Hidden>> {
        let hidden = self.hidden(steps);
        self.tokens = None;
        hidden
    }
}
