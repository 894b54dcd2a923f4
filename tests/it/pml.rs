//! `ragstone pml`: the examples through the real program, and what is wrong with a program on the command line.

use std::path::Path;

use serde_json::Value;

use crate::harness::Folder;

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pml").join(name).to_str().unwrap().to_owned()
}

/// A use: what is run, and the same with something else selected.
struct Use {
    name: &'static str,
    first: Vec<String>,
    other: Vec<String>,
}

fn uses() -> Vec<Use> {
    let files = |schema: &str, prompt: &str| vec![example(schema), example(prompt)];
    let given = |program: &str, arguments: &[&str]| {
        let arguments = arguments.iter().flat_map(|argument| ["--arg".to_owned(), (*argument).to_owned()]);
        std::iter::once(example(program)).chain(arguments).collect::<Vec<_>>()
    };
    let trip = |duration: &str| {
        given("trip.jinja", &[&format!("duration={duration}"), "city=lisbon", "question=What should I pack?"])
    };
    let persona = |cheerful: &str| {
        let cheerful = format!("cheerful={cheerful}");
        given("persona.jinja", &["age=student", "interest=science", &cheerful, "question=Which book should it be?"])
    };
    let all = |name, files: Vec<String>| Use { name, first: files.clone(), other: files };
    vec![
        all("code generation", files("code-schema.xml", "code-prompt.xml")),
        all("personalisation", files("persona-schema.xml", "persona-prompt.xml")),
        all("parameters", files("trip-schema.xml", "trip-prompt.xml")),
        Use { name: "a program of parameters", first: trip("3 days"), other: trip("two weeks") },
        Use { name: "a program of personas", first: persona("true"), other: persona("false") },
    ]
}

/// Tokens that were taken from the store, and those that were computed with the prompt.
fn tokens(report: &Value) -> (u64, u64) {
    let count = |kind: &str| report["tokens"][kind].as_u64().unwrap();
    (count("exact") + count("blended"), count("computed"))
}

fn run(folder: &Folder, arguments: &[String]) -> Value {
    let mut command = vec!["pml", "run", "--json", "--max-tokens", "8"];
    command.extend(arguments.iter().map(String::as_str));
    folder.json(&command)
}

#[test]
fn the_examples_run_and_take_their_modules_from_the_store() {
    let folder = Folder::new();
    for Use { name, first, other } in uses() {
        let cold = run(&folder, &first);
        // The process has ended: what comes now was on disk.
        let warm = run(&folder, &first);
        let (reused, computed) = tokens(&warm["report"]);
        assert!(reused > computed && reused > 20, "{name}: {reused} from the store, {computed} computed\n{warm}");
        assert_eq!(warm["answer"], cold["answer"], "{name}");
        let tiers = warm["report"]["loads"].as_array().unwrap();
        assert!(tiers.iter().any(|load| load["tier"] == "disk"), "{name}: {warm}");
        let again = run(&folder, &other);
        assert!(tokens(&again["report"]).0 > 20, "{name}, something else selected: {again}");
        let full = run(&folder, &[&first[..], &["--no-reuse".to_owned()]].concat());
        assert_eq!(tokens(&full["report"]).0, 0, "{name}: {full}");
    }
}

#[test]
fn a_program_is_compiled_and_its_output_is_a_schema_and_a_prompt() {
    let folder = Folder::new();
    let program = example("trip.jinja");
    let given = ["--arg", "duration=3 days", "--arg", "city=tromso", "--arg", "question=Why?"];
    let compiled = folder.run(&[&["pml", "compile", &program][..], &given[..]].concat()).succeeded().stdout;
    let (schema, prompt) = compiled.trim_end().split_once("</schema>\n").unwrap();
    assert!(schema.starts_with("<schema name=\"trip\">"), "{schema}");
    assert!(prompt.starts_with("<prompt schema=\"trip\">") && prompt.contains("<city-else><seen>"), "{prompt}");
    // What it prints is what the other commands take.
    let schema = folder.write("s.xml", format!("{schema}</schema>"));
    let prompt = folder.write("p.xml", prompt);
    let layout = folder.json(&["pml", "layout", schema.to_str().unwrap(), prompt.to_str().unwrap(), "--json"]);
    assert_eq!(layout["schema"], "trip");
    assert!(layout["prompt"]["kept_tokens"].as_u64().unwrap() > 20, "{layout}");
    let json = folder.json(&["pml", "compile", &program, "--json"]);
    assert_eq!((&json["prompt"], &json["arguments"]["frugal"]), (&Value::Null, &Value::from("true or false")));

    let lists = folder.write("lists.json", r#"{"files": [{"name": "a.py", "text": "a = 1"}]}"#);
    let text = "{# program code\nfiles: list\n#}{% for file in files %}{{ file.name }}: {{ file.text }}{% endfor %}";
    let program = folder.write("code.jinja", text);
    let listed = folder.run(&["pml", "compile", program.to_str().unwrap(), "--lists", lists.to_str().unwrap()]);
    let wanted = "<schema name=\"code\"><module name=\"file-1\">a.py: a = 1</module></schema>\n";
    assert_eq!(listed.succeeded().stdout, wanted);
}

#[test]
fn what_is_wrong_with_a_program_names_the_file_and_the_place() {
    let folder = Folder::new();
    let program = folder.write("p.jinja", "{# program p\ncity: one of \"a\", \"b\"\n#}\n{{ city }} {{ town }}");
    let program = program.to_str().unwrap();
    folder.run(&["pml", "compile", program]).failed_with(&["p.jinja", "line 4, column 15", "nothing is called `town`"]);
    let trip = example("trip.jinja");
    folder.run(&["pml", "compile", &trip, "--arg", "city=rome"]).failed_with(&[
        "trip.jinja",
        "`city`",
        "\"lisbon\"",
        "--arg",
    ]);
    folder.run(&["pml", "compile", &trip, "--arg", "city"]).failed_with(&["--arg city", "NAME=VALUE"]);
    folder
        .run(&["pml", "compile", &trip, "--arg", "frugal=true", "--arg", "frugal=true"])
        .failed_with(&["given twice"]);
    folder.run(&["pml", "run", &trip]).failed_with(&["trip.jinja", "`duration`", "is not given"]);
    folder.run(&["pml", "run", &trip, program]).failed_with(&["trip.jinja", "--arg NAME=VALUE"]);
    let schema = example("trip-schema.xml");
    folder.run(&["pml", "run", &schema]).failed_with(&["trip-schema.xml", "the prompt's file"]);
    folder.run(&["pml", "run", &schema, &example("trip-prompt.xml"), "--arg", "a=b"]).failed_with(&["for programs"]);
    folder.run(&["pml", "compile", &schema]).failed_with(&["trip-schema.xml", "line 1, column 1", "{# program NAME"]);
    let lists = folder.write("lists.json", "[1]");
    folder
        .run(&["pml", "compile", &trip, "--lists", lists.to_str().unwrap()])
        .failed_with(&["lists.json", "JSON object"]);
    let include = folder.write("i.jinja", "{# program p #}{% include '../../etc/passwd' %}");
    folder.run(&["pml", "compile", include.to_str().unwrap()]).failed_with(&[
        "i.jinja",
        "line 1, column 16",
        "etc/passwd",
    ]);
}
