//! `/v1/pml/schemas…`: schemas that are kept by name, and the prompts of their modules.

use std::collections::BTreeMap;

use ragstone_actors::upkeep::schemas::StoredSchema;
use ragstone_storage::store::Withdrawn;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Of which schema a prompt is: either `schema`, or the `name` of one that is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pml {
    /// `<schema name="…">…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The texts that it names by `src`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, String>,
    /// One that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A schema to keep.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AddSchema {
    /// `<schema name="…">…`
    pub schema: String,
    /// The texts that it names by `src`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<BTreeMap<String, String>>,
    /// Whose it is; the own tenant's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Whose schemas are meant.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct SchemaQuery {
    /// The own tenant's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// A schema of a list.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ListedSchema {
    pub name: String,
    /// What tells it from others of its name.
    pub version: String,
    /// When it was given, in milliseconds since 1970.
    pub added_unix_ms: u64,
    /// Of its text and sources.
    pub bytes: usize,
}

/// A schema, its text, and where its modules stand.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ShownSchema {
    #[serde(flatten)]
    pub stored: StoredSchema,
    pub schema: String,
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

/// A schema that is kept no more, and what of its KV left.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RemovedSchema {
    #[serde(flatten)]
    pub withdrawn: Withdrawn,
    pub name: String,
    pub deleted: bool,
}

/// Which modules to compute before anybody asks.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EncodeSchema {
    /// Only those of these paths, and what they contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Vec<String>>,
    /// Whose schema it is; the own tenant's, where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}
