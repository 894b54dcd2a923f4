//! Whether kernels for one generation of GPUs give the bits of those for all, on this GPU, with this driver.
//!
//! They are tried when a GPU is taken into use, on small and odd shapes, beside the kernels that they stand for. A family of which a single
//! bit differs is not used, and says why. It takes a few milliseconds.

use std::fmt;
use std::slice;
use std::sync::Arc;

use ragstone_env::Stopwatch;
use serde::Serialize;

use super::attention::{HostTables, Tables, tile_rows, wide_tile_rows};
use super::gpus::Gpu;
use super::launch::hopper::{self, Product};
use super::launch::{self, Element, Heads, SEGMENT};
use super::machine_code::LoadedCode;
use super::session::{Buffer, Launch, Session};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::backend::{RowGroup, SequenceView};
use ragstone_kernels::dtype::{KvDtype, bf16_bits};
use ragstone_kernels::error::{ErrorKind, Result};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

/// The compute capability that the kernels of `kernels/cuda/hopper` are for.
pub(super) const CAPABILITY: (u32, u32) = (9, 0);

/// Whether a family of kernels is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum Use {
    /// There are none for this GPU.
    None,
    /// They gave the bits of the others.
    Used,
    /// They did not: what was tried, and what came out.
    Differs(String),
}

impl Use {
    pub(super) fn is_used(&self) -> bool {
        *self == Self::Used
    }

    fn of(problem: Option<String>) -> Self {
        problem.map_or(Self::Used, Self::Differs)
    }
}

/// What was found, by family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// Products of bf16.
    pub products: Use,
    /// Gates and ups with their activation.
    pub gated: Use,
    /// Attention of many rows.
    pub attention: Use,
}

/// What taking a GPU into use shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tried {
    pub gpu: Gpu,
    pub code: LoadedCode,
    pub trial: Trial,
    /// Until it was ready: context, kernels and their trial.
    pub seconds: f64,
}

impl fmt::Display for Tried {
    /// `NVIDIA H100 …; its kernels were loaded from PTX in 8.1 s, ready in 8.3 s; with kernels of its own`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, code, trial, seconds } = self;
        write!(
            f,
            "{gpu}; its kernels were loaded from {} in {:.2} s, ready in {seconds:.2} s",
            code.from, code.seconds
        )?;
        if let Some(why) = &code.refused {
            write!(f, ", as machine code was not taken ({why})")?;
        }
        match trial.products {
            Use::None => Ok(()),
            _ if trial.problems().is_empty() => f.write_str("; with kernels of its own"),
            _ => f.write_str("; with some of its own kernels"),
        }
    }
}

/// Takes GPU `ordinal` into use for as long as that takes: its kernels are loaded, and those of its own tried.
///
/// # Errors
/// Where there is no such GPU, it is too old, or the driver does not take the kernels.
pub fn try_out(ordinal: usize) -> Result<Tried> {
    let started = Stopwatch::start();
    let session = Session::start(ordinal)?;
    let (gpu, code, trial) = (session.gpu().clone(), session.code().clone(), session.trial().clone());
    Ok(Tried { gpu, code, trial, seconds: started.elapsed_s() })
}

impl Trial {
    /// Of a GPU that has no kernels of its own.
    pub(super) const fn none() -> Self {
        Self { products: Use::None, gated: Use::None, attention: Use::None }
    }

    /// The families that are not used though there are kernels, each with why.
    pub fn problems(&self) -> Vec<String> {
        let differs = |(family, of): (&str, &Use)| match of {
            Use::Differs(why) => Some(format!("{family}: {why}")),
            _ => None,
        };
        self.families().into_iter().filter_map(differs).collect()
    }

    /// Each by its name.
    pub fn families(&self) -> [(&'static str, &Use); 3] {
        [("products", &self.products), ("gated", &self.gated), ("attention", &self.attention)]
    }

    /// Tries all of them but those that ended a GPU's context before.
    ///
    /// # Errors
    /// `DeviceLost` where one of them ends the GPU's context, which is noted; what concerns one call is a difference.
    pub(super) fn run(session: &Arc<Session>, ended: &mut Ended) -> Result<Self> {
        let mut try_out = TryOut { session, random: fastrand::Rng::with_seed(1) };
        let [products, gated, attention] = &mut ended.0;
        Ok(Self {
            products: tried(products, || try_out.products())?,
            gated: tried(gated, || try_out.gated())?,
            attention: tried(attention, || try_out.attention())?,
        })
    }
}

/// Of each family why it is not tried again: it ended the GPU's context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ended([Option<String>; 3]);

/// How a family that is not known to end contexts does; if it does, that is noted.
fn tried(ended: &mut Option<String>, family: impl FnOnce() -> Result<Option<String>>) -> Result<Use> {
    match ended {
        Some(why) => Ok(Use::Differs(why.clone())),
        None => told(family()).inspect_err(|error| *ended = Some(format!("it ended the GPU's context ({error})"))),
    }
}

/// An error of a call as a difference; a lost GPU stays an error.
fn told(found: Result<Option<String>>) -> Result<Use> {
    match found {
        Err(error) if error.kind() == ErrorKind::DeviceLost => Err(error),
        Err(error) => Ok(Use::Differs(error.to_string())),
        Ok(problem) => Ok(Use::of(problem)),
    }
}

/// Rows, outputs and inputs: each tile's bounds, what fills none, and many steps.
const SHAPES: [(u32, u32, u32); 8] = [
    (1, 64, 64),
    (5, 36, 200),
    (16, 96, 1000),
    (31, 68, 128),
    (64, 40, 264),
    (65, 260, 72),
    (130, 300, 520),
    (257, 520, 2048),
];

struct TryOut<'a> {
    session: &'a Arc<Session>,
    random: fastrand::Rng,
}

impl TryOut<'_> {
    /// Values of both signs and of several magnitudes.
    fn noise(&mut self, count: usize) -> Vec<f32> {
        let random = &mut self.random;
        (0..count).map(|_| (random.f32() - 0.5) * if random.u32(0..32) == 0 { 64.0 } else { 1.0 }).collect()
    }

    fn bf16(&mut self, count: usize) -> Result<Buffer> {
        let bits: Vec<u16> = self.noise(count).into_iter().map(bf16_bits).collect();
        self.session.upload(&bits)
    }

    /// What launches leave of `bytes` at `out`, which begins as `before`.
    fn result(&self, before: &[u8], launches: impl FnOnce(u64) -> Result<Vec<Launch>>) -> Result<Vec<u8>> {
        let out = self.session.upload(before)?;
        self.session.run(&launches(out.pointer())?)?;
        self.session.download(out.pointer(), before.len())
    }

    /// The first of several kernels, given where they write, of which a bit differs from what is wanted of a product of that shape.
    fn each_beside(
        &self,
        (rows, outputs, inputs): (u32, u32, u32),
        before: &[u8],
        wanted: &[u8],
        each: impl Fn(u64) -> Result<Vec<Launch>>,
    ) -> Result<Option<String>> {
        for which in 0..each(0)?.len() {
            let mut name = String::new();
            let got = self.result(before, |out| {
                let launch = each(out)?.swap_remove(which);
                name.clone_from(&launch.name);
                Ok(vec![launch])
            })?;
            if let Some(problem) = difference(&name, &format!("{rows}x{outputs}x{inputs}"), &got, wanted) {
                return Ok(Some(problem));
            }
        }
        Ok(None)
    }

    fn products(&mut self) -> Result<Option<String>> {
        let multiprocessors = self.session.multiprocessors();
        for (index, shape @ (rows, outputs, inputs)) in SHAPES.into_iter().enumerate() {
            let (x, w) = (self.bf16((rows * inputs) as usize)?, self.bf16((outputs * inputs) as usize)?);
            let bias = self.session.upload(&self.noise(outputs as usize))?;
            let before = bytemuck::pod_collect_to_vec(&self.noise((rows * outputs) as usize));
            let (adds, bias) = (index % 2 == 1, if index % 3 == 0 { 0 } else { bias.pointer() });
            let of = |out| Product { out, x: x.pointer(), w: w.pointer(), bias, shape };
            let wanted = self.result(&before, |out| {
                Ok(vec![launch::gemm(Element::Bf16, (out, x.pointer(), w.pointer(), bias), shape, adds)])
            })?;
            let each = |out| of(out).each(adds, multiprocessors);
            if let Some(problem) = self.each_beside(shape, &before, &wanted, each)? {
                return Ok(Some(problem));
            }
        }
        self.several()
    }

    /// Of a few rows and three matrices, beside one launch each.
    fn several(&mut self) -> Result<Option<String>> {
        let (rows, outputs, inputs) = (5, [70, 34, 256], 328);
        let x = self.bf16(rows * inputs)?;
        let w = outputs.map(|outputs: usize| self.bf16(outputs * inputs));
        let [w0, w1, w2] = w;
        let (w, bias) = ([w0?, w1?, w2?], self.session.upload(&self.noise(256))?);
        let all: usize = outputs.iter().sum();
        let before = vec![0xff; 4 * rows * all];
        let each = |out: u64| {
            let mut at = out;
            [0, 1, 2].map(|which| {
                let shape = (rows as u32, outputs[which] as u32, inputs as u32);
                let bias = if which == 1 { 0 } else { bias.pointer() };
                let product = Product { out: at, x: x.pointer(), w: w[which].pointer(), bias, shape };
                at += 4 * (rows * outputs[which]) as u64;
                product
            })
        };
        let one_by_one = |of: Product| launch::gemm(Element::Bf16, (of.out, of.x, of.w, of.bias), of.shape, false);
        let wanted = self.result(&before, |out| Ok(each(out).map(one_by_one).to_vec()))?;
        let multiprocessors = self.session.multiprocessors();
        let got = self.result(&before, |out| Ok(vec![hopper::products(each(out), multiprocessors)?]))?;
        Ok(difference("narrow_gemms_bf16_16_32", "three matrices", &got, &wanted))
    }

    fn gated(&mut self) -> Result<Option<String>> {
        let multiprocessors = self.session.multiprocessors();
        for (index, shape @ (rows, outputs, inputs)) in SHAPES.into_iter().enumerate() {
            let activation = if index % 2 == 0 { Activation::Silu } else { Activation::Gelu };
            let (x, w) = (self.bf16((rows * inputs) as usize)?, self.bf16((outputs * inputs) as usize)?);
            let bias = self.session.upload(&self.noise(outputs as usize))?;
            let bias = if index % 3 == 0 { 0 } else { bias.pointer() };
            let both = self.session.allocate(4 * (rows * outputs) as usize)?;
            let before = vec![0xff; (rows * outputs) as usize];
            let of = |out| Product { out, x: x.pointer(), w: w.pointer(), bias, shape };
            let wanted = self.result(&before, |out| {
                let places = (both.pointer(), x.pointer(), w.pointer(), bias);
                Ok(vec![
                    launch::gemm(Element::Bf16, places, shape, false),
                    launch::gated(activation, Element::Bf16, out, both.pointer(), rows, outputs / 2),
                ])
            })?;
            let each = |out| of(out).each_gated(activation, multiprocessors);
            if let Some(problem) = self.each_beside(shape, &before, &wanted, each)? {
                return Ok(Some(problem));
            }
        }
        Ok(None)
    }

    fn attention(&mut self) -> Result<Option<String>> {
        // Heads, KV heads, head size, rows, slots, window.
        let cases = [[4, 2, 64, 70, 130, 0], [7, 1, 128, 150, 1100, 0], [3, 3, 96, 40, 700, 90], [2, 2, 48, 5, 65, 0]];
        for [heads, kv_heads, head_dim, rows, slots, window] in cases {
            for dtype in [KvDtype::Bf16, KvDtype::F16] {
                let heads = Heads { heads, kv_heads, head_dim };
                if let Some(problem) = self.attention_of(dtype, heads, (rows as usize, slots as usize), window)? {
                    return Ok(Some(problem));
                }
            }
        }
        Ok(None)
    }

    /// Rows that stand anywhere over keys that stand anywhere; some slots are hidden, and hold no numbers.
    fn attention_of(
        &mut self,
        dtype: KvDtype,
        heads: Heads,
        (rows, slots): (usize, usize),
        window: u32,
    ) -> Result<Option<String>> {
        let element = Element::from(dtype);
        let count = slots.div_ceil(BLOCK_TOKENS);
        let mut blocks: Vec<BlockId> = (0..count as u32).map(BlockId).collect();
        self.random.shuffle(&mut blocks);
        // Two blocks in a row are hidden now and then, so that whole tiles are and are not.
        let hidden = |slot: usize, random: &mut fastrand::Rng| slot / 64 % 4 == 2 && random.u32(0..5) == 0;
        let keys: Vec<u32> = (0..slots)
            .map(|slot| if hidden(slot, &mut self.random) { u32::MAX } else { slot as u32 * 3 / 2 })
            .collect();
        let positions: Vec<u32> = (0..rows).map(|_| self.random.u32(0..slots as u32 * 3 / 2)).collect();
        let group = RowGroup {
            rows: 0..rows,
            positions: &positions,
            sequence: SequenceView { blocks: &blocks, key_positions: &keys },
        };
        let pool_lines = count * BLOCK_TOKENS * heads.kv_heads as usize;
        let noise = [(); 2].map(|()| self.noise(pool_lines * heads.head_dim as usize));
        let pool = |mut values: Vec<f32>| -> Result<Buffer> {
            for (slot, _) in keys.iter().enumerate().filter(|(_, key)| **key == u32::MAX) {
                for head in 0..heads.kv_heads as usize {
                    let block = blocks[slot / BLOCK_TOKENS].0 as usize * heads.kv_heads as usize + head;
                    let line = (block * BLOCK_TOKENS + slot % BLOCK_TOKENS) * heads.head_dim as usize;
                    values[line..line + heads.head_dim as usize].fill(f32::NAN);
                }
            }
            self.session.upload(&dtype.encode(&values))
        };
        let [k, v] = noise.map(pool);
        let (k, v) = (k?, v?);
        let q = self.noise(rows * heads.query_dim()).into_iter().map(|value| 0.2 * value).collect::<Vec<_>>();
        let q = self.session.upload(&dtype.encode(&q))?;
        let before = vec![0xff; 4 * rows * heads.query_dim()];
        let window = (window > 0).then_some(window);
        let of = |tile_rows, is_wide| {
            Tables::upload(self.session, HostTables::of(slice::from_ref(&group), tile_rows), is_wide)
        };
        let (small, large) = (of(tile_rows(element, heads), false)?, of(wide_tile_rows(heads), true)?);
        let context = |tables: &Tables| tables.context((k.pointer(), v.pointer()), pool_lines as u32, None, window);
        let wanted = self.result(&before, |out| {
            small.launches(element, ((out, Element::F32), q.pointer()), None, context(&small), heads)
        })?;
        let segments = (slots as u32).div_ceil(SEGMENT);
        let partial = self.session.allocate(large.partial_bytes(segments, heads))?;
        for split in [None, Some((partial.pointer(), segments))] {
            let mut name = String::new();
            let got = self.result(&before, |out| {
                let launches =
                    large.launches(element, ((out, Element::F32), q.pointer()), split, context(&large), heads)?;
                name.clone_from(&launches[0].name);
                Ok(launches)
            })?;
            let case = format!("{rows} rows over {slots} slots, {}/{} heads", heads.heads, heads.kv_heads);
            if let Some(problem) = difference(&name, &case, &got, &wanted) {
                return Ok(Some(problem));
            }
        }
        Ok(None)
    }
}

/// What is said of a result that has other bits.
fn difference(kernel: &str, case: &str, got: &[u8], wanted: &[u8]) -> Option<String> {
    let differs = got.iter().zip(wanted).filter(|(got, wanted)| got != wanted).count();
    (differs > 0).then(|| {
        format!("{kernel} has other bits than the kernel for all GPUs ({case}: {differs} of {} bytes)", wanted.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_kernels::error::Error;

    #[test]
    fn what_differs_is_not_used_and_named() {
        assert!(Use::of(difference("k", "1x2", &[1, 2], &[1, 2])).is_used());
        let products = Use::of(difference("k", "1x2", &[1, 3], &[1, 2]));
        let trial = Trial { products, ..Trial::none() };
        assert!(!trial.products.is_used() && !trial.attention.is_used());
        let said = "products: k has other bits than the kernel for all GPUs (1x2: 1 of 2 bytes)";
        assert_eq!(trial.problems(), [said]);
    }

    #[test]
    fn an_error_of_a_call_is_a_difference_and_a_lost_gpu_an_error() {
        assert!(matches!(told(Err(Error::internal("no such kernel"))), Ok(Use::Differs(_))));
        assert!(told(Err(Error::new(ErrorKind::DeviceLost, "gone"))).is_err());
    }

    #[test]
    fn a_family_that_ended_a_context_is_not_tried_again() {
        let mut ended = None;
        assert!(tried(&mut ended, || Err(Error::new(ErrorKind::DeviceLost, "an illegal address"))).is_err());
        let again = tried(&mut ended, || panic!("it would end the next one, too")).unwrap();
        assert!(matches!(again, Use::Differs(why) if why.contains("an illegal address")));
        assert!(tried(&mut None, || Ok(None)).unwrap().is_used());
    }
}
