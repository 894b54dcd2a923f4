//! How fast KV leaves each tier, beside the raw medium: a copy in memory or to a GPU's, positioned reads of a file.
//!
//! Each pair is measured in turn within every round, over the same number of bytes in pieces of the same size, so that their
//! ratio is of one machine at one time. What the tiers do besides (checksums, rotation, placing) counts against them.

mod disk;
mod gpu;

use std::sync::Arc;

use ragstone_actors::models::language_model;
use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId, KvData, KvLayout, KvPool};
use ragstone_kernels::rope::Rope;
use ragstone_storage::entry::{Entry, EntryBuilder, NewEntry};
use ragstone_storage::frame::Frame;
use ragstone_storage::key::Fingerprint;
use ragstone_storage::prompt::plan::DISK_LANES;
use ragstone_storage::tier::object::{ObjectOptions, ObjectTier};
use ragstone_storage::tier::{EntryId, EntryTier};
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use self::disk::Disk;
use self::gpu::Gpu;
use super::{Shape, Spread};
use crate::error::Result;

/// Of no model.
const FINGERPRINT: Fingerprint = Fingerprint([7; 32]);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the model whose entries they are.
    pub shape: Shape,
    /// Length of an entry.
    pub tokens: usize,
    /// Entries read in a round.
    pub entries: usize,
    /// Rounds; each measures everything once.
    pub runs: usize,
    /// A bucket to measure too. The entries stay in it.
    pub object: Option<ObjectOptions>,
}

/// One way out of a tier, beside the raw medium.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    /// What was measured.
    pub path: &'static str,
    /// What it is compared with.
    pub raw: &'static str,
    /// Bytes of K and V that each moved in a round.
    pub bytes: u64,
    /// Ours, in GB/s.
    pub ours_gbps: Spread,
    /// The raw medium's, in GB/s.
    pub raw_gbps: Spread,
    /// Ours by the raw medium's, round by round.
    pub ratio: Spread,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Tokens of an entry.
    pub tokens: usize,
    /// Entries read in a round.
    pub entries: usize,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// Times of one pair, in seconds, a round each.
struct Times {
    path: &'static str,
    raw: &'static str,
    rounds: Vec<(f64, f64)>,
}

/// What entries are placed on.
enum Target {
    Processor(Box<Processor>),
    Gpu(Box<Gpu>),
}

impl Target {
    fn new(options: &Options, device: language_model::Device, load: LoadOptions<'_>) -> Result<Self> {
        let (shape, tokens) = (options.shape, options.tokens);
        Ok(match device {
            language_model::Device::Cuda(gpus) => {
                let load = LoadOptions { kv_dtype: Some(KvDtype::Bf16), ..load };
                Self::Gpu(Box::new(Gpu::new(shape, gpus, load, tokens)?))
            }
            _ => Self::Processor(Box::new(Processor::new(shape, tokens)?)),
        })
    }

    /// What it is compared with.
    fn copies(&self) -> &'static str {
        match self {
            Self::Processor(_) => "memcpy",
            Self::Gpu(_) => "pinned copy",
        }
    }
}

/// Measures on a temporary folder of the system's (`TMPDIR`).
pub fn measure(options: &Options, device: language_model::Device, load: LoadOptions<'_>) -> Result<Report> {
    let mut target = Target::new(options, device, load)?;
    let entries = make_entries(options)?;
    let disk = Disk::fill(&entries)?;
    let bucket = options.object.as_ref().map(|object| fill_bucket(object, &entries)).transpose()?;
    let bytes: u64 = entries.iter().map(|entry| entry.header().frames_bytes()).sum();

    let progress = Progress::new("measuring tiers", Unit::Items);
    let mut times = [
        Times { path: "host to device, verified and rotated", raw: target.copies(), rounds: Vec::new() },
        Times { path: "disk to host, verified", raw: "positioned reads", rounds: Vec::new() },
        Times { path: "disk to host, verified, in lanes", raw: "positioned reads, as many", rounds: Vec::new() },
        Times { path: "object to host, verified", raw: "ranged GETs, in turn", rounds: Vec::new() },
        Times { path: "object to host, verified", raw: "ranged GETs, at once", rounds: Vec::new() },
        Times { path: "device to host", raw: target.copies(), rounds: Vec::new() },
    ];
    for round in 0..options.runs {
        progress.set(round as u64, options.runs as u64);
        match &mut target {
            Target::Processor(here) => times[0].rounds.push((here.place(&entries)?, here.copy(&entries))),
            Target::Gpu(gpu) => {
                times[0].rounds.push((gpu.place(&entries)?, gpu.copy(entries.len(), true)?));
                times[5].rounds.push((gpu.export(entries.len())?, gpu.copy(entries.len(), false)?));
            }
        }
        times[1].rounds.push(disk.round(1)?);
        times[2].rounds.push(disk.round(DISK_LANES)?);
        if let Some(bucket) = &bucket {
            let ids: Vec<EntryId> = entries.iter().map(|entry| entry.header().id()).collect();
            let took = bucket.measure_load(&ids)?;
            let ours = took.entries.as_secs_f64();
            times[3].rounds.push((ours, took.gets.as_secs_f64()));
            times[4].rounds.push((ours, took.gets_at_once.as_secs_f64()));
        }
    }
    let pairs = times.into_iter().filter(|times| !times.rounds.is_empty()).map(|times| times.pair(bytes)).collect();
    Ok(Report { tokens: options.tokens, entries: options.entries, pairs })
}

impl Times {
    fn pair(self, bytes: u64) -> Pair {
        let gb = bytes as f64 / 1e9;
        Pair {
            path: self.path,
            raw: self.raw,
            bytes,
            ours_gbps: Spread::of(self.rounds.iter().map(|(ours, _)| gb / ours)),
            raw_gbps: Spread::of(self.rounds.iter().map(|(_, raw)| gb / raw)),
            ratio: Spread::of(self.rounds.iter().map(|(ours, raw)| raw / ours)),
        }
    }
}

/// Verifies every frame and calls `place` with it, its layer and its type: on the processor's threads, one frame verified while the one before is
/// placed. So does a pass, beside the thread of a load.
fn place_verified(
    entries: &[Arc<Entry>],
    mut place: impl FnMut(usize, KvDtype, &Frame) -> Result<()> + Send,
) -> Result<()> {
    let mut frames = entries.iter().flat_map(|entry| (0..entry.header().layers).map(move |layer| (entry, layer)));
    let mut verify = move || frames.next().map(|(entry, layer)| Ok((layer, entry.header().dtype, entry.layer(layer)?)));
    rayon::scope(|_| {
        let mut next = verify().transpose()?;
        while let Some((layer, dtype, frame)) = next {
            let (placed, verified) = rayon::join(|| place(layer as usize, dtype, &frame), || verify().transpose());
            placed?;
            next = verified?;
        }
        Ok(())
    })
}

fn layout(shape: Shape) -> Result<(KvLayout, Rope)> {
    let config = shape.config()?;
    let layout =
        KvLayout { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, dtype: KvDtype::Bf16 };
    Ok((layout, Rope::new(&config)))
}

/// Entries whose values are noise: nothing on the way can compress them.
fn make_entries(options: &Options) -> Result<Vec<Arc<Entry>>> {
    let (layout, _) = layout(options.shape)?;
    let random = Env::seeded(1, 0);
    let side = options.tokens * layout.kv_dim();
    let noise = |_| {
        // Any sixteen bits but those of an infinity or of no number.
        let bits = random.random_u64();
        [bits, bits >> 16, bits >> 32, bits >> 48].map(|bits| ((bits as u16) & 0xbf7f).to_le_bytes()).concat()
    };
    let make = |id: usize| {
        let new = NewEntry {
            fingerprint: FINGERPRINT,
            salt: "bench".into(),
            parent: None,
            tokens: (0..options.tokens).map(|token| (id * options.tokens + token) as u32).collect(),
            layers: layout.layers as u32,
            kv_dim: layout.kv_dim() as u32,
            dtype: layout.dtype,
        };
        let mut builder = EntryBuilder::new(new)?;
        for _ in 0..layout.layers {
            let mut both = (0..side.div_ceil(2)).flat_map(noise).collect::<Vec<u8>>();
            let v = both.split_off(side * 2);
            builder.push_layer(&both, &v[..side * 2])?;
        }
        Ok(Arc::new(builder.finish(0, 0)?))
    };
    (0..options.entries).map(make).collect()
}

/// A pool in this machine's memory, and a buffer as large for plain copies.
struct Processor {
    pool: KvPool,
    rope: Rope,
    blocks: Vec<BlockId>,
    slots: Vec<u32>,
    buffer: Vec<u8>,
}

impl Processor {
    fn new(shape: Shape, tokens: usize) -> Result<Self> {
        let (layout, rope) = layout(shape)?;
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        Ok(Self {
            pool: KvPool::new(layout, blocks),
            rope,
            blocks: (0..blocks as u32).map(BlockId).collect(),
            slots: (0..tokens as u32).collect(),
            buffer: vec![0; tokens * layout.token_bytes()],
        })
    }

    /// Verifies every frame and writes it into the blocks, rotated to its place. Seconds.
    fn place(&mut self, entries: &[Arc<Entry>]) -> Result<f64> {
        let started = Stopwatch::start();
        let Self { pool, rope, blocks, slots, .. } = self;
        place_verified(entries, |layer, dtype, frame| {
            let (k, v) = (KvData::Bytes(dtype, &frame.k), KvData::Bytes(dtype, &frame.v));
            pool.write(layer, rope, blocks, slots, slots, k, v)
        })?;
        Ok(started.elapsed_s())
    }

    /// Copies the same bytes. Seconds.
    fn copy(&mut self, entries: &[Arc<Entry>]) -> f64 {
        let started = Stopwatch::start();
        for entry in entries {
            let mut at = 0;
            for frame in entry.frames() {
                let end = (at + frame.len()).min(self.buffer.len());
                self.buffer[at..end].copy_from_slice(&frame[..end - at]);
                at = end;
            }
            std::hint::black_box(&self.buffer);
        }
        started.elapsed_s()
    }
}

fn fill_bucket(options: &ObjectOptions, entries: &[Arc<Entry>]) -> Result<ObjectTier> {
    let tier = ObjectTier::open(options, FINGERPRINT, Env::system())?;
    for entry in entries {
        tier.put(entry)?;
    }
    Ok(tier)
}
