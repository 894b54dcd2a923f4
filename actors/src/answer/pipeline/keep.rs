//! What becomes of KV that a prompt computed, and what is computed after its answer.

use std::sync::{Arc, PoisonError};

use ragstone_storage::prompt::plan::LoadPlan;
use ragstone_storage::prompt::residency::prompt_keys;
use ragstone_storage::segment::Segment;

use super::{Pipeline, Sequence};
use crate::answer::background::{Chain, Precompute};
use crate::eviction::FreshKv;
use crate::question::{Question, Reuse};

impl Pipeline {
    /// Hands fresh KV to the eviction worker, and passages that have no standalone entry to the background.
    pub(super) fn keep(&self, question: &Question, segments: &[Segment], sequence: &mut Sequence, found_in: u64) {
        let tenant: Arc<str> = question.tenant.as_str().into();
        let fresh = std::mem::take(&mut sequence.prefill.fresh);
        let dropping = sequence.dropping.take();
        if !fresh.is_empty() || dropping.is_some() {
            let planned_in = sequence.prefill.plan.epoch.min(found_in);
            self.background.keep(
                &self.evictor,
                FreshKv { tenant: tenant.clone(), segments: fresh, planned_in },
                dropping,
            );
        }
        let root = segments.first().filter(|_| sequence.prefill.plan.root_key.is_some());
        let primer = self.known.primer();
        for index in &sequence.prefill.plan.missing_standalone {
            let passage = segments[*index].clone();
            let whose = (self.store.fingerprint(), &*tenant);
            let wanted = Precompute::standalone(whose, root, &primer, passage, found_in);
            self.background.precompute(tenant.clone(), wanted);
        }
        // Whoever asks for a ratio wants what is blended to stay so.
        if matches!(question.reuse, Reuse::Auto | Reuse::Calibrated) && question.selection.is_none() {
            self.make_exact(&tenant, segments, &sequence.prefill.plan, found_in);
        }
    }

    /// Has the background compute what recurs of a blended prompt, so that it is loaded as it is the next time.
    fn make_exact(&self, tenant: &Arc<str>, segments: &[Segment], plan: &LoadPlan, found_in: u64) {
        if plan.blended_tokens == 0 {
            return;
        }
        // It was looked up, so that its segments are in order.
        let Ok(prompt) = prompt_keys(self.store.fingerprint(), tenant, &self.known.primer(), segments) else { return };
        let wanted = self.recurring.lock().unwrap_or_else(PoisonError::into_inner).note(&prompt, plan);
        let chain =
            segments[..wanted].iter().zip(&prompt).filter_map(|(segment, at)| Some((at.chain_key?, segment.clone())));
        let segments: Vec<_> = chain.collect();
        if !segments.is_empty() {
            self.background.chain(Chain { tenant: tenant.clone(), segments, found_in });
        }
    }
}
