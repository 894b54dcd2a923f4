//! What was begun in a corpus and told to nobody: tables that were being made, and changes that were not synced. A power cut leaves any part of
//! them, and LanceDB takes the newest version that it finds for whole.
//!
//! ```text
//! TABLE.lance/ragstone.making   there while the table is made: it, and nothing in it, was told to anybody
//! TABLE.lance/ragstone.checks   lists the files that are known to be on the disk; a version behind the newest listed was told to nobody
//! ```

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind as Io, Result};
use std::path::{Path, PathBuf};

use super::checks::Checks;
use super::disk::sync_files;
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

/// What a start makes of the versions of a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Versions {
    /// The newest is listed, or there is none, or the newest that is listed is damaged: they stay as they are.
    Stay,
    /// These manifests are of changes that nobody was told of.
    Undo(Vec<PathBuf>),
    /// Which was acknowledged last is not known: there is no list yet, or lines of it are damaged. The newest is to be listed, so that it is known.
    List(String),
}

/// What is to become of the versions with these `manifests`.
pub(super) fn versions(table: &Path, manifests: &[(u64, String)]) -> Result<Versions> {
    let checks = Checks::read(table)?;
    let Some((_, newest)) = manifests.iter().max() else { return Ok(Versions::Stay) };
    let Some((known, name)) = manifests.iter().filter(|(_, name)| checks.has(name)).max() else {
        // Of a version that is listed and not there, and of a table that is begun, others tell.
        let is_other = checks.names().any(is_version) || is_unfinished(table)?;
        return Ok(if is_other { Versions::Stay } else { Versions::List(newest.clone()) });
    };
    if checks.compare(table, name)?.is_some() {
        return Ok(Versions::Stay);
    }
    if checks.is_damaged() {
        return Ok(Versions::List(newest.clone()));
    }
    let later = manifests.iter().filter(|(version, name)| version > known && !checks.has(name));
    let later: Vec<PathBuf> = later.map(|(_, name)| table.join(name)).collect();
    Ok(if later.is_empty() { Versions::Stay } else { Versions::Undo(later) })
}

fn is_version(name: &str) -> bool {
    name.starts_with("_versions/") && name.ends_with(".manifest")
}

/// Lists a version that is there, with everything that it may need on the disk before.
pub(super) fn list(table: &Path, manifest: &str) -> Result<()> {
    sync_files(table, &mut HashSet::new())?;
    Checks::read(table)?.accept(table, manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(versions: &[u64]) -> Vec<(u64, String)> {
        versions.iter().map(|version| (*version, format!("_versions/{version}.manifest"))).collect()
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
        let newest = || Versions::List(all[3].1.clone());
        assert_eq!(versions(table, &[]).unwrap(), Versions::Stay);
        assert_eq!(versions(table, &all).unwrap(), newest(), "of a version that kept no list");
        std::fs::write(table.join("d"), "d").unwrap();
        Checks::default().add(table, std::iter::once("d".to_owned())).unwrap();
        assert_eq!(versions(table, &all).unwrap(), newest(), "a comparison was cut off that lists what was there");
        Checks::read(table).unwrap().add(table, all[1..2].iter().map(|(_, name)| name.clone())).unwrap();
        let later = || Versions::Undo(vec![table.join("_versions/3.manifest"), table.join("_versions/4.manifest")]);
        assert_eq!(versions(table, &all).unwrap(), later());
        assert_eq!(versions(table, &all[..2]).unwrap(), Versions::Stay);
        let path = table.join("ragstone.checks");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.clone() + "0123").unwrap();
        assert_eq!(versions(table, &all).unwrap(), later(), "a line that was cut was told to nobody");
        std::fs::write(&path, format!("0123\n{text}")).unwrap();
        assert_eq!(versions(table, &all).unwrap(), newest(), "the line may have been of 4");
        std::fs::write(&path, text).unwrap();
        std::fs::write(table.join("_versions/2.manifest"), "x").unwrap();
        assert_eq!(versions(table, &all).unwrap(), Versions::Stay, "there is nothing to go back to");
        std::fs::remove_file(table.join("_versions/2.manifest")).unwrap();
        assert_eq!(versions(table, &manifests(&[1, 3, 4])).unwrap(), Versions::Stay);
    }

    #[test]
    fn a_version_that_was_acknowledged_in_any_case_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path();
        std::fs::create_dir(table.join("_versions")).unwrap();
        let all = manifests(&[1, 2, 3]);
        all.iter().for_each(|(version, name)| std::fs::write(table.join(name), version.to_string()).unwrap());
        list(table, &all[1].1).unwrap();
        assert_eq!(versions(table, &all).unwrap(), Versions::Undo(vec![table.join("_versions/3.manifest")]));
        let path = table.join("ragstone.checks");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("0123\n{text}")).unwrap();
        list(table, &all[2].1).unwrap();
        let checks = Checks::read(table).unwrap();
        assert!(!checks.is_damaged() && checks.names().eq(["_versions/2.manifest", "_versions/3.manifest"]));
        assert_eq!(versions(table, &all).unwrap(), Versions::Stay);
    }
}
