//! Processor, memory and open files.

use std::path::Path;

use ragstone_actors::Settings;
use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::simd;

use super::finding::{Finding, State};
use crate::config::Surface;
use crate::progress::mebibytes;

/// The processor, and what the kernels make of it.
pub fn processor(settings: &Settings) -> Finding {
    let available: Vec<&str> = simd::Path::available().iter().map(|path| path.name()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    judged_processor(&available, cores, settings.kernels.as_deref(), settings.threads)
}

fn judged_processor(available: &[&str], cores: usize, forced: Option<&str>, threads: Option<usize>) -> Finding {
    let path = forced.or(available.first().copied()).unwrap_or("no");
    let found =
        format!("{cores} cores, {} threads, kernels for {path} ({})", threads.unwrap_or(cores), std::env::consts::ARCH);
    if !available.contains(&path) {
        let advice = format!("leave `kernels` out, or take one of {}", available.join(", "));
        return Finding::problem("processor", format!("this machine cannot run the {path} kernels"), advice);
    }
    match threads {
        Some(threads) if threads > cores => {
            Finding::warning("processor", found, "more threads than cores are slower than as many; leave `threads` out")
        }
        _ => Finding::ok("processor", found),
    }
}

/// Whether what a service would take fits beside what runs already; `None` where the system does not tell. `weights` is the size of the
/// language model's tensors as they are stored.
pub fn memory(settings: &Settings, weights: u64) -> Option<Finding> {
    let free = available_memory()?;
    let is_reduced = matches!(settings.weights, Some(WeightFormat::Bf16 | WeightFormat::Q8 | WeightFormat::Q4));
    let finding = judged_memory(free, weights, settings.device_bytes, settings.host_bytes);
    // What they come to then is known when they are loaded.
    Some(if is_reduced && finding.state == State::Problem {
        Finding { state: State::Warning, ..finding }
    } else {
        finding
    })
}

fn judged_memory(free: u64, weights: u64, device: u64, host: u64) -> Finding {
    let wanted = weights.saturating_add(device).saturating_add(host);
    let mib = |bytes: u64| format!("{:.0} MiB", mebibytes(bytes));
    let found = format!(
        "{} are available; a service takes up to {} ({} weights, {} KV pool, {} stored KV)",
        mib(free),
        mib(wanted),
        mib(weights),
        mib(device),
        mib(host)
    );
    if weights.saturating_add(device) > free {
        return Finding::problem(
            "memory",
            found,
            "take a smaller model, --weights q8 or q4, or a smaller `device_bytes`",
        );
    }
    if wanted > free {
        return Finding::warning("memory", found, "lower `host_bytes`: stored KV fills it in time");
    }
    Finding::ok("memory", found)
}

/// Bytes that a new program can have, by the kernel's estimate, and within the bound of the container, if this is in one.
fn available_memory() -> Option<u64> {
    let free = meminfo_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let number = |path: &str| std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok()?.trim().parse().ok();
    let group: Option<u64> =
        number("memory.max").map(|most: u64| most.saturating_sub(number("memory.current").unwrap_or(0)));
    Some(group.map_or(free, |group| group.min(free)))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether as many files may be open as connections and the store need.
#[cfg(unix)]
pub fn open_files(surface: &Surface) -> Finding {
    let wanted = crate::cli::serve::files_wanted(surface);
    match crate::file_limit::raise(wanted) {
        Ok(have) if have < wanted => Finding::warning(
            "open files",
            format!("{have} are allowed, {wanted} wanted for {} connections and the store", surface.max_connections),
            "raise `ulimit -n` (LimitNOFILE= of a systemd unit), or lower `max_connections`",
        ),
        Ok(have) => Finding::ok("open files", format!("{have} are allowed, {wanted} wanted")),
        Err(error) => Finding::warning("open files", format!("the limit is unknown: {error}"), "see `ulimit -n`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_the_machine_lacks_are_a_problem_and_too_many_threads_a_word() {
        let state = |forced, threads| judged_processor(&["avx2", "portable"], 4, forced, threads).state;
        assert_eq!(state(None, None), State::Ok);
        assert_eq!(state(Some("portable"), Some(4)), State::Ok);
        assert_eq!(state(Some("amx"), None), State::Problem);
        assert_eq!(state(None, Some(5)), State::Warning);
    }

    #[test]
    fn what_must_fit_is_a_problem_and_what_may_grow_a_word() {
        let state = |free| judged_memory(free, 40, 30, 50).state;
        assert_eq!(
            [state(120), state(119), state(70), state(69)],
            [State::Ok, State::Warning, State::Warning, State::Problem]
        );
        assert_eq!(judged_memory(1, u64::MAX, u64::MAX, u64::MAX).state, State::Problem);
    }

    #[test]
    fn the_kernel_s_estimate_is_read() {
        let text = "MemTotal:       24000 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n";
        assert_eq!(meminfo_available(text), Some(20_000 << 10));
        for bad in
            ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 99999999999999999999 kB", "MemAvailable: 5"]
        {
            assert_eq!(meminfo_available(bad), None, "{bad}");
        }
    }
}
