//! Opening: a damaged catalog is moved aside, and what has a second copy comes back from there.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::records::{self, Change, Found, Kept, Records, Row};
use super::{Catalog, costs, open_and_read, sled_error};
use crate::{Error, ErrorKind, Result};
use ragstone_env::damage::{Damage, move_aside};
use ragstone_env::durable::{sync_folder, sync_name};
use ragstone_env::{Env, Stopwatch};

const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The sequence of the last change that is in sled, u64 big-endian, among the settings.
const APPLIED: &str = "records.applied";
/// Ids begin behind this one, u64 big-endian, among the settings.
const IDS_BEFORE: &str = "ids.before";

pub(super) fn open(dir: &Path, env: &Env) -> Result<Catalog> {
    let path = records::path_of(dir);
    let found = records::read(&path).map_err(|error| Error::io("read", &path, error))?;
    let why = match open_when_free(dir) {
        // One that has not reached what it had when the copy was written has lost its rows: sled takes some damage for an empty file.
        Ok(catalog) if catalog.applied() < found.base => "it lacks what was in it".to_owned(),
        Ok(mut catalog) => {
            sync_files(dir)?;
            catalog.ids_before = catalog.number(IDS_BEFORE);
            return catalog.with_records(&path, &found, None);
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
        Err(error) => return Err(error),
    };
    let aside = move_aside(dir, env.now_unix_ms())?;
    let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let catalog = open_when_free(dir)?;
    sync_files(dir)?;
    let (lost, restored) = match found.base == 0 && found.changes.is_empty() {
        true => ("API keys, pins, settings and unfinished ingests are lost, as there was no second copy", false),
        false => {
            ("API keys, pins, settings and journals came back from their second copy; times of use are lost", true)
        }
    };
    let advice = if restored { "" } else { "make the keys anew, and ingest again what had not finished; " };
    let damage = Damage {
        what: "catalog".into(),
        found: format!("it was damaged and begun anew ({why}): {lost}"),
        advice: format!("{advice}what was there is in `{name}` in the data folder: remove it once nobody needs it"),
    };
    tracing::error!(why, moved_to = %aside.display(), lost, "the catalog is damaged and was begun anew");
    catalog.with_records(&path, &found, Some(damage))
}

impl Catalog {
    /// Does what sled lacks of the second copy, makes the rest of sled's rows those that are there, and opens it, or writes it anew where it is
    /// damaged or does not have everything.
    fn with_records(mut self, path: &Path, found: &Found, mut damage: Option<Damage>) -> Result<Self> {
        let applied = self.applied();
        for change in found.changes.iter().filter(|change| change.sequence > applied) {
            self.apply(change.tree, &change.rows)?;
        }
        let reached = applied.max(found.last).max(1);
        if reached > applied {
            self.note_applied(reached)?;
        }
        let kept = folded(found);
        // One that is behind, or damaged, has not heard of all that left: a key that was revoked must not come back.
        let is_whole = found.last == reached && !found.is_damaged;
        if is_whole {
            let wrong = self.wrong(found, &kept);
            if !wrong.is_empty() {
                tracing::error!(
                    rows = wrong.len(),
                    "the catalog had not the rows of its second copy; it has them again"
                );
                damage = damage.or(Some(Damage {
                    what: "catalog".into(),
                    found: format!("{} of its rows were lost or wrong, and came back from the second copy", wrong.len()),
                    advice: "after a power cut nothing has to be done; else look after the medium. `ragstone keys list` shows whose keys there are"
                        .into(),
                }));
                wrong.iter().try_for_each(|(tree, row)| self.apply(*tree, std::slice::from_ref(row)))?;
            }
        }
        self.begin_ids_behind_those_known(found)?;
        self.read_kept_modules()?;
        if found.is_damaged || found.is_cut {
            tracing::warn!(path = %path.display(), "the catalog's second copy was cut or damaged; it is written anew");
        }
        let rows: usize = found.changes.iter().map(|change| change.rows.len()).sum();
        let is_long = rows > 2 * kept.len() + 64;
        let has_all = found.base > 0 && Kept::ALL.iter().all(|tree| found.holds(*tree));
        let is_same = is_whole && !found.is_cut && has_all;
        let opened = || Records::open(path, found).map_err(|error| Error::io("open", path, error));
        let records = match (is_same, is_long) {
            (true, false) => opened()?,
            (true, true) => self.records_anew(path, reached).or_else(|error| {
                tracing::warn!(%error, "the catalog's second copy is longer than it need be, and stays so");
                opened()
            })?,
            (false, _) => self.records_anew(path, reached)?,
        };
        self.records = std::sync::Mutex::new(Some(records));
        self.damage = damage;
        Ok(self)
    }

    /// What makes sled's rows those of a second copy that is whole.
    fn wrong(&self, found: &Found, kept: &Folded) -> Vec<(Kept, Row)> {
        let mut wrong = Vec::new();
        for ((tree, key), value) in kept {
            let row = self.kept(*tree).get(key);
            // When a model was used last is not kept twice.
            if row.is_none_or(|row| *tree != Kept::Models && row[..] != value[..]) {
                wrong.push((*tree, (key.clone(), Some(value.clone()))));
            }
        }
        for tree in Kept::ALL.into_iter().filter(|tree| found.holds(*tree)) {
            for (key, _) in self.kept_rows(tree) {
                if !kept.contains_key(&(tree, key.clone())) {
                    wrong.push((tree, (key, None)));
                }
            }
        }
        wrong
    }

    /// sled's rows of a tree that belong into the second copy.
    fn kept_rows(&self, tree: Kept) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = self.kept(tree).all();
        rows.retain(|(key, _)| tree != Kept::Settings || !is_of_sled(key));
        rows
    }

    /// Writes the second copy anew from what sled has.
    pub(super) fn write_records_anew(&self, records: &mut Records) -> Result<()> {
        *records = self.records_anew(records.path(), records.last())?;
        Ok(())
    }

    fn records_anew(&self, path: &Path, reached: u64) -> Result<Records> {
        // sled must not fall behind what the copy begins with.
        self.flush()?;
        let mut rows: Vec<(Kept, Row)> = Vec::new();
        for tree in Kept::ALL {
            rows.extend(self.kept_rows(tree).into_iter().map(|(key, value)| (tree, (key, Some(value)))));
        }
        Records::anew(path, reached, rows.into_iter()).map_err(|error| sled_error(error.into()))
    }

    fn applied(&self) -> u64 {
        self.number(APPLIED)
    }

    pub(super) fn note_applied(&self, sequence: u64) -> Result<()> {
        self.settings.insert(APPLIED, sequence.to_be_bytes())
    }

    /// 0 where it is not there.
    fn number(&self, setting: &str) -> u64 {
        let number = self.settings.get(setting);
        number.and_then(|number| number[..].try_into().ok()).map_or(0, u64::from_be_bytes)
    }

    /// A new job must not have the number of one that is known, nor a smaller one: a catalog that was begun anew counts from nothing, and one
    /// that lost its last moment counts some twice.
    fn begin_ids_behind_those_known(&mut self, found: &Found) -> Result<()> {
        let id_of = |key: &[u8]| key.try_into().ok().map(u64::from_be_bytes);
        let of_jobs = found.changes.iter().filter(|change| matches!(change.tree, Kept::Jobs | Kept::Removals));
        let mut last = of_jobs.flat_map(|change| &change.rows).filter_map(|(key, _)| id_of(key)).max().unwrap_or(0);
        for tree in [Kept::Jobs, Kept::Removals] {
            if let Some(key) = self.kept(tree).last_key() {
                last = last.max(id_of(&key).unwrap_or(0));
            }
        }
        if self.fresh_id()? > last {
            return Ok(());
        }
        self.ids_before = last;
        self.settings.insert(IDS_BEFORE, last.to_be_bytes())
    }
}

/// Whether a setting is sled's own, or can be measured again: the second copy does not have it.
fn is_of_sled(key: &[u8]) -> bool {
    [APPLIED, IDS_BEFORE].iter().any(|own| own.as_bytes() == key) || key.starts_with(costs::PREFIX.as_bytes())
}

/// What the second copy comes to.
type Folded = BTreeMap<(Kept, Vec<u8>), Vec<u8>>;

fn folded(found: &Found) -> Folded {
    let mut folded = Folded::new();
    for Change { tree, rows, .. } in &found.changes {
        for (key, value) in rows {
            match value {
                Some(value) => drop(folded.insert((*tree, key.clone()), value.clone())),
                None => drop(folded.remove(&(*tree, key.clone()))),
            }
        }
    }
    folded
}

/// Waits for the disk on sled's files and their names: sled makes them and does not. The second copy begins with what is in them.
fn sync_files(dir: &Path) -> Result<()> {
    let synced = || {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                File::open(entry.path())?.sync_all()?;
            }
        }
        sync_folder(dir)?;
        sync_name(dir)
    };
    synced().map_err(|error: std::io::Error| sled_error(error.into()))
}

/// sled's threads may hold the lock of a catalog that this process closed a moment longer than the last handle: it is tried
/// again for a while. That no other process has it, the data folder's own lock sees to.
fn open_when_free(dir: &Path) -> Result<Catalog> {
    let begun = Stopwatch::start();
    loop {
        match open_and_read(dir) {
            Err(error) if error.kind() == ErrorKind::Unavailable && begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_POLL);
            }
            opened => return opened,
        }
    }
}
