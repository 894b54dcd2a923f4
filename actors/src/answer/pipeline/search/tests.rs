//! Speculation and rounds through the whole pipeline: the embedded model over a small corpus whose vectors are indexed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ragstone_corpus::SearchOptions;
use ragstone_documents::Document;
use ragstone_env::{Env, FailMode};
use ragstone_kernels::chat::ChatMessage;
use ragstone_storage::store::AdmissionRule;
use tempfile::TempDir;

use super::super::tests::{close, question};
use super::*;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::admission::turns::ComputeTime;
use crate::engine::status::SequencesStatus;
use crate::models::folders::Folders;
use crate::question::prompt::Task;
use crate::question::{Question, Reuse};
use crate::ragstone::Ragstone;
use crate::report::{Answer, KvSource};
use crate::settings::Settings;

const COMPANIES: [(&str, &str); 4] = [
    ("Bornix Brewery", "Jomi Jorrud"),
    ("Callux Motors", "Gavin Wesden"),
    ("Calnix Bakery", "Mira Dorman"),
    ("Tellux Works", "Elka Wanfell"),
];

async fn open(folder: &TempDir, env: &Env) -> Ragstone {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (kv_admission, disk_bytes, host_bytes) = (AdmissionRule::Always, 64 << 20, 64 << 20);
    let settings = Settings { disk_bytes, host_bytes, kv_admission, vector_index_rows: 1, ..Settings::default() };
    let folders = Folders {
        data: folder.path().join("data"),
        model: repository.join("ops/demo-model/checkpoint"),
        adapter: None,
        model_id: "demo".into(),
        embedder: repository.join("kernels/tests/fixtures/embedding/tiny"),
        reranker: None,
    };
    let ragstone = Ragstone::open(settings, &folders, env.clone(), |_| {}).await.unwrap();
    let document = |title: &str, text: String| Document { title: title.to_owned(), text, ..Document::default() };
    let pages = COMPANIES.iter().flat_map(|(company, chair)| {
        let company_page = format!("{company} makes glue. The chair of {company} is {chair}.");
        let person_page = format!("{chair} plays harp. {chair} keeps 12 doves.");
        [document(company, company_page), document(chair, person_page)]
    });
    ragstone.library().upsert("world", pages.collect(), (None, Caller::default()), || true).await.unwrap();
    ragstone
}

fn over(context: Context, words: &str) -> Question {
    let context = Context { collection: Some("world".into()), top_k: Some(1), ..context };
    let input = Input::Chat {
        messages: vec![ChatMessage::new("user", words)],
        context: Some(context),
        tools: Vec::new(),
        thinks: None,
    };
    let mut question = question(input, Reuse::Exact, 8);
    question.sampling.ignore_eos = false;
    question
}

async fn ask(ragstone: &Ragstone, context: Context, words: &str) -> Answer {
    let answer = ragstone.answer(over(context, words)).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_search_hides_behind_the_prefill_of_what_it_finds_and_answers_are_the_same() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    let chair = |at: usize| format!("Who is the chair of {}?", COMPANIES[at].0);
    let quick = ask(&ragstone, Context::default(), &chair(0)).await;
    assert!(quick.finish.report.speculation.is_none(), "nothing is known of its searches");
    env.set_fail_point("corpus.probe", FailMode::Delay(Duration::from_millis(20)), 1);
    ask(&ragstone, Context::default(), &chair(0)).await;
    for (at, (_, name)) in COMPANIES.iter().enumerate().skip(1) {
        let plain = ask(&ragstone, Context { speculate: Some(false), ..Context::default() }, &chair(at)).await;
        let answer = ask(&ragstone, Context::default(), &chair(at)).await;
        assert_eq!((&answer.text, answer.text.trim()), (&plain.text, *name));
        assert!(plain.finish.report.speculation.is_none());
        let speculation = answer.finish.report.speculation.unwrap();
        assert_eq!((speculation.outcome, speculation.started), (Outcome::Confirmed, 1));
        assert!(speculation.stages > 0 && speculation.hidden_ms > 0.0, "{speculation:?}");
        let ttft = answer.finish.report.ttft;
        assert!(ttft.retrieve_ms > 600.0, "{ttft:?}");
        assert_eq!(answer.finish.report.tokens.exact, plain.finish.report.tokens.exact + passage_tokens(&plain));
    }
    assert_eq!(ragstone.plans(None).len(), 8, "a plan for each question, none for what was tried");
    close(ragstone, &folder).await;
}

/// Of the one passage of a prompt that nothing was stored of but its system prompt.
fn passage_tokens(answer: &Answer) -> u32 {
    let passages = answer.finish.report.segments.iter().filter(|it| it.source == KvSource::Compute);
    passages.map(|segment| segment.tokens).next().unwrap_or(0)
}

fn asking(ragstone: &Ragstone, context: Context) -> Asking {
    Asking {
        question: Arc::new(over(context, "Who is the chair of Callux Motors?")),
        found_in: ragstone.store().epoch(),
        deadline: deadline_after(Duration::from_secs(60)),
        constraint: None,
        task: Task::Answer,
        meter: ragstone.pipeline().meter(Caller::default()),
        computed: ComputeTime::default(),
        is_round: false,
    }
}

/// The passages that a search finds, best first.
async fn found(ragstone: &Ragstone, words: &str, top_k: usize) -> Vec<Hit> {
    let options = SearchOptions { top_k, ..SearchOptions::default() };
    ragstone.corpus().search("world", words, &options).await.unwrap()
}

/// How often each was asked for; what fades of it rounds away.
fn uses(ragstone: &Ragstone, hits: &[Hit]) -> Vec<f64> {
    let tokens = hits.iter().map(|hit| &*hit.passage.token_ids);
    let popularity = ragstone.pipeline().popularity.lock().unwrap();
    popularity.of(ragstone.store().fingerprint(), "", tokens).into_iter().map(f64::round).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_counts_its_passages_once_whatever_was_begun_before() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    let mut both = Vec::new();
    for (company, chair) in &COMPANIES[..2] {
        both.push([found(&ragstone, company, 1).await, found(&ragstone, chair, 1).await].concat());
    }
    let [wrong, right] = [both[0].clone(), both[1].clone()];
    assert!(wrong.iter().all(|hit| !ids(&right).contains(&hit.passage.id)));
    let none = Vec::new();
    let (pipeline, asking) = (ragstone.pipeline(), asking(&ragstone, Context::default()));
    let staged = || Speculating { pipeline, asking: &asking, given: &[], running: None, stages: 0, started: 0 };
    let mut passages = Vec::new();
    add(&mut passages, right.clone(), false);
    // What is not confirmed counts nothing, and what is counts as any other.
    for (stage, outcome, times) in
        [(&none, Outcome::NotStarted, 1.0), (&wrong, Outcome::Cancelled, 2.0), (&right, Outcome::Confirmed, 3.0)]
    {
        // Nothing is begun beside answers that decode.
        while ragstone.status().device.sequences != SequencesStatus::default() || !ragstone.engine().load().has_room() {
            tokio::task::yield_now().await;
        }
        let mut speculating = staged();
        if !stage.is_empty() {
            speculating.stage(stage.clone());
            assert!(futures::poll!(Box::pin(advance(&mut speculating.running))).is_pending());
        }
        let (prefilled, speculation) = speculating.conclude(&ids(&right), &passages).await.unwrap();
        assert_eq!(speculation.outcome, outcome);
        drop(prefilled);
        ragstone.settle().await;
        assert_eq!(uses(&ragstone, &right), [times; 2]);
    }
    assert_eq!(uses(&ragstone, &wrong), [0.0; 2]);
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_in_rounds_counts_its_passages_once() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    let (company, chair) = COMPANIES[1];
    let words = format!("Who is the chair of {company}?");
    let answer = ask(&ragstone, Context { rounds: Some(5), ..Context::default() }, &words).await;
    assert_eq!(answer.finish.report.rounds.len(), 3);
    let asked = [found(&ragstone, &words, 1).await, found(&ragstone, chair, 1).await].concat();
    assert_eq!(uses(&ragstone, &asked), [1.0; 2]);
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_search_does_not_confirm_leaves_nothing() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    let [wrong, right] = [found(&ragstone, COMPANIES[0].0, 1).await, found(&ragstone, COMPANIES[1].0, 1).await];
    assert_ne!(ids(&wrong), ids(&right));
    let pipeline = ragstone.pipeline();
    let asking = asking(&ragstone, Context::default());
    let mut speculating = Speculating { pipeline, asking: &asking, given: &[], running: None, stages: 0, started: 0 };
    speculating.stage(wrong);
    // Until it is prefilled, and waits.
    while ragstone.engine().load().pending > 0
        || ragstone.engine().status().free_blocks == ragstone.engine().status().blocks
    {
        assert!(futures::poll!(Box::pin(advance(&mut speculating.running))).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!((ragstone.engine().status().cache.entries, ragstone.store().status().host.entries), (0, 0));
    let mut passages = Vec::new();
    add(&mut passages, right.clone(), false);
    let (prefilled, speculation) = speculating.conclude(&ids(&right), &passages).await.unwrap();
    assert_eq!((speculation.outcome, speculation.started, speculation.hidden_ms), (Outcome::Cancelled, 1, 0.0));
    drop(prefilled);
    ragstone.settle().await;
    // The system prompt and the passage of the one, and nothing of the other; what is filed is up to whoever has it.
    let status = ragstone.status();
    assert_eq!((status.device.cache.entries, status.store.host.entries, status.store.disk.entries), (2, 0, 0));
    assert!(ragstone.plans(None).is_empty() && status.background == 0);
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_round_finds_what_the_first_names_and_computes_only_that() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    for (at, (company, chair)) in COMPANIES.iter().enumerate() {
        let words = format!("Who is the chair of {company}?");
        let once = ask(&ragstone, Context::default(), &words).await;
        assert_eq!(once.citations.iter().map(|it| &*it.title).collect::<Vec<_>>(), [*company]);
        assert!(once.finish.report.rounds.is_empty());
        let context = Context { rounds: Some(if at == 0 { 2 } else { 5 }), ..Context::default() };
        let answer = ask(&ragstone, context, &words).await;
        assert_eq!(answer.text.trim(), *chair);
        assert_eq!(answer.citations.iter().map(|it| &*it.title).collect::<Vec<_>>(), [*company, *chair]);
        let report = &answer.finish.report;
        let rounds = &report.rounds;
        // What is searched for a third time brings nothing new, so that a fourth is not tried.
        assert_eq!(rounds.len(), if at == 0 { 2 } else { 3 });
        assert_eq!((&*rounds[0].query, &rounds[0].passages[..]), (&*words, &[1][..]));
        assert_eq!((&*rounds[1].query, &rounds[1].passages[..]), (*chair, &[2][..]));
        assert!(rounds.iter().skip(2).all(|round| round.passages.is_empty() && round.query == *chair));
        // System prompt and first passage, of which the first round computed what was not there before.
        let first: u32 = report.segments[..2].iter().map(|segment| segment.tokens).sum();
        assert_eq!(rounds[1].cached_tokens, first);
        let begins_alike = rounds[0].prompt_tokens - first;
        assert_eq!(
            rounds[1].prompt_tokens,
            first + report.segments[2].tokens + begins_alike,
            "one question, behind all"
        );
        assert_eq!(rounds.last().unwrap().cached_tokens, report.tokens.exact);
        assert!(rounds.iter().all(|round| round.ms > 0.0));
    }
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_to_which_nothing_is_said_is_the_answers_own_and_told_once() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    let (company, chair) = COMPANIES[1];
    let words = format!("Who is the chair of {company}?");
    let mut asked = over(Context { rounds: Some(2), ..Context::default() }, &words);
    // The end of what it says comes first.
    asked.sampling.stop = vec![chair[..1].to_owned()];
    let answer = ragstone.answer(asked).await.unwrap().collect().await.unwrap();
    assert_eq!(answer.text.trim(), "");
    let rounds = &answer.finish.report.rounds;
    assert_eq!(rounds.len(), 1, "{rounds:?}");
    assert_eq!((&*rounds[0].query, &rounds[0].passages[..]), (&*words, &[1][..]));
    ragstone.settle().await;
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_have_bounds() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
    let ragstone = open(&folder, &env).await;
    for (context, word) in [
        (Context { rounds: Some(0), ..Context::default() }, "rounds"),
        (Context { rounds: Some(9), ..Context::default() }, "rounds"),
        (Context { round_tokens: Some(0), ..Context::default() }, "round_tokens"),
        (Context { round_tokens: Some(257), ..Context::default() }, "round_tokens"),
    ] {
        let error = ragstone.answer(over(context, "Who?")).await.err().unwrap();
        assert!(error.to_string().contains(word), "{error}");
    }
    let nowhere = Context { rounds: Some(2), ..Context::default() };
    assert!(nowhere.check().unwrap_err().to_string().contains("collection"));
    close(ragstone, &folder).await;
}
