//! Quotas of tenants: what each may use, what of it is used, and what is guaranteed to it.
//!
//! Documents and KV are counted where they are. Rates are of this process: after a start nobody has used anything.

mod bucket;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ragstone_corpus::Corpus;
use ragstone_env::lock::locked;
use ragstone_env::{Env, Stopwatch};
use ragstone_storage::catalog::{Catalog, Quota, QuotaName, QuotaRecord};
use ragstone_storage::policy::shares::Terms;
use ragstone_storage::store::{KvStore, TenantTerms};

use self::bucket::Bucket;
use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::tenant::check_tenant;
use crate::error::{Error, ErrorKind, Result};

/// Tenants with quotas of their own.
const MOST_TENANTS: usize = 4096;

/// The quotas of a running program. Clones share them.
#[derive(Clone)]
pub struct Quotas(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    store: KvStore,
    /// What tenants have who have none of their own, but for the default tenant.
    defaults: Quota,
    spent: Arc<Spent>,
    state: Mutex<State>,
    /// One change at a time.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// As they were set.
    own: BTreeMap<String, Quota>,
    /// Documents that are being added and are in no collection yet, by tenant.
    adding: HashMap<String, u64>,
}

/// What callers with quotas used of their rates. It stands by itself: an answer that nobody has read to its end counts its tokens, and must not hold
/// the store open.
pub(crate) struct Spent {
    /// Since the quotas were opened: what rates go by.
    clock: Stopwatch,
    /// Behind the lock of the state, where both are wanted.
    rates: Mutex<HashMap<Caller, Rates>>,
}

impl Spent {
    /// Counts tokens of a prompt or an answer, which were known only now. Of a caller without a quota nothing is kept.
    pub fn charge_tokens(&self, caller: Caller, tokens: u64) {
        let now_ms = self.now_ms();
        if let Some(rates) = locked(&self.rates).get_mut(&caller) {
            rates.tokens = rates.tokens.charged(now_ms, rates.tokens_per_minute, tokens);
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Rates {
    requests: Bucket,
    tokens: Bucket,
    tokens_per_minute: u64,
}

/// A quota that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedUp {
    /// Which one.
    pub name: QuotaName,
    /// How much it is.
    pub limit: u64,
    /// When there is room again.
    pub wait: Duration,
}

/// One of a tenant's quotas, and what is used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUse {
    /// Which one.
    pub name: QuotaName,
    /// How much it is: the most that is used, or, of a share, what is guaranteed.
    pub limit: u64,
    /// What is used now. A limit that was lowered may be exceeded.
    pub used: u64,
}

/// Documents on their way into a tenant's collections; they count until this is dropped.
pub(crate) struct Adding {
    quotas: Quotas,
    tenant: String,
    documents: u64,
}

impl Quotas {
    /// Reads them from the catalog, and has the store keep to them. BLOCKS.
    pub(crate) fn open(catalog: Arc<Catalog>, store: KvStore, env: &Env, defaults: Quota) -> Result<Self> {
        let own = catalog.quotas()?.into_iter().map(|QuotaRecord { tenant, quota }| (tenant, quota)).collect();
        let state = Mutex::new(State { own, ..State::default() });
        let spent = Arc::new(Spent { clock: env.stopwatch(), rates: Mutex::default() });
        let inner = Inner { catalog, store, defaults, spent, state, changing: tokio::sync::Mutex::default() };
        inner.store.set_default_terms(terms(&inner.defaults));
        let quotas = Self(Arc::new(inner));
        let tenants: Vec<String> = quotas.state().own.keys().cloned().collect();
        tenants.iter().for_each(|tenant| quotas.agree(tenant));
        Ok(quotas)
    }

    /// What counts for a tenant.
    pub fn of(&self, tenant: &str) -> Quota {
        self.effective(&self.state(), tenant)
    }

    /// Tenants with quotas of their own, by name.
    pub fn tenants(&self) -> Vec<String> {
        self.state().own.keys().cloned().collect()
    }

    /// Counts a request of a tenant; one that `asks` the language model is refused, too, while the tenant has used up its tokens.
    ///
    /// # Errors
    /// The quota that is used up. Then nothing was counted.
    pub fn begin_request(&self, tenant: &str, asks: bool) -> std::result::Result<(), UsedUp> {
        let now_ms = self.0.spent.now_ms();
        let quota = self.effective(&self.state(), tenant);
        let (requests, tokens) = (quota.get(QuotaName::RequestsPerMinute), quota.get(QuotaName::TokensPerMinute));
        if requests.is_none() && tokens.is_none() {
            return Ok(());
        }
        let mut all = locked(&self.0.spent.rates);
        let rates = all.entry(Caller::of_tenant(tenant)).or_default();
        if let Some(limit) = tokens {
            rates.tokens_per_minute = limit;
            let room = if asks { rates.tokens.check_one(now_ms, limit) } else { Ok(()) };
            room.map_err(|wait| used_up(QuotaName::TokensPerMinute, limit, wait))?;
        }
        if let Some(limit) = requests {
            let taken = rates.requests.take_one(now_ms, limit);
            rates.requests = taken.map_err(|wait| used_up(QuotaName::RequestsPerMinute, limit, wait))?;
        }
        Ok(())
    }

    /// Whether a tenant has tokens left, where a request that was counted turns out to ask the language model.
    ///
    /// # Errors
    /// The quota that is used up.
    pub fn check_tokens(&self, tenant: &str) -> std::result::Result<(), UsedUp> {
        let Some(limit) = self.of(tenant).get(QuotaName::TokensPerMinute) else { return Ok(()) };
        let now_ms = self.0.spent.now_ms();
        let rates = locked(&self.0.spent.rates).get(&Caller::of_tenant(tenant)).copied().unwrap_or_default();
        rates.tokens.check_one(now_ms, limit).map_err(|wait| used_up(QuotaName::TokensPerMinute, limit, wait))
    }

    /// Where tokens are counted.
    pub(crate) fn spent(&self) -> &Arc<Spent> {
        &self.0.spent
    }

    /// Sets and takes away quotas of a tenant, those that `changes` name; what it has of its own then. Durable on return, and counts from
    /// the next request, document or entry on: nothing is taken from who has more.
    ///
    /// # Errors
    /// `InvalidInput` for a name that cannot be a tenant's, too many tenants, and shares that are more than a tier has.
    pub async fn change(&self, tenant: &str, changes: BTreeMap<QuotaName, Option<u64>>) -> Result<Quota> {
        check_tenant(tenant)?;
        let (quotas, tenant) = (self.clone(), tenant.to_owned());
        // Also where its client leaves.
        let changed = tokio::spawn(async move { quotas.apply(tenant, changes).await }).await;
        changed.map_err(|_| Error::new(ErrorKind::Internal, "the change of the quotas broke off"))?
    }

    async fn apply(&self, tenant: String, changes: BTreeMap<QuotaName, Option<u64>>) -> Result<Quota> {
        let _turn = self.0.changing.lock().await;
        let mut quota = self.state().own.get(&tenant).cloned().unwrap_or_default();
        for (name, value) in changes {
            match value {
                Some(value) => drop(quota.0.insert(name, value)),
                None => drop(quota.0.remove(&name)),
            }
        }
        self.check(&tenant, &quota)?;
        let (catalog, record) = (self.0.catalog.clone(), QuotaRecord { tenant, quota });
        let kept = record.clone();
        let keeping = move || match kept.quota.0.is_empty() {
            true => catalog.remove_quota(&kept.tenant).map(drop),
            false => catalog.put_quota(&kept),
        };
        blocking(keeping).await?;
        let QuotaRecord { tenant, quota } = record;
        self.put(&tenant, quota.clone());
        Ok(quota)
    }

    fn put(&self, tenant: &str, quota: Quota) {
        let now_ms = self.0.spent.now_ms();
        {
            let mut state = self.state();
            let before = self.effective(&state, tenant);
            match quota.0.is_empty() {
                true => drop(state.own.remove(tenant)),
                false => drop(state.own.insert(tenant.to_owned(), quota)),
            }
            let now = self.effective(&state, tenant);
            if let Some(rates) = locked(&self.0.spent.rates).get_mut(&Caller::of_tenant(tenant)) {
                let limited = |bucket: Bucket, name| match (before.get(name), now.get(name)) {
                    (Some(before), Some(limit)) => bucket.limited(now_ms, before, limit),
                    // Nobody has used anything of what did not count.
                    _ => Bucket::default(),
                };
                *rates = Rates {
                    requests: limited(rates.requests, QuotaName::RequestsPerMinute),
                    tokens: limited(rates.tokens, QuotaName::TokensPerMinute),
                    tokens_per_minute: now.get(QuotaName::TokensPerMinute).unwrap_or(0),
                };
            }
        }
        self.agree(tenant);
    }

    fn check(&self, tenant: &str, quota: &Quota) -> Result<()> {
        let store = self.0.store.status();
        let state = self.state();
        if !state.own.contains_key(tenant) && state.own.len() >= MOST_TENANTS {
            let message = format!("{MOST_TENANTS} tenants with quotas are the most there may be; take some away");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        for (name, capacity) in [
            (QuotaName::HostShareBytes, store.host.capacity_bytes),
            (QuotaName::DiskShareBytes, store.disk.capacity_bytes),
        ] {
            let Some(wanted) = quota.get(name) else { continue };
            let others = state.own.iter().filter(|(other, _)| *other != tenant);
            let others = others.filter_map(|(_, quota)| quota.get(name)).fold(0, u64::saturating_add);
            if others.saturating_add(wanted) > capacity {
                let left = capacity.saturating_sub(others);
                let message = format!(
                    "a `{name}` of {wanted} cannot be guaranteed: the tier has {capacity} bytes, of which {others} are other tenants'; \
                     guarantee {left} at most, or raise the tier's setting"
                );
                return Err(Error::of_field(ErrorKind::InvalidInput, name.name(), message));
            }
        }
        Ok(())
    }

    /// Has the store keep to what counts for a tenant with a quota of its own; one that has none any more has the defaults.
    fn agree(&self, tenant: &str) {
        let state = self.state();
        let own = state.own.contains_key(tenant).then(|| terms(&self.effective(&state, tenant)));
        self.0.store.set_terms(tenant, own);
    }

    /// Announces `new` documents of a tenant.
    ///
    /// # Errors
    /// `Full` where they would be more than its quota allows; what replaces others is never refused.
    pub(crate) async fn add_documents(&self, corpus: &Corpus, tenant: &str, new: u64) -> Result<Option<Adding>> {
        let Some(limit) = self.of(tenant).get(QuotaName::Documents).filter(|_| new > 0) else { return Ok(None) };
        let (adding, others) = {
            let mut state = self.state();
            let others = state.adding.entry(tenant.to_owned()).or_default();
            let before = *others;
            *others += new;
            (Adding { quotas: self.clone(), tenant: tenant.to_owned(), documents: new }, before)
        };
        // Counted afterwards: what others of this tenant add meanwhile is in one of the two, or in both for a moment.
        let stored = corpus.documents_of(tenant).await?;
        if stored.saturating_add(others).saturating_add(new) <= limit {
            return Ok(Some(adding));
        }
        let on_their_way = if others > 0 { format!(", {others} more are being added") } else { String::new() };
        let message = format!(
            "tenant `{tenant}` has {stored} documents of the {limit} that its quota `documents` allows{on_their_way}, and this adds {new}: \
             delete some, or ask the service's owner for more"
        );
        metrics::counter!("ragstone_quota_refused_total", "quota" => QuotaName::Documents.name()).increment(1);
        Err(Error::of_field(ErrorKind::Full, QuotaName::Documents.name(), message))
    }

    /// What counts for a tenant, and what is used of it.
    ///
    /// # Errors
    /// As the corpus says, where documents are to be counted.
    pub async fn used(&self, corpus: &Corpus, tenant: &str) -> Result<Vec<QuotaUse>> {
        let quota = self.of(tenant);
        let documents = match quota.get(QuotaName::Documents) {
            Some(_) => corpus.documents_of(tenant).await?,
            None => 0,
        };
        let (now_ms, held) = (self.0.spent.now_ms(), self.0.store.held_by(tenant));
        let rates = locked(&self.0.spent.rates).get(&Caller::of_tenant(tenant)).copied().unwrap_or_default();
        let used = |(name, limit): (&QuotaName, &u64)| {
            let used = match name {
                QuotaName::RequestsPerMinute => rates.requests.used(now_ms, *limit),
                QuotaName::TokensPerMinute => rates.tokens.used(now_ms, *limit),
                QuotaName::Documents => documents,
                QuotaName::HostBytes | QuotaName::HostShareBytes => held.host,
                QuotaName::DiskBytes | QuotaName::DiskShareBytes => held.disk,
            };
            QuotaUse { name: *name, limit: *limit, used }
        };
        Ok(quota.0.iter().map(used).collect())
    }

    fn effective(&self, state: &State, tenant: &str) -> Quota {
        let own = state.own.get(tenant).cloned().unwrap_or_default();
        if tenant.is_empty() { own } else { own.or(&self.0.defaults) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }
}

impl Adding {
    /// So many of them are not stored yet.
    pub fn left(&mut self, documents: u64) {
        let stored = self.documents.saturating_sub(documents);
        self.documents -= stored;
        self.quotas.added(&self.tenant, stored);
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        self.quotas.added(&self.tenant, self.documents);
    }
}

impl Quotas {
    fn added(&self, tenant: &str, documents: u64) {
        let mut state = self.state();
        if let Some(adding) = state.adding.get_mut(tenant) {
            *adding = adding.saturating_sub(documents);
            if *adding == 0 {
                state.adding.remove(tenant);
            }
        }
    }
}

fn used_up(name: QuotaName, limit: u64, wait: Duration) -> UsedUp {
    metrics::counter!("ragstone_quota_refused_total", "quota" => name.name()).increment(1);
    UsedUp { name, limit, wait }
}

fn terms(quota: &Quota) -> TenantTerms {
    let tier = |share, limit| Terms {
        share_bytes: quota.get(share).unwrap_or(0),
        limit_bytes: quota.get(limit).unwrap_or(u64::MAX),
    };
    TenantTerms {
        host: tier(QuotaName::HostShareBytes, QuotaName::HostBytes),
        disk: tier(QuotaName::DiskShareBytes, QuotaName::DiskBytes),
    }
}

/// Reads quotas as the setting `tenant_quota` and the command line have them: `NAME=NUMBER`, sizes with a unit. `none` takes one away.
///
/// # Errors
/// `InvalidInput`; the message says which one, and what to write.
pub fn read_quotas<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<BTreeMap<QuotaName, Option<u64>>> {
    let mut read = BTreeMap::new();
    for text in texts {
        let shown: String = text.escape_default().take(100).collect();
        let wrong = |why: &str| Error::invalid_input(format!("quota `{shown}` {why}"));
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("must be NAME=NUMBER, such as documents=1000"))?;
        let name: QuotaName = name.trim().parse()?;
        let value = value.trim();
        let value = match (value, name.is_bytes()) {
            ("none", _) => None,
            (value, true) => {
                let size = crate::admission::size::parse(value);
                Some(size.map_err(|_| wrong("must be a number of bytes, such as 512MiB, or none"))?)
            }
            (value, false) => Some(value.parse().map_err(|_| wrong("must be a whole number, or none"))?),
        };
        if read.insert(name, value).is_some() {
            return Err(wrong("is given twice"));
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
