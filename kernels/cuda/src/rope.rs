//! The angles of positions in device memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::launch::Turn;
use super::session::{Buffer, Session};
use ragstone_kernels::error::Result;
use ragstone_kernels::rope::Rope;

/// What turns K or Q, and the memory that it reads: to be held until the kernel is queued.
pub(super) type HeldTurn = (Turn, Option<Arc<Buffer>>);

/// Positions whose angles are kept at least.
const FIRST_POSITIONS: usize = 4096;

/// A rotation, and the angles of all positions below one that grows with the positions met.
#[derive(Debug)]
pub(super) struct Angles {
    rope: Rope,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    positions: usize,
    /// `[positions][2][pairs]`, f32.
    angles: Option<Arc<Buffer>>,
}

impl Angles {
    pub(super) fn new(rope: Rope) -> Self {
        Self { rope, table: Mutex::default() }
    }

    /// What turns K or Q to `positions`.
    pub(super) fn turn(&self, session: &Arc<Session>, positions: &[u32]) -> Result<HeldTurn> {
        let len = self.rope.angles_len();
        if len == 0 {
            return Ok((Turn { angles: 0, pairs: 0 }, None));
        }
        let wanted = positions.iter().max().map_or(0, |position| *position as usize + 1);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.angles.is_none() || table.positions < wanted {
            let positions = wanted.next_power_of_two().max(FIRST_POSITIONS);
            let mut angles = vec![0.0_f32; positions * len];
            angles.chunks_exact_mut(len).zip(0..).for_each(|(to, position)| self.rope.copy_angles(position, to));
            *table = Table { positions, angles: Some(Arc::new(session.upload(&angles)?)) };
        }
        let angles = table.angles.clone();
        let start = angles.as_ref().map_or(0, |buffer| buffer.pointer());
        Ok((Turn { angles: start, pairs: (len / 2) as u32 }, angles))
    }
}
