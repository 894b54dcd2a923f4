use std::collections::HashMap;

use tempfile::TempDir;

use super::*;
use crate::key::KvKey;

pub(super) fn open(dir: &TempDir) -> Catalog {
    Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 77)).unwrap()
}

fn paths(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(PathBuf::from).collect()
}

#[test]
fn settings_and_models_survive_a_restart() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
    {
        let catalog = open(&dir);
        assert_eq!(catalog.embedding_identity().unwrap(), None);
        catalog.set_embedding_identity("all-MiniLM-L6-v2 384 …").unwrap();
        catalog.note_model(&a, "first", 10).unwrap();
        catalog.note_model(&b, "second", 20).unwrap();
        catalog.note_model(&a, "renamed", 30).unwrap();
        catalog.flush().unwrap();
    }
    let catalog = open(&dir);
    assert_eq!(catalog.embedding_identity().unwrap().unwrap(), "all-MiniLM-L6-v2 384 …");
    let record = |fingerprint, name: &str, first, last| ModelRecord {
        fingerprint,
        name: name.to_owned(),
        first_used_unix_ms: first,
        last_used_unix_ms: last,
    };
    assert_eq!(catalog.models().unwrap(), [record(a, "renamed", 10, 30), record(b, "second", 20, 20)]);
}

#[test]
fn jobs_are_resumed_where_they_were() {
    let dir = TempDir::new().unwrap();
    let (first, second) = {
        let catalog = open(&dir);
        let first = catalog.add_job("law", &paths(&["/a", "/b c"]), false, 5).unwrap();
        let second = catalog.add_job("news", &paths(&["/d"]), true, 6).unwrap();
        assert!(first.id < second.id);
        let attempts = vec![FileAttempt { path: "/a/x\\xff.pdf".into(), count: 1, documents: 7 }];
        let first = IngestJob { done: 3, starts: 2, attempts, ..first };
        catalog.update_job(&first).unwrap();
        (first, second)
    };
    let catalog = open(&dir);
    assert_eq!(catalog.job(first.id).unwrap().as_ref(), Some(&first));
    assert_eq!(catalog.unfinished_jobs().unwrap(), [first.clone(), second.clone()]);
    catalog.finish_job(first.id).unwrap();
    catalog.finish_job(first.id).unwrap();
    assert_eq!(catalog.unfinished_jobs().unwrap(), std::slice::from_ref(&second));
    assert_eq!(catalog.update_job(&first).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(catalog.job(first.id).unwrap(), None);
    catalog.finish_job(second.id).unwrap();
    let third = catalog.add_job("law", &[], false, 7).unwrap();
    assert!(third.id > second.id, "ids are never used twice");
}

#[test]
fn jobs_of_versions_that_counted_no_attempts_are_read() {
    let dir = TempDir::new().unwrap();
    let catalog = open(&dir);
    let row = r#"{"id":4,"collection":"law","paths":["/a"],"created_unix_ms":5,"done":3}"#;
    catalog.jobs.insert(4u64.to_be_bytes(), row).unwrap();
    let job = catalog.job(4).unwrap().unwrap();
    assert_eq!((job.done, job.starts, job.attempts.len()), (3, 0, 0));
}

#[test]
fn uses_are_noted_and_forgotten() {
    let dir = TempDir::new().unwrap();
    let (a, b, c) = (KvKey([1; 32]), KvKey([2; 32]), KvKey([3; 32]));
    let used = |unix_ms, uses| LastUse { unix_ms, uses };
    {
        let catalog = open(&dir);
        catalog.note_last_uses(&HashMap::from([(a, used(1, 1)), (b, used(2, 7))])).unwrap();
        catalog.note_last_uses(&HashMap::from([(a, used(3, 2))])).unwrap();
        catalog.accesses.insert(c.as_bytes(), &9u64.to_be_bytes()).unwrap(); // as it was before uses were counted
        catalog.flush().unwrap();
    }
    let catalog = open(&dir);
    let all = HashMap::from([(a, used(3, 2)), (b, used(2, 7)), (c, used(9, 1))]);
    assert_eq!(catalog.last_uses().unwrap(), all);
    catalog.forget_last_uses(&[a, c]).unwrap();
    assert_eq!(catalog.last_uses().unwrap(), HashMap::from([(b, used(2, 7))]));
}

#[test]
fn pins_survive_a_restart() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (KvKey([1; 32]), KvKey([2; 32]));
    {
        let catalog = open(&dir);
        [a, b].iter().for_each(|key| catalog.set_pinned(key, true).unwrap());
        catalog.set_pinned(&a, false).unwrap();
    }
    assert_eq!(open(&dir).pins().unwrap(), [b]);
}

#[test]
fn a_locked_catalog_says_so() {
    let dir = TempDir::new().unwrap();
    let held = open(&dir);
    let error = Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(held);
    open(&dir);
}

#[test]
fn rows_of_another_form_are_skipped() {
    let dir = TempDir::new().unwrap();
    let catalog = open(&dir);
    catalog.jobs.insert(0u64.to_be_bytes(), "{\"id\":").unwrap();
    catalog.accesses.insert("short", "x").unwrap();
    let job = catalog.add_job("c", &[], false, 0).unwrap();
    assert_eq!(catalog.unfinished_jobs().unwrap(), [job]);
    assert!(catalog.last_uses().unwrap().is_empty());
}

/// Damage anywhere: the catalog opens, with what was in it or anew, and works.
#[test]
fn a_damaged_catalog_is_begun_anew() {
    let garbage = |bytes: &mut Vec<u8>| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31) ^ 0x5A);
    let head = |bytes: &mut Vec<u8>| bytes.iter_mut().take(64).for_each(|byte| *byte = 0xFF);
    let half = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    let empty = |bytes: &mut Vec<u8>| bytes.clear();
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>), bool);
    let damages: [Damage<'_>; 6] = [
        ("conf", &garbage, true),
        ("conf", &empty, false),
        ("db", &garbage, false),
        ("db", &head, false),
        ("db", &half, false),
        ("db", &empty, false),
    ];
    for (case, (file, damage, must_be_seen)) in damages.into_iter().enumerate() {
        let dir = TempDir::new().unwrap();
        {
            let catalog = open(&dir);
            for id in 0..200u8 {
                catalog.set_setting(&format!("name {id}"), &"value".repeat(id.into())).unwrap();
            }
        }
        let path = dir.path().join("catalog").join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        {
            let catalog = open(&dir);
            let moved_aside = dir.path().join("catalog.damaged-77").exists();
            assert!(moved_aside || !must_be_seen, "case {case}: {file}");
            for id in 0..200u8 {
                let value = catalog.setting(&format!("name {id}")).unwrap();
                let expected = "value".repeat(id.into());
                assert!(value.is_none() || value.unwrap() == expected, "case {case}: never another value");
            }
            catalog.set_setting("new", "works").unwrap();
        }
        assert_eq!(open(&dir).setting("new").unwrap().unwrap(), "works", "case {case}");
    }
}

/// What has a second copy: one row of each kind, of which one was removed before.
fn fill(catalog: &Catalog) -> (IngestJob, u64) {
    let key = |name: &str| ApiKeyRecord {
        name: name.into(),
        hash: "0f".repeat(32),
        role: Role::Admin,
        tenant: String::new(),
        collections: Vec::new(),
        added_unix_ms: 0,
    };
    for name in ["a", "b", "revoked"] {
        catalog.put_api_key(&key(name)).unwrap();
    }
    assert!(catalog.remove_api_key("revoked").unwrap());
    [KvKey([1; 32]), KvKey([2; 32])].iter().for_each(|key| catalog.set_pinned(key, true).unwrap());
    catalog.set_pinned(&KvKey([1; 32]), false).unwrap();
    let schema = SchemaRecord {
        tenant: "t".into(),
        name: "trip".into(),
        version: "1".into(),
        schema: "<schema/>".repeat(1000),
        sources: Default::default(),
        added_unix_ms: 0,
    };
    catalog.put_schema(&schema).unwrap();
    catalog.note_model(&Fingerprint([9; 32]), "m", 5).unwrap();
    let job = catalog.add_job("law", &paths(&["/a"]), false, 5).unwrap();
    catalog.update_job(&IngestJob { done: 3, ..job.clone() }).unwrap();
    let removal = Removal::Collection { collection: "c".into(), reach: Reach::Everyone };
    (job, catalog.add_removal(removal).unwrap())
}

/// Schemas apart, which stand in files of their own beside both copies.
fn assert_all_there(catalog: &Catalog, (job, removal): &(IngestJob, u64), case: &str) {
    let names: Vec<String> = catalog.api_keys().unwrap().into_iter().map(|key| key.name).collect();
    assert_eq!(names, ["a", "b"], "{case}");
    assert_eq!(catalog.pins().unwrap(), [KvKey([2; 32])], "{case}");
    assert_eq!(catalog.models().unwrap().len(), 1, "{case}");
    assert_eq!(catalog.job(job.id).unwrap().unwrap().done, 3, "{case}");
    assert_eq!(catalog.removals().unwrap()[0].id, *removal, "{case}");
}

/// Every eighth of the file, its first bytes and its end, flipped, removed and cut; and the file as a whole.
#[test]
fn what_nothing_else_knows_comes_back_from_the_second_copy() {
    let dir = TempDir::new().unwrap();
    let filled = fill(&open(&dir));
    // A kill leaves it as it is now.
    drop(open(&dir));
    let (db, catalog) = (std::fs::read(dir.path().join("catalog/db")).unwrap(), dir.path().join("catalog"));
    let used = db.iter().rposition(|byte| *byte != 0).unwrap();
    let places = [0, 8, 20, 64].into_iter().chain((1..8).map(|eighth| used * eighth / 8));
    let mut damages: Vec<(String, Option<Vec<u8>>)> =
        vec![("removed".into(), None), ("emptied".into(), Some(Vec::new()))];
    for at in places {
        let mut flipped = db.clone();
        flipped[at] ^= 0x11;
        damages.push((format!("{at} flipped"), Some(flipped)));
        let mut shifted = db.clone();
        shifted.remove(at);
        damages.push((format!("{at} removed"), Some(shifted)));
        damages.push((format!("cut at {at}"), Some(db[..at].to_vec())));
    }
    for (case, damaged) in damages {
        let copy = TempDir::new().unwrap();
        std::fs::create_dir(copy.path().join("catalog")).unwrap();
        for entry in std::fs::read_dir(&catalog).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), copy.path().join("catalog").join(entry.file_name())).unwrap();
        }
        std::fs::copy(dir.path().join("catalog.records"), copy.path().join("catalog.records")).unwrap();
        let path = copy.path().join("catalog/db");
        match &damaged {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let opened = open(&copy);
        assert_all_there(&opened, &filled, &case);
        let whole = Catalog::open_copy(&catalog).unwrap();
        let is_told = opened.damage().is_some();
        assert!(
            is_told || whole.setting("records.applied").unwrap() == opened.setting("records.applied").unwrap(),
            "{case}"
        );
        drop(whole);
        if let Some(damage) = opened.damage() {
            assert!(damage.found.contains("second copy") && !damage.advice.is_empty(), "{case}: {damage:?}");
        }
        // It works, also after another start, and numbers go on behind those that came back.
        let next = opened.add_job("law", &[], false, 7).unwrap();
        assert!(next.id > filled.0.id && next.id > filled.1, "{case}");
        assert!(opened.remove_api_key("b").unwrap());
        drop(opened);
        let again = open(&copy);
        assert!(again.damage().is_none() && again.api_keys().unwrap().len() == 1, "{case}");
        assert_eq!(again.unfinished_jobs().unwrap().len(), 2, "{case}");
    }
}

#[test]
fn a_damaged_second_copy_is_written_anew_from_the_catalog() {
    let dir = TempDir::new().unwrap();
    let filled = fill(&open(&dir));
    let path = dir.path().join("catalog.records");
    for damage in 0..3 {
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            0 => bytes[40] ^= 1,
            1 => bytes.truncate(bytes.len() / 2),
            _ => bytes.clear(),
        }
        std::fs::write(&path, &bytes).unwrap();
        let catalog = open(&dir);
        assert_all_there(&catalog, &filled, &format!("damage {damage}"));
        assert!(catalog.damage().is_none());
        drop(catalog);
        assert!(!records::read(&path).unwrap().is_damaged);
        // And it is whole: the other one can be lost now.
        let copy = TempDir::new().unwrap();
        std::fs::copy(&path, copy.path().join("catalog.records")).unwrap();
        assert_all_there(&open(&copy), &filled, &format!("only the second, {damage}"));
    }
}

/// sled's file as a power cut leaves it: without the last changes, which were told to be durable.
#[test]
fn what_was_told_to_be_durable_is_in_the_second_copy_at_once() {
    let dir = TempDir::new().unwrap();
    let before = TempDir::new().unwrap();
    {
        let catalog = open(&dir);
        catalog.set_pinned(&KvKey([7; 32]), true).unwrap();
    }
    for file in ["conf", "db"] {
        std::fs::copy(dir.path().join("catalog").join(file), before.path().join(file)).unwrap();
    }
    let filled = fill(&open(&dir));
    for file in ["conf", "db"] {
        std::fs::copy(before.path().join(file), dir.path().join("catalog").join(file)).unwrap();
    }
    let catalog = open(&dir);
    catalog.set_pinned(&KvKey([7; 32]), false).unwrap();
    assert_all_there(&catalog, &filled, "after a power cut");
    assert!(catalog.damage().is_none(), "{:?}", catalog.damage());
}

#[test]
fn a_second_copy_that_grew_is_written_anew() {
    let dir = TempDir::new().unwrap();
    let catalog = open(&dir);
    let job = catalog.add_job("law", &[PathBuf::from("x".repeat(1 << 20))], false, 0).unwrap();
    for done in 0..12 {
        catalog.update_job(&IngestJob { done, ..job.clone() }).unwrap();
    }
    let bytes = || std::fs::metadata(dir.path().join("catalog.records")).unwrap().len();
    assert!(bytes() < 9 << 20, "{}", bytes());
    drop(catalog);
    assert_eq!(open(&dir).job(job.id).unwrap().unwrap().done, 11);
    drop(open(&dir));
    assert!(bytes() < 9 << 20, "{}", bytes());
}
