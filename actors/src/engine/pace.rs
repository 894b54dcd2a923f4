//! How many rows of prefills a step may have, so that running answers keep their pace.

/// Rows of a step while nobody decodes: what goes through a layer together, so longer chunks gain nothing.
const MOST_ROWS: usize = 512;
/// However slow steps are, prefills go on.
const LEAST_ROWS: usize = 16;
/// What a step may take beside its target, as a multiple of decoding alone: less would cost more in repeated passes over the
/// weights than it saves.
const LEAST_STRETCH: f64 = 1.8;
/// The weight of a new measurement.
const LEARNING: f64 = 0.2;
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
    /// Rows that background work was promised and has not had.
    background_rows: usize,
}

impl Pace {
    /// Rows of prefills for a step beside `decoding` rows that is to take `target_ms`; 0 takes twice what decoding alone takes.
    pub(super) fn rows(&self, decoding: usize, target_ms: f64) -> usize {
        if decoding == 0 {
            return MOST_ROWS;
        }
        let (Some(alone), Some(row)) = (self.decoding_ms(decoding), self.row_ms) else { return 4 * LEAST_ROWS };
        let allowed = target_ms.max(alone * LEAST_STRETCH);
        (((allowed - alone) / row.max(1e-6)) as usize).clamp(LEAST_ROWS, MOST_ROWS)
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

    /// A step was made.
    pub(super) fn observe(&mut self, decoding: usize, prefilling: usize, ms: f64) {
        let learn =
            |known: &mut Option<f64>, seen: f64| *known = Some(known.map_or(seen, |old| old + LEARNING * (seen - old)));
        match prefilling {
            0 if decoding > 0 => learn(&mut self.decode_ms[bucket(decoding)], ms),
            0 => {}
            rows => {
                // What the pass over the weights costs is not the rows'.
                let alone = self.decoding_ms(decoding.max(1)).unwrap_or(0.0);
                learn(&mut self.row_ms, (ms - alone).max(0.0) / rows as f64);
                if rows >= TELLING_ROWS {
                    let seen = (ms - alone).max(0.0) / rows as f64;
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

fn bucket(rows: usize) -> usize {
    (rows.max(1).ilog2() as usize).min(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_target_within_bounds() {
        let mut pace = Pace::default();
        assert_eq!((pace.rows(0, 0.0), pace.rows(4, 0.0)), (MOST_ROWS, 4 * LEAST_ROWS), "nothing is known");
        for _ in 0..50 {
            pace.observe(4, 0, 100.0);
            pace.observe(4, 50, 150.0);
        }
        let row_ms = pace.row_ms.unwrap();
        assert!((row_ms - 1.0).abs() < 0.01, "{row_ms}");
        assert_eq!(pace.least_row_ms(), 0.0, "short steps say nothing of long ones");
        pace.observe(4, 200, 250.0);
        assert!((pace.least_row_ms() - 0.75).abs() < 0.01, "{}", pace.least_row_ms());
        (0..50).for_each(|_| pace.observe(4, 50, 150.0));
        assert_eq!(pace.rows(4, 0.0), 80, "0.8 of decoding alone");
        assert_eq!(pace.rows(4, 300.0), 200);
        assert_eq!(pace.rows(4, 10_000.0), MOST_ROWS);
        // A machine that is a hundred times slower by the row.
        for _ in 0..50 {
            pace.observe(4, 50, 5100.0);
        }
        assert_eq!(pace.rows(4, 0.0), LEAST_ROWS);
        assert_eq!(pace.rows(64, 0.0), LEAST_ROWS, "as the nearest that was seen");
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
