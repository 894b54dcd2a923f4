//! Prompts' schemas that clients keep here by name. Their texts stand in files ([`RecordFiles`](crate::record_files::RecordFiles)), which a damaged
//! catalog leaves alone; what is noted of their entries is in sled.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::records::Kept;
use super::{Catalog, read_all, read_json, sled_error, to_json};
use crate::Result;
use crate::entry::EntryId;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::record_files::row;
use ragstone_env::lock::locked;

/// A schema as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaRecord {
    /// Whose it is.
    pub tenant: String,
    /// Its own name.
    pub name: String,
    /// What tells its text and sources from others: a hash of them.
    pub version: String,
    /// Its text.
    pub schema: String,
    /// The texts that it names.
    pub sources: BTreeMap<String, String>,
    /// When it was given, in milliseconds since 1970.
    pub added_unix_ms: u64,
}

/// The entries that a schema's modules have, or will have, under one model: they follow from its text by that model's tokenizer alone, so
/// that they are noted for times at which another model is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaEntries {
    /// Whose schema it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Of which text they are ([`SchemaRecord::version`]).
    pub version: String,
    /// Of which model.
    pub fingerprint: Fingerprint,
    /// One for each text of a module.
    pub modules: Vec<ModuleEntry>,
}

/// The entry of a module's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleEntry {
    /// The module's name behind those of the modules that it is in.
    pub path: String,
    /// Its tenant's own.
    pub key: KvKey,
    /// What its tokens are.
    pub segment: SegmentDigest,
}

impl ModuleEntry {
    /// What tiers know it by.
    pub fn id(&self) -> EntryId {
        EntryId { key: self.key, segment: self.segment }
    }
}

#[derive(Debug)]
struct KeptSchema {
    version: String,
    bytes: usize,
}

impl KeptSchema {
    fn of(record: &SchemaRecord) -> Self {
        Self { version: record.version.clone(), bytes: record.bytes() }
    }
}

/// How much is kept beside one schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptSchemas {
    /// Its tenant's others.
    pub of_tenant: usize,
    /// Bytes of their texts and sources.
    pub bytes_of_tenant: u64,
    /// Everybody's others.
    pub of_all: usize,
    /// Bytes of their texts and sources.
    pub bytes_of_all: u64,
}

impl SchemaRecord {
    /// Bytes of its text and sources.
    pub fn bytes(&self) -> usize {
        self.schema.len() + self.sources.values().map(String::len).sum::<usize>()
    }
}

/// In memory: rows hold whole texts, and whether an entry is a module's is asked for each that is filed or removed.
#[derive(Debug, Default)]
pub(super) struct KeptModules {
    /// By row of a schema.
    schemas: HashMap<Vec<u8>, KeptSchema>,
    /// How many rows of entries have it.
    keys: HashMap<KvKey, u32>,
}

impl KeptModules {
    fn add(&mut self, entries: &SchemaEntries) {
        for module in &entries.modules {
            *self.keys.entry(module.key).or_default() += 1;
        }
    }

    fn remove(&mut self, entries: &SchemaEntries) {
        for module in &entries.modules {
            if let Entry::Occupied(mut rows) = self.keys.entry(module.key) {
                *rows.get_mut() -= 1;
                if *rows.get() == 0 {
                    rows.remove();
                }
            }
        }
    }
}

impl Catalog {
    /// A tenant's schema.
    ///
    /// # Errors
    /// As sled says.
    pub fn schema(&self, tenant: &str, name: &str) -> Result<Option<SchemaRecord>> {
        self.schema_files.read(&row(tenant, name))
    }

    /// What tells the text of a tenant's schema from others; `None` where there is none. Memory only.
    pub fn schema_version(&self, tenant: &str, name: &str) -> Option<String> {
        locked(&self.kept_modules).schemas.get(&row(tenant, name)).map(|kept| kept.version.clone())
    }

    /// How much is kept beside a tenant's schema of this name. Memory only.
    pub fn schemas_beside(&self, tenant: &str, name: &str) -> KeptSchemas {
        let (own, prefix) = (row(tenant, name), row(tenant, ""));
        let mut beside = KeptSchemas::default();
        for (row, kept) in locked(&self.kept_modules).schemas.iter().filter(|(row, _)| **row != own) {
            beside.of_all += 1;
            beside.bytes_of_all += kept.bytes as u64;
            if row.starts_with(&prefix) {
                beside.of_tenant += 1;
                beside.bytes_of_tenant += kept.bytes as u64;
            }
        }
        beside
    }

    /// All schemas of all tenants.
    ///
    /// # Errors
    /// As sled says.
    pub fn schemas(&self) -> Result<Vec<SchemaRecord>> {
        let mut all = self.schema_files.read_all(None)?;
        all.sort_by_cached_key(|record| row(&record.tenant, &record.name));
        Ok(all)
    }

    /// A tenant's schemas, by name.
    ///
    /// # Errors
    /// As sled says.
    pub fn schemas_of(&self, tenant: &str) -> Result<Vec<SchemaRecord>> {
        let mut all = self.schema_files.read_all(Some(tenant))?;
        // Two names may have one hash's beginning.
        all.retain(|record| record.tenant == tenant);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Keeps a schema in the place of what the tenant had under its name, whose entries are forgotten; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_schema(&self, record: &SchemaRecord) -> Result<()> {
        self.forget_schema_entries(&record.tenant, &record.name)?;
        let row = row(&record.tenant, &record.name);
        self.schema_files.write(&row, record)?;
        locked(&self.kept_modules).schemas.insert(row, KeptSchema::of(record));
        Ok(())
    }

    /// Forgets a schema and its entries; whether it was there. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn remove_schema(&self, tenant: &str, name: &str) -> Result<bool> {
        let row = row(tenant, name);
        let was_there = self.schema_files.remove(&row)?;
        locked(&self.kept_modules).schemas.remove(&row);
        self.forget_schema_entries(tenant, name)?;
        Ok(was_there)
    }

    /// Notes the entries of a schema's text under one model; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_schema_entries(&self, entries: &SchemaEntries) -> Result<()> {
        let parts = [&row(&entries.tenant, &entries.name)[..], &[0], entries.version.as_bytes(), &[0]];
        let row = [&parts.concat()[..], &entries.fingerprint.0].concat();
        let mut records = self.changing();
        let is_new = !self.schema_entries.contains_key(&row);
        self.write(&mut records, Kept::SchemaEntries, vec![(row, Some(to_json(entries)?))], true)?;
        if is_new {
            locked(&self.kept_modules).add(entries);
        }
        Ok(())
    }

    /// The entries of all schemas under all models: of schemas that are kept, and of the texts that they have now.
    ///
    /// # Errors
    /// As sled says.
    pub fn schema_entries(&self) -> Result<Vec<SchemaEntries>> {
        Ok(self.present(self.schema_entries.read()))
    }

    /// The same of one tenant's.
    ///
    /// # Errors
    /// As sled says.
    pub fn schema_entries_of(&self, tenant: &str) -> Result<Vec<SchemaEntries>> {
        let rows = self.schema_entries.with_prefix(row(tenant, ""));
        Ok(self.present(rows.iter().filter_map(|(_, value)| read_json(value)).collect()))
    }

    /// Whether an entry is a module's of a schema that is kept. Memory only.
    pub fn is_module(&self, key: &KvKey) -> bool {
        locked(&self.kept_modules).keys.contains_key(key)
    }

    /// Without those of texts that schemas had before: somebody may note one late.
    fn present(&self, mut all: Vec<SchemaEntries>) -> Vec<SchemaEntries> {
        let kept = locked(&self.kept_modules);
        let version = |of: &SchemaEntries| kept.schemas.get(&row(&of.tenant, &of.name)).map(|kept| &kept.version);
        all.retain(|of| version(of) == Some(&of.version));
        all
    }

    fn forget_schema_entries(&self, tenant: &str, name: &str) -> Result<()> {
        let of_it = [&row(tenant, name)[..], &[0]].concat();
        let mut records = self.changing();
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        for (key, value) in self.schema_entries.with_prefix(of_it) {
            rows.push((key, None));
            all.extend(read_json::<SchemaEntries>(&value));
        }
        self.write(&mut records, Kept::SchemaEntries, rows, true)?;
        let mut kept = locked(&self.kept_modules);
        all.iter().for_each(|entries| kept.remove(entries));
        Ok(())
    }

    /// Writes the schemas that an earlier version kept in sled into files, at the start.
    pub(super) fn move_schemas_to_files(&self) -> Result<()> {
        let earlier: Vec<SchemaRecord> = read_all(&self.schemas)?;
        for record in &earlier {
            let row = row(&record.tenant, &record.name);
            // One that is there was written by a start that was cut off before it took it out of sled.
            if self.schema_files.read(&row)?.is_none() {
                self.schema_files.write(&row, record)?;
            }
            self.schemas.remove(&row).map_err(sled_error)?;
        }
        if earlier.is_empty() { Ok(()) } else { self.flush().and_then(|()| self.read_kept_modules()) }
    }

    /// Reads what is kept in memory, at the start.
    pub(super) fn read_kept_modules(&self) -> Result<()> {
        let mut kept = KeptModules::default();
        for record in self.schemas()? {
            kept.schemas.insert(row(&record.tenant, &record.name), KeptSchema::of(&record));
        }
        self.schema_entries.read().iter().for_each(|entries| kept.add(entries));
        *locked(&self.kept_modules) = kept;
        Ok(())
    }
}

/// Neither name has a zero byte in it.
#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::open;
    use super::*;

    #[test]
    fn a_schema_is_in_no_file_once_it_is_removed_and_those_of_earlier_versions_are_moved() {
        let dir = TempDir::new().unwrap();
        let record = |name: &str, text: &str| SchemaRecord {
            tenant: String::new(),
            name: name.into(),
            version: "1".into(),
            schema: text.into(),
            sources: BTreeMap::new(),
            added_unix_ms: 0,
        };
        let is_somewhere = |text: &str| {
            let mut folders = vec![dir.path().to_owned()];
            let mut found = false;
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    match path.is_dir() {
                        true => folders.push(path),
                        false => {
                            let bytes = std::fs::read(&path).unwrap();
                            found |= bytes.windows(text.len()).any(|window| window == text.as_bytes());
                        }
                    }
                }
            }
            found
        };
        {
            let catalog = open(&dir);
            catalog.put_schema(&record("trip", "the quince of Orvik")).unwrap();
            catalog.put_schema(&record("mill", "the medlar of Tarn")).unwrap();
            assert!(is_somewhere("quince of Orvik") && is_somewhere("medlar of Tarn"));
            catalog.put_schema(&record("trip", "the rowan")).unwrap();
            assert!(!is_somewhere("quince of Orvik"), "replaced");
            assert!(catalog.remove_schema("", "mill").unwrap() && !catalog.remove_schema("", "mill").unwrap());
            assert!(!is_somewhere("medlar of Tarn"), "removed");
            // As an earlier version kept it.
            let earlier = record("old", "the elder");
            catalog.schemas.insert(row("", "old"), to_json(&earlier).unwrap()).unwrap();
        }
        std::fs::write(dir.path().join("schemas/odd.json"), "{").unwrap();
        let catalog = open(&dir);
        assert_eq!(catalog.schemas().unwrap(), [record("old", "the elder"), record("trip", "the rowan")]);
        assert_eq!(catalog.schemas_of("").unwrap().len(), 2);
        assert_eq!(catalog.schemas_of("other").unwrap(), []);
        assert_eq!(catalog.schema_version("", "old").as_deref(), Some("1"));
        assert!(catalog.schemas.is_empty() && dir.path().join("schemas/odd.json").exists());
    }

    #[test]
    fn entries_go_with_their_schema_and_those_of_an_old_text_are_not_named() {
        let dir = TempDir::new().unwrap();
        let catalog = open(&dir);
        let record = |name: &str, version: &str| SchemaRecord {
            tenant: "a".into(),
            name: name.into(),
            version: version.into(),
            schema: String::new(),
            sources: BTreeMap::new(),
            added_unix_ms: 0,
        };
        let entries = |name: &str, model: u8| SchemaEntries {
            tenant: "a".into(),
            name: name.into(),
            version: "1".into(),
            fingerprint: Fingerprint([model; 32]),
            modules: vec![ModuleEntry { path: "/".into(), key: KvKey([model; 32]), segment: SegmentDigest([1; 16]) }],
        };
        for name in ["trip", "trips"] {
            catalog.put_schema(&record(name, "1")).unwrap();
            for model in [0, 7] {
                catalog.put_schema_entries(&entries(name, model)).unwrap();
                catalog.put_schema_entries(&entries(name, model)).unwrap();
            }
        }
        assert_eq!(catalog.schema_entries().unwrap().len(), 4);
        catalog.put_schema(&record("trip", "2")).unwrap();
        // Somebody who laid out the old text meanwhile.
        catalog.put_schema_entries(&entries("trip", 7)).unwrap();
        assert_eq!(catalog.schema_entries().unwrap(), [entries("trips", 0), entries("trips", 7)]);
        assert_eq!(catalog.schema_entries_of("a").unwrap().len(), 2);
        // Neither a tenant whose name begins alike nor one without a name is meant.
        assert!(catalog.schema_entries_of("").unwrap().is_empty() && catalog.schemas_of("").unwrap().is_empty());
        assert_eq!(catalog.schemas_of("a").unwrap(), [record("trip", "2"), record("trips", "1")]);
        let bytes = record("trip", "2").bytes() as u64;
        let beside = |of_tenant, of_all| KeptSchemas {
            of_tenant,
            bytes_of_tenant: of_tenant as u64 * bytes,
            of_all,
            bytes_of_all: of_all as u64 * bytes,
        };
        assert_eq!(catalog.schemas_beside("a", "trip"), beside(1, 1));
        assert_eq!((catalog.schemas_beside("a", "new"), catalog.schemas_beside("", "")), (beside(2, 2), beside(0, 2)));
        assert!(catalog.is_module(&KvKey([0; 32])));
        drop(catalog);

        let catalog = open(&dir);
        assert_eq!(catalog.schema_version("a", "trip").as_deref(), Some("2"));
        assert!(catalog.is_module(&KvKey([0; 32])) && !catalog.is_module(&KvKey([1; 32])));
        assert!(catalog.remove_schema("a", "trips").unwrap());
        assert!(!catalog.is_module(&KvKey([0; 32])) && catalog.schema_version("a", "trips").is_none());
        catalog.put_schema(&record("trips", "1")).unwrap();
        assert_eq!(catalog.schema_entries().unwrap(), [], "they are forgotten with it");
    }
}
