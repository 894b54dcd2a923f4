//! How a question's prompt is blended, and how far reuse may go.

use ragstone_storage::prompt::plan::{PlanOptions, Ratio, ReuseMode};

use super::Pipeline;
use crate::answer::blend::Blend;
use crate::prefill::{Rule, Selection};
use crate::question::{Question, Reuse};
use crate::report::Blending;

impl Pipeline {
    /// How the question's prompt is blended. Whoever measures a choice has it made.
    pub(super) fn blend(&self, question: &Question) -> Blend {
        let known = self.known.blend();
        match (question.selection, question.reuse) {
            (Some(selection), _) if self.known.can_move() => {
                Blend { selection, blending: Blending::Configured, ..known }
            }
            // Whoever wants some recomputed gets some.
            (_, Reuse::Ratio(ratio)) if ratio > 0.0 && known.selection.rule == Rule::None => {
                Blend { selection: Selection::default(), ..known }
            }
            _ => known,
        }
    }

    pub(super) fn plan_options(&self, question: &Question, blend: &Blend) -> PlanOptions {
        // More than the floor hides under the loads of an engine that does nothing else; beside others it is their time.
        let is_alone = self.admission.taken() <= question.answers;
        let floor = blend.ratio;
        let least = if is_alone { Ratio::AtLeast(floor) } else { Ratio::Fixed(floor) };
        let (reuse, ratio) = match question.reuse {
            // What is stored has no logits.
            _ if question.sampling.prompt_logprobs.is_some() => (ReuseMode::Off, least),
            Reuse::Auto | Reuse::Calibrated => (ReuseMode::Auto, least),
            Reuse::Ratio(ratio) => (ReuseMode::Auto, Ratio::Fixed(ratio)),
            Reuse::Exact => (ReuseMode::ExactOnly, least),
            Reuse::Off => (ReuseMode::Off, least),
        };
        // Rules that take none or all do so at any ratio.
        let ratio = match blend.selection.rule {
            Rule::None => Ratio::Fixed(0.0),
            Rule::All => Ratio::Fixed(1.0),
            _ => ratio,
        };
        let reuse = match reuse {
            ReuseMode::Auto if !self.known.can_move() => ReuseMode::SamePositions,
            ReuseMode::Auto if !blend.blending.blends() => ReuseMode::ExactOnly,
            reuse => reuse,
        };
        let choosing = blend.selection.choosing(self.engine.layers());
        PlanOptions { ratio, choosing, reuse, declines: true }
    }
}
