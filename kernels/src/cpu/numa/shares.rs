//! What is cut into a share for each node, and who does the work over it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::{Team, home, in_use, system};
use crate::aligned::{Aligned, Number};
use crate::crew;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Mappings that shares of weights may take. Each share of a matrix is one to the system, which lets a process have some 65,000; what comes later is
/// spread over the nodes. Counted for the life of the process, as models are loaded once. KV pools are few, and come and go.
const MOST_MAPPINGS: usize = 1 << 14;

static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Equal parts (panels of weights, heads of a layer's KV), in order, and which node has which; all together where there is one node, or the
/// whole is small.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    /// Node n has parts `cuts[n]..cuts[n + 1]`.
    cuts: Vec<usize>,
    /// Those that will work over it.
    team: Option<Arc<Team>>,
    /// It stays, as weights do.
    is_lasting: bool,
}

impl Shares {
    /// As many parts of each node as it has threads; `bytes` are those of the whole.
    pub(crate) fn of(parts: usize, bytes: usize) -> Self {
        let Some(team) = in_use() else { return Self { cuts: vec![0, parts], team: None, is_lasting: true } };
        let least = team.groups.len() * team.least_share;
        let cuts = if bytes >= least { team.cuts(parts) } else { vec![0, parts] };
        Self { cuts, team: Some(team), is_lasting: true }
    }

    /// [`Shares::of`] of the heads of a pool: they are few and large, and not cut where a node would have an eighth more or less than is its.
    pub(crate) fn of_heads(parts: usize, bytes: usize) -> Self {
        let shares = Self { is_lasting: false, ..Self::of(parts, bytes) };
        let Some(team) = &shares.team else { return shares };
        let threads: usize = team.threads().sum();
        let is_even = shares.ranges().zip(team.threads()).all(|(range, own)| {
            let (has, wants) = (range.len() * threads, parts * own);
            8 * has.abs_diff(wants) <= wants
        });
        if is_even { shares } else { Self { cuts: vec![0, parts], ..shares } }
    }

    /// Whether nodes have shares of their own.
    fn is_split(&self) -> bool {
        self.cuts.len() > 2
    }

    fn parts(&self) -> usize {
        self.cuts.last().copied().unwrap_or_default()
    }

    /// The parts of each node.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.cuts.windows(2).map(|cuts| cuts[0]..cuts[1])
    }

    /// The parts of the node that has this one.
    pub(crate) fn range_of(&self, part: usize) -> Range<usize> {
        self.ranges().find(|range| range.contains(&part)).unwrap_or(0..self.parts())
    }

    /// `each` zeros for every part, in the memory of its node.
    pub(crate) fn zeros<T: Number>(&self, each: usize) -> Aligned<T> {
        let mut values = Aligned::zeros(self.parts() * each);
        if let Some(team) = &self.team
            && let Some(memory) = values.mapping()
        {
            let cuts: Vec<usize> = self.cuts.iter().map(|cut| cut * each * size_of::<T>()).collect();
            team.place(memory, &cuts, self.is_lasting);
        }
        values
    }

    /// Writes every part, by threads of its node as far as these have time: where memory cannot be placed it lies with who writes it first.
    pub(crate) fn fill<P: Send>(&self, parts: impl Iterator<Item = P>, fill: impl Fn(usize, P) + Sync) {
        let parts: Vec<P> = parts.collect();
        debug_assert_eq!(parts.len(), self.parts());
        if !self.is_split() {
            return parts.into_par_iter().enumerate().for_each(|(index, part)| fill(index, part));
        }
        let parts: Vec<Mutex<Option<P>>> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
        for_each(&self.cuts, |_, index| {
            let part = parts[index].lock().unwrap_or_else(PoisonError::into_inner).take();
            part.into_iter().for_each(|part| fill(index, part));
        });
    }

    /// Works over all parts `blocks` times, in about `groups` groups of parts each time: `run` is given the block, and parts of one node.
    pub(crate) fn run_groups(&self, blocks: usize, groups: usize, run: impl Fn(usize, Range<usize>) + Sync) {
        let group = |parts: Range<usize>, index: usize, groups: usize| {
            let at = |index: usize| parts.start + index * parts.len() / groups;
            at(index)..at(index + 1)
        };
        match blocks * groups {
            0 => {}
            1 => run(0, 0..self.parts()),
            tasks if !self.is_split() => {
                crew::for_each(tasks, |index| run(index / groups, group(0..self.parts(), index % groups, groups)));
            }
            _ => {
                let of_node = |range: Range<usize>| (groups * range.len()).div_ceil(self.parts().max(1));
                let own: Vec<(Range<usize>, usize)> =
                    self.ranges().map(|range| (range.clone(), of_node(range))).collect();
                let tasks = sums(own.iter().map(|(_, groups)| blocks * groups));
                for_each(&tasks, |node, task| {
                    let ((range, groups), index) = (&own[node], task - tasks[node]);
                    run(index / groups, group(range.clone(), index % groups, *groups));
                });
            }
        }
    }

    /// Works over `tasks`, `each` for every part, in the order of parts.
    pub(crate) fn run_tasks<T: Copy + Send + Sync>(&self, tasks: Vec<T>, each: usize, run: impl Fn(T) + Send + Sync) {
        debug_assert_eq!(tasks.len(), self.parts() * each);
        if !self.is_split() {
            return crew::for_each(tasks.len(), |index| run(tasks[index]));
        }
        let cuts: Vec<usize> = self.cuts.iter().map(|cut| cut * each).collect();
        for_each(&cuts, |_, index| run(tasks[index]));
    }
}

impl Team {
    /// Cuts between parts, in proportion to the nodes' threads.
    fn cuts(&self, parts: usize) -> Vec<usize> {
        let threads = sums(self.threads());
        let all = threads.last().copied().unwrap_or_default();
        threads.iter().map(|before| (2 * parts * before + all) / (2 * all)).collect()
    }

    /// Gives each node its share of memory that nobody has written to yet.
    fn place(&self, memory: &mut [u8], cuts: &[usize], is_lasting: bool) {
        let nodes: Vec<usize> = self.groups.iter().map(|group| group.node.id).collect();
        // What the system refuses costs speed and nothing else; it is asked once and told of by `refusal`.
        let is_full = || is_lasting && MAPPINGS.fetch_add(nodes.len(), Ordering::Relaxed) > MOST_MAPPINGS;
        if cuts.len() <= 2 || is_full() {
            let _ = system::spread(memory, &nodes);
            return;
        }
        // A huge page that two nodes share would be small pages, which costs more than a part of it on the wrong side.
        let borders = borders(memory.as_ptr() as usize, cuts, HUGE_PAGE);
        for (node, border) in nodes.into_iter().zip(borders.windows(2)) {
            let _ = system::bind(&mut memory[border[0]..border[1]], node);
        }
    }
}

/// Where shares of memory at `start` begin and end, in bytes from there: at the page's border that is nearest to the cut.
fn borders(start: usize, cuts: &[usize], page: usize) -> Vec<usize> {
    let (first, last) = (cuts[0], cuts[cuts.len() - 1]);
    let nearest = |cut: &usize| ((start + cut + page / 2) / page * page).saturating_sub(start).clamp(first, last);
    let inner = cuts[1..cuts.len() - 1].iter().map(nearest);
    [first].into_iter().chain(inner).chain([last]).collect()
}

/// The sum of those before each, and of all.
fn sums(numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut sums = vec![0];
    numbers.for_each(|number| sums.push(sums.last().copied().unwrap_or_default() + number));
    sums
}

/// A number on a cache line of its own (two, as processors fetch them in pairs): each node's threads count theirs apart.
#[repr(align(128))]
struct Next(AtomicUsize);

/// Runs every task once, node n's `cuts[n]..cuts[n + 1]`. A thread takes its own node's first, then what others have left. No thread is waited
/// for: as many helpers as there are threads are offered to the pool, and one that begins late finds nothing left.
fn for_each(cuts: &[usize], run: impl Fn(usize, usize) + Sync) {
    let nodes = cuts.len() - 1;
    let next: Vec<Next> = cuts[..nodes].iter().map(|first| Next(AtomicUsize::new(*first))).collect();
    let helpers = rayon::current_num_threads().min(cuts[nodes] - cuts[0]);
    crew::for_each(helpers, |helper| {
        // A thread of no node computes wherever there is work.
        let own = home().unwrap_or(helper) % nodes;
        for node in (own..nodes).chain(0..own) {
            loop {
                // The order of memory is that of the parallel loop, which ends before anybody reads what tasks wrote.
                let task = next[node].0.fetch_add(1, Ordering::Relaxed);
                if task >= cuts[node + 1] {
                    break;
                }
                run(node, task);
            }
        }
    });
}

#[cfg(test)]
mod tests;
