//! The driver's functions that the backend uses, each result checked, each handle owned.

mod answer;
mod graph;
mod module;
mod peer;
mod tensor_map;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream};

pub(super) use answer::check;
pub(super) use graph::Graph;
pub(super) use module::{Function, Module};
use ragstone_kernels::error::Result;
pub(super) use tensor_map::{TensorMap, Tiled};

pub(super) fn device(ordinal: usize) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal as c_int) })?;
    Ok(device)
}

pub(super) fn attribute(device: CUdevice, attribute: sys::CUdevice_attribute) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value)
}

/// Bytes of a device's memory.
pub(super) fn total_memory(device: CUdevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    Ok(bytes as u64)
}

/// A GPU's primary context, retained.
#[derive(Debug)]
pub(super) struct Context {
    device: CUdevice,
    raw: CUcontext,
    pub(super) multiprocessors: u32,
}

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// # Errors
    /// The driver's.
    pub(super) fn retain(ordinal: usize) -> Result<Self> {
        let device = device(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) })?;
        let multiprocessors = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let context = Self { device, raw, multiprocessors: multiprocessors.max(1) as u32 };
        context.enter()?;
        Ok(context)
    }

    /// Makes it the calling thread's.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once. After a loss the driver refuses, and nothing is left to release.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A queue of work that is done in order.
#[derive(Debug)]
pub(super) struct Stream(CUstream);

// SAFETY: streams may be used from any thread; calls on one are made one after the other, under the session's lock.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new() -> Result<Self> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the pointer is valid for the call.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        Ok(Self(raw))
    }

    /// Whether nothing that was queued has failed so far. Waits for nothing.
    pub(super) fn check(&self) -> Result<()> {
        // SAFETY: it lives.
        match unsafe { sys::cuStreamQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            result => check("cuStreamQuery", result),
        }
    }

    /// What is queued from now on begins after what `event` stands for.
    pub(super) fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: both live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `from` must stay as it is until the copy is done, `to` must have as many bytes.
    pub(super) unsafe fn copy_in(&self, to: CUdeviceptr, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.0) })
    }

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// `to` must stay there, unread, until the copy is done; `from` must have as many bytes.
    pub(super) unsafe fn copy_out(&self, to: *mut u8, from: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.0) })
    }

    /// Queues a copy within the device's memory.
    ///
    /// # Safety
    /// Both places must have as many bytes.
    pub(super) unsafe fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.0) })
    }

    /// Queues filling with zeros.
    ///
    /// # Safety
    /// There must be as many bytes.
    pub(super) unsafe fn zero(&self, to: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to, 0, bytes, self.0) })
    }

    /// Queues the end of what [`allocate`] gave.
    ///
    /// # Safety
    /// It must not be used any more by anything that is queued later, or in another stream.
    pub(super) unsafe fn free(&self, start: CUdeviceptr) {
        // SAFETY: the caller's promise. After a loss there is nothing left to free.
        let _ = unsafe { sys::cuMemFreeAsync(start, self.0) };
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, in order, and what they point to must fit what the kernel does with it.
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let [x, y, z] = grid;
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(function.0, x, y, z, block, 1, 1, shared, self.0, arguments, ptr::null_mut())
        };
        check("cuLaunchKernel", result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the driver finishes what is queued.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub(super) struct Event(CUevent);

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new() -> Result<Self> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: the pointer is valid for the call.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
        Ok(Self(raw))
    }

    /// Stands for all that is queued on `stream` so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.0) })
    }

    /// Waits for what it stands for; not for anything else on the device.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: it lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Whether what it stands for is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        // SAFETY: it lives.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Host memory that the device copies to and from directly.
#[derive(Debug)]
pub(super) struct Pinned {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(len: usize) -> Result<Self> {
        let mut start = ptr::null_mut();
        // SAFETY: the pointer is valid for the call. Without flags the memory is cached, so that a host reads it fast.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut start, len, 0) })?;
        let start = start.cast::<u8>();
        // SAFETY: `len` bytes begin there; what is shown as a slice has to have a value.
        unsafe { start.write_bytes(0, len) };
        Ok(Self { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes that have values; nobody copies to them while they are looked at, see `staging`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: made once, freed once, after the copies that use it, see `staging`.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// Reserves device memory.
pub(super) fn allocate(bytes: usize) -> Result<CUdeviceptr> {
    let mut start = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes) })?;
    Ok(start)
}

/// Frees what [`allocate`] gave.
///
/// # Safety
/// It must not be used any more, by anything that is queued neither.
pub(super) unsafe fn free(start: CUdeviceptr) {
    // SAFETY: the caller's promise. After a loss there is nothing left to free.
    let _ = unsafe { sys::cuMemFree_v2(start) };
}

/// Free and total bytes of the current context's GPU.
pub(super) fn memory() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are valid for the call.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}
