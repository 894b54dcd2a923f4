//! Whether the kernels for all GPUs compute on one what the host does: tried at the first start on a GPU, with a driver and a build, and remembered.
//!
//! The kernels for one generation have these as their reference, at each start ([`trial`](super::trial)). These have the host in f64, on small and
//! odd shapes, family by family ([`check`](super::check)). There is nothing to use in their place: a GPU on which one differs is not used.

use std::fs;
use std::path::Path;

use ragstone_env::Stopwatch;
use serde::Serialize;

use super::check::{Check, CheckOptions, Family};
use super::gpus::{Gpu, usable};
use super::machine_code;
use super::session::Session;
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// What is tried: a whole model, which `bits` computes, is made of these.
const TRIED: [Family; 8] = [
    Family::Values,
    Family::Rows,
    Family::Positions,
    Family::Products,
    Family::Experts,
    Family::Quantized,
    Family::Attention,
    Family::Reuse,
];

/// Shapes that are always tried, and no others.
const OPTIONS: CheckOptions = CheckOptions { seed: 1, shapes: 0, large: false, own: false };

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proof {
    /// Of each family what was wrong, if anything.
    pub families: Vec<(Family, Option<String>)>,
    /// Whether it was found at an earlier start.
    pub is_remembered: bool,
    pub seconds: f64,
}

impl Proof {
    /// What was wrong, a line each.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.families.iter().filter_map(|(family, problem)| Some((family, problem.as_ref()?)));
        problems.map(|(family, problem)| format!("{family}: {problem}")).collect()
    }

    /// # Errors
    /// `Unavailable` where something was wrong: the GPU is not to be used.
    pub fn check(&self) -> Result<()> {
        match &self.problems()[..] {
            [] => Ok(()),
            problems => {
                let problems = problems.join("; ");
                let advice = "take `--device cpu`, and please report what `ragstone bench parity --device cuda` says";
                let message = format!("the GPU does not compute what the processor does ({problems}); {advice}");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

/// Tries GPU `ordinal`, unless `folder` says that this build was found right on it with its driver. That is noted there. BLOCKS, for a second or two.
///
/// # Errors
/// Where there is no such GPU, and the driver's; what a kernel does wrong is in the proof.
pub fn prove(ordinal: usize, folder: Option<&Path>) -> Result<Proof> {
    let gpu = usable(ordinal)?;
    let place = folder.map(|folder| folder.join(format!("gpu-{}", machine_code::digest(identity(&gpu).as_bytes()))));
    if place.as_deref().is_some_and(Path::exists) {
        let families = TRIED.map(|family| (family, None)).to_vec();
        return Ok(Proof { families, is_remembered: true, seconds: 0.0 });
    }
    let started = Stopwatch::start();
    let families = tried(ordinal)?;
    let proof = Proof { families, is_remembered: false, seconds: started.elapsed_s() };
    // What cannot be noted is tried again at the next start.
    if let (Some(place), true) = (place, proof.check().is_ok()) {
        let _ = fs::create_dir_all(place.parent().unwrap_or(&place));
        let _ = fs::write(place, identity(&gpu));
    }
    Ok(proof)
}

fn tried(ordinal: usize) -> Result<Vec<(Family, Option<String>)>> {
    let session = Session::start(ordinal)?;
    let mut check = Check::new(session.clone(), OPTIONS);
    let mut families = Vec::with_capacity(TRIED.len());
    for family in TRIED {
        let failed = family.check(&mut check, ordinal).err();
        let is_lost = failed.as_ref().is_some_and(|error| error.kind() == ErrorKind::DeviceLost);
        families.push((family, failed.map(|error| error.to_string()).or_else(|| check.take_problem())));
        if is_lost {
            break;
        }
    }
    Ok(families)
}

/// What decides what kernels compute: GPU, driver, kernels and this program.
fn identity(gpu: &Gpu) -> String {
    let Gpu { name, compute_capability: (major, minor), driver, .. } = gpu;
    // The driver's own number; CUDA's version is that of many.
    let module = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let module = module.lines().next().unwrap_or_default();
    let code = machine_code::found(gpu.compute_capability).unwrap_or_default();
    let program = std::env::current_exe().and_then(fs::metadata);
    let program = program.map_or_else(|_| String::new(), |of| format!("{} {:?}", of.len(), of.modified().ok()));
    format!("{name} {major}.{minor}\nCUDA {driver} {module}\n{} {code}\n{program}\n", machine_code::ptx_digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_and_the_gpu_is_not_to_be_used() {
        let proof = |problem: Option<&str>| Proof {
            families: vec![(Family::Values, None), (Family::Products, problem.map(str::to_owned))],
            is_remembered: false,
            seconds: 1.0,
        };
        assert!(proof(None).check().is_ok());
        let error = proof(Some("gemm_bf16_16: value 3 is 1, not 2")).check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(
            text.contains("(products: gemm_bf16_16: value 3 is 1, not 2)") && text.contains("--device cpu"),
            "{text}"
        );
    }
}
