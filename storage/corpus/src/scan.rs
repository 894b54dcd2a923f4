//! Reads of many passages at once: their token ids, by which the KV store knows them, and which contents are still there.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use lancedb::datafusion::prelude::{Expr, col, lit};
use lancedb::query::{QueryBase, Select};

use super::disk::caught;
use super::schema::{self, StoredPassage};
use super::table::{self, Collection};
use super::{Corpus, blocking};
use crate::Result;

/// Passages that leave together in one call.
const CHUNK_PASSAGES: usize = 1024;

/// A passage as the KV store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassageTokens {
    /// Hash of title and text, as [`super::Passage::id`].
    pub id: String,
    /// Whose it is.
    pub document_id: String,
    /// That document's title.
    pub title: String,
    /// Its place among the document's passages, from 0.
    pub ordinal: u32,
    /// In the vocabulary of the encoder's tokenizer.
    pub token_ids: Arc<[u32]>,
    /// The ids it was stored with, where those are another tokenizer's: an earlier model may have entries of them.
    pub earlier_token_ids: Option<Arc<[u32]>>,
}

/// Is told which passages are about to leave the corpus: those of documents that are deleted, replaced, or dropped with
/// their collection. Called before anything has changed, on a thread that may block for moments; an error stops the change.
pub trait Departures: Send + Sync {
    /// These will be gone unless the change fails. Some may be in another document.
    ///
    /// # Errors
    /// Whatever keeps the passages from being noted.
    fn departing(&self, passages: Vec<PassageTokens>) -> Result<()>;

    /// Something of this collection will be gone, if only metadata: what the files have of it leaves them with [`Corpus::vacuum`].
    ///
    /// # Errors
    /// Whatever keeps that from being noted.
    fn leaving(&self, collection: &str) -> Result<()>;
}

/// Nobody wants to know.
impl Departures for () {
    fn departing(&self, _: Vec<PassageTokens>) -> Result<()> {
        Ok(())
    }

    fn leaving(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

/// Which passages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Of this collection; `None`: of all.
    pub collection: Option<&'a str>,
    /// Of the documents of this id.
    pub document: Option<&'a str>,
}

impl Corpus {
    /// Calls `each` with all passages of `scope`, in no order, some at a time. Memory does not grow with the corpus.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection; what `each` returns.
    pub async fn scan(
        &self,
        scope: Scope<'_>,
        each: &mut (dyn FnMut(Vec<PassageTokens>) -> Result<()> + Send),
    ) -> Result<()> {
        for table in self.tables(scope.collection).await? {
            let scanned = self.scan_table(&table, scope.document.map(table::is_document), each);
            caught("read its passages", scanned).await?;
        }
        Ok(())
    }

    /// The ids of the distinct passages of `scope`, ascending.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn passage_ids(&self, scope: Scope<'_>) -> Result<Vec<String>> {
        let mut ids = BTreeSet::new();
        for table in self.tables(scope.collection).await? {
            each_id(&table, scope.document.map(table::is_document), &mut |id| {
                if !ids.contains(id) {
                    ids.insert(id.to_owned());
                }
            })
            .await?;
        }
        Ok(ids.into_iter().collect())
    }

    /// The passages of `ids` in a collection, each content once, in no order. What is gone is left out.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn passages_of(&self, collection: &str, ids: &[String]) -> Result<Vec<PassageTokens>> {
        let table = self.find(collection).await?;
        let wanted = col("id").in_list(ids.iter().map(|id| lit(id.as_str())).collect(), false);
        let (mut seen, mut passages) = (HashSet::new(), Vec::with_capacity(ids.len()));
        self.scan_table(&table, Some(wanted), &mut |found| {
            passages.extend(found.into_iter().filter(|passage| seen.insert(passage.id.clone())));
            Ok(())
        })
        .await?;
        Ok(passages)
    }

    /// Takes out of `ids` the passages that some document has, of the collections that `is_meant` names. One that is damaged has none: what
    /// is stored for it can be computed again, and it keeps nobody from deleting what is another's. Of what nodes share it sees every commit
    /// until now: of two that remove the last two documents with a passage, each commits before it looks, so that one of them finds it absent.
    ///
    /// # Errors
    /// `Unavailable` where the corpus is in a bucket that does not answer. A collection that cannot be read is told in the log.
    pub async fn retain_absent(
        &self,
        is_meant: &(dyn Fn(&str) -> bool + Send + Sync),
        ids: &mut HashSet<String>,
    ) -> Result<()> {
        self.refresh().await?;
        for table in self.tables(None).await? {
            if !ids.is_empty() && is_meant(&table.name) {
                let mut stays = |id: &str| {
                    ids.remove(id);
                };
                let reading = async {
                    if let Some(shared) = table.shared() {
                        shared.refresh().await?;
                    }
                    each_id(&table, None, &mut stays).await
                };
                if let Err(error) = caught("read its passages", reading).await {
                    // A bucket that does not answer is no damage.
                    self.refresh().await?;
                    tracing::warn!(collection = table.name, %error, "a collection cannot be read: what it shares with a deleted document is computed again");
                }
            }
        }
        Ok(())
    }

    /// Tells `departures` that documents (`None`: all) of a collection go, but for the passages that stay: those of these ids are in what
    /// takes their place.
    pub(super) async fn announce(
        &self,
        table: &Collection,
        documents: Option<(&[String], &HashSet<&str>)>,
        departures: &dyn Departures,
    ) -> Result<()> {
        // A worker of the runtime may block for the moments that a journal takes; the corpus wants a multi-thread runtime.
        let note = |passages: Vec<PassageTokens>| tokio::task::block_in_place(|| departures.departing(passages));
        tokio::task::block_in_place(|| departures.leaving(&table.name))?;
        let filter = documents.map(|(documents, _)| table::any_of(documents));
        self.scan_table(table, filter, &mut |mut passages| {
            passages.retain(|passage| documents.is_none_or(|(_, stay)| !stay.contains(passage.id.as_str())));
            while passages.len() > CHUNK_PASSAGES {
                note(passages.split_off(passages.len() - CHUNK_PASSAGES))?;
            }
            note(passages)
        })
        .await
    }

    pub(super) async fn tables(&self, collection: Option<&str>) -> Result<Vec<Arc<Collection>>> {
        match collection {
            Some(name) => Ok(vec![self.find(name).await?]),
            None => {
                let all = self.inner.collections.lock().await;
                Ok(all.values().filter(|table| !table.is_gone()).cloned().collect())
            }
        }
    }

    /// Those of this tokenizer need their token ids only; the text of the others is read, too.
    async fn scan_table(
        &self,
        table: &Collection,
        filter: Option<Expr>,
        each: &mut (dyn FnMut(Vec<PassageTokens>) -> Result<()> + Send),
    ) -> Result<()> {
        let own = self.encoder().tokenizer_identity();
        let is_own = col("tokenizer").eq(lit(own.as_str()));
        let with = |condition: Expr| match &filter {
            Some(filter) => filter.clone().and(condition),
            None => condition,
        };
        let snapshot = table.snapshot().await?;
        let query = snapshot.table.query().only_if_expr(with(is_own));
        let columns = ["id", "document_id", "title", "ordinal", "token_ids"];
        let mut stream = table.stream(query.select(Select::columns(&columns))).await?;
        while let Some(batch) = stream.try_next().await.map_err(table.failed("read"))? {
            each(own_tokens(&batch)?)?;
        }
        let query = snapshot.table.query().only_if_expr(with(col("tokenizer").not_eq(lit(own.as_str()))));
        let columns = table.passage_columns(&["token_ids"]);
        let mut stream = table.stream(query.select(Select::columns(&columns))).await?;
        while let Some(batch) = stream.try_next().await.map_err(table.failed("read"))? {
            let stored = schema::decode(&batch, &table.name)?;
            each(self.tokenized_again(stored).await?)?;
        }
        Ok(())
    }

    async fn tokenized_again(&self, stored: Vec<StoredPassage>) -> Result<Vec<PassageTokens>> {
        let encoder = Arc::clone(self.encoder());
        blocking("tokenizing passages", move || {
            let again = |StoredPassage { passage, .. }: StoredPassage| {
                Ok(PassageTokens {
                    token_ids: encoder.tokenize_passage(&passage.title, &passage.text)?.into(),
                    id: passage.id,
                    document_id: passage.document_id,
                    title: passage.title,
                    ordinal: passage.ordinal,
                    earlier_token_ids: Some(passage.token_ids),
                })
            };
            stored.into_iter().map(again).collect()
        })
        .await
    }
}

fn own_tokens(batch: &RecordBatch) -> Result<Vec<PassageTokens>> {
    let (ids, documents) = (schema::strings(batch, "id")?, schema::strings(batch, "document_id")?);
    let (titles, ordinals) = (schema::strings(batch, "title")?, schema::numbers(batch, "ordinal")?);
    let tokens = schema::token_ids(batch)?;
    let passage = |(row, token_ids)| PassageTokens {
        id: ids.value(row).to_owned(),
        document_id: documents.value(row).to_owned(),
        title: titles.value(row).to_owned(),
        ordinal: ordinals.value(row),
        token_ids,
        earlier_token_ids: None,
    };
    Ok(tokens.into_iter().enumerate().map(passage).collect())
}

/// Reads nothing but the column of ids.
async fn each_id(table: &Collection, filter: Option<Expr>, each: &mut (dyn FnMut(&str) + Send)) -> Result<()> {
    let snapshot = table.snapshot().await?;
    let query = snapshot.table.query().select(Select::columns(&["id"]));
    let query = match filter {
        Some(filter) => query.only_if_expr(filter),
        None => query,
    };
    let mut stream = table.stream(query).await?;
    while let Some(batch) = stream.try_next().await.map_err(table.failed("read"))? {
        schema::strings(&batch, "id")?.iter().flatten().for_each(&mut *each);
    }
    Ok(())
}
