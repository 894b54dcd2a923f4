//! What a process that parses files may have: set by itself before it reads anything, because between `fork` and `exec`
//! of a process with threads little is safe to do.

use std::io::{Error, Result};

/// Address space beyond what the program has when it starts. The greatest file (64 MiB) parsed as HTML with ordinary markup
/// needs about half of it; a machine that serves a model has it to spare.
pub const MEMORY_BYTES: u64 = 1 << 30;

/// How much nicer than others it is, as `nice` counts.
const NICENESS: i32 = 10;

/// No memory beyond [`MEMORY_BYTES`], no file opened or written, no core dump, no life after the process `parent`.
///
/// # Errors
/// What the system said: without its limits the process must not go on.
pub fn set(parent: u32) -> Result<()> {
    die_with(parent)?;
    // SAFETY: it takes numbers. Whoever asks a question is waited for, and a file is not: if it is refused, nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, NICENESS) };
    limit_memory()?;
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_FSIZE, 0)?;
    // The pipes are open; nothing else is to be.
    limit(libc::RLIMIT_NOFILE, 0)
}

/// From now on `seconds` of processor time, whatever was used before.
pub fn allow_processor_seconds(seconds: u64) -> Result<()> {
    // SAFETY: an all-zero rusage is one, and the call writes nothing else.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) != 0 {
            return Err(Error::last_os_error());
        }
        usage.ru_utime.tv_sec.saturating_add(usage.ru_stime.tv_sec)
    };
    let soft = u64::try_from(used).unwrap_or(0).saturating_add(seconds).saturating_add(1);
    // Only the soft limit: it is moved on for the next file, and its signal ends the process as well.
    apply(libc::RLIMIT_CPU, soft as libc::rlim_t, libc::RLIM_INFINITY)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Resource = libc::c_int;

fn limit(resource: Resource, most: u64) -> Result<()> {
    apply(resource, most as libc::rlim_t, most as libc::rlim_t)
}

fn apply(resource: Resource, soft: libc::rlim_t, hard: libc::rlim_t) -> Result<()> {
    // SAFETY: the call reads the struct that it is given.
    unsafe {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(resource, &raw mut limits) != 0 {
            return Err(Error::last_os_error());
        }
        // What the process was given may be less, and must not be raised.
        limits.rlim_max = limits.rlim_max.min(hard);
        limits.rlim_cur = soft.min(limits.rlim_max);
        if libc::setrlimit(resource, &raw const limits) != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> Result<()> {
    // SAFETY: neither call touches memory.
    let is_orphan = unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(Error::last_os_error());
        }
        u32::try_from(libc::getppid()) != Ok(parent)
    };
    // Where memory runs out, this process is to be ended and not the one with the models. Refused in some containers.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    if is_orphan { Err(Error::other("the process that started this one is gone")) } else { Ok(()) }
}

/// Elsewhere the end of its input ends it.
#[cfg(not(target_os = "linux"))]
fn die_with(_: u32) -> Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn limit_memory() -> Result<()> {
    // The program itself is hundreds of megabytes of address space.
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Error::other("/proc/self/statm cannot be read"))?;
    // SAFETY: asks for a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let used = pages.saturating_mul(u64::try_from(page).unwrap_or(4096));
    limit(libc::RLIMIT_AS, used.saturating_add(MEMORY_BYTES))
}

/// Elsewhere address space is not limited, or says nothing.
#[cfg(not(target_os = "linux"))]
fn limit_memory() -> Result<()> {
    Ok(())
}
