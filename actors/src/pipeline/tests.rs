//! Turns and days of a conversation, through the whole pipeline: the embedded model's weights with the chat templates of
//! others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use tempfile::TempDir;

use super::*;
use crate::prompt::PromptDate;
use crate::ragstone::{Folders, Ragstone};

const DAY: Duration = Duration::from_secs(86_400);
/// 2026-11-22, 23:59 UTC.
const EVENING_UNIX_MS: u64 = 1_795_391_940_000;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

async fn open(folder: &TempDir, template: &str, date: PromptDate, env: &Env) -> Ragstone {
    let model = folder.path().join("model");
    std::fs::create_dir_all(&model).unwrap();
    for file in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        std::fs::copy(repository().join("ops/demo-model/checkpoint").join(file), model.join(file)).unwrap();
    }
    let template = repository().join("kernels/tests/fixtures/chat").join(template).join("chat_template.jinja");
    std::fs::copy(template, model.join("chat_template.jinja")).unwrap();
    let folders = Folders {
        data: folder.path().join("data"),
        model,
        model_id: "demo".into(),
        embedder: repository().join("kernels/tests/fixtures/embedding/tiny"),
    };
    let mut settings = Settings { disk_bytes: 64 << 20, host_bytes: 64 << 20, ..Settings::default() };
    settings.prompt.date = date;
    Ragstone::open(settings, &folders, env.clone(), |_| {}).await.unwrap()
}

/// Waits until RocksDB is closed, too. Workers end on threads of their own; a process that ends beside them aborts now and
/// then, which is why the program itself leaves by `_exit`.
async fn close(ragstone: Ragstone, folder: &TempDir) {
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

/// The sources of the prompt's segments, when all that this leaves behind is kept.
async fn ask(ragstone: &Ragstone, messages: &[ChatMessage], with_passages: bool) -> Vec<&'static str> {
    let document = |title: &str, text: &str| InlineDocument { title: title.into(), text: text.into() };
    let documents =
        vec![document("Callux Motors", "Callux Motors makes lamps."), document("Tarn", "Nine boats lay in Tarn.")];
    let question = Question {
        input: Input::Chat {
            messages: messages.to_vec(),
            context: with_passages.then(|| Context { documents, ..Context::default() }),
        },
        sampling: SamplingParams { max_tokens: 2, ..SamplingParams::default() },
        reuse: Reuse::Auto,
        selection: None,
        root: RootCut::Whole,
        tenant: String::new(),
        caller: Caller::default(),
        deadline: Duration::from_secs(60),
    };
    let answer = ragstone.answer(question).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer.finish.report.segments.iter().map(|segment| segment.source).collect()
}

const FIRST: [&str; 4] = ["compute"; 4];
/// System prompt and passages; the question with the turns before it is always computed.
const LATER: [&str; 4] = ["exact", "exact", "exact", "compute"];

#[tokio::test(flavor = "multi_thread")]
async fn a_later_turn_over_the_same_passages_computes_none_of_them_and_so_does_the_next_day() {
    let turns = [user("What does Callux make?"), assistant("Lamps."), user("How many boats?")];
    for template in ["llama_3_2", "qwen_2_5", "qwen_3", "mistral_v0_3", "mistral_v7"] {
        let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
        let ragstone = open(&folder, template, PromptDate::Pinned, &env).await;
        assert_eq!(ask(&ragstone, &turns[..1], true).await, FIRST, "{template}");
        assert_eq!(ask(&ragstone, &turns, true).await, LATER, "{template}");
        env.advance(DAY);
        assert_eq!(ask(&ragstone, &turns[..1], true).await, LATER, "{template}, the next day");
        assert_eq!(ask(&ragstone, &turns, true).await, LATER, "{template}, the next day");
        close(ragstone, &folder).await;
    }
}

/// What the setting costs, and that the test above would see it.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_told_todays_date_finds_nothing_the_next_day() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "llama_3_2", PromptDate::Today, &env).await;
    let messages = [user("What does Callux make?")];
    assert_eq!(ask(&ragstone, &messages, true).await, FIRST);
    assert_eq!(ask(&ragstone, &messages, true).await, LATER);
    env.advance(DAY);
    assert_eq!(ask(&ragstone, &messages, true).await, FIRST);
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_passages_a_longer_conversation_finds_the_turns_of_the_shorter() {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "llama_3_2", PromptDate::Pinned, &env).await;
    let long = "Nine boats lay in the harbour of Tarn. ".repeat(8);
    let mut messages = vec![user(&long)];
    assert_eq!(ask(&ragstone, &messages, false).await, ["compute"; 2]);
    messages.extend([assistant(&long), user(&long)]);
    assert_eq!(ask(&ragstone, &messages, false).await, ["exact", "compute", "compute"]);
    env.advance(DAY);
    messages.extend([assistant(&long), user(&long)]);
    assert_eq!(ask(&ragstone, &messages, false).await, ["exact", "exact", "compute", "compute"]);
    // Turns are no passages: none is computed behind the system prompt alone.
    assert_eq!(ragstone.store().status().host.entries, 3);
    close(ragstone, &folder).await;
}
