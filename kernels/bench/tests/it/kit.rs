//! The kit: made, run on the stand-in, and ended in the middle.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::standin::{command, root};

/// Without machine code, of which making takes half a minute and a compiler that may not be there.
fn kit(folder: &Path) -> PathBuf {
    let made = Command::new(root().join("ops/gpu/kit"))
        .args(["--no-machine-code", "--small", env!("CARGO_BIN_EXE_ragstone-gpu"), "--out"])
        .arg(folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let archive = folder.join("ragstone-gpu-kit.tar.xz");
    assert!(archive.metadata().unwrap().len() < 30_000_000);
    folder.join("ragstone-gpu-kit")
}

fn report(out: &Path) -> (Value, String) {
    let json = std::fs::read_to_string(out.join("report.json")).unwrap();
    (serde_json::from_str(&json).unwrap(), std::fs::read_to_string(out.join("report.md")).unwrap())
}

/// Of each step its name and how it ended.
fn steps(report: &Value) -> Vec<(&str, String)> {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().map(|step| (step["step"].as_str().unwrap(), step["status"].to_string())).collect()
}

#[test]
fn one_command_tries_everything_and_leaves_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let kit = kit(folder.path());
    let out = folder.path().join("found");
    let done = command(kit.join("run")).args(["--quick", "--minutes", "5", "--out"]).arg(&out).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let (json, text) = report(&out);
    assert!(done.status.success(), "{said}\n{text}");
    let expected = ["gpu", "parity-quick", "golden", "kernels", "model-tiny", "model-tiny-q8"];
    assert_eq!(steps(&json), expected.map(|name| (name, "0".to_owned())), "{text}");
    assert_eq!(json["ok"], true);
    for words in [
        "loaded from PTX in",
        "| attention |",
        "| gemm_bf16_128 |",
        "| without graphs |",
        "| linear | q8 |",
        "| decode, a token |",
        "All 6 steps passed",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    assert!(out.with_extension("tar.gz").exists() && !out.join("data").exists());
}

/// The same steps by the same script, from the clone.
fn check(out: &Path) -> Command {
    let mut check = command(root().join("ops/gpu-check"));
    check.args(["--small", env!("CARGO_BIN_EXE_ragstone-gpu"), "--quick", "--out"]).arg(out);
    check
}

/// Told to end while kernels are checked: what is known by then is in the report and in the archive, and nothing goes on.
#[test]
fn a_run_that_is_ended_leaves_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("found");
    let mut run = check(&out)
        .args(["--only", "gpu,parity,bench"])
        .env("CUDA_STANDIN_HANGS", "rotate_f32")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    let begun = lines.by_ref().map_while(Result::ok).find(|line| line == "== parity-quick");
    assert!(begun.is_some());
    // The step is running by now, as the report of before it says.
    assert_eq!(steps(&report(&out).0)[..1], [("gpu", "0".to_owned())]);
    // SAFETY: it is our child, which nobody has waited for.
    assert_eq!(unsafe { libc::kill(run.id().cast_signed(), libc::SIGTERM) }, 0);
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(run.wait().unwrap().code(), Some(1), "{said:?}");
    let (json, text) = report(&out);
    assert_eq!(steps(&json)[1], ("parity-quick", "\"cut off\"".to_owned()), "{text}");
    assert!(text.contains("the run was told to end") && json["ok"] == false, "{text}");
    assert!(out.with_extension("tar.gz").exists(), "{said:?}");
}

/// A step that hangs takes what is left of the time, and what does not fit any more is named.
#[test]
fn a_step_that_hangs_is_ended_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("found");
    let done = check(&out)
        .args(["--only", "gpu,bench", "--minutes", "0.12"])
        .env("CUDA_STANDIN_HANGS", "gemm_bf16_16")
        .output()
        .unwrap();
    let (json, text) = report(&out);
    assert_eq!(done.status.code(), Some(1), "{text}");
    let ended: Vec<String> = steps(&json).into_iter().map(|(_, status)| status).collect();
    assert_eq!(ended, ["0", "\"cut off\"", "\"skipped\"", "\"skipped\""], "{text}");
    assert!(text.contains("no time is left") && text.contains("it was ended after"), "{text}");
}
