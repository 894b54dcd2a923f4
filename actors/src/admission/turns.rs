//! Fairness between callers, at whatever is scarce: places among those that are admitted, and turns at work that takes a processor.
//!
//! A place is refused or given at once; a turn is waited for. Both are kept until the result is dropped.

mod ahead;
mod compute_time;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use tokio::sync::oneshot;

pub use self::compute_time::ComputeTime;
use crate::admission::caller::Caller;
use crate::error::{Error, ErrorKind, Result};

/// A caller may hold so many times as much as is free, so that one alone leaves an eighth to others.
const MOST_OF_FREE: usize = 7;
/// How long a caller counts as active after its last turn: one that asks again and again finds its share free.
const ACTIVE: Duration = Duration::from_secs(1);

/// Whether a caller that holds `own` may have one more, where `free` are. Dynamic thresholds (Choudhury and Hahne, "Dynamic
/// Queue Length Thresholds for Shared-Memory Packet Switches", 1998): whoever comes later finds something, however much one takes.
pub(crate) fn may_have_more(own: usize, free: usize) -> bool {
    own < free.saturating_mul(MOST_OF_FREE)
}

/// Whether a caller that has `own` turns at long work may have one more, where `free` of `at_once` are free: the first is everybody's.
fn leaves_turns(own: usize, most_each: usize, free: usize, at_once: usize) -> bool {
    own == 0 || (own < most_each && free > at_once / 2)
}

/// Places for a bounded number of requests, shared by dynamic thresholds.
#[derive(Debug, Clone)]
pub struct Places(Arc<PlacesInner>);

#[derive(Debug)]
struct PlacesInner {
    name: &'static str,
    capacity: usize,
    held: Mutex<HashMap<Caller, usize>>,
    /// How often places were taken so far.
    given: AtomicU64,
}

/// A place, or some that were taken together; free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    caller: Caller,
    count: usize,
}

impl Places {
    /// `capacity` places; `name` is what errors and the metric of refusals say.
    pub fn new(name: &'static str, capacity: usize) -> Self {
        Self(Arc::new(PlacesInner { name, capacity, held: Mutex::default(), given: AtomicU64::new(0) }))
    }

    /// Takes a place.
    ///
    /// # Errors
    /// `Overloaded` where all are taken, or this caller has its part of them.
    pub fn take(&self, caller: Caller) -> Result<Place> {
        self.take_many(caller, 1)
    }

    /// Takes `count` places, all or nothing; all there are, where that is more.
    ///
    /// # Errors
    /// As [`take`](Self::take)'s.
    pub fn take_many(&self, caller: Caller, count: usize) -> Result<Place> {
        let count = count.min(self.0.capacity);
        let mut held = self.held();
        self.check(&held, caller, count)?;
        *held.entry(caller).or_default() += count;
        drop(held);
        self.0.given.fetch_add(1, Ordering::Relaxed);
        Ok(Place { places: self.clone(), caller, count })
    }

    /// Whether [`take`](Self::take) would succeed now.
    ///
    /// # Errors
    /// As [`take`](Self::take)'s.
    pub fn check_room(&self, caller: Caller) -> Result<()> {
        self.check(&self.held(), caller, 1)
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.held().values().sum()
    }

    /// How often places were taken so far: whoever looks now and then sees what came and went in between.
    pub(crate) fn given(&self) -> u64 {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Whether the caller may have `count` more.
    fn check(&self, held: &HashMap<Caller, usize>, caller: Caller, count: usize) -> Result<()> {
        let PlacesInner { name, capacity, .. } = &*self.0;
        let own = held.get(&caller).copied().unwrap_or(0);
        let free = capacity.saturating_sub(held.values().sum::<usize>());
        // One that holds nothing may have more than its part: a group of answers cannot be split.
        let others = own > 0 && !may_have_more((own + count).saturating_sub(1), (free + 1).saturating_sub(count));
        if count.max(1) <= free && !others {
            return Ok(());
        }
        metrics::counter!("ragstone_shed_total", "worker" => *name).increment(1);
        let whose = if count <= free { "; the rest are for others" } else { "" };
        let message = format!(
            "the {name} queue is full: of its {capacity} places {own} are yours and {free} free{whose}, and this takes {count}; try again"
        );
        Err(Error::new(ErrorKind::Overloaded, message))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Caller, usize>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.held();
        if let Some(own) = held.get_mut(&self.caller) {
            *own -= self.count;
            if *own == 0 {
                held.remove(&self.caller);
            }
        }
    }
}

/// So many turns as there are processors, two at least.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// Turns at work of which only so much is done at once. Callers that are active have equal shares of them: one alone has all, and
/// of two, neither more than half, so that whoever comes next need not wait for the end of another's work. Of long work, which would be
/// waited for all the same, one alone has no more than leaves turns for who comes next ([`Turns::for_long_work`]).
#[derive(Debug, Clone)]
pub struct Turns(Arc<TurnsInner>);

#[derive(Debug)]
struct TurnsInner {
    at_once: usize,
    /// Of one caller; `None` where a turn ends soon.
    most_each: Option<usize>,
    /// What callers have equal shares of, where there are several: turns at once.
    shared: usize,
    /// What is busy for as long as turns take, where callers share that time.
    capacity: Option<usize>,
    env: Env,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    callers: HashMap<Caller, Standing>,
    waiting: Vec<Waiting>,
    running: usize,
    /// Turns given so far, and waiting ones numbered.
    given: u64,
    next_id: u64,
}

/// What is known of a caller.
#[derive(Debug)]
struct Standing {
    running: usize,
    waiting: usize,
    /// The number of the turn that it was given last.
    last_given: u64,
    /// How far it was ahead of its share of the time, in milliseconds, and since when.
    ahead_ms: f64,
    counted: Stopwatch,
    /// Since it last did anything.
    idle: Stopwatch,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    caller: Caller,
    go: oneshot::Sender<Turn>,
}

/// A turn; the next in line has it when this is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    caller: Caller,
    begun: Stopwatch,
    /// What it took, where that is not the time that passed.
    computed: Option<ComputeTime>,
}

impl Turn {
    /// It takes what is added to the result of what callers share, however long it is waited for in between and whatever ends it.
    pub(crate) fn counts(&mut self) -> ComputeTime {
        self.computed.insert(ComputeTime::default()).clone()
    }
}

/// Leaves the line where its owner stops waiting.
struct InLine<'a> {
    turns: &'a Turns,
    caller: Caller,
    id: u64,
}

impl Turns {
    /// One turn a processor, for what computes for milliseconds and is not the engine's: searches and embeddings. More at once would take the processors from each other, and only end later.
    /// Callers share their time, too: of several nobody has more than its part of it, or a third.
    pub(crate) fn at_processors(env: Env) -> Self {
        let processors = processors();
        Self::with(processors, None, (processors, Some(processors)), env)
    }

    /// Turns at questions on their way to their first token. One caller alone has as many as there are places for; of several, each has an
    /// equal part of `shared` at once, and of the engine's time, as [`Turn::counts`] tells it, no more than its part or a third.
    pub(crate) fn at_questions(places: usize, shared: usize, env: Env) -> Self {
        Self::with(places, None, (shared, Some(1)), env)
    }

    /// So many turns at once.
    pub fn new(at_once: usize, env: Env) -> Self {
        Self::with(at_once, None, (at_once, None), env)
    }

    fn with(at_once: usize, most_each: Option<usize>, (shared, capacity): (usize, Option<usize>), env: Env) -> Self {
        let (at_once, shared, state) = (at_once.max(1), shared.max(1), Mutex::default());
        Self(Arc::new(TurnsInner { at_once, most_each, shared, capacity, env, state }))
    }

    /// As [`new`](Self::new), for work that may take minutes or wait for a network: a caller has `most_each` turns at most, and more than
    /// one only while more than half are free, so that whoever comes next finds one at once.
    pub fn for_long_work(at_once: usize, most_each: usize, env: Env) -> Self {
        Self::with(at_once, Some(most_each.max(1)), (at_once, None), env)
    }

    /// How many have a turn or wait for one.
    pub(crate) fn wanted(&self) -> usize {
        let state = self.state();
        state.running + state.waiting.len()
    }

    /// How many turns were given so far.
    pub(crate) fn given(&self) -> u64 {
        self.state().given
    }

    /// Waits for a turn. Dropped before it comes, it leaves the line.
    pub async fn take(&self, caller: Caller) -> Turn {
        let (go, mut come) = oneshot::channel();
        let id = self.state().join(caller, go, &self.0.env);
        let _in_line = InLine { turns: self, caller, id };
        loop {
            self.pass_on();
            // One that is ahead looks again when it is not.
            let wait = self.state().wait(caller, &self.0).clamp(Duration::from_millis(1), ACTIVE);
            match tokio::time::timeout(wait, &mut come).await {
                Ok(Ok(turn)) => return turn,
                // Whoever is in line is only forgotten by leaving it.
                Ok(Err(_)) => unreachable!("a waiting caller left the line"),
                // Others may have ceased to be active, and nobody else looks.
                Err(_) => {}
            }
        }
    }

    /// Gives free turns to whoever is next.
    fn pass_on(&self) {
        loop {
            let mut state = self.state();
            let Some(Waiting { caller, go, .. }) = state.next(&self.0) else { return };
            drop(state);
            let begun = self.0.env.stopwatch();
            // Where its owner left just now the turn comes back, and is dropped here.
            drop(go.send(Turn { turns: self.clone(), caller, begun, computed: None }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let computed_ms = self.computed.as_ref().map(|computed| computed.end(&self.turns, self.caller));
        let ms = computed_ms.unwrap_or_else(|| self.begun.elapsed_ms());
        self.turns.state().end(self.caller, ms, &self.turns.0);
        self.turns.pass_on();
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.turns.state().leave(self.caller, self.id, &self.turns.0.env);
    }
}

impl State {
    fn join(&mut self, caller: Caller, go: oneshot::Sender<Turn>, env: &Env) -> u64 {
        self.callers.retain(|_, standing| standing.is_active());
        self.callers.entry(caller).or_insert_with(|| Standing::new(env)).waiting += 1;
        self.next_id += 1;
        self.waiting.push(Waiting { id: self.next_id, caller, go });
        self.next_id
    }

    /// Takes the next out of the line: of those below their share, the caller who has least now, then the one whose last turn is longest
    /// ago; its oldest request.
    fn next(&mut self, turns: &TurnsInner) -> Option<Waiting> {
        let TurnsInner { at_once, most_each, shared, .. } = *turns;
        if self.running >= at_once || self.waiting.is_empty() {
            return None;
        }
        self.callers.retain(|_, standing| standing.is_active());
        let callers = self.callers.len();
        let share = if callers > 1 { shared.div_ceil(callers) } else { at_once };
        let free = at_once - self.running;
        let rank = |waiting: &Waiting| {
            let standing = self.callers.get(&waiting.caller)?;
            let own = standing.running;
            let is_next = own < share
                && most_each.is_none_or(|most| leaves_turns(own, most, free, at_once))
                && standing.wait(turns, callers).is_zero();
            is_next.then_some((own, standing.last_given, waiting.id))
        };
        let ranked = self.waiting.iter().enumerate().filter_map(|(index, waiting)| Some((rank(waiting)?, index)));
        let (_, index) = ranked.min()?;
        let next = self.waiting.remove(index);
        self.running += 1;
        self.given += 1;
        if let Some(standing) = self.callers.get_mut(&next.caller) {
            standing.waiting -= 1;
            standing.running += 1;
            standing.last_given = self.given;
        }
        Some(next)
    }

    fn end(&mut self, caller: Caller, ms: f64, turns: &TurnsInner) {
        self.running -= 1;
        if let Some(standing) = self.callers.get_mut(&caller) {
            standing.running -= 1;
            standing.idle = turns.env.stopwatch();
        }
        self.spend(caller, ms, turns);
    }

    /// Counts time that a caller had, unless it is forgotten.
    fn spend(&mut self, caller: Caller, ms: f64, turns: &TurnsInner) {
        let callers = self.callers.len();
        if let Some(standing) = self.callers.get_mut(&caller) {
            standing.ahead_ms = ahead::with(standing.ahead_ms(turns, callers), ms);
            standing.counted = turns.env.stopwatch();
        }
    }

    /// How long a caller waits at least, whoever else does: until it is not ahead any more, or for others to be forgotten.
    fn wait(&self, caller: Caller, turns: &TurnsInner) -> Duration {
        let wait = self.callers.get(&caller).map(|standing| standing.wait(turns, self.callers.len()));
        wait.filter(|wait| !wait.is_zero()).unwrap_or(ACTIVE)
    }

    fn leave(&mut self, caller: Caller, id: u64, env: &Env) {
        let Some(index) = self.waiting.iter().position(|waiting| waiting.id == id) else { return };
        self.waiting.remove(index);
        if let Some(standing) = self.callers.get_mut(&caller) {
            standing.waiting -= 1;
            standing.idle = env.stopwatch();
        }
    }
}

impl Standing {
    fn new(env: &Env) -> Self {
        let (idle, counted) = (env.stopwatch(), env.stopwatch());
        Self { running: 0, waiting: 0, last_given: 0, ahead_ms: 0.0, counted, idle }
    }

    fn ahead_ms(&self, turns: &TurnsInner, callers: usize) -> f64 {
        turns
            .capacity
            .map_or(0.0, |capacity| ahead::after(self.ahead_ms, self.counted.elapsed(), ahead::rate(capacity, callers)))
    }

    /// How long it waits for its share of the time to come; whoever is alone waits for nobody.
    fn wait(&self, turns: &TurnsInner, callers: usize) -> Duration {
        match turns.capacity {
            Some(capacity) if callers > 1 => ahead::wait(self.ahead_ms(turns, callers), ahead::rate(capacity, callers)),
            _ => Duration::ZERO,
        }
    }

    fn is_active(&self) -> bool {
        self.running + self.waiting > 0 || self.idle.elapsed() < ACTIVE
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn caller(number: u8) -> Caller {
        Caller::of([127, 0, 0, number].into())
    }

    #[test]
    fn one_caller_leaves_an_eighth_of_the_places_and_gets_back_what_it_gives() {
        let places = Places::new("test", 64);
        let mut held: Vec<Place> = std::iter::from_fn(|| places.take(caller(1)).ok()).collect();
        assert_eq!((held.len(), places.taken()), (56, 56));
        let error = places.take(caller(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overloaded);
        assert!(
            error
                .to_string()
                .contains("of its 64 places 56 are yours and 8 free; the rest are for others, and this takes 1"),
            "{error}"
        );
        let other = places.take(caller(2)).unwrap();
        assert_eq!(places.check_room(caller(1)).unwrap_err().kind(), ErrorKind::Overloaded);
        held.truncate(48);
        places.check_room(caller(1)).unwrap();
        drop((held, other));
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn places_of_a_group_are_taken_all_or_not() {
        let places = Places::new("test", 20);
        let group = places.take_many(caller(1), 16).unwrap();
        assert_eq!((places.taken(), places.take_many(caller(2), 5).is_err()), (16, true));
        let rest = places.take_many(caller(2), 4).unwrap();
        assert_eq!(places.taken(), 20);
        drop((group, rest));
        assert_eq!(Places::new("test", 2).take_many(caller(1), 16).unwrap().count, 2, "all there are");
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn a_single_place_is_everybodys() {
        let places = Places::new("test", 1);
        let only = places.take(caller(1)).unwrap();
        assert_eq!(places.take(caller(2)).unwrap_err().kind(), ErrorKind::Overloaded);
        drop(only);
        places.take(caller(2)).unwrap();
        assert_eq!(Places::new("test", 0).take(caller(1)).unwrap_err().kind(), ErrorKind::Overloaded);
    }

    #[tokio::test]
    async fn one_alone_has_all_turns_and_of_two_each_has_half() {
        let turns = Turns::new(4, Env::seeded(1, 0));
        let mut alone: Vec<Turn> = Vec::new();
        for _ in 0..4 {
            alone.push(turns.take(caller(1)).now_or_never().expect("all are its"));
        }
        let mut more: Vec<_> = (0..3).map(|_| Box::pin(turns.take(caller(1)))).collect();
        let mut other: Vec<_> = (0..3).map(|_| Box::pin(turns.take(caller(2)))).collect();
        assert!(more.iter_mut().chain(&mut other).all(|turn| turn.as_mut().now_or_never().is_none()));
        alone.truncate(2);
        let first = other.remove(0).now_or_never().expect("the next is the other's");
        let second = other.remove(0).now_or_never().expect("and the one after it");
        assert!(more[0].as_mut().now_or_never().is_none());
        drop((first, second));
        let third = other.remove(0).now_or_never().expect("it has none now");
        assert!(more[0].as_mut().now_or_never().is_none(), "half is free for who was here just now");
        drop(third);
        turns.0.env.advance(ACTIVE);
        // Nobody does anything, but the other is not active any more: those who wait look themselves.
        let first = more.remove(0).await;
        alone.pop();
        let rest: Vec<_> = more.into_iter().filter_map(FutureExt::now_or_never).collect();
        assert_eq!((rest.len(), alone.len()), (2, 1), "alone again");
        drop(first);
    }

    #[tokio::test]
    async fn one_callers_long_work_leaves_turns_for_those_who_come_later() {
        let turns = Turns::for_long_work(16, 2, Env::seeded(1, 0));
        let mut held = Vec::new();
        for number in 1..=12 {
            let mut asked: Vec<_> = (0..5).map(|_| Box::pin(turns.take(caller(number)))).collect();
            held.extend(asked.iter_mut().filter_map(|turn| turn.as_mut().now_or_never()));
            let own = turns.state().callers[&caller(number)].running;
            assert_eq!(own, if number <= 4 { 2 } else { 1 }, "caller {number}");
        }
        assert_eq!(held.len(), 16);
        let mut late = Box::pin(turns.take(caller(99)));
        assert!(late.as_mut().now_or_never().is_none(), "sixteen are at work, of twelve callers");
        held.pop();
        assert!(late.now_or_never().is_some());
    }

    #[tokio::test]
    async fn of_one_turn_callers_have_it_one_after_the_other() {
        let turns = Turns::new(1, Env::seeded(1, 0));
        let mut running = Some(turns.take(caller(1)).now_or_never().expect("free"));
        let mut many: Vec<_> = (0..20).map(|_| Box::pin(turns.take(caller(1)))).collect();
        assert!(many.iter_mut().all(|turn| turn.as_mut().now_or_never().is_none()));
        let mut few = Box::pin(turns.take(caller(2)));
        assert!(few.as_mut().now_or_never().is_none());
        running.take();
        running = few.now_or_never();
        assert!(running.is_some(), "whose last turn is longest ago");
        running.take();
        assert!(many.remove(0).now_or_never().is_some());
    }

    #[tokio::test]
    async fn whoever_leaves_the_line_costs_nobody_a_turn() {
        let turns = Turns::new(1, Env::seeded(1, 0));
        let running = turns.take(caller(1)).now_or_never().expect("free");
        let mut line: Vec<_> = (1..4).map(|number| Box::pin(turns.take(caller(number)))).collect();
        assert!(line.iter_mut().all(|turn| turn.as_mut().now_or_never().is_none()));
        let last = line.pop().expect("three");
        drop(running);
        // The turn is on its way to one of them, and the other leaves, too.
        drop(line);
        assert!(last.now_or_never().is_some());
        assert_eq!(turns.state().running, 0);
        turns.take(caller(9)).now_or_never().expect("free");
    }

    /// Beside others, one that always has a turn at work waits until its share of the time has come; alone it never does.
    #[tokio::test]
    async fn who_is_ahead_of_its_share_of_the_time_waits_and_others_do_not() {
        let env = Env::seeded(1, 0);
        let turns = Turns::with(2, None, (2, Some(2)), env.clone());
        let take = async |number: u8, ms: u64| {
            let mut taking = Box::pin(turns.take(caller(number)));
            let turn = taking.as_mut().now_or_never()?;
            env.advance(Duration::from_millis(ms));
            drop(turn);
            Some(())
        };
        for _ in 0..20 {
            take(1, 200).await.expect("it is alone");
        }
        take(2, 10).await.expect("it comes later");
        assert!(take(1, 10).await.is_none(), "it had all of the time");
        take(2, 10).await.expect("it did little");
        // Nine tenths of a second, at one of the two processors that there are for two callers.
        env.advance(Duration::from_millis(700));
        take(2, 10).await.expect("it asks now and then");
        env.advance(Duration::from_millis(300));
        take(1, 10).await.expect("its share has come");
    }

    #[tokio::test]
    async fn of_questions_one_alone_has_all_and_of_several_each_has_a_part_and_pays_what_it_took() {
        let env = Env::seeded(1, 0);
        let turns = Turns::at_questions(64, 4, env.clone());
        let take = |number| turns.take(caller(number)).now_or_never();
        let alone: Vec<Turn> = std::iter::from_fn(|| take(1)).collect();
        assert_eq!(alone.len(), 64);
        drop(alone);
        // Of four that are here each has one; the first one's are done.
        let others = [2, 3, 4].map(|number| take(number).expect("each has its part"));
        let mut own = take(1).expect("and so has it");
        assert!(take(1).is_none() && take(2).is_none());
        own.counts().add_ms(900.0);
        drop(own);
        assert!(take(1).is_none(), "it took much of the engine's time, and no time passed");
        drop(others);
        take(2).expect("the others waited for loads, and took none");
        env.advance(ACTIVE / 2);
        assert!(take(1).is_none() && take(2).is_some());
        env.advance(ACTIVE * 2);
        take(1).expect("nobody else is here any more");
    }

    /// Whoever hangs up does not wait for the end of the step that the engine makes for it.
    #[tokio::test]
    async fn what_ends_after_its_turn_counts_too() {
        let turns = Turns::at_questions(64, 4, Env::seeded(1, 0));
        let take = |number| turns.take(caller(number)).now_or_never();
        let mut others = [1, 2].map(|number| take(number).expect("there is room"));
        let computed = others[0].counts();
        computed.add_ms(50.0);
        drop(others);
        drop(take(1).expect("it took little"));
        computed.add_ms(900.0);
        assert!(take(1).is_none() && take(2).is_some());
    }

    #[test]
    fn callers_are_forgotten() {
        let (mut state, env) = (State::default(), Env::seeded(1, 0));
        for number in 0..100 {
            let (go, _come) = oneshot::channel();
            let id = state.join(caller(number), go, &env);
            state.leave(caller(number), id, &env);
            env.advance(ACTIVE);
        }
        assert_eq!(state.callers.len(), 1);
    }
}
