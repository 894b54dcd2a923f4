//! Prompts' schemas that clients keep here by name. The texts are theirs: a catalog that was damaged and begun anew lacks them.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::{Catalog, read_all, read_json, sled_error, to_json};
use crate::Result;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::EntryId;

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

impl Catalog {
    /// A tenant's schema.
    ///
    /// # Errors
    /// As sled says.
    pub fn schema(&self, tenant: &str, name: &str) -> Result<Option<SchemaRecord>> {
        let row = self.schemas.get(row(tenant, name)).map_err(sled_error)?;
        Ok(row.and_then(|value| read_json(&value)))
    }

    /// All schemas of all tenants.
    ///
    /// # Errors
    /// As sled says.
    pub fn schemas(&self) -> Result<Vec<SchemaRecord>> {
        read_all(&self.schemas)
    }

    /// Keeps a schema in the place of what the tenant had under its name, whose entries are forgotten; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_schema(&self, record: &SchemaRecord) -> Result<()> {
        self.forget_schema_entries(&record.tenant, &record.name)?;
        self.schemas.insert(row(&record.tenant, &record.name), to_json(record)?).map_err(sled_error)?;
        self.flush()
    }

    /// Forgets a schema and its entries; whether it was there. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn remove_schema(&self, tenant: &str, name: &str) -> Result<bool> {
        let was_there = self.schemas.remove(row(tenant, name)).map_err(sled_error)?.is_some();
        self.forget_schema_entries(tenant, name)?;
        self.flush()?;
        Ok(was_there)
    }

    /// Notes a schema's entries under one model, in the place of what was noted of it; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_schema_entries(&self, entries: &SchemaEntries) -> Result<()> {
        let row = [&row(&entries.tenant, &entries.name)[..], &[0], &entries.fingerprint.0].concat();
        self.schema_entries.insert(row, to_json(entries)?).map_err(sled_error)?;
        self.flush()
    }

    /// The entries of all schemas under all models: of schemas that are kept, and of the texts that they have now.
    ///
    /// # Errors
    /// As sled says.
    pub fn schema_entries(&self) -> Result<Vec<SchemaEntries>> {
        let kept: HashSet<_> =
            self.schemas()?.into_iter().map(|record| (record.tenant, record.name, record.version)).collect();
        let mut all: Vec<SchemaEntries> = read_all(&self.schema_entries)?;
        all.retain(|of| kept.contains(&(of.tenant.clone(), of.name.clone(), of.version.clone())));
        Ok(all)
    }

    fn forget_schema_entries(&self, tenant: &str, name: &str) -> Result<()> {
        let of_it = [&row(tenant, name)[..], &[0]].concat();
        for key in self.schema_entries.scan_prefix(of_it).keys() {
            self.schema_entries.remove(key.map_err(sled_error)?).map_err(sled_error)?;
        }
        Ok(())
    }
}

/// Neither name has a zero byte in it.
fn row(tenant: &str, name: &str) -> Vec<u8> {
    [tenant.as_bytes(), &[0], name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::open;
    use super::*;

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
        assert!(catalog.remove_schema("a", "trips").unwrap());
        catalog.put_schema(&record("trips", "1")).unwrap();
        assert_eq!(catalog.schema_entries().unwrap(), [], "they are forgotten with it");
    }
}
