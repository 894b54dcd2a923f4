//! This machine's costs across starts: measured when a model is first run here, kept in the catalog.

use ragstone_kernels::backend::Backend;
use ragstone_kernels::simd::Path;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::env::Env;
use ragstone_storage::key::Fingerprint;

use crate::costs::measure;
use crate::error::Result;
use crate::ragstone::Progress;

/// Opens the costs of a model on this machine, measured now if they never were. BLOCKS, for seconds then.
pub(crate) fn open<B: Backend>(
    backend: &B,
    fingerprint: &Fingerprint,
    catalog: &Catalog,
    env: &Env,
    progress: &dyn Fn(Progress),
) -> Result<Costs> {
    let (name, layers) = (name(fingerprint), backend.config().layers as u32);
    if let Some(kept) = catalog.costs(&name)?.filter(|kept| kept.prefill.is_measured && kept.is_sane(layers)) {
        return Ok(Costs::new(kept));
    }
    let prefill = measure(backend, env, &|done, total| progress(Progress::Measuring { done, total }))?;
    let costs = Costs::new(CostProfile { prefill, ..CostProfile::assumed()? });
    keep(&costs, fingerprint, catalog)?;
    Ok(costs)
}

/// Writes what was learned since.
pub(crate) fn keep(costs: &Costs, fingerprint: &Fingerprint, catalog: &Catalog) -> Result<()> {
    Ok(catalog.note_costs(&name(fingerprint), &costs.profile())?)
}

/// Costs are of a model, of the kernels that compute it, and of as many threads.
fn name(fingerprint: &Fingerprint) -> String {
    format!("{fingerprint}.{}.{}", Path::best().name(), rayon::current_num_threads())
}
