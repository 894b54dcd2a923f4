//! What the driver answers, as results: an error by its name, with who should do what about it.

use std::ffi::CStr;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// A driver's answer as a result: out of memory is [`ErrorKind::Full`], a machine on which CUDA does not run is [`ErrorKind::Unavailable`], what
/// concerns one call or its arguments is [`ErrorKind::Internal`], and anything else means that the context is gone.
pub(crate) fn check(what: &str, result: CUresult) -> Result<()> {
    let Some((kind, advice)) = judged(result) else { return Ok(()) };
    // SAFETY: both functions set the pointer to a text that lives as long as the driver, or leave it as it is.
    let told = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| unsafe {
        let mut text = ptr::null();
        match get(result, &raw mut text) {
            CUresult::CUDA_SUCCESS if !text.is_null() => Some(CStr::from_ptr(text).to_string_lossy()),
            _ => None,
        }
    };
    let text = told(sys::cuGetErrorString).unwrap_or_else(|| "unknown error".into());
    let name = told(sys::cuGetErrorName).map_or_else(String::new, |name| format!("{name}, "));
    Err(Error::new(kind, format!("{what}: {text} ({name}CUDA error {}){advice}", result as u32)))
}

/// What an error means to whoever called, and what to do; nothing where there is none.
fn judged(result: CUresult) -> Option<(ErrorKind, &'static str)> {
    use CUresult as R;
    Some(match result {
        R::CUDA_SUCCESS => return None,
        R::CUDA_ERROR_OUT_OF_MEMORY => (ErrorKind::Full, "; lower `device_bytes`, or take a smaller model"),
        R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => (
            ErrorKind::Unavailable,
            "; the driver's compiler (libnvidia-ptxjitcompiler.so) is missing: install the whole driver, or in a container set \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        R::CUDA_ERROR_JIT_COMPILATION_DISABLED => {
            (ErrorKind::Unavailable, "; unset CUDA_DISABLE_PTX_JIT, as the kernels are compiled by the driver")
        }
        R::CUDA_ERROR_SYSTEM_NOT_READY => (
            ErrorKind::Unavailable,
            "; on machines with NVSwitch start nvidia-fabricmanager, of the driver's version, and try again",
        ),
        R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => (
            ErrorKind::Unavailable,
            "; the kernel's module and libcuda.so are of different drivers: restart the machine after an update, or mend the container",
        ),
        R::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => (
            ErrorKind::Unavailable,
            "; forward compatibility (cuda-compat) does not work on this GPU: take its folder out of LD_LIBRARY_PATH",
        ),
        R::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            (ErrorKind::Unavailable, "; another process has the GPU for itself (nvidia-smi -c 0 shares it)")
        }
        R::CUDA_ERROR_STUB_LIBRARY => {
            (ErrorKind::Unavailable, "; take the folder of stubs out of LD_LIBRARY_PATH: its libcuda.so is no driver")
        }
        R::CUDA_ERROR_MPS_CONNECTION_FAILED
        | R::CUDA_ERROR_MPS_RPC_FAILURE
        | R::CUDA_ERROR_MPS_SERVER_NOT_READY
        | R::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
        | R::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => {
            (ErrorKind::Unavailable, "; see the log of nvidia-cuda-mps-control")
        }
        _ if concerns_a_call(result) => (ErrorKind::Internal, ""),
        _ => (ErrorKind::DeviceLost, ""),
    })
}

/// Whether the context goes on after it.
fn concerns_a_call(result: CUresult) -> bool {
    use CUresult as R;
    // Captures that a stream refuses, that others broke, and updates of graphs.
    let of_captures = R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=R::CUDA_ERROR_INVALID_CLUSTER_SIZE as u32;
    of_captures.contains(&(result as u32))
        || matches!(
            result,
            R::CUDA_ERROR_INVALID_VALUE
                | R::CUDA_ERROR_INVALID_HANDLE
                | R::CUDA_ERROR_NOT_FOUND
                | R::CUDA_ERROR_INVALID_IMAGE
                | R::CUDA_ERROR_INVALID_PTX
                | R::CUDA_ERROR_NO_BINARY_FOR_GPU
                | R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                | R::CUDA_ERROR_NO_DEVICE
                | R::CUDA_ERROR_INVALID_DEVICE
                | R::CUDA_ERROR_NOT_INITIALIZED
                | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                | R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
                | R::CUDA_ERROR_NOT_PERMITTED
                | R::CUDA_ERROR_NOT_SUPPORTED
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: CUresult) -> Option<ErrorKind> {
        judged(result).map(|(kind, _)| kind)
    }

    #[test]
    fn what_a_machine_lacks_is_no_lost_gpu_and_says_what_to_do() {
        use CUresult as R;
        for result in [
            R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            R::CUDA_ERROR_JIT_COMPILATION_DISABLED,
            R::CUDA_ERROR_SYSTEM_NOT_READY,
            R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            R::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
            R::CUDA_ERROR_MPS_SERVER_NOT_READY,
        ] {
            let (kind, advice) = judged(result).unwrap();
            assert!(kind == ErrorKind::Unavailable && advice.starts_with("; "), "{result:?}");
        }
        assert_eq!(
            [221, 223, 802, 803, 804],
            [
                R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND as u32,
                R::CUDA_ERROR_JIT_COMPILATION_DISABLED as u32,
                R::CUDA_ERROR_SYSTEM_NOT_READY as u32,
                R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as u32,
                R::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE as u32
            ]
        );
    }

    #[test]
    fn what_concerns_a_call_leaves_the_context_and_a_fault_ends_it() {
        use CUresult as R;
        for result in [
            R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            R::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            R::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        ] {
            assert_eq!(kind(result), Some(ErrorKind::Internal), "{result:?}");
        }
        for result in [
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            R::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            R::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(kind(result), Some(ErrorKind::DeviceLost), "{result:?}");
        }
        assert_eq!((kind(R::CUDA_SUCCESS), kind(R::CUDA_ERROR_OUT_OF_MEMORY)), (None, Some(ErrorKind::Full)));
    }
}
