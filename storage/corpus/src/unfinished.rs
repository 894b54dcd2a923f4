//! What was begun in a corpus and told to nobody: tables that were being made, and changes that were not synced. A power cut leaves any part of
//! them, and LanceDB takes the newest version that it finds for whole.
//!
//! ```text
//! TABLE.lance/ragstone.making   there while the table is made: it, and nothing in it, was told to anybody
//! TABLE.lance/ragstone.checks   lists the files that are known to be on the disk; a version behind the newest listed was told to nobody
//! ```

use std::fs::File;
use std::io::{ErrorKind as Io, Result};
use std::path::{Path, PathBuf};

use super::checks::Checks;
use ragstone_env::durable::{create_folder, sync_folder};

/// The mark of a table that is being made.
pub(super) const MARK: &str = "ragstone.making";

/// Makes the folder of a table that is to be made, marked so. On the disk on return.
pub(super) fn begin(table: &Path) -> Result<()> {
    create_folder(table)?;
    File::create(table.join(MARK))?.sync_all()?;
    sync_folder(table)
}

/// Takes the mark off a table that is made, and all on the disk.
pub(super) fn end(table: &Path) -> Result<()> {
    match std::fs::remove_file(table.join(MARK)) {
        Err(error) if error.kind() == Io::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_folder(table)),
    }
}

/// Whether a table was never made to its end. One that has a list of its files was.
pub(super) fn is_unfinished(table: &Path) -> Result<bool> {
    Ok(table.join(MARK).try_exists()? && Checks::read(table)?.names().next().is_none())
}

/// The manifests of a table that nobody was told of, of `manifests` with their versions. None where it is not known which those are: a table of
/// an earlier version has no list, and one that is damaged may have listed more.
pub(super) fn unacknowledged(table: &Path, manifests: &[(u64, String)]) -> Result<Vec<PathBuf>> {
    let checks = Checks::read(table)?;
    let listed = |name: &str| checks.has(name);
    let newest = manifests.iter().filter(|(_, name)| listed(name)).max();
    let Some((known, name)) = newest.filter(|_| !checks.is_damaged()) else { return Ok(Vec::new()) };
    if checks.compare(table, name)?.is_some() {
        return Ok(Vec::new());
    }
    let later = manifests.iter().filter(|(version, name)| version > known && !listed(name));
    Ok(later.map(|(_, name)| table.join(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(versions: &[u64]) -> Vec<(u64, String)> {
        versions.iter().map(|version| (*version, format!("_versions/{version}"))).collect()
    }

    #[test]
    fn a_table_is_unfinished_until_its_files_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        begin(&table).unwrap();
        assert!(is_unfinished(&table).unwrap());
        std::fs::write(table.join("a"), "a").unwrap();
        Checks::default().add(&table, ["a".to_owned(), MARK.to_owned()].into_iter()).unwrap();
        assert!(!is_unfinished(&table).unwrap(), "a power cut before the mark was taken off");
        end(&table).unwrap();
        end(&table).unwrap();
        assert!(!table.join(MARK).exists() && !is_unfinished(&table).unwrap());
    }

    #[test]
    fn versions_behind_the_newest_that_is_listed_were_told_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path();
        std::fs::create_dir(table.join("_versions")).unwrap();
        let all = manifests(&[1, 2, 3, 4]);
        all.iter().for_each(|(version, name)| std::fs::write(table.join(name), version.to_string()).unwrap());
        assert!(unacknowledged(table, &all).unwrap().is_empty(), "there is no list");
        Checks::default().add(table, all[1..2].iter().map(|(_, name)| name.clone())).unwrap();
        let later = [table.join("_versions/3"), table.join("_versions/4")];
        assert_eq!(unacknowledged(table, &all).unwrap(), later);
        let list = table.join("ragstone.checks");
        let text = std::fs::read_to_string(&list).unwrap();
        std::fs::write(&list, text.clone() + "0123").unwrap();
        assert_eq!(unacknowledged(table, &all).unwrap(), later, "a line that was cut was told to nobody");
        std::fs::write(&list, format!("0123\n{text}")).unwrap();
        assert!(unacknowledged(table, &all).unwrap().is_empty(), "the line may have been of 3");
        std::fs::write(&list, text).unwrap();
        std::fs::write(table.join("_versions/2"), "x").unwrap();
        assert!(unacknowledged(table, &all).unwrap().is_empty(), "there is nothing to go back to");
        std::fs::remove_file(table.join("_versions/2")).unwrap();
        let others = manifests(&[1, 3, 4]);
        assert!(unacknowledged(table, &others).unwrap().is_empty());
    }
}
