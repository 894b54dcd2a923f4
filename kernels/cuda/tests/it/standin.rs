//! The stand-in: built once, opened before the backend looks for a driver.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use ragstone_cuda::{CudaModel, keep_freed_memory};
use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_kernels::error::Result;
use ragstone_kernels::model::LoadOptions;

use crate::fixtures::folder;

/// The stand-in's own functions, beside the driver's.
struct Library {
    configure: extern "C" fn(*const c_char, *const c_char),
    problems: extern "C" fn(*mut c_char, usize) -> usize,
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/build");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-standin");
    let built = Command::new(&here).arg(&out).output().expect("the stand-in's build script runs");
    assert!(built.status.success(), "{}: {}", here.display(), String::from_utf8_lossy(&built.stderr));
    let path = CString::new(out.join("libcuda.so").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library's start-up code is ours. Its name in the library is that of the driver's: who opens a driver later finds this one.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "{path:?} cannot be opened");
    // SAFETY: the symbols are there, see `tests/standin/api.cpp`, and of these types.
    unsafe {
        let symbol = |name: &std::ffi::CStr| {
            let symbol = libc::dlsym(library, name.as_ptr());
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        Library {
            configure: std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const c_char, *const c_char)>(symbol(
                c"standin_configure",
            )),
            problems: std::mem::transmute::<*mut libc::c_void, extern "C" fn(*mut c_char, usize) -> usize>(symbol(
                c"standin_problems",
            )),
        }
    }
});

/// A stand-in of one test at a time, as it is of a whole process.
pub struct StandIn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl StandIn {
    /// A new one: one GPU, memory for the tiny models, work in the order of `seed`. With an odd one freed memory is not used again, so that
    /// whoever still reads it is found.
    pub fn new(seed: u64) -> Self {
        Self::with_devices(seed, 1)
    }

    /// As [`StandIn::new`], with so many GPUs.
    pub fn with_devices(seed: u64, devices: usize) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let standin = Self(ONE.lock().unwrap_or_else(PoisonError::into_inner));
        let usual = [
            ("mode", "strict"),
            ("peers", "all"),
            ("memory", "1073741824"),
            ("lost_after", "0"),
            ("driver", "13000"),
            ("captures", "yes"),
            ("wrong", ""),
            ("crashes", ""),
            ("hangs", ""),
            ("refuses", ""),
            ("lost_by", ""),
            ("capability", "80"),
        ];
        usual.iter().for_each(|(key, value)| standin.set(key, value));
        standin.set("devices", &devices.to_string());
        standin.set("seed", &seed.to_string());
        standin.set("reset", "");
        keep_freed_memory(seed.is_multiple_of(2));
        standin
    }

    /// One of its settings.
    pub fn set(&self, key: &str, value: &str) {
        let [key, value] = [key, value].map(|text| CString::new(text).unwrap());
        (LIBRARY.configure)(key.as_ptr(), value.as_ptr());
    }

    /// Fails with what it found wrong.
    pub fn assert_clean(&self) {
        let mut text = vec![0_u8; 4096];
        let count = (LIBRARY.problems)(text.as_mut_ptr().cast(), text.len());
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        assert_eq!(count, 0, "the stand-in found: {}", String::from_utf8_lossy(&text[..end]));
    }

    /// One tiny model on its GPU, K and V kept in `kv`, products made in `compute`.
    pub fn model(&self, name: &str, kv: KvDtype, compute: ComputeDtype) -> Result<CudaModel> {
        let options = LoadOptions { kv_dtype: Some(kv), compute: Some(compute), ..Default::default() };
        CudaModel::load(&folder(name), 0, options)
    }
}
