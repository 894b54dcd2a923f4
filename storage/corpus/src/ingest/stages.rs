//! The stages of an upsert, which go on side by side: while a group of documents is committed, the next one is embedded, and the one after
//! that is cut. There is one group in each stage. Groups are committed in their order, and nothing is told as done before.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::{Arc, Mutex};
use std::vec::IntoIter;

use tokio::sync::mpsc::Sender;

use super::claimed::Claimed;
use super::{Change, Going, Group, Row, UpsertProgress, ids};
use crate::course::{Course, Piece};
use crate::table::Collection;
use crate::{Corpus, Passage};
use crate::{ErrorKind, Result};
use ragstone_env::lock::locked;

/// What all stages of an upsert know.
pub(super) struct Stages<'a> {
    pub corpus: &'a Corpus,
    pub collection: &'a str,
    pub course: &'a dyn Course,
    state: Mutex<UpsertProgress>,
    /// Where documents go, as it was last seen.
    table: Mutex<Arc<Collection>>,
}

impl<'a> Stages<'a> {
    pub fn new((corpus, collection): (&'a Corpus, &'a str), course: &'a dyn Course, table: Arc<Collection>) -> Self {
        Self { corpus, collection, course, state: Mutex::default(), table: Mutex::new(table) }
    }

    pub fn state(&self) -> UpsertProgress {
        *locked(&self.state)
    }

    /// Changes what is told from now on.
    pub fn note(&self, change: impl FnOnce(&mut UpsertProgress)) {
        change(&mut locked(&self.state));
    }

    pub fn table(&self) -> Arc<Collection> {
        locked(&self.table).clone()
    }

    /// Another table has taken the place of the one that was there.
    pub fn move_to(&self, table: Arc<Collection>) {
        *locked(&self.table) = table;
    }

    /// Tells how far the upsert is, and asks whether it goes on.
    pub fn asked(&self) -> Result<Going> {
        self.course.asked(self.state())
    }
}

/// The first stage: documents become passages.
pub(super) struct Cutting<'a> {
    stages: &'a Stages<'a>,
    changes: Peekable<IntoIter<Change>>,
    /// Passages of a group, unless one document has more.
    most: usize,
    /// The first document that was not cut because it was enough.
    left: Option<usize>,
}

impl<'a> Cutting<'a> {
    pub fn new(stages: &'a Stages<'a>, changes: Vec<Change>, most: usize) -> Self {
        Self { stages, changes: changes.into_iter().peekable(), most, left: None }
    }

    /// The place of the first document that is in no group; `None`: all are.
    pub fn first_left(&mut self) -> Option<usize> {
        self.left.or_else(|| self.changes.peek().map(|change| change.at))
    }

    /// Cuts one group after the other, as long as they are taken.
    ///
    /// # Errors
    /// What cutting says, and whoever is asked.
    pub async fn run(&mut self, cut: Sender<Group>) -> Result<()> {
        while let Ok(place) = cut.reserve().await {
            let group = tokio::select! {
                biased;
                () = cut.closed() => return Ok(()),
                group = self.group() => group?,
            };
            let Some(group) = group else { break };
            place.send(group);
        }
        Ok(())
    }

    /// The next documents that are committed together; `None` where there are none, or it was enough.
    async fn group(&mut self) -> Result<Option<Group>> {
        let (stages, mut group) = (self.stages, Group::default());
        while self.left.is_none()
            && let Some(change) = self.changes.next()
        {
            let first = group.changes.first().map_or(change.at, |change| change.at);
            if stages.asked()? == Going::Enough {
                self.left = Some(first);
                return Ok(None);
            }
            let turn = stages.course.turn(Piece::Cut).await;
            let cut = stages.corpus.cut_while(stages.collection, change, &|| stages.asked()).await?;
            drop(turn);
            let Some((change, passages)) = cut else {
                self.left = Some(first);
                return Ok(None);
            };
            let bytes = change.document.text.len();
            stages.note(|state| {
                state.passages_cut += passages.len();
                state.bytes_cut += bytes;
            });
            group.changes.push(change);
            group.passages.push(passages);
            if group.passages.iter().map(Vec::len).sum::<usize>() >= self.most {
                break;
            }
        }
        Ok((!group.changes.is_empty()).then_some(group))
    }
}

/// A group with its vectors, as far as they were wanted.
pub(super) struct Embedded {
    pub changes: Vec<Change>,
    /// So many of the rows are each document's.
    pub counts: Vec<usize>,
    pub rows: Vec<Row>,
    /// The table whose embedding model the vectors are of.
    pub of: Arc<Collection>,
    /// The documents, in object storage: no other node adds them meanwhile.
    pub claims: Option<Claimed>,
}

impl Embedded {
    /// The second stage: passages have their vectors, until that is enough.
    ///
    /// # Errors
    /// What the embedding model says, and whoever is asked.
    pub async fn new(stages: &Stages<'_>, group: Group, claims: Option<Claimed>) -> Result<Self> {
        let Group { changes, passages } = group;
        let counts = passages.iter().map(Vec::len).collect();
        let rows = rows(stages.corpus, &changes, passages);
        let mut embedded = Self { changes, counts, rows, of: stages.table(), claims };
        embedded.give_vectors(stages).await?;
        Ok(embedded)
    }

    /// Gives the rows those of the table that has taken the place of theirs: it may be of another embedding model.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub async fn again(&mut self, stages: &Stages<'_>) -> Result<()> {
        let before = self.rows.iter().filter(|row| !row.vector.is_empty()).count();
        stages.note(|state| state.passages_embedded = state.passages_embedded.saturating_sub(before));
        self.rows.iter_mut().for_each(|row| row.vector.clear());
        self.of = stages.table();
        self.give_vectors(stages).await
    }

    /// Embeds rows until that is enough. What an older version says in the same words keeps its vector: new metadata costs no embedding.
    async fn give_vectors(&mut self, stages: &Stages<'_>) -> Result<()> {
        let Self { changes, counts, rows, of: table, .. } = self;
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
        let have = rows.iter().filter(|row| !row.vector.is_empty()).count();
        stages.note(|state| state.passages_embedded += have);
        let going = stages.asked()?;
        let unknown: Vec<&mut Row> = rows.iter_mut().filter(|row| row.vector.is_empty()).collect();
        if going == Going::On && !unknown.is_empty() {
            let mut embedded = |count| {
                stages.note(|state| state.passages_embedded += count);
                stages.asked()
            };
            stages.corpus.embed(table.embedder()?, unknown, stages.course, &mut embedded).await?;
        }
        Ok(())
    }
}

fn rows(corpus: &Corpus, changes: &[Change], passages: Vec<Vec<Passage>>) -> Vec<Row> {
    let tokenizer = corpus.encoder().tokenizer_identity();
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
