//! Where the stand-in is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The clone.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = root().join("kernels/cuda/tests/standin/build");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-standin");
    let built = Command::new(&script).arg(&out).output().expect("the stand-in's build script runs");
    assert!(built.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&built.stderr));
    out
});

/// A command that finds the stand-in where it looks for a driver.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env("LD_LIBRARY_PATH", &*FOLDER).env("CUDA_STANDIN", "relaxed");
    command
}

/// The program.
pub fn ragstone_gpu() -> Command {
    command(env!("CARGO_BIN_EXE_ragstone-gpu"))
}
