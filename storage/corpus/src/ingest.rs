//! Takes documents in: what changed is cut, embedded, tokenized and committed, in groups.

mod claimed;
mod stages;
mod upserting;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::upserting::Upserting;
use super::chunk::Cut;
use super::course::{Course, Destination, Piece};
use super::schema::{self, Row};
use super::stored::StoredVersion;
use super::{Corpus, Departures, Metadata, Passage, PassageEncoder, check_name, chunk, document};
use crate::{ErrorKind, Result};
use ragstone_documents::Document;

/// What an embedding model puts around a text.
const SPECIAL_TOKENS: usize = 2;
/// Texts that go through the embedding model in one call, which whoever wants the upsert to end waits for.
const EMBED_TEXTS: usize = 32;
/// Bytes of them: about the 1024 tokens that the model computes at once, so that smaller calls would take longer in all.
const EMBED_BYTES: usize = 4 << 10;
/// Calls of an upsert at once: while the vectors of one are put into their rows and the next is made up, another computes.
const EMBED_AT_ONCE: usize = 2;
/// Passages that are committed together, unless one document has more. It bounds the work that a kill can cost: what is committed, and what is
/// embedded and cut beside.
pub(super) const GROUP_PASSAGES: usize = 64;

/// How often it is asked whether a document is still to be cut.
const ASK_EVERY: Duration = Duration::from_millis(100);

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
    /// Of documents that are to be written, what was cut so far: the passages, and the bytes of the texts.
    pub passages_cut: usize,
    pub bytes_cut: usize,
}

/// Whether an upsert is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Going {
    /// To its end.
    On,
    /// It ends: documents whose passages all have their vectors are committed first, so that the work is not done twice.
    Enough,
}

/// What an upsert came to whose caller may have had enough before its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// What changed.
    pub report: UpsertReport,
    /// So many documents, from the first on, are in the corpus as they were given, or need not be.
    pub documents: usize,
}

/// A document that is to be written.
struct Change {
    /// Its place among those that were given.
    at: usize,
    id: String,
    version: String,
    document: Document,
    /// How many passages of an older version go.
    replaces: Option<usize>,
}

/// Set once nobody wants what a thread computes any more: when this is dropped.
#[derive(Default)]
struct Enough(Arc<AtomicBool>);

impl Drop for Enough {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Documents that are committed together.
#[derive(Default)]
struct Group {
    changes: Vec<Change>,
    passages: Vec<Vec<Passage>>,
}

impl Corpus {
    /// Adds `documents` to `collection`, which is created where it is missing. See [`Document::id`] for identity.
    ///
    /// A document whose content is already there is left alone and nothing of it is embedded. One whose content changed
    /// replaces all passages of the older version in one commit. Of two documents with one identity the later wins. On
    /// return, and for what `progress` reports as done, the change is on disk; a call that was cut off loses at most the
    /// passages that were not yet reported, and the same call again does the rest. `departures` hears of the passages of
    /// an older version before they go. No collection is made for documents without a word.
    ///
    /// # Errors
    /// `InvalidInput` for a name of a collection or an id that cannot be one, or too much beside a text, before anything is written; `Full`; what
    /// `progress` returns, which ends the call before the next commit.
    pub async fn upsert(
        &self,
        collection: &str,
        documents: Vec<Document>,
        departures: &dyn Departures,
        progress: &(dyn Fn(UpsertProgress) -> Result<()> + Send + Sync),
    ) -> Result<UpsertReport> {
        let asked = |state| progress(state).map(|()| Going::On);
        self.upsert_while(collection, documents, departures, &asked).await.map(|taken| taken.report)
    }

    /// As [`upsert`](Self::upsert), and its caller may have enough: `course` is asked before the collection is made, between calls of the
    /// embedding model, and before each commit, in the turn to write. So whoever removes the collection, and has it answer with an error
    /// before, finds nothing written behind him.
    ///
    /// Documents are cut and embedded outside of the turn to write, which is taken for each commit: removals, and upserts of others, wait
    /// for a commit at the most.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert)'s; `NotFound` where the collection is deleted between two commits.
    pub async fn upsert_while(
        &self,
        collection: &str,
        documents: Vec<Document>,
        departures: &dyn Departures,
        course: &dyn Course,
    ) -> Result<Taken> {
        // What is stored under another name stays within reach, and nothing is begun under one.
        if self.find(collection).await.is_err() {
            check_name(collection)?;
        }
        documents.iter().try_for_each(Document::check)?;
        if documents.iter().all(|document| document.text.trim().is_empty()) && self.find(collection).await.is_err() {
            let report = UpsertReport { documents_empty: documents.len(), ..UpsertReport::default() };
            return Ok(Taken { report, documents: documents.len() });
        }
        let begun = UpsertProgress { documents_total: documents.len(), ..UpsertProgress::default() };
        let (into, stored) = loop {
            let Some(table) = self.find_or_create(collection, &|| course.asked(begun)).await? else {
                return Ok(Taken::default());
            };
            let into = Destination::new(table);
            match into.table.versions().await {
                Ok(stored) => break (into, stored),
                // It was dropped just now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        };
        let mut upsert = Upserting::new(self, collection, into, (departures, course));
        let taken = upsert.ingest(documents, &stored).await?;
        // Whoever had enough does not wait for it; the next upsert does it.
        if taken.documents == begun.documents_total
            && let Some(writer) = upsert.into.table.write().await
        {
            writer.maintain(self.inner.options.vector_index_rows).await?;
        }
        Ok(taken)
    }

    /// As [`cut`](Self::cut), as long as it is wanted, which is asked now and then: a long document takes minutes. `None` where that was enough.
    async fn cut_while(
        &self,
        collection: &str,
        change: Change,
        asked: &(dyn Fn() -> Result<Going> + Send + Sync),
    ) -> Result<Option<(Change, Vec<Passage>)>> {
        let enough = Enough::default();
        let mut cutting = pin!(self.cut(collection, change, enough.0.clone()));
        loop {
            tokio::select! {
                cut = &mut cutting => return cut.map(Some),
                () = tokio::time::sleep(ASK_EVERY) => match asked()? {
                    Going::On => {}
                    Going::Enough => return Ok(None),
                },
            }
        }
    }

    /// The passages of a document, with their token ids; nobody wants them once it is `enough`, and then it ends soon.
    async fn cut(&self, collection: &str, change: Change, enough: Arc<AtomicBool>) -> Result<(Change, Vec<Passage>)> {
        let (encoder, length, collection) = (self.encoder().clone(), self.passage_length(), collection.to_owned());
        let env = self.inner.options.env.clone();
        super::blocking("cutting a document", move || {
            env.fail_point("corpus.cut")?;
            let Document { title, text, source, metadata, elements, pages, .. } = &change.document;
            let is_enough = || enough.load(Ordering::Relaxed);
            // Without tokens it is cut in no time, as nobody cares where.
            let count = |piece: &str| if is_enough() { 0 } else { encoder.count_tokens(piece) };
            let title_tokens = if title.is_empty() { 0 } else { encoder.count_tokens(title) };
            // The title is embedded with every passage. A long one must not crowd out the text.
            let window = length.tokens - SPECIAL_TOKENS;
            let budget = chunk::Budget { tokens: window - title_tokens.min(window / 2), overlap: length.overlap };
            let cuts = chunk::split(text, elements, budget, &count);
            let metadata = Metadata::from(metadata);
            let mut passages = Vec::with_capacity(cuts.len());
            for (ordinal, Cut { at, text }) in cuts.into_iter().enumerate().take_while(|_| !is_enough()) {
                passages.push(Passage {
                    page: page_at(pages, at),
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

    /// Gives rows their vectors, in order, at `course`'s turns, until that is enough; `embedded` hears how many have one.
    pub(super) async fn embed(
        &self,
        embedder: &Arc<dyn PassageEncoder>,
        mut rows: Vec<&mut Row>,
        course: &dyn Course,
        embedded: &mut (dyn FnMut(usize) -> Result<Going> + Send),
    ) -> Result<()> {
        let mut calls = Vec::new();
        let mut rest = &rows[..];
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(together(rest));
            calls.push(batch.iter().map(|row| schema::content(&row.passage.title, &row.passage.text)).collect());
            rest = behind;
        }
        let call = |texts: Vec<String>| async move {
            let turn = course.turn(Piece::Embed).await;
            self.embed_passages(embedder, texts, turn).await
        };
        let mut vectors = stream::iter(calls).map(call).buffered(EMBED_AT_ONCE);
        let mut rows = rows.iter_mut();
        while let Some(found) = vectors.next().await {
            let found = found?;
            let count = found.len();
            found.into_iter().zip(rows.by_ref()).for_each(|(vector, row)| row.vector = vector);
            if embedded(count)? == Going::Enough {
                break;
            }
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

    /// Vectors of passages, by the blocking threads. They have their turn to their end, also where nobody waits for it.
    async fn embed_passages(
        &self,
        embedder: &Arc<dyn PassageEncoder>,
        texts: Vec<String>,
        turn: Box<dyn Send>,
    ) -> Result<Vec<Vec<f32>>> {
        let (count, encoder, env) = (texts.len(), Arc::clone(embedder), self.inner.options.env.clone());
        let vectors = super::blocking("embedding", move || {
            let _turn = turn;
            env.fail_point("corpus.embed")?;
            encoder.embed_passages(&texts)
        });
        let vectors = vectors.await?;
        self.texts_embedded().fetch_add(count as u64, Ordering::Relaxed);
        if vectors.len() != count {
            let message = format!("the embedding model gave {} vectors for {count} texts", vectors.len());
            return Err(crate::Error::new(crate::ErrorKind::Internal, message));
        }
        Ok(vectors)
    }
}

impl UpsertReport {
    /// Documents that it counts.
    fn documents(&self) -> usize {
        self.documents_added + self.documents_unchanged + self.documents_replaced + self.documents_empty
    }

    fn add(&mut self, change: &Change, passages: usize) {
        self.passages_removed += change.replaces.unwrap_or(0);
        self.passages_added += passages;
        match (passages, change.replaces) {
            (0, _) => self.documents_empty += 1,
            (_, None) => self.documents_added += 1,
            (_, Some(_)) => self.documents_replaced += 1,
        }
    }
}

/// The page, from 1, of what begins at a byte of a text.
fn page_at(pages: &[usize], at: usize) -> Option<u32> {
    // What stands before the first page is of it.
    (!pages.is_empty()).then(|| pages.partition_point(|page| *page <= at).max(1) as u32)
}

/// The documents of those changes that are meant, by how many passages each has now.
fn ids(changes: &[Change], counts: &[usize], is_meant: impl Fn(&Change, usize) -> bool) -> Vec<String> {
    let meant = changes.iter().zip(counts).filter(|(change, passages)| is_meant(change, **passages));
    meant.map(|(change, _)| change.id.clone()).collect()
}

/// How many documents, from the first on, have all their vectors: `counts` of the rows are one document's.
fn whole(rows: &[Row], counts: &[usize]) -> usize {
    let embedded = rows.iter().take_while(|row| !row.vector.is_empty()).count();
    let mut end = 0;
    let fits = |count: &&usize| {
        end += **count;
        end <= embedded
    };
    counts.iter().take_while(fits).count()
}

/// How many of the rows are embedded in one call; one at least.
fn together(rows: &[&mut Row]) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take(EMBED_TEXTS).take_while(|row| {
        bytes += row.passage.title.len() + row.passage.text.len();
        bytes <= EMBED_BYTES
    });
    fitting.count().max(1)
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
    for (at, (document, id)) in documents.into_iter().zip(identities).enumerate().rev() {
        let version = document::version(&document, length);
        let stored = stored.get(&id);
        if !seen.insert(id.clone()) || stored.is_some_and(|stored| stored.version == version) {
            report.documents_unchanged += 1;
        } else {
            changes.push(Change { at, id, version, document, replaces: stored.map(|stored| stored.passages) });
        }
    }
    changes.reverse();
    Ok((changes, report))
}
