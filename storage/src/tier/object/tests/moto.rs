//! A server that others wrote: `moto` on loopback. `ops/test` installs it and names its interpreter.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// Ends when its standard input closes.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/s3_server.py");

struct Moto {
    child: Child,
    endpoint: String,
}

impl Moto {
    /// `None` where no interpreter is named: the test says that it is skipped.
    fn start() -> Option<Self> {
        let Some(python) = std::env::var_os("S3_TEST_PYTHON") else {
            println!("skipped: S3_TEST_PYTHON names no interpreter that has moto[server]; ops/test installs one");
            return None;
        };
        let mut child = Command::new(python)
            .arg(SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("S3_TEST_PYTHON can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Some(Self { endpoint: line.trim().to_owned(), child })
    }

    fn node(&self, codec: Codec) -> ObjectTier {
        let mut options =
            ObjectOptions { codec, timeout: Duration::from_secs(60), ..ObjectOptions::new("s3://bucket/some/prefix") };
        for (key, value) in [
            ("endpoint", self.endpoint.as_str()),
            ("region", "us-east-1"),
            ("access_key_id", "test"),
            ("secret_access_key", "test"),
            ("allow_http", "true"),
        ] {
            options.options.0.insert(key.into(), value.into());
        }
        ObjectTier::open(&options, MODEL, env()).unwrap()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn nodes_share_a_bucket_of_another_make() {
    let Some(moto) = Moto::start() else { return };
    let (a, b) = (moto.node(Codec::Plain), moto.node(Codec::Zstd));
    let entries: Vec<_> = (0..20).map(|id| entry(None, &[id, 7])).collect();
    let (even, odd): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.header().tokens[0] % 2 == 0);
    std::thread::scope(|scope| {
        // Both write everything: each entry is created by one of them.
        let write =
            |tier: &ObjectTier| entries.iter().filter(|entry| tier.put(entry).unwrap() == stored(entry)).count();
        let counts = [&a, &b].map(|tier| scope.spawn(move || write(tier)));
        let created: usize = counts.into_iter().map(|count| count.join().unwrap()).sum();
        assert_eq!(created, 20);
    });
    entries.iter().for_each(|entry| assert_found(&a, entry));
    entries.iter().for_each(|entry| assert_found(&b, entry));
    assert_eq!(listed(&b).len(), 20);
    for entry in &even {
        assert!(a.remove(&entry.header().id()).unwrap());
        assert!(!b.remove(&entry.header().id()).unwrap());
    }
    assert_eq!(remove_segment(&b, odd[0]), 1);
    assert_eq!(listed(&a).len(), 9);
    assert_eq!(a.counts().failed + b.counts().failed, 0);
    let all = CollectOptions { max_bytes: Some(0), grace: Duration::ZERO, ..CollectOptions::default() };
    let collected = a.collect(&all).unwrap();
    assert_eq!((collected.objects, collected.left_for_size, collected.kept), (9, 9, 0), "{collected:?}");
    assert_eq!(listed(&b), []);
}

#[test]
fn a_large_entry_is_loaded_as_fast_as_plain_requests_load_its_bytes() {
    let Some(moto) = Moto::start() else { return };
    assert_loads_fast(&moto.node(Codec::Plain), 2);
}
