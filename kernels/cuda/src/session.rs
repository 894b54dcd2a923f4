//! A GPU in use: its context, streams, memory and kernels. When the GPU is lost its session is over, and with it all that lay there.

mod buffer;
mod graphs;
mod loads;
mod queued;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::driver::{self, Context, Event, Function, Module, Pinned, Stream, TensorMap};
use super::gpus::{Gpu, usable};
use super::launch::hopper;
use super::machine_code::{self, LoadedCode};
use super::staging::Staging;
use super::trial::{self, Ended, Trial};
pub(super) use buffer::Buffer;
pub(super) use graphs::Class;
use graphs::Graphs;
use loads::{LOAD_BYTES, Landing, copy_at_once};
pub use queued::Queued;
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// The kernels, as PTX for compute capability 8.0 and later. Made by `ops/cuda/ptx`.
pub(super) const PTX: &str = concat!(include_str!("../ragstone.ptx"), "\0");

/// Device memory comes in multiples of this, so that what is freed fits what is asked for next.
const GRAIN: usize = 64 << 10;
/// Host memory that uploads of rows' tables may hold.
const UPLOAD_BYTES: usize = 16 << 20;
/// What is copied at once: weights are larger than what may be pinned.
const PIECE_BYTES: usize = UPLOAD_BYTES / 4;

static KEEPS_FREED: AtomicBool = AtomicBool::new(true);

/// Whether sessions that start from now on keep freed memory for what is asked for next. They do; a test that looks for uses of memory that is
/// stale or too short has each buffer made for itself, as long as was asked for.
pub fn keep_freed_memory(keeps: bool) {
    KEEPS_FREED.store(keeps, Ordering::Relaxed);
}

/// A kernel's argument.
#[derive(Debug, Clone)]
pub(super) enum Argument {
    Pointer(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    Map(Box<TensorMap>),
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: u32,
    /// Dynamic shared memory, in bytes.
    pub(super) shared: u32,
}

/// See the module. Everything that is queued goes through its lock, so that calls of several threads follow each other.
#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    gpu: Gpu,
    /// What its kernels were loaded from.
    code: LoadedCode,
    /// Which kernels for this GPU's capability are used; nothing before they were tried.
    trial: OnceLock<Trial>,
    keeps_freed: bool,
    /// Last: what is above is given back while its context is there.
    context: Context,
}

#[derive(Debug)]
struct State {
    /// First: graphs have kernels of the module.
    graphs: Graphs,
    functions: HashMap<String, Function>,
    module: Module,
    /// The kernels for compute capability 9.0, on such a GPU.
    hopper: Option<Module>,
    /// Freed memory, by size. All of it was used on the compute stream alone, so that its next user comes after its last one.
    free: HashMap<usize, Vec<u64>>,
    queued: Queued,
    uploads: Staging,
    loads: Staging,
    /// Where loads go, one after the other; each free once the event is done.
    landings: Vec<Landing>,
    compute: Stream,
    load: Stream,
}

impl Session {
    /// Takes a GPU into use.
    ///
    /// # Errors
    /// `Unavailable` or `InvalidInput` where there is no such GPU, and the driver's.
    pub(super) fn start(ordinal: usize) -> Result<Arc<Self>> {
        let mut ended = Ended::default();
        loop {
            let before = ended.clone();
            match Self::start_without(ordinal, &mut ended) {
                // In a new context, without the kernels that ended this one.
                Err(error) if error.kind() == ErrorKind::DeviceLost && ended != before => (),
                started => return started,
            }
        }
    }

    fn start_without(ordinal: usize, ended: &mut Ended) -> Result<Arc<Self>> {
        let gpu = usable(ordinal)?;
        let context = Context::retain(ordinal)?;
        let (module, code) = machine_code::load(gpu.compute_capability)?;
        let is_hopper = gpu.compute_capability == trial::CAPABILITY;
        let state = State {
            graphs: Graphs::default(),
            functions: HashMap::new(),
            module,
            hopper: is_hopper.then(|| Module::load_machine_code(hopper::CUBIN)).transpose()?,
            free: HashMap::new(),
            queued: Queued::default(),
            uploads: Staging::new(UPLOAD_BYTES),
            loads: Staging::new(LOAD_BYTES),
            landings: Vec::new(),
            compute: Stream::new()?,
            load: Stream::new()?,
        };
        let keeps_freed = KEEPS_FREED.load(Ordering::Relaxed);
        let (state, trial) = (Mutex::new(state), OnceLock::new());
        let session = Arc::new(Self { state, gpu, code, trial, keeps_freed, context });
        if is_hopper {
            let _ = session.trial.set(Trial::run(&session, ended)?);
        }
        Ok(session)
    }

    /// Whether there are kernels for this GPU's capability alone.
    pub(super) fn is_hopper(&self) -> bool {
        self.gpu.compute_capability == trial::CAPABILITY
    }

    /// What its kernels were loaded from.
    pub(super) fn code(&self) -> &LoadedCode {
        &self.code
    }

    /// Which kernels for this GPU's capability are used.
    pub(super) fn trial(&self) -> &Trial {
        const NONE: &Trial = &Trial::none();
        self.trial.get().unwrap_or(NONE)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, to queue something now; the context is this thread's then.
    ///
    /// # Errors
    /// The driver's; `Internal` while this thread [records](Self::record), as a graph would go on without it.
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.enter_or_record()?;
        if state.graphs.is_recording() {
            return Err(Error::internal("a step that is recorded cannot copy or wait"));
        }
        Ok(state)
    }

    /// The same for what can be recorded as well.
    fn enter_or_record(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        self.context.enter()?;
        Ok(state)
    }

    /// What was queued since it began.
    pub(super) fn queued(&self) -> Queued {
        self.lock().queued
    }

    /// Whether the GPU does nothing for this session any more.
    pub(super) fn is_lost(&self) -> bool {
        self.enter().and_then(|state| state.compute.check()).is_err_and(|error| error.kind() == ErrorKind::DeviceLost)
    }

    /// The GPU that is in use.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Lets the compute stream be given what goes beyond this GPU, see `parallel`.
    pub(super) fn queue<R>(&self, doing: impl FnOnce(&Stream) -> Result<R>) -> Result<R> {
        doing(&self.enter()?.compute)
    }

    /// Bytes that the GPU has for anybody, once what nobody uses is given back.
    pub(super) fn free_memory(&self) -> Result<usize> {
        self.enter()?.trim()?;
        driver::memory().map(|(free, _)| free)
    }

    /// Processors that run blocks of threads.
    pub(super) fn multiprocessors(&self) -> u32 {
        self.context.multiprocessors
    }

    /// Device memory of at least so many bytes, of any content.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let mut state = self.enter_or_record()?;
        let is_scratch = state.graphs.is_recording();
        let bytes = match (self.keeps_freed, is_scratch) {
            (true, false) => size_class(bytes),
            (true, true) => scratch_class(bytes),
            (false, _) => bytes.max(1),
        };
        let free = if is_scratch { state.graphs.scratch() } else { &mut state.free };
        let free = free.get_mut(&bytes).filter(|_| self.keeps_freed).and_then(Vec::pop);
        let start = match free {
            Some(start) => start,
            None => state.take_new(bytes)?,
        };
        Ok(Buffer { session: self.clone(), start, bytes, is_scratch })
    }

    /// Device memory full of zeros.
    pub(super) fn zeros(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let buffer = self.allocate(bytes)?;
        let state = self.enter()?;
        // SAFETY: it was just made, of as many bytes.
        unsafe { state.compute.zero(buffer.start, bytes) }?;
        drop(state);
        Ok(buffer)
    }

    /// A copy of `values` in device memory, for what is queued next.
    pub(super) fn upload<T: bytemuck::NoUninit>(self: &Arc<Self>, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.allocate(bytes.len())?;
        // SAFETY: the buffer has as many bytes.
        unsafe { self.enter()?.write(buffer.start, bytes) }?;
        Ok(buffer)
    }

    /// The same of several parts, one behind the other.
    pub(super) fn upload_parts(self: &Arc<Self>, parts: &[&[u8]]) -> Result<Buffer> {
        let buffer = self.allocate(parts.iter().map(|part| part.len()).sum())?;
        let mut to = buffer.start;
        for part in parts {
            // SAFETY: the buffer has as many bytes as all parts.
            unsafe { self.enter()?.write(to, part) }?;
            to += part.len() as u64;
        }
        Ok(buffer)
    }

    /// `bytes` at a place of the device, as they will be once everything queued is done. Waits for that, while others may queue.
    pub(super) fn download(&self, from: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(bytes);
        for first in (0..bytes).step_by(PIECE_BYTES) {
            let piece = (bytes - first).min(PIECE_BYTES);
            let slot = {
                let mut state = self.enter()?;
                let slot = state.uploads.take(piece)?;
                // SAFETY: the slot is not touched before its event is done; the caller's buffer has as many bytes.
                unsafe { state.compute.copy_out(slot.memory.as_ptr(), from + first as u64, piece) }?;
                state.queued.copies += 1;
                slot.done.record(&state.compute)?;
                slot
            };
            slot.done.wait()?;
            out.extend_from_slice(&slot.memory.as_slice()[..piece]);
            self.lock().uploads.put(slot);
        }
        Ok(out)
    }

    /// Host memory that is copied to and from directly, for as long as it is held on this thread.
    pub(super) fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let _state = self.enter()?;
        Pinned::new(bytes)
    }

    /// Copies between pinned memory and the device's, as much as both have, and waits.
    pub(super) fn copy_pinned(&self, host: &mut Pinned, device: &Buffer, to_device: bool) -> Result<()> {
        let (bytes, place) = (host.len().min(device.bytes), host.as_ptr());
        let state = self.enter()?;
        let done = Event::new()?;
        // SAFETY: both have as many bytes, and are borrowed until the copy is done.
        unsafe {
            match to_device {
                true => state.compute.copy_in(device.start, place, bytes),
                false => state.compute.copy_out(place, device.start, bytes),
            }
        }?;
        done.record(&state.compute)?;
        drop(state);
        done.wait()
    }

    /// Queues a kernel, or notes it while this thread records.
    pub(super) fn launch(&self, launch: &Launch) -> Result<()> {
        let mut state = self.enter_or_record()?;
        if state.graphs.note(launch) { Ok(()) } else { state.launch(launch) }
    }

    /// Queues kernels, one after the other.
    pub(super) fn run(&self, launches: &[Launch]) -> Result<()> {
        launches.iter().try_for_each(|launch| self.launch(launch))
    }

    /// Waits until all that was queued is done: an error that came up on the way is known then. Gives the driver back what nobody uses.
    pub(super) fn finish(&self) -> Result<()> {
        self.enter()?.trim()
    }
}

/// A kernel with its arguments and launch geometry.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) arguments: Vec<Argument>,
}

impl State {
    /// Queues a copy of `bytes` to the device.
    ///
    /// # Safety
    /// There must be as many bytes at `to`.
    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<()> {
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let mut slot = self.uploads.take(piece.len())?;
            copy_at_once(vec![(&mut slot.memory.as_mut_slice()[..piece.len()], piece)]);
            let to = to + (index * PIECE_BYTES) as u64;
            // SAFETY: the slot is not touched before its event is done; there are as many bytes.
            unsafe { self.compute.copy_in(to, slot.memory.as_ptr(), piece.len()) }?;
            self.queued.copies += 1;
            self.uploads.give_back(slot, &self.compute)?;
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let Launch { name, shape, arguments } = launch;
        let function = match self.functions.get(name.as_str()) {
            Some(function) => *function,
            None => {
                let spelled = CString::new(name.as_str()).map_err(|_| Error::internal("a kernel's name has a zero"))?;
                let module = self.hopper.as_ref().filter(|_| hopper::is_kernel(name)).unwrap_or(&self.module);
                let function = module.function(&spelled, shape.shared)?;
                self.functions.insert(name.clone(), function);
                function
            }
        };
        self.queued.kernels += 1;
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::place).collect();
        // SAFETY: `launch` makes every launch, with the kernel's parameters in order; buffers are as large as shapes say.
        unsafe { self.compute.launch(function, shape.grid, shape.block, shape.shared, &mut pointers) }
    }

    /// New device memory, for which that of graphs and what is free in other sizes gives way.
    fn take_new(&mut self, bytes: usize) -> Result<u64> {
        match driver::allocate(bytes) {
            Err(error) if error.kind() == ErrorKind::Full => {
                self.trim()?;
                driver::allocate(bytes).map_err(|error| too_small(error, bytes))
            }
            other => other,
        }
    }

    /// Gives the driver back what nobody uses, graphs and their memory among it.
    fn trim(&mut self) -> Result<()> {
        let done = Event::new()?;
        done.record(&self.compute)?;
        done.wait()?;
        self.forget_graphs();
        // SAFETY: nobody holds it, and what was queued before it was freed is done.
        self.free.drain().flat_map(|(_, starts)| starts).for_each(|start| unsafe { driver::free(start) });
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // An error here says that the GPU is lost, and its memory with it.
        let _ = self.trim();
        let landings = std::mem::take(&mut self.landings);
        for landing in landings {
            let _ = landing.read.wait();
            // SAFETY: whoever read it is done.
            unsafe { driver::free(landing.memory) };
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What it owns is given back on this thread.
        let _ = self.context.enter();
    }
}

impl Argument {
    fn place(&self) -> *mut c_void {
        match self {
            Self::Pointer(value) | Self::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::Map(map) => std::ptr::from_ref::<TensorMap>(map).cast_mut().cast(),
        }
    }
}

/// The error of an allocation, with what there was.
fn too_small(error: Error, wanted: usize) -> Error {
    let Ok((free, total)) = driver::memory() else { return error };
    let mib = |bytes: usize| bytes >> 20;
    let message = format!("{error}: {} MiB wanted, {} of {} MiB free", mib(wanted), mib(free), mib(total));
    Error::new(error.kind(), message)
}

/// Few sizes, so that freed memory is used again: up to a megabyte in grains, above in eighths of powers of two.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(1);
    let step = if bytes <= 1 << 20 { GRAIN } else { (bytes.next_power_of_two() / 16).max(GRAIN) };
    bytes.next_multiple_of(step)
}

/// Fewer sizes: a step of any number of rows finds what a step of another left.
fn scratch_class(bytes: usize) -> usize {
    bytes.next_power_of_two().max(GRAIN)
}

#[cfg(test)]
mod tests {
    use super::{scratch_class, size_class};

    /// Of a vocabulary of 152,000, by rows.
    #[test]
    fn steps_of_all_batch_sizes_share_their_scratch_memory() {
        let classes: std::collections::BTreeSet<usize> =
            (1..=64).map(|rows| scratch_class(rows * 4 * 152_000)).collect();
        assert!(classes.len() <= 7, "{classes:?}");
        assert!(classes.iter().sum::<usize>() < 4 * (64 * 4 * 152_000), "{classes:?}");
    }

    #[test]
    fn size_classes_are_few_and_waste_little() {
        assert_eq!(
            (size_class(0), size_class(1), size_class(65_536), size_class(65_537)),
            (65_536, 65_536, 65_536, 131_072)
        );
        for bytes in [1 << 20, (1 << 20) + 1, 3 << 20, 100_000_001, 1 << 33] {
            let class = size_class(bytes);
            assert!(class >= bytes && class <= bytes + bytes / 4 && size_class(class) == class, "{bytes}: {class}");
        }
    }
}
