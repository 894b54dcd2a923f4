//! The model fingerprint: a digest of everything that shapes KV values, so that no entry is ever used by another model.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use ragstone_kernels::dtype::KvDtype;

use crate::catalog::{Catalog, FileStamp};
use crate::frame::FORMAT_VERSION;
use crate::key::Fingerprint;
use crate::{Error, Result};

/// BLAKE3's derive-key context.
const CONTEXT: &str = "ragstone 2026 model fingerprint format 1";
const READ_BYTES: usize = 1 << 20;

/// Called with bytes done and bytes in all while weights are read.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Where the weights are from.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Files, in any order; their content counts and their names do not, except that names order them.
    Files(&'a [PathBuf]),
    /// Made at random from a seed, for benchmarks.
    Seed(u64),
}

/// Everything that shapes KV values.
#[derive(Debug, Clone, Copy)]
pub struct ModelIdentity<'a> {
    /// `config.json`, byte for byte.
    pub config: &'a [u8],
    /// `tokenizer.json`, byte for byte.
    pub tokenizer: &'a [u8],
    /// The weights.
    pub weights: Weights<'a>,
    /// The files of an adapter that is added to them, in any order; empty without one.
    pub adapter: &'a [PathBuf],
    /// How weights are kept and products computed, such as `weights stored, compute bf16`.
    pub arithmetic: &'a str,
    /// Element type of stored K and V.
    pub kv_dtype: KvDtype,
    /// Positional encoding, and where it is applied, such as `rope, k stored before rotary`.
    pub positional: &'a str,
}

/// The fingerprint of a model. Weight files are read once a state: their digests are remembered in the catalog. BLOCKS,
/// at first about a second for every gigabyte.
///
/// # Errors
/// `InvalidInput` if a file cannot be read.
pub fn fingerprint(
    identity: &ModelIdentity<'_>,
    catalog: Option<&Catalog>,
    progress: Option<Progress<'_>>,
) -> Result<Fingerprint> {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    part(&FORMAT_VERSION.to_le_bytes());
    part(identity.config);
    part(identity.tokenizer);
    part(identity.arithmetic.as_bytes());
    part(identity.kv_dtype.name().as_bytes());
    part(identity.positional.as_bytes());
    match identity.weights {
        Weights::Seed(seed) => {
            part(b"seed");
            part(&seed.to_le_bytes());
        }
        Weights::Files(files) => {
            part(b"files");
            for digest in file_digests(files, catalog, progress)? {
                part(&digest);
            }
        }
    }
    // Nothing where there is none: entries of before are still the model's.
    if !identity.adapter.is_empty() {
        part(b"adapter");
        for digest in file_digests(identity.adapter, catalog, None)? {
            part(&digest);
        }
    }
    Ok(Fingerprint(*hasher.finalize().as_bytes()))
}

/// A digest of a model's weights alone, in hexadecimal digits: of the files' content, in the order of their names. BLOCKS as [`fingerprint`]
/// does, but for files whose digests the catalog has.
///
/// # Errors
/// `InvalidInput` if a file cannot be read.
pub fn weights_digest(files: &[PathBuf], catalog: Option<&Catalog>) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for digest in file_digests(files, catalog, None)? {
        hasher.update(&digest);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn file_digests(files: &[PathBuf], catalog: Option<&Catalog>, progress: Option<Progress<'_>>) -> Result<Vec<[u8; 32]>> {
    let mut files: Vec<&PathBuf> = files.iter().collect();
    files.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    let stamps = files.into_iter().map(|path| stamp(path)).collect::<Result<Vec<_>>>()?;
    let total: u64 = stamps.iter().map(|stamp| stamp.bytes).sum();
    let mut done = 0;
    let mut advance = |bytes: u64| {
        done += bytes;
        if let Some(progress) = progress {
            progress(done, total);
        }
    };
    stamps.iter().map(|stamp| file_digest(stamp, catalog, &mut advance)).collect()
}

fn file_digest(stamp: &FileStamp, catalog: Option<&Catalog>, advance: &mut dyn FnMut(u64)) -> Result<[u8; 32]> {
    let remembered = catalog.and_then(|catalog| {
        let digest = catalog.digest(stamp);
        digest.inspect_err(|error| tracing::warn!(%error, "a remembered digest cannot be read")).ok().flatten()
    });
    if let Some(digest) = remembered {
        advance(stamp.bytes);
        return Ok(digest);
    }
    let failed = |source| Error::io("read the weights", &stamp.path, source);
    let mut file = File::open(&stamp.path).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        advance(read as u64);
    }
    let digest = *hasher.finalize().as_bytes();
    // A file that is being written to has another stamp by now: its digest is not worth remembering.
    let is_settled = self::stamp(&stamp.path).is_ok_and(|now| now == *stamp);
    if let Some(catalog) = catalog.filter(|_| is_settled)
        && let Err(error) = catalog.remember_digest(stamp, &digest)
    {
        tracing::warn!(%error, "a digest is not remembered; the weights are read again at the next start");
    }
    Ok(digest)
}

fn stamp(path: &Path) -> Result<FileStamp> {
    let failed = |source| Error::io("read the weights", path, source);
    let path = path.canonicalize().map_err(failed)?;
    let metadata = path.metadata().map_err(failed)?;
    let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(FileStamp {
        bytes: metadata.len(),
        modified_unix_ns: modified.unwrap_or(Duration::ZERO).as_nanos(),
        changed_unix_ns: changed_unix_ns(&metadata),
        path,
    })
}

#[cfg(unix)]
fn changed_unix_ns(metadata: &std::fs::Metadata) -> i128 {
    use std::os::unix::fs::MetadataExt;
    i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn changed_unix_ns(_: &std::fs::Metadata) -> i128 {
    0
}

#[cfg(test)]
mod tests;
