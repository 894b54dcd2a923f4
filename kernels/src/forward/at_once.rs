//! A pass whose layers nobody looks into, in one call of the backend.

use std::ops::Range;

use super::{Forward, Interest, Outcome, Passed, Rider, Wanted};
use crate::backend::{Backend, KvBytes, Slots, StepPart, Stepped};
use crate::error::Error;
use crate::pool::KvLayout;

impl<B: Backend> Forward<'_, B> {
    /// What all riders come to, if they enter the first layer, want the logits of every row, and only take fresh K and V out, and if the
    /// backend takes such rows at once. Otherwise nobody has been asked or told anything.
    pub(super) fn at_once(&mut self, riders: &mut [Rider<'_, B>]) -> Option<Passed<B>> {
        if riders.is_empty() || !riders.iter().all(is_plain) {
            return None;
        }
        let wants_kv = riders.iter().any(|rider| interest(rider) == Interest::FreshKv);
        let parts: Vec<_> = riders.iter().map(part).collect();
        let Stepped { logits, kv } = self.backend.step(&parts, self.pool, wants_kv)?;
        let layout = self.backend.kv_layout();
        let (mut outcomes, mut layer_rows, mut first) = (Vec::new(), Vec::new(), 0);
        for rider in riders {
            let rows = first..first + rider.chunk.places.len();
            if interest(rider) == Interest::FreshKv
                && let Some(selector) = &mut rider.selector
            {
                for (layer, parts) in kv.iter().enumerate() {
                    selector.take_fresh(layer, rows.len(), rows_of(parts, layout, rows.clone()));
                }
            }
            layer_rows.push(rows.len() * layout.layers);
            first = rows.end;
            outcomes.push(Outcome::Done(rows));
        }
        if let Err(error) = self.backend.check() {
            let failed = || Outcome::Failed(Error::new(error.kind(), error.to_string()));
            outcomes.iter_mut().for_each(|outcome| *outcome = failed());
        }
        Some(Passed { outcomes, logits, layer_rows })
    }
}

fn part<'a, B: Backend>(rider: &'a Rider<'_, B>) -> StepPart<'a, B::Rows> {
    let places = &rider.chunk.places;
    let to = Slots { blocks: rider.blocks, slots: &places.slots, positions: &places.positions };
    StepPart { rows: &rider.chunk.hidden, to, key_positions: rider.key_positions }
}

fn interest<B: Backend>(rider: &Rider<'_, B>) -> Interest {
    rider.selector.as_ref().map_or(Interest::Nothing, |selector| selector.interest())
}

/// Whether all of a rider's rows go all the way, and nobody is asked about them.
fn is_plain<B: Backend>(rider: &Rider<'_, B>) -> bool {
    let wants_all = match rider.chunk.logits {
        Wanted::All => true,
        Wanted::Last => rider.chunk.places.len() == 1,
        Wanted::Nothing => false,
    };
    rider.chunk.layer == 0 && wants_all && interest(rider) != Interest::Asked
}

/// Some rows of a layer's K and V.
fn rows_of([k, v]: &[Vec<u8>; 2], layout: KvLayout, rows: Range<usize>) -> KvBytes {
    let row_bytes = layout.kv_dim() * layout.dtype.size_in_bytes();
    let of = |all: &[u8]| all[rows.start * row_bytes..rows.end * row_bytes].to_vec();
    let (k, v) = (of(k), of(v));
    let is_finite = layout.dtype.all_finite(&k) && layout.dtype.all_finite(&v);
    KvBytes { k, v, is_finite }
}
