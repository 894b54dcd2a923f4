//! Nodes with a key on a bucket that somebody else writes to: what he does costs a computation, and changes no answer.

use serde_json::json;

use crate::harness::{Folder, Service};
use crate::s3::{Bucket, ask, store_status, tiers, uploaded};

/// The server gives and takes what comes with a signature, and looks at none.
pub const ANYBODY: &str =
    "AWS4-HMAC-SHA256 Credential=test/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// What somebody without the key does to every object.
#[derive(Debug, Clone, Copy)]
enum Tampering {
    /// Changes a byte of the last layer: no header shows it.
    LastByte,
    /// Puts each under the name of the next one.
    Rotated,
    /// Leaves the first half.
    Cut,
}

struct Keyed {
    bucket: Bucket,
    keys: Folder,
    encrypt: bool,
}

impl Keyed {
    fn start(encrypt: bool) -> Option<Self> {
        let (bucket, keys) = (Bucket::start()?, Folder::new());
        std::fs::write(keys.path().join("one"), "41".repeat(31) + "42\n").unwrap();
        std::fs::write(keys.path().join("two"), "43".repeat(31) + "44\n").unwrap();
        Some(Self { bucket, keys, encrypt })
    }

    /// A node whose keys are those of these files.
    async fn node(&self, folder: &Folder, keys: &[&str]) -> Service {
        let files: Vec<_> = keys.iter().map(|key| format!("file:{}", self.keys.path().join(key).display())).collect();
        let (keys, encrypt) = (format!("object_keys={}", files.join(",")), format!("object_encrypt={}", self.encrypt));
        let set = ["--set", "kv_admission=always", "--set", &keys, "--set", &encrypt];
        self.bucket.node_with(folder, &set).await
    }

    /// The names and bytes of all objects.
    async fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let listing = self.bucket.address("?list-type=2&prefix=kv/");
        let listing = reqwest::get(listing).await.unwrap().text().await.unwrap();
        let names = listing.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned());
        let mut found = Vec::new();
        for name in names {
            let get = reqwest::Client::new().get(self.bucket.address(&name)).header("authorization", ANYBODY);
            let got = get.send().await.unwrap();
            assert!(got.status().is_success(), "{got:?}");
            found.push((name, got.bytes().await.unwrap().to_vec()));
        }
        found
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) {
        let put = reqwest::Client::new().put(self.bucket.address(name)).header("authorization", ANYBODY);
        let put = put.body(bytes).send().await.unwrap();
        assert!(put.status().is_success(), "{put:?}");
    }

    async fn tamper(&self, tampering: Tampering) {
        let all = self.objects().await;
        assert!(all.len() > 2, "{all:?}");
        for (at, (name, bytes)) in all.iter().enumerate() {
            let mut changed = bytes.clone();
            match tampering {
                Tampering::LastByte => *changed.last_mut().unwrap() ^= 1,
                Tampering::Rotated => changed = all[(at + 1) % all.len()].1.clone(),
                Tampering::Cut => changed.truncate(bytes.len() / 2),
            }
            self.put(name, changed).await;
        }
    }
}

#[tokio::test]
async fn what_somebody_without_the_key_writes_is_computed_again() {
    for (encrypt, tampering) in
        [(false, Tampering::LastByte), (true, Tampering::LastByte), (false, Tampering::Rotated), (true, Tampering::Cut)]
    {
        let Some(keyed) = Keyed::start(encrypt) else { return };
        let [a, b, c, d] = [Folder::new(), Folder::new(), Folder::new(), Folder::new()];
        let first = keyed.node(&a, &["one"]).await;
        let (answer, _) = ask(&first).await;
        uploaded(&first).await;
        first.kill();
        let objects = keyed.objects().await;
        assert!(objects.iter().all(|(name, _)| name.starts_with("kv/s1/")), "{objects:?}");

        let node = keyed.node(&b, &["one"]).await;
        let (same, report) = ask(&node).await;
        assert_eq!(same, answer);
        assert!(tiers(&report).iter().all(|tier| *tier == "object"), "{report}");
        assert_eq!(store_status(&node).await["object"]["forged"], 0);
        node.kill();

        keyed.tamper(tampering).await;
        let node = keyed.node(&c, &["one"]).await;
        let (same, report) = ask(&node).await;
        assert_eq!(same, answer, "{encrypt} {tampering:?}: {report}");
        let status = store_status(&node).await;
        assert!(status["object"]["forged"].as_u64().unwrap() > 0, "{encrypt} {tampering:?}: {status}");
        let metrics = reqwest::get(node.url("/metrics")).await.unwrap().text().await.unwrap();
        assert!(
            metrics.contains("ragstone_object_forged_total") && !metrics.contains("ragstone_object_forged_total 0\n"),
            "{metrics}"
        );
        uploaded(&node).await;
        node.kill();
        // And good ones took their place.
        let node = keyed.node(&d, &["one"]).await;
        let (same, report) = ask(&node).await;
        assert_eq!(same, answer);
        assert!(tiers(&report).contains(&"object"), "{encrypt} {tampering:?}: {report}");
        assert_eq!(report["late_misses"].as_u64().unwrap_or(0), 0, "{report}");
    }
}

#[tokio::test]
async fn who_has_another_key_or_none_computes_and_a_key_is_changed() {
    let Some(keyed) = Keyed::start(true) else { return };
    let [a, b, c, d] = [Folder::new(), Folder::new(), Folder::new(), Folder::new()];
    let first = keyed.node(&a, &["one"]).await;
    let (answer, _) = ask(&first).await;
    uploaded(&first).await;
    let before = keyed.objects().await;
    assert_eq!(first.stop(), 0);

    let stranger = keyed.bucket.node_with(&b, &["--set", "kv_admission=always"]).await;
    let (same, report) = ask(&stranger).await;
    assert_eq!((same, &report["tokens"]["exact"]), (answer.clone(), &json!(0)), "{report}");
    stranger.kill();

    let changing = keyed.node(&c, &["two", "one"]).await;
    let (same, report) = ask(&changing).await;
    assert_eq!(same, answer);
    assert!(tiers(&report).iter().all(|tier| *tier == "object"), "by the key that it was sealed by: {report}");
    let collected = crate::cache::cache(&c, &["gc"]);
    assert!(collected["object"]["resealed"].as_u64().unwrap() > 0, "{collected}");
    let after = keyed.objects().await;
    assert!(before.iter().all(|(name, _)| after.iter().all(|(other, _)| other != name)), "{after:?}");
    changing.kill();

    let node = keyed.node(&d, &["two"]).await;
    let (same, report) = ask(&node).await;
    assert_eq!(same, answer);
    assert!(tiers(&report).iter().all(|tier| *tier == "object"), "by the new one alone: {report}");
}
