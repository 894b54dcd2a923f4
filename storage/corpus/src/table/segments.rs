//! Segments of an index of words: what is new is indexed soon, as every search cuts into words what no index holds.
//!
//! What came since the last time becomes a segment of its own, which costs as much as it has rows. So that there are few, it takes along
//! segments before it that are not much larger than all behind them, as merge trees do (O'Neil et al., "The Log-Structured Merge-Tree", 1996): each has at
//! least [`GROWTH`] times the rows of all behind it, so that there are about log4(rows / 32), and a row is written anew as often at the most.

use lance::index::DatasetIndexExt;
use lancedb::table::{OptimizeAction, OptimizeOptions};

use super::Collection;
use crate::disk::failed;
use crate::{Error, ErrorKind, Result};

/// Rows that searches may cut into words beside the index, in less than a millisecond.
const UNINDEXED_ROWS: usize = 32;
/// A segment that has so many times the rows of what comes behind it is left as it is.
const GROWTH: usize = 4;

/// Whether so many rows that no index of words holds are too many.
pub(super) fn is_behind(rows: usize) -> bool {
    rows > UNINDEXED_ROWS
}

/// How many of the last segments are merged with `new` rows: from the first on that is not large enough for what comes behind it.
fn merged_with(segments: &[usize], new: usize) -> usize {
    let mut behind = new + segments.iter().sum::<usize>();
    let is_small = |segment: &usize| {
        behind -= segment;
        *segment < GROWTH * behind
    };
    segments.iter().position(is_small).map_or(0, |first| segments.len() - first)
}

impl Collection {
    /// Adds the rows that it lacks to an index of words, in one commit. For whoever has the turn to write.
    pub(super) async fn index_new(&self, index: &str, new: usize) -> Result<()> {
        let merged = merged_with(&self.segments(index).await?, new);
        let options = if merged == 0 { OptimizeOptions::append() } else { OptimizeOptions::merge(merged) };
        let action = OptimizeAction::Index(options.index_names(vec![index.to_owned()]));
        self.table.optimize(action).await.map(drop).map_err(self.failed("update the indexes of"))
    }

    /// The rows of each of an index's segments, in the order of their making.
    pub(in super::super) async fn segments(&self, index: &str) -> Result<Vec<usize>> {
        let failed = || failed(format!("look at the indexes of collection `{}`", self.name));
        let Some(dataset) = self.table.dataset() else {
            return Err(Error::new(ErrorKind::Internal, "a table of ours is none of LanceDB's own"));
        };
        let dataset = dataset.get().await.map_err(failed())?;
        let segments = dataset.load_indices_by_name(index).await.map_err(|error| failed()(error.into()))?;
        let rows = segments.iter().map(|segment| {
            let fragments = segment.fragment_bitmap.as_ref();
            let is_of =
                |id: u64| fragments.is_some_and(|fragments| u32::try_from(id).is_ok_and(|id| fragments.contains(id)));
            let rows = dataset.fragments().iter().filter(|fragment| is_of(fragment.id));
            rows.filter_map(|fragment| fragment.num_rows()).sum()
        });
        Ok(rows.collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Segments after so many rows each, and rows that were written.
    fn after(additions: impl IntoIterator<Item = usize>) -> (Vec<usize>, usize) {
        let (mut segments, mut waiting, mut written) = (Vec::<usize>::new(), 0, 0);
        for added in additions {
            waiting += added;
            if is_behind(waiting) {
                let merged = merged_with(&segments, waiting);
                let rows = waiting + segments.split_off(segments.len() - merged).iter().sum::<usize>();
                segments.push(rows);
                written += rows;
                waiting = 0;
            }
        }
        (segments, written)
    }

    #[test]
    fn a_large_segment_is_left_and_small_ones_are_merged() {
        assert_eq!(merged_with(&[], 33), 0);
        assert_eq!(merged_with(&[100_000], 33), 0);
        assert_eq!(merged_with(&[100_000, 131], 33), 1);
        assert_eq!(merged_with(&[100_000, 132], 33), 0);
        // All that comes behind one counts.
        assert_eq!(merged_with(&[100_000, 500, 100], 33), 2);
        assert_eq!(merged_with(&[100_000, 900, 200], 45), 2);
    }

    #[test]
    fn a_hundred_thousand_rows_one_by_one_are_few_segments_and_written_a_few_times() {
        let (segments, written) = after(std::iter::repeat_n(1, 100_000));
        assert!(segments.len() <= 7, "{segments:?}");
        assert!(written < 20 * 100_000, "{written}");
    }

    proptest! {
        #[test]
        fn segments_grow_by_a_factor(additions in prop::collection::vec(1_usize..5000, 1..200)) {
            let total: usize = additions.iter().sum();
            let (segments, _) = after(additions);
            let behind = |at: usize| segments[at + 1..].iter().sum::<usize>();
            for at in 0..segments.len().saturating_sub(1) {
                prop_assert!(segments[at] >= GROWTH * behind(at), "{:?}", segments);
            }
            prop_assert!(total - segments.iter().sum::<usize>() <= UNINDEXED_ROWS);
        }
    }
}
