use super::*;

#[test]
fn fields_are_filled_in_one_pass() {
    let format = PromptFormat::default();
    assert_eq!(format.render_passage("a {text}", "b {title}"), "Passage: a {text} | b {title}\n");
    assert_eq!(fill("{x}{x}", &[("{x}", "{y}"), ("{y}", "no")]), "{y}{y}");
}

#[test]
fn a_format_without_its_field_is_refused_by_name() {
    let format = PromptFormat { question: "Question?".into(), ..PromptFormat::default() };
    let error = format.validate().expect_err("no field");
    assert!(error.to_string().contains("prompt.question"), "{error}");
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage { role: role.into(), content: content.into() }
}

#[test]
fn without_a_template_the_root_does_not_depend_on_the_conversation() {
    let format = PromptFormat::default();
    let short = frame_plain(&[message("user", "Who?")], &format).expect("plain");
    let turns = [message("user", "Who?"), message("assistant", "Mira"), message("user", "Where?")];
    let long = frame_plain(&turns, &format).expect("plain");
    assert_eq!(short.root, long.root);
    assert_eq!(short.question, "Question: Who?\nAnswer:");
    assert_eq!(long.question, "Question: Who?\nAnswer: Mira\nQuestion: Where?\nAnswer:");
}

#[test]
fn a_conversation_must_end_with_the_user() {
    for messages in [vec![], vec![message("user", "Who?"), message("assistant", "Mira")]] {
        let error = frame_plain(&messages, &PromptFormat::default()).expect_err("no question");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
