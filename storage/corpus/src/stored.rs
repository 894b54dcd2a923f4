//! What a collection's table has: versions of documents, vectors, whole rows.

use std::collections::HashMap;

use lancedb::datafusion::prelude::{Expr, col, lit};
use lancedb::query::{QueryBase, Select};

use super::schema;
use super::table::{Collection, any_of, is_document};
use crate::Result;

/// What is known of a stored document without reading its text.
pub(super) struct StoredVersion {
    pub version: String,
    pub passages: usize,
    /// When it was claimed, in object storage.
    pub generation: u64,
}

impl Collection {
    /// Every stored document's version, by id.
    pub async fn versions(&self) -> Result<HashMap<String, StoredVersion>> {
        self.versions_where(None).await
    }

    /// The versions of those of `documents` that are stored, by id.
    pub async fn versions_of(&self, documents: &[String]) -> Result<HashMap<String, StoredVersion>> {
        self.versions_where(Some(any_of(documents))).await
    }

    async fn versions_where(&self, which: Option<Expr>) -> Result<HashMap<String, StoredVersion>> {
        let snapshot = self.snapshot().await?;
        let first = col("ordinal").eq(lit(0_u32));
        let which = match which {
            Some(which) => first.and(which),
            None => first,
        };
        let mut columns = vec!["document_id", "version", "passages"];
        columns.extend(self.shared().map(|_| "generation"));
        let query = snapshot.table.query().only_if_expr(which).select(Select::columns(&columns));
        let mut versions = HashMap::new();
        for batch in self.run(query).await? {
            let (ids, hashes) = (schema::strings(&batch, "document_id")?, schema::strings(&batch, "version")?);
            let (passages, generations) = (schema::numbers(&batch, "passages")?, schema::generations(&batch));
            for row in 0..batch.num_rows() {
                let stored = StoredVersion {
                    version: hashes.value(row).to_owned(),
                    passages: passages.value(row) as usize,
                    generation: generations.map_or(0, |generations| generations.value(row)),
                };
                let id = ids.value(row).to_owned();
                let is_later = |other: &StoredVersion| other.generation > stored.generation;
                if !versions.get(&id).is_some_and(is_later) {
                    versions.insert(id, stored);
                }
            }
        }
        Ok(versions)
    }

    /// Whether a document is here.
    pub async fn has(&self, document: &str) -> Result<bool> {
        let snapshot = self.snapshot().await?;
        let query = snapshot.table.query().only_if_expr(is_document(document)).select(Select::columns(&["id"]));
        Ok(self.run(query.limit(1)).await?.iter().any(|batch| batch.num_rows() > 0))
    }

    /// The vectors of the passages of `documents`, by the passages' ids.
    pub async fn vectors(&self, documents: &[String]) -> Result<HashMap<String, Vec<f32>>> {
        let snapshot = self.snapshot().await?;
        let query = snapshot.table.query().only_if_expr(any_of(documents)).select(Select::columns(&["id", "vector"]));
        let mut vectors = HashMap::new();
        for batch in self.run(query).await? {
            let ids = schema::strings(&batch, "id")?;
            for (row, vector) in schema::vectors(&batch)?.into_iter().enumerate() {
                vectors.insert(ids.value(row).to_owned(), vector);
            }
        }
        Ok(vectors)
    }

    /// The passages of `documents` as rows without vectors, in order.
    pub async fn rows_of(&self, documents: &[String]) -> Result<Vec<schema::Row>> {
        let snapshot = self.snapshot().await?;
        let columns = self.passage_columns(&["token_ids", "version", "passages"]);
        let query = snapshot.table.query().only_if_expr(any_of(documents)).select(Select::columns(&columns));
        let mut rows = Vec::new();
        for batch in self.run(query).await? {
            let (versions, passages) = (schema::strings(&batch, "version")?, schema::numbers(&batch, "passages")?);
            for (at, stored) in schema::decode(&batch, &self.name)?.into_iter().enumerate() {
                // What is damaged must not look whole in another table.
                stored.check()?;
                rows.push(schema::Row {
                    passage: stored.passage,
                    version: versions.value(at).to_owned(),
                    passages: passages.value(at),
                    tokenizer: stored.tokenizer,
                    vector: Vec::new(),
                    generation: stored.generation,
                });
            }
        }
        rows.sort_by(|a, b| {
            (&a.passage.document_id, a.passage.ordinal).cmp(&(&b.passage.document_id, b.passage.ordinal))
        });
        Ok(rows)
    }
}
