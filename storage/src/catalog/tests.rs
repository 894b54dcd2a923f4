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
