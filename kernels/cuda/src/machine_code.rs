//! Machine code of the kernels for one generation of GPUs each, where it lies beside the program.
//!
//! The driver compiles the PTX once a machine and keeps what came out, in a folder of the user's; where it cannot write there, each process
//! compiles for up to half a minute. `ops/cuda/cubins` compiles before that. Which file is of which PTX, and whole, its name says:
//!
//! ```text
//! cubins/sm_90-<SHA-256 of the PTX>-<SHA-256 of the file>.cubin      16 digits of each
//! ```
//!
//! What is of another PTX or damaged is not used, and neither is what the driver does not take: then it compiles the PTX.

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};

use ragstone_env::Stopwatch;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::driver::Module;
use super::session::PTX;
use ragstone_kernels::error::{Error, Result};

/// Digits of a digest in a file's name.
const DIGITS: usize = 16;
/// The greatest file that is read: ten times as large as ours.
const MOST_BYTES: u64 = 64 << 20;

/// What a GPU's kernels were loaded from, and how long it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadedCode {
    /// `PTX`, or the machine code's file.
    pub from: String,
    /// Until the driver had taken all kernels.
    pub seconds: f64,
    /// Why machine code that is there was not used.
    pub refused: Option<String>,
}

/// The kernels for the current context's GPU: as machine code where there is some, else compiled by the driver.
///
/// # Errors
/// The driver's, with its compiler's words.
pub(super) fn load(capability: (u32, u32)) -> Result<(Module, LoadedCode)> {
    let started = Stopwatch::start();
    let loaded = |from: String, refused| LoadedCode { from, seconds: started.elapsed_s(), refused };
    let mut refused = None;
    if let Some(path) = folder().and_then(|folder| find(&folder, capability)) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match read(&path).and_then(|code| Module::load_machine_code(&code)) {
            Ok(module) => return Ok((module, loaded(name, None))),
            // A GPU that is gone does not take the PTX either, and says so.
            Err(error) => refused = Some(format!("{name}: {error}")),
        }
    }
    let ptx = CStr::from_bytes_with_nul(PTX.as_bytes()).map_err(|_| Error::internal("the PTX has a zero byte"))?;
    let module = Module::load(ptx)?;
    Ok((module, loaded("PTX".to_owned(), refused)))
}

/// The file of machine code for a GPU, where there is one.
pub(super) fn found(capability: (u32, u32)) -> Option<String> {
    let path = find(&folder()?, capability)?;
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Of which PTX this program is.
pub(super) fn ptx_digest() -> String {
    digest(PTX.trim_end_matches('\0').as_bytes())
}

/// `cubins` beside the program.
fn folder() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.join("cubins");
    folder.is_dir().then_some(folder)
}

/// The file for a GPU: of its own capability, else of the greatest lesser one with the same major number, whose code it runs as well.
fn find(folder: &Path, (major, minor): (u32, u32)) -> Option<PathBuf> {
    let ptx = ptx_digest();
    let entries = fs::read_dir(folder).ok()?.flatten();
    let fitting = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (made_for, rest) = name.strip_prefix("sm_")?.split_once('-')?;
        let (tens, ones) = made_for.split_at_checked(made_for.len().checked_sub(1)?)?;
        let made_for: (u32, u32) = (tens.parse().ok()?, ones.parse().ok()?);
        (made_for.0 == major && made_for.1 <= minor && rest.split('-').next() == Some(&ptx))
            .then(|| (made_for, entry.path()))
    });
    fitting.max().map(|(_, path)| path)
}

/// A file that is what its name says.
fn read(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).map_err(|error| Error::io("cannot look at", path, error))?.len();
    if size > MOST_BYTES {
        return Err(Error::corrupt(format!("it has {size} bytes, and was not made by ops/cuda/cubins")));
    }
    let code = fs::read(path).map_err(|error| Error::io("cannot read", path, error))?;
    let named = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.rsplit('-').next());
    if named != Some(&digest(&code)) {
        return Err(Error::corrupt("it is not what its name says, and is damaged: make it again by ops/cuda/cubins"));
    }
    Ok(code)
}

/// The first digits of a SHA-256.
pub(super) fn digest(bytes: &[u8]) -> String {
    let mut text: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(DIGITS);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, made_for: &str, ptx: &str, code: &[u8]) -> PathBuf {
        let path = folder.join(format!("{made_for}-{ptx}-{}.cubin", digest(code)));
        fs::write(&path, code).unwrap();
        path
    }

    #[test]
    fn the_nearest_of_the_same_generation_and_ptx_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let ours = digest(include_bytes!("../ragstone.ptx"));
        let made: Vec<PathBuf> = ["sm_80", "sm_86", "sm_90", "sm_120"]
            .iter()
            .map(|of| write(folder.path(), of, &ours, of.as_bytes()))
            .collect();
        write(folder.path(), "sm_89", "0123456789abcdef", b"of an older PTX");
        for other in ["readme.txt", "sm_-", "sm_8", "sm_x9-a-b.cubin", "sm_\u{fc}-a-b.cubin"] {
            fs::write(folder.path().join(other), other).unwrap();
        }
        let found = |capability| find(folder.path(), capability);
        assert_eq!(
            [found((8, 0)), found((8, 6)), found((8, 9))].map(Option::unwrap),
            [0, 1, 1].map(|at| made[at].clone())
        );
        assert_eq!((found((9, 0)).as_ref(), found((12, 1)).as_ref()), (Some(&made[2]), Some(&made[3])));
        assert_eq!((found((10, 0)), found((7, 5))), (None, None));
        assert_eq!(find(&folder.path().join("missing"), (8, 0)), None);
    }

    #[test]
    fn what_is_damaged_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), "sm_80", "0", b"code");
        assert_eq!(read(&path).unwrap(), b"code");
        fs::write(&path, b"c0de").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("damaged"));
        assert!(read(&folder.path().join("sm_80-0-0.cubin")).is_err());
    }
}
