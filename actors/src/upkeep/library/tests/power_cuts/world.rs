//! The stores of a data folder, opened as the program opens them, without a model.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ragstone_corpus::{Corpus, CorpusOptions, PassageEncoder};
use ragstone_env::Env;
use ragstone_kernels::dtype::KvDtype;
use ragstone_storage::catalog::{Catalog, Quota};
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::entry::{Entry, EntryBuilder, NewEntry};

use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::record_files::{RecordFiles, row};
use ragstone_storage::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_storage::tier::Tier;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::admission::jobs::Jobs;
use crate::admission::quotas::Quotas;
use crate::error::{ErrorKind, Result};
use crate::upkeep::library::Library;

pub const MODEL: Fingerprint = Fingerprint([0x21; 32]);
const LAYERS: u32 = 2;
const KV_DIM: u32 = 2;
const DIMENSION: usize = 16;
/// What every text has, behind which its own number stands.
pub const MARK: &str = "zqmark";

/// A vector of a text's words.
struct Words;

fn hash(word: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    word.hash(&mut hasher);
    hasher.finish()
}

impl PassageEncoder for Words {
    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let embed = |text: &String| {
            let mut vector = [1e-3_f32; DIMENSION];
            text.split_whitespace().for_each(|word| vector[hash(word) as usize % DIMENSION] += 1.0);
            let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / norm).collect()
        };
        Ok(texts.iter().map(embed).collect())
    }

    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.embed_passages(&[text.to_owned()])?.remove(0))
    }

    fn dimension(&self) -> usize {
        DIMENSION
    }

    fn identity(&self) -> String {
        "words".into()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        Ok(title.split_whitespace().chain(text.split_whitespace()).map(|word| hash(word) as u32).collect())
    }

    fn tokenizer_identity(&self) -> String {
        "words".into()
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }
}

/// What a data folder has.
pub struct World {
    pub catalog: Arc<Catalog>,
    pub store: KvStore,
    pub corpus: Corpus,
    pub library: Library,
    pub responses: RecordFiles<Value>,
    jobs: Jobs,
}

impl World {
    /// As the program opens it.
    pub async fn open(data: &Path) -> Result<Self> {
        let env = Env::system_with_seed(1);
        ragstone_env::durable::create_folder(data).unwrap();
        let catalog = Arc::new(Catalog::open(&data.join("catalog"), &env)?);
        catalog.note_model(&MODEL, "words", 1)?;
        let store = loop {
            match KvStore::open(&data.join("kv"), options(), MODEL, env.clone(), catalog.clone()) {
                // An earlier one of this process is being closed.
                Err(error) if error.kind() == ErrorKind::Unavailable && error.to_string().contains("in use") => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => break opened?,
            }
        };
        let options = CorpusOptions { chunk_tokens: 64, env: env.clone(), ..CorpusOptions::default() };
        let corpus = Corpus::open(&data.join("corpus"), Arc::new(Words), options).await?;
        let jobs = Jobs::new(Handle::current());
        let quotas = Quotas::open(catalog.clone(), store.clone(), &env, Quota::default())?;
        let library = Library::new(corpus.clone(), catalog.clone(), (store.clone(), jobs.clone(), quotas));
        library.recover().await?;
        let responses = RecordFiles::new(data.join("responses"), "response");
        responses.clear_unfinished()?;
        Ok(Self { catalog, store, corpus, library, responses, jobs })
    }

    /// As the program closes it.
    pub async fn close(self) {
        self.jobs.stop();
        self.store.flush().unwrap();
        self.catalog.flush().unwrap();
    }

    /// What the catalog and the files of responses have, by its name.
    pub fn rows(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let catalog = &self.catalog;
        found.extend(catalog.api_keys().unwrap().into_iter().map(|key| (format!("key:{}", key.name), key.hash)));
        let quotas = catalog.quotas().unwrap().into_iter();
        found
            .extend(quotas.map(|row| (format!("quota:{}", row.tenant), row.quota.0.values().sum::<u64>().to_string())));
        found.extend(catalog.pins().unwrap().into_iter().map(|key| (format!("pin:{key}"), String::new())));
        let jobs = catalog.unfinished_jobs().unwrap().into_iter();
        found.extend(jobs.map(|job| (format!("job:{}", job.collection), job.done.to_string())));
        let warm = catalog.warm_jobs().unwrap().into_iter();
        found.extend(warm.map(|job| (format!("warm:{}", job.created_unix_ms), job.progress.passages_done.to_string())));
        let schemas = catalog.schemas().unwrap().into_iter();
        found.extend(schemas.map(|schema| (format!("schema:{}", schema.name), schema.version)));
        for name in super::steps::NAMES {
            let calibration: Option<Value> = catalog.calibration(name).unwrap();
            found.extend(calibration.map(|value| (format!("calibration:{name}"), value.to_string())));
            let is_kept = catalog.is_renewal_cancelled(name, "words").unwrap();
            found.extend(is_kept.then(|| (format!("renewal:{name}"), String::new())));
            // One that is damaged says so.
            let response = self.responses.read(&row("", name)).unwrap_or_default();
            found.extend(response.map(|value| (format!("response:{name}"), value.to_string())));
        }
        for row in catalog.remains().unwrap() {
            found.insert(format!("remains:{:?}", row.holder), String::new());
        }
        found
    }

    /// Everything that is ever acknowledged, by its name. Nothing may be damaged.
    pub async fn observed(&self) -> BTreeMap<String, String> {
        let mut found = self.rows();
        for collection in self.corpus.collections().await.unwrap() {
            let name = collection.name;
            assert_eq!(collection.damaged, None, "collection {name}");
            found.insert(format!("collection:{name}"), String::new());
            for info in self.corpus.documents(&name, 0, 1000).await.unwrap() {
                let mark = self.mark_of(&name, &info.id).await.unwrap();
                found.insert(format!("document:{name}/{}", info.id), mark);
            }
        }
        found
    }

    /// The number of a document's text, which all of its passages have.
    pub async fn mark_of(&self, collection: &str, document: &str) -> Result<String> {
        let stored = self.corpus.document(collection, document).await?;
        let mark_of = |text: &str| text.split_whitespace().find(|word| word.starts_with(MARK)).map(str::to_owned);
        let marks: Vec<Option<String>> = stored.passages.iter().map(|passage| mark_of(&passage.text)).collect();
        assert_eq!(stored.info.passages, marks.len(), "{collection}/{document}");
        assert!(marks.iter().all(|mark| mark == &marks[0]), "{collection}/{document}: {marks:?}");
        Ok(marks[0].clone().unwrap())
    }

    /// The keys and tokens that KV of the documents has.
    pub async fn live(&self) -> BTreeMap<KvKey, Vec<u32>> {
        let mut live = BTreeMap::new();
        for collection in self.corpus.names().await {
            for info in self.corpus.documents(&collection, 0, 1000).await.unwrap() {
                for passage in self.corpus.document(&collection, &info.id).await.unwrap().passages {
                    let tokens = passage.token_ids.to_vec();
                    live.insert(KvKey::derive(&MODEL, "", None, &tokens), tokens);
                }
            }
        }
        live
    }

    /// What is on disk is of documents that are there, and has the bits that it had; how many entries.
    pub fn check_kv(&self, live: &BTreeMap<KvKey, Vec<u32>>) -> usize {
        let mut keys = Vec::new();
        self.store.entries(&[Tier::Disk], &mut |entry| keys.push(entry.summary.key)).unwrap();
        for key in &keys {
            let tokens = live.get(key).unwrap_or_else(|| panic!("KV of a text that is gone: {key}"));
            let Some(reader) = self.store.open_entry(key, tokens) else { continue };
            for layer in 0..LAYERS {
                // A damaged one is a miss.
                let Ok(frame) = reader.layer(layer) else { continue };
                let (k, v) = layer_of(key, layer, frame.k.len());
                assert!(frame.k[..] == k[..] && frame.v[..] == v[..], "wrong KV: {key}");
            }
        }
        keys.len()
    }
}

fn options() -> StoreOptions {
    let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: PolicyKind::Lru };
    StoreOptions {
        host: tier(1 << 20),
        disk: tier(64 << 20),
        object: None,
        shape: None,
        admission: AdmissionRule::Always,
        costs: Costs::new(CostProfile::assumed().unwrap()),
    }
}

/// KV of a passage, of which each bit follows from its key.
pub fn entry(tokens: &[u32]) -> Entry {
    let new = NewEntry {
        fingerprint: MODEL,
        salt: "".into(),
        parent: None,
        tokens: tokens.into(),
        layers: LAYERS,
        kv_dim: KV_DIM,
        dtype: KvDtype::F32,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    let key = *builder.key();
    for layer in 0..LAYERS {
        let (k, v) = layer_of(&key, layer, tokens.len() * KV_DIM as usize * 4);
        builder.push_layer(&k, &v).unwrap();
    }
    builder.finish(1_500, 1_000).unwrap()
}

fn layer_of(key: &KvKey, layer: u32, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    // A bit of each number's exponent is left out: what is not finite is no entry.
    let mask = |at: usize| if at % 2 == 1 { 0xBF } else { 0xFF };
    let byte = |at: usize, side: u8| (key.0[at % 32] ^ (layer as u8) ^ side ^ ((at / 32) as u8)) & mask(at);
    ((0..bytes).map(|at| byte(at, 0)).collect(), (0..bytes).map(|at| byte(at, 0x80)).collect())
}
