//! Prompts of modules (Prompt Cache): what of them is not stored is computed apart first, then all of it is looked up as any other prompt.

use std::sync::Arc;

use ragstone_storage::prompt::plan::{PlanOptions, Ratio, ReuseMode};
use ragstone_storage::segment::{Segment, SegmentKind};

use super::{Asking, Pipeline};
use crate::answer::background::{Precompute, Whose};
use crate::engine::Urgency;
use crate::error::{Error, ErrorKind, Result};
use crate::question::{Input, Question, Reuse};
use crate::report::Blending;

impl Pipeline {
    /// Computes the modules that no tier has, each apart, and files them. One that cannot be kept is computed with the prompt.
    pub(super) async fn encode_modules(&self, asking: &Asking, segments: &[Segment]) -> Result<()> {
        let question = &asking.question;
        if !takes_modules(question, self.known.blend().blending) {
            return Ok(());
        }
        let whose = Whose {
            tenant: Arc::from(question.tenant.as_str()),
            caller: question.caller,
            urgency: Urgency::Answer,
            deadline: asking.deadline,
        };
        for segment in segments.iter().filter(|segment| segment.kind == SegmentKind::Module) {
            let (fingerprint, tenant) = (self.store.fingerprint(), &question.tenant);
            if let Some(wanted) = Precompute::module(fingerprint, tenant, segment, asking.found_in) {
                self.background.compute(&whose, wanted).await?;
            }
        }
        Ok(())
    }

    /// How many tokens an answer may have behind the prompt: positions may be used up before slots are.
    pub(super) fn room_behind(&self, segments: &[Segment], answers: usize) -> Result<usize> {
        let tokens = segments.iter().map(|segment| segment.tokens.len()).sum();
        let (end, context) = (Segment::end_of(segments) as usize, self.engine.context());
        let room = self.engine.room(tokens, answers)?;
        match context.checked_sub(end).filter(|left| *left > 0) {
            Some(left) => Ok(room.min(left)),
            None => {
                let message = format!(
                    "the prompt takes {end} positions, and the model has {context}: none is left for an answer"
                );
                Err(Error::new(ErrorKind::ContextLength, message))
            }
        }
    }
}

/// Whether stored modules are taken: approximate, and what a schema asks for; as calibrated, where anything is.
fn takes_modules(question: &Question, blending: Blending) -> bool {
    let is_wanted = match question.reuse {
        Reuse::Auto | Reuse::Ratio(_) => true,
        Reuse::Calibrated => blending.blends(),
        Reuse::Exact | Reuse::Off => false,
    };
    is_wanted && matches!(question.input, Input::Pml { .. })
}

/// Modules are taken as they are where nobody names a ratio or wants them blended as passages are; computing one with the prompt instead of
/// loading it would make another prompt of it, so that no load is declined. Where the model's KV cannot be moved (`can_move`), they were
/// computed where they stand.
pub(super) fn options_of(question: &Question, options: PlanOptions, blending: Blending, can_move: bool) -> PlanOptions {
    if !takes_modules(question, blending) {
        return options;
    }
    let ratio = match question.reuse {
        Reuse::Ratio(ratio) => Ratio::Fixed(ratio),
        Reuse::Calibrated => options.ratio,
        _ => Ratio::Fixed(0.0),
    };
    let reuse = if can_move { ReuseMode::Auto } else { ReuseMode::SamePositions };
    PlanOptions { ratio, reuse, declines: false, ..options }
}
