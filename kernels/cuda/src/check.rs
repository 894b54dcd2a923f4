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

mod attention;
mod bits;
mod compare;
mod experts;
mod inputs;
mod positions;
mod products;
mod quantized;
mod reuse;
mod rows;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use self::compare::{Difference, Tolerance, difference};
use super::gpus::{Gpu, usable};
use super::launch::hopper::{CUBIN, is_kernel};
use super::session::{Launch, PTX, Session};
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
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    pub gpu: Gpu,
    pub seed: u64,
    /// One for each kernel of the PTX, by name, then for each of this GPU's own.
    pub kernels: Vec<KernelCheck>,
    /// Where equal bits are promised.
    pub bits: Vec<BitCheck>,
}

/// A kernel beside the host.
#[derive(Debug, Clone, Serialize)]
pub struct KernelCheck {
    pub kernel: String,
    /// Results that were compared.
    pub compared: u64,
    /// The greatest difference.
    pub absolute: f64,
    /// The greatest difference as a share of the host's value, where that is not next to nothing.
    pub relative: f64,
    /// The greatest difference as a share of what is tolerated there.
    pub of_tolerance: f64,
    /// What was tolerated there: so much, and so large a share of the value.
    pub tolerance: Tolerance,
    /// What is wrong; nothing where all is well.
    pub problem: Option<String>,
}

/// Two ways to the same bits.
#[derive(Debug, Clone, Serialize)]
pub struct BitCheck {
    pub what: String,
    pub problem: Option<String>,
}

impl Checked {
    /// How many checks there were.
    pub fn rows(&self) -> usize {
        self.kernels.len() + self.bits.len()
    }

    /// Everything that is wrong, a line each.
    pub fn problems(&self) -> Vec<String> {
        let kernels =
            self.kernels.iter().filter_map(|of| of.problem.as_ref().map(|why| format!("{}: {why}", of.kernel)));
        let bits = self.bits.iter().filter_map(|of| of.problem.as_ref().map(|why| format!("{}: {why}", of.what)));
        kernels.chain(bits).collect()
    }
}

/// Values of a result that are compared.
const MOST_COMPARED: usize = 1 << 14;

/// Checks every kernel on GPU `ordinal`.
///
/// # Errors
/// Where there is no such GPU, and where the driver fails; the message names the kernel.
pub fn check(ordinal: usize, options: CheckOptions) -> Result<Checked> {
    let gpu = usable(ordinal)?;
    let mut check = Check::new(Session::start(ordinal)?, options);
    values::check(&mut check)?;
    rows::check(&mut check)?;
    positions::check(&mut check)?;
    products::check(&mut check)?;
    experts::check(&mut check)?;
    quantized::check(&mut check)?;
    attention::check(&mut check)?;
    reuse::check(&mut check)?;
    bits::check(&mut check, ordinal)?;
    let Check { seen, bits, session, .. } = check;
    let mut names = kernel_names(PTX);
    if session.is_hopper() {
        names.extend(hopper_names(CUBIN));
    }
    Ok(Checked { gpu, seed: options.seed, kernels: of_every(&names, seen), bits })
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
struct Check {
    session: Arc<Session>,
    random: fastrand::Rng,
    options: CheckOptions,
    seen: BTreeMap<String, KernelCheck>,
    bits: Vec<BitCheck>,
}

impl Check {
    fn new(session: Arc<Session>, options: CheckOptions) -> Self {
        let random = fastrand::Rng::with_seed(options.seed);
        Self { session, random, options, seen: BTreeMap::new(), bits: Vec::new() }
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
