//! How many rows of prefills a step may have, so that running answers keep their pace.

/// Rows of a step at most: what goes through a layer together, so longer chunks gain nothing.
pub(super) const MOST_ROWS: usize = 512;
/// What a step may take while nobody decodes, in milliseconds: whoever comes waits for the step under way, and shares the next.
const STEP_MS: f64 = 100.0;
/// Rows that such a step has however slow the machine is: fewer would cost more in repeated passes over the weights than they save.
const FULL_ROWS: usize = 64;
/// However slow steps are, prefills go on.
const LEAST_ROWS: usize = 16;
/// What a step may take beside its target, as a multiple of decoding alone: less would cost more in repeated passes over the
/// weights than it saves.
const LEAST_STRETCH: f64 = 1.8;
/// What a pass may take for answers of callers that have more of them than others, as a multiple of what it takes where all have as
/// many as the one with the fewest.
const LARGEST_SHARE: f64 = 1.4;
/// What is left, after a step that was kept short for others, of what the longer one is thought to take: half of it after seven hundred.
const FORGETTING: f64 = 0.999;
/// The same of a step that was kept short because drafts seemed too dear: half of it after two thousand. One that is tried again costs
/// every answer in it.
const FORGETTING_DRAFTS: f64 = 0.9997;
/// The weight of a new measurement.
const LEARNING: f64 = 0.2;
/// Its weight where decoding alone took longer than was known: what is stored meanwhile makes a step slow, and longer ones should
/// not follow from that.
const LEARNING_SLOW_DECODES: f64 = 0.05;
/// Its weight where a row took longer than was known: rows cost more the further a prompt is, and a step that is too long is
/// what answers feel.
const LEARNING_UPWARDS: f64 = 0.5;
/// Rows of a step from which on its time says what a row takes: in shorter ones the pass over the weights counts for more.
const TELLING_ROWS: usize = 128;
/// Of this many rows of a busy step one is background work's.
const BACKGROUND_SHARE: usize = 16;

/// What steps were seen to take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Milliseconds of a step that only decodes, by the logarithm of its rows.
    decode_ms: [Option<f64>; 16],
    /// Milliseconds that a row of a prefill adds.
    row_ms: Option<f64>,
    /// As `row_ms`, of long steps alone: the least that a row takes.
    least_row_ms: Option<f64>,
    /// Milliseconds that a block takes to host memory.
    swap_ms: Option<f64>,
    /// Rows that background work was promised and has not had.
    background_rows: usize,
}

impl Pace {
    /// Rows of prefills for a step beside the answers of callers, which have so many rows each, `most` of them in the step. It is to take
    /// `target_ms`; 0 takes twice what decoding alone takes. Where nobody decodes it may take [`STEP_MS`].
    pub(super) fn rows(&self, callers: &[usize], most: usize, target_ms: f64) -> usize {
        let decoding = capped(callers, most);
        if decoding == 0 {
            let Some(row) = self.row_ms else { return 2 * FULL_ROWS };
            let allowed = STEP_MS - self.decoding_ms(1).unwrap_or(0.0);
            return ((allowed / row.max(1e-6)) as usize).clamp(FULL_ROWS, MOST_ROWS);
        }
        // Answers of one that has many are no reason to let those of others wait longer.
        let fair = capped(callers, fewest(callers));
        let known = (self.decoding_ms(fair), self.decoding_ms(decoding), self.row_ms);
        let (Some(fair), Some(alone), Some(row)) = known else { return 4 * LEAST_ROWS };
        let allowed = target_ms.max(fair * LEAST_STRETCH);
        (((allowed - alone) / row.max(1e-6)) as usize).clamp(LEAST_ROWS, MOST_ROWS)
    }

    /// Rows of a step that one caller's answers have, where the callers that are there have so many each: as many as the others can
    /// wait for. Whoever is alone has all.
    pub(super) fn decoding_rows(&self, callers: &[usize]) -> usize {
        let most = callers.iter().copied().max().unwrap_or(0);
        let mut rows = fewest(callers);
        let Some(fair) = self.decoding_ms(capped(callers, rows)) else { return usize::MAX };
        while rows < most {
            let more = rows * 2;
            if self.decoding_ms(capped(callers, more)).is_some_and(|ms| ms > fair * LARGEST_SHARE) {
                return rows;
            }
            rows = more;
        }
        usize::MAX
    }

    /// A step was kept to `most` rows of each caller: the longer one is not seen, so that what is thought of it fades until it is tried again.
    pub(super) fn doubt(&mut self, callers: &[usize], most: usize) {
        self.fade(capped(callers, most.saturating_mul(2)), FORGETTING);
    }

    /// What a step of `decoding` rows is predicted to take with `drafts` more, which are a decode's rows too; beside prefills, where the
    /// pass over the weights is paid for, each costs what a prefill's does. `None`: nothing is known.
    pub(super) fn drafting_ms(&self, decoding: usize, drafts: usize, beside_prefills: bool) -> Option<f64> {
        let longer = self.decoding_ms(decoding + drafts)?;
        let (true, Some(row)) = (beside_prefills, self.row_ms) else { return Some(longer) };
        let alone = self.decoding_ms(decoding)?;
        Some(LEAST_STRETCH * alone + (row * drafts as f64).max(longer - alone))
    }

    /// As [`drafting_ms`](Self::drafting_ms), if rows beside a decode's cost no more than a prefill's, as they may.
    pub(super) fn least_drafting_ms(&self, decoding: usize, drafts: usize, beside_prefills: bool) -> Option<f64> {
        let alone = self.decoding_ms(decoding)? * if beside_prefills { LEAST_STRETCH } else { 1.0 };
        Some(alone + self.row_ms.unwrap_or(0.0) * drafts as f64)
    }

    /// For what steps of so many rows, drafts among them, are thought to take none is made: that fades until one is tried again.
    pub(super) fn doubt_drafts(&mut self, rows: usize) {
        self.fade(rows, FORGETTING_DRAFTS);
    }

    fn fade(&mut self, rows: usize, factor: f64) {
        if let Some(longer) = &mut self.decode_ms[bucket(rows)] {
            *longer *= factor;
        }
    }

    /// Rows of them that background work may have though others want them.
    pub(super) fn background_rows(&self) -> usize {
        if self.background_rows >= LEAST_ROWS { self.background_rows } else { 0 }
    }

    /// The least that a row of a prefill takes, in milliseconds, however long the steps: what is refused for want of time is
    /// refused by this. 0: nothing is known.
    pub(super) fn least_row_ms(&self) -> f64 {
        self.least_row_ms.unwrap_or(0.0)
    }

    /// Rows of answers were prefilled while background work waited: some are owed to it.
    pub(super) fn owe(&mut self, answers: usize, background: usize) {
        let owed = self.background_rows + answers / BACKGROUND_SHARE;
        self.background_rows = owed.saturating_sub(background).min(MOST_ROWS);
    }

    /// Whether a sequence that is preempted is to go on from stored KV, of which `rows` are missing, rather than from its `blocks`
    /// swapped out: either way as much is copied to the device when it comes back.
    pub(super) fn prefers_to_compute(&self, rows: usize, blocks: usize) -> bool {
        let (Some(row), Some(alone), Some(swap)) = (self.row_ms, self.decoding_ms(1), self.swap_ms) else {
            return false;
        };
        alone + row * (rows as f64) < swap * blocks as f64
    }

    /// So many blocks went to host memory.
    pub(super) fn observe_swap(&mut self, blocks: usize, ms: f64) {
        let seen = ms / blocks.max(1) as f64;
        self.swap_ms = Some(self.swap_ms.map_or(seen, |old| old + LEARNING * (seen - old)));
    }

    /// A step was made.
    pub(super) fn observe(&mut self, decoding: usize, prefilling: usize, ms: f64) {
        let learn =
            |known: &mut Option<f64>, seen: f64| *known = Some(known.map_or(seen, |old| old + LEARNING * (seen - old)));
        match prefilling {
            0 if decoding > 0 => {
                let known = &mut self.decode_ms[bucket(decoding)];
                let weight = |old: f64| if ms > old { LEARNING_SLOW_DECODES } else { LEARNING };
                *known = Some(known.map_or(ms, |old| old + weight(old) * (ms - old)));
            }
            0 => {}
            rows => {
                // What the pass over the weights costs is not the rows'.
                let alone = self.decoding_ms(decoding.max(1)).unwrap_or(0.0);
                let seen = (ms - alone).max(0.0) / rows as f64;
                let upwards = |old: f64| if seen > old { LEARNING_UPWARDS } else { LEARNING };
                self.row_ms = Some(self.row_ms.map_or(seen, |old| old + upwards(old) * (seen - old)));
                if rows >= TELLING_ROWS {
                    // Down at once, up slowly: a slow start says nothing once a faster step was seen.
                    learn(&mut self.least_row_ms, seen);
                    self.least_row_ms = self.least_row_ms.map(|known| if seen < known { seen } else { known });
                }
            }
        }
    }

    /// What decoding alone takes; as that of the nearest number of rows that was seen.
    fn decoding_ms(&self, rows: usize) -> Option<f64> {
        let at = bucket(rows);
        let nearest = |index: &usize| (index.abs_diff(at), *index);
        let seen = (0..self.decode_ms.len()).filter(|index| self.decode_ms[*index].is_some());
        self.decode_ms[seen.min_by_key(nearest)?]
    }
}

/// Rows of the caller that has the fewest; one at least.
fn fewest(callers: &[usize]) -> usize {
    callers.iter().copied().min().unwrap_or(0).max(1)
}

/// Rows of all, where each has `most`.
fn capped(callers: &[usize], most: usize) -> usize {
    callers.iter().map(|rows| (*rows).min(most)).sum()
}

fn bucket(rows: usize) -> usize {
    (rows.max(1).ilog2() as usize).min(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_target_within_bounds() {
        let mut pace = Pace::default();
        assert_eq!(
            (pace.rows(&[0], usize::MAX, 0.0), pace.rows(&[4], usize::MAX, 0.0)),
            (2 * FULL_ROWS, 4 * LEAST_ROWS),
            "nothing is known"
        );
        for _ in 0..50 {
            pace.observe(4, 0, 100.0);
            pace.observe(4, 50, 150.0);
        }
        let row_ms = pace.row_ms.unwrap();
        assert!((row_ms - 1.0).abs() < 0.01, "{row_ms}");
        pace.observe(4, 50, 200.0);
        assert_eq!(pace.rows(&[4], usize::MAX, 0.0), 53, "rows that take twice as long are half believed at once");
        pace.observe(4, 50, 150.0);
        assert_eq!(pace.rows(&[4], usize::MAX, 0.0), 57, "and faster ones a fifth");
        (0..50).for_each(|_| pace.observe(4, 50, 150.0));
        assert_eq!(pace.least_row_ms(), 0.0, "short steps say nothing of long ones");
        pace.observe(4, 200, 250.0);
        assert!((pace.least_row_ms() - 0.75).abs() < 0.01, "{}", pace.least_row_ms());
        (0..50).for_each(|_| pace.observe(4, 50, 150.0));
        assert_eq!(pace.rows(&[4], usize::MAX, 0.0), 80, "0.8 of decoding alone");
        assert_eq!(pace.rows(&[4], usize::MAX, 300.0), 200);
        assert_eq!(pace.rows(&[4], usize::MAX, 10_000.0), MOST_ROWS);
        assert_eq!(pace.rows(&[0], usize::MAX, 10_000.0), FULL_ROWS, "a pass alone takes what a step may");
        // A machine that is a hundred times slower by the row.
        for _ in 0..50 {
            pace.observe(4, 50, 5100.0);
        }
        assert_eq!(pace.rows(&[4], usize::MAX, 0.0), LEAST_ROWS);
        assert_eq!(pace.rows(&[64], usize::MAX, 0.0), LEAST_ROWS, "as the nearest that was seen");
    }

    #[test]
    fn whoever_comes_does_not_wait_for_long_steps_of_others() {
        let pace = |decode_ms: f64, row_ms: f64| {
            let mut pace = Pace::default();
            pace.observe(1, 0, decode_ms);
            pace.observe(0, 100, decode_ms + 100.0 * row_ms);
            pace
        };
        assert_eq!(pace(10.0, 0.5).rows(&[], usize::MAX, 0.0), 180, "10 ms and 180 times 0.5 ms");
        assert_eq!(
            pace(500.0, 30.0).rows(&[], usize::MAX, 0.0),
            FULL_ROWS,
            "passes over the weights are not to be all it does"
        );
        assert_eq!(pace(2.0, 0.01).rows(&[], usize::MAX, 0.0), MOST_ROWS);
    }

    #[test]
    fn one_that_has_many_answers_has_what_the_others_can_wait_for() {
        let mut pace = Pace::default();
        assert_eq!(pace.decoding_rows(&[1, 64]), usize::MAX, "nothing is known");
        // A pass takes 10 ms, and a row 1 ms.
        for rows in [1, 2, 4, 8, 16, 32, 64] {
            pace.observe(rows, 0, 10.0 + rows as f64);
        }
        pace.observe(1, 20, 31.0);
        assert_eq!(pace.decoding_rows(&[64]), usize::MAX, "it is alone");
        assert_eq!(pace.decoding_rows(&[1, 1, 1]), usize::MAX, "all have the same");
        // 10 + 1 + 4 is within 1.4 of 12, and 10 + 1 + 8 is not.
        assert_eq!(pace.decoding_rows(&[1, 64]), 4);
        assert_eq!(pace.decoding_rows(&[0, 64]), 4, "one that only prefills is there, too");
        assert_eq!(pace.decoding_rows(&[1, 64, 64]), 2, "both have many");
        // 1.8 of what one row each takes, less what five take.
        assert_eq!(pace.rows(&[1, 64], 4, 0.0), LEAST_ROWS);
        assert_eq!(pace.rows(&[1, 64], 4, 64.0), 50);
        // A machine that was slow once is not thought to be for ever.
        pace.observe(4, 0, 10_000.0);
        assert_eq!(pace.decoding_rows(&[1, 64]), 2);
        (0..10_000).for_each(|_| pace.doubt(&[1, 64], 2));
        assert!(pace.decoding_rows(&[1, 64]) >= 4, "it tries");
        pace.observe(4, 0, 14.0);
        assert_eq!(pace.decoding_rows(&[1, 64]), 4, "and knows again; what is longer is not forgotten");
    }

    #[test]
    fn drafts_cost_what_steps_with_them_took_and_at_least_what_rows_do() {
        let mut pace = Pace::default();
        assert_eq!((pace.drafting_ms(1, 3, false), pace.least_drafting_ms(1, 3, false)), (None, None));
        pace.observe(1, 0, 10.0);
        pace.observe(4, 0, 30.0);
        assert_eq!((pace.drafting_ms(1, 3, false), pace.least_drafting_ms(1, 3, false)), (Some(30.0), Some(10.0)));
        pace.observe(1, 20, 30.0);
        assert_eq!(pace.least_drafting_ms(1, 3, false), Some(13.0), "a row of a prefill takes 1 ms");
        assert_eq!((pace.drafting_ms(1, 3, true), pace.least_drafting_ms(1, 3, true)), (Some(38.0), Some(21.0)));
        (0..2310).for_each(|_| pace.doubt_drafts(4));
        assert!((pace.drafting_ms(1, 3, false).unwrap() - 15.0).abs() < 0.1, "half of it");
        assert_eq!(pace.drafting_ms(1, 0, false), Some(10.0));
    }

    #[test]
    fn what_is_stored_anyway_need_not_be_swapped_where_that_takes_longer() {
        let mut pace = Pace::default();
        assert!(!pace.prefers_to_compute(1, 1_000_000), "nothing is known");
        pace.observe(1, 0, 10.0);
        pace.observe(1, 20, 30.0);
        pace.observe_swap(10, 5.0);
        // A pass takes 10 ms, a row 1 ms, a block 0.5 ms.
        assert!(!pace.prefers_to_compute(30, 80));
        assert!(pace.prefers_to_compute(30, 81));
    }

    #[test]
    fn background_work_is_owed_a_share_of_busy_steps() {
        let mut pace = Pace::default();
        let mut done = 0;
        for _ in 0..1000 {
            let background = pace.background_rows().min(64);
            done += background;
            pace.owe(256 - background, background);
        }
        let share = f64::from(done as u32) / 256_000.0;
        assert!((0.05..0.07).contains(&share), "{share}");
    }
}
