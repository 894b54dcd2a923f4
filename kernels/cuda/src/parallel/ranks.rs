//! The ranks of a model, and what goes from one to another: copies alone, each queued on the stream of the GPU that it goes to, with events
//! between the streams. Nothing waits on the host, or for a whole GPU.

use std::ops::Range;
use std::sync::Arc;

use super::list::GpuList;
use super::split::Split;
use crate::driver::Event;
use crate::launch;
use crate::model::Loaded;
use crate::session::{Buffer, Session};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// Rows that one launch of `copy_parts` takes.
const ROWS_A_LAUNCH: usize = 65_535;

/// What a rank has of some rows: `width` bytes of each, one behind the other.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) buffer: Buffer,
    pub(crate) width: usize,
}

/// The same, of memory that somebody holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) width: usize,
}

/// A model in the memory of one GPU, or of several that each have a share.
#[derive(Debug)]
pub(crate) struct Ranks {
    // Before the ranks: events go while their contexts are there.
    /// Of each rank, on its compute stream: what it gives away is written. None of a single rank.
    ready: Vec<Event>,
    /// Of each rank, on its compute stream: what it took from others is copied.
    taken: Vec<Event>,
    pub(crate) each: Vec<Loaded>,
    pub(crate) split: Split,
}

impl Ranks {
    /// Takes the GPUs into use, and has `load` bring each rank's share of the model to its session.
    ///
    /// # Errors
    /// `InvalidInput` where they are too many, or unlike each other; as [`Session::start`], and those of `load`.
    pub(crate) fn start(
        config: &ModelConfig,
        gpus: &GpuList,
        load: impl FnOnce(&[Arc<Session>], &Split) -> Result<Vec<Loaded>>,
    ) -> Result<Self> {
        let split = Split::new(config.kv_heads, gpus.as_slice().len())?;
        let sessions = gpus.as_slice().iter().map(|ordinal| Session::start(*ordinal)).collect::<Result<Vec<_>>>()?;
        let capabilities: Vec<_> = sessions.iter().map(|session| session.gpu().compute_capability).collect();
        check_alike(gpus, &capabilities)?;
        let (mut ready, mut taken) = (Vec::new(), Vec::new());
        if sessions.len() > 1 {
            for session in &sessions {
                for other in sessions.iter().filter(|other| !Arc::ptr_eq(session, other)) {
                    session.context().reach(other.context())?;
                }
                ready.push(session.queue(|_| Event::new())?);
                taken.push(session.queue(|_| Event::new())?);
            }
        }
        let each = load(&sessions, &split)?;
        Ok(Self { ready, taken, each, split })
    }

    /// How many there are; at least one.
    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether a GPU does nothing for the model any more. The others do not either, then.
    pub(crate) fn is_lost(&self) -> bool {
        self.each.iter().any(|rank| rank.session.is_lost())
    }

    /// Whether no GPU is lost so far. Asked where only one of them gave a result: it may have been made of what a lost one gave.
    ///
    /// # Errors
    /// `DeviceLost` where one is.
    pub(crate) fn check(&self) -> Result<()> {
        if self.len() > 1 && self.is_lost() {
            return Err(Error::new(ErrorKind::DeviceLost, "one of the model's GPUs is gone"));
        }
        Ok(())
    }

    /// What lies in memory of these ranks' sessions, one each. `buffer` says where.
    ///
    /// # Errors
    /// `DeviceLost` for what went with an earlier one.
    pub(crate) fn own<'a, T>(&self, of_ranks: Option<&'a [T]>, buffer: impl Fn(&T) -> &Buffer) -> Result<&'a [T]> {
        let is_own = |(of_rank, rank): (&T, &Loaded)| Arc::ptr_eq(buffer(of_rank).session(), &rank.session);
        of_ranks
            .filter(|of_ranks| of_ranks.len() == self.len() && of_ranks.iter().zip(&self.each).all(is_own))
            .ok_or_else(|| Error::new(ErrorKind::DeviceLost, "what lay in the GPU's memory is gone"))
    }

    /// Rows of which each rank has a slice, whole on each rank. A single rank's is given back as it is.
    pub(crate) fn all_gather(&self, slices: Vec<Slice>, rows: usize) -> Result<Vec<Buffer>> {
        if self.len() == 1 {
            return Ok(slices.into_iter().map(|slice| slice.buffer).collect());
        }
        let piece = |slice: &Slice| Piece { start: slice.buffer.pointer(), width: slice.width };
        let pieces: Vec<Piece> = slices.iter().map(piece).collect();
        self.exchange(0..self.len(), &pieces, rows)
    }

    /// Rows of which each rank has a piece, whole on the first rank: where they begin, and the memory to be held for it. A single rank's are where
    /// they were.
    pub(crate) fn gather_to_first(&self, pieces: &[Piece], rows: usize) -> Result<(u64, Option<Buffer>)> {
        if let [piece] = pieces {
            return Ok((piece.start, None));
        }
        let whole = self.exchange(0..1, pieces, rows)?.pop();
        Ok((whole.as_ref().map_or(0, Buffer::pointer), whole))
    }

    /// Copies every rank's piece of some rows to `readers`, and puts them side by side there. When it returns, the pieces may be given back:
    /// what their ranks queue from then on comes after the copies.
    fn exchange(&self, readers: Range<usize>, pieces: &[Piece], rows: usize) -> Result<Vec<Buffer>> {
        let bytes = rows * pieces.iter().map(|piece| piece.width).sum::<usize>();
        // Memory first: what fails for the lack of it has queued nothing.
        let landed = readers.clone().map(|reader| self.each[reader].session.allocate(bytes));
        let landed = landed.collect::<Result<Vec<_>>>()?;
        for (rank, ready) in self.each.iter().zip(&self.ready) {
            rank.session.queue(|stream| ready.record(stream))?;
        }
        for (reader, to) in readers.clone().zip(&landed) {
            self.receive(reader, to.pointer(), pieces, rows)?;
        }
        for (owner, rank) in self.each.iter().enumerate() {
            for reader in readers.clone().filter(|reader| *reader != owner) {
                rank.session.queue(|stream| stream.wait_for(&self.taken[reader]))?;
            }
        }
        readers.zip(landed).map(|(reader, landed)| self.side_by_side(reader, landed, pieces, rows)).collect()
    }

    /// Queues the copies to one rank, each piece whole, one behind the other.
    fn receive(&self, reader: usize, mut to: u64, pieces: &[Piece], rows: usize) -> Result<()> {
        let rank = &self.each[reader];
        rank.session.queue(|stream| {
            for (_, ready) in self.ready.iter().enumerate().filter(|(owner, _)| *owner != reader) {
                stream.wait_for(ready)?;
            }
            for (owner, piece) in self.each.iter().zip(pieces) {
                let bytes = rows * piece.width;
                if bytes > 0 {
                    let (here, there) = (rank.session.context(), owner.session.context());
                    // SAFETY: the piece is written when `ready` is done, and stays until `taken` is; both have as many bytes.
                    unsafe { stream.copy_across((to, here), (piece.start, there), bytes) }?;
                }
                to += bytes as u64;
            }
            self.taken[reader].record(stream)
        })
    }

    /// Rows of pieces that lie one behind the other.
    fn side_by_side(&self, reader: usize, landed: Buffer, pieces: &[Piece], rows: usize) -> Result<Buffer> {
        let width = pieces.iter().map(|piece| piece.width).sum::<usize>();
        if rows <= 1 || pieces.iter().any(|piece| piece.width == width) {
            return Ok(landed);
        }
        let session = &self.each[reader].session;
        let whole = session.allocate(rows * width)?;
        let (mut from, mut column) = (landed.pointer(), 0);
        for piece in pieces {
            session.copy_rows((whole.pointer() + column, width), (from, piece.width), rows, piece.width)?;
            from += (rows * piece.width) as u64;
            column += piece.width as u64;
        }
        Ok(whole)
    }
}

impl Session {
    /// Queues copying `width` bytes of each of some rows, from one distance between rows to another.
    pub(crate) fn copy_rows(
        &self,
        (to, to_stride): (u64, usize),
        (from, from_stride): (u64, usize),
        rows: usize,
        width: usize,
    ) -> Result<()> {
        if width == 0 {
            return Ok(());
        }
        for first in (0..rows).step_by(ROWS_A_LAUNCH) {
            let (to, from) = (to + (first * to_stride) as u64, from + (first * from_stride) as u64);
            let count = (rows - first).min(ROWS_A_LAUNCH) as u32;
            let (to, from) = ((to, to_stride as u64), (from, from_stride as u64));
            self.launch(&launch::copy_parts(to, from, count, width as u64))?;
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // No memory goes while another rank may still copy from it. An error here says that a GPU is lost, which copies nothing any more.
        if self.len() > 1 {
            self.each.iter().for_each(|rank| drop(rank.session.finish()));
        }
    }
}

/// Refuses GPUs of several kinds: their compilers may round a function in another way.
fn check_alike(gpus: &GpuList, capabilities: &[(u32, u32)]) -> Result<()> {
    match gpus.as_slice().iter().zip(capabilities).find(|(_, capability)| **capability != capabilities[0]) {
        None => Ok(()),
        Some((other, capability)) => {
            let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
            Err(Error::invalid_input(format!(
                "GPU {} has compute capability {}, GPU {other} has {}: name GPUs that are alike, as they have to compute the same bits",
                gpus.as_slice()[0],
                text(capabilities[0]),
                text(*capability)
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_several_kinds_are_refused() {
        let list = GpuList::new(vec![2, 0, 1]).unwrap();
        assert!(check_alike(&list, &[(9, 0), (9, 0), (9, 0)]).is_ok());
        let error = check_alike(&list, &[(9, 0), (8, 0), (9, 0)]).unwrap_err().to_string();
        assert!(error.contains("GPU 2 has compute capability 9.0, GPU 0 has 8.0"), "{error}");
    }
}
