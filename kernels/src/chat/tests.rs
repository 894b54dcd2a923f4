use std::path::PathBuf;

use serde_json::json;

use super::*;

#[derive(Deserialize)]
struct Cases {
    today: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<ChatMessage>,
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
        let rendered = template.render(&case.messages, case.add_generation_prompt, today);
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
