//! Every way in which a bucket fails: a miss or an error, counted; never a wrong byte, never a hang.

use super::*;
use ragstone_env::FailMode;

/// Every flipped bit pattern and every length of an object; what is read of it is right or an error.
fn assert_damage_is_noticed(codec: Codec) {
    let (store, tier, _) = in_memory(codec);
    let entry = quantisable();
    tier.put(&entry).unwrap();
    let name = tier.name(Space::of(codec), &entry.header().id());
    let path = tier.names.object(&name);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let overwrite = |bytes: Vec<u8>| drop(runtime.block_on(store.put(&path, bytes.into())).unwrap());
    let whole = runtime.block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
    let opened = read(&tier, &name).unwrap();
    let frames: Vec<_> = (0..LAYERS).map(|layer| opened.frame(layer).unwrap()).collect();
    let mut noticed_at = [0; 2];
    for at in 0..whole.len() {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 0x10;
        overwrite(damaged);
        match read(&tier, &name) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:?}: byte {at}: {error}");
                noticed_at[0] += 1;
            }
            Ok(opened) => {
                let damage: Vec<_> = (0..LAYERS).filter_map(|layer| decoded(&*opened, layer).err()).collect();
                noticed_at[1] += damage.len();
                assert!(damage.iter().all(|error| error.kind() == ErrorKind::Corrupt), "{codec:?}: byte {at}");
                // zstd has bits that mean nothing.
                let read = |layer| opened.frame(layer).unwrap();
                assert!(
                    !damage.is_empty() || (codec == Codec::Zstd && (0..LAYERS).map(read).eq(frames.iter().cloned()))
                );
            }
        }
    }
    assert!(noticed_at.iter().all(|&count| count > 0), "in headers and in frames: {noticed_at:?}");
    for length in 0..whole.len() {
        overwrite(whole[..length].to_vec());
        assert_eq!(read(&tier, &name).err().expect("short").kind(), ErrorKind::Corrupt, "{codec:?}: {length} bytes");
    }
    overwrite([&whole[..], &[0]].concat());
    assert_eq!(read(&tier, &name).err().expect("long").kind(), ErrorKind::Corrupt);
    overwrite(whole.to_vec());
    assert_eq!(read(&tier, &name).unwrap().frame(0).unwrap(), frames[0]);
    assert_eq!(tier.counts().failed, 0, "damage is no failure of the bucket");
}

fn read(tier: &ObjectTier, name: &Name) -> Result<Arc<dyn TierEntry>> {
    let precision = if name.room.space == Space::Exact { Precision::Exact } else { Precision::Lossy };
    tier.open_many(&[(name.id, precision)]).remove(0).map(|opened| opened.expect("there"))
}

/// As the store reads a layer.
fn decoded(read: &dyn TierEntry, layer: u32) -> Result<frame::Frame> {
    let header = read.header();
    frame::decode(&read.frame(layer)?, &header.key, layer, &header.frame_shape())
}

#[test]
fn damage_to_plain_objects_is_noticed() {
    assert_damage_is_noticed(Codec::Plain);
}

#[test]
fn damage_to_compressed_objects_is_noticed() {
    assert_damage_is_noticed(Codec::Zstd);
}

#[test]
fn damage_to_quantised_objects_is_noticed() {
    assert_damage_is_noticed(Codec::Q8);
}

#[test]
fn two_objects_swapped_are_noticed() {
    let (store, tier, _) = in_memory(Codec::Plain);
    let entries = [entry(None, &[1, 2]), entry(None, &[1, 3])];
    put_all(&tier, &entries);
    let paths = entries.clone().map(|entry| tier.names.object(&tier.name(Space::Exact, &entry.header().id())));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let spare = Path::from("spare");
        store.rename(&paths[0], &spare).await.unwrap();
        store.rename(&paths[1], &paths[0]).await.unwrap();
        store.rename(&spare, &paths[1]).await.unwrap();
    });
    for entry in &entries {
        assert_eq!(tier.open(&entry.header().id()).err().expect("swapped").kind(), ErrorKind::Corrupt);
    }
    assert_eq!(listed(&tier), []);
}

/// A tier that gives up quickly, over a bucket with one large and one small entry.
fn quick() -> (Arc<Faulty>, ObjectTier, Arc<Entry>, Env) {
    let (faulty, env) = (Faulty::new(), env());
    let options = ObjectOptions { timeout: Duration::from_millis(30), ..options(Codec::Plain) };
    let tier = ObjectTier::over(faulty.clone(), Path::from("kv"), &options, MODEL, env.clone()).unwrap();
    let large = wide([1, 2], 10_000);
    faulty.set(None);
    tier_over(faulty.clone(), Codec::Plain, &env).put(&large).unwrap();
    (faulty, tier, large, env)
}

#[test]
fn a_bucket_that_fails_hangs_or_lies_is_an_error_of_every_operation() {
    for fault in [Fault::Failing, Fault::Hanging, Fault::Denied] {
        let (faulty, tier, large, _) = quick();
        let opened = tier.open(&large.header().id()).unwrap().unwrap();
        faulty.set(Some(fault));
        let id = large.header().id();
        let unavailable = |result: Result<()>, what: &str| {
            assert_eq!(result.expect_err(what).kind(), ErrorKind::Unavailable, "{fault:?}: {what}");
        };
        unavailable(tier.open(&id).map(drop), "open");
        unavailable(opened.frame(0).map(drop), "frame");
        unavailable(tier.put(&entry(None, &[1])).map(drop), "put");
        unavailable(tier.list(&mut |_| panic!("found")).map(drop), "list");
        unavailable(tier.collect(&CollectOptions::default()).map(drop), "collect");
        unavailable(tier.open_many(&exactly(&[id])).remove(0).map(drop), "open_many");
        unavailable(tier.remove_segments(None, &[MODEL], &[id.segment]).map(drop), "remove_segment");
        unavailable(tier.probe(), "probe");
        let counts = tier.counts();
        assert!(counts.failed >= 5, "{counts:?}");
        assert_eq!(fault == Fault::Hanging, counts.timed_out > 0, "{counts:?}");
    }
}

#[test]
fn reads_of_another_length_are_never_taken_for_hits() {
    for fault in [Fault::ShortRead, Fault::Endless, Fault::OtherRange] {
        let (faulty, tier, large, _) = quick();
        let opened = tier.open(&large.header().id()).unwrap().unwrap();
        faulty.set(Some(fault));
        let error = opened.frame(1).expect_err("not the bytes asked for");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        let error = tier.open(&large.header().id()).err().expect("not the bytes asked for");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        faulty.set(None);
        assert_right(&*opened, &large);
        assert_eq!(tier.counts().failed, 2);
    }
}

#[test]
fn an_object_gone_or_replaced_between_header_and_frames_is_not_found() {
    for fault in [Fault::GoneAfterHeader, Fault::ReplacedAfterHeader] {
        let (faulty, tier, large, _) = quick();
        faulty.set(Some(fault));
        let opened = tier.open(&large.header().id()).unwrap().unwrap();
        faulty.set(None);
        let error = opened.frame(0).expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{fault:?}: {error}");
        assert_eq!(tier.counts().failed, 0, "the bucket answered");
    }
}

#[test]
fn a_put_that_was_done_though_its_answer_was_lost_counts_as_there() {
    let (faulty, tier, _, _) = quick();
    faulty.set(Some(Fault::ResetAfterPut));
    let small = entry(None, &[1]);
    assert_eq!(tier.put(&small).unwrap(), stored(&small));
    assert_eq!(tier.put(&small).unwrap(), Put::Stored { bytes: small.header().total_bytes() }, "it cannot know");
    faulty.set(None);
    assert_found(&tier, &small);
    let (_, tier, env) = in_memory(Codec::Plain);
    env.set_fail_point("object.after_put", FailMode::Error(ErrorKind::Unavailable), 1);
    assert_eq!(tier.put(&small).unwrap(), stored(&small));
    assert_found(&tier, &small);
}

#[test]
fn a_missing_bucket_is_a_miss_for_reading_and_an_error_for_writing() {
    let (faulty, tier, large, _) = quick();
    faulty.set(Some(Fault::NoBucket));
    assert_missed(&tier, &large);
    let error = tier.put(&entry(None, &[1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("does the bucket exist?"), "{error}");
}

#[test]
fn a_dead_bucket_is_asked_by_one_probe_at_a_time_and_comes_back() {
    let (faulty, tier, large, env) = quick();
    let id = large.header().id();
    faulty.set(Some(Fault::Failing));
    for _ in 0..5 {
        assert!(tier.is_up());
        assert_eq!(tier.open(&id).err().expect("failing").kind(), ErrorKind::Unavailable);
    }
    assert!(!tier.is_up());
    let asked = faulty.requests();
    let refused = tier.open_many(&exactly(&[id; 10]));
    assert!(refused.iter().all(|opened| opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)));
    assert_eq!((faulty.requests(), tier.counts().shed), (asked, 10), "nobody waits for it");
    env.advance(Duration::from_secs(1));
    assert!(tier.open(&id).is_err());
    assert_eq!(faulty.requests(), asked + 1, "the probe");
    env.advance(Duration::from_secs(1));
    assert!(tier.open(&id).is_err());
    assert_eq!(faulty.requests(), asked + 1, "a failed probe waits longer");
    faulty.set(None);
    env.advance(Duration::from_secs(1));
    assert_found(&tier, &large);
    assert!(tier.is_up());
}

#[test]
fn a_bucket_that_is_back_removes_many_with_the_first_attempt() {
    let (faulty, _, large, env) = quick();
    let tier = tier_over(faulty.clone(), Codec::Plain, &env);
    let entries: Vec<_> = (0..64).map(|id| entry(None, &[id])).collect();
    entries.iter().for_each(|entry| assert_eq!(tier.put(entry).unwrap(), stored(entry)));
    faulty.set(Some(Fault::Failing));
    (0..5).for_each(|_| assert!(tier.open(&large.header().id()).is_err()));
    let named: Vec<_> = entries.iter().map(|entry| (MODEL, entry.header().id())).collect();
    let asked = tier.counts().operations;
    assert!(!tier.is_up() && tier.remove_many(&named).is_err());
    assert_eq!(tier.counts().operations, asked, "nobody waits for it");
    faulty.set(None);
    env.advance(Duration::from_secs(1));
    entries.iter().for_each(|entry| assert_missed(&tier, entry));
    // Those beside a probe would be refused.
    assert_eq!(tier.remove_many(&named).unwrap().len(), entries.len());
    assert_eq!(listed(&tier), [large.header().summary()]);
}

#[test]
fn misses_and_puts_of_what_is_there_are_no_failures() {
    let (_, tier, large, _) = quick();
    for id in 0..20 {
        assert_missed(&tier, &entry(None, &[100 + id]));
        assert_eq!(tier.put(&large).unwrap(), Put::AlreadyThere);
    }
    assert!(tier.is_up());
    assert_eq!(tier.counts().failed, 0);
}

#[test]
fn what_could_not_be_deleted_is_not_found_any_more() {
    let (faulty, tier, large, _) = quick();
    let id = large.header().id();
    faulty.set(Some(Fault::Undeletable));
    assert_eq!(tier.remove(&id).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_missed(&tier, &large);
    assert!(tier.open_many(&exactly(&[id]))[0].as_ref().unwrap().is_none());
    assert_eq!(listed(&tier), []);
    assert!(tier.remove_segments(None, &[MODEL], &[id.segment]).is_err());
    assert_eq!(tier.put(&large).unwrap_err().kind(), ErrorKind::Unavailable, "it may be damaged and cannot make room");
    faulty.set(None);
    assert_missed(&tier, &large);
    assert!(matches!(tier.put(&large).unwrap(), Put::Stored { .. }), "the old one went first");
    assert_found(&tier, &large);
}

#[test]
fn the_collector_deletes_what_could_not_be_deleted() {
    let (faulty, tier, large, _) = quick();
    faulty.set(Some(Fault::Undeletable));
    assert!(tier.remove(&large.header().id()).is_err());
    faulty.set(None);
    assert_eq!(tier.collect(&CollectOptions::default()).unwrap().objects, 0);
    assert_missed(&tier_over(faulty, Codec::Plain, &env()), &large);
}

#[test]
fn every_failpoint_is_an_error_of_its_operation() {
    let fails = |point: &str, act: &dyn Fn(&ObjectTier, &Arc<Entry>) -> Result<()>| {
        let (_, tier, env) = in_memory(Codec::Plain);
        let large = wide([1, 2], 10_000);
        if point != "object.before_put" {
            tier.put(&large).unwrap();
        }
        env.set_fail_point(point, FailMode::Error(ErrorKind::Unavailable), 1);
        assert_eq!(act(&tier, &large).expect_err(point).kind(), ErrorKind::Unavailable);
        env.set_fail_point(point, FailMode::Panic, 1);
        assert_eq!(
            act(&tier, &large).expect_err(point).kind(),
            ErrorKind::Unavailable,
            "{point}: a panic is contained"
        );
        env.set_fail_point(point, FailMode::Off, 1);
    };
    fails("object.before_put", &|tier, entry| tier.put(entry).map(drop));
    fails("object.get_header", &|tier, entry| tier.open(&entry.header().id()).map(drop));
    fails("object.get_frames", &|tier, entry| {
        tier.open(&entry.header().id()).and_then(|read| read.unwrap().frame(0)).map(drop)
    });
    fails("object.delete", &|tier, entry| tier.remove(&entry.header().id()).map(drop));
    fails("object.list", &|tier, _| tier.list(&mut |_| {}).map(drop));
}

/// A folder whose disk says no: an error that says so, and what was there stays.
#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let dir = TempDir::new().unwrap();
    let url = format!("file://{}/bucket", dir.path().display());
    let tier = ObjectTier::open(&ObjectOptions::new(url), MODEL, env()).unwrap();
    let small = entry(None, &[1]);
    tier.put(&small).unwrap();
    // A file where a folder is wanted: as good as any error, and root is not exempt from it.
    let other = entry(None, &[2]);
    let folder = tier.names.segment(tier.names.written(Space::Exact), &MODEL, &other.header().segment());
    std::fs::write(dir.path().join("bucket").join(folder.as_ref()), b"").unwrap();
    assert_eq!(tier.put(&other).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_found(&tier, &small);
}
