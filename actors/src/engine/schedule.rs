//! The scheduler picks the rows of the next step. It is a pure function of the sequences' states and of the free room.
//! Iteration-level scheduling is from "Orca" (OSDI 2022) and "Efficient Memory Management for Large Language Model Serving with
//! PagedAttention" (section 4.5); the order of waiting prompts is RAGCache's (section 5.2).
//!
//! Rows are given in this order:
//!
//! 1. Decoding. Every decoding sequence advances by a token. If a caller has more answers than the others can wait for, its
//!    longest-waiting ones advance. If a sequence needs a block and none is free, the newest sequence is swapped out, whole.
//! 2. Drafts. A decoding sequence has its draft verified with rows and blocks that nobody else can use.
//! 3. Swapped sequences come back before any new prompt begins. No step swaps both in and out.
//! 4. Prefills share the remaining rows. The least-served caller comes first, then its least-served tenant, then the prompt with
//!    the most cached tokens for each token to compute. Later prompts of one tenant overtake a waiting one at most
//!    [`window`](Limits::window) times. After that, if it still finds no room, its caller begins nothing else, nor do callers with
//!    more answers than that one has.
//! 5. Speculative prompts use rows in steps where no answer needs them, and free blocks. An answer that needs such a block takes
//!    it at once (RAGCache, section 5.3).
//! 6. Background work uses rows that nobody else wants, and a small share of its own. If an answer needs its blocks, background
//!    work ends, the newest first, and is planned again.

mod background;
mod drafts;
mod speculation;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use self::speculation::beside;
use super::shares::{Owner, Served};
use crate::admission::turns::may_have_more;

/// While answers decode, background work has at most one in so many of a step's rows.
const BACKGROUND_PART: usize = 4;

/// A sequence as the scheduler sees it.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// Greater came later.
    pub id: u64,
    /// Whose it is.
    pub owner: Owner,
    /// Whether nobody waits for it.
    pub background: bool,
    /// Whether its request may turn out not to have this prompt.
    pub speculative: bool,
    /// Answers that it has or will have, so many rows of every pass; one where only KV is wanted.
    pub tails: usize,
    /// Prompt tokens whose KV was there or is computed.
    pub cached: usize,
    /// Prompt tokens that are to be computed.
    pub to_compute: usize,
    /// Rows of a new chunk of it at most.
    pub most_rows: usize,
    /// How often later ones went before it.
    pub overtaken: u32,
    /// Passes since it advanced last, of one that decodes.
    pub left_out: u32,
    /// Blocks that swapping it out frees.
    pub blocks: usize,
    /// Blocks that its prompt needs beside those.
    pub promised: usize,
    pub phase: Phase,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has no blocks yet; its prompt needs so many.
    Waiting { prompt_blocks: usize },
    /// A chunk of it can go on: one of exactly `chunk` rows, or a new one. It needs at most so many blocks more.
    Prefilling { chunk: Option<usize>, more_blocks: usize },
    /// It waits for a load.
    Loading,
    /// So many tails advance by a token, and need so many blocks more. Drafts of so many tokens could be verified with them, which
    /// need so many more blocks.
    Decoding { rows: usize, more_blocks: usize, drafts: usize, draft_blocks: usize },
    /// Its answers are in host memory, and need so many blocks to come back; background work ends instead.
    Swapped { blocks: usize },
}

/// What there is room for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Rows of prefills in a step.
    pub rows: usize,
    /// Of those, rows that background work has though others want them.
    pub background_rows: usize,
    /// Rows of a step that one caller's answers have.
    pub decoding_rows: usize,
    /// Answers that have blocks at once; background work has the places that they leave.
    pub sequences: usize,
    /// Blocks that are free or can be.
    pub free_blocks: usize,
    /// Blocks that are kept for sequences that run.
    pub watermark_blocks: usize,
    /// How often a prompt is overtaken at most.
    pub window: u32,
}

/// What a step runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Sequences that advance; prefills have so many rows at most, and waiting ones begin. One that decodes has all its tails, and its
    /// drafts or none of them.
    pub rows: Vec<(u64, usize)>,
    /// Sequences that leave the device, the last first.
    pub swap_out: Vec<u64>,
    /// Sequences that come back, the first first.
    pub swap_in: Vec<u64>,
    /// Speculative and background ones that end, of each the last first: others need their blocks.
    pub let_go: Vec<u64>,
}

/// What a step still has for prefills.
struct Room<'a> {
    /// Answers that may begin.
    places: usize,
    /// As `places`, for background work, which takes none from answers.
    background_places: usize,
    /// Answers that run or begin in this step, by caller; background work has none.
    tails: Vec<usize>,
    /// A caller whose prompt was overtaken often enough and finds no room, and the answers that it has: it and those that have
    /// more begin nothing.
    closed: Option<(usize, usize)>,
    /// As `closed`, of background work among its own.
    is_background_closed: bool,
    limits: Limits,
    /// A chunk under way that is longer has to wait.
    longest: usize,
    served: &'a mut Served,
}

impl Room<'_> {
    /// Whether there is a place for it among the answers that run; one caller leaves some to others.
    fn may_begin(&self, view: &View) -> bool {
        let own = self.tails[view.owner.caller];
        if self.closed.is_some_and(|(caller, tails)| view.background || view.owner.caller == caller || own > tails) {
            return false;
        }
        if view.background {
            return !self.is_background_closed && view.tails <= self.background_places;
        }
        // A group that is larger than what there is runs where no other answer does.
        let fits = view.tails <= self.places || (own == 0 && self.places == self.limits.sequences);
        fits && may_have_more(own, self.places)
    }

    fn begin(&mut self, view: &View) {
        self.background_places = self.background_places.saturating_sub(view.tails);
        if !view.background {
            self.places = self.places.saturating_sub(view.tails);
            self.tails[view.owner.caller] += view.tails;
        }
    }

    /// One that was overtaken often enough keeps others from beginning until there is room for it; background work no answers.
    fn close(&mut self, view: &View) {
        if view.overtaken < self.limits.window {
            return;
        }
        if view.background {
            self.is_background_closed = true;
        } else {
            self.closed.get_or_insert((view.owner.caller, self.tails[view.owner.caller]));
        }
    }
}

/// Decides. `served` is what callers and tenants were given so far, in rows.
pub(super) fn schedule(views: &[View], served: &Served, limits: Limits) -> Step {
    if !views.iter().any(|view| view.speculative) {
        return Planning::new(views, limits.free_blocks).run(served, limits).step;
    }
    let (mut speculative, others): (Vec<View>, Vec<View>) = views.iter().cloned().partition(|view| view.speculative);
    speculative.sort_unstable_by_key(|view| view.id);
    let has_use = |view: &View| !view.background && view.phase != Phase::Loading;
    let may_speculate = !others.iter().any(has_use);
    if may_speculate && speculative.iter().any(|view| view.phase != Phase::Loading) {
        let step = beside(&others, speculative.clone(), served, limits, true);
        if step.rows.iter().any(|(id, _)| speculative.iter().any(|view| view.id == *id)) {
            return step;
        }
    }
    beside(&others, speculative, served, limits, false)
}

struct Planning<'a> {
    views: &'a [View],
    free: usize,
    out: BTreeSet<u64>,
    step: Step,
    /// Rows that nobody has a use for are wanted by speculative prompts, before background work has more than it is owed.
    spares_rows: bool,
}

impl<'a> Planning<'a> {
    fn new(views: &'a [View], free: usize) -> Self {
        Self { views, free, out: BTreeSet::new(), step: Step::default(), spares_rows: false }
    }

    fn run(mut self, served: &Served, limits: Limits) -> Self {
        self.decode(served, limits.decoding_rows);
        self.swap_in(limits);
        let drafts = self.drafts(served, limits);
        // However much is drafted, prefills go on.
        let rows = limits.rows - drafts.min(limits.rows / 2);
        self.prefill(served.clone(), Limits { rows, ..limits });
        if !self.spares_rows {
            self.unblock();
        }
        let is_background = |id: &u64| self.views.iter().any(|view| view.id == *id && view.background);
        (self.step.let_go, self.step.swap_out) = self.out.iter().rev().copied().partition(is_background);
        self
    }

    /// Those that have blocks and stay.
    fn running(&self) -> impl Iterator<Item = &View> {
        let has_blocks = |view: &&View| !matches!(view.phase, Phase::Waiting { .. } | Phase::Swapped { .. });
        self.views.iter().filter(has_blocks).filter(|view| !self.out.contains(&view.id))
    }

    /// Takes the last sequence off the device; `None` where only one is left.
    fn preempt(&mut self) -> Option<u64> {
        // Background work before answers, and who has nothing gives nothing.
        let order = |view: &&View| (view.background, view.id);
        let View { id: last, blocks, background, .. } =
            *self.running().filter(|view| view.blocks > 0).max_by_key(order)?;
        // For background work that has nothing to give no answer leaves.
        if background { self.running().nth(1) } else { self.answers().nth(1) }?;
        self.out.insert(last);
        self.free += blocks;
        Some(last)
    }

    fn decode(&mut self, served: &Served, most: usize) {
        let mut decoding: Vec<(&View, usize, usize)> = Vec::new();
        for view in self.views {
            if let Phase::Decoding { rows, more_blocks, .. } = view.phase {
                decoding.push((view, rows, more_blocks));
            }
        }
        decoding.sort_unstable_by_key(|(view, ..)| (Reverse(view.left_out), view.id));
        let mut given = vec![0; served.callers.len()];
        decoding.retain(|(view, rows, _)| {
            let given = &mut given[view.owner.caller];
            // A group is one, however large.
            let has_turn = view.background || *given == 0 || *given + rows <= most;
            *given += if has_turn { *rows } else { 0 };
            has_turn
        });
        decoding.sort_unstable_by_key(|(view, ..)| view.id);
        for (View { id, .. }, rows, more_blocks) in decoding {
            while !self.out.contains(id) && more_blocks > self.free && self.preempt().is_some() {}
            if !self.out.contains(id) {
                self.free = self.free.saturating_sub(more_blocks);
                self.step.rows.push((*id, rows));
            }
        }
    }

    fn swap_in(&mut self, limits: Limits) {
        let views = self.views;
        if views.iter().any(|view| !view.background && self.out.contains(&view.id)) {
            return;
        }
        let mut swapped: Vec<(&View, usize)> = Vec::new();
        for view in views {
            if let Phase::Swapped { blocks } = view.phase {
                swapped.push((view, blocks));
            }
        }
        swapped.sort_unstable_by_key(|(view, _)| view.id);
        // What the first of those who are here needs next is not given away: it would go out and in for ever.
        let next = self.answers().filter_map(|view| match view.phase {
            Phase::Prefilling { more_blocks, .. } => Some((view.id, more_blocks)),
            _ => None,
        });
        let spared = limits.watermark_blocks.max(next.min().map_or(1, |(_, more)| more.max(1)));
        for (view, blocks) in swapped {
            self.make_way(view, blocks, spared);
            // One that is alone comes back however little is left: only what waiting prompts found can be in its way.
            let is_alone = self.step.swap_in.is_empty() && self.running().next().is_none();
            if blocks + spared > self.free && !is_alone {
                return;
            }
            self.free = self.free.saturating_sub(blocks);
            self.step.swap_in.push(view.id);
        }
    }

    fn prefill(&mut self, mut served: Served, limits: Limits) {
        let swapped = self.views.iter().filter(|view| matches!(view.phase, Phase::Swapped { .. }));
        let (mut answers, mut others) = (0, 0);
        for view in self.running().chain(swapped) {
            *(if view.background { &mut others } else { &mut answers }) += view.tails;
        }
        let places = limits.sequences.saturating_sub(answers);
        let background_places = places.saturating_sub(others);
        let may_begin = self.all_are_here();
        let is_candidate = |view: &&View| match view.phase {
            Phase::Waiting { .. } => may_begin,
            Phase::Prefilling { .. } => !self.out.contains(&view.id),
            _ => false,
        };
        let candidates: Vec<&View> = self.views.iter().filter(is_candidate).collect();
        let (background, answers): (Vec<&View>, Vec<&View>) = candidates.into_iter().partition(|view| view.background);
        // What it is owed comes first, a part of the step at most; what it cannot use is not kept from others.
        let owed = limits.background_rows.min(limits.rows / BACKGROUND_PART);
        let mut tails = vec![0; served.callers.len()];
        for view in self.answers() {
            tails[view.owner.caller] += view.tails;
        }
        let mut room = Room {
            places,
            background_places,
            tails,
            closed: None,
            is_background_closed: false,
            limits,
            longest: limits.background_rows,
            served: &mut served,
        };
        let mut taken = self.fill(&background, owed, &mut room);
        room.longest = usize::MAX;
        taken += self.fill(&answers, limits.rows.saturating_sub(taken), &mut room);
        // Where answers decode, each of their tokens would come later for it.
        let decodes = self.views.iter().any(|view| matches!(view.phase, Phase::Decoding { .. }));
        let most = match decodes {
            true => limits.rows / BACKGROUND_PART,
            false if self.spares_rows => 0,
            false => limits.rows,
        };
        self.fill(&background, limits.rows.saturating_sub(taken).min(most), &mut room);
    }

    /// Gives `budget` rows to the best of some prompts; how many it gave.
    fn fill(&mut self, candidates: &[&View], budget: usize, room: &mut Room<'_>) -> usize {
        let is_left =
            |view: &&&View| !self.out.contains(&view.id) && !self.step.rows.iter().any(|(id, _)| *id == view.id);
        let mut candidates: Vec<&View> = candidates.iter().filter(is_left).copied().collect();
        let mut left = budget;
        while left > 0
            && let Some(next) = best(&candidates, room.served, room.limits.window)
        {
            let view = candidates.swap_remove(next);
            let (rows, blocks, spared) = match view.phase {
                // Background work does not begin in a step that ends some.
                Phase::Waiting { prompt_blocks }
                    if room.may_begin(view) && (self.out.is_empty() || !view.background) =>
                {
                    // What prompts under way will need is not there for new ones; what background work will is, for answers.
                    let counts = |other: &&View| view.background || !other.background;
                    let promised: usize = self.running().filter(counts).map(|other| other.promised).sum();
                    (view.to_compute.min(left), prompt_blocks, room.limits.watermark_blocks + promised)
                }
                Phase::Prefilling { chunk: Some(rows), more_blocks } => (rows, more_blocks, 0),
                Phase::Prefilling { chunk: None, more_blocks } => {
                    (view.to_compute.min(view.most_rows).min(left), more_blocks, 0)
                }
                _ => {
                    let places = if view.background { room.background_places } else { room.places };
                    if view.tails > places {
                        room.close(view);
                    }
                    continue;
                }
            };
            // A chunk under way is as long as it is: the first of a step goes on however little is left.
            let fits = rows > 0 && (rows <= left || (left == budget && rows <= room.longest));
            if fits {
                self.make_way(view, blocks, spared);
            }
            // Only what waiting prompts found on the device can be in the way of one that is alone.
            let is_alone = room.longest == usize::MAX
                && self.step == Step::default()
                && self.running().all(|other| other.id == view.id);
            if !fits || (blocks + spared > self.free && !is_alone) {
                if matches!(view.phase, Phase::Waiting { .. }) {
                    room.close(view);
                }
                continue;
            }
            if matches!(view.phase, Phase::Waiting { .. }) {
                room.begin(view);
            }
            left = left.saturating_sub(rows);
            self.free = self.free.saturating_sub(blocks);
            room.served.callers[view.owner.caller] += rows as u64;
            room.served.tenants[view.owner.tenant] += rows as u64;
            self.step.rows.push((view.id, rows));
        }
        budget.saturating_sub(left)
    }

    /// Where nothing runs though something could, had it blocks: the last sequence makes room for the others.
    fn unblock(&mut self) {
        let is_stuck = self.step.rows.is_empty() && self.step.swap_in.is_empty() && self.out.is_empty();
        let first =
            self.running().filter(|view| matches!(view.phase, Phase::Prefilling { .. })).min_by_key(|view| view.id);
        if let Some(first) = first.filter(|_| is_stuck) {
            let (id, rows) = (first.id, first.to_compute);
            if self.preempt().is_none() {
                // Nobody has what it lacks but prompts that wait: the engine takes it from those.
                self.step.rows.push((id, rows));
            }
        }
    }
}

/// Who goes first of `candidates`: those of the caller that was served least and of its tenant that was, of them those that were
/// overtaken often enough, in the order they came, then what has most cached for each token to compute.
fn best(candidates: &[&View], served: &Served, window: u32) -> Option<usize> {
    let key = |view: &View| {
        let Owner { caller, tenant } = view.owner;
        let shares = (served.callers[caller], served.tenants[tenant]);
        // One more of each, so that of prompts with nothing cached the shorter goes first.
        let worth = (view.cached + 1) as f64 / (view.to_compute + 1) as f64;
        match view.overtaken >= window {
            true => ((shares, false), 0.0, view.id),
            false => ((shares, true), -worth, view.id),
        }
    };
    let order = |a: &View, b: &View| {
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
    };
    (0..candidates.len()).min_by(|a, b| order(candidates[*a], candidates[*b]))
}

#[cfg(test)]
mod tests;
