//! Launches of a stream as one graph.

use std::ptr;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec};

use super::{Stream, check};
use ragstone_kernels::error::Result;

/// Launches that are given to the driver in one call, as often as wanted.
#[derive(Debug)]
pub(crate) struct Graph(CUgraphExec);

// SAFETY: a graph may be used from any thread; calls on one are made one after the other, under the session's lock.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// What was captured. A graph is made of it, and does not need it any more.
struct Captured(CUgraph);

impl Stream {
    /// What is launched from now on, up to [`Stream::end_capture`], is not done but taken into a graph.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        // What other threads do meanwhile, with other streams, is not to matter.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: it lives.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) })
    }

    /// The graph of what was launched since [`Stream::begin_capture`]. The stream does what it is given again, also after an error.
    pub(crate) fn end_capture(&self) -> Result<Graph> {
        let mut captured = Captured(ptr::null_mut());
        // SAFETY: the pointer is valid for the call.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.0, &raw mut captured.0) })?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid for the call, the graph was just captured.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut raw, captured.0, 0) };
        check("cuGraphInstantiate", made)?;
        Ok(Graph(raw))
    }

    /// Queues what was captured.
    ///
    /// # Safety
    /// What its launches point to must be as it was when they were captured.
    pub(crate) unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0, self.0) })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made once, destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the driver finishes a run that is queued.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}
