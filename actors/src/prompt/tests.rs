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
    let short = frame_plain(&[message("user", "Who?")], true, &format).expect("plain");
    let turns = [
        message("user", "Who?"),
        message("assistant", "Mira"),
        message("system", "Be brief."),
        message("user", "Where?"),
    ];
    let long = frame_plain(&turns, true, &format).expect("plain");
    assert_eq!(short.root, long.root);
    assert_eq!(short.question, [Piece::Words("Question: Who?\nAnswer:".into())]);
    let question = "Question: Who?\nAnswer: Mira\nBe brief.\nQuestion: Where?\nAnswer:";
    assert_eq!((long.question, long.turns), (vec![Piece::Words(question.into())], vec![]));
}

#[test]
fn without_a_template_and_passages_turns_stand_apart() {
    let turns = [
        message("system", "Be brief."),
        message("user", "Who?"),
        message("assistant", "Mira"),
        message("user", "Where?"),
    ];
    let words = |text: &str| vec![Piece::Words(text.into())];
    let frame = frame_plain(&turns, false, &PromptFormat::default()).expect("plain");
    assert_eq!(frame.root, words("Be brief.\n"));
    assert_eq!(frame.turns, [words("Question: Who?\nAnswer: Mira\n")]);
    assert_eq!(frame.question, words("Question: Where?\nAnswer:"));
}

#[test]
fn a_conversation_must_end_with_the_user() {
    for messages in [vec![], vec![message("user", "Who?"), message("assistant", "Mira")]] {
        let error = frame_plain(&messages, true, &PromptFormat::default()).expect_err("no question");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
