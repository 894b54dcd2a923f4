//! Background work where answers need what it has.

use super::{Phase, Planning, View};

impl Planning<'_> {
    /// Answers that have blocks and stay.
    pub(super) fn answers(&self) -> impl Iterator<Item = &View> {
        self.running().filter(|view| !view.background)
    }

    /// Whether all answers that are in host memory come back in this step, and none goes there.
    pub(super) fn all_are_here(&self) -> bool {
        let stays_away = |view: &View| match view.phase {
            Phase::Swapped { .. } => !self.step.swap_in.contains(&view.id),
            _ => !view.background && self.out.contains(&view.id),
        };
        !self.views.iter().any(stays_away)
    }

    /// Ends background work, the last to come first, until `blocks` are free for an answer and `spared` beside them; where all of it would
    /// not do, none, unless the answer is the only one.
    pub(super) fn make_way(&mut self, view: &View, blocks: usize, spared: usize) {
        let needed = blocks + spared;
        if view.background || needed <= self.free {
            return;
        }
        let views = self.views;
        let mut background: Vec<(&View, usize)> = Vec::new();
        for other in views.iter().filter(|other| other.background && !self.out.contains(&other.id)) {
            background.push((other, self.held_by(other)));
        }
        let does = needed <= self.free + background.iter().map(|(_, held)| held).sum::<usize>();
        if !does && self.answers().any(|other| other.id != view.id) {
            return;
        }
        background.retain(|(_, held)| !does || *held > 0);
        background.sort_unstable_by_key(|(other, _)| other.id);
        while needed > self.free
            && let Some((last, held)) = background.pop()
        {
            self.free += held;
            self.step.rows.retain(|(id, _)| *id != last.id);
            // What was to begin in this step has nothing yet.
            if !matches!(last.phase, Phase::Waiting { .. } | Phase::Swapped { .. }) {
                self.out.insert(last.id);
            }
        }
    }

    /// Blocks that a prefill has, and those that this step would give it.
    fn held_by(&self, view: &View) -> usize {
        let is_chosen = self.step.rows.iter().any(|(id, _)| *id == view.id);
        match view.phase {
            Phase::Waiting { prompt_blocks } if is_chosen => prompt_blocks,
            Phase::Prefilling { more_blocks, .. } if is_chosen => view.blocks + more_blocks,
            Phase::Waiting { .. } | Phase::Swapped { .. } => 0,
            _ => view.blocks,
        }
    }
}
