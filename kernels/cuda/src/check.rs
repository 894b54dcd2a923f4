//! Every kernel on the GPU, beside a plain computation of the same in f64 on the host.
//!
//! Inputs are random, of shapes that fill no tile. Launches are made as the backend makes them, by [`launch`](super::launch). Which kernels
//! there are is read from the PTX: one that no check compares is a failure. So a new kernel needs a check: a function in the file
//! of its idea below that launches it by [`Check::run`] and compares what it wrote by [`Check::compare`].
//!
//! ```text
//! values     activations, conversions, sums
//! rows       embedding, norms, rows gathered
//! positions  rotation, placing
//! products   matrix products
//! experts    mixtures of experts: routes, groups, products, sums
//! quantized  weights of 8 bits: products, those of experts, embedding
//! attention  attention whole, split and combined, and what rows look at
//! reuse      deviations, copies of parts
//! bits       a whole model: rows alone, beside others, in pieces, over stored KV
//! ```
//!
//! Each is a [`Family`], which can be checked by itself: in a process of its own, one that crashes or hangs hides no other.

mod attention;
mod bits;
mod compare;
mod experts;
mod family;
mod inputs;
mod positions;
mod products;
mod quantized;
mod reuse;
mod rows;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use ragstone_env::Stopwatch;
use serde::{Deserialize, Deserializer, Serialize};

use self::compare::{Difference, Tolerance, difference};
pub use self::family::{Family, FamilyCheck};
use super::gpus::{Gpu, usable};
use super::launch::hopper::{CUBIN, is_kernel};
use super::session::{Launch, PTX, Session};
use super::trial;
use ragstone_kernels::error::{Error, Result};

/// How much to check.
#[derive(Debug, Clone, Copy)]
pub struct CheckOptions {
    /// Of inputs and of random shapes.
    pub seed: u64,
    /// Random shapes of each kernel, beside those that are always tried.
    pub shapes: usize,
    /// Whether products and attention are also tried in the sizes of a model of 7 billion weights.
    pub large: bool,
    /// Whether the kernels for the GPU's own capability are compared, too.
    pub own: bool,
}

/// What was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checked {
    pub gpu: Gpu,
    pub seed: u64,
    /// What was checked, in order.
    pub families: Vec<FamilyCheck>,
    /// Of all families one for each kernel of the PTX, by name, then for each of this GPU's own; of some those that they launch.
    pub kernels: Vec<KernelCheck>,
    /// Where equal bits are promised.
    pub bits: Vec<BitCheck>,
}

/// A kernel beside the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelCheck {
    pub kernel: String,
    /// Results that were compared.
    pub compared: u64,
    /// The greatest difference.
    #[serde(deserialize_with = "number")]
    pub absolute: f64,
    /// The greatest difference as a share of the host's value, where that is not next to nothing.
    #[serde(deserialize_with = "number")]
    pub relative: f64,
    /// The greatest difference as a share of what is tolerated there.
    #[serde(deserialize_with = "number")]
    pub of_tolerance: f64,
    /// What was tolerated there: so much, and so large a share of the value.
    pub tolerance: Tolerance,
    /// What is wrong; nothing where all is well.
    pub problem: Option<String>,
}

/// JSON has no infinity: it was written as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|number| number.unwrap_or(f64::INFINITY))
}

/// Two ways to the same bits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BitCheck {
    pub what: String,
    pub problem: Option<String>,
}

impl Checked {
    /// How many checks there were.
    pub fn rows(&self) -> usize {
        self.families.iter().filter(|of| of.problem.is_some()).count() + self.kernels.len() + self.bits.len()
    }

    /// Everything that is wrong, a line each.
    pub fn problems(&self) -> Vec<String> {
        let said = |of: &str, why: &Option<String>| why.as_ref().map(|why| format!("{of}: {why}"));
        let families = self.families.iter().filter_map(|of| said(of.family.name(), &of.problem));
        let kernels = self.kernels.iter().filter_map(|of| said(&of.kernel, &of.problem));
        let bits = self.bits.iter().filter_map(|of| said(&of.what, &of.problem));
        families.chain(kernels).chain(bits).collect()
    }

    /// What was found of families, one after the other, as one. Of all of them a kernel that none launches is a failure.
    pub fn of(gpu: Gpu, seed: u64, parts: Vec<Self>) -> Self {
        let mut whole = Self { gpu, seed, families: Vec::new(), kernels: Vec::new(), bits: Vec::new() };
        let mut seen: BTreeMap<String, KernelCheck> = BTreeMap::new();
        for part in parts {
            whole.families.extend(part.families);
            whole.bits.extend(part.bits);
            for row in part.kernels {
                match seen.get_mut(&row.kernel) {
                    Some(known) => known.join(row),
                    None => drop(seen.insert(row.kernel.clone(), row)),
                }
            }
        }
        let was_whole = |family: &Family| whole.families.iter().any(|of| of.family == *family && of.problem.is_none());
        let are_all = Family::ALL.iter().all(was_whole);
        whole.kernels = match are_all {
            true => of_every(&names_for(&whole.gpu), seen),
            false => seen.into_values().collect(),
        };
        whole
    }
}

/// The kernels that a GPU is given.
fn names_for(gpu: &Gpu) -> Vec<&'static str> {
    let mut names = kernel_names(PTX);
    if gpu.compute_capability == trial::CAPABILITY {
        names.extend(hopper_names(CUBIN));
    }
    names
}

/// Values of a result that are compared.
const MOST_COMPARED: usize = 1 << 14;

/// Checks every kernel on GPU `ordinal`, in this process.
///
/// # Errors
/// Where there is no such GPU, and where the driver fails; the message names the kernel.
pub fn check(ordinal: usize, options: CheckOptions) -> Result<Checked> {
    let parts = Family::ALL.map(|family| check_family(ordinal, family, options));
    Ok(Checked::of(usable(ordinal)?, options.seed, parts.into_iter().collect::<Result<_>>()?))
}

/// Checks the kernels of one family.
///
/// # Errors
/// As [`check()`].
pub fn check_family(ordinal: usize, family: Family, options: CheckOptions) -> Result<Checked> {
    let (gpu, started) = (usable(ordinal)?, Stopwatch::start());
    let mut check = Check::new(Session::start(ordinal)?, options);
    family.check(&mut check, ordinal)?;
    let Check { seen, bits, .. } = check;
    let families = vec![FamilyCheck { family, seconds: started.elapsed_s(), problem: None }];
    Ok(Checked { gpu, seed: options.seed, families, kernels: seen.into_values().collect(), bits })
}

/// The kernels of machine code: each has a section of its own.
fn hopper_names(elf: &[u8]) -> Vec<&str> {
    let strings = elf.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let mut names: Vec<&str> =
        strings.filter_map(|text| text.strip_prefix(".text.")).filter(|name| is_kernel(name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The kernels of a PTX text: the names of its entries.
fn kernel_names(ptx: &str) -> Vec<&str> {
    let names = ptx.split(".entry ").skip(1).map(|rest| rest.trim_start());
    let mut names: Vec<&str> = names.map(|rest| rest.split(['(', ' ', '\n']).next().unwrap_or(rest)).collect();
    names.sort_unstable();
    names
}

/// One row for each kernel; a failure where nothing was seen of it.
fn of_every(names: &[&str], mut seen: BTreeMap<String, KernelCheck>) -> Vec<KernelCheck> {
    let unseen = |name: &str| KernelCheck {
        problem: Some("no check launches it: add one in kernels/cuda/src/check/".to_owned()),
        ..KernelCheck::new(name)
    };
    names.iter().map(|name| seen.remove(*name).unwrap_or_else(|| unseen(name))).collect()
}

impl KernelCheck {
    fn new(kernel: &str) -> Self {
        let tolerance = Tolerance::exact();
        let (absolute, relative, of_tolerance) = (0.0, 0.0, 0.0);
        Self { kernel: kernel.to_owned(), compared: 0, absolute, relative, of_tolerance, tolerance, problem: None }
    }

    /// Adds what another family found of the same kernel.
    fn join(&mut self, other: Self) {
        self.compared += other.compared;
        self.absolute = self.absolute.max(other.absolute);
        self.relative = self.relative.max(other.relative);
        if other.of_tolerance > self.of_tolerance {
            (self.of_tolerance, self.tolerance) = (other.of_tolerance, other.tolerance);
        }
        self.problem = self.problem.take().or(other.problem);
    }

    fn add(&mut self, case: &str, found: &Difference, tolerance: Tolerance) {
        self.compared += 1;
        self.absolute = self.absolute.max(found.absolute);
        self.relative = self.relative.max(found.relative);
        if self.compared == 1 || found.of_tolerance > self.of_tolerance {
            (self.of_tolerance, self.tolerance) = (found.of_tolerance, tolerance);
        }
        // The first one says enough.
        if let (None, Some(wrong)) = (&self.problem, &found.wrong) {
            self.problem = Some(format!("{case}: {wrong}"));
        }
    }
}

/// What checks have in common: the GPU, random inputs, and what was seen so far.
pub(super) struct Check {
    session: Arc<Session>,
    random: fastrand::Rng,
    options: CheckOptions,
    seen: BTreeMap<String, KernelCheck>,
    bits: Vec<BitCheck>,
}

impl Check {
    pub(super) fn new(session: Arc<Session>, options: CheckOptions) -> Self {
        let random = fastrand::Rng::with_seed(options.seed);
        Self { session, random, options, seen: BTreeMap::new(), bits: Vec::new() }
    }

    /// What is wrong of all that was compared since it was asked last; the first thing.
    pub(super) fn take_problem(&mut self) -> Option<String> {
        let (seen, bits) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.bits));
        let kernels = seen.into_iter().filter_map(|(kernel, row)| Some(format!("{kernel}: {}", row.problem?)));
        kernels.chain(bits.into_iter().filter_map(|row| Some(format!("{}: {}", row.what, row.problem?)))).next()
    }

    /// Launches a kernel and waits for it, so that an error is known to be its.
    fn run(&self, launch: &Launch) -> Result<()> {
        let named = |error: Error| Error::new(error.kind(), format!("kernel {}: {error}", launch.name));
        self.session.launch(launch).map_err(named)?;
        self.session.finish().map_err(named)
    }

    /// All places of a result, or some of a large one: each is a sum that the host has to make.
    fn some_of(&mut self, all: usize) -> Vec<usize> {
        match all {
            all if all <= MOST_COMPARED => (0..all).collect(),
            all => (0..MOST_COMPARED).map(|_| self.random.usize(0..all)).collect(),
        }
    }

    /// Notes how far `got`, which `kernel` wrote, is from `wanted`. `case` says of what shape it was.
    fn compare(&mut self, kernel: &str, case: &str, got: &[f32], wanted: &[f64], tolerance: Tolerance) {
        let found = difference(got, wanted, tolerance);
        let row = self.seen.entry(kernel.to_owned()).or_insert_with(|| KernelCheck::new(kernel));
        row.add(case, &found, tolerance);
    }

    /// As [`compare`](Self::compare) of what is copied: no bit may differ.
    fn compare_bytes(&mut self, kernel: &str, case: &str, got: &[u8], wanted: &[u8]) {
        let at = got.iter().zip(wanted).position(|(a, b)| a != b);
        let wrong = match at {
            _ if got.len() != wanted.len() => Some(format!("{} bytes, not {}", got.len(), wanted.len())),
            Some(at) => Some(format!("byte {at} is {:#04x}, not {:#04x}", got[at], wanted[at])),
            None => None,
        };
        let of_tolerance = if wrong.is_some() { f64::INFINITY } else { 0.0 };
        let found = Difference { absolute: 0.0, relative: 0.0, of_tolerance, wrong };
        let row = self.seen.entry(kernel.to_owned()).or_insert_with(|| KernelCheck::new(kernel));
        row.add(case, &found, Tolerance::exact());
    }

    /// Notes whether two ways gave the same bits. The first case of `what` that did not is kept.
    fn same_bits(&mut self, what: &str, case: &str, a: &[f32], b: &[f32]) {
        let differs = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let problem = (differs > 0 || a.len() != b.len())
            .then(|| format!("{case}: {differs} of {} values have other bits", a.len().max(b.len())));
        match self.bits.iter_mut().find(|row| row.what == what) {
            Some(row) => row.problem = row.problem.take().or(problem),
            None => self.bits.push(BitCheck { what: what.to_owned(), problem }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_no_check_launches_is_a_failure() {
        let seen = BTreeMap::from([("b".to_owned(), KernelCheck::new("b"))]);
        let rows = of_every(&["a", "b"], seen);
        let problems: Vec<_> = rows.iter().map(|row| (row.kernel.as_str(), row.problem.is_some())).collect();
        assert_eq!(problems, [("a", true), ("b", false)]);
        assert!(rows[0].problem.as_ref().unwrap().contains("no check launches it"));
    }

    #[test]
    fn the_kernels_are_those_of_the_ptx() {
        let text = "//\n.visible .entry b_f32(\n\t.param .u64 p\n)\n{ }\n\t// .globl\n.visible .entry a(\n)";
        assert_eq!(kernel_names(text), ["a", "b_f32"]);
        let names = kernel_names(PTX);
        assert!(hopper_names(CUBIN).len() >= 14 && hopper_names(CUBIN).contains(&"wide_gemm_bf16_256"));
        assert!(names.len() >= 63 && names.contains(&"gemm_bf16_128") && names.contains(&"attention_combine"));
    }

    #[test]
    fn the_worst_case_and_the_first_problem_are_kept() {
        let mut row = KernelCheck::new("k");
        let tolerance = Tolerance { relative: 0.0, absolute: 0.5 };
        for (case, got) in [("one", 1.25), ("two", 3.0), ("three", 9.0)] {
            row.add(case, &difference(&[got], &[1.0], tolerance), tolerance);
        }
        assert_eq!((row.compared, row.absolute, row.of_tolerance), (3, 8.0, 16.0));
        assert_eq!(row.problem.as_deref(), Some("two: value 0 is 3, not 1"));
    }
}
