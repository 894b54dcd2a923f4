//! How the tier is opened: a store that is damaged as a whole is moved aside, and a start that cannot have one goes on without.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rocksdb::DB;

use super::{DiskIndex, DiskTier, Inner, Recovery, Remembered, quarantine, recovery, rocks};
use crate::policy::PolicyKind;
use crate::tree::TierOptions;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::damage::{Damage, move_aside};

impl DiskTier {
    /// Opens or creates the tier in `dir` and rebuilds its index from the index rows. Damaged rows are repaired or
    /// quarantined; what has no room any more leaves. A RocksDB that is damaged as a whole is moved aside, which [`damage`](Self::damage)
    /// tells: it holds derived data only, so that one of these is kept at the most. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder; `Full` if the disk is.
    pub fn open(dir: &Path, options: TierOptions, env: Env, remembered: &Remembered) -> Result<Self> {
        match Self::try_open(dir, options, env.clone(), remembered) {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) && dir.is_dir() => {
                quarantine::forget_earlier_stores(dir);
                let aside = move_aside(dir, env.now_unix_ms())?;
                tracing::error!(%error, moved_to = %aside.display(), "the KV store is damaged; starting with an empty one");
                let mut tier = Self::try_open(dir, options, env, remembered)?;
                if let Some(inner) = Arc::get_mut(&mut tier.0) {
                    let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    inner.damage = Some(recovery::damage(
                        format!("it was damaged as a whole and begun anew; all KV on disk is lost: {error}"),
                        format!(
                            "nothing has to be done: it is computed again. What was there is in `{name}` in the data folder; remove it"
                        ),
                    ));
                }
                Ok(tier)
            }
            opened => opened,
        }
    }

    /// Whether an error of [`open`](Self::open) says that somebody else has the folder open.
    pub fn is_in_use(error: &Error) -> bool {
        rocks::is_in_use(error)
    }

    /// A tier that keeps nothing, for a start that cannot have one on disk: for `why`.
    ///
    /// # Errors
    /// As RocksDB says.
    pub fn without_disk(dir: &Path, policy: PolicyKind, env: Env, why: &Error) -> Result<Self> {
        let advice = "it is computed again and kept in memory; mend the cause and start again, and what is on disk is used again";
        let damage = recovery::damage(format!("the start could not open it and goes on without: {why}"), advice);
        let index = DiskIndex::new(TierOptions { capacity_bytes: 0, policy });
        let (db, recovery) = (rocks::open_in_memory()?, Recovery::default());
        Ok(Self::of(db, dir, env, index, (recovery, Some(damage)), false))
    }

    fn try_open(dir: &Path, options: TierOptions, env: Env, remembered: &Remembered) -> Result<Self> {
        let files = rocks::table_files(dir);
        let db = rocks::open(dir)?;
        let mut index = DiskIndex::new(options);
        let (recovery, excess) = recovery::read_index(&db, dir, &env, &mut index, remembered)?;
        if recovery.over_bound_bytes > 0 {
            let (bytes, bound) = (recovery.over_bound_bytes, options.capacity_bytes);
            tracing::warn!(
                bytes,
                bound,
                "pinned entries take more of the disk than disk_bytes allows; they stay, and nothing else is kept there until some are unpinned"
            );
        }
        let mut damage = None;
        // A manifest that is cut reads as one that ends there: RocksDB opens, and forgets what the rest named.
        if forgot_entries(&recovery, remembered) && !files.is_empty() && !rocks::knows_any(&db, &files)? {
            tracing::error!(
                files = files.len(),
                "the KV store does not know its own files any more: its manifest is damaged, and all KV on disk is lost"
            );
            damage = Some(recovery::damage(
                "its manifest is damaged: it knows none of its files any more, and all KV on disk is lost",
                "nothing has to be done: it is computed again; look after the medium",
            ));
        }
        let tier = Self::of(db, dir, env, index, (recovery, damage), true);
        excess.iter().try_for_each(|extent| tier.delete(extent))?;
        Ok(tier)
    }

    fn of(
        db: DB,
        dir: &Path,
        env: Env,
        index: DiskIndex,
        (recovery, damage): (Recovery, Option<Damage>),
        is_on_disk: bool,
    ) -> Self {
        Self(Arc::new(Inner {
            db,
            dir: dir.to_owned(),
            env,
            index: Arc::new(Mutex::new(index)),
            is_collecting: AtomicBool::new(false),
            recovery,
            damage,
            is_on_disk,
        }))
    }
}

/// Whether so few entries were found that it may be the end of the manifest that is missing. Files alone do not say so: those of a flush that
/// was cut off are unknown, too, and what was in it comes from the log.
fn forgot_entries(found: &Recovery, remembered: &Remembered) -> bool {
    found.evicted == 0 && (found.entries == 0 || found.entries < remembered.last_uses.len() as u64 / 2)
}
