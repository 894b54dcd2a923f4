//! Which drafts are verified in a step.

use super::super::shares::Served;
use super::{Limits, Phase, Planning};

impl Planning<'_> {
    /// Adds drafts to those who decode, where that takes nothing from anybody: no block that somebody waits for, no row of a caller that
    /// has as many as others can wait for. How many rows they have.
    pub(super) fn drafts(&mut self, served: &Served, limits: Limits) -> usize {
        if !self.out.is_empty() || !self.all_are_here() {
            return 0;
        }
        let promised = self.answers().map(|view| view.promised).sum::<usize>();
        let spared = limits.watermark_blocks + promised;
        let owner = |id: u64| self.views.iter().find(|view| view.id == id).map(|view| view.owner.caller);
        let mut given = vec![0; served.callers.len()];
        for (id, rows) in &self.step.rows {
            owner(*id).into_iter().for_each(|caller| given[caller] += rows);
        }
        let mut all = 0;
        for (id, rows) in &mut self.step.rows {
            let Some(view) = self.views.iter().find(|view| view.id == *id) else { continue };
            let Phase::Decoding { drafts, draft_blocks, .. } = view.phase else { continue };
            let own = &mut given[view.owner.caller];
            let has_room = draft_blocks == 0 || draft_blocks + spared <= self.free;
            if drafts > 0 && has_room && *own + drafts <= limits.decoding_rows {
                self.free -= draft_blocks;
                *own += drafts;
                *rows += drafts;
                all += drafts;
            }
        }
        all
    }
}
