//! A priority queue whose members can be found: a binary min-heap with an index by id.

use super::Id;

/// Where an entry stands: by priority, the least first; among equals the one that was ranked earlier, then by id.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rank {
    pub priority: f64,
    pub tick: u64,
}

fn is_before(one: &(Rank, Id), other: &(Rank, Id)) -> bool {
    let by_rank = one.0.priority.total_cmp(&other.0.priority).then(one.0.tick.cmp(&other.0.tick));
    by_rank.then(one.1.cmp(&other.1)).is_lt()
}

/// Ids by rank, each at most once.
#[derive(Debug, Default)]
pub(crate) struct Order {
    heap: Vec<(Rank, Id)>,
    /// Place in `heap` plus one, by id; zero if it is not there.
    places: Vec<u32>,
}

impl Order {
    /// Adds `id`, or moves it. O(log n).
    pub fn put(&mut self, id: Id, rank: Rank) {
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, 0);
        }
        let at = match self.places[id.index()] {
            0 => {
                self.heap.push((rank, id));
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize - 1].0 = rank;
                place as usize - 1
            }
        };
        self.settle(at);
    }

    /// Takes `id` out; says whether it was there. O(log n).
    pub fn remove(&mut self, id: Id) -> bool {
        let Some(place) = self.places.get(id.index()).copied().filter(|place| *place > 0) else { return false };
        let at = place as usize - 1;
        self.places[id.index()] = 0;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.settle(at);
        }
        true
    }

    /// The first.
    pub fn first(&self) -> Option<Id> {
        self.heap.first().map(|(_, id)| *id)
    }

    /// Whether `id` is there.
    pub fn contains(&self, id: Id) -> bool {
        self.places.get(id.index()).is_some_and(|place| *place > 0)
    }

    /// How many are there.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Moves what stands at `at` up or down to where it belongs, and notes the places of all that moved.
    fn settle(&mut self, mut at: usize) {
        let moving = self.heap[at];
        while at > 0 {
            let above = (at - 1) / 2;
            if !is_before(&moving, &self.heap[above]) {
                break;
            }
            self.set(at, self.heap[above]);
            at = above;
        }
        loop {
            let left = 2 * at + 1;
            let Some(mut below) = self.heap.get(left).map(|_| left) else { break };
            if self.heap.get(left + 1).is_some_and(|right| is_before(right, &self.heap[left])) {
                below = left + 1;
            }
            if !is_before(&self.heap[below], &moving) {
                break;
            }
            self.set(at, self.heap[below]);
            at = below;
        }
        self.set(at, moving);
    }

    fn set(&mut self, at: usize, item: (Rank, Id)) {
        self.heap[at] = item;
        self.places[item.1.index()] = at as u32 + 1;
    }
}
