//! What several GPUs do with each other.

use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use super::{Context, Stream, check};
use ragstone_kernels::error::Result;

impl Context {
    /// Lets copies from `other`'s memory go over the link between the two GPUs, where there is one. Where there is none, the driver takes them
    /// through pinned host memory of its own.
    pub(crate) fn reach(&self, other: &Self) -> Result<()> {
        let mut can = 0;
        // SAFETY: the pointer is valid for the call.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        check("cuDeviceCanAccessPeer", asked)?;
        if can == 0 {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: both contexts are retained.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) } {
            // An earlier session's, of contexts that are still the same; or a machine of more GPUs than have links.
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED | CUresult::CUDA_ERROR_TOO_MANY_PEERS => Ok(()),
            result => check("cuCtxEnablePeerAccess", result),
        }
    }
}

impl Stream {
    /// Queues a copy into the memory of the stream's GPU, from that of another one or its own.
    ///
    /// # Safety
    /// `from` must stay as it is until the copy is done; both must have as many bytes, each in the memory of its context's GPU.
    pub(crate) unsafe fn copy_across(
        &self,
        (to, to_context): (CUdeviceptr, &Context),
        (from, from_context): (CUdeviceptr, &Context),
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyPeerAsync(to, to_context.raw, from, from_context.raw, bytes, self.0) };
        check("cuMemcpyPeerAsync", result)
    }
}
