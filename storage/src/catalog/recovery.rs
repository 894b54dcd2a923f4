//! Opening: a damaged catalog is moved aside, and what has a second copy comes back from there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::records::{self, Change, Found, Kept, Records, Row};
use super::{Catalog, open_and_read, sled_error};
use crate::{Error, ErrorKind, Result};
use ragstone_env::damage::{Damage, move_aside};
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
        Ok(catalog) if catalog.applied()? < found.base => "it lacks what was in it".to_owned(),
        Ok(mut catalog) => {
            catalog.ids_before = catalog.number(IDS_BEFORE)?;
            return catalog.with_records(&path, &found, None);
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
        Err(error) => return Err(error),
    };
    let aside = move_aside(dir, env.now_unix_ms())?;
    let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let catalog = open_when_free(dir)?;
    let (lost, restored) = match found.base == 0 && found.changes.is_empty() {
        true => ("API keys, pins and unfinished ingests are lost, as there was no second copy", false),
        false => (
            "API keys, pins and journals came back from their second copy; times of use and calibrations are lost",
            true,
        ),
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
    /// Does what sled lacks of the second copy, and opens that, or writes it anew where the two are not the same.
    fn with_records(mut self, path: &Path, found: &Found, mut damage: Option<Damage>) -> Result<Self> {
        let applied = self.applied()?;
        for change in found.changes.iter().filter(|change| change.sequence > applied) {
            self.apply(change.tree, &change.rows)?;
        }
        if damage.is_some() {
            self.begin_ids_behind_those_there()?;
        }
        let reached = applied.max(found.last).max(1);
        if reached > applied {
            self.note_applied(reached)?;
        }
        let kept = folded(found);
        let lost = self.lost(&kept)?;
        // One that is behind, or damaged, has not heard of all that left: a key that was revoked must not come back.
        if found.last == reached && !found.is_damaged && !lost.is_empty() {
            tracing::error!(rows = lost.len(), "the catalog had lost rows; they came back from its second copy");
            damage = damage.or(Some(Damage {
                what: "catalog".into(),
                found: format!("{} of its rows were lost, and came back from the second copy", lost.len()),
                advice: "look after the medium; `ragstone keys list` shows whose keys there are".into(),
            }));
            lost.iter().try_for_each(|(tree, row)| self.apply(*tree, std::slice::from_ref(row)))?;
        }
        self.read_kept_modules()?;
        if found.is_damaged {
            tracing::warn!(path = %path.display(), "the catalog's second copy was cut or damaged; it is written anew");
        }
        let rows: usize = found.changes.iter().map(|change| change.rows.len()).sum();
        let is_long = rows > 2 * kept.len() + 64;
        let is_same = found.base > 0 && !found.is_damaged && found.last == reached && self.has_no_others(&kept)?;
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

    /// Rows of the second copy that sled has not.
    fn lost(&self, kept: &Folded) -> Result<Vec<(Kept, Row)>> {
        let mut lost = Vec::new();
        for ((tree, key), value) in kept {
            if !self.kept(*tree).contains_key(key).map_err(sled_error)? {
                lost.push((*tree, (key.clone(), Some(value.clone()))));
            }
        }
        Ok(lost)
    }

    /// Whether sled's rows are those of the second copy.
    fn has_no_others(&self, kept: &Folded) -> Result<bool> {
        for tree in Kept::ALL {
            // When a model was used last is not kept twice.
            for row in self.kept(tree).iter().filter(|_| tree != Kept::Models) {
                let (key, value) = row.map_err(sled_error)?;
                if kept.get(&(tree, key.to_vec())).is_none_or(|known| known[..] != value[..]) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
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
            for row in self.kept(tree) {
                let (key, value) = row.map_err(sled_error)?;
                rows.push((tree, (key.to_vec(), Some(value.to_vec()))));
            }
        }
        Records::anew(path, reached, rows.into_iter()).map_err(|error| sled_error(error.into()))
    }

    fn applied(&self) -> Result<u64> {
        self.number(APPLIED)
    }

    pub(super) fn note_applied(&self, sequence: u64) -> Result<()> {
        self.settings.insert(APPLIED, &sequence.to_be_bytes()).map(drop).map_err(sled_error)
    }

    /// 0 where it is not there.
    fn number(&self, setting: &str) -> Result<u64> {
        let number = self.settings.get(setting).map_err(sled_error)?;
        Ok(number.and_then(|number| number[..].try_into().ok()).map_or(0, u64::from_be_bytes))
    }

    /// In a catalog that is begun anew: a new job must not have the number of one that came back, nor a smaller one.
    fn begin_ids_behind_those_there(&mut self) -> Result<()> {
        for tree in [Kept::Jobs, Kept::Removals] {
            if let Some((key, _)) = self.kept(tree).last().map_err(sled_error)?
                && let Ok(id) = key[..].try_into()
            {
                self.ids_before = self.ids_before.max(u64::from_be_bytes(id));
            }
        }
        self.settings.insert(IDS_BEFORE, &self.ids_before.to_be_bytes()).map(drop).map_err(sled_error)
    }
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
