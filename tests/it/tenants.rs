//! One tenant's work is not another's wait, and its faults are not another's errors.

use reqwest::Method;
use serde_json::{Value, json};

use crate::cache::{cited, document, list, settle};
use crate::harness::{Folder, Service, WORLD};
use crate::keys::{As, new_key, send};

const FAILPOINTS: &str = "RAGSTONE_FAILPOINTS";

async fn until(service: &Service, what: &str, is_so: impl Fn(&Value) -> bool) {
    let begun = ragstone_env::Stopwatch::start();
    loop {
        let (_, status) = service.get("/v1/cache/status").await;
        if is_so(&status) {
            return;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{what}: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn changes(status: &Value) -> u64 {
    let jobs = status["jobs"].as_array().into_iter().flatten();
    jobs.filter(|job| job["kind"] == "change").filter_map(|job| job["jobs"].as_u64()).sum()
}

fn documents(id: &str, text: &str) -> Value {
    json!({ "documents": [{ "id": id, "title": id, "text": text }] })
}

/// Two uploads of one tenant hold whatever an upload can hold, for as long as anybody watches: another's deletions, and its own, are done.
/// In the end the service is told to stop, and does not wait for them either.
#[tokio::test]
async fn slow_uploads_of_one_tenant_keep_nobody_from_deleting_and_the_service_from_nothing() {
    let folder = Folder::new();
    let settings = ["--keys", "required", "--set", "calibrate_when_idle=false"];
    let service = folder.serve_with(&settings, &[(FAILPOINTS, "corpus.embed=hang@4")]).await;
    let owner = folder.token();
    let key =
        async |name: &str| new_key(&service, &owner, json!({ "name": name, "role": "write", "tenant": name })).await;
    let (slow, other) = (key("slow").await, key("other").await);
    let at = "/v1/collections/notes/documents";
    for (key, id) in [(&slow, "own"), (&other, "first"), (&other, "second")] {
        let (status, told) = send(&service, Method::POST, at, As::Key(key), &documents(id, "The mill stands.")).await;
        assert_eq!(status, 200, "{told}");
    }
    let uploads: Vec<_> = (0..6)
        .map(|number| {
            let (client, url) =
                (reqwest::Client::new(), service.url(&format!("/v1/collections/notes/files/{number}.txt")));
            let put =
                client.put(url).bearer_auth(&slow).body(format!("The heron number {number} stands. ").repeat(500));
            tokio::spawn(async move { put.send().await.map(|response| response.status()) })
        })
        .collect();
    let status = |service: &Service| {
        let (client, url, owner) = (reqwest::Client::new(), service.url("/v1/cache/status"), owner.clone());
        async move {
            let sent = client.get(url).header("x-ragstone-token", owner).send().await.unwrap();
            sent.json::<Value>().await.unwrap()
        }
    };
    let begun = ragstone_env::Stopwatch::start();
    while changes(&status(&service).await) < 2 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "the uploads do not begin");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for (key, path) in [
        (&other, "/v1/collections/notes/documents/first"),
        (&slow, "/v1/collections/notes/documents/own"),
        (&other, "/v1/collections/notes"),
        (&slow, "/v1/collections/notes"),
    ] {
        let (status, told) = send(&service, Method::DELETE, path, As::Key(key), &Value::Null).await;
        assert_eq!(status, 200, "{path}: {told}");
    }
    // Nothing of it has to be embedded, so that it goes through although every call of the embedding model hangs.
    let empty = documents("empty", " ");
    let (status, told) = send(&service, Method::POST, at, As::Key(&other), &empty).await;
    assert_eq!(status, 200, "{told}");
    assert!(uploads.iter().all(|upload| !upload.is_finished()));
    assert_eq!(service.stop(), 0);
    uploads.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A text that takes for ever to cut is left where it is.
#[tokio::test]
async fn a_stop_does_not_wait_for_the_cutting_of_a_text() {
    let folder = Folder::new();
    let service = folder.serve_with(&[], &[(FAILPOINTS, "corpus.cut=hang")]).await;
    let put = reqwest::Client::new().put(service.url("/v1/collections/notes/files/a.txt")).body("The mill stands.");
    let upload = tokio::spawn(async move { put.send().await.map(|response| response.status()) });
    until(&service, "it is cut", |status| changes(status) == 1).await;
    assert_eq!(service.stop(), 0);
    upload.abort();
    // It was told to nobody that it is stored.
    let service = folder.serve(&[]).await;
    let (status, listed) = service.get("/v1/collections/notes/documents").await;
    assert!(status == 404 || listed["data"] == json!([]), "{listed}");
    service.add("notes", &WORLD[..1]).await;
}

/// A bucket refuses what is to be removed of one tenant: nobody else hears of it, no object is named to anybody, and what it kept leaves
/// by itself once it can.
#[tokio::test]
async fn what_a_bucket_keeps_of_one_tenant_is_no_others_error() {
    let (folder, bucket) = (Folder::new(), tempfile::tempdir().unwrap());
    let url = format!("object_url=file://{}", bucket.path().display());
    let settings = ["--set", &url, "--set", "kv_admission=always", "--set", "vacuum_within_s=1"];
    let with_keys = [&settings[..], &["--keys", "required"]].concat();
    let service = folder.serve(&settings).await;
    for tenant in ["acme", "other"] {
        service.add(&format!("{tenant}%2Fboats"), WORLD).await;
        cited(&service, &format!("{tenant}/boats"), "What does Calbet Works make?", tenant).await;
    }
    settle(&service).await;
    let id = document(&service, "acme%2Fboats", WORLD[0].0).await;
    let keys: Vec<String> = list(&folder, &["--collection", "acme/boats", "--document", &id, "--tenant", "acme"])
        .iter()
        .map(|entry| entry["key"].as_str().unwrap().to_owned())
        .collect();
    assert!(!keys.is_empty());
    assert_eq!(service.stop(), 0);

    let dead = "object.list=error:unavailable;object.delete=error:unavailable;object.get_header=error:unavailable";
    let service = folder.serve_with(&with_keys, &[(FAILPOINTS, dead)]).await;
    let owner = folder.token();
    let key =
        async |name: &str| new_key(&service, &owner, json!({ "name": name, "role": "write", "tenant": name })).await;
    let (acme, other) = (key("acme").await, key("other").await);
    let path = format!("/v1/collections/boats/documents/{id}");
    let (status, told) = send(&service, Method::DELETE, &path, As::Key(&acme), &Value::Null).await;
    assert_eq!(status, 503, "{told}");
    assert!(told.contains("is removed as soon as it does") && !told.contains("object."), "{told}");
    for (id, text) in [("new", "The mill stands."), ("new", "The mill burns.")] {
        let at = "/v1/collections/boats/documents";
        let (status, told) = send(&service, Method::POST, at, As::Key(&other), &documents(id, text)).await;
        assert_eq!(status, 200, "{told}");
        assert!(!told.contains("v1/"), "{told}");
    }
    assert_eq!(service.stop(), 0);

    // Nobody removes anything: it goes by itself.
    let service = folder.serve(&with_keys).await;
    let begun = ragstone_env::Stopwatch::start();
    let in_bucket = || {
        let files = walk(bucket.path());
        keys.iter().any(|key| files.iter().any(|file| file.ends_with(key.as_str())))
    };
    while in_bucket() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "it stays in the bucket");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    drop(service);
}

/// Every file below a folder.
pub fn walk(folder: &std::path::Path) -> Vec<String> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        // Files come and go meanwhile.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => folders.push(entry.path()),
                false => files.push(entry.path().to_string_lossy().into_owned()),
            }
        }
    }
    files
}

/// An answer of a key that is revoked ends.
#[tokio::test]
async fn a_key_that_is_revoked_while_an_answer_streams_reads_no_further() {
    let folder = Folder::new();
    let settings = ["--keys", "required", "--set", "calibrate_when_idle=false"];
    let service = folder.serve(&settings).await;
    let owner = folder.token();
    let key = new_key(&service, &owner, json!({ "name": "reader", "role": "read", "tenant": "acme" })).await;
    let asked = json!({
        "messages": [{ "role": "user", "content": "Tell me of boats." }], "stream": true, "max_tokens": 4000,
        "temperature": 0, "ignore_eos": true,
    });
    let client = reqwest::Client::new();
    let request = client.post(service.url("/v1/chat/completions")).bearer_auth(&key).json(&asked);
    let mut response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut told = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
    let (status, _) = send(&service, Method::DELETE, "/v1/keys/reader", As::Owner(&owner), &Value::Null).await;
    assert_eq!(status, 200);
    while let Ok(Some(chunk)) = response.chunk().await {
        told.push_str(str::from_utf8(&chunk).unwrap());
    }
    assert!(told.contains("this API key was revoked") && !told.contains("[DONE]"), "{told}");
}

/// Two processes begin on one folder at the same moment, again and again: one has it, and the other says so.
#[tokio::test]
async fn of_two_services_that_begin_on_one_folder_one_is_refused() {
    let folder = Folder::new();
    for _ in 0..3 {
        let mut both = [folder.serve_command(&[]), folder.serve_command(&[])].map(|mut command| {
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        });
        let begun = ragstone_env::Stopwatch::start();
        let refused = loop {
            if let Some(at) = (0..2).find(|at| both[*at].try_wait().unwrap().is_some()) {
                break at;
            }
            assert!(begun.elapsed() < std::time::Duration::from_secs(120), "both run");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        let [first, second] = &mut both;
        let (refused, other) = if refused == 0 { (first, second) } else { (second, first) };
        let mut told = String::new();
        std::io::Read::read_to_string(refused.stderr.as_mut().unwrap(), &mut told).unwrap();
        assert!(told.contains("ragstone: ") && !told.contains("panicked"), "{told}");
        // It tells its address once it serves.
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(other.stdout.take().unwrap()));
        let serves = lines.any(|line| line.is_ok_and(|line| line.contains("http://")));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(serves, "the other goes on");
    }
}
