use std::collections::BTreeSet;
use std::process::Command;

use super::*;
use crate::Recorder;

/// Files below a folder, with what is in them.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// What a shell does, recorded, at each of its ends.
fn recorded(script: &str) -> Option<(Recording, BTreeMap<String, Vec<u8>>)> {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::compile(dir.path()).unwrap()?;
    let (folder, to) = (dir.path().join("disk"), dir.path().join("recording"));
    std::fs::create_dir(&folder).unwrap();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&folder);
        recorder.watch(&mut command, &folder, &to).unwrap();
        assert!(command.status().unwrap().success(), "{line}");
    }
    Some((Recording::read(&to).unwrap(), files(&folder)))
}

fn at_the_end(recording: &Recording) -> Disk {
    let mut disk = Disk::default();
    recording.records.iter().for_each(|record| disk.apply(recording, record));
    disk
}

fn left(disk: &Disk, recording: &Recording, left: Left) -> BTreeMap<String, Vec<u8>> {
    let to = tempfile::tempdir().unwrap();
    disk.cut(recording, left, to.path()).unwrap();
    files(to.path())
}

const SCRIPT: &str = "
    mkdir a
    dd if=/proc/self/cmdline of=a/synced conv=fsync status=none
    dd if=/proc/self/cmdline of=a/unsynced status=none
    sync a
    sync .
    dd if=/proc/self/cmdline of=a/late conv=fsync status=none
    mv a/synced moved
    ln a/late linked
    rm a/unsynced
    truncate -s 3 moved
";

#[test]
fn what_is_not_synced_is_lost_and_what_is_kept_is_what_was_there() {
    let Some((recording, real)) = recorded(SCRIPT) else { return };
    let disk = at_the_end(&recording);
    assert_eq!(left(&disk, &recording, Left::All), real);
    assert_eq!(real.keys().collect::<Vec<_>>(), ["a/late", "linked", "moved"]);
    let nothing = left(&disk, &recording, Left::Nothing);
    assert_eq!(nothing.keys().collect::<Vec<_>>(), ["a/synced", "a/unsynced"]);
    assert!(nothing["a/unsynced"].is_empty() && nothing["a/synced"].starts_with(b"dd\0"));
    // Any of it, and the same for the same seed.
    let seen: BTreeSet<Vec<String>> =
        (0..200).map(|seed| left(&disk, &recording, Left::Some(seed)).into_keys().collect()).collect();
    assert!(seen.len() > 4, "{seen:?}");
    assert!(seen.iter().all(|names| names.contains(&"moved".into()) != names.contains(&"a/synced".into())), "{seen:?}");
    assert_eq!(left(&disk, &recording, Left::Some(7)), left(&disk, &recording, Left::Some(7)));
}

/// The folder of the child.
const FOLDER: &str = "RECORDED_FOLDER";

/// The child: its last name is given by a call that goes past the C library.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    for name in ["one", "two"] {
        tempfile::NamedTempFile::new_in(&folder).unwrap().persist(Path::new(&folder).join(name)).unwrap();
    }
    tempfile::NamedTempFile::new_in(&folder).unwrap().persist_noclobber(Path::new(&folder).join("three")).unwrap();
    drop(tempfile::NamedTempFile::new_in(&folder).unwrap());
}

#[test]
fn names_that_are_given_past_the_c_library_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let Some(recorder) = Recorder::compile(dir.path()).unwrap() else { return };
    let (folder, to) = (dir.path().join("disk"), dir.path().join("recording"));
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "disk::tests::child", "--test-threads=1"]).env(FOLDER, &folder);
    recorder.watch(&mut command, &folder, &to).unwrap();
    assert!(command.status().unwrap().success());
    let recording = Recording::read(&to).unwrap();
    let replayed = left(&at_the_end(&recording), &recording, Left::All);
    assert_eq!(replayed.keys().collect::<Vec<_>>(), ["one", "three", "two"]);
    assert_eq!(files(&folder), replayed);
}

#[test]
fn a_rename_that_one_folder_synced_is_done_in_both() {
    let Some((recording, _)) =
        recorded("mkdir a\nsync .\ndd if=/proc/self/cmdline of=a/x conv=fsync status=none\nmv a/x x\nsync .")
    else {
        return;
    };
    let disk = at_the_end(&recording);
    for how in [Left::Nothing, Left::Some(1), Left::Some(2), Left::Some(3)] {
        assert_eq!(left(&disk, &recording, how).keys().collect::<Vec<_>>(), ["x"], "{how:?}");
    }
}

#[test]
fn pages_are_kept_apart_and_torn_by_sectors() {
    let bytes = vec![7; 3 * PAGE as usize];
    let pieces: Vec<(u64, usize)> = pages(100, &bytes).map(|(at, piece)| (at, piece.len())).collect();
    assert_eq!(pieces, [(100, 3996), (4096, 4096), (8192, 4096), (12288, 100)]);
    let random = Env::seeded(1, 0);
    for _ in 0..100 {
        let mut content = vec![0; 2 * PAGE as usize];
        put_torn(&mut content, 100, &[7; 3996], &random);
        let first = content.iter().position(|byte| *byte == 7).unwrap_or(100);
        let end = content.iter().rposition(|byte| *byte == 7).map_or(512, |last| last + 1);
        assert!((first == 100 || first.is_multiple_of(512)) && end.is_multiple_of(512) && end <= 4096, "{first} {end}");
    }
}
