//! Launches that are recorded once and replayed as a graph.
//!
//! A step of the same [`Class`] is the same launches with the same arguments: what differs from step to step stands in a table, which is
//! uploaded before them. So they are recorded (nothing is queued then), launched one by one the first time, and captured into a graph the
//! second time.
//!
//! Memory that recorded launches use is scratch: it is used by them alone, as long as there is a graph. Graphs share it, as they
//! follow each other on the compute stream, and leave nothing in it: what comes out is copied to memory of the caller's.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use super::{Buffer, Launch, Session, State};
use crate::driver::Graph;
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// Classes that are kept; that used least recently goes first. Each batch size is one, and a longer context another.
const MOST_KEPT: usize = 64;
/// How often a step is recorded before it is known that there is no memory for it.
const RECORDINGS: usize = 2;

/// Everything that the arguments of a step's launches depend on, beside the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Class {
    /// The pool's first byte, and its blocks.
    pub(crate) pool: (u64, usize),
    pub(crate) rows: usize,
    /// Segments that the context is split in, at most; 0 where it is not.
    pub(crate) segments: u32,
    /// Room for the table.
    pub(crate) table_bytes: usize,
    /// Of each layer, where the angles of positions lie.
    pub(crate) angles: Vec<u64>,
}

/// Launches in scratch memory.
#[derive(Debug)]
pub(crate) struct Recorded {
    launches: Vec<Launch>,
    table: u64,
    out: u64,
    /// How often scratch memory had been given back when it was made.
    epoch: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    recording: Option<(ThreadId, Vec<Launch>)>,
    /// What recorded launches have used, by size; those that are recorded next use it, too.
    scratch: HashMap<usize, Vec<u64>>,
    /// Used last comes last.
    kept: Vec<Kept>,
    /// How often scratch memory was given back.
    epoch: u64,
    /// There was no memory to record in; it is tried again with the next pool.
    is_short: bool,
}

#[derive(Debug)]
struct Kept {
    class: Class,
    recorded: Recorded,
    form: Form,
}

/// How the launches of a class are queued.
#[derive(Debug)]
enum Form {
    /// One by one, which also loads the kernels: this is not allowed in a capture. Many a class comes once.
    New,
    /// They were queued; the next time they are captured.
    Met,
    Graph(Graph),
    /// One by one: the driver refused a graph.
    Refused,
}

impl Graphs {
    /// Whether this thread records.
    pub(super) fn is_recording(&self) -> bool {
        self.recording.as_ref().is_some_and(|(thread, _)| *thread == thread::current().id())
    }

    /// Takes a launch of the thread that records; whether it did.
    pub(super) fn note(&mut self, launch: &Launch) -> bool {
        let is_noted = self.is_recording();
        if let Some((_, launches)) = self.recording.as_mut().filter(|_| is_noted) {
            launches.push(launch.clone());
        }
        is_noted
    }

    pub(super) fn scratch(&mut self) -> &mut HashMap<usize, Vec<u64>> {
        &mut self.scratch
    }

    /// Takes scratch memory back: recorded launches may use it again.
    pub(super) fn give_back(&mut self, start: u64, bytes: usize) {
        self.scratch.entry(bytes).or_default().push(start);
    }

    /// Ends this thread's recording, if it still goes on: once it has ended, another thread's may have begun.
    fn end(&mut self) -> Vec<Launch> {
        let own = self.recording.take_if(|(thread, _)| *thread == thread::current().id());
        own.map_or_else(Vec::new, |(_, launches)| launches)
    }

    /// Keeps what was recorded, unless its memory went meanwhile, for another thread's need or that of the recording itself. Whether its class
    /// is kept.
    fn keep(&mut self, class: &Class, recorded: Recorded) -> bool {
        if self.kept.iter().any(|kept| kept.class == *class) {
            return true;
        }
        if recorded.epoch != self.epoch {
            return false;
        }
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(Kept { class: class.clone(), recorded, form: Form::New });
        true
    }

    /// Lets all graphs go; their memory, by size.
    fn forget(&mut self) -> HashMap<usize, Vec<u64>> {
        self.epoch += 1;
        self.kept.clear();
        std::mem::take(&mut self.scratch)
    }
}

/// Ends a recording, also where what is recorded panics.
struct Recording<'a>(&'a Session);

impl Recording<'_> {
    fn end(&self) -> Vec<Launch> {
        self.0.lock().graphs.end()
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Session {
    /// Keeps the launches of `steps`, which are not queued. It gives where its table and its results are to lie.
    ///
    /// # Errors
    /// Those of `steps`; `Internal` while another thread records.
    pub(crate) fn record(&self, class: &Class, steps: impl Fn() -> Result<[Buffer; 2]>) -> Result<()> {
        // One that took the memory of others finds that the next time. Where it takes its own, each try would empty all caches in vain.
        for _ in 0..RECORDINGS {
            let recorded = self.recorded(&steps)?;
            // A graph may have to go, for which the context has to be this thread's.
            if self.enter()?.graphs.keep(class, recorded) {
                return Ok(());
            }
        }
        self.lock().graphs.is_short = true;
        Ok(())
    }

    fn recorded(&self, steps: impl Fn() -> Result<[Buffer; 2]>) -> Result<Recorded> {
        let mut state = self.enter()?;
        if state.graphs.recording.is_some() {
            return Err(Error::internal("another thread records"));
        }
        state.graphs.recording = Some((thread::current().id(), Vec::new()));
        let epoch = state.graphs.epoch;
        drop(state);
        let recording = Recording(self);
        // Held to the end, so that no launch has its memory elsewhere.
        let [table, out] = steps().inspect_err(|error| {
            // Each try would empty all caches in vain.
            self.lock().graphs.is_short |= error.kind() == ErrorKind::Full;
        })?;
        Ok(Recorded { launches: recording.end(), table: table.pointer(), out: out.pointer(), epoch })
    }

    /// Whether launches of a class are kept, or may be recorded.
    pub(crate) fn may_replay(&self, class: &Class) -> bool {
        let graphs = &self.lock().graphs;
        !graphs.is_short || graphs.kept.iter().any(|kept| kept.class == *class)
    }

    /// Lets steps be recorded again where there was no memory for them.
    pub(crate) fn try_recording_again(&self) {
        self.lock().graphs.is_short = false;
    }

    /// Whether the launches of a class are kept.
    pub(crate) fn has_recorded(&self, class: &Class) -> bool {
        self.lock().graphs.kept.iter().any(|kept| kept.class == *class)
    }

    /// Queues the launches of a class with that table, and a copy of the first `bytes` of what comes out to `out`. `false` where they are
    /// not kept any more: nothing is queued then.
    pub(crate) fn replay(&self, class: &Class, table: &[u32], (out, bytes): (&Buffer, usize)) -> Result<bool> {
        let mut state = self.enter()?;
        let Some(at) = state.graphs.kept.iter().position(|kept| kept.class == *class) else { return Ok(false) };
        let mut kept = state.graphs.kept.remove(at);
        let queued = state.queue_kept(&mut kept, bytemuck::cast_slice(table));
        let from = kept.recorded.out;
        state.graphs.kept.push(kept);
        queued?;
        // SAFETY: results have at least as many bytes, and so has the caller's memory. Under the same lock as the launches: the next
        // ones of somebody else come after it.
        unsafe { state.compute.copy(out.pointer(), from, bytes) }?;
        state.queued.copies += 1;
        Ok(true)
    }
}

impl State {
    fn queue_kept(&mut self, kept: &mut Kept, table: &[u8]) -> Result<()> {
        let Kept { class, recorded, form } = kept;
        debug_assert!(table.len() <= class.table_bytes, "a table's size is of its class");
        // SAFETY: there is room for a table of this class, and what reads the last one is queued before.
        unsafe { self.write(recorded.table, table) }?;
        match form {
            Form::New => *form = Form::Met,
            Form::Met => *form = self.captured(&recorded.launches),
            Form::Graph(_) | Form::Refused => {}
        }
        if let Form::Graph(graph) = form {
            recorded.launches = Vec::new();
            self.queued.graphs += 1;
            // SAFETY: scratch memory stays, and all else that the launches point to is of the class.
            return unsafe { self.compute.launch_graph(graph) };
        }
        recorded.launches.iter().try_for_each(|launch| self.launch(launch))
    }

    /// A graph of launches, unless the driver refuses: then launches go on as before, and say what there is to say.
    fn captured(&mut self, launches: &[Launch]) -> Form {
        match self.capture(launches) {
            Ok(graph) => Form::Graph(graph),
            Err(_) => {
                self.queued.refused += 1;
                Form::Refused
            }
        }
    }

    fn capture(&mut self, launches: &[Launch]) -> Result<Graph> {
        self.compute.begin_capture()?;
        let queued = launches.iter().try_for_each(|launch| self.launch(launch));
        // In any case: nobody else's launches are to be captured.
        let graph = self.compute.end_capture();
        queued.and(graph)
    }

    /// Lets all graphs go. Their memory is that of whoever asks for some next on the compute stream.
    pub(super) fn forget_graphs(&mut self) {
        for (bytes, starts) in self.graphs.forget() {
            self.free.entry(bytes).or_default().extend(starts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Shape;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread's id")]
    fn what_another_thread_records_is_its_own() {
        let other = thread::spawn(|| thread::current().id()).join().unwrap();
        let mut graphs = Graphs { recording: Some((other, Vec::new())), ..Graphs::default() };
        let shape = Shape { grid: [1; 3], block: 1, shared: 0 };
        let launch = Launch { name: "rotate".into(), shape, arguments: Vec::new() };
        assert!(!graphs.is_recording() && !graphs.note(&launch));
        assert!(graphs.end().is_empty());
        let (owner, launches) = graphs.recording.as_ref().unwrap();
        assert!(*owner == other && launches.is_empty(), "it goes on");
        graphs.recording = Some((thread::current().id(), Vec::new()));
        assert!(graphs.note(&launch));
        assert_eq!((graphs.end().len(), graphs.end().len()), (1, 0));
    }

    #[test]
    fn what_was_recorded_in_memory_that_went_is_not_kept() {
        let class = |rows| Class { pool: (0, 1), rows, segments: 0, table_bytes: 0, angles: Vec::new() };
        let recorded = |epoch| Recorded { launches: Vec::new(), table: 0, out: 0, epoch };
        let mut graphs = Graphs::default();
        assert!(graphs.keep(&class(1), recorded(0)) && graphs.kept.len() == 1);
        assert!(graphs.keep(&class(1), recorded(0)) && graphs.kept.len() == 1, "it is there already");
        graphs.give_back(7, 64);
        assert_eq!(graphs.forget()[&64], [7]);
        assert!(!graphs.keep(&class(2), recorded(0)) && graphs.kept.is_empty());
        assert!(graphs.keep(&class(2), recorded(1)) && graphs.kept.len() == 1);
    }
}
