//! The simulation's state, and its loop over events.

use std::collections::HashMap;

use super::corpus::{Tables, Writer};
use super::engine::Steps;
use super::kit::{Calendar, Computes, Follows, Kit, Shares};
use super::load::Asked;
use super::outcome::{Answered, Fate, Outcome, Window};
use super::route::{NodeView, Ring};
use super::{Fleet, Routing};
use crate::Result;
use crate::cost::ReadMeter;
use crate::key::KvKey;
use crate::simulate::Workload;
use crate::simulate::random::Random;
use crate::simulate::service::{Begun, Fresh, Objects, Service, Tiers};
use ragstone_env::Env;

/// Events between two reports of progress.
const REPORT_EVERY: u64 = 1 << 14;
/// Intervals without a listing after which a node answers nothing: `MOST_MISSED` of `storage/corpus/src/bucket/gone.rs`.
pub(super) const MOST_MISSED: f64 = 3.0;
/// Failures are drawn for so long behind the last question, as the last answers take their time.
const BEHIND_US: f64 = 600e6;

/// What happens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Ask(usize),
    /// Its loads have come as far as it waits for them. Of that attempt.
    Ready(usize, u32),
    /// Something ends at a node's engine, if nothing came meanwhile.
    Engine(usize, u64),
    Link(u64),
    /// A node lists the log; of that life of the node.
    Look(usize, u32),
    Looked(usize, u32, f64),
    Change(usize),
    Commit(Writer, u32),
    Put(Writer, u32),
    /// The log has a change.
    Tell(usize),
    Optimise(u64),
    Optimised(u64, u64),
    Fail(usize),
    Back(usize),
    Outage(bool),
}

/// What is transferred.
#[derive(Debug, Clone, Copy)]
pub(super) enum Transfer {
    /// For a question, in that attempt.
    Load(usize, u32),
    /// An entry of a question's passages.
    Upload(KvKey, u64, usize),
}

/// What is computed beside, of a question's passages.
pub(super) type Beside = (Fresh, usize);

/// A question on its way.
pub(super) struct Asking {
    pub fate: Option<Fate>,
    pub attempt: u32,
    pub node: usize,
    pub begun: Option<Begun>,
    /// What was still to be computed when it was sent, as the router knows it.
    pub waiting_tokens: u64,
    pub prompt_tokens: u64,
    /// Its passages as its node saw them.
    pub labels: Vec<(u64, u64)>,
    pub is_answering: bool,
    /// When its load began, and its name, bytes and what it was predicted to take.
    pub load: Option<Loading>,
    pub answered: Answered,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Loading {
    pub id: u64,
    pub began_us: f64,
    pub bytes: u64,
    pub predicted_us: f64,
    /// What the request takes beside its bytes, and what the prompt was predicted to wait for.
    pub latency_us: f64,
    pub wait_us: f64,
}

pub(super) struct Node<K: Kit> {
    pub service: Service,
    pub engine: K::Engine<usize, Beside>,
    pub stamp: u64,
    pub is_up: bool,
    /// Counts its starts: what was noted of an earlier one is void.
    pub life: u32,
    pub reads: ReadMeter,
    /// It knows what the log had at that time, and when it last had applied that.
    pub view_us: f64,
    pub looked_us: f64,
    /// How far in the log it is.
    pub cursor: usize,
    pub questions: Vec<usize>,
    /// Entries read from the bucket, listings.
    pub gets: u64,
}

pub(super) struct Run<'a, K: Kit> {
    pub fleet: &'a Fleet,
    pub asked: &'a Asked,
    pub now_us: f64,
    pub calendar: K::Calendar<Event>,
    pub link: K::Link<Transfer>,
    pub link_stamp: u64,
    pub index: Option<K::Index>,
    pub ring: Ring,
    pub nodes: Vec<Node<K>>,
    pub views: Vec<NodeView>,
    pub last: usize,
    pub random: Random,
    pub asking: Vec<Asking>,
    /// Questions and changes that have not come to an end.
    pub open: usize,
    pub workload: Workload,
    /// Nodes of the workload: by what they say, and what stands behind each.
    pub by_label: HashMap<u64, Vec<u32>>,
    pub children: Vec<Vec<u32>>,
    pub objects: Objects,
    pub is_down: bool,
    pub tables: Tables,
    /// Which changes wait at which writer is the tables' to know; which node has each life.
    pub window: Window,
    pub lists: u64,
    pub puts: u64,
    pub retried: u64,
    pub stale: u64,
    pub most_stale_us: f64,
    pub dropped_beside: u64,
}

impl<'a, K: Kit> Run<'a, K> {
    pub fn new(fleet: &'a Fleet, asked: &'a Asked) -> Result<Self> {
        fleet.check()?;
        let (prompt_tokens, _) = asked.mean_tokens();
        let steps = Steps::new(&fleet.costs, prompt_tokens, fleet.most_answers);
        let objects = Objects::default();
        let joins: Vec<usize> = fleet.faults.joins.iter().map(|(node, _)| *node).collect();
        let node = |at: usize| {
            let mut tiers = Tiers::new(fleet.tiers, fleet.policy);
            if fleet.tiers.has_bucket {
                tiers = tiers.sharing(&objects);
            }
            if fleet.routing == Routing::KvAware {
                tiers.events = Some(Vec::new());
            }
            Node {
                service: Service::new(&fleet.costs, &fleet.node_options(), tiers),
                engine: K::Engine::of(&steps),
                stamp: 0,
                is_up: !joins.contains(&at),
                life: 0,
                reads: ReadMeter::default(),
                view_us: 0.0,
                looked_us: 0.0,
                cursor: 0,
                questions: Vec::new(),
                gets: 0,
            }
        };
        let workload = if asked.of_text { Workload::of_text() } else { Workload::new(asked.has_system_prompt) };
        let object = fleet.costs.reads[2].0;
        let mut run = Self {
            fleet,
            asked,
            now_us: 0.0,
            calendar: K::Calendar::empty(),
            link: K::Link::of(fleet.bucket.bytes_per_s / 1e6, 1.0 / object.us_per_byte.max(1e-9)),
            link_stamp: 0,
            index: (fleet.routing == Routing::KvAware).then(|| K::Index::of(fleet.nodes)),
            ring: Ring::new(fleet.nodes),
            nodes: (0..fleet.nodes).map(node).collect(),
            views: vec![NodeView::default(); fleet.nodes],
            last: fleet.nodes - 1,
            random: Random(Env::seeded(fleet.seed, 0)),
            asking: asked.questions.iter().map(|_| Asking::new()).collect(),
            open: asked.questions.len() + asked.changes.len(),
            workload,
            by_label: HashMap::new(),
            children: Vec::new(),
            objects,
            is_down: false,
            tables: Tables::default(),
            window: Window::default(),
            lists: 0,
            puts: 0,
            retried: 0,
            stale: 0,
            most_stale_us: 0.0,
            dropped_beside: 0,
        };
        run.note_all();
        Ok(run)
    }

    /// What is known from the start.
    fn note_all(&mut self) {
        for (at, question) in self.asked.questions.iter().enumerate() {
            self.calendar.note(question.at_us, Event::Ask(at));
        }
        for (at, change) in self.asked.changes.iter().enumerate() {
            self.calendar.note(change.at_us, Event::Change(at));
        }
        let interval_us = self.interval_us();
        for at in (0..self.nodes.len()).filter(|at| self.nodes[*at].is_up) {
            // Nodes began at any moment before.
            let since = self.random.unit() * interval_us;
            self.calendar.note(since, Event::Look(at, 0));
        }
        let faults = &self.fleet.faults;
        for (node, at_s) in &faults.fails {
            self.calendar.note(at_s * 1e6, Event::Fail(*node));
        }
        for (node, at_s) in &faults.joins {
            self.calendar.note(at_s * 1e6, Event::Back(*node));
        }
        for (from_s, to_s) in &faults.outages {
            self.calendar.note(from_s * 1e6, Event::Outage(true));
            self.calendar.note(to_s * 1e6, Event::Outage(false));
        }
        if faults.failures_a_day > 0.0 {
            let until_us = self.asked.seconds() * 1e6 + BEHIND_US;
            for node in 0..self.nodes.len() {
                let mut at_us = 0.0;
                loop {
                    at_us += self.random.interval() * 86_400e6 / faults.failures_a_day;
                    if at_us > until_us {
                        break;
                    }
                    self.calendar.note(at_us, Event::Fail(node));
                    at_us += faults.restart_s * 1e6;
                }
            }
        }
    }

    pub fn interval_us(&self) -> f64 {
        self.fleet.corpus.interval_ms * 1e3
    }

    /// Until every question and every change has come to its end.
    pub fn until_all_ended(mut self, progress: &dyn Fn(usize)) -> Result<Self> {
        let mut events = 0_u64;
        while self.open > 0 {
            let Some((at_us, event)) = self.calendar.next() else { break };
            self.now_us = at_us.max(self.now_us);
            self.happens(event)?;
            events += 1;
            if events.is_multiple_of(REPORT_EVERY) {
                progress(self.asked.questions.len().saturating_sub(self.open));
            }
        }
        Ok(self)
    }

    pub fn outcome(mut self) -> Outcome {
        let now_us = self.now_us;
        self.window.close(now_us, &mut self.nodes, &mut self.link);
        Outcome::of(&self)
    }

    fn happens(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Ask(question) => self.ask(question)?,
            Event::Ready(question, attempt) => self.ready(question, attempt),
            Event::Engine(node, stamp) => self.computed(node, stamp),
            Event::Link(stamp) => self.transferred(stamp),
            Event::Look(node, life) => self.look(node, life),
            Event::Looked(node, life, began_us) => self.looked(node, life, began_us),
            Event::Change(change) => self.change(change),
            Event::Commit(writer, life) => self.commit(writer, life),
            Event::Put(writer, life) => self.put(writer, life),
            Event::Tell(change) => self.tell(change),
            Event::Optimise(group) => self.optimise(group),
            Event::Optimised(group, began_at) => self.optimised(group, began_at),
            Event::Fail(node) => self.fail(node)?,
            Event::Back(node) => self.back(node),
            Event::Outage(is_down) => {
                self.is_down = is_down;
                self.objects.set_down(is_down);
            }
        }
        Ok(())
    }

    /// A question whose report counts begins, or the last one: the time between is what rates are told of.
    pub fn note_window(&mut self, question: usize) {
        let now_us = self.now_us;
        if question == self.asked.warm {
            self.window.open(now_us, &mut self.nodes, &mut self.link);
        }
        if question + 1 == self.asked.questions.len() {
            self.window.close(now_us, &mut self.nodes, &mut self.link);
        }
    }

    /// The next end at a node's engine is noted; what was noted before is void.
    pub fn note_engine(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        at.stamp += 1;
        if let Some(next_us) = at.engine.next_us() {
            self.calendar.note(next_us, Event::Engine(node, at.stamp));
        }
    }

    pub fn note_link(&mut self) {
        self.link_stamp += 1;
        if let Some(next_us) = self.link.next_us() {
            self.calendar.note(next_us, Event::Link(self.link_stamp));
        }
    }

    /// The router hears what came into host memory and left it.
    pub fn pass_events(&mut self, node: usize) {
        let Some(index) = &mut self.index else { return };
        if let Some(events) = &mut self.nodes[node].service.tiers.events {
            for (key, is_there) in events.drain(..) {
                index.note(node, key, is_there);
            }
        }
    }
}

impl Asking {
    fn new() -> Self {
        Self {
            fate: None,
            attempt: 0,
            node: 0,
            begun: None,
            waiting_tokens: 0,
            prompt_tokens: 0,
            labels: Vec::new(),
            is_answering: false,
            load: None,
            answered: Answered::default(),
        }
    }
}
