//! Progress on standard error: bars on a terminal, a plain line now and then elsewhere. What takes under two seconds
//! shows nothing.

use std::fmt::Display;
use std::future::Future;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use ragstone_env::{Stopwatch, mebibytes};

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_secs(2);
/// Where no terminal is, a line at most this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Steps of a bar whose share of the work is told.
const SHARES: u64 = 1000;

/// All bars of the process share the screen with its log lines.
static SCREEN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Runs `write` while no bar is drawn, so that lines and bars do not mix.
pub fn beside_bars<T>(write: impl FnOnce() -> T) -> T {
    SCREEN.suspend(write)
}

/// Writes a line for people to standard error, while no bar is drawn. That nobody reads it any more (`2>&1 | head`) is no error.
pub fn tell(line: impl Display) {
    beside_bars(|| write(line));
}

fn write(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says what is fetched before it is: from where, and how much.
pub fn announce(what: &str, bytes: u64, from: &str) {
    let megabytes = bytes.div_ceil(1_000_000);
    tell(format_args!("fetching {what} ({megabytes} MB, once) from {from}"));
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Items,
    /// Items of which some take far longer than others: whoever counts them says which share is done, and how long the rest takes.
    Estimated,
    /// Nothing: the end is not known.
    Nothing,
}

/// One running piece of work. Clones show the same one; the last clone that goes ends it.
#[derive(Clone)]
pub struct Progress(Arc<Inner>);

struct Inner {
    unit: Unit,
    begun: Stopwatch,
    state: Mutex<State>,
}

struct State {
    what: String,
    /// Drawn once the work turns out to be long.
    bar: Option<ProgressBar>,
    last_line: Stopwatch,
    lines: usize,
    done: u64,
    total: u64,
    /// Seconds, where whoever counts knows them.
    left_s: Option<f64>,
    /// From 0 to 1, where whoever counts knows it.
    share: Option<f64>,
}

impl Progress {
    /// Begins `what`; shown from the first [`set`](Self::set) or [`tick`](Self::tick) after two seconds.
    pub fn new(what: impl Into<String>, unit: Unit) -> Self {
        let begun = Stopwatch::start();
        let what = what.into();
        let (bar, last_line, (left_s, share)) = (None, begun.clone(), (None, None));
        let state = State { what, bar, last_line, lines: 0, done: 0, total: 0, left_s, share };
        Self(Arc::new(Inner { unit, begun, state: Mutex::new(state) }))
    }

    /// Shows another text for what is done now.
    pub fn describe(&self, what: String) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = &state.bar {
            bar.set_message(what.clone());
        }
        state.what = what;
    }

    /// Has the next [`set`](Self::set) show that it takes so many seconds more; `None`: nobody knows.
    pub fn estimate(&self, left_s: Option<f64>) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).left_s = left_s;
    }

    /// Has the next [`set`](Self::set) show that this share of the work is done, from 0 to 1; `None`: that of the items.
    pub fn share(&self, share: Option<f64>) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).share = share;
    }

    /// Shows `done` of `total`.
    pub fn set(&self, done: u64, total: u64) {
        let inner = &self.0;
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.done, state.total) = (done, total);
        if inner.begun.elapsed() < QUIET {
            return;
        }
        if std::io::stderr().is_terminal() {
            let left = state.left_s.map_or_else(String::new, left);
            let share = state.share.filter(|_| inner.unit == Unit::Estimated);
            let State { what, bar, .. } = &mut *state;
            let bar = bar.get_or_insert_with(|| inner.bar(what));
            match share {
                Some(share) => {
                    bar.set_length(SHARES);
                    bar.set_prefix(format!("{done}/{total} {left}"));
                    bar.set_position((share.clamp(0.0, 1.0) * SHARES as f64) as u64);
                }
                None => {
                    bar.set_length(total);
                    bar.set_prefix(if inner.unit == Unit::Estimated { format!("{done}/{total} {left}") } else { left });
                    bar.set_position(done);
                }
            }
        } else if state.lines == 0 || state.last_line.elapsed() >= LINE_EVERY {
            inner.line(&mut state);
        }
    }

    /// Shows that the work goes on; it is as far as it was, where that is known.
    pub fn tick(&self) {
        let (done, total) = {
            let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.done, state.total)
        };
        self.set(done, total);
    }

    /// Ticks for as long as `work` runs.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(Duration::from_millis(250), &mut work).await {
                Ok(done) => return done,
                Err(_) => self.tick(),
            }
        }
    }
}

impl Inner {
    fn bar(&self, what: &str) -> ProgressBar {
        let template = match self.unit {
            Unit::Bytes => "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}",
            Unit::Items => "{msg} [{bar:30}] {pos}/{len} {eta}",
            Unit::Estimated => "{msg} [{bar:30}] {prefix}",
            Unit::Nothing => "{spinner} {msg} {elapsed}",
        };
        let bar = SCREEN.add(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    fn line(&self, state: &mut State) {
        state.lines += 1;
        state.last_line = Stopwatch::start();
        let seconds = self.begun.elapsed().as_secs();
        match self.unit {
            Unit::Bytes if state.total > 0 => {
                let (done, total) = (mebibytes(state.done), mebibytes(state.total));
                write(format_args!("{}: {done:.0} of {total:.0} MiB, {seconds} s", state.what));
            }
            Unit::Items if state.total > 0 => {
                let left_s = self.begun.elapsed_s() / state.done as f64 * state.total.saturating_sub(state.done) as f64;
                self.line_of_items(state, left_s.is_finite().then_some(left_s));
            }
            Unit::Estimated if state.total > 0 => self.line_of_items(state, state.left_s),
            _ => write(format_args!("{}: {seconds} s", state.what)),
        }
    }

    fn line_of_items(&self, State { what, done, total, share, .. }: &State, left_s: Option<f64>) {
        let seconds = self.begun.elapsed().as_secs();
        let left = left_s.map_or_else(String::new, |left_s| format!(", {}", left(left_s)));
        let share = share.map_or_else(String::new, |share| format!(", {:.0} %", 100.0 * share));
        write(format_args!("{what}: {done} of {total}{share}, {seconds} s{left}"));
    }
}

/// `about 40 s left`, and larger units for what takes long.
pub fn left(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("about {seconds:.0} s left"),
        120.0..7200.0 => format!("about {:.0} min left", seconds / 60.0),
        _ => format!("about {:.0} h left", seconds / 3600.0),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
            SCREEN.remove(&bar);
        }
        if state.lines > 0 {
            write(format_args!("{}: ended after {:.0} s", state.what, self.begun.elapsed_s()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_shows_nothing_and_clones_share() {
        let progress = Progress::new("short", Unit::Items);
        progress.clone().set(1, 2);
        let state = progress.0.state.lock().unwrap();
        assert!(state.bar.is_none() && state.lines == 0);
        assert_eq!((state.done, state.total), (1, 2));
        drop(state);
        progress.tick();
        assert_eq!(progress.0.state.lock().unwrap().done, 1, "a tick goes back to nothing");
        progress.clone().describe("another".into());
        assert_eq!(progress.0.state.lock().unwrap().what, "another");
    }

    #[test]
    fn what_is_left_is_said_in_units_that_fit() {
        assert_eq!(
            [7.4, 119.0, 150.0, 36_000.0].map(left),
            ["about 7 s left", "about 119 s left", "about 2 min left", "about 10 h left"]
        );
    }
}
