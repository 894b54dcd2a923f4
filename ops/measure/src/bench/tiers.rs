//! How fast KV leaves each tier, beside the raw medium: a copy in memory or to a GPU's, positioned reads of a file.
//!
//! Each pair is measured in turn within every round, over the same number of bytes in pieces of the same size, so that their
//! ratio is of one machine at one time. What the tiers do besides (checksums, rotation, placing) counts against them.

mod disk;
mod gpu;
mod processor;

use std::sync::Arc;

use ragstone_actors::models::language_model;
use ragstone_env::Env;
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::pool::KvLayout;
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
use self::processor::Processor;
use super::{Machine, Shape, Spread};
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
    /// Where.
    pub machine: Machine,
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
        Times { path: "host to device, verified and rotated", raw: "memcpy by all threads", rounds: Vec::new() },
        Times { path: "disk to host, verified", raw: "positioned reads", rounds: Vec::new() },
        Times { path: "disk to host, verified, in lanes", raw: "positioned reads, as many", rounds: Vec::new() },
        Times { path: "object to host, verified", raw: "the same GETs, in turn", rounds: Vec::new() },
        Times { path: "object to host, verified", raw: "the same GETs, at once", rounds: Vec::new() },
        Times { path: "object to host, once it is found", raw: "GETs of ranges, at once", rounds: Vec::new() },
        Times { path: "device to host", raw: target.copies(), rounds: Vec::new() },
    ];
    for round in 0..options.runs {
        progress.set(round as u64, options.runs as u64);
        match &mut target {
            Target::Processor(here) => {
                let placed = here.place(&entries)?;
                times[0].rounds.push((placed, here.copy(&entries, false)));
                times[1].rounds.push((placed, here.copy(&entries, true)));
            }
            Target::Gpu(gpu) => {
                times[0].rounds.push((gpu.place(&entries)?, gpu.copy(entries.len(), true)?));
                times[7].rounds.push((gpu.export(entries.len())?, gpu.copy(entries.len(), false)?));
            }
        }
        times[2].rounds.push(disk.round(1)?);
        times[3].rounds.push(disk.round(DISK_LANES)?);
        if let Some(bucket) = &bucket {
            let ids: Vec<EntryId> = entries.iter().map(|entry| entry.header().id()).collect();
            let took = bucket.measure_load(&ids)?;
            let ours = took.entries.as_secs_f64();
            let (open, gets, at_once) = (took.open, took.gets, took.gets_at_once);
            times[4].rounds.push((ours, (open + gets).as_secs_f64()));
            times[5].rounds.push((ours, (open + at_once).as_secs_f64()));
            times[6].rounds.push((took.frames.as_secs_f64(), at_once.as_secs_f64()));
        }
    }
    let pairs = times.into_iter().filter(|times| !times.rounds.is_empty()).map(|times| times.pair(bytes)).collect();
    Ok(Report { machine: Machine::here(), tokens: options.tokens, entries: options.entries, pairs })
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

/// Entries of noise, whose values are normal numbers as those of real KV are: processors compute slowly with others.
fn make_entries(options: &Options) -> Result<Vec<Arc<Entry>>> {
    let (layout, _) = layout(options.shape)?;
    let random = Env::seeded(1, 0);
    let side = options.tokens * layout.kv_dim();
    let noise = |_| {
        let bits = random.random_u64();
        [bits, bits >> 16, bits >> 32, bits >> 48].map(|bits| normal_bf16(bits as u16).to_le_bytes()).concat()
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

/// A bf16 of between 1/128 and 2, or that below zero: sign, mantissa and the lowest bits of the exponent are those of `bits`.
fn normal_bf16(bits: u16) -> u16 {
    bits & 0x83ff | 0x3c00
}

fn fill_bucket(options: &ObjectOptions, entries: &[Arc<Entry>]) -> Result<ObjectTier> {
    let tier = ObjectTier::open(options, FINGERPRINT, Env::system())?;
    for entry in entries {
        tier.put(entry)?;
    }
    Ok(tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_as_large_as_kv() {
        for bits in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(normal_bf16(bits)) << 16).abs();
            assert!((1.0 / 128.0..2.0).contains(&value), "{value}");
        }
    }
}
