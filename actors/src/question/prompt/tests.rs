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
    ChatMessage::new(role, content)
}

#[test]
fn without_a_template_the_root_does_not_depend_on_the_conversation() {
    let format = PromptFormat::default();
    let short = frame_plain(&[message("user", "Who?")], &format, Task::Answer).expect("plain");
    let turns = [
        message("user", "Who?"),
        message("assistant", "Mira"),
        message("system", "Be brief."),
        message("user", "Where?"),
    ];
    let long = frame_plain(&turns, &format, Task::Answer).expect("plain");
    assert_eq!(short.root, long.root);
    assert_eq!(short.question, [Piece::Words("Question: Who?\nAnswer:".into())]);
    // Turns stand apart, so that the tokens of one do not depend on the next.
    let turns = ["Question: Who?\nAnswer: Mira\nBe brief.\n", "Question: Where?\nAnswer:"];
    assert_eq!(long.question, turns.map(|turn| Piece::Words(turn.into())));
}

#[test]
fn without_a_template_leading_system_messages_are_the_root() {
    let turns = [message("system", "Be brief."), message("user", "Who?")];
    let frame = frame_plain(&turns, &PromptFormat::default(), Task::Answer).expect("plain");
    assert_eq!(frame.root, [Piece::Words("Be brief.\n".into())]);
}

#[test]
fn without_a_template_a_beginning_of_the_answer_is_continued() {
    let begun = |content| [message("user", "Who?"), message("assistant", content)];
    let question =
        |content| frame_plain(&begun(content), &PromptFormat::default(), Task::Answer).expect("plain").question;
    assert_eq!(question("Mira"), [Piece::Words("Question: Who?\nAnswer: Mira".into())]);
    assert_eq!(question(""), [Piece::Words("Question: Who?\nAnswer:".into())]);
}

#[test]
fn a_conversation_must_end_with_the_user_or_a_beginning_of_the_answer() {
    let mut calls = message("assistant", "");
    calls.tool_calls.push(serde_json::json!({ "id": "a" }));
    for messages in [
        vec![],
        vec![message("assistant", "Mira")],
        vec![message("user", "Who?"), calls],
        vec![message("user", "Who?"), message("system", "Be brief.")],
    ] {
        let error = frame_plain(&messages, &PromptFormat::default(), Task::Answer).expect_err("no question");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
