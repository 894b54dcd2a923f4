//! The process whose power is cut: one change after the other of everything that is acknowledged, by a seed.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_documents::Document;
use ragstone_env::Env;
use ragstone_storage::catalog::{
    ApiKeyRecord, Holder, IngestJob, Quota, QuotaName, QuotaRecord, Role, SchemaRecord, WarmJob, WarmProgress,
    WarmSubject,
};
use ragstone_storage::key::KvKey;
use ragstone_storage::record_files::row;
use serde_json::{Map, Value, json};

use super::world::{MARK, MODEL, World, entry};
use crate::admission::caller::Caller;

/// Below the recorded folder: the data folder, and the file of what is said.
pub const DATA: &str = "above/data";
pub const TOLD: &str = "told";
/// Of whatever has a name.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What a step makes of things; `None`: it is gone.
type Effects = Vec<(String, Option<String>)>;

pub struct Worker {
    data: PathBuf,
    world: Option<World>,
    random: Env,
    told: File,
    /// What was acknowledged.
    there: BTreeMap<String, String>,
    /// Texts that are gone.
    gone: Vec<String>,
    number: u64,
}

impl Worker {
    pub async fn begin(folder: &Path, seed: u64) -> Self {
        let told = OpenOptions::new().create(true).append(true).open(folder.join(TOLD)).unwrap();
        let data = folder.join(DATA);
        let world = Some(World::open(&data).await.unwrap());
        Self { data, world, random: Env::seeded(seed, 0), told, there: BTreeMap::new(), gone: Vec::new(), number: 0 }
    }

    /// Closes the stores; what was acknowledged.
    pub async fn end(mut self) -> BTreeMap<String, String> {
        self.world.take().unwrap().close().await;
        self.there.retain(|name, _| !name.starts_with("wiped:"));
        self.there
    }

    fn world(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn pick(&self, of: usize) -> usize {
        (self.random.random_u64() >> 16) as usize % of
    }

    fn name(&self) -> &'static str {
        NAMES[self.pick(NAMES.len())]
    }

    fn say(&mut self, line: &Value) {
        self.told.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// One change: what it will make is said before it, and that it is done behind it.
    pub async fn step(&mut self) {
        self.number += 1;
        let kind = self.pick(100);
        match kind {
            0..30 => self.add().await,
            30..44 => self.delete_document().await,
            44..47 => self.delete_collection().await,
            47..50 => self.vacuum().await,
            50..54 => self.keep_kv().await,
            54..57 => self.restart().await,
            57..59 => drop(self.world().corpus.verify(ragstone_corpus::Pace::Fast, &mut |_| true).await.unwrap()),
            59..66 => self.ingest_job(),
            66..71 => self.warm_job(),
            71..76 => self.schema(),
            76..82 => self.response(),
            _ => self.row(),
        }
    }

    fn begin_step(&mut self, effects: &Effects) {
        self.say(&json!({ "begin": effects }));
    }

    fn end_step(&mut self, effects: Effects, ids: &[u64]) {
        self.say(&json!({ "done": self.number, "ids": ids }));
        for (name, value) in effects {
            match value {
                Some(value) => drop(self.there.insert(name, value)),
                None => drop(self.there.remove(&name)),
            }
        }
    }

    /// A change that is done in one call.
    fn at_once(&mut self, name: String, value: Option<String>, change: impl FnOnce(&World)) {
        let effects = vec![(name, value)];
        self.begin_step(&effects);
        change(self.world());
        self.end_step(effects, &[]);
    }

    async fn add(&mut self) {
        let collection = self.name();
        let count = 1 + self.pick(3);
        let (mut effects, mut documents, mut replaced) = (Effects::new(), Vec::new(), Vec::new());
        for at in 0..count {
            let id = format!("{}{at}", self.name());
            let mark = format!("{MARK}{:08x}", self.random.random_u64() as u32);
            let words = 10 + self.pick(4) * 60;
            let sentence = |word: usize| format!("The {mark} boat {} lay in Tarn.", hash_of(&mark, word));
            let text: Vec<String> = (0..words / 10).map(sentence).collect();
            let name = format!("document:{collection}/{id}");
            replaced.extend(self.there.get(&name).cloned());
            effects.push((name, Some(mark)));
            documents.push(Document {
                id: Some(id),
                title: "Boats".into(),
                text: text.join(" "),
                ..Document::default()
            });
        }
        effects.push((format!("collection:{collection}"), Some(String::new())));
        if !replaced.is_empty() {
            effects.push((remains(collection), Some(String::new())));
        }
        self.begin_step(&effects);
        let wanted = (None, Caller::default());
        self.world().library.upsert(collection, documents, wanted, || true).await.unwrap();
        self.gone.append(&mut replaced);
        self.end_step(effects, &[]);
        if self.pick(3) > 0 {
            self.keep_kv().await;
        }
    }

    /// KV is told to nobody.
    async fn keep_kv(&mut self) {
        let live = self.world().live().await;
        let Some(at) = (!live.is_empty()).then(|| self.pick(live.len())) else { return };
        for (key, tokens) in live.iter().skip(at).take(4) {
            if self.world().store.contains(key).is_none() {
                assert!(self.world().store.keep(entry(tokens), self.world().store.epoch()).unwrap());
            }
        }
        assert!(self.world().store.drain(Duration::from_secs(20)));
        if self.pick(2) == 0 {
            self.world().store.flush().unwrap();
        }
    }

    fn documents(&self, collection: Option<&str>) -> Vec<String> {
        let start = collection.map_or("document:".to_owned(), |collection| format!("document:{collection}/"));
        self.there.keys().filter(|name| name.starts_with(&start)).cloned().collect()
    }

    async fn delete_document(&mut self) {
        let all = self.documents(None);
        if all.is_empty() {
            return;
        }
        let name = all[self.pick(all.len())].clone();
        let (collection, id) = name["document:".len()..].split_once('/').unwrap();
        let effects = vec![(name.clone(), None), (remains(collection), Some(String::new()))];
        self.begin_step(&effects);
        self.world().library.delete_document(collection, id, None).await.unwrap();
        self.gone.push(self.there[&name].clone());
        self.end_step(effects, &[]);
    }

    async fn delete_collection(&mut self) {
        let collection = self.name();
        let row = format!("collection:{collection}");
        if !self.there.contains_key(&row) {
            return;
        }
        let documents = self.documents(Some(collection));
        let mut effects: Effects = documents.iter().map(|name| (name.clone(), None)).collect();
        effects.push((row, None));
        self.begin_step(&effects);
        self.world().library.delete_collection(collection, None).await.unwrap();
        self.gone.extend(documents.iter().map(|name| self.there[name].clone()));
        self.end_step(effects, &[]);
    }

    /// Behind it the texts that are gone are in no file.
    async fn vacuum(&mut self) {
        let noted: Vec<String> = self.there.keys().filter(|name| name.starts_with("remains:")).cloned().collect();
        let mut effects: Effects = noted.into_iter().map(|name| (name, None)).collect();
        effects.extend(self.gone.drain(..).map(|mark| (format!("wiped:{mark}"), Some(String::new()))));
        self.begin_step(&effects);
        self.world().library.vacuum_all().await.unwrap();
        self.end_step(effects, &[]);
    }

    async fn restart(&mut self) {
        self.world.take().unwrap().close().await;
        self.world = Some(World::open(&self.data).await.unwrap());
    }

    fn ingest_job(&mut self) {
        // A document that is deleted takes the jobs into its collection along.
        let collection = format!("jobs-{}", self.name());
        let name = format!("job:{collection}");
        let there = self.there.get(&name).cloned();
        let catalog = self.world().catalog.clone();
        let known = || -> IngestJob {
            catalog.unfinished_jobs().unwrap().into_iter().find(|job| job.collection == collection).unwrap()
        };
        match (there, self.pick(3)) {
            (None, _) => {
                let effects = vec![(name, Some("0".to_owned()))];
                self.begin_step(&effects);
                let job = catalog.add_job(&collection, &[PathBuf::from("/files")], false, 1).unwrap();
                self.end_step(effects, &[job.id]);
            }
            (Some(done), 0 | 1) => {
                let done = done.parse::<u64>().unwrap() + 1;
                let job = IngestJob { done, ..known() };
                self.at_once(name, Some(done.to_string()), |world| world.catalog.update_job(&job).unwrap());
            }
            (Some(_), _) => {
                let id = known().id;
                self.at_once(name, None, |world| world.catalog.finish_job(id).unwrap());
            }
        }
    }

    fn warm_job(&mut self) {
        // Jobs of one subject are one: each has a name of its own by its time.
        let number = self.pick(4) as u64;
        let name = format!("warm:{number}");
        let catalog = self.world().catalog.clone();
        let known = catalog.warm_jobs().unwrap().into_iter().find(|job| job.created_unix_ms == number);
        match (known, self.pick(2)) {
            (None, _) => {
                let effects = vec![(name, Some("0".to_owned()))];
                let job = WarmJob {
                    id: 0,
                    fingerprint: MODEL,
                    subject: WarmSubject::Passages { collection: NAMES[number as usize].into(), document: None },
                    tenants: vec![String::new()],
                    created_unix_ms: number,
                    progress: WarmProgress::default(),
                };
                self.begin_step(&effects);
                let job = catalog.add_warm_job(job).unwrap();
                self.end_step(effects, &[1 << 63 | job.id]);
            }
            (Some(job), 0) => {
                let passages_done = job.progress.passages_done + 1;
                let progress = WarmProgress { passages_done, ..job.progress };
                self.at_once(name, Some(passages_done.to_string()), |world| {
                    world.catalog.update_warm_job(job.id, &progress).unwrap();
                });
            }
            (Some(job), _) => self.at_once(name, None, |world| assert!(world.catalog.finish_warm_job(job.id).unwrap())),
        }
    }

    fn schema(&mut self) {
        let (name, version) = (self.name(), self.number.to_string());
        if self.pick(3) == 0 {
            return self.at_once(format!("schema:{name}"), None, |world| {
                world.catalog.remove_schema("", name).unwrap();
            });
        }
        let schema = SchemaRecord {
            tenant: String::new(),
            name: name.into(),
            version: version.clone(),
            schema: "<schema/>".repeat(self.pick(1000)),
            sources: BTreeMap::new(),
            added_unix_ms: 1,
        };
        self.at_once(format!("schema:{name}"), Some(version), |world| world.catalog.put_schema(&schema).unwrap());
    }

    fn response(&mut self) {
        let (name, value) = (self.name(), json!({ "number": self.number, "text": "x".repeat(self.pick(9000)) }));
        let row = row("", name);
        if self.pick(4) == 0 {
            return self.at_once(format!("response:{name}"), None, |world| {
                world.responses.remove(&row).unwrap();
            });
        }
        let text = value.to_string();
        self.at_once(format!("response:{name}"), Some(text), |world| {
            world.responses.write(&row, &value).unwrap();
        });
    }

    /// One row of the catalog.
    fn row(&mut self) {
        let (name, number) = (self.name(), self.number);
        match self.pick(9) {
            0 | 1 => {
                let key = ApiKeyRecord {
                    name: name.into(),
                    hash: number.to_string(),
                    role: Role::Read,
                    tenant: String::new(),
                    collections: Vec::new(),
                    added_unix_ms: 1,
                };
                self.at_once(format!("key:{name}"), Some(key.hash.clone()), |world| {
                    world.catalog.put_api_key(&key).unwrap();
                });
            }
            2 => self.at_once(format!("key:{name}"), None, |world| {
                world.catalog.remove_api_key(name).unwrap();
            }),
            3 => {
                let record = QuotaRecord {
                    tenant: name.into(),
                    quota: Quota([(QuotaName::Documents, number)].into_iter().collect()),
                };
                self.at_once(format!("quota:{name}"), Some(number.to_string()), |world| {
                    world.catalog.put_quota(&record).unwrap();
                });
            }
            4 => self.at_once(format!("quota:{name}"), None, |world| {
                world.catalog.remove_quota(name).unwrap();
            }),
            5 | 6 => {
                let (key, pinned) = (KvKey([name.as_bytes()[0]; 32]), self.pick(2) == 0);
                self.at_once(format!("pin:{key}"), pinned.then(String::new), |world| {
                    world.catalog.set_pinned(&key, pinned).unwrap();
                });
            }
            7 => {
                let found = Value::Object(Map::from_iter([("found".to_owned(), json!(number))]));
                self.at_once(format!("calibration:{name}"), Some(found.to_string()), |world| {
                    world.catalog.note_calibration(name, &found).unwrap();
                });
            }
            _ => {
                let kept = self.pick(2) == 0;
                self.at_once(format!("renewal:{name}"), kept.then(String::new), |world| {
                    world.catalog.cancel_renewal(name, kept.then_some("words")).unwrap();
                });
            }
        }
    }
}

/// What is noted until a collection's files are rewritten.
fn remains(collection: &str) -> String {
    format!("remains:{:?}", Holder::Collection(collection.to_owned()))
}

fn hash_of(mark: &str, word: usize) -> String {
    blake3::hash(format!("{mark} {word}").as_bytes()).to_hex()[..8].to_owned()
}

/// Ids that were given to jobs, of which none may come twice.
pub fn fresh_ids(world: &World) -> HashSet<u64> {
    let job = world.catalog.add_job("fresh", &[PathBuf::from("/fresh")], false, 1).unwrap();
    let subject = WarmSubject::Passages { collection: "fresh".into(), document: None };
    let warm = WarmJob {
        id: 0,
        fingerprint: MODEL,
        subject,
        tenants: Vec::new(),
        created_unix_ms: 99,
        progress: WarmProgress::default(),
    };
    let warm = world.catalog.add_warm_job(warm).unwrap();
    HashSet::from([job.id, 1 << 63 | warm.id])
}
