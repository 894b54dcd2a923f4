//! Reranking through the whole pipeline: the embedded model's verdicts, and a tiny cross-encoder's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_documents::Document;
use ragstone_env::Env;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::cross_encoder::CrossEncoder;
use ragstone_storage::store::AdmissionRule;
use tempfile::TempDir;

use super::super::tests::{close, open_with, question};
use super::*;
use crate::admission::caller::Caller;
use crate::models::folders::Folders;
use crate::question::InlineDocument;
use crate::question::prompt::PromptFormat;
use crate::ragstone::Ragstone;
use crate::report::{Answer, Event};
use crate::settings::Settings;

const QUERY: &str = "Who is the chair of Callux Motors?";
const PAGES: [(&str, &str); 5] = [
    ("Bornix Brewery", "Bornix Brewery makes glue. The chair of Bornix Brewery is Jomi Jorrud."),
    ("Callux Motors", "Callux Motors makes lamps. The chair of Callux Motors is Gavin Wesden."),
    ("Gavin Wesden", "Gavin Wesden plays harp. Gavin Wesden keeps 12 doves."),
    ("Calnix Bakery", "Calnix Bakery makes boats."),
    ("", "Nine boats lay in the harbour of Tarn."),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/fixtures")
}

fn settings() -> Settings {
    // So small a model computes faster than a disk is read.
    let kv_admission = AdmissionRule::Always;
    Settings { disk_bytes: 64 << 20, host_bytes: 64 << 20, kv_admission, ..Settings::default() }
}

async fn open(folder: &TempDir, settings: Settings, reranker: Option<PathBuf>) -> Ragstone {
    let folders = Folders {
        data: folder.path().join("data"),
        model: fixtures().join("../../../ops/demo-model/checkpoint"),
        adapter: None,
        model_id: "demo".into(),
        embedder: fixtures().join("embedding/tiny"),
        reranker,
    };
    let ragstone = Ragstone::open(settings, &folders, Env::seeded(7, 0), |_| {}).await.unwrap();
    let document =
        |(title, text): &(&str, &str)| Document { title: (*title).into(), text: (*text).into(), ..Document::default() };
    ragstone
        .library()
        .upsert("world", PAGES.iter().map(document).collect(), (None, Caller::default()), || true)
        .await
        .unwrap();
    ragstone
}

fn documents() -> Vec<InlineDocument> {
    PAGES.iter().map(|(title, text)| InlineDocument { title: (*title).into(), text: (*text).into() }).collect()
}

async fn rerank(ragstone: &Ragstone, by: Option<RerankedBy>, reuse: Reuse, tenant: &str) -> Reranked {
    let (caller, deadline) = (Caller::default(), Duration::from_secs(60));
    let (query, documents, tenant) = (QUERY.to_owned(), documents(), tenant.to_owned());
    let reranked = ragstone.rerank(Rerank { query, documents, by, reuse, tenant, caller, deadline }).await.unwrap();
    ragstone.settle().await;
    reranked
}

async fn ask(ragstone: &Ragstone, context: Context) -> Answer {
    let messages = vec![ChatMessage::new("user", QUERY)];
    let input = Input::Chat { messages, tools: Vec::new(), thinks: None, context: Some(context) };
    let answer = ragstone.answer(question(input, Reuse::Exact, 4)).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer
}

/// What is asked about each passage as any question over one, without a word about reranking.
#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_is_what_the_model_would_have_said_behind_the_passage() {
    for template in ["qwen_2_5", "llama_3_2", "mistral_v7"] {
        let mut settings = settings();
        settings.prompt.question = PromptFormat::default().rerank;
        let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 0));
        let ragstone = open_with(&folder, template, settings, &env).await;
        let verdicts = Verdicts::of(ragstone.tokenizer()).unwrap();
        let reranked = rerank(&ragstone, None, Reuse::Off, "").await;
        let again = rerank(&ragstone, None, Reuse::Auto, "").await;
        let loaded = rerank(&ragstone, None, Reuse::Auto, "").await;
        // Each may find the root that another of them has stored, about 45 tokens, and one that waited its own passage; not all of them.
        let passages = |reranked: &Reranked| reranked.cached_tokens > reranked.prompt_tokens / 2;
        assert_eq!((reranked.cached_tokens, passages(&again)), (0, false), "`Off` keeps nothing: {again:?}");
        assert!(passages(&loaded), "{loaded:?}");
        for (index, document) in documents().into_iter().enumerate() {
            let context = Context { documents: vec![document], ..Context::default() };
            let messages = vec![ChatMessage::new("user", QUERY)];
            let input = Input::Chat { messages, tools: Vec::new(), thinks: None, context: Some(context) };
            let mut asked = question(input, Reuse::Off, 1);
            asked.sampling.logprob_token_ids = verdicts.ids.clone();
            let mut answer = ragstone.answer(asked).await.unwrap();
            let Some(Ok(Event::Token(token))) = answer.next().await else { panic!("no token") };
            let top = token.top.iter().map(|token| (token.id, token.logprob)).collect();
            let expected = verdicts.log_odds(&Sampled { id: token.id, logprob: token.logprob, top });
            for logits in [&reranked.logits, &again.logits, &loaded.logits] {
                assert!((logits[index] - expected).abs() < 1e-3, "{template} {index}: {} {expected}", logits[index]);
            }
        }
        close(ragstone, &folder).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdicts_passage_is_the_answers_and_nothing_of_what_was_asked_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder, settings(), None).await;
    let first = rerank(&ragstone, None, Reuse::Auto, "").await;
    assert_eq!(first.by, RerankedBy::Model);
    // The root, and each passage behind it.
    assert_eq!(ragstone.store().status().host.entries, 1 + PAGES.len() as u64);
    let second = rerank(&ragstone, None, Reuse::Auto, "").await;
    assert_eq!((second.logits.len(), second.order()), (PAGES.len(), first.order()));
    let context = Context { documents: documents()[..1].to_vec(), ..Context::default() };
    let answer = ask(&ragstone, context).await;
    let sources: Vec<_> = answer.finish.report.segments.iter().map(|segment| segment.source.name()).collect();
    assert_eq!(sources, ["exact", "exact", "compute"]);
    let reused = answer.finish.report.tokens.exact;
    assert!(second.cached_tokens > reused, "{second:?} {reused}");
    // Another tenant's is another's: it has its own root at most.
    let root = answer.finish.report.segments[0].tokens;
    let other = rerank(&ragstone, None, Reuse::Auto, "acme").await;
    assert!(other.cached_tokens < root * PAGES.len() as u32, "{other:?} {root}");
    assert!(second.cached_tokens > root * PAGES.len() as u32, "{second:?} {root}");
    close(ragstone, &folder).await;
}

/// A question whose search is put in order: as the reranker has it, the best of all that there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_reads_the_best_of_its_candidates() {
    let bert = fixtures().join("cross_encoder/bert");
    for reranker in [None, Some(bert)] {
        let folder = tempfile::tempdir().unwrap();
        let ragstone = open(&folder, settings(), reranker.clone()).await;
        let expected = rerank(&ragstone, None, Reuse::Off, "").await;
        if let Some(folder) = &reranker {
            let texts: Vec<String> = PAGES.iter().map(|(title, text)| titled(title, text)).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let scores = CrossEncoder::load(folder).unwrap().scores(QUERY, &texts).unwrap();
            assert_eq!((&expected.logits, expected.prompt_tokens as usize), (&scores.logits, scores.tokens));
        }
        let context =
            |rerank| Context { collection: Some("world".into()), top_k: Some(2), rerank, ..Context::default() };
        let plain = ask(&ragstone, context(None)).await.finish.report;
        assert!(plain.rerank.is_none() && plain.ttft.rerank_ms == 0.0);
        let mut answer = ask(&ragstone, context(Some(PAGES.len()))).await;
        // The prompt may begin with what the plain question left stored.
        answer.citations.sort_by_key(|citation| citation.number);
        let found: Vec<_> = answer.citations.iter().map(|it| (it.title.as_str(), it.score.unwrap())).collect();
        let best: Vec<_> =
            expected.order()[..2].iter().map(|index| (PAGES[*index].0, expected.relevance(*index))).collect();
        for ((title, score), (wanted, relevance)) in found.iter().zip(&best) {
            assert_eq!(title, wanted);
            assert!((score - relevance).abs() < 1e-3, "{found:?} {best:?}");
        }
        assert_eq!(found.len(), 2);
        let report = answer.finish.report;
        let rerank = report.rerank.unwrap();
        let by = if reranker.is_some() { RerankedBy::CrossEncoder } else { RerankedBy::Model };
        assert_eq!((rerank.by, rerank.candidates as usize), (by, PAGES.len()));
        assert_eq!(rerank.prompt_tokens, expected.prompt_tokens);
        assert!(rerank.ms > 0.0 && report.ttft.rerank_ms == rerank.ms, "{rerank:?}");
        assert!(report.ttft.total_ms > report.ttft.retrieve_ms + rerank.ms);
        // In rounds, too.
        let rounds = ask(&ragstone, Context { rounds: Some(2), ..context(Some(4)) }).await.finish.report;
        assert!(rounds.rerank.unwrap().candidates >= 4, "{:?}", rounds.rerank);
        close(ragstone, &folder).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reranked_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder, settings(), None).await;
    let asked = |text: String, by| Rerank {
        query: QUERY.into(),
        documents: vec![
            InlineDocument { title: String::new(), text: "Short.".into() },
            InlineDocument { title: String::new(), text },
        ],
        by,
        reuse: Reuse::Auto,
        tenant: String::new(),
        caller: Caller::default(),
        deadline: Duration::from_secs(60),
    };
    let error = ragstone.rerank(asked("a".into(), Some(RerankedBy::CrossEncoder))).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("--reranker"), "{error}");
    let error = ragstone.rerank(asked("lamp boat ".repeat(5000), None)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::ContextLength && error.to_string().contains("document 1"), "{error}");
    // Fits alone, but not with what stands around it.
    let error = ragstone.rerank(asked("9".repeat(4090), None)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::ContextLength && error.to_string().contains("document 1"), "{error}");
    let error = ragstone.rerank(Rerank { deadline: Duration::ZERO, ..asked("a".into(), None) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    close(ragstone, &folder).await;
}

#[test]
fn odds_are_of_all_spellings_and_always_a_number() {
    let verdicts = Verdicts { ids: vec![1, 2, 3], yes: 2 };
    let odds = |logprobs: [f32; 3]| {
        let top = verdicts.ids.iter().copied().zip(logprobs).collect();
        verdicts.log_odds(&Sampled { id: 0, logprob: 0.0, top })
    };
    let (none, ln) = (f32::NEG_INFINITY, |p: f32| p.ln());
    assert!((odds([ln(0.1), ln(0.3), ln(0.2)]) - ln(2.0)).abs() < 1e-6);
    assert_eq!(odds([none, none, none]), 0.0);
    assert_eq!(odds([none, ln(0.5), none]), f32::INFINITY);
    assert_eq!(odds([none, none, ln(0.5)]), none);
    assert_eq!(odds([f32::NAN, ln(0.5), ln(0.5)]), 0.0);
}
