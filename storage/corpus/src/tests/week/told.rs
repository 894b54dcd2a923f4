//! What was done, and what may be there therefore.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// What was asked of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Added(String),
    Deleted,
}

#[derive(Debug, Clone)]
struct Done {
    node: usize,
    document: String,
    kind: Kind,
    began_ms: u64,
    /// `None`: its node was killed in it, or it is under way.
    ended_ms: Option<u64>,
    is_acknowledged: bool,
}

/// All that was done, by all nodes.
#[derive(Debug, Default)]
pub struct Story {
    done: Vec<Done>,
    /// When segments were told to be gone.
    gone_ms: BTreeMap<String, u64>,
    /// Who has the lease, as far as is known; who had it and did not give it back.
    holder: Option<usize>,
    lost_it: BTreeSet<usize>,
}

impl Story {
    pub fn begins(&mut self, node: usize, document: &str, kind: Kind, now_ms: u64) -> usize {
        let document = document.to_owned();
        self.done.push(Done { node, document, kind, began_ms: now_ms, ended_ms: None, is_acknowledged: false });
        self.done.len() - 1
    }

    pub fn ends(&mut self, number: usize, is_acknowledged: bool, now_ms: u64) {
        (self.done[number].ended_ms, self.done[number].is_acknowledged) = (Some(now_ms), is_acknowledged);
    }

    pub fn acknowledged(&self) -> usize {
        self.done.iter().filter(|done| done.is_acknowledged).count()
    }

    pub fn told(&mut self, segments: &[String], now_ms: u64) {
        for segment in segments {
            self.gone_ms.entry(segment.clone()).or_insert(now_ms);
        }
    }

    /// A table that was read after the log was told has the text all the same: the commit that was to remove it failed, so that nothing was removed.
    pub fn is_there(&mut self, segment: &str, read_ms: u64) {
        if self.gone_ms.get(segment).is_some_and(|gone_ms| *gone_ms < read_ms) {
            self.gone_ms.remove(segment);
        }
    }

    /// By how much a segment is still there too late.
    pub fn is_late(&self, segment: &str, now_ms: u64) -> Option<u64> {
        let stated_ms = 3 * INTERVAL.as_millis() as u64 + world::LIST_LAGS_MS;
        let gone_ms = self.gone_ms.get(segment)?;
        now_ms.checked_sub(gone_ms + stated_ms).filter(|late_ms| *late_ms > 0)
    }

    pub fn leased(&mut self, node: usize) {
        if let Some(before) = self.holder.replace(node) {
            self.lost_it.insert(before);
        }
        self.lost_it.remove(&node);
    }

    /// Whoever lost it may not be told that it has it.
    pub fn renewed(&mut self, node: usize) {
        assert!(!self.lost_it.contains(&node), "node {node} renewed a lease that another node took");
    }

    pub fn given_back(&mut self, node: usize) {
        if self.holder == Some(node) {
            self.holder = None;
        }
        self.lost_it.remove(&node);
    }

    /// Whether `there`, the versions of a document, is what some order of what was done leaves: the last of it, as far as anybody was told
    /// which that is. What was not acknowledged may have been done, at any moment until its node was told of the failure, or was killed.
    pub fn permits(&self, document: &str, there: Option<&str>) -> Result<(), String> {
        let all: Vec<&Done> = self.done.iter().filter(|done| done.document == document).collect();
        let is_last = |one: &&&Done| {
            let later = |other: &&&Done| {
                other.is_acknowledged && one.ended_ms.is_some_and(|ended_ms| other.began_ms > ended_ms)
            };
            !all.iter().any(|other| later(&other))
        };
        let mut may_be: Vec<Option<&str>> = all
            .iter()
            .filter(is_last)
            .map(|done| match &done.kind {
                Kind::Added(version) => Some(version.as_str()),
                Kind::Deleted => None,
            })
            .collect();
        if !all.iter().any(|done| done.is_acknowledged) {
            may_be.push(None);
        }
        if may_be.contains(&there) { Ok(()) } else { Err(format!("{document}: {there:?} is there, {may_be:?} may be")) }
    }

    /// A node is gone: what it had under way ends there.
    pub fn killed(&mut self, node: usize, now_ms: u64) {
        for done in self.done.iter_mut().filter(|done| done.node == node) {
            done.ended_ms.get_or_insert(now_ms);
        }
    }
}
