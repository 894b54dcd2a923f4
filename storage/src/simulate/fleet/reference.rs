//! The slow way: lists that are gone through at every event, and what is left counted down.

use std::collections::HashSet;

use super::engine::{Done, Steps};
use super::kit::{Calendar, Computes, Follows, Kit, Shares};
use crate::key::KvKey;

/// What is less than a byte, a token or a microsecond, by rounding.
const NOTHING: f64 = 1e-3;

pub struct Slow;

impl Kit for Slow {
    type Calendar<E> = List<E>;
    type Link<T> = Transfers<T>;
    type Engine<Q: Copy + PartialEq, B: Copy> = PlainEngine<Q, B>;
    type Index = PerNode;
}

/// The first of the earliest events.
pub struct List<E>(Vec<(f64, E)>);

impl<E> Calendar<E> for List<E> {
    fn empty() -> Self {
        Self(Vec::new())
    }

    fn note(&mut self, at_us: f64, event: E) {
        self.0.push((at_us, event));
    }

    fn next(&mut self) -> Option<(f64, E)> {
        let first = (0..self.0.len()).reduce(|first, at| if self.0[at].0 < self.0[first].0 { at } else { first })?;
        Some(self.0.remove(first))
    }
}

/// Transfers with the bytes that are left of each.
pub struct Transfers<T> {
    capacity: f64,
    each: f64,
    left: Vec<(u64, f64, T)>,
    at_us: f64,
    next: u64,
    passed: f64,
}

impl<T> Transfers<T> {
    fn rate(&self) -> f64 {
        self.each.min(self.capacity / self.left.len().max(1) as f64)
    }

    fn advance(&mut self, now_us: f64) {
        let bytes = self.rate() * (now_us - self.at_us).max(0.0);
        for (_, left, _) in &mut self.left {
            *left -= bytes;
            self.passed += bytes;
        }
        self.at_us = now_us;
    }
}

impl<T> Shares<T> for Transfers<T> {
    fn of(capacity: f64, each: f64) -> Self {
        Self { capacity, each, left: Vec::new(), at_us: 0.0, next: 0, passed: 0.0 }
    }

    fn begin(&mut self, now_us: f64, bytes: f64, what: T) -> u64 {
        self.advance(now_us);
        self.left.push((self.next, bytes, what));
        self.next += 1;
        self.next - 1
    }

    fn break_off(&mut self, now_us: f64, id: u64) {
        self.advance(now_us);
        self.left.retain(|(other, ..)| *other != id);
    }

    fn next_us(&mut self) -> Option<f64> {
        let least = self.left.iter().map(|(_, left, _)| left.max(0.0)).min_by(f64::total_cmp)?;
        Some(self.at_us + least / self.rate())
    }

    fn ended(&mut self, now_us: f64) -> Vec<T> {
        self.advance(now_us);
        let (ended, left) = std::mem::take(&mut self.left).into_iter().partition(|(_, left, _)| *left <= NOTHING);
        self.left = left;
        let ended: Vec<(u64, f64, T)> = ended;
        ended.into_iter().map(|(.., what)| what).collect()
    }

    fn passed(&mut self, now_us: f64) -> f64 {
        self.advance(now_us);
        self.passed
    }
}

/// An engine whose answers are counted one by one.
pub struct PlainEngine<Q, B> {
    steps: Steps,
    /// What waits: its time, what is left of it.
    waiting: Vec<(f64, f64, Q, u32)>,
    beside: Vec<(f64, f64, B)>,
    /// Whether the first of either is computed.
    prefills: bool,
    computes_beside: bool,
    answers: Vec<(Q, f64)>,
    at_us: f64,
    busy: (f64, f64),
}

impl<Q: Copy + PartialEq, B: Copy> PlainEngine<Q, B> {
    /// What is computed: its time and what is left.
    fn now(&self) -> Option<(f64, f64)> {
        if self.prefills {
            return self.waiting.first().map(|(us, left, ..)| (*us, *left));
        }
        self.beside.first().filter(|_| self.computes_beside).map(|(us, left, _)| (*us, *left))
    }

    /// How fast what is computed goes on, and each answer.
    fn rates(&self) -> (f64, f64) {
        match self.now() {
            Some((us, _)) => self.steps.beside(us, self.answers.len()),
            None => (0.0, self.steps.alone(self.answers.len().max(1))),
        }
    }

    fn advance(&mut self, now_us: f64) {
        let past = (now_us - self.at_us).max(0.0);
        let (speed, rate) = self.rates();
        if self.prefills {
            self.waiting[0].1 -= past * speed;
            self.busy.0 += past;
        } else if self.computes_beside {
            self.beside[0].1 -= past * speed;
            self.busy.1 += past;
        } else if !self.answers.is_empty() {
            self.busy.0 += past;
        }
        for (_, left) in &mut self.answers {
            *left -= past * rate;
        }
        self.at_us = now_us;
    }

    fn choose(&mut self) {
        let has_room = self.answers.len() < self.steps.most_answers;
        self.prefills = !self.waiting.is_empty() && (self.prefills || has_room);
        self.computes_beside =
            !self.prefills && !self.beside.is_empty() && (self.waiting.is_empty() || self.computes_beside);
    }
}

impl<Q: Copy + PartialEq, B: Copy> Computes<Q, B> for PlainEngine<Q, B> {
    fn of(steps: &Steps) -> Self {
        Self {
            steps: steps.clone(),
            waiting: Vec::new(),
            beside: Vec::new(),
            prefills: false,
            computes_beside: false,
            answers: Vec::new(),
            at_us: 0.0,
            busy: (0.0, 0.0),
        }
    }

    fn beside(&self) -> usize {
        self.beside.len() - usize::from(self.computes_beside)
    }

    fn prefill(&mut self, now_us: f64, us: f64, question: Q, answer_tokens: u32) {
        self.advance(now_us);
        self.waiting.push((us, us, question, answer_tokens));
        self.choose();
    }

    fn compute_beside(&mut self, now_us: f64, us: f64, what: B) {
        self.advance(now_us);
        self.beside.push((us, us, what));
        self.choose();
    }

    fn clear(&mut self, now_us: f64) {
        self.advance(now_us);
        let busy = self.busy;
        *self = Self { at_us: now_us, busy, ..Self::of(&self.steps) };
    }

    fn next_us(&self) -> Option<f64> {
        let (speed, rate) = self.rates();
        let prefilled = self.now().map(|(_, left)| left.max(0.0) / speed);
        let answered = self.answers.iter().map(|(_, left)| left.max(0.0) / rate);
        prefilled.into_iter().chain(answered).min_by(f64::total_cmp).map(|past| self.at_us + past)
    }

    fn done(&mut self, now_us: f64) -> Vec<Done<Q, B>> {
        self.advance(now_us);
        let mut done: Vec<Done<Q, B>> = self
            .answers
            .iter()
            .filter(|(_, left)| *left <= NOTHING)
            .map(|(question, _)| Done::Answer(*question))
            .collect();
        self.answers.retain(|(_, left)| *left > NOTHING);
        if self.now().is_some_and(|(_, left)| left <= NOTHING) {
            if self.prefills {
                let (.., question, tokens) = self.waiting.remove(0);
                self.answers.push((question, f64::from(tokens)));
                self.prefills = false;
                done.push(Done::Prefill(question));
            } else {
                done.push(Done::Beside(self.beside.remove(0).2));
                self.computes_beside = false;
            }
        }
        self.choose();
        done
    }

    fn busy_us(&mut self, now_us: f64) -> (f64, f64) {
        self.advance(now_us);
        self.busy
    }
}

/// Each node's entries, asked one after the other.
pub struct PerNode(Vec<HashSet<KvKey>>);

impl Follows for PerNode {
    fn of(nodes: usize) -> Self {
        Self(vec![HashSet::new(); nodes])
    }

    fn note(&mut self, node: usize, key: KvKey, is_there: bool) {
        if is_there {
            self.0[node].insert(key);
        } else {
            self.0[node].remove(&key);
        }
    }

    fn forget(&mut self, node: usize) {
        self.0[node].clear();
    }

    fn matched(&self, path: &[(KvKey, u32)], _: usize) -> Vec<u64> {
        let of = |keys: &HashSet<KvKey>| {
            path.iter().take_while(|(key, _)| keys.contains(key)).map(|(_, tokens)| u64::from(*tokens)).sum()
        };
        self.0.iter().map(of).collect()
    }
}
