//! A server that others wrote.

use super::*;

fn node(server: &S3Server, codec: Codec) -> ObjectTier {
    let options = ObjectOptions { codec, ..s3(&server.endpoint, "s3://bucket/some/prefix", Duration::from_secs(60)) };
    ObjectTier::open(&options, MODEL, env()).unwrap()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the threads end with the test")]
fn nodes_share_a_bucket_of_another_make() {
    let Some(server) = S3Server::start() else { return };
    let (a, b) = (node(&server, Codec::Plain), node(&server, Codec::Zstd));
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
fn a_bucket_is_probed_before_it_is_used() {
    let Some(server) = S3Server::start() else { return };
    node(&server, Codec::Plain).probe().unwrap();
    let missing = s3(&server.endpoint, "s3://no-such-bucket", Duration::from_secs(60));
    let error = ObjectTier::open(&missing, MODEL, env()).unwrap().probe().unwrap_err();
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
}

#[test]
fn a_large_entry_is_loaded_as_fast_as_plain_requests_load_its_bytes() {
    let Some(server) = S3Server::start() else { return };
    assert_loads_fast(&node(&server, Codec::Plain), 2);
}
