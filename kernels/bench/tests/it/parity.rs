//! Families of kernels, each in a process of its own.

use serde_json::Value;

use crate::standin::ragstone_gpu;

/// The lines that were printed, and what was said.
fn parity(only: &str, faults: &[(&str, &str)]) -> (Vec<Value>, String, bool) {
    let mut command = ragstone_gpu();
    command.args(["parity", "--quick", "--json", "--limit", "2", "--only", only]).envs(faults.iter().copied());
    let done = command.output().unwrap();
    let lines = String::from_utf8(done.stdout).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, String::from_utf8(done.stderr).unwrap(), done.status.success())
}

fn problem(line: &Value) -> &str {
    line["families"][0]["problem"].as_str().unwrap_or_default()
}

#[test]
fn a_family_that_crashes_or_hangs_hides_no_other() {
    let faults = [("CUDA_STANDIN_CRASHES", "add_scaled"), ("CUDA_STANDIN_HANGS", "head_norm")];
    let (lines, said, passed) = parity("values,rows,reuse", &faults);
    assert!(!passed && lines.len() == 4, "{lines:?} {said}");
    assert!(problem(&lines[0]).contains("add_scaled crashes"), "{lines:?}");
    assert!(problem(&lines[1]).contains("not ended after 2 s"), "{lines:?}");
    assert!(problem(&lines[2]).is_empty() && lines[2]["kernels"][0]["problem"].is_null(), "{lines:?}");
    assert_eq!(lines[3]["families"].as_array().unwrap().len(), 3);
    assert!(said.contains("2 of") && said.contains("values: "), "{said}");
}

#[test]
fn a_wrong_value_is_the_kernels_and_the_others_are_well() {
    let (lines, said, passed) =
        parity("values,reuse", &[("CUDA_STANDIN_WRONG", "scale_values"), ("CUDA_STANDIN", "strict")]);
    assert!(!passed && said.contains("scale_values: 1 values"), "{said}");
    let kernels = lines.last().unwrap()["kernels"].as_array().unwrap();
    let wrong: Vec<&Value> = kernels.iter().filter(|row| !row["problem"].is_null()).collect();
    assert!(wrong.len() == 1 && wrong[0]["kernel"] == "scale_values" && kernels.len() > 10, "{kernels:?}");
}

#[test]
fn what_is_no_gpu_or_no_family_says_so() {
    for (arguments, words) in [
        (vec!["parity", "--only", "gemm"], "take one of values, rows"),
        (vec!["device", "--device", "cpu"], "take cuda, or cuda:1"),
        (vec!["device", "--device", "cuda:7"], "there is no GPU 7"),
        (vec!["golden", "--model", "/nonexistent", "--set", "/nonexistent"], "/nonexistent"),
    ] {
        let done = ragstone_gpu().args(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
