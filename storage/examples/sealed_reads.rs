//! Measures what seals cost: entries of Qwen2.5-0.5B's shape are loaded from buckets in this process's memory, that differ in nothing but how they are sealed.
//! In turn within each round, so that what else the machine does meets all alike.
//!
//! ```sh
//! cargo run -p ragstone -p ragstone-storage --example sealed_reads
//! ```
//! A bucket in memory has no network: what is printed is the most that a seal can cost beside a real one. Each frame is also compared with its checksum, as
//! always.

use std::io::Write;
use std::sync::Arc;

use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::dtype::KvDtype;
use ragstone_storage::entry::{Entry, EntryBuilder, NewEntry};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::tier::object::{KeySources, ObjectOptions, ObjectTier};
use ragstone_storage::tier::{EntryId, EntryTier};

const MODEL: Fingerprint = Fingerprint([7; 32]);
const ROUNDS: usize = 15;
const ENTRIES: usize = 16;
/// 256 tokens of 24 layers, 128 columns of bf16: 3 MiB.
const TOKENS: usize = 256;
const LAYERS: u32 = 24;
const COLUMNS: usize = 128;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let entries = (0..ENTRIES).map(make).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<EntryId> = entries.iter().map(|entry| entry.header().id()).collect();
    let bytes: u64 = entries.iter().map(|entry| entry.header().frames_bytes()).sum();
    let mut key = tempfile::NamedTempFile::new()?;
    write!(key, "{}", "17".repeat(31) + "18")?;
    let keys = KeySources::files([key.path().to_owned()]);
    let ways = [("not sealed", false, false), ("authenticated", true, false), ("encrypted", true, true)];
    let mut tiers = Vec::new();
    for (what, is_sealed, encrypt) in ways {
        let keys = if is_sealed { keys.clone() } else { KeySources::default() };
        let options = ObjectOptions { keys, encrypt, ..ObjectOptions::new(format!("memory://{what}")) };
        tiers.push(ObjectTier::open(&options, MODEL, Env::system())?);
    }
    let mut gbps = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 0..=ROUNDS {
        for (tier, (reads, writes)) in tiers.iter().zip(&mut gbps) {
            let begun = Stopwatch::start();
            for entry in &entries {
                tier.put(entry)?;
            }
            let written = begun.elapsed_s();
            let read = tier.measure_load(&ids)?.entries.as_secs_f64();
            for id in &ids {
                tier.remove(id)?;
            }
            // The first one warms up.
            if round > 0 {
                reads.push(bytes as f64 / 1e9 / read);
                writes.push(bytes as f64 / 1e9 / written);
            }
        }
    }
    println!(
        "{ENTRIES} entries of {:.1} MB, {ROUNDS} rounds: median GB/s (least to most), and the median of the rounds' ratios to what is not sealed",
        bytes as f64 / 1e6 / ENTRIES as f64
    );
    for (at, (what, ..)) in ways.iter().enumerate() {
        for (verb, pick) in [("read", 0), ("write", 1)] {
            let of = |at: usize| if pick == 0 { &gbps[at].0 } else { &gbps[at].1 };
            let ratios = of(at).iter().zip(of(0)).map(|(ours, plain)| ours / plain).collect();
            let all = sorted(of(at).clone());
            let (least, most) = (all[0], all[all.len() - 1]);
            println!("{what:<14} {verb:<5} {:.2} ({least:.2} to {most:.2})  {:.2}", all[all.len() / 2], median(ratios));
        }
    }
    Ok(())
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: Vec<f64>) -> f64 {
    sorted(values)[ROUNDS / 2]
}

/// An entry of noise, which nothing can compress.
fn make(id: usize) -> Result<Arc<Entry>, Failed> {
    let random = Env::seeded(id as u64, 0);
    let new = NewEntry {
        fingerprint: MODEL,
        salt: "bench".into(),
        parent: None,
        tokens: (0..TOKENS).map(|token| (id * TOKENS + token) as u32).collect(),
        layers: LAYERS,
        kv_dim: COLUMNS as u32,
        dtype: KvDtype::Bf16,
    };
    let mut builder = EntryBuilder::new(new)?;
    for _ in 0..LAYERS {
        let noise =
            || (0..TOKENS * COLUMNS).flat_map(|_| ((random.random_u64() as u16) & 0x83ff | 0x3c00).to_le_bytes());
        let (k, v): (Vec<u8>, Vec<u8>) = (noise().collect(), noise().collect());
        builder.push_layer(&k, &v)?;
    }
    Ok(Arc::new(builder.finish(0, 0)?))
}
