use std::collections::HashSet;
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;
use crate::ErrorKind;
use ragstone_env::Env;

fn identity<'a>(files: &'a [PathBuf]) -> ModelIdentity<'a> {
    ModelIdentity {
        config: b"{}",
        tokenizer: b"[]",
        weights: Weights::Files(files),
        adapter: &[],
        arithmetic: "f32",
        kv_dtype: KvDtype::F16,
        positional: "rope",
    }
}

fn weights(dir: &TempDir) -> Vec<PathBuf> {
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let paths = files.map(|file| dir.path().join(file));
    for (path, length) in paths.iter().zip([3 << 20, 10]) {
        std::fs::write(path, vec![7; length]).unwrap();
    }
    paths.to_vec()
}

/// Computed by another implementation of BLAKE3: each part stands behind its length, u64 little-endian.
#[test]
fn golden_fingerprint_of_format_1() {
    let identity = ModelIdentity { weights: Weights::Seed(7), ..identity(&[]) };
    let golden = "ee1eedfc7ea607cafe317b62e0e43d34ed9b47a7be5dc88cb8d336e36a9d2dc4";
    assert_eq!(fingerprint(&identity, None, None).unwrap().to_string(), golden);
}

#[test]
fn everything_that_shapes_kv_counts() {
    let dir = TempDir::new().unwrap();
    let files = weights(&dir);
    let base = identity(&files);
    let take = |identity: ModelIdentity<'_>| fingerprint(&identity, None, None).unwrap();
    let mut seen = vec![
        take(base),
        take(ModelIdentity { config: b"{ }", ..base }),
        take(ModelIdentity { tokenizer: b"[ ]", ..base }),
        take(ModelIdentity { arithmetic: "bf16", ..base }),
        take(ModelIdentity { kv_dtype: KvDtype::Bf16, ..base }),
        take(ModelIdentity { positional: "yarn", ..base }),
        take(ModelIdentity { weights: Weights::Files(&files[..1]), ..base }),
        take(ModelIdentity { weights: Weights::Seed(0), ..base }),
        take(ModelIdentity { weights: Weights::Seed(1), ..base }),
        take(ModelIdentity { adapter: &files[..1], ..base }),
        take(ModelIdentity { adapter: &files[1..], ..base }),
        take(ModelIdentity { adapter: &files, ..base }),
        // Bytes may not move from one part to the next.
        take(ModelIdentity { config: b"{}[", tokenizer: b"]", ..base }),
    ];
    std::fs::write(&files[1], [8; 10]).unwrap();
    seen.push(take(base));
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len());
    let reversed: Vec<PathBuf> = files.iter().rev().cloned().collect();
    assert_eq!(take(identity(&reversed)), take(base), "names order the files");
}

#[test]
fn digests_are_remembered_until_a_file_changes() {
    let dir = TempDir::new().unwrap();
    let catalog = Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 0)).unwrap();
    let files = weights(&dir);
    let take = || fingerprint(&identity(&files), Some(&catalog), None).unwrap();
    let first = take();
    assert_eq!(first, fingerprint(&identity(&files), None, None).unwrap());
    assert_eq!(take(), first);
    // A planted digest is used: the file is not read again.
    catalog.remember_digest(&stamp(&files[1]).unwrap(), &[9; 32]).unwrap();
    assert_ne!(take(), first);
    // Other content of the same length, with the old time of change put back.
    let modified = files[1].metadata().unwrap().modified().unwrap();
    std::fs::write(&files[1], [8; 10]).unwrap();
    File::options().write(true).open(&files[1]).unwrap().set_modified(modified).unwrap();
    let other = take();
    assert_ne!(other, first);
    assert_eq!(other, fingerprint(&identity(&files), None, None).unwrap());
}

#[test]
fn progress_ends_at_the_total_and_a_missing_file_is_named() {
    let dir = TempDir::new().unwrap();
    let mut files = weights(&dir);
    let calls = Mutex::new(Vec::new());
    let progress = |done, total| calls.lock().unwrap().push((done, total));
    fingerprint(&identity(&files), None, Some(&progress)).unwrap();
    let calls = calls.into_inner().unwrap();
    assert_eq!(calls.last(), Some(&((3 << 20) + 10, (3 << 20) + 10)));
    assert!(calls.is_sorted());
    files.push(dir.path().join("gone.safetensors"));
    let error = fingerprint(&identity(&files), None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("gone.safetensors"), "{error}");
}
