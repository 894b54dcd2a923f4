//! The whole program on the CUDA backend, over the stand-in for the driver (`kernels/cuda/tests/standin`): the kernels that a GPU would run, on the
//! CPU, each access checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};

const CHAT: &str = "/v1/chat/completions";
/// Of an answer: each takes the stand-in about a second.
const TOKENS: u32 = 6;

/// Where the stand-in is; built if it is not.
fn standin() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/cuda/tests/standin/build");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-standin");
    let built = Command::new(&script).arg(&out).output().expect("the stand-in's build script runs");
    assert!(built.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&built.stderr));
    out.to_str().expect("a folder that can be spelled").to_owned()
}

/// The folder where a start notes that the stand-in was found right; one for all tests, as that takes a minute on it. The test of a stand-in that is
/// wrong does without.
fn share_proofs(folder: &Folder) {
    let (shared, own) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-proofs"), folder.data().join("gpus"));
    if !own.is_symlink() {
        for folder in [&shared, &folder.data()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::os::unix::fs::symlink(shared, own).unwrap();
    }
}

/// The service on the stand-in, and what that is told.
async fn serve(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Service {
    let standin = standin();
    let report = folder.path().join("standin.log");
    let mut all = vec![("LD_LIBRARY_PATH", standin.as_str()), ("CUDA_STANDIN_REPORT", report.to_str().unwrap())];
    all.extend(variables);
    share_proofs(folder);
    folder.serve_with(arguments, &all).await
}

/// Fails with what the stand-in found wrong.
fn assert_clean(folder: &Folder) {
    let found = std::fs::read_to_string(folder.path().join("standin.log")).unwrap_or_default();
    assert!(found.is_empty(), "the stand-in found: {found}");
}

async fn ask(service: &Service, text: &str, reuse: Value) -> (Value, Value) {
    let body = json!({
        "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": TOKENS, "logprobs": true,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": reuse, "arrange": false },
    });
    let answer = service.ask(CHAT, &body).await;
    (answer["choices"][0].clone(), answer["ragstone"]["report"].clone())
}

fn tokens(report: &Value, kind: &str) -> u64 {
    report["tokens"][kind].as_u64().unwrap()
}

const FIRST: &str = "What does Calbet Works make?";
const SECOND: &str = "How many boats lay in the harbour of Tarn?";

#[tokio::test]
async fn answers_are_those_of_the_cpu_cold_warm_blended_and_after_a_restart() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let (expected, _) = ask(&service, FIRST, json!("exact")).await;
    let (expected_second, _) = ask(&service, SECOND, json!("off")).await;
    assert_eq!(service.stop(), 0);

    let service = serve(&folder, &["--device", "cuda"], &[("CUDA_STANDIN_SEED", "7")]).await;
    let (full, report) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!(tokens(&report, "exact"), 0, "a processor's KV is not a GPU's: {report}");
    assert_eq!(full["message"], expected["message"]);
    let (warm, report) = ask(&service, FIRST, json!("exact")).await;
    assert!(tokens(&report, "exact") > 50, "{report}");
    assert_eq!((&warm, &report["segments"][0]["tier"]), (&full, &json!("device")), "to the last bit");
    let (blended, report) = ask(&service, SECOND, json!("auto")).await;
    assert!(tokens(&report, "blended") > 0, "{report}");
    assert_eq!(blended["message"], expected_second["message"]);
    assert_eq!(service.stop(), 0);

    let arguments = ["--device", "cuda", "--set", "device_cache=false"];
    let service = serve(&folder, &arguments, &[("CUDA_STANDIN_SEED", "8")]).await;
    for tier in ["disk", "host"] {
        let (restarted, report) = ask(&service, FIRST, json!("exact")).await;
        assert!(tokens(&report, "exact") > 50, "{report}");
        assert_eq!((&restarted, &report["loads"][0]["tier"]), (&full, &json!(tier)), "to the last bit");
    }
    assert_eq!(service.stop(), 0);
    assert_clean(&folder);
}

/// Neither bf16's KV on the same GPU is theirs, nor that of the processor's 8 bits.
#[tokio::test]
async fn weights_of_8_bits_have_kv_of_their_own() {
    let folder = Folder::new();
    let service = serve(&folder, &["--device", "cuda"], &[("CUDA_STANDIN", "relaxed")]).await;
    service.add("world", WORLD).await;
    ask(&service, FIRST, json!("exact")).await;
    assert_eq!(service.stop(), 0);

    let variables = [("CUDA_STANDIN", "relaxed"), ("CUDA_STANDIN_SEED", "11")];
    let service = serve(&folder, &["--device", "cuda", "--weights", "q8"], &variables).await;
    let (full, report) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!(tokens(&report, "exact"), 0, "{report}");
    let (warm, report) = ask(&service, FIRST, json!("exact")).await;
    assert!(tokens(&report, "exact") > 50, "{report}");
    assert_eq!(warm, full, "to the last bit");
    assert_eq!(service.stop(), 0);
    assert_clean(&folder);

    let service = folder.serve(&["--weights", "q8"]).await;
    let (_, report) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!(tokens(&report, "exact"), 0, "{report}");
    assert_eq!(service.stop(), 0);
}

/// Who computes is not part of what is stored: one GPU reads what two stored, and the reverse.
#[tokio::test]
async fn two_gpus_that_share_the_model_answer_as_one_and_each_reads_what_the_other_stored() {
    let folder = Folder::new();
    let two = |mode, seed| [("CUDA_STANDIN_DEVICES", "2"), ("CUDA_STANDIN", mode), ("CUDA_STANDIN_SEED", seed)];
    let service = serve(&folder, &["--device", "cuda:0,1"], &two("strict", "11")).await;
    service.add("world", WORLD).await;
    let (full, report) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!(tokens(&report, "exact"), 0, "{report}");
    let (warm, report) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!((&warm, &report["segments"][0]["tier"]), (&full, &json!("device")), "to the last bit");
    let (blended, report) = ask(&service, SECOND, json!("auto")).await;
    assert!(tokens(&report, "blended") > 0, "{report}");
    assert_eq!(service.stop(), 0);

    let exact = |report: &Value| tokens(report, "exact");
    let service =
        serve(&folder, &["--device", "cuda"], &[("CUDA_STANDIN", "relaxed"), ("CUDA_STANDIN_SEED", "12")]).await;
    let (restarted, report) = ask(&service, FIRST, json!("exact")).await;
    assert!(exact(&report) > 50 && report["loads"][0]["tier"] == "disk", "{report}");
    assert_eq!(restarted, full, "to the last bit");
    let (second, report) = ask(&service, SECOND, json!("exact")).await;
    assert_eq!(second["message"], blended["message"], "{report}");
    assert_eq!(service.stop(), 0);

    let service = serve(&folder, &["--set", "device=cuda:0,1"], &two("relaxed", "13")).await;
    for (question, expected) in [(FIRST, &full), (SECOND, &second)] {
        let (again, report) = ask(&service, question, json!("exact")).await;
        assert!(exact(&report) > 50, "{report}");
        assert_eq!(&again, expected, "to the last bit");
    }
    assert_eq!(service.stop(), 0);
    assert_clean(&folder);
    let mut command = folder.ragstone(&["serve", "--listen", "127.0.0.1:0", "--device", "cuda:0,1,2"]);
    let standin = standin();
    let output = command.envs([("LD_LIBRARY_PATH", standin.as_str()), ("CUDA_STANDIN_DEVICES", "3")]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("2 KV heads") && error.contains("at most 2"), "{error}");
}

/// What a metric says, over all its labels.
async fn metric(service: &Service, name: &str) -> f64 {
    let text = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    let samples = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    samples.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// Wherever the GPU was lost, in a calibration or in an answer: who was answered hears of it or goes on, and answers afterwards are those of before,
/// from what the other tiers kept.
#[tokio::test]
async fn a_gpu_that_is_lost_is_taken_into_use_again() {
    let folder = Folder::new();
    let service = serve(&folder, &["--device", "cuda"], &[("CUDA_STANDIN", "relaxed")]).await;
    service.add("world", WORLD).await;
    let (expected, _) = ask(&service, FIRST, json!("exact")).await;
    assert_eq!(service.stop(), 0);

    let variables = [("CUDA_STANDIN", "relaxed"), ("CUDA_STANDIN_SEED", "9"), ("CUDA_STANDIN_LOST_AFTER", "3000")];
    let service = serve(&folder, &["--device", "cuda"], &variables).await;
    let body = json!({
        "messages": [{ "role": "user", "content": FIRST }], "temperature": 0, "max_tokens": TOKENS, "logprobs": true,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": "exact" },
    });
    let mut answered = 0;
    while metric(&service, "ragstone_device_lost_total").await == 0.0 {
        assert!(answered < 100, "it is never lost");
        let (status, answer) = service.post(CHAT, &body).await;
        match status {
            200 => assert_eq!(answer["choices"][0], expected, "to the last bit"),
            _ => assert!(error_message(&answer).contains("the device was lost"), "{status}: {answer}"),
        }
        answered += 1;
    }
    let (after, report) = ask(&service, FIRST, json!("exact")).await;
    assert!(tokens(&report, "exact") > 50, "{report}");
    assert_eq!(after, expected, "to the last bit");
    assert_eq!(metric(&service, "ragstone_device_lost_total").await, 1.0);
    assert_eq!(service.stop(), 0);
    assert_clean(&folder);
}

#[tokio::test]
async fn answers_that_are_preempted_are_those_that_were_alone() {
    let folder = Folder::new();
    // Room for one of the three groups, and some of a second one.
    let arguments = ["--device", "cuda", "--set", "device_bytes=200000", "--set", "device_cache=false"];
    let service = serve(&folder, &arguments, &[("CUDA_STANDIN", "relaxed"), ("CUDA_STANDIN_SEED", "10")]).await;
    let bodies = [1, 2, 3].map(|seed| {
        json!({
            "messages": [{ "role": "user", "content": format!("{seed}: What does the harbour of Tarn look like in winter?") }],
            "temperature": 1.0, "seed": seed, "n": 2, "max_tokens": 32, "ignore_eos": true, "logprobs": true,
        })
    });
    let mut alone = Vec::new();
    for body in &bodies {
        alone.push(service.ask(CHAT, body).await["choices"].clone());
    }
    assert_eq!(metric(&service, "ragstone_preemptions_total").await, 0.0);
    let together = join_all(bodies.iter().map(|body| service.ask(CHAT, body))).await;
    for (answer, expected) in together.iter().zip(&alone) {
        assert_eq!(&answer["choices"], expected, "to the last bit");
    }
    assert!(metric(&service, "ragstone_preemptions_total").await > 0.0);
    assert_eq!(service.stop(), 0);
    assert_clean(&folder);
}

#[tokio::test]
async fn without_a_gpu_auto_takes_the_processor_and_cuda_says_what_to_do() {
    let folder = Folder::new();
    let standin = standin();
    let none = [("LD_LIBRARY_PATH", standin.as_str()), ("CUDA_STANDIN_DEVICES", "0")];
    let service = folder.serve_with(&["--device", "auto"], &none).await;
    service.add("world", WORLD).await;
    let (answer, _) = ask(&service, FIRST, json!("exact")).await;
    assert!(answer["message"]["content"].is_string(), "{answer}");
    assert_eq!(service.stop(), 0);
    let mut command = folder.ragstone(&["serve", "--listen", "127.0.0.1:0", "--device", "cuda"]);
    let output = command.envs(none).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("offers no GPU") && error.contains("--device cpu"), "{error}");
    let doctor = |device: &str| {
        let output = folder.ragstone(&["doctor", "--json", "--device", device]).envs(none).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = found.as_array().or_else(|| found["findings"].as_array()).unwrap();
        findings.iter().find(|finding| finding["what"] == "gpu").cloned().unwrap_or_default()
    };
    assert_eq!((&doctor("cuda")["state"], &doctor("auto")["state"]), (&json!("problem"), &json!("ok")));
    assert_eq!(doctor("cpu"), Value::Null);
    // What would not be heeded is refused.
    folder.run(&["bench", "drafts", "--device", "cuda"]).failed_with(&["processor", "leave `device` out"]);
    folder.run(&["bench", "model", "--device", "auto"]).failed_with(&["one device", "--device cuda"]);
    folder.run(&["bench", "parity", "--device", "cuda:0,1"]).failed_with(&["one GPU", "cuda:0,1"]);
    folder.run(&["bench", "parity"]).failed_with(&["add `--device cuda`"]);
    folder
        .run(&["settings", "--set", "device=gpu"])
        .failed_with(&["device", "take cpu, auto, cuda, cuda:1, or cuda:0,1"]);
}

/// Its kernels are held against the processor before it is used: `auto` takes the processor, and metrics and doctor say which family it is.
#[tokio::test]
async fn a_gpu_that_computes_something_else_is_not_used() {
    let folder = Folder::new();
    let standin = standin();
    let wrong = [("LD_LIBRARY_PATH", standin.as_str()), ("CUDA_STANDIN_WRONG", "rms_norm_f32")];
    let service = folder.serve_with(&["--device", "auto"], &wrong).await;
    let text = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    for (family, is_used) in [("rows", 0), ("products", 1)] {
        let line = format!("ragstone_gpu_kernels{{for=\"all\",family=\"{family}\"}} {is_used}");
        assert!(text.contains(&line), "no {line} in {text}");
    }
    assert_eq!(service.stop(), 0);
    let output = folder.ragstone(&["doctor", "--json", "--device", "cuda"]).envs(wrong).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("does not compute what the processor does (rows: rms_norm_f32"), "{said}");
}

/// As somebody with a GPU runs it, in tiny shapes. Comparing with transformers needs torch, and is left out; kernels are compared in
/// a test of their own.
#[test]
fn a_gpu_is_checked_and_measured_by_one_command() {
    let folder = Folder::new();
    let out = folder.path().join("gpu-check");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/gpu-check");
    let report = folder.path().join("standin.log");
    let check = |only: &str| {
        let mut command = Command::new(&script);
        command.args(["--quick", "--binary", env!("CARGO_BIN_EXE_ragstone"), "--only", only, "--out"]).arg(&out);
        command.env("LD_LIBRARY_PATH", standin()).env("CUDA_STANDIN_REPORT", &report);
        command
    };
    let done = check("gpu,bench").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let text = std::fs::read_to_string(out.join("report.md")).unwrap_or_default();
    assert!(done.status.success(), "{said}\n{text}");
    assert_clean(&folder);
    for words in [
        "compute capability 8.0",
        "loaded from PTX in",
        "8 families of kernels are right",
        "| exact_device |",
        "| blend_bucket |",
        "| linear | bf16 |",
        "| linear | q8 |",
        "pinned copy",
        "| decode, a token |",
        "launches a token",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let report: Value = serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    let steps: Vec<_> = report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["gpu", "kernels", "model-tiny", "model-tiny-q8", "ttft-tiny-256", "tiers-tiny"]);

    let failed = check("gpu").env("CUDA_STANDIN_DEVICES", "0").output().unwrap();
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(failed.status.code() == Some(1) && text.contains("1 of 1 steps failed"), "{text}");
}
