//! Speculative prompts beside the others.

use super::super::shares::Served;
use super::{Limits, Phase, Planning, Step, View};

/// A step of `others` as if `speculative` ones, in the order they came, held nothing: then the last of these end until it is so, as far as it
/// has to be. With `speculates` they have what rows are left, before background work has more than it is owed.
pub(super) fn beside(
    others: &[View],
    mut speculative: Vec<View>,
    served: &Served,
    limits: Limits,
    speculates: bool,
) -> Step {
    let mut held: usize = speculative.iter().map(|view| view.blocks).sum();
    let mut plan = Planning::new(others, limits.free_blocks + held);
    plan.spares_rows = speculates;
    let mut plan = plan.run(served, limits);
    while held > plan.free
        && let Some(last) = speculative.pop()
    {
        held -= last.blocks;
        if last.blocks > 0 {
            plan.step.let_go.push(last.id);
        }
    }
    plan.free -= held;
    if speculates {
        plan.speculate(&speculative, limits);
    }
    plan.step
}

impl Planning<'_> {
    /// Gives what rows and blocks are left to speculative prompts, in the order they came.
    fn speculate(&mut self, speculative: &[View], limits: Limits) {
        let taken: usize = self.step.rows.iter().map(|(_, rows)| rows).sum();
        let mut left = limits.rows.saturating_sub(taken);
        let mut is_first = true;
        let promised: usize = self.running().chain(speculative).map(|view| view.promised).sum();
        for view in speculative {
            let (rows, blocks, spared) = match view.phase {
                Phase::Waiting { prompt_blocks } => {
                    (view.to_compute.min(left), prompt_blocks, limits.watermark_blocks + promised)
                }
                Phase::Prefilling { chunk, more_blocks } => {
                    (chunk.unwrap_or_else(|| view.to_compute.min(left)), more_blocks, 0)
                }
                _ => continue,
            };
            // A chunk under way is as long as it is.
            let fits = rows > 0 && (rows <= left || (is_first && left > 0));
            if fits && blocks + spared <= self.free {
                left = left.saturating_sub(rows);
                self.free -= blocks;
                is_first = false;
                self.step.rows.push((view.id, rows));
            }
        }
    }
}
