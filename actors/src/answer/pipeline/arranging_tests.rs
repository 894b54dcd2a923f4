//! Passages stand in the order in which more of them is stored, where they may.

use ragstone_kernels::chat::ChatMessage;

use super::hijack_tests::open;
use super::tests::{close, question};
use super::*;
use crate::question::Reuse;
use crate::ragstone::Ragstone;
use crate::ragstone::entries::EntryFilter;
use crate::report::{Answer, ArrangementReport, KvSource};

const PASSAGES: [(&str, &str); 3] = [
    ("Calnix Bakery", "Calnix Bakery makes candles. The founder of Calnix Bakery is Mira Dorman."),
    ("Market letter", "Jona Wanfell owns 3 boats."),
    ("Harbour report", "The founder of Calnix Bakery owns 7 boats."),
];

/// Asks over these of the passages, in this order.
async fn ask(ragstone: &Ragstone, passages: &[usize], arrange: Option<bool>, reuse: Reuse) -> Answer {
    let document = |passage: &usize| {
        let (title, text) = PASSAGES[*passage];
        InlineDocument { title: title.into(), text: text.into() }
    };
    let documents = passages.iter().map(document).collect();
    let context = Context { documents, arrange, ..Context::default() };
    let messages = vec![ChatMessage::new("user", "Who is the founder of Calnix Bakery?")];
    let input = Input::Chat { messages, tools: Vec::new(), thinks: None, context: Some(context) };
    let answer = ragstone.answer(question(input, reuse, 6)).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer
}

/// Numbers of the citations, and where the passages' KV came from, both in the prompt's order.
fn order(answer: &Answer) -> (Vec<usize>, Vec<KvSource>) {
    let passages = answer.finish.report.segments.iter().filter(|segment| segment.kind == SegmentKind::Passage);
    (
        answer.citations.iter().map(|citation| citation.number).collect(),
        passages.map(|segment| segment.source).collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_prompt_is_found_whatever_order_its_passages_come_in() {
    use KvSource::{Compute, Exact};
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 1_795_391_940_000));
    let ragstone = open(&folder, &env).await;
    let first = ask(&ragstone, &[0, 1, 2], None, Reuse::Exact).await;
    assert!(first.finish.report.arrangement.is_none(), "what came with the question stands as it came");
    let as_it_came = ask(&ragstone, &[2, 0, 1], None, Reuse::Exact).await;
    assert_eq!(order(&as_it_came), (vec![1, 2, 3], vec![Compute; 3]));

    // Two paths are stored now: each passage may come first, and the whole one saves most.
    let arranged = ask(&ragstone, &[1, 0, 2], Some(true), Reuse::Exact).await;
    assert_eq!(order(&arranged), (vec![2, 1, 3], vec![Exact; 3]), "one pair is turned round, not two");
    assert_eq!((&arranged.text, arranged.citations[0].title.as_str()), (&first.text, PASSAGES[0].0));
    let ArrangementReport { passages, stored, saved_ms, turned } = arranged.finish.report.arrangement.unwrap();
    assert_eq!((passages, stored, turned), (3, 3, 1));
    assert!(saved_ms > 0.0);

    // Nothing is stored under another tenant, nor looked at where everything is computed.
    let off = ask(&ragstone, &[1, 0, 2], Some(true), Reuse::Off).await;
    assert_eq!((order(&off).0, off.finish.report.arrangement), (vec![1, 2, 3], None));
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_twice_as_often_comes_first_where_nothing_is_stored() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, 1_795_391_940_000));
    let ragstone = open(&folder, &env).await;
    for _ in 0..2 {
        // Pairs: one alone has nothing to change places with.
        ask(&ragstone, &[2, 1], Some(true), Reuse::Exact).await;
    }
    ragstone.evict(&EntryFilter::default(), false).await.unwrap();
    let arranged = ask(&ragstone, &[0, 2], Some(true), Reuse::Exact).await;
    assert_eq!(order(&arranged).0, [2, 1]);
    close(ragstone, &folder).await;
}
