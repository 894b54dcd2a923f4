//! Quotas over a real catalog and store.

use ragstone_env::Env;
use ragstone_storage::catalog::QuotaName::{
    DiskShareBytes, Documents, HostBytes, HostShareBytes, RequestsPerMinute, TokensPerMinute,
};
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::{AdmissionRule, StoreOptions, TierOptions};
use tempfile::TempDir;

use super::*;

const CAPACITY: u64 = 1000;

fn open(dir: &TempDir, env: &Env, defaults: &[&str]) -> Quotas {
    let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), env).unwrap());
    let tier = TierOptions { capacity_bytes: CAPACITY, policy: PolicyKind::Lru };
    let options = StoreOptions {
        host: tier,
        disk: tier,
        object: None,
        shape: None,
        admission: AdmissionRule::Always,
        costs: Costs::new(CostProfile::assumed().unwrap()),
    };
    let kv = dir.path().join("kv");
    let store = KvStore::open(&kv, options, Fingerprint([1; 32]), env.clone(), catalog.clone()).unwrap();
    let read = read_quotas(defaults.iter().copied()).unwrap();
    let defaults = Quota(read.into_iter().filter_map(|(name, value)| Some((name, value?))).collect());
    Quotas::open(catalog, store, env, defaults).unwrap()
}

fn set(pairs: &[(QuotaName, u64)]) -> BTreeMap<QuotaName, Option<u64>> {
    pairs.iter().map(|(name, value)| (*name, Some(*value))).collect()
}

fn terms_of(quotas: &Quotas, tenant: &str) -> TenantTerms {
    terms(&quotas.of(tenant))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_are_a_tenants_and_run_out() {
    let (dir, env) = (TempDir::new().unwrap(), Env::seeded(3, 0));
    let quotas = open(&dir, &env, &[]);
    assert_eq!(quotas.begin_request("acme", true), Ok(()), "nothing is limited");
    quotas.change("acme", set(&[(RequestsPerMinute, 2), (TokensPerMinute, 100)])).await.unwrap();
    assert_eq!([0, 1].map(|_| quotas.begin_request("acme", true)), [Ok(()); 2]);
    let refused = quotas.begin_request("acme", true).unwrap_err();
    assert_eq!((refused.name, refused.limit, refused.wait), (RequestsPerMinute, 2, Duration::from_secs(30)));
    assert_eq!(quotas.begin_request("other", true), Ok(()));
    env.advance(Duration::from_secs(60));
    // A long answer, which nobody knew before.
    quotas.begin_request("acme", true).unwrap();
    quotas.spent().charge_tokens(Caller::of_tenant("acme"), 150);
    quotas.spent().charge_tokens(Caller::of_tenant("other"), 1_000_000);
    let refused = quotas.begin_request("acme", true).unwrap_err();
    // One of the 51 that it is over runs out in 600 ms.
    assert_eq!((refused.name, refused.wait), (TokensPerMinute, Duration::from_millis(51 * 600)));
    assert_eq!(quotas.begin_request("acme", false), Ok(()), "who asks the model nothing needs no tokens");
    assert_eq!(quotas.check_tokens("acme"), Err(refused), "unless it turns out to ask it");
    assert_eq!([1, 2].map(|_| quotas.check_tokens("other")), [Ok(()); 2]);
    env.advance(refused.wait);
    assert_eq!(quotas.begin_request("acme", true), Ok(()));
    assert_eq!(quotas.begin_request("other", true), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_outlive_a_restart_and_rates_do_not() {
    let (dir, env) = (TempDir::new().unwrap(), Env::seeded(3, 0));
    {
        let quotas = open(&dir, &env, &[]);
        quotas.change("", set(&[(RequestsPerMinute, 1)])).await.unwrap();
        quotas.change("acme", set(&[(Documents, 7), (HostShareBytes, 400)])).await.unwrap();
        quotas.begin_request("", false).unwrap();
        quotas.begin_request("", false).unwrap_err();
    }
    let quotas = open(&dir, &env, &["documents=3", "host_bytes=500"]);
    assert_eq!(quotas.tenants(), ["", "acme"]);
    quotas.begin_request("", false).unwrap();
    // Its own counts, and what it has none of is the default's; the default tenant has no defaults.
    assert_eq!(quotas.of("acme").0, BTreeMap::from([(Documents, 7), (HostShareBytes, 400), (HostBytes, 500)]));
    assert_eq!(quotas.of("new").0, BTreeMap::from([(Documents, 3), (HostBytes, 500)]));
    assert_eq!(quotas.of("").0, BTreeMap::from([(RequestsPerMinute, 1)]));
    assert_eq!(terms_of(&quotas, "acme").host, Terms { share_bytes: 400, limit_bytes: 500 });
    let left = quotas.change("acme", BTreeMap::from([(Documents, None), (HostShareBytes, None)])).await.unwrap();
    assert_eq!((left, quotas.tenants()), (Quota::default(), vec![String::new()]));
    assert_eq!(quotas.of("acme"), quotas.of("new"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_quota_is_refused_and_nothing_changes() {
    let (dir, env) = (TempDir::new().unwrap(), Env::seeded(3, 0));
    let quotas = open(&dir, &env, &[]);
    for tenant in [" a", "a\nb", "a\u{1b}[2J", "é", &"x".repeat(65)] {
        let error = quotas.change(tenant, set(&[(Documents, 1)])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{tenant:?}");
    }
    // Shares of all tenants together fit into the tier.
    quotas.change("a", set(&[(DiskShareBytes, 600), (HostShareBytes, 1000)])).await.unwrap();
    for (tenant, share) in [("b", 401), ("b", u64::MAX), ("a", 1001)] {
        let error = quotas.change(tenant, set(&[(DiskShareBytes, share)])).await.unwrap_err();
        assert_eq!((error.kind(), error.at_field()), (ErrorKind::InvalidInput, Some("disk_share_bytes")));
    }
    quotas.change("b", set(&[(DiskShareBytes, 400)])).await.unwrap();
    quotas.change("a", set(&[(DiskShareBytes, 500)])).await.unwrap();
    assert_eq!(quotas.of("b").0, BTreeMap::from([(DiskShareBytes, 400)]));
    // The greatest numbers are as good as none, and 0 lets nothing.
    quotas.change("c", set(&[(RequestsPerMinute, u64::MAX), (TokensPerMinute, u64::MAX)])).await.unwrap();
    (0..100).for_each(|_| quotas.begin_request("c", true).unwrap());
    quotas.spent().charge_tokens(Caller::of_tenant("c"), u64::MAX - 1);
    quotas.begin_request("c", true).unwrap();
    quotas.change("c", set(&[(RequestsPerMinute, 0)])).await.unwrap();
    assert_eq!(quotas.begin_request("c", true).unwrap_err().wait, Duration::from_secs(60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_is_lowered_below_what_was_used_holds_for_a_minute_at_most() {
    let (dir, env) = (TempDir::new().unwrap(), Env::seeded(3, 0));
    let quotas = open(&dir, &env, &[]);
    quotas.change("a", set(&[(RequestsPerMinute, 1000)])).await.unwrap();
    (0..900).for_each(|_| quotas.begin_request("a", false).unwrap());
    quotas.change("a", set(&[(RequestsPerMinute, 2)])).await.unwrap();
    assert_eq!(quotas.begin_request("a", false).unwrap_err().wait, Duration::from_secs(30));
    // Taken away and given again, nothing of it is used.
    quotas.change("a", BTreeMap::from([(RequestsPerMinute, None)])).await.unwrap();
    quotas.begin_request("a", false).unwrap();
    quotas.change("a", set(&[(RequestsPerMinute, 2)])).await.unwrap();
    quotas.begin_request("a", false).unwrap();
}

#[test]
fn documents_that_are_on_their_way_count_until_they_are_stored_or_given_up() {
    let (dir, env) = (TempDir::new().unwrap(), Env::seeded(3, 0));
    let quotas = open(&dir, &env, &[]);
    let on_their_way = || quotas.state().adding.get("a").copied().unwrap_or(0);
    let adding = |documents| {
        *quotas.state().adding.entry("a".into()).or_default() += documents;
        Adding { quotas: quotas.clone(), tenant: "a".into(), documents }
    };
    let (mut first, second) = (adding(10), adding(5));
    assert_eq!(on_their_way(), 15);
    first.left(12);
    assert_eq!(on_their_way(), 15, "what was unchanged was never counted");
    first.left(4);
    assert_eq!(on_their_way(), 9);
    first.left(7);
    assert_eq!(on_their_way(), 9, "what is stored is not on its way again");
    drop(second);
    assert_eq!(on_their_way(), 4);
    drop(first);
    assert!(quotas.state().adding.is_empty());
}

#[test]
fn quotas_are_written_by_name_with_sizes_in_units() {
    let read = read_quotas(["documents=10", " disk_bytes = 4GiB ", "host_bytes=none", "tokens_per_minute=0"]).unwrap();
    let expected =
        [(QuotaName::DiskBytes, Some(4 << 30)), (Documents, Some(10)), (HostBytes, None), (TokensPerMinute, Some(0))];
    assert_eq!(read, BTreeMap::from(expected));
    for (wrong, words) in [
        ("documents", "NAME=NUMBER"),
        ("documents=-1", "whole number"),
        ("documents=1.5", "whole number"),
        ("documents=18446744073709551616", "whole number"),
        ("documents=4GiB", "whole number"),
        ("disk_bytes=much", "bytes"),
        ("disk_bytes=99999999999TiB", "bytes"),
        ("seconds=1", "requests_per_minute"),
        ("a\u{1b}[2J=1", "requests_per_minute"),
    ] {
        let error = read_quotas([wrong]).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(words), "{wrong:?}: {error}");
        assert!(error.to_string().is_ascii());
    }
    assert!(read_quotas(["documents=1", "documents=2"]).unwrap_err().to_string().contains("twice"));
}
