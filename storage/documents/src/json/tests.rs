use super::*;

#[test]
fn a_bad_line_has_one_number() {
    let bad = lines("{\"text\": \"fine\"}\n{text: 1}\n{\"text\": ", &RecordFields::default(), &mut |_| Ok(()))
        .unwrap()
        .unwrap();
    assert_eq!(bad, "line 2: key must be a string at column 2; line 3: EOF while parsing a value at column 9");
}

fn read(text: &str) -> Vec<Parsed> {
    let mut found = Vec::new();
    let mut take = |parsed| {
        found.push(parsed);
        Ok(())
    };
    let bad = if has_several(text) {
        several(text, &RecordFields::default(), &mut take)
    } else {
        take(object(text.to_owned())).map(|()| None)
    };
    assert_eq!(bad, Ok(None));
    found
}

fn one(text: &str) -> Parsed {
    let mut found = read(text);
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().unwrap()
}

#[test]
fn records_are_read_as_programs_export_them() {
    let found = read(
        r#"[{"headline":"Weir","content":"It was rebuilt with larch.","id":7,"published":"2023-05-01","tags":["a","b"]},
            {"page_content":"The third volume is missing.","metadata":{"page":3,"source":"log-3"},"type":"Document"},
            {"subject":"Printer","body":"<p>Blank <b>labels</b>.</p><p>See <a href='https://a.example/x'>this</a>.</p>"},
            {"title":{"rendered":"x"},"content":{"rendered":"<h2>Head</h2><p>Post.</p>"}},
            {"name":"Parts","content":{"content_type":"text","parts":["One.",{"text":"Two."}]}},
            {"_id":{"$oid":"64b7f1c2a9d3e4f5a6b7c8d9"},"markdown":"Some *words* [here](https://a.example/y)."}]"#,
    );
    let all: Vec<_> = found.iter().map(|one| (one.title.as_deref(), &*one.text)).collect();
    assert_eq!(
        all,
        [
            (Some("Weir"), "It was rebuilt with larch."),
            (None, "The third volume is missing."),
            (Some("Printer"), "Blank labels.\n\nSee this (https://a.example/x)."),
            (Some("x"), "Head\n\nPost."),
            (Some("Parts"), "One.\n\nTwo."),
            (None, "Some words here (https://a.example/y)."),
        ]
    );
    assert_eq!(found[0].anchor.as_deref(), Some("0"));
    // So short an id is that of records of other files, too.
    assert_eq!((&found[0].id, &found[0].metadata["id"]), (&None, &7.into()));
    assert_eq!((&found[0].metadata["published"], &found[0].metadata["tags"][1]), (&"2023-05-01".into(), &"b".into()));
    assert_eq!((&found[1].metadata["page"], &found[1].metadata["source"]), (&3.into(), &"log-3".into()));
    assert_eq!(found[5].id.as_deref(), Some("64b7f1c2a9d3e4f5a6b7c8d9"));
}

#[test]
fn what_a_record_has_beside_its_text_is_not_lost() {
    let long = "The ribbon was put in upside down, as it was the last time. ".repeat(5);
    let ticket = format!(
        r#"[{{"answer":"{long}","author":{{"name":"Ada"}},"body":"Blank labels.","comments":[{{"by":"Ida","text":"It is the ribbon again, I fear."}}]}}]"#
    );
    let parsed = one(&ticket);
    assert_eq!(
        parsed.text,
        format!("Blank labels.\n\nanswer: {}\n\nby: Ida\n\nIt is the ribbon again, I fear.", long.trim())
    );
    assert_eq!(parsed.metadata["author.name"], "Ada");
}

#[test]
fn records_without_text_are_rows() {
    let found = one(
        r#"[{"hex":"M8","name":"Bolt","price":3},{"hex":"M6","name":"Nut","size":{"mm":4}},{"name":"Pin | x","price":null}]"#,
    );
    assert_eq!(
        found.text,
        "| hex | name | price | size.mm |\n| --- | --- | --- | --- |\n| M8 | Bolt | 3 |  |\n| M6 | Nut |  | 4 |\n|  | Pin \\| x |  |  |"
    );
    assert_eq!((found.anchor, found.title), (None, None));
    // So are lines of a log, whose messages are short.
    let log =
        one("{\"level\":\"warn\",\"message\":\"disk is full\"}\n{\"level\":\"info\",\"message\":\"disk was freed\"}");
    assert_eq!(log.text, "| level | message |\n| --- | --- |\n| warn | disk is full |\n| info | disk was freed |");
    assert_eq!(one(r#"[{"title":"x"}]"#).text, "title: x");
    let wide = format!(r#"[{{"about":"{}","name":"Bolt"}},{{"about":"short","name":"Nut"}}]"#, "word ".repeat(100));
    assert!(one(&wide).text.ends_with("Nut\n\nabout: short"), "{}", one(&wide).text);
    let mixed = read(r#"[{"text":"one"},{"a":1,"b":2}]"#);
    assert_eq!((mixed[1].anchor.as_deref(), &*mixed[1].text), (Some("rows"), "a: 1\nb: 2"));
}

#[test]
fn messages_are_conversations() {
    let said = "user: Which torque?\n\nassistant: Eleven newton metres.";
    let messages = r#"[{"content":"Which torque?","role":"user"},{"content":[{"text":"Eleven newton metres.","type":"text"}],"role":"assistant"}]"#;
    assert_eq!(one(messages).text, said);
    assert_eq!(one(&format!(r#"{{"messages":{messages}}}"#)).text, said);
    let lines = read(&format!("{{\"id\":1,\"messages\":{messages}}}\n{{\"id\":2,\"messages\":{messages}}}"));
    assert_eq!((lines.len(), &*lines[1].text, lines[1].anchor.as_deref()), (2, said, Some("L2")));
    let shared = one(
        r#"[{"conversations":[{"from":"human","value":"Which torque?"},{"from":"gpt","value":"Eleven newton metres."}]}]"#,
    );
    assert_eq!(shared.text, "human: Which torque?\n\ngpt: Eleven newton metres.");
    let tree = one(r#"[{"mapping":{"a":{"message":null},
            "b":{"message":{"author":{"role":"assistant"},"content":{"parts":["Eleven newton metres."]},"create_time":2.5}},
            "c":{"message":{"author":{"role":"user"},"content":{"parts":["Which torque?"]},"create_time":1.5}}},"title":"Flange"}]"#);
    assert_eq!((tree.title.as_deref(), &*tree.text), (Some("Flange"), said));
}

#[test]
fn an_object_that_holds_text_is_read_without_brackets() {
    let wiki = r#"{"export":{"pages":[
        {"revision":{"by":"import","parts":[{"text":"The cistern holds nine thousand litres of water."}]},"title":"Entry 1"},
        {"revision":{"by":"import","parts":[{"text":"It is pumped dry in April of each year."}]},"title":"Entry 2"}],"version":2}}"#;
    let parsed = one(wiki);
    assert_eq!(
        parsed.text,
        "export / version: 2\n\nEntry 1\n\nrevision / by: import\n\nThe cistern holds nine thousand litres of water.\n\n\
         Entry 2\n\nrevision / by: import\n\nIt is pumped dry in April of each year."
    );
    assert_eq!(parsed.elements[0].kind, ElementKind::Heading(2));
    let article = one(r#"{"content":"It was rebuilt with larch instead of oak.","title":"Weir","year":1906}"#);
    assert_eq!(
        (article.title.as_deref(), &*article.text, &article.metadata["year"]),
        (Some("Weir"), "It was rebuilt with larch instead of oak.", &1906.into())
    );
    assert_eq!(article.anchor, None);
    let items = one(r#"{"items":[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":3,"b":"z"}],"total":3}"#);
    assert_eq!(items.text, "total: 3\n\nitems\n\n| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | y |\n| 3 | z |");
    for kept in [
        r#"{"name":"loom","description":"Weaves cloth on a loom.","scripts":{"build":"tsc -p .","test":"jest --ci --runInBand"},"files":["dist","src"],"version":"1.0.0","repository":"https://git.example/loom"}"#,
        "{\n  // comments are no JSON\n  \"a\": 1\n}",
        "7",
        "{}",
    ] {
        let parsed = one(kept);
        assert_eq!((&*parsed.text, parsed.elements[0].kind), (kept, ElementKind::Code));
    }
}

#[test]
fn what_is_no_json_costs_no_other_element() {
    let found = read(r#"[{"text":"one","score":NaN},{"text":"cut \ud83d"},{"text":"two"}]"#);
    let texts: Vec<&str> = found.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(texts, ["one", "cut \u{fffd}", "two"]);
    assert_eq!(read("{\"text\":\"one\",\"score\":NaN}\n{\"text\":\"two\"}").len(), 2);
}

#[test]
fn fields_that_mean_something_else_are_metadata() {
    let found = read(
        r#"[{"text":"Rates rose.","source":{"name":"BBC"},"title":7},{"text":"They fell.","source":3,"metadata":"{\"a\":1}","title":null}]"#,
    );
    assert_eq!((found[0].title.as_deref(), &found[0].source), (Some("7"), &None));
    assert_eq!(found[0].metadata["source"]["name"], "BBC");
    assert_eq!((&found[1].metadata["source"], &found[1].metadata["metadata"]), (&3.into(), &"{\"a\":1}".into()));
    assert_eq!((&found[1].title, found[1].metadata.len()), (&None, 2));
}

#[test]
fn broken_records_say_what_is_wrong() {
    let bad =
        several(r#"[{"text":5},{},7,{"content":"fine"}]"#, &RecordFields::default(), &mut |_| Ok(())).unwrap().unwrap();
    assert_eq!(
        bad,
        "element 0: `text` must be a string, not a number; element 1: `text` is missing, and so is all else; \
         element 2: not an object with a `text`"
    );
}
