//! Which path computes what, for the whole process.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::Path;
use crate::error::{Error, Result};

/// Kinds of work that a path may suit better than another. Not told apart by rows: the bits of a row would depend on its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Products of f32 rows.
    F32Products,
    /// Products of bf16 rows.
    Bf16Products,
    /// Products of rows of bytes.
    ByteProducts,
    /// Attention over f32, or computed in it.
    F32Attention,
    /// Attention over bf16, computed in it.
    Bf16Attention,
    /// Everything that a layer does with single values.
    Elementwise,
}

impl Work {
    /// What is worth measuring. Of single values memory is the bound.
    pub(crate) const MEASURED: [Self; 5] =
        [Self::F32Products, Self::Bf16Products, Self::ByteProducts, Self::F32Attention, Self::Bf16Attention];
}

/// A path for each kind of [`Work`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    f32_products: Path,
    bf16_products: Path,
    byte_products: Path,
    f32_attention: Path,
    bf16_attention: Path,
    elementwise: Path,
}

static CHOSEN: OnceLock<Paths> = OnceLock::new();

impl Paths {
    /// One path for everything.
    pub fn all(path: Path) -> Self {
        Self {
            f32_products: path,
            bf16_products: path,
            byte_products: path,
            f32_attention: path,
            bf16_attention: path,
            elementwise: path,
        }
    }

    /// The first of this machine's for everything: what a process takes that chooses none.
    fn ranked() -> Self {
        Self::all(Path::available()[0])
    }

    /// Those in use: until some are chosen, this machine's first. Asking chooses none, as measuring computes, too.
    pub fn in_use() -> Self {
        Self::chosen().unwrap_or_else(Self::ranked)
    }

    /// Those that were chosen.
    pub fn chosen() -> Option<Self> {
        CHOSEN.get().copied()
    }

    /// The path for a kind of work.
    pub fn of(&self, work: Work) -> Path {
        match work {
            Work::F32Products => self.f32_products,
            Work::Bf16Products => self.bf16_products,
            Work::ByteProducts => self.byte_products,
            Work::F32Attention => self.f32_attention,
            Work::Bf16Attention => self.bf16_attention,
            Work::Elementwise => self.elementwise,
        }
    }

    /// Whether these compute in bf16 what loses nothing by it. That decides whose KV is whose, so that it is never a matter of what was measured,
    /// which differs from one time to the next, but of what the machine has, or what was [forced](Path::force). Intel's vectors multiply bf16 at
    /// half the rate of f32 (Sapphire and Emerald Rapids: docs/results/kernels.md), so that there it takes tiles.
    pub fn compute_bf16(&self) -> bool {
        multiplies_bf16_faster(self.elementwise, is_intels())
    }

    /// These, with another path for a kind of work.
    #[must_use]
    pub(crate) fn with(mut self, work: Work, path: Path) -> Self {
        *match work {
            Work::F32Products => &mut self.f32_products,
            Work::Bf16Products => &mut self.bf16_products,
            Work::ByteProducts => &mut self.byte_products,
            Work::F32Attention => &mut self.f32_attention,
            Work::Bf16Attention => &mut self.bf16_attention,
            Work::Elementwise => &mut self.elementwise,
        } = path;
        self
    }

    /// Whether this machine can run all of them.
    pub fn can_run(&self) -> bool {
        let works = Work::MEASURED.into_iter().chain([Work::Elementwise]);
        works.map(|work| self.of(work)).all(|path| Path::available().contains(&path))
    }

    /// Makes every later computation of this process take these.
    ///
    /// # Errors
    /// `InvalidInput` if this machine cannot run them, or others were chosen already.
    pub fn choose(self) -> Result<()> {
        if !self.can_run() {
            let names: Vec<_> = Path::available().iter().map(|path| path.name()).collect();
            return Err(Error::invalid_input(format!(
                "this machine cannot run the {self} kernels; it has {}",
                names.join(", ")
            )));
        }
        match *CHOSEN.get_or_init(|| self) {
            paths if paths == self => Ok(()),
            paths => Err(Error::invalid_input(format!("the {paths} kernels are in use already"))),
        }
    }
}

/// Whether products of bf16 are faster than those of f32. Pure.
fn multiplies_bf16_faster(path: Path, is_intels: bool) -> bool {
    path.has_bf16_products() && (path == Path::Amx || !is_intels)
}

fn is_intels() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction.
        #[allow(unused_unsafe)]
        let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

impl std::fmt::Display for Paths {
    /// One name where all are the same, else that of products of bf16 and what differs from it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let usual = self.bf16_products;
        f.write_str(usual.name())?;
        for (work, name) in [
            (self.f32_products, "f32"),
            (self.byte_products, "q8"),
            (self.f32_attention, "attention of f32"),
            (self.bf16_attention, "attention of bf16"),
            (self.elementwise, "single values"),
        ] {
            if work != usual {
                write!(f, ", {name} by {}", work.name())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_work_has_its_own_path() {
        let works = Work::MEASURED.into_iter().chain([Work::Elementwise]);
        for work in works.clone() {
            let paths = Paths::all(Path::Avx512).with(work, Path::Avx2);
            for other in works.clone() {
                assert_eq!(paths.of(other), if other == work { Path::Avx2 } else { Path::Avx512 }, "{other:?}");
            }
            let text = serde_json::to_string(&paths).unwrap();
            assert_eq!(serde_json::from_str::<Paths>(&text).unwrap(), paths, "{text}");
        }
        assert_eq!(Paths::all(Path::Avx2).to_string(), "avx2");
        let mixed = Paths::all(Path::Amx).with(Work::Bf16Attention, Path::Avx512);
        assert_eq!(mixed.to_string(), "amx, attention of bf16 by avx512");
        // Whatever was measured to be the fastest.
        let slow =
            Work::MEASURED.into_iter().fold(Paths::all(Path::Avx512Bf16), |paths, work| paths.with(work, Path::Avx512));
        assert_eq!(slow.compute_bf16(), !is_intels());
        assert!(!Paths::all(Path::Avx512).compute_bf16());
        for (path, is_intels, is_faster) in [
            (Path::Amx, true, true),
            (Path::Avx512Bf16, false, true),
            (Path::Avx512Bf16, true, false),
            (Path::Avx512Vnni, false, false),
        ] {
            assert_eq!(multiplies_bf16_faster(path, is_intels), is_faster, "{path:?} {is_intels}");
        }
    }

    #[test]
    fn a_process_keeps_what_it_chose() {
        let in_use = Paths::in_use();
        in_use.choose().unwrap();
        assert_eq!(Paths::chosen(), Some(in_use));
        for path in Path::available().iter().filter(|path| Paths::all(**path) != in_use) {
            let error = path.force().unwrap_err().to_string();
            assert!(error.contains("kernels are in use already"), "{error}");
        }
        for absent in Path::ALL.into_iter().filter(|path| !Path::available().contains(path)) {
            let error = absent.force().unwrap_err().to_string();
            assert!(error.contains("this machine cannot run"), "{error}");
        }
        assert_eq!(Paths::in_use(), in_use);
        assert_eq!(Path::best(), in_use.of(Work::Elementwise));
    }
}
