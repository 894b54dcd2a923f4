//! What follows a prefilled prompt: an answer's text is filed as it grows, and an answer that was interrupted goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::plan::LoadPlan;
use ragstone_storage::residency::{Segment, SegmentKind};
use tokio::runtime::Handle;

use crate::background::Background;
use crate::engine::{DecodeSpec, Decoded, FileText, FullText, Resume};
use crate::error::{Error, ErrorKind};
use crate::eviction::{Evictor, Keep};
use crate::prefill::FreshSegment;
use crate::runner::{Run, Runner};
use crate::worker::Supervised;

/// How often an answer goes on after an interruption.
const MOST_RESUMES: usize = 3;

/// What answers need behind their prompts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tails {
    pub fingerprint: Fingerprint,
    pub runner: Runner,
    pub evictor: Supervised<Evictor>,
    pub background: Background,
    pub runtime: Handle,
}

impl Tails {
    /// Files an answer's text as it grows, for the next turn of its conversation; nothing behind a prompt that is not exact.
    pub(crate) fn file(&self, run: &Run, plan: &LoadPlan) -> Option<FileText> {
        if !plan.files_answer {
            return None;
        }
        let (tails, tenant, planned_in) = (self.clone(), run.tenant.clone(), plan.epoch.min(run.found_in));
        Some(Arc::new(move |FullText { parent, tokens, layers, compute_us }| {
            let key = KvKey::derive(&tails.fingerprint, &tenant, parent.as_ref(), &tokens);
            let segments = vec![FreshSegment { key, parent, tokens, layers, compute_us }];
            tails.background.keep(&tails.evictor, Keep { tenant: tenant.clone(), segments, planned_in });
            key
        }))
    }

    /// Goes on with an answer that was interrupted: its prompt with what was generated is planned, loaded and computed as any
    /// other, and the next token comes to where the last one did.
    pub(crate) fn resume(&self, run: &Run) -> Resume {
        let (tails, run, resumed) = (self.clone(), run.clone(), AtomicUsize::new(0));
        Arc::new(move |spec: DecodeSpec, generated: Vec<u32>| {
            if resumed.fetch_add(1, Ordering::Relaxed) >= MOST_RESUMES {
                let message = "the engine broke while it was answering, again and again; the service goes on";
                // Nobody may read it any more.
                return drop(spec.output.try_send(Decoded::Failed(Error::new(ErrorKind::Internal, message))));
            }
            let (tails, mut run) = (tails.clone(), run.clone());
            run.segments = continued(&run.segments, &generated).into();
            tails.runtime.clone().spawn(async move {
                let decode = |plan: &LoadPlan, _: &[u32]| {
                    let file = tails.file(&run, plan);
                    (vec![DecodeSpec { file, ..spec.clone() }], ())
                };
                if let Err(error) = tails.runner.run(&run, decode).await {
                    drop(spec.output.try_send(Decoded::Failed(error)));
                }
            });
        })
    }
}

/// A prompt with more text behind it.
fn continued(segments: &[Segment], more: &[u32]) -> Vec<Segment> {
    let is_text = |segment: &&Segment| matches!(segment.kind, SegmentKind::Text | SegmentKind::Question);
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
        let root = Segment { kind: SegmentKind::Root, tokens: [1, 2].into() };
        let text: Vec<u32> = (0..100).collect();
        let prompt: Vec<Segment> = std::iter::once(root.clone()).chain(Segment::of_text(&text)).collect();
        let more: Vec<u32> = (100..200).collect();
        let whole: Vec<u32> = (0..200).collect();
        let expected: Vec<Segment> = std::iter::once(root.clone()).chain(Segment::of_text(&whole)).collect();
        assert_eq!(continued(&prompt, &more), expected);
        assert_eq!(continued(std::slice::from_ref(&root), &[7])[1].tokens[..], [7]);
    }
}
