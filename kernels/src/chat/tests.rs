use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::error::ErrorKind;
use crate::tokenizer::is_bracketed;

#[derive(Deserialize)]
struct Cases {
    today: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<ChatMessage>,
    #[serde(default)]
    tools: Vec<serde_json::Value>,
    add_generation_prompt: bool,
    prompt: Option<String>,
    refused: Option<String>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat").join(name)
}

fn check(name: &str) {
    let text = fs::read_to_string(folder(name).join("cases.json")).unwrap();
    let cases: Cases = serde_json::from_str(&text).unwrap();
    let today: Date = cases.today.parse().unwrap();
    let template = ChatTemplate::from_folder(&folder(name)).unwrap().unwrap();
    for case in cases.cases {
        let told = Told { today, enable_thinking: None };
        let rendered = template.render_with_tools(&case.messages, &case.tools, case.add_generation_prompt, told);
        match (rendered, case.prompt, case.refused) {
            (Ok(rendered), Some(prompt), _) => assert_eq!(rendered, prompt, "{name}: {:?}", case.messages),
            (Err(error), None, Some(reason)) => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains(&reason), "{name}: {error} should give {reason}");
            }
            (rendered, prompt, _) => panic!("{name}: {rendered:?} where the reference gives {prompt:?}"),
        }
    }
}

#[test]
fn llama3_style_agrees_with_transformers() {
    check("llama3_style");
}

#[test]
fn chatml_style_agrees_with_transformers() {
    check("chatml_style");
}

#[test]
fn mistral_style_agrees_with_transformers() {
    check("mistral_style");
}

#[test]
fn odds_and_ends_agree_with_transformers() {
    check("odds_and_ends");
}

#[test]
fn published_models_formats_agree_with_transformers() {
    for name in ["llama_3_1", "llama_3_2", "qwen_2_5", "qwen_3", "mistral_v0_1", "mistral_v0_3", "mistral_v7"] {
        check(name);
    }
}

/// Keys of tools and of calls stand in the order in which they came.
#[test]
fn tools_and_calls_agree_with_transformers() {
    check("tools");
}

#[test]
fn the_template_for_tools_agrees_with_transformers() {
    for name in ["tool_use_named", "tool_use_beside"] {
        check(name);
        let template = ChatTemplate::from_folder(&folder(name)).unwrap().unwrap();
        assert_eq!(template.call_form(), Some(CallForm::Hermes), "{name}");
        assert!(!template.source().contains("tool_call") && template.identity().contains("tool_call"), "{name}");
    }
}

/// Tools are told as by a model without it.
#[test]
fn a_template_for_tools_that_is_of_no_use_is_left_out() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}{{ tools }}<tool_call>";
    for tool_use in ["not this one", "{{ tools }}<tool_call>{% for x in %}", endless] {
        let template = ChatTemplate::new("{{ messages[0].content }}".to_owned(), SpecialTokens::default()).unwrap();
        let template = template.with_tool_use(Some(tool_use));
        let (tools, told) = ([json!({ "name": "find" })], Told { today: Date::from_unix_ms(0), enable_thinking: None });
        let rendered = template.render_with_tools(&[ChatMessage::new("user", "Where?")], &tools, true, told);
        assert_eq!((rendered.unwrap().as_str(), template.call_form()), ("Where?", None), "{tool_use}");
        assert_eq!(template.source(), "{{ messages[0].content }}");
    }
}

/// Of tokens that a vocabulary was given as ordinary ones, those that the template writes around turns, and no others.
#[test]
fn marks_are_the_brackets_that_a_template_writes() {
    let marks = |source: &str, texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        assert!(texts.iter().all(|text| is_bracketed(text)), "{texts:?}");
        ChatTemplate::new(source.to_owned(), SpecialTokens::default()).unwrap().marks(texts)
    };
    let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}\
                  {% if tools %}<tool_call><|tool|>{% endif %}{% if add_generation_prompt %}<think>{% endif %}";
    let added = ["<|im_start|>", "<|im_end|>", "<tool_call>", "<|tool|>", "<|fim_prefix|>", "<think>", "<h1>"];
    assert_eq!(marks(chatml, &added), ["<|im_start|>", "<|im_end|>", "<|tool|>"]);
    // Put together by the template, which refuses a system prompt, too.
    let composed = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                    {% for m in messages %}[{{ m.role | upper }}]<{{ m.role }}>{{ m.content }}<think></think>{% endfor %}";
    let added = ["[USER]", "<user>", "[SYSTEM]", "<assistant>", "<think>", "</think>"];
    assert_eq!(marks(composed, &added), ["[USER]", "<user>", "<assistant>"]);
    for text in ["assistant", "Hello", "\n\n", "<>", "[]", "<", "user>", "<user", "[user>"] {
        assert!(!is_bracketed(text), "{text:?}");
    }
}

#[test]
fn only_some_templates_may_tell_the_date() {
    let may = |name: &str| ChatTemplate::from_folder(&folder(name)).unwrap().unwrap().may_tell_date();
    assert!(may("llama_3_2") && may("mistral_v7"));
    assert!(!may("llama_3_1") && !may("qwen_3") && !may("mistral_v0_3"));
}

#[test]
fn a_model_without_a_template_has_none() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::from_folder(folder.path()).unwrap().is_none());
    fs::write(folder.path().join("tokenizer_config.json"), json!({"chat_template": null}).to_string()).unwrap();
    assert!(ChatTemplate::from_folder(folder.path()).unwrap().is_none());
    fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    assert_eq!(ChatTemplate::from_folder(folder.path()).unwrap_err().kind(), ErrorKind::InvalidModel);
}

#[test]
fn a_template_that_is_not_understood_is_refused_when_loaded() {
    let error = ChatTemplate::new("{% for x in %}".to_owned(), SpecialTokens::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedModel);
    assert!(error.to_string().contains("chat template"));
}

#[test]
fn a_template_that_fails_is_the_messages_fault() {
    let template = ChatTemplate::new("{{ messages[0].content.nope() }}".to_owned(), SpecialTokens::default()).unwrap();
    let today = Date::from_unix_ms(0);
    let error = template.render(&[ChatMessage::new("user", "x")], true, today).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn generation_blocks_render_what_they_hold() {
    let source =
        "a{%- generation -%} b {%- endgeneration %} c {% if true %}d{% endif %}{%generation%}e{%endgeneration%}";
    let template = ChatTemplate::new(source.to_owned(), SpecialTokens::default()).unwrap();
    assert_eq!(template.render(&[], false, Date::from_unix_ms(0)).unwrap(), "ab c de");
}

#[test]
fn dates_are_those_of_the_calendar() {
    let format = |text: &str| text.parse::<Date>().unwrap().format("%F %T %j %a");
    assert_eq!(format("1970-01-01"), "1970-01-01 00:00:00 001 Thu");
    assert_eq!(format("2024-02-29T23:59:59"), "2024-02-29 23:59:59 060 Thu");
    assert_eq!(format("2024-12-31"), "2024-12-31 00:00:00 366 Tue");
    assert_eq!(format("2100-03-01"), "2100-03-01 00:00:00 060 Mon");
    assert_eq!(Date::from_unix_ms(1_772_694_489_000), "2026-03-05T07:08:09Z".parse().unwrap());
    assert_eq!(Date::from_unix_ms(0).format("%d %-d %I %p %q 100%"), "01 1 12 AM %q 100%");
    for wrong in ["", "yesterday", "2026-02-29", "2026-13-01", "2026-01-32", "2026-01-01T25:00:00", "2026-01"] {
        assert!(wrong.parse::<Date>().is_err(), "{wrong}");
    }
}

#[test]
fn a_template_that_does_not_end_is_refused_when_it_is_loaded() {
    let endless = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{% macro again() %}{{ again() }}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for a in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    ];
    for source in endless {
        match ChatTemplate::new(source.to_owned(), SpecialTokens::default()) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::UnsupportedModel, "{source}");
                assert!(error.to_string().contains("was stopped"), "{error}");
            }
            // Recursion has a bound of its own, which is an error of the rendering.
            Ok(template) => {
                let said = [ChatMessage::new("user", "Hello")];
                assert!(template.render(&said, true, Date::from_unix_ms(0)).is_err(), "{source}");
            }
        }
    }
}

/// The template is harmless until somebody says the word.
#[test]
fn a_template_that_does_not_end_for_some_messages_is_stopped() {
    let source = "{% if messages[0].content == 'now' %}{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}\
                  {% endfor %}{% endif %}fine";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    let template = ChatTemplate::from_folder(folder.path()).unwrap().unwrap();
    let render = |said: &str| template.render(&[ChatMessage::new("user", said)], true, Date::from_unix_ms(0));
    assert_eq!(render("then").unwrap(), "fine");
    let error = render("now").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("chat_template.jinja"), "{error}");
    assert_eq!(render("then").unwrap(), "fine", "each rendering has its own steps");
}

#[test]
fn a_long_conversation_is_rendered() {
    let template = ChatTemplate::from_folder(&folder("llama3_style")).unwrap().unwrap();
    let messages: Vec<ChatMessage> = (0..10_001)
        .map(|turn| ChatMessage::new(if turn % 2 == 0 { "user" } else { "assistant" }, "x".repeat(100)))
        .collect();
    assert!(template.render(&messages, true, Date::from_unix_ms(0)).unwrap().len() > 1_000_000);
}

#[test]
fn a_template_of_megabytes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("chat_template.jinja"), vec![b'x'; 2 << 20]).unwrap();
    let error = ChatTemplate::from_folder(folder.path()).unwrap_err();
    assert!(error.to_string().contains("chat_template.jinja"), "{error}");
}
