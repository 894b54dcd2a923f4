//! The data folder: whether it can be used, who else can read it, its format, and the room on its disk.

use std::path::Path;

use ragstone_env::damage::moved_aside;
use ragstone_env::mebibytes;
use ragstone_models::machine::free_bytes;

use super::finding::Finding;

/// Below this the store cannot even compact what it has.
const LEAST_FREE: u64 = 256 << 20;

/// Whether the folder is there and may be written to. Leaves nothing in it.
pub fn place(path: &Path) -> Finding {
    let what = "data folder";
    // Of a name without a folder, what is above it is where the command runs.
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Err(found) = is_writable(path) {
        return Finding::problem(
            what,
            found,
            "let this user write there, or name another folder with --data DIR or RAGSTONE_DATA",
        );
    }
    if !path.exists() {
        return Finding::ok(what, format!("{} is not there yet; the first ingest or serve begins it", path.display()));
    }
    #[cfg(unix)]
    if let Ok(metadata) = path.metadata() {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 && ragstone_service::data_folder::DataFolder::is_used(path) {
            let found =
                format!("other users of this machine can read {}: documents and the owner's token", path.display());
            return Finding::warning(what, found, format!("chmod 700 {}", path.display()));
        }
    }
    Finding::ok(what, path.display().to_string())
}

/// The folder of the audit log, where one is kept.
pub fn audit_log(path: &Path) -> Finding {
    let what = "audit log";
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match is_writable(&path) {
        Ok(()) => Finding::ok(what, path.display().to_string()),
        Err(found) => {
            Finding::problem(what, found, "let this user write there, or name another folder with `audit_log`")
        }
    }
}

/// Whether a folder can be written to, or made where it is not there yet; what keeps it from that. Leaves nothing in it.
fn is_writable(path: &Path) -> Result<(), String> {
    let Some(there) = path.ancestors().find(|path| path.exists()) else {
        return Err(format!("{} does not exist", path.display()));
    };
    // Unlinked from the beginning, where the system can.
    match tempfile::tempfile_in(there) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} cannot be written to: {error}", there.display())),
    }
}

/// Whether this version reads what is there.
pub fn format(path: &Path) -> Finding {
    let what = "format";
    match ragstone_migrations::status(path) {
        Err(error) => Finding::of(what, &error),
        Ok(status) => match (status.found, status.steps.as_slice()) {
            (None, _) => Finding::ok(what, "nothing is stored yet"),
            (Some(found), []) => Finding::ok(what, format!("{found}, this version's")),
            (Some(found), steps) => {
                let found = format!("{found}; this version's is {}", status.wanted);
                let advice = if steps.iter().all(|step| step.automatic) {
                    "the next start upgrades it, or `ragstone migrate up` does"
                } else {
                    "run `ragstone migrate up`; `ragstone migrate status` says what it does"
                };
                Finding::warning(what, found, advice)
            }
        },
    }
}

/// What starts moved aside, because it was damaged or belonged to nothing, and is still there.
pub fn aside(data: &Path) -> Option<Finding> {
    let what = "moved aside";
    match moved_aside(data) {
        Ok(found) if found.is_empty() => None,
        Ok(found) => {
            let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            let advice = "it was damaged when a start found it, or belonged to no collection: look into it, or remove it to free its room";
            Some(Finding::warning(what, names.join(" "), advice))
        }
        Err(error) => {
            Some(Finding::problem(what, format!("{} cannot be read: {error}", data.display()), "look after the medium"))
        }
    }
}

/// Whether the disk has room for what the disk tier may still grow by; `None` where the system does not tell.
pub fn room(path: &Path, disk_bytes: u64) -> Option<Finding> {
    Some(judged_room(free_bytes(path)?, disk_bytes.saturating_sub(bytes_of(&path.join("kv")))))
}

fn judged_room(free: u64, growth: u64) -> Finding {
    let what = "disk";
    let found = format!(
        "{:.0} MiB are free; stored KV may grow by {:.0} MiB (`disk_bytes`)",
        mebibytes(free),
        mebibytes(growth)
    );
    if free < LEAST_FREE {
        let advice = "make room: what cannot be written is computed again, and documents cannot be added";
        return Finding::problem(what, found, advice);
    }
    if free < growth.saturating_add(LEAST_FREE) {
        return Finding::warning(what, found, "lower `disk_bytes`, or put the data folder (--data) on a larger disk");
    }
    Finding::ok(what, found)
}

/// Bytes of the files of a folder and of the folders in it; what cannot be read counts nothing.
fn bytes_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_folder_is_looked_at_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (new, file) = (dir.path().join("a/b"), dir.path().join("file"));
        assert_eq!((place(&new).state, format(&new).state), (State::Ok, State::Ok));
        assert!(!new.exists() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
        std::fs::write(&file, "").unwrap();
        assert_eq!(place(&file).state, State::Problem);
        assert_eq!(place(&file.join("below")).state, State::Problem);
        assert_eq!(format(&file).state, State::Problem);
        assert_eq!((audit_log(&file).state, audit_log(&new).state), (State::Problem, State::Ok));
        let bare = place(Path::new("a-folder-that-is-not-there-yet"));
        assert!(bare.state == State::Ok && bare.found.contains("not there yet"), "{bare:?}");
        std::fs::write(dir.path().join("FORMAT"), "{\"format\":1}\n").unwrap();
        let older = format(dir.path());
        assert!(older.state == State::Warning && older.advice.unwrap().contains("migrate up"));
        std::fs::write(dir.path().join("FORMAT"), "{\"format\":99}\n").unwrap();
        assert_eq!(format(dir.path()).state, State::Problem);
    }

    #[test]
    fn what_was_moved_aside_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(aside(dir.path()), None);
        for folder in ["kv", "kv.damaged-7", "corpus/orphaned/building-c.lance~0"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let found = aside(dir.path()).unwrap();
        assert_eq!(found.state, State::Warning);
        assert!(found.found.contains("kv.damaged-7") && found.found.contains("building-c.lance~0"), "{}", found.found);
    }

    #[test]
    fn a_disk_that_may_run_full_is_told_before_it_is() {
        let state = |free, growth| judged_room(free, growth).state;
        assert_eq!(state(LEAST_FREE, 0), State::Ok);
        assert_eq!(state(LEAST_FREE, 1), State::Warning);
        assert_eq!(state(LEAST_FREE - 1, 0), State::Problem);
        assert_eq!(state(u64::MAX, u64::MAX), State::Ok);
    }

    #[test]
    fn what_is_stored_already_does_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("kv/inner")).unwrap();
        std::fs::write(dir.path().join("kv/inner/a"), [0; 30]).unwrap();
        std::fs::write(dir.path().join("kv/b"), [0; 12]).unwrap();
        assert_eq!(bytes_of(&dir.path().join("kv")), 42);
        assert_eq!(bytes_of(&dir.path().join("nowhere")), 0);
    }
}
