//! What follows a prefilled prompt: an answer's text is filed as it grows, an answer that was interrupted goes on, and what was on a
//! device that was lost comes back.
//!
//! The engine holds these closures, and the pipeline holds the engine: they know the pipeline weakly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ragstone_storage::key::KvKey;
use ragstone_storage::prompt::plan::{LoadPlan, ReuseMode};
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::tier::device::LostPath;

use crate::admission::turns::ComputeTime;
use crate::answer::pipeline::Pipeline;
use crate::answer::runner::Run;
use crate::engine::{DecodeSpec, Decoded, FileText, FullText, Resume};
use crate::error::{Error, ErrorKind};
use crate::eviction::FreshKv;
use crate::prefill::FreshSegment;
use crate::prefill::Interruption;

/// How often an answer goes on after the engine broke.
const MOST_RESUMES: usize = 3;

impl Pipeline {
    /// Files an answer's text as it grows, for the next turn of its conversation; nothing behind a prompt that is not exact, nor
    /// behind a text that could not be kept.
    pub(crate) fn file_text(&self, run: &Run, plan: &LoadPlan) -> Option<FileText> {
        if !plan.files_answer {
            return None;
        }
        let (pipeline, tenant) = (self.me.clone(), run.tenant.clone());
        let (planned_in, is_broken) = (plan.epoch.min(run.found_in), Arc::new(AtomicBool::new(false)));
        Some(Arc::new(move |FullText { parent, tokens, layers, compute_us }| {
            let pipeline = pipeline.upgrade().filter(|_| !is_broken.load(Ordering::Relaxed))?;
            let key = KvKey::derive(pipeline.store.fingerprint(), &tenant, parent.as_ref(), &tokens);
            // An answer that was given before has its entries already.
            if pipeline.store.contains(&key).is_none() {
                let segments = vec![FreshSegment { key, parent, tokens, layers, compute_us }];
                let (keep, is_broken) = (FreshKv { tenant: tenant.clone(), segments, planned_in }, is_broken.clone());
                let broke = move || is_broken.store(true, Ordering::Relaxed);
                pipeline.background.keep_or(&pipeline.evictor, keep, None, broke);
            }
            Some(key)
        }))
    }

    /// Brings the hottest paths of a device that was lost back, when nobody waits.
    pub(crate) fn restore_what_is_lost(&self) {
        let pipeline = self.me.clone();
        self.engine.when_lost(Arc::new(move |paths: Vec<LostPath>| {
            let Some(pipeline) = pipeline.upgrade() else { return };
            let lost_in = pipeline.store.epoch();
            paths.into_iter().for_each(|path| pipeline.background.restore(path, lost_in));
        }));
    }

    /// Goes on with an answer that was interrupted: its prompt with what was generated is planned, loaded and computed as any
    /// other, and the next token comes to where the last one did.
    pub(crate) fn resume(&self, run: &Run, plan: &LoadPlan) -> Resume {
        // Whoever has begun to answer is not charged for what others made necessary.
        let mut run = Run { computed: ComputeTime::default(), ..run.clone() };
        if plan.blended_tokens == 0 && run.options.reuse == ReuseMode::Auto {
            // What was exact stays exact, though a passage's entry after the system prompt may have come since.
            run.options.reuse = ReuseMode::ExactOnly;
        }
        self.resume_again(run, Arc::new(AtomicUsize::new(0)))
    }

    /// `run` has all that was generated before; `resumed` counts how often the engine broke.
    fn resume_again(&self, run: Run, resumed: Arc<AtomicUsize>) -> Resume {
        let pipeline = self.me.clone();
        Arc::new(move |spec: DecodeSpec, generated: Vec<u32>, why: Interruption| {
            // Nobody may read what is sent any more.
            let fail = |error| drop(spec.output.try_send(Decoded::Failed(error)));
            let Some(pipeline) = pipeline.upgrade() else {
                return fail(Error::new(ErrorKind::Cancelled, "the service is shutting down"));
            };
            let broke = usize::from(why == Interruption::Broken);
            if resumed.fetch_add(broke, Ordering::Relaxed) + broke > MOST_RESUMES {
                let message = "the engine broke while it was answering, again and again; the service goes on";
                return fail(Error::new(ErrorKind::Internal, message));
            }
            let (mut run, resumed) = (run.clone(), resumed.clone());
            run.segments = continued(&run.segments, &generated).into();
            pipeline.runtime.clone().spawn(async move {
                let decode = |plan: &LoadPlan, _: &[u32]| {
                    let file = pipeline.file_text(&run, plan);
                    let resume = Some(pipeline.resume_again(run.clone(), resumed.clone()));
                    (vec![DecodeSpec { file, resume, ..spec.clone() }], ())
                };
                if let Err(error) = pipeline.runner.run(&run, decode).await {
                    drop(spec.output.try_send(Decoded::Failed(error)));
                }
            });
        })
    }
}

/// A prompt with more text behind it.
fn continued(segments: &[Segment], more: &[u32]) -> Vec<Segment> {
    // What has a place of its own stays there: positions may have a gap before it.
    let is_text = |segment: &&Segment| {
        matches!(segment.kind, SegmentKind::Text | SegmentKind::Question) && segment.place.is_none()
    };
    let begin = segments.len() - segments.iter().rev().take_while(is_text).count();
    let text = segments[begin..].iter().flat_map(|segment| segment.tokens.iter()).chain(more);
    let text: Vec<u32> = text.copied().collect();
    segments[..begin].iter().cloned().chain(Segment::of_text(&text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_on_behind_text() {
        let root = Segment { kind: SegmentKind::SystemPrompt, tokens: [1, 2].into(), place: None };
        let text: Vec<u32> = (0..100).collect();
        let prompt: Vec<Segment> = std::iter::once(root.clone()).chain(Segment::of_text(&text)).collect();
        let more: Vec<u32> = (100..200).collect();
        let whole: Vec<u32> = (0..200).collect();
        let expected: Vec<Segment> = std::iter::once(root.clone()).chain(Segment::of_text(&whole)).collect();
        assert_eq!(continued(&prompt, &more), expected);
        assert_eq!(continued(std::slice::from_ref(&root), &[7])[1].tokens[..], [7]);
    }
}
