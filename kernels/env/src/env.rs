//! The one seam for clocks, randomness, threads and failpoints, so that a seed replays a run and a test can break any step.

mod stopwatch;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use self::stopwatch::Stopwatch;
use crate::{Error, ErrorKind, Result};

/// The variable that arms failpoints in a process that a test starts; its form is that of [`Env::arm`].
pub const FAILPOINTS_VARIABLE: &str = "RAGSTONE_FAILPOINTS";
/// Whether this build has failpoints. A release has none: whoever sets a variable must not make a service fail. It has what measurements
/// simulate a slow medium with: delays, which only the program itself can set.
pub const HAS_FAILPOINTS: bool = cfg!(debug_assertions);

/// Whether a build with failpoints, or without, knows a mode.
fn is_known(has_failpoints: bool, mode: FailMode) -> bool {
    has_failpoints || matches!(mode, FailMode::Off | FailMode::Delay(_) | FailMode::Line(_))
}

/// What the environment arms in a build with failpoints, or without.
fn armed_by(has_failpoints: bool, variable: Option<String>) -> Option<String> {
    variable.filter(|_| has_failpoints)
}

/// Clock, randomness and failpoints. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Env(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// State of a SplitMix64 generator: one atomic add a number, no lock.
    random_state: AtomicU64,
    /// False as long as no failpoint was ever armed, so that production pays one relaxed load.
    armed: AtomicBool,
    fail_points: Mutex<HashMap<String, FailPoint>>,
    /// Told of every failpoint that is set: what hangs at one looks again.
    set: Condvar,
    /// Held by who is served at a [`FailMode::Line`].
    line: Mutex<()>,
}

#[derive(Debug)]
enum Clock {
    /// And by how many milliseconds it is put ahead, for tests of clocks that are wrong.
    System(AtomicI64),
    /// Milliseconds since 1970, moved by [`Env::advance`] only.
    Fixed(AtomicU64),
}

#[derive(Debug)]
struct FailPoint {
    mode: FailMode,
    /// Hits that pass before the failpoint fires.
    passes_left: u64,
    hits: u64,
}

/// What an armed failpoint does when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailMode {
    /// Nothing.
    Off,
    /// Returns an error of this kind.
    Error(ErrorKind),
    /// Takes so long: a slow disk, a busy processor.
    Delay(Duration),
    /// Takes so long, one after the other: a medium whose bandwidth is shared.
    Line(Duration),
    /// Does not come back before the failpoint is set again: a disk that hangs, however slow the machine.
    Hang,
    /// Panics.
    Panic,
    /// Ends the process at once; no destructor runs, as with `kill -9`.
    Kill,
}

impl FromStr for FailMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "off" => Self::Off,
            "error" => Self::Error(ErrorKind::Internal),
            "error:full" => Self::Error(ErrorKind::Full),
            "error:corrupt" => Self::Error(ErrorKind::Corrupt),
            "error:not_found" => Self::Error(ErrorKind::NotFound),
            "error:unavailable" => Self::Error(ErrorKind::Unavailable),
            "hang" => Self::Hang,
            "panic" => Self::Panic,
            "kill" => Self::Kill,
            _ => {
                let milliseconds = text.strip_prefix("delay:").and_then(|text| text.parse::<u16>().ok());
                if let Some(milliseconds) = milliseconds {
                    return Ok(Self::Delay(Duration::from_millis(milliseconds.into())));
                }
                return Err(Error::invalid_input(format!(
                    "failpoint mode '{text}' is unknown; use off, error, error:full, error:corrupt, error:not_found, \
                     error:unavailable, delay:MILLISECONDS, hang, panic or kill"
                )));
            }
        })
    }
}

impl Env {
    /// The system's clock and a generator seeded by the system; no failpoint is armed.
    pub fn system() -> Self {
        // The standard library seeds a `RandomState` from the operating system: the one place that needs entropy.
        let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self::new(Clock::System(AtomicI64::new(0)), seed)
    }

    /// [`Env::system`] with the failpoints of [`FAILPOINTS_VARIABLE`] armed, where this build has any.
    ///
    /// # Errors
    /// `InvalidInput` if the variable is malformed.
    pub fn from_environment() -> Result<Self> {
        let env = Self::system();
        if let Some(table) = armed_by(HAS_FAILPOINTS, std::env::var(FAILPOINTS_VARIABLE).ok()) {
            env.arm(&table)?;
        }
        Ok(env)
    }

    /// A clock that stands at `now_unix_ms` until [`Env::advance`] moves it, and randomness that `seed` replays.
    pub fn seeded(seed: u64, now_unix_ms: u64) -> Self {
        Self::new(Clock::Fixed(AtomicU64::new(now_unix_ms)), seed)
    }

    /// The system's clock and randomness that `seed` replays: for measurements.
    pub fn system_with_seed(seed: u64) -> Self {
        Self::new(Clock::System(AtomicI64::new(0)), seed)
    }

    fn new(clock: Clock, seed: u64) -> Self {
        Self(Arc::new(Inner {
            clock,
            random_state: AtomicU64::new(seed),
            armed: AtomicBool::new(false),
            fail_points: Mutex::new(HashMap::new()),
            line: Mutex::default(),
            set: Condvar::new(),
        }))
    }

    /// Wall-clock time in milliseconds since 1970, UTC.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system for the time")]
    pub fn now_unix_ms(&self) -> u64 {
        match &self.0.clock {
            Clock::System(ahead_ms) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                now.saturating_add_signed(ahead_ms.load(Ordering::Relaxed))
            }
            Clock::Fixed(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Measures from now on this clock; a seeded one stands until [`Env::advance`] moves it.
    pub fn stopwatch(&self) -> Stopwatch {
        match &self.0.clock {
            Clock::System(_) => Stopwatch::start(),
            Clock::Fixed(_) => Stopwatch::seeded(self),
        }
    }

    /// Starts a named thread of the process's own. Computation belongs to rayon's pool, waiting to tokio's.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread left.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts threads")]
    pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the thread {name} did not start: {error}")))
    }

    /// Moves a seeded clock on; a system clock moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Clock::Fixed(now) = &self.0.clock {
            now.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Sets the wall clock, forward or back, as a person or a time server does; what stopwatches measure goes on as it was, but for a seeded
    /// clock, which is all there is.
    pub fn set_clock(&self, by_ms: i64) {
        match &self.0.clock {
            Clock::System(ahead_ms) => drop(ahead_ms.fetch_add(by_ms, Ordering::Relaxed)),
            Clock::Fixed(now) => {
                let set = |now: u64| Some(now.saturating_add_signed(by_ms));
                let _ = now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
            }
        }
    }

    /// Whether the clock stands until it is moved: then it is everybody's, those beyond this machine included.
    pub fn is_seeded(&self) -> bool {
        matches!(self.0.clock, Clock::Fixed(_))
    }

    /// The next number of the generator (SplitMix64). Not for secrets.
    pub fn random_u64(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.random_state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Arms failpoints from text: `name=mode[@n]`, separated by `;`. With `@n` it fires from the n-th hit on.
    /// Example: `disk.before_write=error:full;disk.after_write=kill@3`.
    ///
    /// # Errors
    /// `InvalidInput` if the text is malformed; then nothing of it is armed.
    pub fn arm(&self, table: &str) -> Result<()> {
        let mut parsed = Vec::new();
        for rule in table.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let (name, action) = rule.split_once('=').ok_or_else(|| {
                Error::invalid_input(format!("failpoint '{rule}' is not of the form name=mode or name=mode@n"))
            })?;
            let (mode, nth) = match action.split_once('@') {
                None => (action, 1),
                Some((mode, nth)) => match nth.parse::<u64>() {
                    Ok(nth) if nth > 0 => (mode, nth),
                    _ => return Err(Error::invalid_input(format!("failpoint '{rule}': '{nth}' is not a hit number"))),
                },
            };
            parsed.push((name.trim().to_owned(), mode.parse::<FailMode>()?, nth));
        }
        for (name, mode, nth) in parsed {
            self.set_fail_point(&name, mode, nth);
        }
        Ok(())
    }

    /// Arms one failpoint: it fires from the `nth` hit on (1 = the first). A build without failpoints knows delays alone.
    pub fn set_fail_point(&self, name: &str, mode: FailMode, nth: u64) {
        if !is_known(HAS_FAILPOINTS, mode) {
            return;
        }
        let point = FailPoint { mode, passes_left: nth.saturating_sub(1), hits: 0 };
        self.fail_points().insert(name.to_owned(), point);
        self.0.armed.store(true, Ordering::Release);
        self.0.set.notify_all();
    }

    /// How often an armed failpoint was reached (0 for one that was never armed).
    pub fn fail_point_hits(&self, name: &str) -> u64 {
        self.fail_points().get(name).map_or(0, |point| point.hits)
    }

    /// How long an armed failpoint delays, for a step that waits without holding a thread; zero where it does anything else.
    pub fn delay_at(&self, name: &str) -> Duration {
        if !self.0.armed.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        match self.fail_points().get(name).map(|point| point.mode) {
            Some(FailMode::Delay(time)) => time,
            _ => Duration::ZERO,
        }
    }

    /// A named place where a test can make the step fail. Free unless a failpoint was armed.
    ///
    /// # Errors
    /// The armed error. Panics or ends the process if armed so: never in production, where none is armed.
    pub fn fail_point(&self, name: &str) -> Result<()> {
        if !self.0.armed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mode = {
            let mut points = self.fail_points();
            let Some(point) = points.get_mut(name) else { return Ok(()) };
            point.hits += 1;
            if point.passes_left > 0 {
                point.passes_left -= 1;
                return Ok(());
            }
            point.mode
        };
        match mode {
            FailMode::Off => Ok(()),
            FailMode::Delay(time) => {
                std::thread::sleep(time);
                Ok(())
            }
            FailMode::Line(time) => {
                let _turn = self.0.line.lock().unwrap_or_else(PoisonError::into_inner);
                std::thread::sleep(time);
                Ok(())
            }
            FailMode::Hang => {
                let hangs = |points: &mut HashMap<String, FailPoint>| {
                    points.get(name).is_some_and(|point| point.mode == FailMode::Hang)
                };
                drop(self.0.set.wait_while(self.fail_points(), hangs));
                Ok(())
            }
            FailMode::Error(kind) => Err(Error::new(kind, format!("failpoint {name} fired"))),
            FailMode::Panic => panic!("failpoint {name} fired"),
            FailMode::Kill => std::process::abort(),
        }
    }

    fn fail_points(&self) -> MutexGuard<'_, HashMap<String, FailPoint>> {
        self.0.fail_points.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_clock_and_randomness() {
        let draw = |env: &Env| (0..4).map(|_| env.random_u64()).collect::<Vec<_>>();
        assert_eq!(draw(&Env::seeded(7, 0)), draw(&Env::seeded(7, 0)));
        assert_ne!(draw(&Env::seeded(7, 0)), draw(&Env::seeded(8, 0)));
        let env = Env::seeded(0, 1_000);
        env.clone().advance(Duration::from_secs(2));
        assert_eq!(env.now_unix_ms(), 3_000, "clones share the clock");
        // SplitMix64's published first output for seed 0.
        assert_eq!(env.random_u64(), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn the_system_clock_moves_and_seeds_differ() {
        let env = Env::system();
        assert!(env.now_unix_ms() > 1_600_000_000_000);
        assert_ne!(env.random_u64(), Env::system().random_u64());
    }

    #[test]
    fn a_thread_has_its_name_and_gives_back_what_it_made() {
        let thread = Env::spawn("named", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(thread.join().unwrap().as_deref(), Some("named"));
    }

    #[test]
    fn failpoints_fire_from_the_nth_hit_on() {
        let env = Env::seeded(0, 0);
        assert!(env.fail_point("a").is_ok(), "unarmed");
        env.arm("a=error:full@3; b=off ;").unwrap();
        assert!(env.fail_point("a").is_ok());
        assert!(env.fail_point("a").is_ok());
        assert_eq!(env.fail_point("a").unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(env.fail_point("a").unwrap_err().kind(), ErrorKind::Full);
        assert!(env.fail_point("b").is_ok());
        assert_eq!((env.fail_point_hits("a"), env.fail_point_hits("b"), env.fail_point_hits("c")), (4, 1, 0));
        env.set_fail_point("a", FailMode::Panic, 1);
        let clone = env.clone();
        assert!(std::panic::catch_unwind(move || clone.fail_point("a")).is_err());
        env.set_fail_point("a", FailMode::Off, 1);
        assert!(env.fail_point("a").is_ok());
    }

    #[test]
    fn a_release_has_no_failpoints() {
        let table = || Some("disk.before_write=kill".to_owned());
        assert_eq!((armed_by(false, table()), armed_by(true, table())), (None, table()));
        let slow = [FailMode::Off, FailMode::Delay(Duration::ZERO), FailMode::Line(Duration::ZERO)];
        assert!(slow.into_iter().all(|mode| is_known(false, mode)), "what measurements simulate");
        let broken = [FailMode::Error(ErrorKind::Full), FailMode::Hang, FailMode::Panic, FailMode::Kill];
        assert!(
            !broken.into_iter().any(|mode| is_known(false, mode))
                && broken.into_iter().all(|mode| is_known(true, mode))
        );
        assert_eq!(HAS_FAILPOINTS, cfg!(debug_assertions));
    }

    #[test]
    fn clocks_are_set_forward_and_back_and_stopwatches_go_on() {
        let env = Env::system();
        let (before, watch) = (env.now_unix_ms(), env.stopwatch());
        env.set_clock(86_400_000);
        assert!(env.now_unix_ms() >= before + 86_400_000);
        env.set_clock(-2 * 86_400_000);
        assert!(env.now_unix_ms() < before && watch.elapsed() < Duration::from_secs(3600));
        let env = Env::seeded(1, 1000);
        env.set_clock(-5000);
        assert_eq!((env.now_unix_ms(), env.is_seeded()), (0, true));
    }

    #[test]
    fn malformed_tables_arm_nothing() {
        for table in ["a", "a=loud", "a=error@0", "a=error@x", "b=error;a=loud"] {
            let env = Env::seeded(0, 0);
            assert_eq!(env.arm(table).unwrap_err().kind(), ErrorKind::InvalidInput, "{table}");
            assert!(env.fail_point("a").is_ok() && env.fail_point("b").is_ok());
        }
    }
}
