//! API keys: who may use the service, and as what. A key itself is never here, only its hash.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::records::Kept;
use super::{Catalog, to_json};
use crate::Result;

/// What a key may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Ask, search and list.
    Read,
    /// Also add, replace and delete documents, collections and schemas.
    Write,
    /// Also look after the service, for every tenant.
    Admin,
}

impl Role {
    /// As requests and rows have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

/// An API key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyRecord {
    /// What people know it by; no two have the same.
    pub name: String,
    /// BLAKE3 of the key, 64 hex digits. A key is 256 random bits, so that nothing slower is needed.
    pub hash: String,
    /// What it may do.
    pub role: Role,
    /// Whose it is. The default tenant is the empty name.
    pub tenant: String,
    /// Collections of other tenants that it may read, too, by their full names.
    pub collections: Vec<String>,
    /// When it was made, in milliseconds since 1970.
    pub added_unix_ms: u64,
}

impl Catalog {
    /// All keys, by name. A row that cannot be read is none: its key is refused.
    ///
    /// # Errors
    /// As sled says.
    pub fn api_keys(&self) -> Result<Vec<ApiKeyRecord>> {
        Ok(self.api_keys.read())
    }

    /// Whether there are keys.
    pub fn has_api_keys(&self) -> bool {
        !self.api_keys.is_empty()
    }

    /// Keeps a key under its name; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_api_key(&self, record: &ApiKeyRecord) -> Result<()> {
        self.put(Kept::ApiKeys, record.name.as_bytes(), to_json(record)?)
    }

    /// Forgets a key; whether it was there. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn remove_api_key(&self, name: &str) -> Result<bool> {
        self.remove(Kept::ApiKeys, name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use ragstone_env::Env;

    fn open(dir: &TempDir) -> Catalog {
        Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 0)).unwrap()
    }

    fn record(name: &str, role: Role) -> ApiKeyRecord {
        ApiKeyRecord {
            name: name.into(),
            hash: "0f".repeat(32),
            role,
            tenant: "acme".into(),
            collections: vec!["other/handbook".into()],
            added_unix_ms: 7,
        }
    }

    #[test]
    fn keys_survive_a_restart_and_a_row_that_is_not_ours_is_no_key() {
        let dir = TempDir::new().unwrap();
        {
            let catalog = open(&dir);
            catalog.put_api_key(&record("b", Role::Admin)).unwrap();
            catalog.put_api_key(&record("a", Role::Read)).unwrap();
            catalog.put_api_key(&record("gone", Role::Write)).unwrap();
            assert!(catalog.remove_api_key("gone").unwrap());
            assert!(!catalog.remove_api_key("gone").unwrap());
        }
        let catalog = open(&dir);
        assert_eq!(catalog.api_keys().unwrap(), [record("a", Role::Read), record("b", Role::Admin)]);
        // A role of a later version, and half a row.
        let later = serde_json::to_string(&record("later", Role::Read)).unwrap().replace("\"read\"", "\"god\"");
        catalog.api_keys.insert("later", later.as_bytes()).unwrap();
        catalog.api_keys.insert("half", "{\"name\":").unwrap();
        assert_eq!(catalog.api_keys().unwrap().len(), 2);
    }

    #[test]
    fn each_role_may_do_what_those_before_it_may() {
        assert!(Role::Read < Role::Write && Role::Write < Role::Admin);
        for role in [Role::Read, Role::Write, Role::Admin] {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
    }
}
