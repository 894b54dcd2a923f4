//! Whether there is nothing else to do: what nobody asked for is computed then, and stands aside for whoever comes.

use std::sync::Weak;
use std::time::Duration;

use ragstone_env::lock::locked;

use super::{Calibrator, Inner, gone};
use crate::admission::jobs::{JobKind, Jobs};
use crate::error::Result;

/// How long the service must have had nothing to do.
const IDLE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is asked of the service, at one look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Prompts; searches and embeddings; uploads and other jobs, so far.
    begun: [u64; 3],
    /// Whether any of it goes on.
    is_busy: bool,
}

impl Seen {
    /// Whether nothing goes on, and nothing came and went since an earlier look.
    fn is_quiet_since(&self, before: &Self) -> bool {
        !self.is_busy && self.begun == before.begun
    }
}

impl Calibrator {
    fn look(&self) -> Seen {
        let Inner { pipeline, processors, jobs, .. } = &*self.0;
        let others = jobs.status().iter().any(|status| status.kind != JobKind::Calibration);
        let waited_for = pipeline.admission.taken() + processors.wanted() + pipeline.background.pending();
        Seen {
            begun: [pipeline.admission.given(), processors.given(), jobs.begun_but(JobKind::Calibration)],
            is_busy: others || waited_for > 0,
        }
    }

    /// Whether nothing was asked since [`idle`] ended.
    pub(super) fn is_idle(&self) -> bool {
        self.look().is_quiet_since(&locked(&self.0.quiet))
    }
}

/// Waits until nothing was asked for a while.
///
/// # Errors
/// `Cancelled` when the service stops, or somebody wants a calibration now.
pub(super) async fn idle(jobs: &Jobs, inner: &Weak<Inner>) -> Result<()> {
    let (mut idle, mut before) = (Duration::ZERO, Seen::default());
    while idle < IDLE {
        let slept = jobs.stopping().run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await;
        let me = inner.upgrade().filter(|me| slept.is_some() && !me.aside.is_cancelled());
        let Some(me) = me.map(Calibrator) else { return Err(gone()) };
        let seen = me.look();
        idle = if seen.is_quiet_since(&before) { idle + LOOK_EVERY } else { Duration::ZERO };
        (before, *locked(&me.0.quiet)) = (seen, seen);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use tokio::runtime::Handle;

    use super::*;
    use crate::admission::caller::Caller;
    use crate::admission::turns::{Places, Turns};
    use crate::error::Error;

    #[test]
    fn what_came_and_went_between_two_looks_counts() {
        let before = Seen { begun: [1, 2, 3], is_busy: false };
        assert!(before.is_quiet_since(&before));
        assert!(!Seen { is_busy: true, ..before }.is_quiet_since(&before));
        for begun in [[2, 2, 3], [1, 3, 3], [1, 2, 4]] {
            assert!(!Seen { begun, ..before }.is_quiet_since(&before), "{begun:?}");
        }
        // What went on at the earlier look and has ended is no harm now.
        assert!(before.is_quiet_since(&Seen { is_busy: true, ..before }));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn prompts_searches_and_jobs_are_counted_where_they_begin() {
        let (places, turns) = (Places::new("test", 2), Turns::new(1, Env::system()));
        let jobs = Jobs::new(Handle::current());
        drop(places.take(Caller::default()).unwrap());
        let turn = turns.take(Caller::default()).await;
        assert_eq!((places.given(), turns.given(), turns.wanted()), (1, 1, 1));
        drop(turn);
        assert_eq!((turns.given(), turns.wanted()), (1, 0));
        for kind in [JobKind::Change, JobKind::Calibration, JobKind::Ingest] {
            jobs.run(kind, async { Ok::<_, Error>(()) }).await.unwrap();
        }
        assert_eq!(jobs.begun_but(JobKind::Calibration), 2);
    }
}
