use super::*;
use CallForm::{Hermes, Llama, Mistral};

fn call(name: &str, arguments: &str) -> Part {
    Part::Call(ToolCall { name: name.into(), arguments: arguments.into() })
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

/// The parts of an answer that comes in these pieces; text that follows text is one.
fn parts(form: CallForm, pieces: &[&str]) -> Vec<Part> {
    let mut parser = CallParser::new(form, vec!["look".into(), "add".into()]);
    let mut parts: Vec<Part> = Vec::new();
    let mut given: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    given.extend(parser.finish());
    for part in given {
        match (parts.last_mut(), part) {
            (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
            (_, part) => parts.push(part),
        }
    }
    parts
}

fn cases() -> Vec<(CallForm, &'static str, Vec<Part>)> {
    let look = || call("look", r#"{"at":"é {x}"}"#);
    vec![
        (Hermes, "No call.\n", vec![text("No call.\n")]),
        (Hermes, "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"é {x}\"}}\n</tool_call>", vec![look()]),
        (
            Hermes,
            " So.\n<tool_call>{\"name\":\"look\",\"arguments\":{\"at\":\"é {x}\"}}</tool_call>\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>\n",
            vec![text(" So."), look(), call("add", "{}")],
        ),
        (Hermes, "a <tool_call>{\"name\": </tool_call> b", vec![text("a <tool_call>{\"name\": </tool_call> b")]),
        (
            Hermes,
            "<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>",
            vec![text("<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>")],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"add\",\"arguments\":[]}</tool_call>",
            vec![text("<tool_call>{\"name\":\"add\",\"arguments\":[]}</tool_call>")],
        ),
        (Hermes, "<tool_call>{\"name\":\"add\",\"arguments\":{}}", vec![call("add", "{}")]),
        (Hermes, "<tool_call>{\"name\":\"add\",", vec![text("<tool_call>{\"name\":\"add\",")]),
        (Hermes, "x < y <tool", vec![text("x < y <tool")]),
        (Hermes, "  ", vec![text("  ")]),
        (Llama, "{\"name\": \"look\", \"parameters\": {\"at\": \"é {x}\"}}", vec![look()]),
        (
            Llama,
            "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\":\"look\",\"parameters\":{\"at\":\"é {x}\"}}",
            vec![call("add", "{}"), look()],
        ),
        (Llama, "{\"name\": \"add\"}", vec![text("{\"name\": \"add\"}")]),
        (Llama, "\n{\"answer\": 7}", vec![text("\n{\"answer\": 7}")]),
        (
            Llama,
            "{\"name\": \"add\", \"parameters\": {}} and more",
            vec![text("{\"name\": \"add\", \"parameters\": {}} and more")],
        ),
        (
            Llama,
            "It is {\"name\": \"add\", \"parameters\": {}}",
            vec![text("It is {\"name\": \"add\", \"parameters\": {}}")],
        ),
        (Llama, "<|py", vec![text("<|py")]),
        (
            Mistral,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"look\", \"arguments\": {\"at\": \"é {x}\"}}]",
            vec![call("add", "{}"), look()],
        ),
        (Mistral, "Well. [TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}]", vec![text("Well."), call("add", "{}")]),
        (Mistral, "[TOOL_CALLS][{\"name\": \"add\"}]", vec![text("[TOOL_CALLS][{\"name\": \"add\"}]")]),
        (Mistral, "[TOOL_CALLS][]", vec![text("[TOOL_CALLS][]")]),
        (Mistral, "see [TOOL_", vec![text("see [TOOL_")]),
        (Mistral, "", vec![]),
    ]
}

#[test]
fn calls_are_read_and_what_is_none_stays_text() {
    for (form, answer, expected) in cases() {
        assert_eq!(parts(form, &[answer]), expected, "{form:?} {answer:?}");
    }
}

/// However an answer is cut, it is the same answer.
#[test]
fn every_cut_gives_the_same_parts() {
    let mut random = fastrand::Rng::with_seed(15);
    for (form, answer, expected) in cases() {
        let places: Vec<usize> = (0..=answer.len()).filter(|at| answer.is_char_boundary(*at)).collect();
        let mut cuts: Vec<Vec<usize>> = places.iter().map(|at| vec![*at]).collect();
        cuts.push(places.clone());
        cuts.extend((0..200).map(|_| places.iter().copied().filter(|_| random.u8(..) < 60).collect()));
        for cut in cuts {
            let ends = cut.iter().copied().chain([answer.len()]);
            let begins = [0].into_iter().chain(cut.iter().copied());
            let pieces: Vec<&str> = begins.zip(ends).map(|(begin, end)| &answer[begin..end]).collect();
            assert_eq!(parts(form, &pieces), expected, "{form:?} {pieces:?}");
        }
    }
}

/// No text of a model breaks the reader, and none is lost but white space beside calls.
#[test]
fn any_text_is_read() {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "{",
        "}",
        "[",
        "]",
        "\"name\":",
        "\"add\"",
        ",",
        "\"arguments\":{}",
        " ",
        "é",
        "<",
        "\n",
        "<|python_tag|>",
        ";",
    ];
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..3000 {
        let pieces: Vec<&str> = (0..random.usize(0..12)).map(|_| words[random.usize(..words.len())]).collect();
        for form in [Hermes, Llama, Mistral] {
            let (split, whole) = (parts(form, &pieces), parts(form, &[&pieces.concat()]));
            assert_eq!(split, whole, "{form:?} {pieces:?}");
            if let [Part::Text(text)] = &split[..] {
                assert_eq!(*text, pieces.concat(), "{form:?}");
            }
        }
    }
}

#[test]
fn a_template_says_its_form() {
    for (template, form) in [
        ("{% if tools %}<tool_call>{% endif %}", Some(Hermes)),
        ("{% if tools %}<tool_call><function=x>{% endif %}", None),
        ("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]", Some(Mistral)),
        ("{{ tools }}[TOOL_CALLS][ARGS]", None),
        ("{{ tools }}'{\"name\": ' '\"parameters\": ' ipython", Some(Llama)),
        ("<tool_call>", None),
        ("{{ tools }}", None),
    ] {
        assert_eq!(CallForm::of(template), form, "{template}");
    }
}

#[test]
fn references_go_along() {
    let schema = json!({ "properties": { "a": { "$ref": "#/$defs/x" } }, "$defs": { "x": { "type": "integer" } } });
    let GrammarSpec::Calls { schema, .. } = Mistral.grammar(&[("look", &schema)], true, |_| None) else { panic!() };
    let text = schema.to_string();
    assert!(text.contains(r##""$ref":"#/items/anyOf/0/properties/arguments/$defs/x""##), "{text}");
}
