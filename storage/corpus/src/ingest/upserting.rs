//! An upsert on its way: what is cut and embedded beside others, and committed in the turn to write.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::claimed::Claimed;
use super::stages::{Cutting, Embedded, Stages};
use super::{Change, GROUP_PASSAGES, Going, Group, Row, StoredVersion, Taken, UpsertReport, changes, ids, whole};
use crate::Result;
use crate::bucket::Claims;
use crate::course::{Course, Destination};
use crate::table::{Collection, Writer};
use crate::{Corpus, Departures};
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
    /// Whether any of it was committed.
    has_stored: bool,
    /// Passages that were committed since words were indexed.
    unindexed: usize,
}

impl<'a> Upserting<'a> {
    pub fn new(
        corpus: &'a Corpus,
        collection: &'a str,
        into: Destination,
        (departures, course): (&'a dyn Departures, &'a dyn Course),
    ) -> Self {
        let report = UpsertReport::default();
        Self { corpus, collection, into, departures, course, report, has_stored: false, unindexed: 0 }
    }

    /// Writes what changed of `documents`. The collection held `stored` when it was looked at.
    pub async fn ingest(&mut self, documents: Vec<Document>, stored: &HashMap<String, StoredVersion>) -> Result<Taken> {
        let total = documents.len();
        let (changes, report) = changes(documents, stored, self.corpus.passage_length())?;
        let new = changes.iter().filter(|change| change.replaces.is_none()).count();
        self.course.adding(new).await?;
        let stages = Stages::new((self.corpus, self.collection), self.course, self.into.table.clone());
        stages.note(|state| (state.documents_done, state.documents_total) = (report.documents_unchanged, total));
        self.report = report;
        if stages.asked()? == Going::Enough {
            return Ok(Taken { report, documents: changes.first().map_or(total, |change| change.at) });
        }
        let most = if self.into.table.shared().is_some() { SHARED_PASSAGES } else { GROUP_PASSAGES };
        let mut cutting = Cutting::new(&stages, changes, most);
        let ((to_embed, cut), (to_commit, embedded)) = (channel(1), channel(1));
        // Each ends with the one before it, after what that has given, and when nobody takes what it gives.
        let (cut, embedded, committed) =
            tokio::join!(cutting.run(to_embed), embed(&stages, cut, to_commit), self.commit(&stages, embedded));
        let (committed, embedded) = (committed?, embedded?);
        cut?;
        let left = committed.or(embedded).or_else(|| cutting.first_left());
        Ok(Taken { report: self.report, documents: left.unwrap_or(total) })
    }

    /// The last stage: groups are committed, one after the other. Where one had not all of its vectors because that was enough, the place of the
    /// first document that is left.
    async fn commit(&mut self, stages: &Stages<'_>, mut embedded: Receiver<Embedded>) -> Result<Option<usize>> {
        while let Some(mut group) = embedded.recv().await {
            let mut claims = group.claims.take();
            let left = self.commit_group(stages, group, claims.as_mut()).await;
            if let Some(claims) = claims {
                claims.give_back().await;
            }
            let left = left?;
            stages.note(|state| state.documents_done = self.report.documents());
            if left.is_some() {
                return Ok(left);
            }
            // Whoever had enough has told the other stages, too.
            stages.asked()?;
        }
        Ok(None)
    }

    async fn commit_group(
        &mut self,
        stages: &Stages<'_>,
        mut group: Embedded,
        claims: Option<&mut Claimed>,
    ) -> Result<Option<usize>> {
        loop {
            if !Arc::ptr_eq(&group.of, &self.into.table) {
                group.again(stages).await?;
            }
            let table = self.into.table.clone();
            let Some(writer) = table.write().await else {
                let at = (self.corpus, self.collection);
                let has_part = self.has_stored || self.report.documents_unchanged > 0;
                match self.into.again(at, stages.state(), has_part, self.course).await? {
                    Some(into) => self.into = into,
                    None => return Ok(group.changes.first().map(|change| change.at)),
                }
                stages.move_to(self.into.table.clone());
                // What is in the new table nobody looked at yet.
                self.into.seen = None;
                continue;
            };
            // Whoever removes the collection has it answer with an error before he takes this turn.
            stages.asked()?;
            let Embedded { mut changes, mut counts, mut rows, .. } = group;
            let is_alone = self.into.seen == Some(table.commits()) && table.shared().is_none();
            if !is_alone {
                self.look_again(&table, &mut changes, &mut counts, &mut rows).await?;
            }
            let left = self.write(&writer, (changes, counts, rows), claims).await;
            // Once others wrote, they may have written what later groups have: each of those looks again, too.
            self.into.seen = is_alone.then(|| table.commits());
            return left;
        }
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
        (mut changes, counts, mut rows): (Vec<Change>, Vec<usize>, Vec<Row>),
        mut claims: Option<&mut Claimed>,
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
        self.check(claims.as_deref()).await?;
        if !emptied.is_empty() {
            match &mut claims {
                Some(claims) => writer.take_out(claims.end(self.collection, &emptied).await?).await?,
                None => writer.remove(&emptied).await.map(drop)?,
            }
        }
        let claims = claims.as_deref();
        if !rows.is_empty() {
            for row in &mut rows {
                row.generation = claims.map_or(0, |claims| claims.generation(&row.passage.document_id));
            }
            writer.put(&rows, &replaced).await?;
            // Whoever deleted one meanwhile did not see it.
            if let Err(error) = self.check(claims).await {
                let all = ids(&changes, &counts, |_, passages| passages > 0);
                undo(writer, claims, &all).await?;
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
    async fn check(&self, claims: Option<&Claimed>) -> Result<()> {
        match claims {
            Some(claims) => claims.check(self.collection).await,
            None => Ok(()),
        }
    }
}

/// Takes out what was deleted while it was written, and nothing that another node has added since.
async fn undo(writer: &Writer<'_>, claims: Option<&Claimed>, documents: &[String]) -> Result<()> {
    let Some(claims) = claims else { return Ok(()) };
    let deleted = claims.deleted_of(documents).await?;
    if deleted.is_empty() { Ok(()) } else { writer.take_out(claims.leaving(&deleted)).await }
}

/// The second stage: groups are claimed, where nodes share the collection, and embedded, as long as they are taken. The place of the first
/// document that is left where it was enough before its group was claimed.
async fn embed(stages: &Stages<'_>, mut cut: Receiver<Group>, embedded: Sender<Embedded>) -> Result<Option<usize>> {
    while let Ok(place) = embedded.reserve().await
        && let Some(group) = cut.recv().await
    {
        let first = group.changes.first().map(|change| change.at);
        let work = async {
            let claims = match claimed(stages, &group).await? {
                Claiming::Needless => None,
                Claiming::Done(claims) => Some(claims),
                Claiming::Unwanted => return Ok(None),
            };
            Embedded::new(stages, group, claims).await.map(Some)
        };
        let group = tokio::select! {
            biased;
            () = embedded.closed() => return Ok(None),
            group = work => group?,
        };
        let Some(group) = group else { return Ok(first) };
        place.send(group);
    }
    Ok(None)
}

/// What became of claims to documents.
enum Claiming {
    /// No other node writes there.
    Needless,
    Done(Claimed),
    /// It was enough while another node had one.
    Unwanted,
}

/// Waits until no other node adds these documents.
async fn claimed(stages: &Stages<'_>, group: &Group) -> Result<Claiming> {
    let table = stages.table();
    let Some(shared) = table.shared() else { return Ok(Claiming::Needless) };
    let documents: Vec<String> = group.changes.iter().map(|change| change.id.clone()).collect();
    loop {
        match Claims::take(&shared.bucket, stages.collection, &documents).await? {
            Ok(claims) => return Ok(Claiming::Done(Claimed::new(shared.bucket.clone(), claims))),
            Err(busy) => tracing::debug!(document = busy, "another node adds a document; it is waited for"),
        }
        if stages.asked()? == Going::Enough {
            return Ok(Claiming::Unwanted);
        }
        tokio::time::sleep(WAIT).await;
    }
}
