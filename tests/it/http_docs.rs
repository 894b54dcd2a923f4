//! The examples of `docs/http.md`, run as they stand: each answer has the documented fields, and no others.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cache::settle;
use crate::harness::Folder;

/// Stands for "and more" in a documented object.
const MORE: &str = "…";

/// A command, and the answer behind it.
struct Example {
    command: String,
    /// JSON, or one JSON an event.
    answer: Option<(bool, String)>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let block: String = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        match kind {
            "sh" => examples.push(Example { command: block, answer: None }),
            "json" | "events" => {
                let example = examples.last_mut().expect("an answer stands behind its command");
                assert!(example.answer.is_none(), "two answers: {block}");
                example.answer = Some((kind == "events", block));
            }
            other => panic!("what is a block of `{other}`?"),
        }
    }
    examples
}

/// Each event by its only key; of several, the last.
fn events(text: &str) -> Value {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| parse(data).as_object().unwrap_or_else(|| panic!("no object: {data}")).clone());
    Value::Object(events.flatten().collect())
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The same fields with the same kinds of values.
fn compare(documented: &Value, answered: &Value, at: &str) {
    match (documented, answered) {
        (Value::Object(documented), Value::Object(answered)) => {
            for (name, value) in documented.iter().filter(|(name, _)| *name != MORE) {
                let found = answered.get(name).unwrap_or_else(|| panic!("{at}.{name} is documented, and not there"));
                compare(value, found, &format!("{at}.{name}"));
            }
            let unknown =
                answered.keys().find(|name| !documented.contains_key(*name) && !documented.contains_key(MORE));
            assert!(unknown.is_none(), "{at}: {unknown:?} is there, and not documented");
        }
        (Value::Array(documented), Value::Array(answered)) => {
            assert_eq!(documented.is_empty(), answered.is_empty(), "{at}: {answered:?}");
            documented.iter().zip(answered).for_each(|(documented, answered)| compare(documented, answered, at));
        }
        (Value::Null, _) | (_, Value::Null) => {}
        _ => assert_eq!(std::mem::discriminant(documented), std::mem::discriminant(answered), "{at}: {answered}"),
    }
}

#[tokio::test]
async fn the_documented_examples_work() {
    let text = include_str!("../../docs/http.md");
    let folder = Folder::new();
    let bucket = format!("object_url=file://{}/bucket", folder.path().display());
    let service = folder.serve(&["--set", "kv_admission=always", "--set", &bucket]).await;
    let examples = examples(&text.replace("/srv/", &format!("{}/", folder.path().display())));
    let setup = &examples[0].command;
    for Example { command, answer } in &examples[1..] {
        let (is_events, documented) = answer.as_ref().unwrap_or_else(|| panic!("no answer behind {command}"));
        // What was computed is in every tier before the next example counts it.
        settle(&service).await;
        let output = run(&format!("{setup}{command}"), &service.address, &folder.data());
        let (documented, answered) = match is_events {
            true => (events(documented), events(&output)),
            false => (parse(documented), parse(&output)),
        };
        compare(&documented, &answered, command);
    }
}

fn run(script: &str, address: &str, data: &Path) -> String {
    let mut command = Command::new("bash");
    let command = command.args(["-euo", "pipefail", "-c", script]).env("RAGSTONE", address).env("DATA", data);
    let output = command.output().expect("bash can be started");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every path of the cache is documented.
#[test]
fn no_path_is_left_out() {
    let (text, source) =
        (include_str!("../../docs/http.md"), include_str!("../../actors/service/src/http/cache/mod.rs"));
    let paths: Vec<&str> = source.split('"').filter(|text| text.starts_with("/v1/cache/")).collect();
    assert!(paths.len() > 10, "{paths:?}");
    for path in paths {
        let heading = path.replace("{job}", "ID");
        let is_there =
            text.lines().any(|line| line.starts_with("## ") && line.split([' ', ',']).any(|word| word == heading));
        assert!(is_there, "{path} is not in docs/http.md");
    }
}
