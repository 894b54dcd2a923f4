//! What a start after a power cut has to have.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::Path;

use ragstone_documents::Document;
use serde_json::Value;

use super::files;
use super::steps::{self, fresh_ids};
use super::world::{MARK, World};
use crate::admission::caller::Caller;

/// What a process said up to some moment.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// What was acknowledged.
    there: BTreeMap<String, String>,
    /// What the step under way makes of things.
    under_way: BTreeMap<String, Option<String>>,
    /// Texts that were said to be in no file any more.
    wiped: BTreeSet<String>,
    ids: HashSet<u64>,
    steps: usize,
}

/// What cuts came to.
#[derive(Debug, Default)]
pub(super) struct Found {
    cuts: usize,
    /// Things that were acknowledged, over all cuts.
    acknowledged: usize,
    /// Cuts in the middle of a step that was done all the same, or not.
    done: usize,
    undone: usize,
    /// Starts that said that something was damaged, and mended it.
    catalogs_mended: usize,
    kv_begun_anew: usize,
    entries: usize,
}

impl Told {
    pub fn read(text: &[u8]) -> Self {
        let mut told = Self::default();
        for line in String::from_utf8_lossy(text).lines() {
            // The last line may be cut off.
            let Ok(line) = serde_json::from_str::<Value>(line) else { break };
            if let Some(effects) = line.get("begin") {
                told.under_way = serde_json::from_value::<Vec<_>>(effects.clone()).unwrap().into_iter().collect();
                continue;
            }
            told.steps += 1;
            told.ids.extend(line["ids"].as_array().unwrap().iter().filter_map(Value::as_u64));
            for (name, value) in std::mem::take(&mut told.under_way) {
                match (name.strip_prefix("wiped:"), value) {
                    (Some(mark), _) => drop(told.wiped.insert(mark.to_owned())),
                    (None, Some(value)) => drop(told.there.insert(name, value)),
                    (None, None) => drop(told.there.remove(&name)),
                }
            }
        }
        told.under_way.retain(|name, _| !name.starts_with("wiped:"));
        told
    }
}

/// Opens what a power cut left in `data`, and compares it with what was told. Now and then it also looks for the bytes of texts that are gone,
/// and goes on working with it.
pub(super) async fn check(data: &Path, told: &Told, number: usize) -> Found {
    let world = World::open(data).await.unwrap();
    let observed = world.observed().await;
    let (mut done, mut undone) = (0, 0);
    let names: BTreeSet<&String> = told.there.keys().chain(told.under_way.keys()).chain(observed.keys()).collect();
    for name in names {
        let (is, was) = (observed.get(name), told.there.get(name));
        match told.under_way.get(name) {
            Some(will) if is == will.as_ref() && is != was => done += 1,
            Some(_) if is == was => undone += 1,
            // More than was said may be noted to be vacuumed.
            None if is == was || (name.starts_with("remains:") && was.is_none()) => {}
            Some(_) if name.starts_with("remains:") && is.is_some() => {}
            under_way => panic!("{name} is {is:?}, and was {was:?}; under way: {under_way:?}"),
        }
    }
    assert_eq!(world.catalog.removals().unwrap(), [], "removals are finished by the start");
    let live = world.live().await;
    let entries = world.check_kv(&live);
    let found = Found {
        cuts: 1,
        acknowledged: told.there.len(),
        done: usize::from(done > 0),
        undone: usize::from(undone > 0),
        catalogs_mended: usize::from(world.catalog.damage().is_some()),
        kv_begun_anew: usize::from(world.store.damage().is_some()),
        entries,
    };
    if number.is_multiple_of(8) {
        assert_nowhere(data, &told.wiped);
        go_on(world, data, told, observed).await;
    }
    found
}

/// No file has any of these texts.
fn assert_nowhere(data: &Path, wiped: &BTreeSet<String>) {
    for (name, bytes) in files(data) {
        let mut rest = &bytes[..];
        while let Some(at) = rest.iter().position(|byte| *byte == MARK.as_bytes()[0]) {
            let end = at + MARK.len() + 8;
            if let Some(Ok(mark)) = rest.get(at..end).map(std::str::from_utf8) {
                assert!(!wiped.contains(mark), "{mark} was vacuumed, and is in {}", name.display());
            }
            rest = &rest[at + 1..];
        }
    }
}

/// What was cut off is as good as any other: it takes changes, and the next start has them.
async fn go_on(world: World, data: &Path, told: &Told, before: BTreeMap<String, String>) {
    let ids = fresh_ids(&world);
    assert!(ids.is_disjoint(&told.ids), "an id was used twice: {ids:?}");
    let text = format!("The {MARK}ffffffff boat lay in Tarn.");
    for collection in steps::NAMES {
        let document = Document { id: Some("new".into()), text: text.clone(), ..Document::default() };
        world.library.upsert(collection, vec![document], (None, Caller::default()), || true).await.unwrap();
        for name in before.keys().filter(|name| name.starts_with(&format!("document:{collection}/"))).take(1) {
            let id = name.split_once('/').unwrap().1;
            world.library.delete_document(collection, id, None).await.unwrap();
        }
    }
    world.library.vacuum_all().await.unwrap();
    let changed = world.observed().await;
    assert!(steps::NAMES.iter().all(|name| changed.contains_key(&format!("document:{name}/new"))));
    world.close().await;
    let again = World::open(data).await.unwrap();
    assert!(again.catalog.damage().is_none() && again.store.damage().is_none());
    assert_eq!(again.observed().await, changed);
    again.close().await;
}

impl Found {
    pub fn add(&mut self, other: Self) {
        let Self { cuts, acknowledged, done, undone, catalogs_mended, kv_begun_anew, entries } = other;
        self.cuts += cuts;
        self.acknowledged += acknowledged;
        self.done += done;
        self.undone += undone;
        self.catalogs_mended += catalogs_mended;
        self.kv_begun_anew += kv_begun_anew;
        self.entries += entries;
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cuts; {} acknowledged things looked for; the step under way was done {} times and not done {} times; the catalog was mended {} \
             times, the KV store begun anew {} times; {} entries on disk were compared",
            self.cuts,
            self.acknowledged,
            self.done,
            self.undone,
            self.catalogs_mended,
            self.kv_begun_anew,
            self.entries
        )
    }
}
