//! How long an ingest still takes. Files that are stored and unchanged are only read, and files that are new are embedded, too, which takes a
//! hundred times as long: each kind has its own rate, new files by their bytes.

use crate::ingest::NewFiles;

/// What each kind of file took so far.
#[derive(Debug, Default)]
pub struct TimeLeft {
    /// Seconds in which new files got done, and seconds in which none did.
    new_s: f64,
    known_s: f64,
    seen_s: f64,
    new_bytes: u64,
}

impl TimeLeft {
    /// Seconds that are left after `now_s`, when so many of all files are done. `None` where nothing is known of how long it takes.
    pub fn after(&mut self, now_s: f64, (files_done, files_total): (usize, usize), new: NewFiles) -> Option<f64> {
        let passed = now_s - self.seen_s;
        *(if new.bytes_done > self.new_bytes { &mut self.new_s } else { &mut self.known_s }) += passed;
        (self.seen_s, self.new_bytes) = (now_s, new.bytes_done);
        let known_done = files_done.saturating_sub(new.files_done);
        let known_left = files_total.saturating_sub(new.files_total).saturating_sub(known_done);
        let new_left = new.bytes_total.saturating_sub(new.bytes_done);
        let left = rate(self.new_s, new.bytes_done as f64, new_left as f64)?
            + rate(self.known_s, known_done as f64, known_left as f64)?;
        (files_total > 0).then_some(left)
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
        assert_eq!(left.after(0.1, (0, 1000), new(0, 100)), None);
        for second in 1..=9 {
            assert_eq!(left.after(f64::from(second), (100 * second as usize, 1000), new(0, 100)), None);
        }
        let mut before = f64::INFINITY;
        for done in 1..=100 {
            let now = 9.0 + 2.0 * done as f64;
            let told = left.after(now, (900 + done, 1000), new(done, 100)).unwrap();
            assert!((told - 2.0 * (100 - done) as f64).abs() < 1e-6, "{done}: {told}");
            assert!(told < before, "it only falls");
            before = told;
        }
    }

    #[test]
    fn new_files_first_leave_the_others_open_and_files_alone_have_their_rate() {
        let mut left = TimeLeft::default();
        assert_eq!(left.after(4.0, (2, 10), new(2, 2)), None, "nobody knows yet how long the stored ones take");
        assert_eq!(left.after(5.0, (6, 10), new(2, 2)), Some(1.0));
        let mut left = TimeLeft::default();
        assert_eq!(left.after(3.0, (3, 9), new(0, 0)), Some(6.0));
        assert_eq!(left.after(9.0, (9, 9), new(0, 0)), Some(0.0));
        assert_eq!(TimeLeft::default().after(1.0, (0, 0), new(0, 0)), None);
    }
}
