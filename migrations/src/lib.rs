//! Upgrades what is on disk. A data folder carries the number of its format (`DATA/FORMAT`); each step leads from one
//! format to the next, one file a step, and is safe to run again after a kill at any instant: the stamp is written last.
//!
//! | format | since | what changed |
//! |---|---|---|
//! | 1 | issue 2 | |
//! | 2 | issue 4 | the disk tier has a column family `index`, a small row an entry ([`step_2`]) |

mod stamp;
mod step_2;

use std::path::Path;

use ragstone_env::Env;
use ragstone_storage::{Error, ErrorKind, Result};
use serde::Serialize;

/// The format of data folders that this version reads and writes.
pub const FORMAT_VERSION: u32 = 2;

/// All steps, in order; the first leads from format 1.
const STEPS: [Step; FORMAT_VERSION as usize - 1] = [step_2::STEP];

/// One step from a format to the next.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Step {
    /// The format before it.
    pub from: u32,
    /// The format after it.
    pub to: u32,
    /// What it does, for people.
    pub what: &'static str,
    /// Whether the next start takes it by itself, because it is quick and loses nothing.
    pub automatic: bool,
    /// Does it, also where a kill cut it off before; what it did, for people. BLOCKS.
    #[serde(skip)]
    run: fn(&Path) -> Result<String>,
    /// Looks whether what it did is there and true. BLOCKS.
    #[serde(skip)]
    verify: fn(&Path) -> Result<Vec<Check>>,
}

/// What [`prepare`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There was nothing; the folder is stamped with the current format now.
    Fresh,
    /// The data is of the current format.
    Current,
    /// The data was of an older format, and is of the current one now.
    Upgraded {
        /// The older one.
        from: u32,
    },
}

/// What lies between a folder and this version.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The folder's format; `None` where there is no data yet.
    pub found: Option<u32>,
    /// [`FORMAT_VERSION`].
    pub wanted: u32,
    /// Steps to take, in order.
    pub steps: Vec<Step>,
}

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The format it led to.
    pub to: u32,
    /// What it did, for people.
    pub done: String,
}

/// Something that the stamp promises, and whether it is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// Whether it is as promised.
    pub ok: bool,
    /// What was found.
    pub found: String,
}

/// What lies between the data folder and this version. Reads the stamp only, so that it needs no lock.
///
/// # Errors
/// `Incompatible` if a newer version wrote the folder, or its stamp is missing or unreadable; `Unavailable` if it cannot
/// be read.
pub fn status(data: &Path) -> Result<Status> {
    let found = stamp::read(data)?;
    let steps = STEPS.into_iter().filter(|step| found.is_some_and(|found| step.from >= found)).collect();
    Ok(Status { found, wanted: FORMAT_VERSION, steps })
}

/// Says whether this version can use the data folder, stamps a fresh one, and takes the steps that need nobody's leave.
/// Call it first, under the folder's lock. BLOCKS.
///
/// # Errors
/// As [`status`] and [`up`]; `Incompatible` if a step must be asked for.
pub fn prepare(data: &Path, env: &Env) -> Result<State> {
    let Status { found, steps, .. } = status(data)?;
    let Some(from) = found else {
        stamp::write(data, FORMAT_VERSION)?;
        return Ok(State::Fresh);
    };
    if steps.is_empty() {
        return Ok(State::Current);
    }
    if let Some(step) = steps.iter().find(|step| !step.automatic) {
        let message = format!(
            "{} is of format {from}, and {} is not done by itself: run `ragstone migrate up`",
            data.display(),
            step.what
        );
        return Err(Error::new(ErrorKind::Incompatible, message));
    }
    for Taken { to, done } in up(data, env, &mut |_| {})? {
        tracing::info!(data = %data.display(), from = to - 1, to, done, "the data folder was upgraded");
    }
    Ok(State::Upgraded { from })
}

/// Takes every step to the current format, and stamps a fresh folder. `begin` hears of each step before it is taken. Call
/// it under the folder's lock. After an error or a kill the folder is of the format of the last step that was finished,
/// and the next call goes on. BLOCKS.
///
/// # Errors
/// As [`status`]; what a step meets, with the folder's name.
pub fn up(data: &Path, env: &Env, begin: &mut dyn FnMut(&Step)) -> Result<Vec<Taken>> {
    let Status { found, steps, .. } = status(data)?;
    if found.is_none() {
        stamp::write(data, FORMAT_VERSION)?;
    }
    let mut taken = Vec::with_capacity(steps.len());
    for step in steps {
        begin(&step);
        env.fail_point("migrate.before_step")?;
        let done = (step.run)(data)?;
        env.fail_point("migrate.after_step")?;
        env.fail_point("migrate.before_stamp")?;
        stamp::write(data, step.to)?;
        taken.push(Taken { to: step.to, done });
    }
    Ok(taken)
}

/// Looks whether everything that the folder's stamp promises is so. Changes nothing. Call it under the folder's lock.
/// BLOCKS.
///
/// # Errors
/// As [`status`]; what cannot be read.
pub fn verify(data: &Path) -> Result<Vec<Check>> {
    let Some(found) = stamp::read(data)? else { return Ok(Vec::new()) };
    let mut checks = Vec::new();
    for step in STEPS.iter().filter(|step| step.to <= found) {
        checks.extend((step.verify)(data)?);
    }
    Ok(checks)
}

#[cfg(test)]
mod tests;
