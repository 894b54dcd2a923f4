//! Processor, memory and open files.

use ragstone_actors::Settings;
use ragstone_actors::models::language_model::Device;
use ragstone_cuda::{Proof, Tried, prove, try_out};
use ragstone_env::mebibytes;
use ragstone_kernels::numa::Team;
use ragstone_kernels::simd;
use ragstone_models::machine::available_memory;
use ragstone_service::config::Surface;

use super::finding::Finding;

/// The processor, and what the kernels make of it.
pub fn processor(settings: &Settings) -> Finding {
    let available: Vec<&str> = simd::Path::available().iter().map(|path| path.name()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let team = Team::planned(settings.threads.unwrap_or(0), settings.numa);
    let refusal = team.as_ref().and_then(Team::refusal).map(str::to_owned);
    let nodes = team.map(|team| (team.to_string(), refusal));
    judged_processor(&available, cores, settings.kernels.as_deref(), settings.threads, nodes)
}

/// The GPU, where the settings ask for one; or those that share the model.
pub fn gpu(settings: &Settings) -> Option<Finding> {
    let (ordinals, is_wanted) = match &settings.device {
        Device::Cpu => return None,
        Device::Auto => (&[0][..], false),
        Device::Cuda(gpus) => (gpus.as_slice(), true),
    };
    // The kernels are loaded and held against the processor: a driver that does not take them is found now, and so is one that breaks them.
    let tried = |ordinal: &usize| Ok((try_out(*ordinal)?, prove(*ordinal, None)?));
    let found: ragstone_kernels::error::Result<Vec<(Tried, Proof)>> = ordinals.iter().map(tried).collect();
    Some(match found {
        Ok(gpus) => judged_gpus(&gpus),
        Err(error) if is_wanted => Finding::of("gpu", &error),
        Err(error) => Finding::ok("gpu", format!("none is used: {error}")),
    })
}

fn judged_gpus(gpus: &[(Tried, Proof)]) -> Finding {
    if let Some(error) = gpus.iter().find_map(|(_, proof)| proof.check().err()) {
        return Finding::of("gpu", &error);
    }
    let named = |(tried, proof): &(Tried, Proof)| {
        format!("{tried}; {} families of kernels are right ({:.1} s)", proof.families.len(), proof.seconds)
    };
    let found = gpus.iter().map(named).collect::<Vec<_>>().join("; ");
    let problems: Vec<String> = gpus.iter().flat_map(|(tried, _)| tried.trial.problems()).collect();
    if problems.is_empty() {
        return Finding::ok("gpu", found);
    }
    let advice = format!("slower ones are used instead; please report this: {}", problems.join("; "));
    Finding::warning("gpu", found, advice)
}

fn judged_processor(
    available: &[&str],
    cores: usize,
    forced: Option<&str>,
    threads: Option<usize>,
    nodes: Option<(String, Option<String>)>,
) -> Finding {
    let path = forced.or(available.first().copied()).unwrap_or("no");
    let (nodes, refusal) = nodes.map(|(nodes, refusal)| (format!("; {nodes}"), refusal)).unwrap_or_default();
    let (threads_used, arch) = (threads.unwrap_or(cores), std::env::consts::ARCH);
    let found = format!("{cores} cores, {threads_used} threads, kernels for {path} ({arch}){nodes}");
    if !available.contains(&path) {
        let advice = format!("leave `kernels` out, or take one of {}", available.join(", "));
        return Finding::problem("processor", format!("this machine cannot run the {path} kernels"), advice);
    }
    match threads {
        Some(threads) if threads > cores => {
            Finding::warning("processor", found, "more threads than cores are slower than as many; leave `threads` out")
        }
        _ => match refusal {
            Some(why) => Finding::warning(
                "processor",
                format!("{found}, by the threads that write them: the system does not let memory be placed ({why})"),
                "let ragstone call mbind: a container needs --cap-add SYS_NICE",
            ),
            None => Finding::ok("processor", found),
        },
    }
}

/// Whether what a service would take fits beside what runs already; `None` where the system does not tell. `weights` is what the
/// language model's take in memory, kept as the settings say.
pub fn memory(settings: &Settings, weights: u64) -> Option<Finding> {
    Some(judged_memory(available_memory()?, weights, settings.pool_bytes(), settings.host_bytes))
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

/// Whether as many files may be open as connections and the store need.
#[cfg(unix)]
pub fn open_files(surface: &Surface) -> Finding {
    let wanted = crate::cli::serve::files_wanted(surface);
    match ragstone_service::file_limit::raise(wanted) {
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
    use super::super::finding::State;
    use super::*;

    #[test]
    fn kernels_that_the_machine_lacks_are_a_problem_and_too_many_threads_a_word() {
        let judged = |forced, threads, nodes| judged_processor(&["avx2", "portable"], 4, forced, threads, nodes);
        let state = |forced, threads| judged(forced, threads, None).state;
        assert_eq!(state(None, None), State::Ok);
        assert_eq!(state(Some("portable"), Some(4)), State::Ok);
        assert_eq!(state(Some("amx"), None), State::Problem);
        assert_eq!(state(None, Some(5)), State::Warning);
        let nodes = "2 NUMA nodes: 2 + 2 threads, weights split";
        let found = judged(None, None, Some((nodes.to_owned(), None)));
        assert!(found.state == State::Ok && found.found.ends_with(&format!("; {nodes}")), "{found:?}");
        let found = judged(None, None, Some((nodes.to_owned(), Some("EPERM".to_owned()))));
        assert!(found.state == State::Warning && found.found.contains("(EPERM)"), "{found:?}");
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
}
