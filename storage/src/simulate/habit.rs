//! Habits of users: which passages the next request names.

use super::random::{Random, cumulative_zipf, draw};

/// Labels of one part of a composed habit stand apart from those of the other parts.
const PART_SHIFT: u32 = 48;
/// The label of a system prompt.
const SYSTEM_LABEL: u64 = 1 << 47;
/// Turns of one conversation have labels of their own.
const TURN_SHIFT: u32 = 12;
/// The longest conversation.
const MOST_TURNS: usize = 60;

/// Gives the path of the next request, as labels, the first passage first.
pub(super) trait Habit {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64>;
}

/// Passages `0..documents` in order, again and again.
pub(super) struct Loop {
    documents: u64,
    next: u64,
}

impl Loop {
    pub fn new(documents: u64) -> Self {
        Self { documents, next: 0 }
    }
}

impl Habit for Loop {
    fn path(&mut self, _: usize, _: &mut Random) -> Vec<u64> {
        let at = self.next;
        self.next = (at + 1) % self.documents;
        vec![at]
    }
}

/// Loops of several lengths, as likely one as the other.
pub(super) struct Loops(Together);

impl Loops {
    pub fn new(lengths: &[u64]) -> Self {
        let parts = lengths.iter().map(|length| (1.0, Box::new(Loop::new(*length)) as Box<dyn Habit>));
        Self(Together::new(parts.collect()))
    }
}

impl Habit for Loops {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        self.0.path(request, random)
    }
}

/// One passage by popularity: Zipf with an exponent, 0 for none.
pub(super) struct Popular {
    ranks: Vec<f64>,
    /// Who has which rank.
    order: Vec<usize>,
    /// The chance that two passages change places before a request.
    drift: f64,
    /// Requests after which all passages are new ones; 0 for never.
    renewed_every: usize,
    system: Option<u64>,
}

impl Popular {
    pub fn new(documents: usize, exponent: f64, random: &mut Random) -> Self {
        let ranks = cumulative_zipf(documents, exponent);
        Self { ranks, order: random.permutation(documents), drift: 0.0, renewed_every: 0, system: None }
    }

    pub fn drifting(self, drift: f64) -> Self {
        Self { drift, ..self }
    }

    pub fn renewed_every(self, requests: usize) -> Self {
        Self { renewed_every: requests, ..self }
    }

    pub fn with_system_prompt(self) -> Self {
        Self { system: Some(SYSTEM_LABEL), ..self }
    }
}

impl Habit for Popular {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        let documents = self.order.len();
        if random.unit() < self.drift {
            let (one, other) = (random.below(documents), random.below(documents));
            self.order.swap(one, other);
        }
        if self.renewed_every > 0 && request > 0 && request.is_multiple_of(self.renewed_every) {
            self.order.iter_mut().for_each(|document| *document += documents);
        }
        let document = self.order[draw(&self.ranks, random)] as u64;
        self.system.into_iter().chain([document]).collect()
    }
}

/// Conversations, so many at once: a turn names all turns before it and one more. Six in ten end after their first turn or
/// their second; one in ten goes on for long.
pub(super) struct Sessions {
    running: Vec<Session>,
    at_once: usize,
    begun: u64,
    system: Option<u64>,
}

struct Session {
    label: u64,
    turns: usize,
    left: usize,
}

impl Sessions {
    pub fn new(at_once: usize) -> Self {
        Self { running: Vec::new(), at_once, begun: 0, system: None }
    }

    pub fn with_system_prompt(self) -> Self {
        Self { system: Some(SYSTEM_LABEL + 1), ..self }
    }

    fn begin(&mut self, random: &mut Random) {
        let drawn = random.unit();
        let left = if drawn < 0.6 {
            1 + random.below(2)
        } else if drawn < 0.9 {
            3 + random.below(8)
        } else {
            15 + random.below(MOST_TURNS - 14)
        };
        self.running.push(Session { label: self.begun << TURN_SHIFT, turns: 0, left });
        self.begun += 1;
    }
}

impl Habit for Sessions {
    fn path(&mut self, _: usize, random: &mut Random) -> Vec<u64> {
        while self.running.len() < self.at_once {
            self.begin(random);
        }
        let at = random.below(self.running.len());
        let session = &mut self.running[at];
        session.turns += 1;
        session.left -= 1;
        let turns = (0..session.turns as u64).map(|turn| session.label + turn);
        let path = self.system.into_iter().chain(turns).collect();
        if session.left == 0 {
            self.running.swap_remove(at);
        }
        path
    }
}

/// Passages that are hot, so many at once: each is asked for 2 to 30 times, and then never again.
pub(super) struct Bursts {
    hot: Vec<(u64, usize)>,
    at_once: usize,
    begun: u64,
}

impl Bursts {
    pub fn new(at_once: usize) -> Self {
        Self { hot: Vec::new(), at_once, begun: 0 }
    }
}

impl Habit for Bursts {
    fn path(&mut self, _: usize, random: &mut Random) -> Vec<u64> {
        while self.hot.len() < self.at_once {
            self.hot.push((self.begun, 2 + random.below(29)));
            self.begun += 1;
        }
        let at = random.below(self.hot.len());
        let (label, left) = &mut self.hot[at];
        let label = *label;
        *left -= 1;
        if *left == 0 {
            self.hot.swap_remove(at);
        }
        vec![label]
    }
}

/// Passages that nobody asked for before, and nobody will again.
#[derive(Default)]
pub(super) struct Fresh(u64);

impl Habit for Fresh {
    fn path(&mut self, _: usize, _: &mut Random) -> Vec<u64> {
        self.0 += 1;
        vec![self.0]
    }
}

/// Several sets of passages, each asked for during its part of the day, by Zipf.
pub(super) struct Rotation {
    sets: Vec<Popular>,
    documents: u64,
    every: usize,
}

impl Rotation {
    pub fn new(sets: usize, documents: usize, every: usize, random: &mut Random) -> Self {
        let sets = (0..sets).map(|_| Popular::new(documents, 0.6, random)).collect();
        Self { sets, documents: documents as u64, every: every.max(1) }
    }
}

impl Habit for Rotation {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        let set = request / self.every % self.sets.len();
        let path = self.sets[set].path(0, random);
        path.into_iter().map(|label| label + set as u64 * self.documents).collect()
    }
}

/// Topics of so many passages each, by Zipf; a request names all of a topic's passages in any order.
pub(super) struct Shuffled {
    topics: Popular,
    passages: u64,
}

impl Shuffled {
    pub fn new(topics: usize, passages: u64, random: &mut Random) -> Self {
        Self { topics: Popular::new(topics, 0.9, random), passages }
    }
}

impl Habit for Shuffled {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        let topic = self.topics.path(request, random)[0];
        let mut path: Vec<usize> = (0..self.passages).map(|at| (topic * self.passages + at) as usize).collect();
        random.shuffle(&mut path);
        path.into_iter().map(|label| label as u64).collect()
    }
}

/// Several habits at once, each request of one of them by weight.
pub(super) struct Together {
    parts: Vec<Box<dyn Habit>>,
    sums: Vec<f64>,
}

impl Together {
    pub fn new(parts: Vec<(f64, Box<dyn Habit>)>) -> Self {
        let mut sum = 0.0;
        let (mut habits, mut sums) = (Vec::new(), Vec::new());
        for (weight, habit) in parts {
            sum += weight;
            sums.push(sum);
            habits.push(habit);
        }
        Self { parts: habits, sums }
    }
}

impl Habit for Together {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        let part = draw(&self.sums, random);
        let path = self.parts[part].path(request, random);
        path.into_iter().map(|label| label + ((part as u64) << PART_SHIFT)).collect()
    }
}

/// Several habits after one another, each for so many requests.
pub(super) struct InTurns {
    parts: Vec<Box<dyn Habit>>,
    each: usize,
}

impl InTurns {
    pub fn new(each: usize, parts: Vec<Box<dyn Habit>>) -> Self {
        Self { parts, each }
    }
}

impl Habit for InTurns {
    fn path(&mut self, request: usize, random: &mut Random) -> Vec<u64> {
        let part = (request / self.each).min(self.parts.len() - 1);
        let path = self.parts[part].path(request, random);
        path.into_iter().map(|label| label + ((part as u64) << PART_SHIFT)).collect()
    }
}
