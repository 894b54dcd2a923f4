//! What is sent to the service, and what it answers: one set of types for the HTTP surface, the commands, the agents' tools, and
//! `/openapi.json`, which is made from them.
//!
//! What the library tells of itself (a reuse report, a status, a listing) is sent as it is: those types are `ragstone-actors`' and
//! `ragstone-storage`'s, and here are the envelopes, the requests, and what HTTP adds. A field that may be missing is skipped where it
//! is; a reader takes what a later version leaves out as the default, and what it adds is ignored.

pub mod anthropic;
pub mod cache;
pub mod chat;
pub mod collections;
pub mod embeddings;
pub mod error;
pub mod events;
pub mod keys;
pub mod models;
pub mod ollama;
pub mod openapi;
mod operations;
pub mod permissions;
pub mod pml;
pub mod quotas;
pub mod rerank;
pub mod responses;
mod sampling;
#[cfg(test)]
mod tests;
pub mod tokenize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The header that carries the owner's token.
pub const TOKEN_HEADER: &str = "x-ragstone-token";

/// `"list"`, as OpenAI's lists have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ListObject {
    /// The only one.
    #[default]
    #[serde(rename = "list")]
    List,
}

/// All there is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<T>,
}

impl<T> From<Vec<T>> for List<T> {
    fn from(data: Vec<T>) -> Self {
        Self { object: ListObject::List, data }
    }
}

/// A part of what there is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    #[serde(default)]
    pub object: ListObject,
    pub data: Vec<T>,
    /// Whether there is more after it.
    #[serde(default)]
    pub has_more: bool,
}

/// For fields that are skipped where they say nothing.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !*value
}
