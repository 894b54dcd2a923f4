//! Any one file of a data folder, flipped, cut, emptied or removed: the next start mends it or says what is damaged and what to do. Nothing panics,
//! and no document is lost without a word.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ragstone_corpus::Pace;
use ragstone_env::Env;
use tempfile::TempDir;

use super::power_cuts::steps::{DATA, Worker};
use super::power_cuts::world::World;
use super::power_cuts::{files, number, runtime};

/// Set by `ops/power-cuts`: damages to try; all that there are where it is as large.
const DAMAGES_VARIABLE: &str = "RAGSTONE_TEST_DAMAGES";
const DAMAGES: usize = 40;
const STEPS: usize = 70;

#[derive(Debug, Clone, Copy)]
enum Damage {
    /// A bit in this sixteenth of the file.
    Flipped(usize),
    /// Zeros from this sixteenth on, for a page.
    Zeroed(usize),
    /// Cut off behind this sixteenth.
    Cut(usize),
    Removed,
}

impl Damage {
    const ALL: [Self; 10] = [
        Self::Flipped(0),
        Self::Flipped(5),
        Self::Flipped(11),
        Self::Flipped(15),
        Self::Zeroed(0),
        Self::Zeroed(9),
        Self::Cut(0),
        Self::Cut(8),
        Self::Cut(15),
        Self::Removed,
    ];

    fn apply(self, path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        let at = |sixteenth: usize| bytes.len() * sixteenth / 16;
        match self {
            Self::Removed => return std::fs::remove_file(path).unwrap(),
            Self::Cut(sixteenth) => bytes.truncate(at(sixteenth)),
            Self::Flipped(sixteenth) => {
                let at = at(sixteenth);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x24);
            }
            Self::Zeroed(sixteenth) => {
                let at = at(sixteenth);
                bytes.iter_mut().skip(at).take(4096).for_each(|byte| *byte = 0);
            }
        }
        std::fs::write(path, bytes).unwrap();
    }
}

/// Says which case it was, should it end in a panic.
struct Case(PathBuf, Damage);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{} was {:?}", self.0.display(), self.1);
        }
    }
}

/// What of the catalog, the documents and the files is as it was, or is told; whether something was told.
async fn check(data: &Path, damaged: &Path, there: &BTreeMap<String, String>) -> bool {
    let world = World::open(data).await.unwrap();
    let in_file = |folder: &str| damaged.starts_with(folder);
    let mut is_told = world.catalog.damage().is_some() || world.store.damage().is_some();
    // What is found when all files are compared, as it is after each start.
    world.corpus.verify(Pace::Fast, &mut |_| true).await.unwrap();
    let listed = world.corpus.collections().await.unwrap();
    let damages: BTreeMap<&str, &String> = (listed.iter())
        .filter_map(|collection| Some((collection.name.as_str(), collection.damaged.as_ref()?)))
        .collect();
    for told in damages.values() {
        assert!(told.contains("backup"), "{told}");
        is_told = true;
    }
    for (name, value) in there.iter().filter(|(name, _)| name.starts_with("document:")) {
        let (collection, id) = name["document:".len()..].split_once('/').unwrap();
        match world.mark_of(collection, id).await {
            Ok(mark) => assert_eq!(&mark, value, "{name}"),
            Err(error) => assert!(damages.contains_key(collection), "{name} is lost without a word: {error}"),
        }
    }
    let rows = world.rows();
    for (name, value) in
        there.iter().filter(|(name, _)| !name.starts_with("document:") && !name.starts_with("collection:"))
    {
        let is_same = rows.get(name) == Some(value);
        let of_it = (in_file("schemas") && name.starts_with("schema:"))
            || (in_file("responses") && name.starts_with("response:"));
        assert!(is_same || of_it, "{name} is {:?}, and was {value}", rows.get(name));
    }
    // RocksDB takes a log that is damaged for one that a power cut ended, and forgets what came after: removals of KV, too.
    if damages.is_empty() && !in_file("kv") {
        world.check_kv(&world.live().await);
    }
    world.close().await;
    is_told
}

#[test]
fn any_damaged_file_is_mended_or_told() {
    let runtime = runtime();
    let whole = TempDir::new().unwrap();
    let there = runtime.block_on(async {
        let mut worker = Worker::begin(whole.path(), 3).await;
        for _ in 0..STEPS {
            worker.step().await;
        }
        worker.end().await
    });
    let data = whole.path().join(DATA);
    let is_ours = |name: &Path| !name.file_name().unwrap().to_str().unwrap().starts_with("LO");
    let all: Vec<(PathBuf, Vec<u8>)> = files(&data).into_iter().filter(|(name, _)| is_ours(name)).collect();
    let mut cases: Vec<(PathBuf, Damage)> =
        all.iter().flat_map(|(name, _)| Damage::ALL.map(|damage| (name.clone(), damage))).collect();
    let random = Env::seeded(number("RAGSTONE_TEST_SEED").unwrap_or(2) as u64, 0);
    for at in (1..cases.len()).rev() {
        cases.swap(at, random.random_u64() as usize % (at + 1));
    }
    cases.truncate(number(DAMAGES_VARIABLE).unwrap_or(DAMAGES));
    let mut told = 0;
    for (name, damage) in &cases {
        let _case = Case(name.clone(), *damage);
        let copy = TempDir::new().unwrap();
        for (name, bytes) in &all {
            let path = copy.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        damage.apply(&copy.path().join(name));
        told += usize::from(runtime.block_on(check(copy.path(), name, &there)));
    }
    println!(
        "{} damages of {} files: {told} were told, the others mended; no document was lost without a word",
        cases.len(),
        all.len()
    );
}
