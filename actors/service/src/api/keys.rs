//! `/v1/keys…`: API keys.

use std::collections::BTreeMap;

use ragstone_storage::catalog::{ApiKeyRecord, QuotaName, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quotas::QuotaChanges;

/// A key to make.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AddKey {
    /// What people know it by; no two have the same.
    pub name: String,
    /// `read` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whose it is; the default tenant's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Collections of other tenants that it may read, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collections: Option<Vec<String>>,
    /// Quotas of its tenant that are set before the key is made, as `POST /v1/quotas` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaChanges>,
}

/// A key, as everybody but its owner sees it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    #[serde(flatten)]
    pub own: OwnKey,
    /// When it was made, in milliseconds since 1970.
    #[serde(default)]
    pub added_unix_ms: u64,
    /// What counts for its tenant; `GET /v1/quotas` says what is used.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quota: BTreeMap<QuotaName, u64>,
}

/// What a key is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OwnKey {
    pub name: String,
    pub role: Role,
    /// The default tenant is the empty name.
    #[serde(default)]
    pub tenant: String,
    /// Collections of other tenants that it may read, too, by their full names.
    #[serde(default)]
    pub collections: Vec<String>,
}

impl From<&ApiKeyRecord> for OwnKey {
    fn from(record: &ApiKeyRecord) -> Self {
        let ApiKeyRecord { name, hash: _, role, tenant, collections, added_unix_ms: _ } = record.clone();
        Self { name, role, tenant, collections }
    }
}

impl From<&ApiKeyRecord> for Key {
    fn from(record: &ApiKeyRecord) -> Self {
        Self { own: record.into(), added_unix_ms: record.added_unix_ms, quota: BTreeMap::new() }
    }
}

/// A key that was made. It is shown this once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AddedKey {
    #[serde(flatten)]
    pub shown: Key,
    /// The key itself: to be sent as `Authorization: Bearer …`.
    pub key: String,
}

/// A key that is refused from now on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RevokedKey {
    pub name: String,
    pub revoked: bool,
}
