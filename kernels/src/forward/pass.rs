//! A pass under way: who is in it, and their rows.

use std::ops::Range;

use super::{Chunk, Keep, Next, Outcome, Passed, Placed, Places, Rider, Seen, Selector, Wanted};
use crate::attention::{RowGroup, SequenceView};
use crate::backend::{Backend, Slots};
use crate::error::Error;
use crate::matrix::Matrix;
use crate::pool::BlockId;

/// Who is in a pass, and their rows.
pub(super) struct Pass<'a, 'r, B: Backend> {
    backend: &'a B,
    sequences: Vec<Sequence<'r, B>>,
    /// Chunks that are not under way, by rider.
    waiting: Vec<Option<Chunk<B>>>,
    outcomes: Vec<Option<Outcome<B>>>,
    /// By rider: rows of each layer so far.
    layer_rows: Vec<usize>,
    /// Who is under way, in the order of the rows.
    members: Vec<Member>,
    /// The rows of all members; `None` before anybody is under way.
    hidden: Option<B::Rows>,
}

struct Sequence<'r, B: Backend> {
    blocks: &'r [BlockId],
    key_positions: &'r [u32],
    selector: Option<&'r mut dyn Selector<B>>,
}

struct Member {
    rider: usize,
    places: Places,
    logits: Wanted,
    /// Its first row.
    first: usize,
}

impl Member {
    fn rows(&self) -> Range<usize> {
        self.first..self.first + self.places.len()
    }
}

impl<'a, 'r, B: Backend> Pass<'a, 'r, B> {
    pub(super) fn new(backend: &'a B, riders: Vec<Rider<'r, B>>) -> Self {
        let outcomes = riders.iter().map(|_| None).collect();
        let layer_rows = vec![0; riders.len()];
        let split = |Rider { chunk, blocks, key_positions, selector }| {
            (Sequence { blocks, key_positions, selector }, Some(chunk))
        };
        let (sequences, waiting) = riders.into_iter().map(split).unzip();
        Self { backend, sequences, waiting, outcomes, layer_rows, members: Vec::new(), hidden: None }
    }

    /// The first layer that anybody enters.
    pub(super) fn first_layer(&self) -> Option<usize> {
        self.waiting.iter().flatten().map(Chunk::layer).min()
    }

    /// Whether nobody is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The rows that are under way.
    pub(super) fn hidden(&self) -> &B::Rows {
        self.hidden.as_ref().expect("members have rows")
    }

    /// Lets those in that stand before `layer`, and out those that cannot enter it.
    pub(super) fn board(&mut self, layer: usize) {
        let stays = |sequences: &mut [Sequence<'_, B>], rider: usize| {
            let selector = sequences[rider].selector.as_mut();
            selector.is_none_or(|selector| selector.before_layer(layer) == Next::Go)
        };
        let keeps: Vec<Keep> = self
            .members
            .iter()
            .map(|member| if stays(&mut self.sequences, member.rider) { Keep::All } else { Keep::Stop })
            .collect();
        self.part(layer, &keeps);
        let mut joining = Vec::new();
        for (rider, chunk) in self.waiting.iter_mut().enumerate() {
            let is_here = chunk.as_ref().is_some_and(|chunk| chunk.layer == layer) && self.outcomes[rider].is_none();
            if is_here && stays(&mut self.sequences, rider) {
                joining.extend(chunk.take().map(|chunk| (rider, chunk)));
            }
        }
        if joining.is_empty() {
            return;
        }
        let mut first = self.members.last().map_or(0, |member| member.rows().end);
        let all = |rows: usize| (0..rows).collect::<Vec<usize>>();
        let mut picks = vec![all(first)];
        picks.extend(joining.iter().map(|(_, chunk)| all(chunk.places.len())));
        let alone = self.members.is_empty() && joining.len() == 1;
        if alone {
            // Nothing to copy: most passes are over one chunk.
            let (rider, chunk) = joining.remove(0);
            self.members.push(Member { rider, places: chunk.places, logits: chunk.logits, first });
            self.hidden = Some(chunk.hidden);
            return;
        }
        let now = self.hidden.take().filter(|_| first > 0);
        let parts = now.iter().chain(joining.iter().map(|(_, chunk)| &chunk.hidden));
        let picks = picks.iter().filter(|rows| !rows.is_empty()).map(|rows| &rows[..]);
        self.hidden = Some(self.backend.gather(&parts.zip(picks).collect::<Vec<_>>()));
        for (rider, chunk) in joining {
            let rows = chunk.places.len();
            self.members.push(Member { rider, places: chunk.places, logits: chunk.logits, first });
            first += rows;
        }
    }

    /// Asks every selector which rows go on, and gives the K and V of those.
    pub(super) fn select(&mut self, layer: usize, kv: B::Kv) -> B::Kv {
        let backend = self.backend;
        let keeps: Vec<Keep> = self
            .members
            .iter()
            .map(|member| {
                let sequence = &mut self.sequences[member.rider];
                let (places, blocks) = (&member.places, sequence.blocks);
                let seen = Seen { backend, kv: &kv, first: member.first, layer, places, blocks };
                sequence.selector.as_mut().map_or(Keep::All, |selector| selector.select(&seen))
            })
            .collect();
        match self.part(layer, &keeps) {
            Some(rows) => self.backend.gather_kv(&kv, &rows),
            None => kv,
        }
    }

    /// Goes on with the rows that each member keeps: their indices before, if not all. Whoever stops waits before `layer`.
    fn part(&mut self, layer: usize, keeps: &[Keep]) -> Option<Vec<usize>> {
        if keeps.iter().all(|keep| *keep == Keep::All) {
            return None;
        }
        let hidden = self.hidden.take().expect("members have rows");
        let (mut rows, mut members) = (Vec::new(), Vec::new());
        for (member, keep) in self.members.drain(..).zip(keeps) {
            let first = rows.len();
            match keep {
                Keep::All => {
                    rows.extend(member.rows());
                    members.push(Member { first, ..member });
                }
                Keep::Rows(kept) => {
                    rows.extend(kept.iter().map(|row| member.first + row));
                    members.push(Member { places: member.places.pick(kept), first, ..member });
                }
                Keep::Stop => {
                    let own: Vec<usize> = member.rows().collect();
                    let hidden = self.backend.gather(&[(&hidden, &own)]);
                    let chunk = Chunk { places: member.places, hidden, layer, logits: member.logits };
                    self.outcomes[member.rider] = Some(Outcome::Stopped(chunk));
                }
            }
        }
        self.members = members;
        self.hidden = (!rows.is_empty()).then(|| self.backend.gather(&[(&hidden, &rows)]));
        Some(rows)
    }

    /// Puts stored and fresh K and V of the layer into the blocks. A sequence whose write fails goes no further.
    pub(super) fn place(&mut self, layer: usize, kv: &B::Kv, pool: &mut B::Pool) {
        let backend = self.backend;
        let mut keeps = Vec::with_capacity(self.members.len());
        for member in &self.members {
            self.layer_rows[member.rider] += member.places.len();
            let sequence = &mut self.sequences[member.rider];
            let (places, blocks) = (&member.places, sequence.blocks);
            let seen = Seen { backend, kv, first: member.first, layer, places, blocks };
            let taken = sequence.selector.as_mut().map_or(Next::Go, |selector| selector.take(&seen, pool));
            let to = Slots { blocks, slots: &places.slots, positions: &places.positions };
            let placed = match taken {
                Next::Go => backend.place(pool, layer, to, kv, member.rows()),
                Next::Stop => Err(Error::invalid_input("stored keys and values could not be placed")),
            };
            keeps.push(if placed.is_ok() { Keep::All } else { Keep::Rows(Vec::new()) });
            if let Err(error) = placed {
                self.outcomes[member.rider] = Some(Outcome::Failed(error));
            }
        }
        self.part(layer, &keeps);
        self.members.retain(|member| !member.places.is_empty());
    }

    /// Asks every selector again, now that all K and V of the layer are in place.
    pub(super) fn select_by_attention(&mut self, layer: usize, pool: &B::Pool) {
        let Some(hidden) = &self.hidden else { return };
        let backend = self.backend;
        let keeps: Vec<Keep> = self
            .members
            .iter()
            .map(|member| {
                let Sequence { blocks, key_positions, selector } = &mut self.sequences[member.rider];
                let sequence = SequenceView { blocks, key_positions };
                let (places, first) = (&member.places, member.first);
                let seen = Placed { backend, hidden, pool, first, sequence, layer, places };
                selector.as_mut().map_or(Keep::All, |selector| selector.select_by_attention(&seen))
            })
            .collect();
        self.part(layer, &keeps);
        self.leave_without_rows();
    }

    /// Whoever has no rows left is done.
    fn leave_without_rows(&mut self) {
        for member in self.members.extract_if(.., |member| member.places.is_empty()) {
            self.outcomes[member.rider].get_or_insert(Outcome::Done(0..0));
        }
    }

    /// Before the last layer's attention: only rows whose logits are wanted need it, as all K and V are in place.
    pub(super) fn leave_wanted(&mut self, layer: usize) {
        let keep = |member: &Member| match member.logits {
            Wanted::All => Keep::All,
            Wanted::Last => Keep::Rows(vec![member.places.len() - 1]),
            Wanted::Nothing => Keep::Rows(Vec::new()),
        };
        let keeps: Vec<Keep> = self.members.iter().map(keep).collect();
        self.part(layer, &keeps);
        self.leave_without_rows();
    }

    pub(super) fn finish(&mut self, layer: usize, pool: &B::Pool) {
        let groups: Vec<RowGroup<'_>> = self
            .members
            .iter()
            .map(|member| {
                let Sequence { blocks, key_positions, .. } = &self.sequences[member.rider];
                let sequence = SequenceView { blocks, key_positions };
                RowGroup { rows: member.rows(), positions: &member.places.positions, sequence }
            })
            .collect();
        let hidden = self.hidden.as_mut().expect("members have rows");
        self.backend.finish(layer, hidden, &groups, pool);
    }

    pub(super) fn end(mut self) -> Passed<B> {
        let logits = match self.members.is_empty() {
            true => Matrix::default(),
            false => self.backend.logits(self.hidden()),
        };
        for member in &self.members {
            self.outcomes[member.rider].get_or_insert(Outcome::Done(member.rows()));
        }
        let outcome = |(outcome, waiting): (Option<Outcome<B>>, Option<Chunk<B>>)| {
            // Who never got in waits where it stood.
            outcome.or_else(|| waiting.map(Outcome::Stopped)).expect("every chunk waits or left")
        };
        let mut outcomes: Vec<Outcome<B>> = self.outcomes.into_iter().zip(self.waiting).map(outcome).collect();
        if let Err(error) = self.backend.check() {
            let failed = || Outcome::Failed(Error::new(error.kind(), error.to_string()));
            outcomes.iter_mut().for_each(|outcome| *outcome = failed());
        }
        Passed { outcomes, logits, layer_rows: self.layer_rows }
    }
}
