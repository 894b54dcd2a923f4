//! Takes documents in: what changed is cut, embedded, tokenized and committed, in groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, Row};
use super::stored::StoredVersion;
use super::table::Writer;
use super::{Corpus, Departures, Document, Passage, PassageEncoder, chunk, document};
use crate::Result;

/// What an embedding model puts around a text.
const SPECIAL_TOKENS: usize = 2;
/// Texts that go through the embedding model in one call.
const EMBED_TEXTS: usize = 32;
/// Passages that are committed together, unless one document has more. It bounds the work that a kill can cost.
pub(super) const GROUP_PASSAGES: usize = 64;

/// What an upsert changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UpsertReport {
    pub documents_added: usize,
    /// Already there as they are. Of several given with one identity all but the last count here, too.
    pub documents_unchanged: usize,
    pub documents_replaced: usize,
    /// Documents without a word: nothing to find, so nothing is kept (an older version with words is removed).
    pub documents_empty: usize,
    pub passages_added: usize,
    pub passages_removed: usize,
}

/// How far an upsert is. Documents that it counts as done are durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpsertProgress {
    pub documents_done: usize,
    pub documents_total: usize,
    /// That have their vectors so far; durable once their documents are done.
    pub passages_embedded: usize,
}

/// A document that is to be written.
struct Change {
    id: String,
    version: String,
    document: Document,
    /// How many passages of an older version go.
    replaces: Option<usize>,
}

/// Documents that are committed together.
#[derive(Default)]
struct Group {
    changes: Vec<Change>,
    passages: Vec<Vec<Passage>>,
}

impl Corpus {
    /// Writes what changed of `documents`. `writer`'s collection holds `stored`.
    pub(super) async fn ingest(
        &self,
        writer: &Writer<'_>,
        collection: &str,
        documents: Vec<Document>,
        (departures, progress): (&dyn Departures, &(dyn Fn(UpsertProgress) -> Result<()> + Send + Sync)),
        stored: HashMap<String, StoredVersion>,
    ) -> Result<UpsertReport> {
        let total = documents.len();
        let (changes, mut report) = changes(documents, &stored, self.passage_length())?;
        let mut state =
            UpsertProgress { documents_done: report.documents_unchanged, documents_total: total, passages_embedded: 0 };
        progress(state)?;
        let mut group = Group::default();
        let last = changes.len().saturating_sub(1);
        for (at, change) in changes.into_iter().enumerate() {
            let (change, passages) = self.cut(collection, change).await?;
            group.changes.push(change);
            group.passages.push(passages);
            if at == last || group.passages.iter().map(Vec::len).sum::<usize>() >= GROUP_PASSAGES {
                let group = std::mem::take(&mut group);
                let documents = group.changes.len();
                let mut embedded = |count| {
                    state.passages_embedded += count;
                    progress(state)
                };
                self.commit(writer, group, departures, &mut report, &mut embedded).await?;
                state.documents_done += documents;
                progress(state)?;
            }
        }
        Ok(report)
    }

    /// The passages of a document, with their token ids.
    async fn cut(&self, collection: &str, change: Change) -> Result<(Change, Vec<Passage>)> {
        let (encoder, length, collection) = (self.encoder().clone(), self.passage_length(), collection.to_owned());
        super::blocking("cutting a document", move || {
            let Document { title, text, source, metadata, elements, .. } = &change.document;
            let title_tokens = if title.is_empty() { 0 } else { encoder.count_tokens(title) };
            // The title is embedded with every passage. A long one must not crowd out the text.
            let window = length.tokens - SPECIAL_TOKENS;
            let budget = chunk::Budget { tokens: window - title_tokens.min(window / 2), overlap: length.overlap };
            let texts = chunk::split(text, elements, budget, &|piece| encoder.count_tokens(piece));
            let mut passages = Vec::with_capacity(texts.len());
            for (ordinal, text) in texts.into_iter().enumerate() {
                passages.push(Passage {
                    id: document::passage_id(title, &text),
                    document_id: change.id.clone(),
                    collection: collection.clone(),
                    ordinal: ordinal as u32,
                    title: title.clone(),
                    token_ids: encoder.tokenize_passage(title, &text)?.into(),
                    text: text.into_owned(),
                    source: source.clone(),
                    metadata: metadata.clone(),
                });
            }
            Ok((change, passages))
        })
        .await
    }

    /// Embeds a group and commits it.
    async fn commit(
        &self,
        writer: &Writer<'_>,
        group: Group,
        departures: &dyn Departures,
        report: &mut UpsertReport,
        embedded: &mut (dyn FnMut(usize) -> Result<()> + Send),
    ) -> Result<()> {
        let tokenizer = self.encoder().tokenizer_identity();
        let (mut rows, mut replaced, mut emptied) = (Vec::new(), Vec::new(), Vec::new());
        for (change, passages) in group.changes.into_iter().zip(group.passages) {
            report.passages_removed += change.replaces.unwrap_or(0);
            report.passages_added += passages.len();
            match (passages.is_empty(), change.replaces) {
                (true, _) => report.documents_empty += 1,
                (false, None) => report.documents_added += 1,
                (false, Some(_)) => report.documents_replaced += 1,
            }
            if change.replaces.is_some() {
                if passages.is_empty() { &mut emptied } else { &mut replaced }.push(change.id);
            }
            let count = passages.len() as u32;
            rows.extend(passages.into_iter().map(|passage| Row {
                passage,
                version: change.version.clone(),
                passages: count,
                tokenizer: tokenizer.clone(),
                vector: Vec::new(),
            }));
        }
        // What an older version says in the same words keeps its vector: new metadata costs no embedding.
        let mut known = match replaced.is_empty() {
            true => HashMap::new(),
            false => writer.collection().vectors(&replaced).await?,
        };
        for row in &mut rows {
            row.vector = known.get(&row.passage.id).cloned().unwrap_or_default();
        }
        embedded(rows.iter().filter(|row| !row.vector.is_empty()).count())?;
        let unknown: Vec<&mut Row> = rows.iter_mut().filter(|row| row.vector.is_empty()).collect();
        if !unknown.is_empty() {
            self.embed(writer.collection().embedder()?, unknown, embedded).await?;
        }
        let leaving = [&emptied[..], &replaced].concat();
        if !leaving.is_empty() {
            known.clear();
            let stay: HashSet<&str> = rows.iter().map(|row| row.passage.id.as_str()).collect();
            self.announce(writer.collection(), Some((&leaving, &stay)), departures).await?;
        }
        if !emptied.is_empty() {
            writer.remove(&emptied).await?;
        }
        if !rows.is_empty() {
            writer.put(&rows, &replaced).await?;
        }
        Ok(())
    }

    /// Gives rows their vectors; `embedded` hears how many have one.
    pub(super) async fn embed(
        &self,
        embedder: &Arc<dyn PassageEncoder>,
        mut rows: Vec<&mut Row>,
        embedded: &mut (dyn FnMut(usize) -> Result<()> + Send),
    ) -> Result<()> {
        for batch in rows.chunks_mut(EMBED_TEXTS) {
            let texts = batch.iter().map(|row| schema::content(&row.passage.title, &row.passage.text)).collect();
            for (row, vector) in batch.iter_mut().zip(self.embed_passages(embedder, texts).await?) {
                row.vector = vector;
            }
            embedded(batch.len())?;
        }
        Ok(())
    }

    /// The vector of a question, by the blocking threads.
    pub(super) async fn embed_query(&self, embedder: &Arc<dyn PassageEncoder>, text: &str) -> Result<Vec<f32>> {
        let (encoder, text) = (Arc::clone(embedder), text.to_owned());
        let vector = super::blocking("embedding", move || encoder.embed_query(&text)).await?;
        self.texts_embedded().fetch_add(1, Ordering::Relaxed);
        Ok(vector)
    }

    /// Vectors of passages, by the blocking threads.
    async fn embed_passages(&self, embedder: &Arc<dyn PassageEncoder>, texts: Vec<String>) -> Result<Vec<Vec<f32>>> {
        let (count, encoder) = (texts.len(), Arc::clone(embedder));
        let vectors = super::blocking("embedding", move || encoder.embed_passages(&texts)).await?;
        self.texts_embedded().fetch_add(count as u64, Ordering::Relaxed);
        if vectors.len() != count {
            let message = format!("the embedding model gave {} vectors for {count} texts", vectors.len());
            return Err(crate::Error::new(crate::ErrorKind::Internal, message));
        }
        Ok(vectors)
    }
}

/// Which documents have to be written, in the order given; the rest is counted.
fn changes(
    documents: Vec<Document>,
    stored: &HashMap<String, StoredVersion>,
    length: chunk::Budget,
) -> Result<(Vec<Change>, UpsertReport)> {
    let mut report = UpsertReport::default();
    let mut identities = Vec::with_capacity(documents.len());
    for document in &documents {
        identities.push(document.identity()?);
    }
    // From the end, so that the last of several with one identity is the one that counts.
    let mut seen = HashSet::new();
    let mut changes = Vec::new();
    for (document, id) in documents.into_iter().zip(identities).rev() {
        let version = document.version(length);
        let stored = stored.get(&id);
        if !seen.insert(id.clone()) || stored.is_some_and(|stored| stored.version == version) {
            report.documents_unchanged += 1;
        } else {
            changes.push(Change { id, version, document, replaces: stored.map(|stored| stored.passages) });
        }
    }
    changes.reverse();
    Ok((changes, report))
}
