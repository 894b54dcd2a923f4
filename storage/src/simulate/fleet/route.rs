//! Which node a question goes to. Decisions are pure: by what the router knows of the nodes.

use std::collections::HashMap;
use std::str::FromStr;

use serde::Serialize;

use super::kit::Follows;
use crate::key::KvKey;
use crate::simulate::random::Random;
use crate::{Error, Result};
use ragstone_env::Env;

/// How questions find their node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// The same collection goes to the same node, unless that has more than 1.5 times the average: `ops/deploy/haproxy.cfg`.
    Hash,
    /// Any node.
    Random,
    /// One node after the other.
    RoundRobin,
    /// Where most of the prompt is in memory and least waits, as KV routers do it that follow the nodes' events.
    KvAware,
}

impl Routing {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hash, Self::Random, Self::RoundRobin, Self::KvAware];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::KvAware => "kv-aware",
        }
    }
}

impl FromStr for Routing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|routing| routing.name() == text);
        found.ok_or_else(|| Error::invalid_input(format!("routing '{text}' is unknown; use one of {names}")))
    }
}

/// `hash-balance-factor 150`.
const BALANCE_PERCENT: usize = 150;
/// Places of a node on the ring, as HAProxy has them for a weight of 1.
const PLACES: u64 = 16;

/// What is known of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct NodeView {
    /// Whether it takes questions.
    pub is_ready: bool,
    /// Questions that it has and has not answered.
    pub questions: usize,
    /// Tokens of them that are still to be computed, as they were when each was sent.
    pub waiting_tokens: u64,
    /// Tokens of all prompts that it has.
    pub active_tokens: u64,
}

/// The nodes' places on a ring of hashes.
#[derive(Debug, Clone)]
pub(super) struct Ring(Vec<(u64, usize)>);

impl Ring {
    pub fn new(nodes: usize) -> Self {
        let place = |node: usize, at: u64| (mixed(node as u64 * PLACES + at), node);
        let mut places: Vec<_> = (0..nodes).flat_map(|node| (0..PLACES).map(move |at| place(node, at))).collect();
        places.sort_unstable();
        Self(places)
    }

    /// The nodes from a hash on, each as often as it has places.
    fn from(&self, group: u64) -> impl Iterator<Item = usize> {
        let hash = mixed(group ^ 0x005b_d1e9_955b_d1e9);
        let begin = self.0.partition_point(|(place, _)| *place < hash);
        self.0[begin..].iter().chain(&self.0[..begin]).map(|(_, node)| *node)
    }
}

fn mixed(value: u64) -> u64 {
    Env::seeded(value, 0).random_u64()
}

/// Questions that a node may have, of a group's `total` (the new one among them) over so many nodes: HAProxy's slots.
fn slots(at: usize, total: usize, nodes: usize) -> usize {
    let all = (total * BALANCE_PERCENT).div_ceil(100);
    let (each, rest) = (all / nodes, all % nodes);
    (each + (at + 1) * rest / nodes - at * rest / nodes).max(1)
}

/// Hashing with bounded load (Mirrokni, Thorup, Zadimoghaddam, 2016) as HAProxy does it: the first node behind the hash that has room.
pub(super) fn by_hash(ring: &Ring, nodes: &[NodeView], group: u64, except: Option<usize>) -> Option<usize> {
    let (mut ready, mut total) = (0, 1);
    for node in nodes.iter().filter(|node| node.is_ready) {
        ready += 1;
        total += node.questions;
    }
    let rank = |at: usize| nodes[..at].iter().filter(|node| node.is_ready).count();
    let is_eligible = |at: &usize| {
        nodes[*at].is_ready && Some(*at) != except && nodes[*at].questions < slots(rank(*at), total, ready)
    };
    let least = || {
        let all = (0..nodes.len()).filter(|at| nodes[*at].is_ready && (ready == 1 || Some(*at) != except));
        all.min_by_key(|at| nodes[*at].questions)
    };
    ring.from(group).find(is_eligible).or_else(least)
}

/// Any ready node.
pub(super) fn at_random(random: &mut Random, nodes: &[NodeView], except: Option<usize>) -> Option<usize> {
    let ready: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].is_ready).collect();
    let other: Vec<usize> = ready.iter().copied().filter(|at| Some(*at) != except).collect();
    let from = if other.is_empty() { ready } else { other };
    (!from.is_empty()).then(|| from[random.below(from.len())])
}

/// The next ready node behind `last`.
pub(super) fn in_turn(last: usize, nodes: &[NodeView]) -> Option<usize> {
    (1..=nodes.len()).map(|step| (last + step) % nodes.len()).find(|at| nodes[*at].is_ready)
}

/// The node with the least to compute and the fewest tokens that run: what waits there, what the prompt adds, and the prompts that it has.
/// `matched` says how many tokens of the prompt a node has in memory.
pub(super) fn by_kv(
    nodes: &[NodeView],
    prompt_tokens: u64,
    matched: &dyn Fn(usize) -> u64,
    except: Option<usize>,
) -> Option<usize> {
    let cost = |at: usize| {
        let node = nodes[at];
        node.waiting_tokens + prompt_tokens - matched(at).min(prompt_tokens) + node.active_tokens + prompt_tokens
    };
    let ready = (0..nodes.len()).filter(|at| nodes[*at].is_ready);
    ready.min_by_key(|at| (Some(*at) == except, cost(*at), nodes[*at].questions, *at))
}

/// Which nodes have which entries in host memory, as they say: a bit for each node.
#[derive(Debug, Default)]
pub(super) struct KvIndex {
    has: HashMap<KvKey, Box<[u64]>>,
    words: usize,
}

impl Follows for KvIndex {
    fn of(nodes: usize) -> Self {
        Self { has: HashMap::new(), words: nodes.div_ceil(64) }
    }

    fn note(&mut self, node: usize, key: KvKey, is_there: bool) {
        let words = self.words;
        let bits = self.has.entry(key).or_insert_with(|| vec![0; words].into());
        let bit = 1 << (node % 64);
        if is_there {
            bits[node / 64] |= bit;
        } else {
            bits[node / 64] &= !bit;
            if bits.iter().all(|word| *word == 0) {
                self.has.remove(&key);
            }
        }
    }

    fn forget(&mut self, node: usize) {
        self.has.retain(|_, bits| {
            bits[node / 64] &= !(1 << (node % 64));
            bits.iter().any(|word| *word != 0)
        });
    }

    fn matched(&self, path: &[(KvKey, u32)], nodes: usize) -> Vec<u64> {
        let mut matched = vec![0; nodes];
        let mut alive: Option<Vec<u64>> = None;
        for (key, tokens) in path {
            let Some(bits) = self.has.get(key) else { break };
            let left = match &alive {
                None => bits.to_vec(),
                Some(alive) => alive.iter().zip(bits.iter()).map(|(one, other)| one & other).collect(),
            };
            for (at, word) in left.iter().enumerate() {
                let mut word = *word;
                while word != 0 {
                    matched[at * 64 + word.trailing_zeros() as usize] += u64::from(*tokens);
                    word &= word - 1;
                }
            }
            alive = Some(left);
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(questions: &[usize]) -> Vec<NodeView> {
        questions
            .iter()
            .map(|questions| NodeView { is_ready: true, questions: *questions, ..NodeView::default() })
            .collect()
    }

    #[test]
    fn a_group_stays_where_it_is_until_that_node_is_full() {
        let ring = Ring::new(4);
        let first = by_hash(&ring, &ready(&[0; 4]), 7, None).unwrap();
        // 1.5 times the average of 2: three fit.
        let mut questions = [2; 4];
        assert_eq!(by_hash(&ring, &ready(&questions), 7, None), Some(first));
        questions[first] = 5;
        let second = by_hash(&ring, &ready(&questions), 7, None).unwrap();
        assert_ne!(second, first);
        // A node that is down takes nothing; the others keep their groups.
        let mut nodes = ready(&[0; 4]);
        nodes[first].is_ready = false;
        for group in 0..200 {
            let before = by_hash(&ring, &ready(&[0; 4]), group, None).unwrap();
            let now = by_hash(&ring, &nodes, group, None).unwrap();
            assert!(now != first && (before == first || before == now));
        }
        assert_eq!(by_hash(&ring, &ready(&[0; 4]), 7, Some(first)), Some(second));
        nodes.iter_mut().for_each(|node| node.is_ready = false);
        assert_eq!(by_hash(&ring, &nodes, 7, None), None);
    }

    #[test]
    fn the_router_of_kv_weighs_what_is_there_against_what_waits() {
        let mut nodes = ready(&[0; 3]);
        let matched = |at: usize| if at == 2 { 800 } else { 0 };
        assert_eq!(by_kv(&nodes, 1000, &matched, None), Some(2));
        nodes[2].waiting_tokens = 900;
        assert_eq!(by_kv(&nodes, 1000, &matched, None), Some(0));
        nodes[0].active_tokens = 1;
        assert_eq!(by_kv(&nodes, 1000, &matched, None), Some(1));
        assert_eq!(by_kv(&nodes, 1000, &matched, Some(1)), Some(0));
    }

    #[test]
    fn names_are_read_back() {
        for routing in Routing::ALL {
            assert_eq!(routing.name().parse::<Routing>().unwrap(), routing);
        }
        assert!("x".parse::<Routing>().unwrap_err().to_string().contains("kv-aware"));
    }

    proptest! {
        /// No node gets more than its slots while another has room, and the slots are enough for everybody.
        #[test]
        fn loads_are_bounded(questions in prop::collection::vec(0usize..30, 1..12), group: u64) {
            let nodes = ready(&questions);
            let total = questions.iter().sum::<usize>() + 1;
            let chosen = by_hash(&Ring::new(nodes.len()), &nodes, group, None).unwrap();
            prop_assert!(questions[chosen] < slots(chosen, total, nodes.len()));
            let all: usize = (0..nodes.len()).map(|at| slots(at, total, nodes.len())).sum();
            prop_assert!(all >= total);
        }

        /// The index says what asking each node would say.
        #[test]
        fn the_index_is_what_nodes_have(
            events in prop::collection::vec((0usize..70, 0u8..6, any::<bool>()), 0..200),
            path in prop::collection::vec(0u8..6, 0..6),
            lost in 0usize..70,
        ) {
            let (mut index, mut truth) = (KvIndex::of(70), vec![std::collections::HashSet::new(); 70]);
            for (node, key, is_there) in events {
                index.note(node, KvKey([key; 32]), is_there);
                if is_there { truth[node].insert(key); } else { truth[node].remove(&key); }
            }
            index.forget(lost);
            truth[lost].clear();
            let keys: Vec<(KvKey, u32)> = path.iter().map(|key| (KvKey([*key; 32]), 10 + u32::from(*key))).collect();
            let matched = index.matched(&keys, 70);
            for (node, has) in truth.iter().enumerate() {
                let own = path.iter().take_while(|key| has.contains(key)).map(|key| 10 + u64::from(*key)).sum::<u64>();
                prop_assert_eq!(matched[node], own);
            }
        }
    }
}
