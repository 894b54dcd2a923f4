//! Schemas that are kept, while they change.

use std::collections::BTreeMap;

use futures::StreamExt;
use ragstone_env::FailMode;
use ragstone_storage::catalog::WarmSubject;
use ragstone_storage::tier::Tier;
use tempfile::TempDir;

use super::pml_tests::{SCHEMA, open};
use super::tests::close;
use crate::admission::caller::Caller;
use crate::error::{ErrorKind, Result};
use crate::ragstone::Ragstone;
use crate::upkeep::warm::{Warm, WarmEvent};

async fn add(ragstone: &Ragstone, text: &str) -> u64 {
    let added = ragstone.schemas().add("", text.to_owned(), BTreeMap::new(), Caller::default()).await.unwrap();
    added.withdrawn.entries_removed
}

async fn encode(ragstone: &Ragstone) -> Vec<Result<WarmEvent>> {
    let subject = WarmSubject::Modules { schema: "trip".into(), modules: Vec::new(), version: String::new() };
    let job = ragstone.warmer().begin(Warm { subject, tenants: Vec::new() }).await.unwrap();
    ragstone.warmer().run(job).collect().await
}

fn is_finished(events: &[Result<WarmEvent>]) -> bool {
    matches!(events.last(), Some(Ok(WarmEvent::Finished(_))))
}

/// Entries that are on the disk or in host memory.
fn kept(ragstone: &Ragstone) -> usize {
    let mut all = 0;
    ragstone.store().entries(&[Tier::Host, Tier::Disk], &mut |_| all += 1).unwrap();
    all
}

/// A job that has computed half of a text's modules when the schema goes: nothing of the old text is filed behind that.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_goes_while_it_is_encoded_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let ragstone = open(&folder).await;
    add(&ragstone, SCHEMA).await;
    let env = ragstone.store().env().clone();
    env.set_fail_point("warm.after_entry", FailMode::Hang, 3);
    let encoding = tokio::spawn({
        let ragstone = ragstone.clone();
        async move { encode(&ragstone).await }
    });
    while env.fail_point_hits("warm.after_entry") < 3 {
        tokio::task::yield_now().await;
    }
    ragstone.schemas().remove("", "trip", Caller::default()).await.unwrap();
    env.set_fail_point("warm.after_entry", FailMode::Off, 1);
    let events = encoding.await.unwrap();
    let error = events.into_iter().last().unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("encode it again"), "{error}");
    ragstone.settle().await;
    assert_eq!(kept(&ragstone), 0);
    assert!(ragstone.warmer().unfinished().await.unwrap().is_empty(), "a job that cannot succeed ends");
    close(ragstone, &folder).await;
}

/// Changed, and changed back: what the text has is known to the catalog as at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_changes_back_takes_its_kv_along_as_before() {
    let folder = TempDir::new().unwrap();
    let ragstone = open(&folder).await;
    let other = "<schema name='trip'>Nothing of that.</schema>";
    for _ in 0..2 {
        add(&ragstone, SCHEMA).await;
        assert!(is_finished(&encode(&ragstone).await));
        ragstone.settle().await;
        let entries = ragstone.schemas().entries("", "trip", None, Caller::default()).await.unwrap();
        assert!(!entries.is_empty() && kept(&ragstone) == entries.len());
        assert_eq!(add(&ragstone, other).await, entries.len() as u64);
        ragstone.settle().await;
        assert_eq!(kept(&ragstone), 0);
    }
    close(ragstone, &folder).await;
}
