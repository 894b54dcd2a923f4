//! The bucket's bandwidth, shared by all that is read and written: every transfer under way gets as much, and none more than one
//! connection carries (processor sharing).
//!
//! As all rates are equal, one number tells how many bytes each transfer that was there from the start would have had by now: a transfer ends
//! when that has grown by its bytes. So an event costs O(log n), and nothing is counted down.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::kit::Shares;
use super::moment::Moment;

/// Bytes that are less than any that is sent: what is left of a transfer by rounding.
const NOTHING: f64 = 1e-3;

#[derive(Debug)]
pub(super) struct Link<T> {
    /// Bytes a microsecond of all together, and of one.
    capacity: f64,
    each: f64,
    /// What each would have had, and when.
    served: f64,
    at_us: f64,
    ends: BinaryHeap<Reverse<(Moment, u64)>>,
    transfers: HashMap<u64, T>,
    next: u64,
    /// Bytes that passed.
    passed: f64,
}

impl<T> Link<T> {
    fn rate(&self) -> f64 {
        match self.transfers.len() {
            0 => 0.0,
            count => self.each.min(self.capacity / count as f64),
        }
    }

    fn advance(&mut self, now_us: f64) {
        let (rate, past) = (self.rate(), (now_us - self.at_us).max(0.0));
        self.served += rate * past;
        self.passed += rate * past * self.transfers.len() as f64;
        self.at_us = now_us;
    }
}

impl<T> Shares<T> for Link<T> {
    fn of(capacity: f64, each: f64) -> Self {
        Self {
            capacity,
            each: each.min(capacity),
            served: 0.0,
            at_us: 0.0,
            ends: BinaryHeap::new(),
            transfers: HashMap::new(),
            next: 0,
            passed: 0.0,
        }
    }

    fn begin(&mut self, now_us: f64, bytes: f64, what: T) -> u64 {
        self.advance(now_us);
        let id = self.next;
        self.next += 1;
        self.ends.push(Reverse((Moment(self.served + bytes), id)));
        self.transfers.insert(id, what);
        id
    }

    fn break_off(&mut self, now_us: f64, id: u64) {
        self.advance(now_us);
        self.transfers.remove(&id);
    }

    fn next_us(&mut self) -> Option<f64> {
        while let Some(Reverse((_, id))) = self.ends.peek() {
            if self.transfers.contains_key(id) {
                break;
            }
            self.ends.pop();
        }
        let Reverse((end, _)) = self.ends.peek()?;
        Some(self.at_us + (end.0 - self.served).max(0.0) / self.rate())
    }

    fn ended(&mut self, now_us: f64) -> Vec<T> {
        self.advance(now_us);
        let mut ended: Vec<(u64, T)> = Vec::new();
        while let Some(Reverse((end, id))) = self.ends.peek() {
            if end.0 > self.served + NOTHING {
                break;
            }
            ended.extend(self.transfers.remove(id).map(|what| (*id, what)));
            self.ends.pop();
        }
        ended.sort_unstable_by_key(|(id, _)| *id);
        ended.into_iter().map(|(_, what)| what).collect()
    }

    fn passed(&mut self, now_us: f64) -> f64 {
        self.advance(now_us);
        self.passed
    }
}
