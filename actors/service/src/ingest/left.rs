//! How long an ingest still takes. Files that are stored and unchanged are only read, and files that are new are embedded, too, which takes a
//! hundred times as long: each kind has its own rate, new files by their bytes.

use super::NewFiles;

/// What each kind of file took since the first look, before which a job may have waited for its turn.
#[derive(Debug, Default)]
pub(super) struct TimeLeft {
    first: Option<Seen>,
    last: Seen,
    /// Seconds in which new files got done, and seconds in which none did.
    new_s: f64,
    known_s: f64,
}

/// A look: when it was, how many files were done of which documents were stored, and how many bytes of others.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    at_s: f64,
    known: usize,
    new_bytes: u64,
}

impl TimeLeft {
    /// Seconds that are left at `at_s`, when so many of all files are done. `None` where nothing is known of how long it takes.
    pub fn after(&mut self, at_s: f64, (files_done, files_total): (usize, usize), new: NewFiles) -> Option<f64> {
        let now = Seen { at_s, known: files_done.saturating_sub(new.files_done), new_bytes: new.bytes_done };
        let Some(first) = self.first else {
            (self.first, self.last) = (Some(now), now);
            return None;
        };
        let known_left = files_total.saturating_sub(new.files_total).saturating_sub(now.known);
        let new_left = new.bytes_total.saturating_sub(new.bytes_done);
        // While nothing moves, what is embedded is stored.
        let is_of_new = now.new_bytes > self.last.new_bytes || (now.known == self.last.known && new_left > 0);
        *(if is_of_new { &mut self.new_s } else { &mut self.known_s }) += at_s - self.last.at_s;
        self.last = now;
        let new = rate(self.new_s, now.new_bytes.saturating_sub(first.new_bytes) as f64, new_left as f64)?;
        let known = rate(self.known_s, now.known.saturating_sub(first.known) as f64, known_left as f64)?;
        (files_total > 0).then_some(new + known)
    }
}

/// Seconds for what is left, where `done` took `seconds`.
fn rate(seconds: f64, done: f64, left: f64) -> Option<f64> {
    if left == 0.0 {
        return Some(0.0);
    }
    (done > 0.0).then(|| seconds / done * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `files` new ones of 1000 bytes each.
    fn new(files_done: usize, files_total: usize) -> NewFiles {
        let bytes = |files: usize| 1000 * files as u64;
        NewFiles { files_done, files_total, bytes_done: bytes(files_done), bytes_total: bytes(files_total) }
    }

    #[test]
    fn stored_files_say_nothing_of_how_long_new_ones_take() {
        // 900 of 1000 files are stored: they pass in 9 s, and each of the others takes 2 s.
        let mut left = TimeLeft::default();
        // It waited for its turn before that.
        let waited = 600.0;
        assert_eq!(left.after(waited, (0, 1000), new(0, 100)), None);
        for second in 1..=9 {
            assert_eq!(left.after(waited + f64::from(second), (100 * second as usize, 1000), new(0, 100)), None);
        }
        let mut before = f64::INFINITY;
        for done in 1..=100 {
            let now = waited + 9.0 + 2.0 * done as f64;
            let told = left.after(now, (900 + done, 1000), new(done, 100)).unwrap();
            assert!((told - 2.0 * (100 - done) as f64).abs() < 1e-6, "{done}: {told}");
            assert!(told < before, "it only falls");
            before = told;
        }
    }

    #[test]
    fn new_files_first_leave_the_others_open_and_files_alone_have_their_rate() {
        let mut left = TimeLeft::default();
        left.after(0.0, (0, 10), new(0, 2));
        assert_eq!(left.after(4.0, (2, 10), new(2, 2)), None, "nobody knows yet how long the stored ones take");
        assert_eq!(left.after(5.0, (6, 10), new(2, 2)), Some(1.0));
        let mut left = TimeLeft::default();
        // Some cannot be read, which took no time.
        left.after(0.0, (2, 9), new(0, 0));
        assert_eq!(left.after(3.0, (5, 9), new(0, 0)), Some(4.0));
        assert_eq!(left.after(9.0, (9, 9), new(0, 0)), Some(0.0));
        assert_eq!(TimeLeft::default().after(1.0, (0, 0), new(0, 0)), None);
    }

    #[test]
    fn within_one_large_file_it_is_known_too_and_counts_the_time_of_storing() {
        let within = |bytes_done| NewFiles { files_done: 0, files_total: 1, bytes_done, bytes_total: 1000 };
        let mut left = TimeLeft::default();
        assert_eq!(left.after(0.0, (0, 1), within(0)), None);
        assert_eq!(left.after(3.0, (0, 1), within(250)), Some(9.0));
        // Nothing moves while a batch is written.
        assert_eq!(left.after(4.0, (0, 1), within(250)), Some(12.0));
        assert_eq!(left.after(8.0, (0, 1), within(500)), Some(8.0));
    }
}
