//! Which kernels compute. Measured once for a processor and kept in the catalog, so that a restart computes the same bits.

use ragstone_kernels::measure::fastest_paths;
use ragstone_kernels::simd::{Path, Paths};
use ragstone_storage::catalog::Catalog;

use crate::error::{Error, Result};

/// Chooses the kernels of this process, unless that was done before: those that `catalog` knows for this processor, else by measuring all
/// of them. Without a catalog nothing is kept. BLOCKS, for some ten milliseconds.
///
/// # Errors
/// The catalog's.
pub fn choose(catalog: Option<&Catalog>) -> Result<()> {
    if Paths::chosen().is_some() {
        return Ok(());
    }
    let name = format!("kernels/{}", processor(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()));
    let kept = catalog.map(|catalog| catalog.setting(&name)).transpose()?.flatten();
    let paths = match kept.as_deref().and_then(usable) {
        Some(paths) => paths,
        None => {
            let paths = fastest_paths();
            tracing::debug!(kernels = %paths, "measured which kernels are the fastest");
            if let Some(catalog) = catalog {
                let text = serde_json::to_string(&paths).map_err(|error| Error::internal(error.to_string()))?;
                catalog.set_setting(&name, &text)?;
            }
            paths
        }
    };
    if let Err(error) = paths.choose() {
        // Somebody else of this process chose meanwhile.
        tracing::debug!(%error, "the kernels stay as they are");
    }
    Ok(())
}

/// What was kept, if this machine can run it.
fn usable(kept: &str) -> Option<Paths> {
    serde_json::from_str(kept).ok().filter(Paths::can_run)
}

/// A name for the kind of processor: what the system says of the first one, and the instruction sets that it has.
fn processor(cpuinfo: &str) -> String {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let said = ["vendor_id", "cpu family", "model", "model name", "stepping"].map(|wanted| {
        let mut lines = first.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim() == wanted).map_or("", |(_, value)| value.trim())
    });
    let paths: Vec<_> = Path::available().iter().map(|path| path.name()).collect();
    format!("{}; {}", said.join(", "), paths.join(" "))
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use ragstone_kernels::simd::Work;

    use super::*;

    const CPUINFO: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\nflags\t: fpu\n\nprocessor\t: 1\nmodel\t: 9\n";

    #[test]
    fn a_processor_is_named_by_what_tells_it_from_others() {
        assert!(processor(CPUINFO).starts_with("AuthenticAMD, 26, 2, AMD EPYC, 1; "), "{}", processor(CPUINFO));
        assert!(processor("").ends_with(Path::available().last().unwrap().name()), "{}", processor(""));
        assert_ne!(processor(CPUINFO), processor(&CPUINFO.replace("stepping\t: 1", "stepping\t: 2")));
    }

    #[test]
    fn what_was_kept_is_taken_if_this_machine_can_run_it() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), &Env::seeded(1, 0)).unwrap();
        choose(Some(&catalog)).unwrap();
        let name = format!("kernels/{}", processor(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()));
        let in_use = Paths::in_use();
        if let Some(kept) = catalog.setting(&name).unwrap() {
            // The only test of this process that chose, or the first one.
            assert_eq!(usable(&kept), Some(in_use));
        }
        choose(Some(&catalog)).unwrap();
        assert_eq!(Paths::in_use(), in_use, "for the whole process");
        assert_eq!(usable("{}"), None);
        assert_eq!(usable("no JSON"), None);
        let text = serde_json::to_string(&Paths::all(Path::Portable)).unwrap();
        assert_eq!(usable(&text).map(|paths| paths.of(Work::F32Products)), Some(Path::Portable));
        if !Path::available().contains(&Path::Amx) {
            assert_eq!(usable(&text.replace("portable", "amx")), None, "another machine's");
        }
    }
}
