//! A node's engine: one prefill at a time, and the answers that are decoded beside it, a token of each in every step.
//!
//! ```text
//! waiting prefills -> one, in steps of a chunk and a token of every answer -> its answer is decoded
//! nobody waits     -> what is computed beside, in the same way
//! ```
//! A step takes what its chunk takes, and what a row more costs for each answer. Between two events nothing changes, so that they are
//! computed, not stepped through; as all answers get a token in a step, one number counts for all of them, as in `link.rs`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::kit::Computes;
use super::moment::Moment;
use crate::cost::CostModel;

/// What is less than a microsecond, or a token, by rounding.
const NOTHING: f64 = 1e-3;

/// What steps take.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    /// By the answers that are decoded, from one on, where nothing is prefilled.
    decode_us: Vec<f64>,
    /// A whole chunk, and what a row more costs.
    chunk_us: f64,
    row_us: f64,
    /// Answers that are decoded at once.
    pub most_answers: usize,
}

impl Steps {
    /// Of an engine whose answers stand behind so many tokens.
    pub fn new(costs: &CostModel, cached: f64, most_answers: usize) -> Self {
        let chunk = f64::from(costs.prefill.grid.most_new_tokens().min(512));
        let at = |rows: f64| costs.prefill.prefill_us(cached, rows);
        let chunk_us = at(chunk);
        let row_us = (chunk_us - at(1.0)).max(0.0) / (chunk - 1.0).max(1.0);
        let decode_us = (0..=most_answers).map(|answers| at(answers.max(1) as f64)).collect();
        Self { decode_us, chunk_us, row_us, most_answers }
    }

    /// How fast a prefill that takes `us` by itself goes on beside so many answers, and how many tokens each of these gets in a microsecond.
    pub fn beside(&self, us: f64, answers: usize) -> (f64, f64) {
        // No step is shorter than one of a few rows: the weights are read for each.
        let step = us.max(self.decode_us[0]).min(self.chunk_us);
        let longer = step + self.row_us * answers as f64;
        (step / longer, 1.0 / longer)
    }

    /// Tokens that each of so many answers gets in a microsecond while nothing is prefilled.
    pub fn alone(&self, answers: usize) -> f64 {
        1.0 / self.decode_us[answers.min(self.most_answers)]
    }
}

/// What the engine computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work<Q, B> {
    pub us: f64,
    left_us: f64,
    what: What<Q, B>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What<Q, B> {
    Prefill(Q, u32),
    Beside(B),
}

/// What has ended.
#[derive(Debug, PartialEq)]
pub(super) enum Done<Q, B> {
    Prefill(Q),
    Answer(Q),
    Beside(B),
}

#[derive(Debug)]
pub(super) struct Engine<Q, B> {
    steps: Steps,
    waiting: VecDeque<Work<Q, B>>,
    beside: VecDeque<Work<Q, B>>,
    now: Option<Work<Q, B>>,
    answers: BinaryHeap<Reverse<(Moment, u64)>>,
    questions: Vec<(u64, Q)>,
    next: u64,
    /// Tokens that an answer has that was there from the start.
    tokens: f64,
    at_us: f64,
    busy_us: f64,
    beside_us: f64,
}

impl<Q: Copy + PartialEq, B: Copy> Engine<Q, B> {
    fn advance(&mut self, now_us: f64) {
        let past = (now_us - self.at_us).max(0.0);
        let count = self.answers.len();
        match &mut self.now {
            Some(work) => {
                let (speed, rate) = self.steps.beside(work.us, count);
                work.left_us -= past * speed;
                self.tokens += past * rate;
                if matches!(work.what, What::Beside(_)) {
                    self.beside_us += past;
                } else {
                    self.busy_us += past;
                }
            }
            None if count > 0 => {
                self.tokens += past * self.steps.alone(count);
                self.busy_us += past;
            }
            None => {}
        }
        self.at_us = now_us;
    }

    /// The next work; a question interrupts what is computed beside.
    fn take(&mut self) {
        let has_room = self.answers.len() < self.steps.most_answers;
        if let Some(Work { what: What::Beside(_), .. }) = self.now
            && has_room
            && !self.waiting.is_empty()
        {
            self.beside.extend(self.now.take());
            self.beside.rotate_right(1);
        }
        if self.now.is_none() && has_room {
            self.now = self.waiting.pop_front();
        }
        if self.now.is_none() && self.waiting.is_empty() {
            self.now = self.beside.pop_front();
        }
    }
}

impl<Q: Copy + PartialEq, B: Copy> Computes<Q, B> for Engine<Q, B> {
    fn of(steps: &Steps) -> Self {
        Self {
            steps: steps.clone(),
            waiting: VecDeque::new(),
            beside: VecDeque::new(),
            now: None,
            answers: BinaryHeap::new(),
            questions: Vec::new(),
            next: 0,
            tokens: 0.0,
            at_us: 0.0,
            busy_us: 0.0,
            beside_us: 0.0,
        }
    }

    fn beside(&self) -> usize {
        self.beside.len()
    }

    fn clear(&mut self, now_us: f64) {
        let (busy_us, beside_us) = (self.busy_us, self.beside_us);
        *self = Self { at_us: now_us, busy_us, beside_us, ..Self::of(&self.steps) };
    }

    fn prefill(&mut self, now_us: f64, us: f64, question: Q, answer_tokens: u32) {
        self.advance(now_us);
        self.waiting.push_back(Work { us, left_us: us, what: What::Prefill(question, answer_tokens) });
        self.take();
    }

    fn compute_beside(&mut self, now_us: f64, us: f64, what: B) {
        self.advance(now_us);
        self.beside.push_back(Work { us, left_us: us, what: What::Beside(what) });
        self.take();
    }

    fn next_us(&self) -> Option<f64> {
        let count = self.answers.len();
        let (rate, prefilled) = match &self.now {
            Some(work) => {
                let (speed, rate) = self.steps.beside(work.us, count);
                (rate, Some(work.left_us.max(0.0) / speed))
            }
            None => (self.steps.alone(count.max(1)), None),
        };
        let answered = self.answers.peek().map(|Reverse((end, _))| (end.0 - self.tokens).max(0.0) / rate);
        [prefilled, answered].into_iter().flatten().min_by(f64::total_cmp).map(|past| self.at_us + past)
    }

    fn done(&mut self, now_us: f64) -> Vec<Done<Q, B>> {
        self.advance(now_us);
        let mut done = Vec::new();
        while let Some(Reverse((end, id))) = self.answers.peek().copied() {
            if end.0 > self.tokens + NOTHING {
                break;
            }
            self.answers.pop();
            if let Some(at) = self.questions.iter().position(|(other, _)| *other == id) {
                done.push(Done::Answer(self.questions.swap_remove(at).1));
            }
        }
        if let Some(work) = self.now
            && work.left_us <= NOTHING
        {
            self.now = None;
            match work.what {
                What::Beside(what) => done.push(Done::Beside(what)),
                What::Prefill(question, tokens) => {
                    self.answers.push(Reverse((Moment(self.tokens + f64::from(tokens)), self.next)));
                    self.questions.push((self.next, question));
                    self.next += 1;
                    done.push(Done::Prefill(question));
                }
            }
        }
        self.take();
        done
    }

    fn busy_us(&mut self, now_us: f64) -> (f64, f64) {
        self.advance(now_us);
        (self.busy_us, self.beside_us)
    }
}
