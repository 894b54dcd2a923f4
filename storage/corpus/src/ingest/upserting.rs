//! An upsert on its way: what is cut and embedded beside others, and committed in the turn to write.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{
    Change, GROUP_PASSAGES, Going, Group, Row, StoredVersion, Taken, UpsertProgress, UpsertReport, changes, ids, whole,
};
use crate::bucket::{Bucket, Claims, Held, deleted_meanwhile, taken_over};
use crate::course::{Course, Destination, Piece};
use crate::table::{Collection, Writer};
use crate::{Corpus, Departures, Passage};
use crate::{ErrorKind, Result};
use ragstone_documents::Document;

/// As [`GROUP_PASSAGES`], in object storage, where there is a commit in a second.
const SHARED_PASSAGES: usize = 256;
/// Passages of one upsert after which their words are indexed: searches beside a long one cut no more of them into words.
const INDEXED_TOGETHER: usize = 256;
/// Between two looks whether another node has added a document.
const WAIT: Duration = Duration::from_millis(500);

pub(super) struct Upserting<'a> {
    corpus: &'a Corpus,
    collection: &'a str,
    pub into: Destination,
    departures: &'a dyn Departures,
    course: &'a dyn Course,
    report: UpsertReport,
    state: UpsertProgress,
    /// Whether any of it was committed.
    has_stored: bool,
    /// Passages that were committed since words were indexed.
    unindexed: usize,
    /// The documents that are being written, in object storage.
    claims: Option<Claimed>,
}

impl<'a> Upserting<'a> {
    pub fn new(
        corpus: &'a Corpus,
        collection: &'a str,
        into: Destination,
        (departures, course): (&'a dyn Departures, &'a dyn Course),
    ) -> Self {
        let (report, state) = (UpsertReport::default(), UpsertProgress::default());
        Self {
            corpus,
            collection,
            into,
            departures,
            course,
            report,
            state,
            has_stored: false,
            unindexed: 0,
            claims: None,
        }
    }

    /// Writes what changed of `documents`. The collection held `stored` when it was looked at.
    pub async fn ingest(&mut self, documents: Vec<Document>, stored: &HashMap<String, StoredVersion>) -> Result<Taken> {
        let total = documents.len();
        let (changes, report) = changes(documents, stored, self.corpus.passage_length())?;
        let unchanged = report.documents_unchanged;
        let new = changes.iter().filter(|change| change.replaces.is_none()).count();
        self.course.adding(new).await?;
        self.report = report;
        self.state = UpsertProgress { documents_done: unchanged, documents_total: total, passages_embedded: 0 };
        let mut going = self.course.asked(self.state)?;
        let mut group = Group::default();
        let mut changes = changes.into_iter().peekable();
        while going == Going::On
            && let Some(change) = changes.next()
        {
            let (at, course, state) = (change.at, self.course, self.state);
            let turn = course.turn(Piece::Cut).await;
            let asked = move || course.asked(state);
            let cut = self.corpus.cut_while(self.collection, change, &asked).await?;
            drop(turn);
            let Some((change, passages)) = cut else {
                let first_left = group.changes.first().map_or(at, |change| change.at);
                return Ok(Taken { report: self.report, documents: first_left });
            };
            group.changes.push(change);
            group.passages.push(passages);
            let most = if self.into.table.shared().is_some() { SHARED_PASSAGES } else { GROUP_PASSAGES };
            let is_full = group.passages.iter().map(Vec::len).sum::<usize>() >= most;
            if !is_full && changes.peek().is_some() {
                // To cut a long document takes a while, too.
                going = self.course.asked(self.state)?;
                continue;
            }
            let left = self.commit(std::mem::take(&mut group)).await?;
            self.state.documents_done = self.report.documents();
            if let Some(first) = left {
                return Ok(Taken { report: self.report, documents: first });
            }
            going = self.course.asked(self.state)?;
        }
        let first_left = group.changes.first().or(changes.peek()).map_or(total, |change| change.at);
        Ok(Taken { report: self.report, documents: first_left })
    }

    /// As [`commit_group`](Self::commit_group), of documents that no other node adds meanwhile.
    async fn commit(&mut self, group: Group) -> Result<Option<usize>> {
        let Some(shared) = self.into.table.shared().cloned() else { return self.commit_group(group).await };
        let documents: Vec<String> = group.changes.iter().map(|change| change.id.clone()).collect();
        let claims = loop {
            match Claims::take(&shared.bucket, self.collection, &documents).await? {
                Ok(claims) => break claims,
                Err(busy) => tracing::debug!(document = busy, "another node adds a document; it is waited for"),
            }
            if self.course.asked(self.state)? == Going::Enough {
                return Ok(group.changes.first().map(|change| change.at));
            }
            tokio::time::sleep(WAIT).await;
        };
        self.claims = Some(Claimed::new(shared.bucket.clone(), claims));
        let committed = self.commit_group(group).await;
        if let Some(claims) = self.claims.take() {
            claims.give_back().await;
        }
        committed
    }

    /// Embeds a group and commits it; where that was enough before all of it had its vectors, the place of the first document that is
    /// left.
    async fn commit_group(&mut self, group: Group) -> Result<Option<usize>> {
        let Group { mut changes, passages } = group;
        let mut counts: Vec<usize> = passages.iter().map(Vec::len).collect();
        let mut rows = self.rows(&changes, passages);
        let embedded_before = self.state.passages_embedded;
        loop {
            self.state.passages_embedded = embedded_before;
            self.give_vectors(&changes, &counts, &mut rows).await?;
            let table = self.into.table.clone();
            let Some(writer) = table.write().await else {
                let at = (self.corpus, self.collection);
                let has_part = self.has_stored || self.report.documents_unchanged > 0;
                match self.into.again(at, self.state, has_part, self.course).await? {
                    Some(into) => self.into = into,
                    None => return Ok(changes.first().map(|change| change.at)),
                }
                // They may be of another embedding model.
                rows.iter_mut().for_each(|row| row.vector.clear());
                // What is in the new table nobody looked at yet.
                self.into.seen = None;
                continue;
            };
            // Whoever removes the collection has it answer with an error before he takes this turn.
            self.course.asked(self.state)?;
            let is_alone = self.into.seen == Some(table.commits()) && table.shared().is_none();
            if !is_alone {
                self.look_again(&table, &mut changes, &mut counts, &mut rows).await?;
            }
            let left = self.write(&writer, changes, counts, rows).await;
            // Once others wrote, they may have written what later groups have: each of those looks again, too.
            self.into.seen = is_alone.then(|| table.commits());
            return left;
        }
    }

    fn rows(&self, changes: &[Change], passages: Vec<Vec<Passage>>) -> Vec<Row> {
        let tokenizer = self.corpus.encoder().tokenizer_identity();
        let mut rows = Vec::new();
        for (change, passages) in changes.iter().zip(passages) {
            let count = passages.len() as u32;
            rows.extend(passages.into_iter().map(|passage| Row {
                passage,
                version: change.version.clone(),
                passages: count,
                tokenizer: tokenizer.clone(),
                vector: Vec::new(),
                generation: 0,
            }));
        }
        rows
    }

    /// Embeds rows until that is enough. What an older version says in the same words keeps its vector: new metadata costs no embedding.
    async fn give_vectors(&mut self, changes: &[Change], counts: &[usize], rows: &mut [Row]) -> Result<()> {
        let table = self.into.table.clone();
        let replaced = ids(changes, counts, |change, passages| change.replaces.is_some() && passages > 0);
        let known = match replaced.is_empty() {
            true => HashMap::new(),
            false => match table.vectors(&replaced).await {
                // It was deleted, which whoever takes the turn to write hears of.
                Err(error) if error.kind() == ErrorKind::NotFound => HashMap::new(),
                known => known?,
            },
        };
        for row in rows.iter_mut() {
            row.vector = known.get(&row.passage.id).cloned().unwrap_or_default();
        }
        drop(known);
        self.state.passages_embedded += rows.iter().filter(|row| !row.vector.is_empty()).count();
        let going = self.course.asked(self.state)?;
        let unknown: Vec<&mut Row> = rows.iter_mut().filter(|row| row.vector.is_empty()).collect();
        if going == Going::On && !unknown.is_empty() {
            let mut embedded = |count| {
                self.state.passages_embedded += count;
                self.course.asked(self.state)
            };
            self.corpus.embed(table.embedder()?, unknown, self.course, &mut embedded).await?;
        }
        Ok(())
    }

    /// Others wrote since the collection was looked at: what they stored as it is given here need not be written, and the versions that
    /// are replaced are those of now.
    async fn look_again(
        &mut self,
        table: &Collection,
        changes: &mut Vec<Change>,
        counts: &mut Vec<usize>,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let wanted: Vec<String> = changes.iter().map(|change| change.id.clone()).collect();
        if let Some(shared) = table.shared() {
            shared.refresh().await?;
        }
        let now = table.versions_of(&wanted).await?;
        let is_there = |change: &Change| now.get(&change.id).is_some_and(|stored| stored.version == change.version);
        for change in changes.iter_mut() {
            change.replaces = now.get(&change.id).map(|stored| stored.passages);
        }
        let there: HashSet<String> =
            changes.iter().filter(|change| is_there(change)).map(|change| change.id.clone()).collect();
        if there.is_empty() {
            return Ok(());
        }
        self.report.documents_unchanged += there.len();
        let mut kept = changes.iter().map(|change| !there.contains(&change.id));
        counts.retain(|_| kept.next().unwrap_or(true));
        rows.retain(|row| !there.contains(&row.passage.document_id));
        changes.retain(|change| !there.contains(&change.id));
        Ok(())
    }

    async fn write(
        &mut self,
        writer: &Writer<'_>,
        mut changes: Vec<Change>,
        counts: Vec<usize>,
        mut rows: Vec<Row>,
    ) -> Result<Option<usize>> {
        let kept = whole(&rows, &counts);
        let left = changes.get(kept).map(|change| change.at);
        changes.truncate(kept);
        rows.truncate(counts[..kept].iter().sum());
        for (change, passages) in changes.iter().zip(&counts) {
            self.report.add(change, *passages);
        }
        let replaced = ids(&changes, &counts, |change, passages| change.replaces.is_some() && passages > 0);
        let emptied = ids(&changes, &counts, |change, passages| change.replaces.is_some() && passages == 0);
        self.corpus.inner.options.env.fail_point("corpus.before_commit")?;
        let leaving = [&emptied[..], &replaced].concat();
        if !leaving.is_empty() {
            let stay: HashSet<&str> = rows.iter().map(|row| row.passage.id.as_str()).collect();
            self.corpus.announce(writer.collection(), Some((&leaving, &stay)), self.departures).await?;
        }
        self.check_claims().await?;
        if !emptied.is_empty() {
            writer.remove(&emptied).await?;
        }
        if !rows.is_empty() {
            for row in &mut rows {
                row.generation = self.claims.as_ref().map_or(0, |claims| claims.generation(&row.passage.document_id));
            }
            writer.put(&rows, &replaced).await?;
            // Whoever deleted one meanwhile did not see it.
            if let Err(error) = self.check_claims().await {
                let all = ids(&changes, &counts, |_, passages| passages > 0);
                self.undo(writer, &all).await?;
                return Err(error);
            }
        }
        self.has_stored |= !rows.is_empty();
        self.unindexed += rows.len();
        if self.unindexed >= INDEXED_TOGETHER {
            // What is committed stays so; the end of the upsert says what is wrong.
            if let Err(error) = writer.index_new_words().await {
                tracing::debug!(collection = self.collection, %error, "new words are indexed later");
            }
            self.unindexed = 0;
        }
        Ok(left)
    }

    /// Whether the documents are still to be written by this node.
    async fn check_claims(&self) -> Result<()> {
        match &self.claims {
            Some(claims) => claims.check(self.collection).await,
            None => Ok(()),
        }
    }

    /// Takes out what was deleted while it was written.
    async fn undo(&self, writer: &Writer<'_>, documents: &[String]) -> Result<()> {
        let Some(claims) = &self.claims else { return Ok(()) };
        let deleted = claims.deleted_of(documents).await?;
        if deleted.is_empty() { Ok(()) } else { writer.remove(&deleted).await.map(drop) }
    }
}

/// Claims that are given back also where nobody waits for the end of what they are for.
struct Claimed {
    bucket: Bucket,
    claims: Option<Claims>,
}

impl Claimed {
    fn new(bucket: Bucket, claims: Claims) -> Self {
        Self { bucket, claims: Some(claims) }
    }

    fn generation(&self, document: &str) -> u64 {
        self.claims.as_ref().map_or(0, |claims| claims.generation(document))
    }

    async fn check(&self, collection: &str) -> Result<()> {
        let Some(claims) = &self.claims else { return Ok(()) };
        match claims.look(&self.bucket).await? {
            Held::Still => Ok(()),
            Held::Deleted(document) => Err(deleted_meanwhile(collection, &document)),
            Held::TakenOver(document) => Err(taken_over(collection, &document)),
        }
    }

    async fn deleted_of(&self, documents: &[String]) -> Result<Vec<String>> {
        match &self.claims {
            Some(claims) => claims.deleted_of(&self.bucket, documents).await,
            None => Ok(Vec::new()),
        }
    }

    async fn give_back(mut self) {
        if let Some(claims) = self.claims.take() {
            claims.give_back(&self.bucket).await;
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(claims) = self.claims.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let bucket = self.bucket.clone();
            runtime.spawn(async move { claims.give_back(&bucket).await });
        }
    }
}
