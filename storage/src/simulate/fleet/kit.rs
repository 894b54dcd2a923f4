//! What the simulation counts with: when what comes next, who shares the bandwidth, how far a node's engine is, and who has which KV. Behind traits,
//! so that the slow reference (`reference.rs`) runs the same nodes on plain lists.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::engine::{Done, Engine, Steps};
use super::link::Link;
use super::moment::Moment;
use super::route::KvIndex;
use crate::key::KvKey;

/// Which of each.
pub(super) trait Kit {
    type Calendar<E>: Calendar<E>;
    type Link<T>: Shares<T>;
    type Engine<Q: Copy + PartialEq, B: Copy>: Computes<Q, B>;
    type Index: Follows;
}

/// Events by their times, those of one time as they were noted.
pub(super) trait Calendar<E> {
    fn empty() -> Self;
    fn note(&mut self, at_us: f64, event: E);
    fn next(&mut self) -> Option<(f64, E)>;
}

/// Transfers that share a bandwidth: each gets as much as any other, and none more than one connection carries.
pub(super) trait Shares<T> {
    /// Of bytes a microsecond, all together and each.
    fn of(capacity: f64, each: f64) -> Self;
    /// Begins a transfer; its name.
    fn begin(&mut self, now_us: f64, bytes: f64, what: T) -> u64;
    /// Ends one before its time.
    fn break_off(&mut self, now_us: f64, id: u64);
    /// When the next one ends, if none begins.
    fn next_us(&mut self) -> Option<f64>;
    /// What has ended by now, in the order in which it began.
    fn ended(&mut self, now_us: f64) -> Vec<T>;
    /// Bytes that passed until now.
    fn passed(&mut self, now_us: f64) -> f64;
}

/// An engine: one prefill at a time, and the answers that are decoded beside it.
pub(super) trait Computes<Q, B> {
    fn of(steps: &Steps) -> Self;
    /// What waits to be computed beside.
    fn beside(&self) -> usize;
    /// A prefill that takes so long by itself, and then an answer.
    fn prefill(&mut self, now_us: f64, us: f64, question: Q, answer_tokens: u32);
    /// To be computed when nobody waits.
    fn compute_beside(&mut self, now_us: f64, us: f64, what: B);
    /// Begins again with nothing.
    fn clear(&mut self, now_us: f64);
    /// When something ends next, if nothing comes.
    fn next_us(&self) -> Option<f64>;
    /// What has ended by now: answers, then what was computed.
    fn done(&mut self, now_us: f64) -> Vec<Done<Q, B>>;
    /// Time until now in which it computed for questions, and beside.
    fn busy_us(&mut self, now_us: f64) -> (f64, f64);
}

/// Follows what is in the nodes' host memory.
pub(super) trait Follows {
    fn of(nodes: usize) -> Self;
    fn note(&mut self, node: usize, key: KvKey, is_there: bool);
    fn forget(&mut self, node: usize);
    /// For each node, the tokens at the start of a path that it has.
    fn matched(&self, path: &[(KvKey, u32)], nodes: usize) -> Vec<u64>;
}

/// What is fast.
#[derive(Debug)]
pub(super) struct Fast;

impl Kit for Fast {
    type Calendar<E> = Heap<E>;
    type Link<T> = Link<T>;
    type Engine<Q: Copy + PartialEq, B: Copy> = Engine<Q, B>;
    type Index = KvIndex;
}

/// Events in a heap.
#[derive(Debug)]
pub(super) struct Heap<E> {
    events: BinaryHeap<Reverse<Noted<E>>>,
    noted: u64,
}

#[derive(Debug)]
struct Noted<E> {
    at: (Moment, u64),
    event: E,
}

impl<E> Calendar<E> for Heap<E> {
    fn empty() -> Self {
        Self { events: BinaryHeap::new(), noted: 0 }
    }

    fn note(&mut self, at_us: f64, event: E) {
        self.events.push(Reverse(Noted { at: (Moment(at_us), self.noted), event }));
        self.noted += 1;
    }

    fn next(&mut self) -> Option<(f64, E)> {
        self.events.pop().map(|Reverse(noted)| (noted.at.0.0, noted.event))
    }
}

impl<E> Ord for Noted<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl<E> PartialOrd for Noted<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Noted<E> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for Noted<E> {}
