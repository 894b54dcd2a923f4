//! What is told of a schema that is kept, and where its modules stand.

use ragstone_storage::catalog::SchemaRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use ragstone_pml::{Block, Layout, Part};

/// A schema that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredSchema {
    /// Its own name.
    pub name: String,
    /// What tells it from others of its name.
    pub version: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was given, in milliseconds since 1970.
    pub added_unix_ms: u64,
    /// Positions that it takes of the context.
    pub positions: u32,
    /// Its own text, under `/`, and its modules, by position.
    pub modules: Vec<StoredModule>,
}

/// A module of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredModule {
    /// Its name behind those of the modules that it is in.
    pub path: String,
    /// Its first position.
    pub start: u32,
    /// Its positions, those of what it contains among them.
    pub positions: u32,
    /// Tokens of its own text.
    pub tokens: u32,
    /// Whether its KV is kept.
    pub cache: bool,
}

/// What is told of a schema.
pub(super) fn stored(record: &SchemaRecord, layout: &Layout) -> StoredSchema {
    let mut modules = Vec::new();
    list(&layout.top, "/".to_owned(), &mut modules);
    modules.sort_by(|a, b| (a.start, &a.path).cmp(&(b.start, &b.path)));
    StoredSchema {
        name: record.name.clone(),
        version: record.version.clone(),
        tenant: record.tenant.clone(),
        added_unix_ms: record.added_unix_ms,
        positions: layout.length(),
        modules,
    }
}

fn list(block: &Block, path: String, modules: &mut Vec<StoredModule>) {
    let mut tokens = 0;
    for part in &block.parts {
        let below = |inner: &Block| if path == "/" { inner.name.clone() } else { format!("{path}/{}", inner.name) };
        match part {
            Part::Text { tokens: own, .. } => tokens += own.len() as u32,
            Part::Module(inner) => list(inner, below(inner), modules),
            Part::Union { members, .. } => members.iter().for_each(|member| list(member, below(member), modules)),
            Part::Parameter { .. } => {}
        }
    }
    let &Block { start, length: positions, cache, .. } = block;
    modules.push(StoredModule { path, start, positions, tokens, cache });
}
