//! Prompts' schemas that clients keep here by name. The texts are theirs: a catalog that was damaged and begun anew lacks them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Catalog, read_all, read_json, sled_error, to_json};
use crate::Result;

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

    /// Keeps a schema in the place of what the tenant had under its name; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_schema(&self, record: &SchemaRecord) -> Result<()> {
        self.schemas.insert(row(&record.tenant, &record.name), to_json(record)?).map_err(sled_error)?;
        self.flush()
    }

    /// Forgets a schema; whether it was there. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn remove_schema(&self, tenant: &str, name: &str) -> Result<bool> {
        let was_there = self.schemas.remove(row(tenant, name)).map_err(sled_error)?.is_some();
        self.flush()?;
        Ok(was_there)
    }
}

/// Neither name has a zero byte in it.
fn row(tenant: &str, name: &str) -> Vec<u8> {
    [tenant.as_bytes(), &[0], name.as_bytes()].concat()
}
