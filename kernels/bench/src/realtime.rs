//! Real-time scheduling of a benchmark's threads, so that what else a machine does takes nothing from them.
//!
//! Only where it is asked for: threads that compute on all processors leave others what the system keeps from real-time threads (a twentieth, as
//! Linux comes), and a service beside the benchmark would answer that slowly. Where the system keeps nothing from them it is not tried at all.

use std::sync::OnceLock;

use serde::Serialize;

/// How a benchmark's threads are scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// As all others: what else runs is in the figures.
    Usual,
    /// Before all that is not real-time (`SCHED_RR`, the lowest priority).
    RealTime,
    /// It was asked for, and is as usual.
    Refused {
        /// Why.
        why: String,
    },
}

static IN_USE: OnceLock<Scheduling> = OnceLock::new();

impl Scheduling {
    /// Of this process, as far as [`try_real_time`] was called.
    pub fn in_use() -> Self {
        IN_USE.get().cloned().unwrap_or(Self::Usual)
    }

    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Usual => "scheduled as usual (--realtime has what else runs wait)".into(),
            Self::RealTime => "real-time scheduling".into(),
            Self::Refused { why } => format!("scheduled as usual: {why}"),
        }
    }
}

/// Schedules all threads of this process before others, and with them those that they start from here on.
pub fn try_real_time() {
    let scheduling = match system::try_real_time() {
        Ok(()) => Scheduling::RealTime,
        Err(why) => Scheduling::Refused { why },
    };
    // It stays with what was tried first.
    let _ = IN_USE.set(scheduling);
}

#[cfg(target_os = "linux")]
mod system {
    /// The lowest: only what is real-time already goes on before it.
    const PRIORITY: libc::c_int = 1;

    /// Microseconds a period that real-time threads may take, and of a period.
    const LIMITS: [&str; 2] = ["/proc/sys/kernel/sched_rt_runtime_us", "/proc/sys/kernel/sched_rt_period_us"];

    pub fn try_real_time() -> Result<(), String> {
        let [runtime, period] = LIMITS.map(|file| std::fs::read_to_string(file).unwrap_or_default());
        super::leaves_room(&runtime, &period)?;
        let failed =
            |error: std::io::Error| format!("the system does not let it be real-time ({error}); it takes CAP_SYS_NICE");
        let threads = std::fs::read_dir("/proc/self/task").map_err(failed)?;
        let ids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<libc::pid_t>().ok());
        for id in ids {
            let parameters = libc::sched_param { sched_priority: PRIORITY };
            // SAFETY: it reads what it is given; a thread that has ended is an error as any other.
            if unsafe { libc::sched_setscheduler(id, libc::SCHED_RR, &raw const parameters) } == 0 {
                continue;
            }
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ESRCH) {
                return Err(failed(error));
            }
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn try_real_time() -> Result<(), String> {
        Err("real-time scheduling is there on Linux only".into())
    }
}

/// Whether real-time threads that never wait leave others something, as the system says: so many microseconds of so many.
///
/// # Errors
/// Why not.
#[cfg(any(target_os = "linux", test))]
fn leaves_room(runtime_us: &str, period_us: &str) -> Result<(), String> {
    let read = |text: &str| text.trim().parse::<i64>().ok();
    match (read(runtime_us), read(period_us)) {
        (Some(runtime), Some(period)) if (1..period).contains(&runtime) => Ok(()),
        (Some(_), Some(_)) => {
            Err("the system keeps nothing from real-time threads (sched_rt_runtime_us), and the machine could hang"
                .into())
        }
        _ => Err("the system does not say what it keeps from real-time threads".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_only_where_others_keep_some_of_the_processor() {
        assert_eq!(leaves_room("950000\n", "1000000\n"), Ok(()));
        for (runtime, period) in
            [("-1", "1000000"), ("1000000", "1000000"), ("0", "1000000"), ("", "1000000"), ("9", "")]
        {
            assert!(leaves_room(runtime, period).is_err(), "{runtime} of {period}");
        }
    }
}
