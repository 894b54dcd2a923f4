//! Objects of a shared bucket that are well formed, lie under the right name, and are not what this model can have computed: each
//! is a miss, leaves the bucket, and changes no answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_env::Env;
use ragstone_kernels::dtype::KvDtype;
use ragstone_storage::entry::{Entry, EntryBuilder, EntryHeader, NewEntry};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::tier::object::{ObjectOptions, ObjectTier};
use ragstone_storage::tier::{EntryId, EntryTier, Put};
use serde_json::{Value, json};

use crate::cache::{cache, settle};
use crate::harness::{Folder, Service, WORLD};

/// What a forger changes of an entry; the key follows from none of it.
#[derive(Debug, Clone, Copy)]
enum Forgery {
    Layers,
    Width,
    Dtype,
    /// The right shape, and values that are no numbers.
    Values,
}

async fn node(folder: &Folder, bucket: &Folder) -> Service {
    let url = format!("object_url=file://{}", bucket.path().display());
    let set = [&*url, "kv_admission=always", "device_cache=false"];
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    let service = folder.serve(&arguments).await;
    service.add("world", WORLD).await;
    service
}

async fn ask(service: &Service) -> (Value, Value) {
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 16,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": "exact" },
    });
    let answer = service.ask("/v1/chat/completions", &body).await;
    (answer["choices"][0]["message"]["content"].clone(), answer["ragstone"]["report"].clone())
}

/// Every object, and the entry that it is.
fn objects(bucket: &Path) -> Vec<(PathBuf, EntryId)> {
    let mut found = Vec::new();
    let mut folders = vec![bucket.join("v1")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let part = |at: usize| path.iter().rev().nth(at).unwrap().to_str().unwrap().to_owned();
            let id = EntryId { key: part(0).parse().unwrap(), segment: part(1).parse().unwrap() };
            found.push((path, id));
        }
    }
    found
}

fn forged(header: &EntryHeader, forgery: Forgery) -> Entry {
    let (mut layers, mut kv_dim, mut dtype) = (header.layers, header.kv_dim, header.dtype);
    match forgery {
        Forgery::Layers => layers = 1,
        Forgery::Width => kv_dim *= 2,
        Forgery::Dtype => dtype = if dtype == KvDtype::F32 { KvDtype::Bf16 } else { KvDtype::F32 },
        Forgery::Values => {}
    }
    let new = NewEntry {
        fingerprint: header.fingerprint,
        salt: header.salt.clone(),
        parent: header.parent,
        tokens: header.tokens.clone(),
        layers,
        kv_dim,
        dtype,
    };
    let value = if matches!(forgery, Forgery::Values) { f32::NAN } else { 0.25 };
    let side = dtype.encode(&vec![value; header.tokens.len() * kv_dim as usize]);
    let mut builder = EntryBuilder::new(new).unwrap();
    (0..layers).for_each(|_| builder.push_layer(&side, &side).unwrap());
    builder.finish(header.compute_us, header.created_unix_ms).unwrap()
}

/// Puts a forgery in the place of every object.
fn forge(bucket: &Path, forgery: Forgery) -> usize {
    let all = objects(bucket);
    let fingerprint: Fingerprint = all[0].0.iter().rev().nth(2).unwrap().to_str().unwrap().parse().unwrap();
    let options = ObjectOptions::new(format!("file://{}", bucket.display()));
    let tier = ObjectTier::open(&options, fingerprint, Env::system()).unwrap();
    for (path, id) in &all {
        let header = tier.open(id).unwrap().expect("it is listed").header().clone();
        let entry = forged(&header, forgery);
        if matches!(forgery, Forgery::Values) {
            // The header stays; what is behind it has right checksums, too.
            let mut object = std::fs::read(path).unwrap();
            let frames = entry.frames().concat();
            let start = object.len() - frames.len();
            object[start..].copy_from_slice(&frames);
            std::fs::write(path, object).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
            assert!(matches!(tier.put(&Arc::new(entry)).unwrap(), Put::Stored { .. }));
        }
    }
    all.len()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn a_forged_object_is_a_miss_and_leaves_the_bucket() {
    for forgery in [Forgery::Layers, Forgery::Width, Forgery::Dtype, Forgery::Values] {
        let [bucket, a, b, c] = [Folder::new(), Folder::new(), Folder::new(), Folder::new()];
        let first = node(&a, &bucket).await;
        let (answer, _) = ask(&first).await;
        settle(&first).await;
        first.kill();
        let path = bucket.path().to_owned();
        assert!(blocking(move || forge(&path, forgery)).await > 1);

        let second = node(&b, &bucket).await;
        for _ in 0..2 {
            let (same, report) = ask(&second).await;
            assert_eq!(same, answer, "{forgery:?}: {report}");
        }
        settle(&second).await;
        let store = second.get("/v1/cache/status").await.1["store"].clone();
        assert!(store["object"]["corrupt"].as_u64().unwrap() > 0, "{forgery:?}: {store}");
        // What nobody asked for is still there; a verification finds it, and leaves what was written anew.
        b.run(&["cache", "verify", "--tier", "object"]);
        let report = cache(&b, &["verify", "--tier", "object"]);
        assert_eq!(report["damaged"], json!([]), "{forgery:?}: {report}");
        assert!(report["entries"].as_u64().unwrap() > 0, "{forgery:?}: {report}");
        second.kill();
        // And good ones took their place.
        let third = node(&c, &bucket).await;
        let (same, report) = ask(&third).await;
        assert_eq!((same, &report["loads"][0]["tier"]), (answer, &json!("object")), "{forgery:?}: {report}");
    }
}

#[tokio::test]
async fn an_import_of_forged_entries_takes_none() {
    let [folder, other] = [Folder::new(), Folder::new()];
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    service.add("world", WORLD).await;
    ask(&service).await;
    settle(&service).await;
    let place = folder.path().join("carried");
    cache(&folder, &["export", place.to_str().unwrap()]);
    let path = place.clone();
    let all = blocking(move || forge(&path, Forgery::Layers)).await as u64;
    let service = other.serve(&[]).await;
    let ran = other.run(&["cache", "import", place.to_str().unwrap(), "--json"]).failed_with(&["damaged"]);
    let said: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((said["damaged"].as_u64(), said["entries"].as_u64()), (Some(all), Some(0)), "{said}");
    assert_eq!(cache(&other, &["list"])["entries"], 0);
    drop(service);
}
