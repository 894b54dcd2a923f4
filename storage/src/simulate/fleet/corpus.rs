//! The corpus that nodes share, as far as it takes time: commits to tables, which fail where another one came first, and the log of what was
//! replaced, which every node lists.

use std::collections::{HashMap, HashSet};

use super::load::{Change, versioned};
use super::moment::Moment;

/// What was told to all nodes: a passage whose text is another one now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Told {
    pub at_us: f64,
    pub label: u64,
}

/// Changes of one node to one table.
pub(super) type Writer = (usize, u64);

/// What becomes of a commit.
#[derive(Debug, PartialEq)]
pub(super) enum Committed {
    /// These are in the table.
    Done(Vec<usize>),
    /// Another one came first: it begins again.
    Again,
    /// Its node is gone.
    Nobody,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<usize>,
    committing: Vec<usize>,
    /// The version of the table that the commit began from.
    began_at: u64,
    last_us: Option<f64>,
    is_running: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    queues: HashMap<Writer, Queue>,
    versions: HashMap<u64, u64>,
    /// When passages were replaced, by their labels.
    replaced: HashMap<u64, Vec<f64>>,
    pub log: Vec<Told>,
    /// Changes that a writer had whose node is gone.
    pub lost: usize,
    pub acknowledged: Vec<usize>,
    /// From a change to its acknowledgement.
    pub waited_us: Vec<f64>,
    pub commits: u64,
    pub conflicts: u64,
    /// Tables that were changed since they were optimised.
    pub changed: HashSet<u64>,
    pub optimised: u64,
    pub optimised_in_vain: u64,
}

impl Tables {
    /// A change waits at a node; when its commit may begin, if none is under way: a node commits once in an interval at most.
    pub fn add(&mut self, writer: Writer, change: usize, now_us: f64, interval_us: f64) -> Option<f64> {
        let queue = self.queues.entry(writer).or_default();
        queue.waiting.push(change);
        (!std::mem::replace(&mut queue.is_running, true)).then(|| due(queue, now_us, interval_us))
    }

    /// Takes what waits into one commit.
    pub fn begin(&mut self, writer: Writer, now_us: f64) {
        let version = self.versions.get(&writer.1).copied().unwrap_or_default();
        let Some(queue) = self.queues.get_mut(&writer) else { return };
        if queue.committing.is_empty() {
            queue.committing = std::mem::take(&mut queue.waiting);
            queue.last_us = Some(now_us);
        }
        queue.began_at = version;
    }

    /// The conditional put: it fails where the table is another one by now.
    pub fn put(&mut self, writer: Writer) -> Committed {
        let version = self.versions.entry(writer.1).or_default();
        let Some(queue) = self.queues.get_mut(&writer).filter(|queue| queue.is_running) else {
            return Committed::Nobody;
        };
        if queue.began_at != *version {
            self.conflicts += 1;
            return Committed::Again;
        }
        *version += 1;
        self.commits += 1;
        self.changed.insert(writer.1);
        Committed::Done(std::mem::take(&mut queue.committing))
    }

    /// Whether more waits: when its commit may begin.
    pub fn next(&mut self, writer: Writer, now_us: f64, interval_us: f64) -> Option<f64> {
        let queue = self.queues.get_mut(&writer)?;
        if queue.waiting.is_empty() {
            queue.is_running = false;
            return None;
        }
        Some(due(queue, now_us, interval_us))
    }

    /// What was committed is told to all nodes, and then acknowledged.
    pub fn tell(&mut self, number: usize, change: &Change, now_us: f64) {
        let times = self.replaced.entry(change.label).or_default();
        self.log.push(Told { at_us: now_us, label: versioned(change.label, times.len() as u64) });
        times.push(now_us);
        self.acknowledged.push(number);
        self.waited_us.push(now_us - change.at_us);
    }

    /// A node is gone, with what it had not committed.
    pub fn lose(&mut self, node: usize) {
        let tables: Vec<Writer> = self.queues.keys().copied().filter(|(of, _)| *of == node).collect();
        for writer in tables {
            if let Some(queue) = self.queues.remove(&writer) {
                self.lost += queue.waiting.len() + queue.committing.len();
            }
        }
    }

    /// The optimiser of a table has ended: in vain, if somebody committed meanwhile.
    pub fn optimise(&mut self, group: u64, began_at: u64) {
        let version = self.versions.entry(group).or_default();
        if *version == began_at {
            *version += 1;
            self.optimised += 1;
        } else {
            self.optimised_in_vain += 1;
            self.changed.insert(group);
        }
    }

    pub fn version_of_table(&self, group: u64) -> u64 {
        self.versions.get(&group).copied().unwrap_or_default()
    }

    /// Which version of a passage who saw the log at that time has.
    pub fn version(&self, label: u64, view_us: f64) -> u64 {
        self.replaced.get(&label).map_or(0, |times| times.partition_point(|at| Moment(*at) <= Moment(view_us)) as u64)
    }

    /// Since when there is a later one than that version, if there is.
    pub fn replaced_us(&self, label: u64, version: u64) -> Option<f64> {
        self.replaced.get(&label)?.get(version as usize).copied()
    }
}

fn due(queue: &Queue, now_us: f64, interval_us: f64) -> f64 {
    queue.last_us.map_or(now_us, |last| now_us.max(last + interval_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_go_together_once_in_an_interval_and_one_writer_wins() {
        let mut tables = Tables::default();
        assert_eq!(tables.add((0, 7), 0, 10.0, 100.0), Some(10.0));
        assert_eq!(tables.add((0, 7), 1, 11.0, 100.0), None);
        assert_eq!(tables.add((1, 7), 2, 11.0, 100.0), Some(11.0));
        tables.begin((0, 7), 12.0);
        tables.begin((1, 7), 12.0);
        assert_eq!(tables.put((0, 7)), Committed::Done(vec![0, 1]));
        assert_eq!(tables.put((1, 7)), Committed::Again);
        tables.begin((1, 7), 20.0);
        tables.add((0, 7), 3, 21.0, 100.0);
        assert_eq!(tables.next((0, 7), 21.0, 100.0), Some(112.0));
        assert_eq!(tables.put((1, 7)), Committed::Done(vec![2]));
        assert_eq!((tables.commits, tables.conflicts), (2, 1));
        tables.lose(0);
        assert_eq!((tables.lost, tables.put((0, 7))), (1, Committed::Nobody));
    }

    #[test]
    fn who_looks_later_has_the_later_version() {
        let mut tables = Tables::default();
        let change = Change { at_us: 0.0, label: 5, group: 0 };
        tables.tell(0, &change, 10.0);
        tables.tell(1, &change, 20.0);
        assert_eq!([5.0, 10.0, 15.0, 25.0].map(|view| tables.version(5, view)), [0, 1, 1, 2]);
        assert_eq!((tables.replaced_us(5, 0), tables.replaced_us(5, 2)), (Some(10.0), None));
        assert_eq!(tables.log[1].label, versioned(5, 1), "the text that was there between");
    }
}
