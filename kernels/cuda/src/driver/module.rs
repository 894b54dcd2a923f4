//! Modules: kernels that the driver has compiled, or taken as machine code.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUmodule};
use ragstone_kernels::error::{Error, Result};

use super::check;

/// Bytes of what the driver's compiler may say of an error.
const LOG_BYTES: usize = 8 << 10;

/// Loaded kernels.
#[derive(Debug)]
pub(crate) struct Module(CUmodule);

// SAFETY: a module may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a [`Module`] that lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function(pub(super) CUfunction);

// SAFETY: a function may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Compiles PTX for the current context's GPU.
    ///
    /// # Errors
    /// The driver's, with its compiler's words.
    pub(crate) fn load(ptx: &CStr) -> Result<Self> {
        // SAFETY: the text ends with a zero, as PTX has to.
        unsafe { Self::of(ptx.as_ptr().cast()) }
    }

    /// Loads machine code of the current context's GPU, as `ptxas` writes it.
    ///
    /// # Errors
    /// The driver's, with its linker's words; `Internal` for what is no whole file of machine code.
    pub(crate) fn load_machine_code(elf: &[u8]) -> Result<Self> {
        if !is_whole(elf) {
            return Err(Error::internal("it is no whole ELF file"));
        }
        // SAFETY: an ELF file says itself how long it is, and it is whole.
        unsafe { Self::of(elf.as_ptr().cast()) }
    }

    /// # Safety
    /// It must be PTX that ends with a zero, or a whole ELF file.
    unsafe fn of(image: *const c_void) -> Result<Self> {
        let (mut raw, mut log) = (ptr::null_mut(), vec![0_u8; LOG_BYTES]);
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // A size is given where a pointer would stand. One byte less: what is said ends with a zero in any case.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES - 1)];
        let (count, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the caller's promise; the options and their values are as many, and the log is as long as they say.
        let result = unsafe { sys::cuModuleLoadDataEx(&raw mut raw, image, count, options, values) };
        check("cuModuleLoadDataEx", result).map_err(|error| with_log(error, &log))?;
        Ok(Self(raw))
    }

    /// A kernel by name, allowed `shared` bytes of dynamic shared memory.
    pub(crate) fn function(&self, name: &CStr, shared: u32) -> Result<Function> {
        /// What every kernel may have without being allowed to.
        const USUAL_SHARED: u32 = 48 << 10;
        let mut raw = ptr::null_mut();
        let what = || format!("kernel {}", name.to_string_lossy());
        // SAFETY: the pointers are valid for the call.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.0, name.as_ptr()) };
        check(&what(), result)?;
        if shared > USUAL_SHARED {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            check(&what(), unsafe { sys::cuFuncSetAttribute(raw, attribute, shared as c_int) })?;
        }
        Ok(Function(raw))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once, with the session that launches its kernels.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// An error with what the compiler said, if anything.
fn with_log(error: Error, log: &[u8]) -> Error {
    let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said);
    match said.trim() {
        "" => error,
        said => Error::new(error.kind(), format!("{error}; its compiler says: {said}")),
    }
}

/// Whether a file of 64 bits has all the parts that its header says it has: the driver reads as far as that.
fn is_whole(elf: &[u8]) -> bool {
    let word = |at: usize, bytes: usize| {
        let part = elf.get(at..at.checked_add(bytes)?)?;
        Some(part.iter().rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    let ends = || {
        let (headers, header_bytes, count) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?);
        let (program, program_bytes, parts) = (word(0x20, 8)?, word(0x36, 2)?, word(0x38, 2)?);
        let mut end = headers.checked_add(header_bytes * count)?.max(program.checked_add(program_bytes * parts)?);
        for section in 0..count {
            let at = usize::try_from(headers.checked_add(section * header_bytes)?).ok()?;
            // One without bits takes no bytes of the file.
            if word(at.checked_add(4)?, 4)? != 8 {
                end = end.max(word(at + 0x18, 8)?.checked_add(word(at + 0x20, 8)?)?);
            }
        }
        Some(end)
    };
    elf.starts_with(b"\x7fELF\x02\x01") && ends().is_some_and(|end| end <= elf.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::hopper::CUBIN;
    use ragstone_kernels::error::ErrorKind;

    #[test]
    fn the_compilers_words_follow_the_error() {
        let error = || Error::new(ErrorKind::Internal, "a PTX JIT compilation failed");
        let mut log = vec![0; 64];
        assert_eq!(with_log(error(), &log).to_string(), "a PTX JIT compilation failed");
        log[..18].copy_from_slice(b"line 7: no such .x");
        let told = with_log(error(), &log);
        assert_eq!(told.to_string(), "a PTX JIT compilation failed; its compiler says: line 7: no such .x");
        assert_eq!(told.kind(), ErrorKind::Internal);
    }

    #[test]
    fn machine_code_that_is_cut_off_is_not_given_to_the_driver() {
        assert!(is_whole(CUBIN));
        for len in [0, 3, 64, 1000, CUBIN.len() / 2, CUBIN.len() - 1] {
            assert!(!is_whole(&CUBIN[..len]), "{len} of {}", CUBIN.len());
        }
        assert!(!is_whole(&[b"\x7fELF\x02\x01".as_slice(), &[0xff; 200]].concat()));
    }
}
