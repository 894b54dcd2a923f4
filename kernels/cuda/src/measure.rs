//! What kernels and plain copies take on a GPU, and what it could do at most: the times behind `ragstone bench kernels` and `bench tiers`.
//!
//! As on the processor ([`measure`](ragstone_kernels::measure)), the caller runs cases in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attention::{HostTables, Tables, cut};
use super::driver::Pinned;
use super::gpus::{Gpu, usable};
use super::launch::hopper::Product;
use super::launch::quantized::{Q8, gemm_q8};
use super::launch::{self, Element, Heads};
use super::quantized::line_bytes;
use super::session::{Buffer, Launch, Session};
use ragstone_kernels::backend::{RowGroup, SequenceView};
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::error::Result;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

/// A sample is repeated until it takes at least this long, so that a clock's step and the first launch do not count.
const LEAST_TIME: Duration = Duration::from_millis(50);

/// Weights that few rows go through are more than caches hold, as a model's are.
const COLD_BYTES: usize = 256 << 20;
/// Rows up to which time goes into reading the weights.
const FEW_ROWS: usize = 16;
/// Copies of weights, at most.
const MOST_COPIES: usize = 64;
/// Random values that are made up; longer inputs repeat them. A prime, so that no two rows are the same.
const NOISE_VALUES: usize = (1 << 19) - 1;

/// Something to measure on a GPU.
#[derive(Debug)]
pub struct Case {
    /// What is computed, such as `linear`.
    pub kernel: &'static str,
    /// Element types: of weights and products, or of keys and values.
    pub precision: &'static str,
    /// Sizes, such as `512x896x4864` (rows, inputs, outputs).
    pub shape: String,
    /// Additions and multiplications of one call.
    pub operations: f64,
    /// Bytes that one call reads at least: of products the weights, of attention keys and values.
    pub bytes: f64,
    session: Arc<Session>,
    /// Calls, each of some launches. They take turns.
    calls: Vec<Vec<Launch>>,
    repeats: u32,
    /// What the launches read and write.
    _memory: Vec<Buffer>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "measuring is all that these times are for; storage's clock is above this crate"
)]
impl Case {
    /// Seconds of one call, the mean over one sample. The first sample finds out how many calls it takes, and is not counted.
    ///
    /// # Errors
    /// The driver's.
    pub fn sample(&mut self) -> Result<f64> {
        if self.repeats == 0 {
            self.repeats = 1;
            // The first one loads the kernel.
            self.seconds()?;
            while self.seconds()? < LEAST_TIME.as_secs_f64() {
                self.repeats *= 2;
            }
        }
        Ok(self.seconds()? / f64::from(self.repeats))
    }

    /// Of `repeats` calls that are queued together.
    fn seconds(&self) -> Result<f64> {
        let started = Instant::now();
        for call in self.calls.iter().cycle().take(self.repeats as usize) {
            self.session.run(call)?;
        }
        self.session.finish()?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// A GPU that is measured.
#[derive(Debug)]
pub struct Measured {
    session: Arc<Session>,
    gpu: Gpu,
    noise: Vec<f32>,
}

impl Measured {
    /// Takes GPU `ordinal` into use.
    ///
    /// # Errors
    /// Where there is no such GPU.
    pub fn start(ordinal: usize) -> Result<Self> {
        let (gpu, session) = (usable(ordinal)?, Session::start(ordinal)?);
        let mut random = fastrand::Rng::with_seed(1);
        let noise = (0..NOISE_VALUES).map(|_| random.f32() - 0.5).collect();
        Ok(Self { session, gpu, noise })
    }

    /// Which one it is.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Random values: of zeros a GPU draws less power, and is faster.
    fn random(&self, dtype: KvDtype, count: usize) -> Result<Buffer> {
        let values: Vec<f32> = self.noise.iter().copied().cycle().take(count).collect();
        self.session.upload(&dtype.encode(&values))
    }

    /// Rows through a layer whose weights are of that type.
    ///
    /// # Errors
    /// `Full` where the GPU's memory is too small.
    pub fn product(&self, dtype: KvDtype, sizes @ [rows, inputs, outputs]: [usize; 3]) -> Result<Case> {
        let shape = (rows as u32, outputs as u32, inputs as u32);
        let weight_bytes = inputs * outputs * dtype.size_in_bytes();
        let weights = |copies: usize| self.random(dtype, copies * inputs * outputs);
        let launch = |out, x, w| {
            let of = Product { out, x, w, bias: 0, shape };
            match dtype == KvDtype::Bf16 && self.session.trial().products.is_used() && of.fits() {
                true => of.launch(false, self.session.multiprocessors()),
                false => Ok(launch::gemm(Element::from(dtype), (out, x, w, 0), shape, false)),
            }
        };
        self.linear(dtype.name(), dtype, sizes, (weight_bytes, &weights), &launch)
    }

    /// Rows of bf16 through a layer whose weights have 8 bits.
    ///
    /// # Errors
    /// `Full` where the GPU's memory is too small.
    pub fn product_q8(&self, sizes @ [rows, inputs, outputs]: [usize; 3]) -> Result<Case> {
        let shape = (rows as u32, outputs as u32, inputs as u32);
        let weight_bytes = outputs * line_bytes(inputs);
        let weights = |copies: usize| {
            let bytes = self.noise.iter().map(|value| (128.0 + 254.0 * value) as u8);
            self.session.upload(&bytes.cycle().take(copies * weight_bytes).collect::<Vec<_>>())
        };
        let scales = self.random(KvDtype::F32, outputs)?;
        let launch = |out, x, lines| Ok(gemm_q8((out, x, 0), Q8 { lines, scales: scales.pointer() }, shape, false));
        let mut case = self.linear("q8", KvDtype::Bf16, sizes, (weight_bytes, &weights), &launch)?;
        case._memory.push(scales);
        Ok(case)
    }

    /// `dtype` is that of rows. `weights` makes so many copies, of `weight_bytes` each; `launch` takes where out, rows and a copy lie.
    fn linear(
        &self,
        precision: &'static str,
        dtype: KvDtype,
        [rows, inputs, outputs]: [usize; 3],
        (weight_bytes, weights): (usize, &dyn Fn(usize) -> Result<Buffer>),
        launch: &dyn Fn(u64, u64, u64) -> Result<Launch>,
    ) -> Result<Case> {
        let copies = if rows <= FEW_ROWS { (COLD_BYTES / weight_bytes.max(1) + 1).min(MOST_COPIES) } else { 1 };
        let (x, weights) = (self.random(dtype, rows * inputs)?, weights(copies)?);
        let out = self.session.allocate(4 * rows * outputs)?;
        let call = |copy: usize| {
            Ok(vec![launch(out.pointer(), x.pointer(), weights.pointer() + (copy * weight_bytes) as u64)?])
        };
        Ok(Case {
            kernel: "linear",
            precision,
            shape: format!("{rows}x{inputs}x{outputs}"),
            operations: 2.0 * (rows * inputs * outputs) as f64,
            bytes: weight_bytes as f64,
            calls: (0..copies).map(call).collect::<Result<_>>()?,
            session: self.session.clone(),
            repeats: 0,
            _memory: vec![x, weights, out],
        })
    }

    /// The last `rows` queries of a sequence of `tokens`, in one layer of so many heads, KV heads, and values a head. Counts the products
    /// of visible keys only.
    ///
    /// # Errors
    /// `Full` where the GPU's memory is too small.
    pub fn attention(&self, dtype: KvDtype, heads: [usize; 3], rows: usize, tokens: usize) -> Result<Case> {
        let [heads, kv_heads, head_dim] = heads.map(|of| of as u32);
        let (shape, element) = (Heads { heads, kv_heads, head_dim }, Element::from(dtype));
        let blocks: Vec<BlockId> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).rev().map(BlockId).collect();
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let group = RowGroup {
            rows: 0..rows,
            positions: &positions[tokens - rows..],
            sequence: SequenceView { blocks: &blocks, key_positions: &positions },
        };
        let (tile_rows, is_wide) = cut(element, shape, &self.session);
        let tables = Tables::upload(&self.session, HostTables::of(&[group], tile_rows), is_wide)?;
        let tiles = tables.host.tiles.len();
        let segments = tables.segments(tiles, kv_heads, tokens as u32, self.session.multiprocessors());
        let kv_values = blocks.len() * BLOCK_TOKENS * (kv_heads * head_dim) as usize;
        let q_values = rows * (heads * head_dim) as usize;
        let (keys, values) = (self.random(dtype, kv_values)?, self.random(dtype, kv_values)?);
        let (q, out) = (self.random(dtype, q_values)?, self.session.allocate(4 * q_values)?);
        let partial = self.session.allocate(tables.partial_bytes(segments, shape))?;
        let split = (segments > 0).then(|| (partial.pointer(), segments));
        let pool_lines = (blocks.len() * BLOCK_TOKENS) as u32 * kv_heads;
        let context = tables.context((keys.pointer(), values.pointer()), pool_lines, None, None);
        let launches = tables.launches(element, ((out.pointer(), Element::F32), q.pointer()), split, context, shape)?;
        let visible: f64 = positions[tokens - rows..].iter().map(|position| f64::from(position + 1)).sum();
        let kv_bytes = 2 * tokens * (kv_heads * head_dim) as usize * dtype.size_in_bytes();
        let mut memory = vec![keys, values, q, out, partial];
        memory.extend(tables.into_buffers());
        Ok(Case {
            kernel: "attention",
            precision: dtype.name(),
            shape: format!("{rows} of {tokens}, {heads}/{kv_heads} heads of {head_dim}"),
            operations: 4.0 * visible * f64::from(heads * head_dim),
            bytes: kv_bytes as f64,
            calls: vec![launches],
            session: self.session.clone(),
            repeats: 0,
            _memory: memory,
        })
    }

    /// Plain copies of so many bytes.
    ///
    /// # Errors
    /// `Full` where memory is too small.
    pub fn copies(&self, bytes: usize) -> Result<Copies> {
        let (session, device) = (self.session.clone(), self.session.allocate(bytes)?);
        Ok(Copies { host: session.pinned(bytes)?, device, session })
    }
}

/// Copies between pinned host memory and the device as the driver makes them, in one piece and with nothing else: what others are
/// compared with.
#[derive(Debug)]
pub struct Copies {
    host: Pinned,
    device: Buffer,
    session: Arc<Session>,
}

impl Copies {
    /// Copies to the device, and waits for that.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_in(&mut self) -> Result<()> {
        self.session.copy_pinned(&mut self.host, &self.device, true)
    }

    /// Copies to the host, and waits for that.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_out(&mut self) -> Result<()> {
        self.session.copy_pinned(&mut self.host, &self.device, false)
    }
}

/// Additions and multiplications that a multiprocessor makes in a clock at most: dense products of bf16 on tensor cores, and of f32 without
/// them; by compute capability. From NVIDIA's data sheets. GeForce cards of 8.6, 8.9 and 12.0 sum bf16 at half of it.
const OPERATIONS_A_CLOCK: [((u32, u32), f64, f64); 7] = [
    ((8, 0), 2048.0, 128.0),
    ((8, 6), 1024.0, 256.0),
    ((8, 9), 1024.0, 256.0),
    ((9, 0), 4096.0, 256.0),
    ((10, 0), 8192.0, 256.0),
    ((10, 3), 8192.0, 256.0),
    ((12, 0), 1024.0, 256.0),
];

/// The clock that a data sheet's rates are of, in kHz, by compute capability, where the driver tells a greater one: an H100 may reach 1,980 MHz, and
/// its 989 TFLOP/s are of 1,830.
const DATA_SHEET_KHZ: [((u32, u32), u64); 1] = [((9, 0), 1_830_000)];

/// What a GPU's products of that type reach in a second at most, by a table, its multiprocessors and its clock; `None` where one of these is
/// not known.
pub fn peak_operations(gpu: &Gpu, dtype: KvDtype) -> Option<f64> {
    let (_, bf16, f32) = OPERATIONS_A_CLOCK.iter().find(|(capability, ..)| *capability == gpu.compute_capability)?;
    let a_clock = if dtype == KvDtype::F32 { f32 } else { bf16 };
    let of_sheet = DATA_SHEET_KHZ.iter().find(|(capability, _)| *capability == gpu.compute_capability);
    let khz = of_sheet.map_or(gpu.clock_khz, |(_, khz)| gpu.clock_khz.min(*khz));
    (khz > 0).then_some(a_clock * f64::from(gpu.multiprocessors) * 1000.0 * khz as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_data_sheets() {
        let gpu = |compute_capability, multiprocessors, clock_khz| Gpu {
            ordinal: 0,
            name: String::new(),
            compute_capability,
            driver: String::new(),
            memory_bytes: 0,
            multiprocessors,
            clock_khz,
            memory_bytes_per_s: 0,
        };
        let teraflops = |gpu: &Gpu, dtype| peak_operations(gpu, dtype).map(|peak| (peak / 1e12).round());
        let a100 = gpu((8, 0), 108, 1_410_000);
        assert_eq!([KvDtype::Bf16, KvDtype::F32].map(|of| teraflops(&a100, of)), [Some(312.0), Some(19.0)]);
        assert_eq!(teraflops(&gpu((9, 0), 132, 1_830_000), KvDtype::F16), Some(989.0));
        assert_eq!(teraflops(&gpu((9, 0), 132, 1_980_000), KvDtype::Bf16), Some(989.0));
        assert_eq!(teraflops(&gpu((9, 9), 132, 1_830_000), KvDtype::Bf16), None);
        assert_eq!(teraflops(&gpu((9, 0), 132, 0), KvDtype::Bf16), None);
    }
}
