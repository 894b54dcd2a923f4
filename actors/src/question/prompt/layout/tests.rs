use std::path::{Path, PathBuf};
use std::sync::Arc;

use ragstone_storage::segment::{Segment, SegmentKind};

use super::*;
use crate::question::budget::Budget;
use crate::question::prompt::{Asked, Piece, PromptDate, PromptFormat, assemble_chat};

/// As published models write conversations.
const MODELS: [&str; 7] =
    ["llama_3_1", "llama_3_2", "qwen_2_5", "qwen_3", "mistral_v0_1", "mistral_v0_3", "mistral_v7"];
/// Two days, neither of them the pinned one.
const DAYS: [&str; 2] = ["2026-11-22", "2026-11-23T00:00:01"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/fixtures")
}

fn template(model: &str) -> ChatTemplate {
    ChatTemplate::from_folder(&fixtures().join("chat").join(model)).unwrap().unwrap()
}

/// Its control tokens are those of Qwen.
fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&fixtures().join("tokenizers/byte_level")).unwrap()
}

fn says(role: &str, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

/// A conversation of one, two and three turns.
fn turns(system: Option<&str>) -> [Vec<ChatMessage>; 3] {
    let all = [
        says("user", "Who keeps the lamp?"),
        says("assistant", "<think>\nThe first passage.\n</think>\n\nOrrin."),
        says("user", " Since 1923?\n"),
        says("assistant", "Yes."),
        says("user", "And before?"),
    ];
    [1, 3, 5].map(|count| system.map(|text| says("system", text)).into_iter().chain(all[..count].to_vec()).collect())
}

struct Writer {
    tokenizer: Tokenizer,
    format: PromptFormat,
}

impl Writer {
    fn new() -> Self {
        Self { tokenizer: tokenizer(), format: PromptFormat::default() }
    }

    fn dated(date: PromptDate) -> Self {
        Self { format: PromptFormat { date, ..PromptFormat::default() }, ..Self::new() }
    }

    fn passages(&self) -> Vec<String> {
        [("Log", "Orrin kept it."), ("Harbour", "417 ships <|im_end|>")]
            .map(|(title, text)| self.format.render_passage(title, text))
            .to_vec()
    }

    fn segments(&self, model: &str, messages: &[ChatMessage], with_passages: bool, day: &str) -> Vec<Segment> {
        let passages: Vec<Arc<[u32]>> =
            self.passages().iter().map(|text| self.tokenizer.encode_text(text).unwrap().into()).collect();
        let passages = with_passages.then_some(&passages[..]);
        let layout = ChatLayout::new(template(model));
        let layout = Some((&layout, day.parse().unwrap()));
        assemble_chat(
            messages,
            &[],
            passages,
            asked(&self.format, Task::Answer),
            layout,
            &self.tokenizer,
            &mut Budget::new(100_000),
        )
        .unwrap()
    }

    fn text(&self, segments: &[Segment]) -> String {
        let tokens = segments.iter().flat_map(|segment| segment.tokens.iter());
        let bytes = tokens.flat_map(|token| self.tokenizer.token_bytes(*token)).collect();
        String::from_utf8(bytes).unwrap()
    }

    /// What the template makes of a conversation whose first user message begins with the passages, and `with` them with
    /// the system prompt where the template has no lasting place for one.
    fn expected(&self, model: &str, messages: &[ChatMessage], told: &str, stated: &str) -> String {
        let mut messages = messages.to_vec();
        if messages[0].role != "system" {
            messages.insert(0, says("system", self.format.system.trim_end()));
        }
        for message in messages.iter_mut().filter(|message| message.role == "user") {
            message.content = self.format.question.replace("{question}", &message.content);
        }
        let first = messages.iter_mut().find(|message| message.role == "user").unwrap();
        first.content = format!("{}{stated}{}", self.passages().concat(), first.content);
        if ["mistral_v0_1", "mistral_v0_3"].contains(&model) {
            let system = messages.remove(0).content;
            messages[0].content = format!("{system}\n\n{}", messages[0].content);
        }
        template(model).render(&messages, true, told.parse().unwrap()).unwrap()
    }
}

fn kinds(segments: &[Segment]) -> Vec<SegmentKind> {
    segments.iter().map(|segment| segment.kind).collect()
}

#[test]
fn over_passages_every_turn_of_every_day_begins_with_the_same_tokens() {
    let writer = Writer::new();
    for model in MODELS {
        for system in [None, Some("Be brief."), Some("Be brief <|im_end|>.")] {
            let first = writer.segments(model, &turns(system)[0], true, DAYS[0]);
            let passages: Vec<u32> = first[1..3].iter().flat_map(|segment| segment.tokens.to_vec()).collect();
            for (messages, day) in turns(system).iter().flat_map(|messages| DAYS.map(|day| (messages, day))) {
                let segments = writer.segments(model, messages, true, day);
                let wanted = [SegmentKind::SystemPrompt, SegmentKind::Passage, SegmentKind::Passage];
                assert_eq!(kinds(&segments)[..3], wanted, "{model}");
                assert_eq!(segments[0].tokens, first[0].tokens, "{model}, {} messages", messages.len());
                let found: Vec<u32> = segments[1..3].iter().flat_map(|segment| segment.tokens.to_vec()).collect();
                assert_eq!(found, passages, "{model}");
            }
            let said = system.unwrap_or("Answer each question from the passages.");
            assert!(writer.text(&first[..1]).contains(said), "{model}: the system prompt is the root");
        }
    }
}

#[test]
fn the_segments_together_are_what_the_template_makes_of_the_conversation() {
    let writer = Writer::new();
    for model in MODELS {
        for messages in [None, Some("Be brief.")].iter().flat_map(|system| turns(*system)) {
            let stated = if model == "llama_3_2" { "Today is 22 November 2026.\n" } else { "" };
            let segments = writer.segments(model, &messages, true, DAYS[0]);
            assert_eq!(writer.text(&segments), writer.expected(model, &messages, "2024-07-26", stated), "{model}");
        }
    }
}

/// A template's own date stays away from the passages; the question says what day it is, where the template would have.
#[test]
fn the_date_stands_behind_the_passages() {
    let writer = Writer::new();
    let question = |model: &str, day: &str| writer.text(&writer.segments(model, &turns(None)[1], true, day)[3..]);
    for model in MODELS {
        let (one, other) = DAYS.map(|day| question(model, day)).into();
        if model == "llama_3_2" {
            assert!(one.starts_with("Today is 22 November 2026.\nQuestion:"), "{one}");
            assert_eq!(other, one.replace("22 November", "23 November"));
        } else {
            assert_eq!((one.contains("Today is"), &one), (false, &other), "{model}");
        }
    }
}

#[test]
fn the_date_of_the_settings_is_what_the_template_prints() {
    let root = |date: PromptDate, day: &str| {
        let writer = Writer::dated(date);
        let segments = writer.segments("llama_3_2", &turns(None)[0], true, day);
        (writer.text(&segments[..1]), writer.text(&segments[3..]).contains("Today is"))
    };
    let says = |(text, is_stated): (String, bool), date: &str, stated: bool| {
        assert!(text.contains(&format!("Today Date: {date}\n")), "{text}");
        assert_eq!(is_stated, stated, "{text}");
    };
    let on = PromptDate::On("2026-11-22".parse().unwrap());
    says(root(PromptDate::Pinned, DAYS[0]), "26 Jul 2024", true);
    says(root(on, DAYS[0]), "22 Nov 2026", false);
    says(root(on, DAYS[1]), "22 Nov 2026", true);
    says(root(PromptDate::Today, DAYS[1]), "23 Nov 2026", false);
}

/// Mistral Small's own system prompt has the date, and stands only where the caller has none.
#[test]
fn without_passages_the_system_prompt_is_the_same_every_day() {
    let writer = Writer::new();
    for model in MODELS {
        let [today, tomorrow] = DAYS.map(|day| writer.segments(model, &turns(None)[2], false, day));
        assert_eq!(today[0].tokens, tomorrow[0].tokens, "{model}");
        let is_stated = writer.text(&today).contains("Today is 22 November 2026.\nWho keeps the lamp?");
        assert_eq!(is_stated, ["llama_3_2", "mistral_v7"].contains(&model), "{model}");
    }
}

/// Every turn, with the answers that were given: what a longer conversation begins with is what the shorter one had computed.
#[test]
fn a_longer_conversation_begins_with_the_segments_of_the_shorter() {
    let (mut writer, long) = (Writer::new(), "The keeper counted the ships. ".repeat(20));
    for (date, with_passages) in [(PromptDate::Today, false), (PromptDate::Today, true), (PromptDate::Pinned, false)] {
        writer.format.date = date;
        for model in MODELS {
            let mut messages = vec![says("user", &format!("  {long}\n"))];
            let mut before = writer.segments(model, &messages, with_passages, DAYS[0]);
            assert_eq!(before[0].kind, SegmentKind::SystemPrompt, "{model}");
            assert_eq!(before.last().unwrap().kind, SegmentKind::Question, "{model}");
            for turn in 1..4 {
                messages.extend([says("assistant", "It did."), says("user", &format!("{turn}: {long}"))]);
                let segments = writer.segments(model, &messages, with_passages, DAYS[0]);
                let (kept, _) = before.split_at(before.len() - 1);
                assert!(kept.iter().zip(&segments).all(|(old, new)| old == new), "{model}, turn {turn}");
                assert!(segments.len() > before.len() + 2, "{model}, turn {turn}");
                before = segments;
            }
        }
    }
}

/// A cut must not change the tokens that the model is used to.
#[test]
fn a_conversation_has_the_tokens_of_its_whole_text() {
    let (writer, long) = (Writer::new(), "\n\nThe keeper counted the ships. ".repeat(20));
    let messages = [
        says("user", "Who?"),
        says("assistant", &long),
        says("user", &long),
        says("assistant", "No."),
        says("user", &long),
    ];
    for model in ["qwen_2_5", "qwen_3"] {
        let segments = writer.segments(model, &messages, false, DAYS[0]);
        let whole = template(model).render(&messages, true, DAYS[0].parse().unwrap()).unwrap();
        let standalone = whole.split_once("Who?").unwrap().1;
        let tokens: Vec<u32> = segments[1..].iter().flat_map(|segment| segment.tokens.to_vec()).collect();
        assert_eq!(tokens, writer.tokenizer.encode(&format!("Who?{standalone}"), false).unwrap(), "{model}");
        assert_eq!(writer.text(&segments), whole, "{model}");
    }
}

/// In whatever turn, and folded system prompts among them.
#[test]
fn control_tokens_in_words_are_only_text_wherever_they_stand() {
    let writer = Writer::new();
    let end = writer.tokenizer.token_id("<|im_end|>").unwrap();
    let counted = |messages: &[ChatMessage], model: &str, with_passages: bool| {
        let segments = writer.segments(model, messages, with_passages, DAYS[0]);
        segments.iter().flat_map(|segment| segment.tokens.iter()).filter(|token| **token == end).count()
    };
    let [_, clean, _] = turns(Some("Be brief."));
    let dirty: Vec<ChatMessage> =
        clean.iter().map(|message| says(&message.role, &format!("{}<|im_end|>x", message.content))).collect();
    for (model, with_passages) in MODELS.iter().flat_map(|model| [(model, true), (model, false)]) {
        if *model == "mistral_v0_1" && !with_passages {
            // It refuses a system prompt that is not folded.
            continue;
        }
        assert_eq!(counted(&dirty, model, with_passages), counted(&clean, model, with_passages), "{model}");
    }
}

#[test]
fn only_a_system_prompt_that_would_wander_or_be_lost_is_folded() {
    let folds = |model: &str| ChatLayout::new(template(model)).folds_system;
    assert_eq!(MODELS.map(folds), [false, false, false, false, true, true, false]);
    let of = |source: &str| ChatLayout::new(ChatTemplate::new(source.into(), Default::default()).unwrap()).folds_system;
    assert!(
        of("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"),
        "it drops the system prompt"
    );
    // Nothing helps here: each conversation begins otherwise. The prompt is right, and reuses little.
    assert!(!of("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"));
}

/// What a client adds in the middle of a conversation is not what it began with.
#[test]
fn a_later_system_message_leaves_the_root_alone() {
    let writer = Writer::new();
    let [short, mut long, _] = turns(None);
    long.insert(2, says("system", "Now in French."));
    for model in ["llama_3_2", "qwen_2_5", "qwen_3", "mistral_v7"] {
        let root = |messages: &[ChatMessage]| writer.segments(model, messages, true, DAYS[0])[0].tokens.clone();
        assert_eq!(root(&short), root(&long), "{model}");
    }
}

#[test]
fn marks_in_messages_and_templates_without_users_are_refused() {
    let writer = Writer::new();
    let frame = |source: &str, content: &str| {
        let layout = ChatLayout::new(ChatTemplate::new(source.into(), Default::default()).unwrap());
        let today = DAYS[0].parse().unwrap();
        let messages = [says("user", content), says("assistant", "b"), says("user", "c")];
        layout
            .frame(&messages, &[], true, asked(&writer.format, Task::Answer), today, &writer.tokenizer)
            .unwrap_err()
            .kind()
    };
    assert_eq!(frame("{{ messages[-1].content }}", "a\u{2}b"), ErrorKind::InvalidInput);
    for source in ["nobody", "{{ messages[0].content }}{{ messages[1].content }}", "{{ messages[-1].content }}"] {
        assert_eq!(frame(source, "a"), ErrorKind::Incompatible, "{source}");
    }
}

#[test]
fn control_tokens_in_a_users_words_are_only_text() {
    let words = BTreeMap::from([(1, "Who?<|im_end|>".to_owned()), (7, "dropped by the template".to_owned())]);
    let cut = pieces("<|im_start|>\u{2}place\u{2}user\n\u{2}1\u{2}<|im_end|>\n", &words);
    let (trusted, words) = (|text: &str| Piece::Trusted(text.into()), |text: &str| Piece::Words(text.into()));
    assert_eq!(cut, [trusted("<|im_start|>user\n"), words("Who?<|im_end|>"), trusted("<|im_end|>\n")]);
}

/// As transformers' `continue_final_message`: nothing of what ends a turn, and spaces at its end only where the template keeps them.
#[test]
fn an_answer_that_was_begun_goes_on_where_it_ends() {
    let writer = Writer::new();
    let rendered = |model: &str, begun: &str| {
        let messages =
            [says("user", "Who?"), says("assistant", "Orrin."), says("user", "Since?"), says("assistant", begun)];
        writer.text(&writer.segments(model, &messages, false, DAYS[0]))
    };
    for model in MODELS {
        let text = rendered(model, "Since 19");
        assert!(text.ends_with("Since 19"), "{model}: {text}");
        // Control tokens' texts in it stay its words.
        let text = rendered(model, "a <|im_end|> b");
        assert!(text.ends_with("a <|im_end|> b"), "{model}: {text}");
    }
    assert!(rendered("qwen_2_5", "Since ").ends_with("<|im_start|>assistant\nSince "));
    assert!(rendered("llama_3_1", "Since ").ends_with("<|end_header_id|>\n\nSince"));
    assert!(rendered("qwen_2_5", "").ends_with("<|im_start|>assistant\n"));
}

fn asked(format: &PromptFormat, task: Task) -> Asked<'_> {
    Asked { format, task, thinks: None }
}

/// A verdict comes at once, behind the same root and passages as an answer.
#[test]
fn a_model_that_thinks_is_kept_from_it_where_it_judges() {
    let (writer, chat) = (Writer::new(), ChatLayout::new(template("qwen_3")));
    let segments = |task| {
        let passages = [Arc::from([5u32, 6])];
        let messages = [says("user", "Who?")];
        let mut budget = Budget::new(100_000);
        let layout = Some((&chat, DAYS[0].parse().unwrap()));
        assemble_chat(
            &messages,
            &[],
            Some(&passages),
            asked(&writer.format, task),
            layout,
            &writer.tokenizer,
            &mut budget,
        )
        .unwrap()
    };
    let (answer, judge) = (segments(Task::Answer), segments(Task::Judge));
    assert_eq!(answer[..2], judge[..2]);
    let text = |segments: &[Segment]| writer.text(&segments[2..]);
    assert!(text(&judge).ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"), "{}", text(&judge));
    let kept_from_it = |thinks| {
        let asked = Asked { thinks, ..asked(&writer.format, Task::Answer) };
        let frame = chat.frame(&[says("user", "Who?")], &[], false, asked, DAYS[0].parse().unwrap(), &writer.tokenizer);
        let tokens = Piece::encode(&frame.unwrap().question, &writer.tokenizer, &mut Budget::new(100_000)).unwrap();
        writer.text(&Segment::of_text(&tokens)).contains("<think>\n\n</think>")
    };
    assert_eq!([Some(false), None, Some(true)].map(kept_from_it), [true, false, false]);
    assert!(text(&judge).contains("Say only yes or no.") && !text(&answer).contains("<think>"), "{}", text(&answer));
}
