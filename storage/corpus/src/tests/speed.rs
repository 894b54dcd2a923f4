//! How fast a search is that reads little, beside one that reads everything of its candidates.

use ragstone_env::Stopwatch;

use super::*;
use crate::search::reference;

const NUMBERS: usize = 384;
const WORDS: f64 = 50_000.0;

/// As long as the default embedding model's, and as many token ids as words.
struct LongEncoder;

impl PassageEncoder for LongEncoder {
    fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.embed_passages(&[text.to_owned()])?.remove(0))
    }

    fn embed_passages(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let embed = |text: &String| {
            let mut vector = vec![1e-3_f32; NUMBERS];
            for hash in text.split_whitespace().flat_map(|word| (0..8).map(|salt| hash(word, salt))) {
                vector[hash as usize % NUMBERS] += if hash >> 32 & 1 == 0 { 1.0 } else { -1.0 };
            }
            let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / norm).collect()
        };
        Ok(texts.iter().map(embed).collect())
    }

    fn dimension(&self) -> usize {
        NUMBERS
    }

    fn identity(&self) -> String {
        "long".to_owned()
    }

    fn tokenize_passage(&self, title: &str, text: &str) -> Result<Vec<u32>> {
        ENCODER.tokenize_passage(title, text)
    }

    fn tokenizer_identity(&self) -> String {
        "tokens-1".to_owned()
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }
}

/// Words of which the nth is about as frequent as 1/n of the first.
fn words(random: &Env, count: usize) -> String {
    let word = |_| {
        let share = (random.random_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = WORDS.powf(share) as u64;
        format!("w{:x}", rank.wrapping_mul(0x9e37_79b9) & 0x00ff_ffff)
    };
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

/// `SEARCH_PASSAGES=100000 SEARCH_DATA=FOLDER cargo nextest run -p ragstone-corpus --run-ignored only reading_little --no-capture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, and takes minutes"]
async fn reading_little_is_faster() {
    let given = |name: &str, or: usize| std::env::var(name).ok().and_then(|given| given.parse().ok()).unwrap_or(or);
    let (passages, rounds) = (given("SEARCH_PASSAGES", 2000), given("SEARCH_ROUNDS", 3));
    let temporary = tempfile::tempdir().unwrap();
    let data = std::env::var("SEARCH_DATA").map_or_else(|_| temporary.path().to_owned(), Into::into);
    let corpus = Corpus::open(&data, Arc::new(LongEncoder), CorpusOptions::default()).await.unwrap();
    let random = Env::seeded(1, 0);
    let text = |_| Document { title: words(&random, 3), text: words(&random, 150), ..Document::default() };
    let documents: Vec<Document> = (0..passages).map(text).collect();
    let watch = Stopwatch::start();
    for some in documents.chunks(4096) {
        upsert(&corpus, some).await;
    }
    println!("{passages} passages added in {:.1} s", watch.elapsed_s());
    let table = corpus.find("c").await.unwrap();
    println!("segments of the words: {:?}", table.segments(table::TEXT_INDEX).await.unwrap());
    let asked: Vec<String> = (0..50)
        .map(|n| documents[n * 7919 % passages].text.split(' ').skip(n % 100).take(6).collect::<Vec<_>>().join(" "))
        .collect();
    let env = Env::system();
    for mode in MODES {
        let options = SearchOptions { mode, ..SearchOptions::default() };
        let mut times = [const { Vec::new() }; 2];
        let mut parts = Vec::new();
        for query in (0..=rounds).flat_map(|_| &asked) {
            let vector = Some(LongEncoder.embed_query(query).unwrap());
            let watch = Stopwatch::start();
            let found = search::search(&table, query, vector.clone(), &options, &env).await.unwrap();
            times[0].push(watch.elapsed_ms());
            parts.push([found.took.vectors_ms, found.took.words_ms, found.took.reading_ms]);
            let watch = Stopwatch::start();
            let expected = reference::search(&table, query, vector, &options).await.unwrap();
            times[1].push(watch.elapsed_ms());
            let ids = |hits: &[candidates::StoredHit]| hits.iter().map(|hit| hit.stored.row).collect::<Vec<_>>();
            assert_eq!(ids(&found.hits), ids(&expected.hits), "{query}");
        }
        let median = |mut times: Vec<f64>| {
            // Without the first round, which brings files into memory.
            times.drain(..asked.len());
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], times[times.len() * 95 / 100])
        };
        let of = |part: usize| median(parts.iter().map(|parts| parts[part]).collect()).0;
        let [little, whole] = times.map(median);
        println!(
            "{mode:?}: {:.1} ms (p95 {:.1}; vectors {:.1}, words {:.1}, reading {:.1}); reading everything {:.1} ms (p95 {:.1})",
            little.0,
            little.1,
            of(0),
            of(1),
            of(2),
            whole.0,
            whole.1
        );
    }
    // Eight at once.
    for clients in [1, 8] {
        let watch = Stopwatch::start();
        let ask = |client: usize| {
            let (corpus, asked) = (corpus.clone(), asked.clone());
            tokio::spawn(async move {
                for query in asked.iter().cycle().skip(client * 6).take(asked.len()) {
                    find(&corpus, query, SearchMode::Fused, 5).await;
                }
            })
        };
        for client in (0..clients).map(ask).collect::<Vec<_>>() {
            client.await.unwrap();
        }
        println!(
            "{clients} clients: {:.1} fused searches a second",
            (clients * asked.len()) as f64 / watch.elapsed_s()
        );
    }
}
