//! Futures that are dropped at each of their awaits: nothing that they held (places, blocks, turns, pins, jobs) stays held.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use ragstone_documents::Document;
use ragstone_env::Env;
use ragstone_kernels::chat::ChatMessage;
use tempfile::TempDir;

use super::tests::{close, open, question};
use crate::admission::caller::Caller;
use crate::admission::jobs::JobKind;
use crate::question::prompt::PromptDate;
use crate::question::{Context, Input, Question, Reuse};
use crate::ragstone::Ragstone;
use crate::ragstone::status::Status;

/// Polls a future so many times at the most, and drops it where it is; what it gave if it ended before.
async fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (Box::pin(future), polls);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// What is held of anything that is to be given back.
fn held(status: &Status) -> Vec<(&'static str, usize)> {
    let sequences = status.device.sequences;
    let workers = status.workers.iter().map(|worker| worker.in_flight).sum();
    let blocks = status.device.blocks - status.device.free_blocks - status.device.cached_blocks;
    // A calibration waits for the machine to be idle.
    let jobs = status.jobs.iter().filter(|of| of.kind != JobKind::Calibration).map(|of| of.jobs).sum();
    let all = [
        ("places", status.admitted),
        ("sequences", sequences.waiting + sequences.loading + sequences.prefilling + sequences.decoding),
        ("swapped", sequences.swapped),
        ("workers", workers),
        ("blocks", blocks),
        ("jobs", jobs),
        ("background", status.background),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

async fn until_nothing_is_held(ragstone: &Ragstone, what: &str) {
    for _ in 0..6000 {
        if held(&ragstone.status()).is_empty() {
            // Every turn at the processors can be had.
            let turns = ragstone.processors();
            tokio::time::timeout(Duration::from_secs(60), turns.take(Caller::default())).await.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: {:?} stay held", held(&ragstone.status()));
}

fn documents(version: &str) -> Vec<Document> {
    let document = |name: &str| Document {
        id: Some(name.to_owned()),
        title: name.to_owned(),
        text: format!("The {name} of Orvik is made of {version} glass. It burns copper red."),
        ..Document::default()
    };
    ["lamp", "mill", "heron"].map(document).to_vec()
}

fn ask(words: &str) -> Question {
    let context = Context { collection: Some("c".into()), top_k: Some(2), ..Context::default() };
    let messages = vec![ChatMessage::new("user", words)];
    question(Input::Chat { messages, context: Some(context), tools: Vec::new(), thinks: None }, Reuse::Auto, 6)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_is_dropped_at_whichever_await_gives_back_what_it_held() {
    let (folder, env) = (TempDir::new().unwrap(), Env::seeded(1, 0));
    let ragstone = open(&folder, "llama_3_2", PromptDate::default(), &env).await;
    let library = ragstone.library().clone();
    let by = (None, Caller::default());
    library.upsert("c", documents("green"), by, || true).await.unwrap();
    until_nothing_is_held(&ragstone, "the beginning").await;
    let mut awaits = [0; 4];
    // Answers, whole; the second question's passages are loaded, and not computed.
    for words in ["What is the lamp made of?", "What burns?"] {
        for polls in 0.. {
            let whole = async { ragstone.answer(ask(words)).await.unwrap().collect().await };
            let done = dropped_after(polls, whole).await;
            until_nothing_is_held(&ragstone, &format!("an answer after {polls} polls")).await;
            if done.is_some() {
                awaits[0] += polls;
                break;
            }
        }
    }
    // Answers of which some tokens are read.
    for tokens in 0..6 {
        let mut answer = ragstone.answer(ask("Who made the mill?")).await.unwrap();
        for _ in 0..tokens {
            answer.next().await;
        }
        drop(answer);
        until_nothing_is_held(&ragstone, &format!("a stream after {tokens} events")).await;
    }
    // Changes of the corpus go on, or leave it as it was.
    for polls in 0.. {
        let upsert = library.upsert("c", documents(&format!("shade {polls} of")), by, || true);
        let done = dropped_after(polls, upsert).await;
        until_nothing_is_held(&ragstone, &format!("an upsert after {polls} polls")).await;
        assert_eq!(ragstone.corpus().documents("c", 0, 10).await.unwrap().len(), 3);
        if done.is_some() {
            awaits[1] = polls;
            break;
        }
    }
    for polls in 0.. {
        let done = dropped_after(polls, library.delete_document("c", "lamp", None)).await;
        until_nothing_is_held(&ragstone, &format!("a deletion after {polls} polls")).await;
        library.upsert("c", documents("blue"), by, || true).await.unwrap();
        if done.is_some() {
            awaits[2] = polls;
            break;
        }
    }
    // The corpus itself, whose writers hold turns: an upsert after each finds them free, also where the collection was being made.
    for polls in 0.. {
        let name = format!("d{polls}");
        let upsert = ragstone.corpus().upsert(&name, documents("white"), &(), &|_| Ok(()));
        let is_done = dropped_after(polls, upsert).await.is_some();
        let again = ragstone.corpus().upsert(&name, documents("grey"), &(), &|_| Ok(()));
        let again = tokio::time::timeout(Duration::from_secs(60), again).await.unwrap().unwrap();
        assert_eq!(again.documents_added + again.documents_replaced, 3, "after {polls} polls");
        if is_done {
            awaits[3] = polls;
            break;
        }
    }
    // Changes run as jobs, and are waited for at one await; the others have several: how many depends on what is ready when it is polled.
    assert!(awaits.iter().all(|polls| *polls > 0) && awaits[0] > 3 && awaits[3] > 3, "{awaits:?}");
    drop(library);
    close(ragstone, &folder).await;
}
