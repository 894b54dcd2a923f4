//! Turns and days of a conversation, through the whole pipeline: the embedded model's weights with the chat templates of
//! others.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ragstone_env::FailMode;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::key::KvKey;
use ragstone_storage::segment::TEXT_TOKENS;
use ragstone_storage::store::AdmissionRule;
use tempfile::TempDir;

use super::*;
use crate::models::folders::Folders;
use crate::question::Reuse;
use crate::question::prompt::PromptDate;
use crate::ragstone::Ragstone;
use crate::report::{Answer, Event, TokenAccount};

const DAY: Duration = Duration::from_secs(86_400);
/// 2026-11-22, 23:59 UTC.
pub(super) const EVENING_UNIX_MS: u64 = 1_795_391_940_000;

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(super) async fn open(folder: &TempDir, template: &str, date: PromptDate, env: &Env) -> Ragstone {
    // So small a model computes faster than a disk is read.
    let kv_admission = AdmissionRule::Always;
    let mut settings = Settings { disk_bytes: 64 << 20, host_bytes: 64 << 20, kv_admission, ..Settings::default() };
    settings.prompt.date = date;
    open_with(folder, template, settings, env).await
}

pub(super) async fn open_with(folder: &TempDir, template: &str, settings: Settings, env: &Env) -> Ragstone {
    write_demo(&folder.path().join("model"), template);
    open_model(folder, settings, env).await
}

/// The demo model with the chat template of another.
pub(super) fn write_demo(model: &Path, template: &str) {
    std::fs::create_dir_all(model).unwrap();
    for file in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        std::fs::copy(repository().join("ops/demo-model/checkpoint").join(file), model.join(file)).unwrap();
    }
    let template = repository().join("kernels/tests/fixtures/chat").join(template).join("chat_template.jinja");
    std::fs::copy(template, model.join("chat_template.jinja")).unwrap();
}

/// Over what is in `model` there.
pub(super) async fn open_model(folder: &TempDir, settings: Settings, env: &Env) -> Ragstone {
    let folders = Folders {
        data: folder.path().join("data"),
        model: folder.path().join("model"),
        adapter: None,
        model_id: "demo".into(),
        embedder: repository().join("kernels/tests/fixtures/embedding/tiny"),
        reranker: None,
    };
    Ragstone::open(settings, &folders, env.clone(), |_| {}).await.unwrap()
}

/// Waits until RocksDB is closed, too. Workers end on threads of their own; a process that ends beside them aborts now and
/// then, which is why the program itself leaves by `_exit`.
pub(super) async fn close(ragstone: Ragstone, folder: &TempDir) {
    ragstone.close().await.unwrap();
    drop(ragstone);
    let kv = folder.path().join("data/kv");
    let is_lock = |file: PathBuf| file.starts_with(&kv) && file.ends_with("LOCK");
    // Where there is no such folder (not Linux) nobody is waited for.
    let is_open = || {
        let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(is_lock)
    };
    for _ in 0..1000 {
        if !is_open() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("RocksDB is still open");
}

fn user(content: &str) -> ChatMessage {
    ChatMessage::new("user", content)
}

fn assistant(content: &str) -> ChatMessage {
    ChatMessage::new("assistant", content)
}

pub(super) fn question(input: Input, reuse: Reuse, max_tokens: usize) -> Question {
    Question {
        input,
        sampling: SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() },
        answers: 1,
        reuse,
        ends_at_repeat: false,
        cites: false,
        drafts: None,
        explain: false,
        selection: None,
        root: RootCut::Whole,
        said: None,
        tenant: String::new(),
        caller: Caller::default(),
        deadline: Duration::from_secs(60),
    }
}

/// The answer, when all that it leaves behind is kept.
pub(super) async fn answer(ragstone: &Ragstone, question: Question) -> Answer {
    let answer = ragstone.answer(question).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer
}

/// Answers that are all under way before any of them has begun: whether they meet is no matter of which is the fastest.
pub(super) async fn side_by_side<T>(
    ragstone: &Ragstone,
    env: &Env,
    asked: impl IntoIterator<Item = impl Future<Output = T>>,
) -> Vec<T> {
    let asked: Vec<_> = asked.into_iter().collect();
    let others = asked.len() - 1;
    env.set_fail_point("engine.prefill", FailMode::Hang, 1);
    let release = async {
        while ragstone.status().device.sequences.waiting < others || env.fail_point_hits("engine.prefill") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        env.set_fail_point("engine.prefill", FailMode::Off, 1);
    };
    futures::future::join(futures::future::join_all(asked), release).await.0
}

/// The sources of the prompt's segments.
async fn ask(ragstone: &Ragstone, messages: &[ChatMessage], with_passages: bool) -> Vec<&'static str> {
    let document = |title: &str, text: &str| InlineDocument { title: title.into(), text: text.into() };
    let documents =
        vec![document("Callux Motors", "Callux Motors makes lamps."), document("Tarn", "Nine boats lay in Tarn.")];
    let input = Input::Chat {
        messages: messages.to_vec(),
        tools: Vec::new(),
        thinks: None,
        context: with_passages.then(|| Context { documents, ..Context::default() }),
    };
    let answer = answer(ragstone, question(input, Reuse::Auto, 2)).await;
    answer.finish.report.segments.iter().map(|segment| segment.source.name()).collect()
}

/// System prompt and passages.
const FIRST: [&str; 3] = ["compute"; 3];
const LATER: [&str; 3] = ["exact"; 3];

#[tokio::test(flavor = "multi_thread")]
async fn a_later_turn_over_the_same_passages_computes_none_of_them_and_so_does_the_next_day() {
    let turns = [user("What does Callux make?"), assistant("Lamps."), user("How many boats?")];
    for template in ["llama_3_2", "qwen_2_5", "qwen_3", "mistral_v0_3", "mistral_v7"] {
        let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
        let ragstone = open(&folder, template, PromptDate::Pinned, &env).await;
        assert_eq!(ask(&ragstone, &turns[..1], true).await[..3], FIRST, "{template}");
        assert_eq!(ask(&ragstone, &turns, true).await[..3], LATER, "{template}");
        env.advance(DAY);
        assert_eq!(ask(&ragstone, &turns[..1], true).await[..3], LATER, "{template}, the next day");
        assert_eq!(ask(&ragstone, &turns, true).await[..3], LATER, "{template}, the next day");
        close(ragstone, &folder).await;
    }
}

/// What the setting costs, and that the test above would see it.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_told_todays_date_finds_nothing_the_next_day() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "llama_3_2", PromptDate::Today, &env).await;
    let messages = [user("What does Callux make?")];
    assert_eq!(ask(&ragstone, &messages, true).await[..3], FIRST);
    assert_eq!(ask(&ragstone, &messages, true).await[..3], LATER);
    env.advance(DAY);
    assert_eq!(ask(&ragstone, &messages, true).await[..3], FIRST);
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_passages_a_longer_conversation_finds_the_shorter() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "qwen_2_5", PromptDate::Pinned, &env).await;
    let long = "Nine boats lay in the harbour of Tarn. ".repeat(8);
    let mut messages = vec![user(&long)];
    assert_eq!(ask(&ragstone, &messages, false).await, ["compute"; 3]);
    for _ in 0..2 {
        messages.extend([assistant(&long), user(&long)]);
        assert_eq!(ask(&ragstone, &messages, false).await, ["exact", "exact", "compute", "compute"]);
        env.advance(DAY);
    }
    // Text is no passage: none is computed after the system prompt alone.
    assert_eq!(ragstone.store().status().host.entries, ragstone.status().device.cache.entries);
    close(ragstone, &folder).await;
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| 300 + at * 7919 % 500).collect()
}

/// The token account of a prompt of ids, and its answer's ids.
async fn complete(ragstone: &Ragstone, prompt: &[u32], reuse: Reuse, max_tokens: usize) -> (TokenAccount, Vec<u32>) {
    let mut asked = question(Input::Tokens(prompt.to_vec()), reuse, max_tokens);
    asked.sampling.logprobs = Some(0);
    let mut stream = ragstone.answer(asked).await.unwrap();
    let (mut ids, mut account) = (Vec::new(), None);
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            Event::Token(token) => ids.push(token.id),
            Event::Tail(_) => {}
            Event::Finished(finish) => account = Some(finish.report.tokens),
        }
    }
    ragstone.settle().await;
    (account.expect("it ends"), ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_finds_what_it_has_in_common_with_another_and_with_its_answer() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let mut ragstone = open(&folder, "qwen_2_5", PromptDate::Pinned, &env).await;
    let prompt = tokens(300);
    let (account, answer) = complete(&ragstone, &prompt, Reuse::Auto, 150).await;
    assert_eq!((account.exact, account.computed, answer.len()), (0, 300, 150));
    let (again, same) = complete(&ragstone, &prompt, Reuse::Auto, 150).await;
    assert_eq!((again.exact, again.computed), (256, 44), "as far as it goes in whole texts");
    assert_eq!(same, answer);
    // It goes on from its answer, but for the last token, which nobody has computed.
    let next = [&prompt[..], &answer, &tokens(20)].concat();
    let (cold, expected) = complete(&ragstone, &next, Reuse::Off, 8).await;
    assert_eq!((cold.exact, cold.computed), (0, 470));
    for tier in ["device", "disk"] {
        let (account, answer) = complete(&ragstone, &next, Reuse::Auto, 8).await;
        assert_eq!((account.exact, account.computed), (448, 22), "{tier}: the 449 that are there, less one of 64");
        assert_eq!(answer, expected, "{tier}");
        // What is found after a restart was on disk.
        close(ragstone, &folder).await;
        ragstone = open(&folder, "qwen_2_5", PromptDate::Pinned, &env).await;
    }
    let other = [&prompt[..130], &tokens(60)].concat();
    assert_eq!(complete(&ragstone, &other, Reuse::Auto, 1).await.0.exact, 128);
    close(ragstone, &folder).await;
}

/// How much slower prompts are predicted to be after this one, whose first pass is as if it took a second.
async fn taught(ragstone: &Ragstone, env: &Env, asked: Question) -> f64 {
    let scale = || ragstone.store().costs().profile().prefill.scale;
    let before = scale();
    env.set_fail_point("engine.device", FailMode::Hang, 1);
    let release = async {
        while env.fail_point_hits("engine.device") == 0 {
            tokio::task::yield_now().await;
        }
        env.advance(Duration::from_secs(1));
        env.set_fail_point("engine.device", FailMode::Off, 1);
    };
    futures::future::join(answer(ragstone, asked), release).await;
    scale() / before
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_tokens_are_scored_teaches_nothing_of_what_others_take() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "qwen_2_5", PromptDate::Pinned, &env).await;
    let plain = question(Input::Tokens(tokens(100)), Reuse::Off, 1);
    let mut scored = plain.clone();
    scored.sampling.prompt_logprobs = Some(0);
    assert!(taught(&ragstone, &env, plain).await > 1.0);
    assert_eq!(taught(&ragstone, &env, scored).await, 1.0);
    close(ragstone, &folder).await;
}

/// K and V of the texts that a prompt begins with, by text and layer.
fn entries(ragstone: &Ragstone, prompt: &[u32]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let (store, mut parent, mut all) = (ragstone.store(), None, Vec::new());
    for text in prompt.chunks_exact(TEXT_TOKENS) {
        let key = KvKey::derive(store.fingerprint(), "", parent.as_ref(), text);
        let reader = store.open_entry(&key, text).unwrap_or_else(|| panic!("text {} is there", all.len()));
        let layers = (0..reader.header().layers).map(|layer| reader.layer(layer).unwrap());
        all.push(layers.map(|layer| (layer.k.to_vec(), layer.v.to_vec())).collect());
        parent = Some(key);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_leaves_has_the_bits_of_a_prompt_of_the_same_tokens() {
    let env = Env::seeded(7, EVENING_UNIX_MS);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let answered = open(&folders[0], "qwen_2_5", PromptDate::Pinned, &env).await;
    let prompt = tokens(100);
    let (_, said) = complete(&answered, &prompt, Reuse::Auto, 200).await;
    let whole = [prompt, said].concat();
    let prefilled = open(&folders[1], "qwen_2_5", PromptDate::Pinned, &env).await;
    complete(&prefilled, &whole, Reuse::Auto, 1).await;
    // The answer's last token was never computed.
    let whole = &whole[..whole.len() - 1];
    assert_eq!(whole.len() / TEXT_TOKENS, 4);
    assert!(entries(&answered, whole) == entries(&prefilled, whole));
    // The answer came by drafts, and without them it is the same.
    let ask = |drafts| Question { drafts, ..question(Input::Tokens(whole[..100].to_vec()), Reuse::Off, 200) };
    let (with, without) = (answer(&answered, ask(None)).await, answer(&answered, ask(Some(0))).await);
    let ids = |answer: &Answer| answer.tokens.iter().map(|token| (token.id, token.logprob)).collect::<Vec<_>>();
    assert_eq!(ids(&with), ids(&without));
    let drafts = with.finish.report.drafts.expect("some were verified");
    assert!(drafts.accepted <= drafts.drafted && without.finish.report.drafts.is_none(), "{drafts:?}");
    close(answered, &folders[0]).await;
    close(prefilled, &folders[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_where_the_device_was_lost() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    // A token a pass, so that it is known which pass is which; the other tests have drafts.
    let settings = Settings { num_speculative_tokens: 0, kv_admission: AdmissionRule::Always, ..Settings::default() };
    let ragstone = open_with(&folder, "qwen_2_5", settings, &env).await;
    let prompt = tokens(100);
    let (_, expected) = complete(&ragstone, &prompt, Reuse::Auto, 150).await;
    let lost = Arc::new(AtomicUsize::new(0));
    let (counted, to_heal) = (lost.clone(), env.clone());
    ragstone.engine().when_lost(Arc::new(move |_| {
        to_heal.set_fail_point("engine.device", FailMode::Off, 1);
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    // In the first pass of its prompt, in the third of its answer, and behind an entry of its own.
    for pass in [1, 4, 120] {
        env.set_fail_point("engine.device", FailMode::Error(ErrorKind::Unavailable), pass);
        assert_eq!(complete(&ragstone, &prompt, Reuse::Auto, 150).await.1, expected, "pass {pass}");
    }
    assert_eq!(lost.load(Ordering::Relaxed), 3);
    // Twice in one answer: nothing of what was generated before is forgotten.
    let (to_break, broken) = (env.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = broken.clone();
    ragstone.engine().when_lost(Arc::new(move |_| {
        let mode = match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => FailMode::Error(ErrorKind::Unavailable),
            _ => FailMode::Off,
        };
        to_break.set_fail_point("engine.device", mode, 30);
    }));
    env.set_fail_point("engine.device", FailMode::Error(ErrorKind::Unavailable), 20);
    assert_eq!(complete(&ragstone, &prompt, Reuse::Auto, 150).await.1, expected, "three times");
    assert_eq!(broken.load(Ordering::Relaxed), 3);
    // One that is lost again and again is an error, not a hang.
    ragstone.engine().when_lost(Arc::new(|_| {}));
    env.set_fail_point("engine.device", FailMode::Error(ErrorKind::Unavailable), 4);
    let mut stream = ragstone.answer(question(Input::Tokens(prompt), Reuse::Auto, 150)).await.unwrap();
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event);
    }
    assert_eq!(last.expect("an event").unwrap_err().kind(), ErrorKind::Internal);
    env.set_fail_point("engine.device", FailMode::Off, 1);
    close(ragstone, &folder).await;
}

/// Where swapping fails, and where computing is thought to cost less, whoever is preempted goes on from stored KV.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_preempted_may_be_computed_again() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let calm = Env::seeded(7, EVENING_UNIX_MS);
    let alone = open(&folders[0], "qwen_2_5", PromptDate::Pinned, &calm).await;
    let block_bytes = 16 * alone.status().model.kv_bytes_per_token as u64;
    // Each needs 16 of the 40 blocks in the end, and 7 to begin.
    let prompts: Vec<Vec<u32>> = (0..4).map(|more| tokens(100 + more)).collect();
    let mut expected = Vec::new();
    for prompt in &prompts {
        expected.push(complete(&alone, prompt, Reuse::Auto, 150).await.1);
    }
    for (point, folder) in ["engine.swap_out", "engine.preempt"].into_iter().zip(&folders[1..]) {
        let env = Env::seeded(7, EVENING_UNIX_MS);
        let settings = Settings { device_bytes: Some(40 * block_bytes), host_bytes: 64 << 20, ..Settings::default() };
        let crowded = open_with(folder, "qwen_2_5", settings, &env).await;
        env.set_fail_point(point, FailMode::Error(ErrorKind::Full), 1);
        let asked = prompts.iter().map(|prompt| async { complete(&crowded, prompt, Reuse::Auto, 150).await.1 });
        let answers = side_by_side(&crowded, &env, asked).await;
        assert!(crowded.status().device.preemptions > 1, "{point}: {}", crowded.status().device.preemptions);
        assert_eq!(answers, expected, "{point}");
        env.set_fail_point(point, FailMode::Off, 1);
        close(crowded, folder).await;
    }
    close(alone, &folders[0]).await;
}
