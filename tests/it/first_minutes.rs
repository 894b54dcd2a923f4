//! What somebody meets who uses ragstone for the first time: lists that can be read, and errors that say what was meant.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD};
use crate::outside::from_outside;

/// A folder with one collection, `world`, read from files.
fn with_world() -> Folder {
    let folder = Folder::new();
    for (title, text) in WORLD {
        folder.write(&format!("corpus/{title}.md"), format!("# {title}\n\n{text}\n"));
    }
    let corpus = folder.path().join("corpus");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "world"]).succeeded();
    folder
}

#[test]
fn the_demo_models_note_comes_before_its_answer() {
    let folder = with_world();
    let said = folder.path().join("said");
    let file = File::create(&said).unwrap();
    let mut ask =
        folder.ragstone(&["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "8"]);
    // As a terminal has them: both in one place, as they come.
    ask.stdout(file.try_clone().unwrap()).stderr(file);
    assert!(ask.status().unwrap().success());
    let text = std::fs::read_to_string(&said).unwrap();
    let note = text.find("(The embedded demo model answers").unwrap();
    assert!(text[..note].trim().is_empty(), "something was said before it: {text}");
    assert!(text.find("Reuse report").unwrap() > note, "{text}");
    // What programs read has nothing of it.
    let ask = ["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "8"];
    assert!(!folder.run(&ask).succeeded().stdout.contains("demo model"));
    assert!(!folder.run(&[&ask[..], &["--json"]].concat()).succeeded().stderr.contains("demo model"));
}

#[test]
fn a_question_over_a_collection_that_is_not_there_names_those_that_are() {
    let folder = with_world();
    let elsewhere = "--collection";
    for command in [&["ask", "Who?"][..], &["explain", "Who?"], &["documents", "list"]] {
        // The only one there is needs no name.
        folder.run(command).succeeded();
        folder.run(&[command, &[elsewhere, "none"]].concat()).failed_with(&["no collection `none`", ": `world`"]);
    }
    let one = folder.write("one.md", "One lantern.");
    folder.run(&["ingest", one.to_str().unwrap(), elsewhere, "lanterns"]).succeeded();
    for command in [&["ask", "Who?"][..], &["explain", "Who?"], &["documents", "list"], &["documents", "delete", "x"]] {
        folder.run(command).failed_with(&["several collections", "--collection", ": `lanterns`, `world`"]);
    }
    folder.run(&["ingest", one.to_str().unwrap()]).succeeded();
    assert_eq!(folder.json(&["documents", "list", "--json"]).as_array().unwrap().len(), 1, "that of `default`");
    for name in ["lanterns", "default"] {
        folder.run(&["collections", "delete", name, "--yes"]).succeeded();
    }
    folder.run(&["collections", "delete", "world", "--yes"]).succeeded();
    folder.run(&["ask", "Who?"]).failed_with(&["no collection `default`", "ragstone ingest PATH"]);
}

#[test]
fn documents_are_removed_by_id_path_or_source() {
    let folder = with_world();
    let path = folder.path().join("corpus/Calbet Works.md");
    let path = path.to_str().unwrap();
    let listed = folder.json(&["documents", "list", "--collection", "world", "--json"]);
    let titled = |document: &&serde_json::Value| document["title"] == "Calbet Works";
    let id = listed.as_array().unwrap().iter().find(titled).unwrap()["id"].as_str().unwrap().to_owned();
    let count = || folder.json(&["documents", "list", "--collection", "world", "--json"]).as_array().unwrap().len();
    // By its path, and without a name, as there is one collection.
    let would = folder.json(&["documents", "delete", path, "--dry-run", "--json"]);
    assert_eq!((&would["passages_removed"], count()), (&json!(1), WORLD.len()));
    folder.run(&["documents", "delete", path]).succeeded();
    assert_eq!(count(), WORLD.len() - 1);
    folder
        .run(&["documents", "delete", path])
        .failed_with(&["no document", "ragstone documents list --collection world"]);
    // All of one file want a yes.
    let records = folder.write("records.jsonl", "{\"text\": \"A lantern.\"}\n{\"text\": \"A kite.\"}\n");
    let records = records.to_str().unwrap();
    folder.run(&["ingest", records, "--collection", "world"]).succeeded();
    folder.run(&["documents", "delete", records]).failed_with(&["2 documents", "--yes", "--dry-run"]);
    let would =
        folder.json(&["cache", "invalidate", "--collection", "world", "--document", records, "--dry-run", "--json"]);
    assert_eq!((&would["passages_removed"], count()), (&json!(2), WORLD.len() + 1));
    let done = folder.json(&["documents", "delete", records, "--yes", "--json"]);
    assert_eq!((&done["passages_removed"], count()), (&json!(2), WORLD.len() - 1));
    let corpus = folder.path().join("corpus");
    let all = ["documents", "delete", corpus.to_str().unwrap(), "--collection", "world"];
    folder.run(&all).failed_with(&["3 documents", "--yes", "--dry-run"]);
    folder.run(&["documents", "delete", "", "--collection", "world", "--yes"]).failed_with(&["no document is named"]);
    folder.run(&["documents", "delete", "nothing", "--collection", "world"]).failed_with(&["no document `nothing`"]);
    folder.run(&["ingest", path, "--collection", "world"]).succeeded();
    // --yes is taken, as by everything that removes.
    let told = folder.run(&["documents", "delete", &id, "--collection", "world", "--yes"]).succeeded();
    assert!(told.stdout.contains(&format!("{path} is still there: the next ingest")), "{told:?}");
    assert_eq!(folder.json(&["collections", "list", "--json"])[0]["documents"], WORLD.len() - 1);
    // All below a folder, which is gone.
    std::fs::remove_dir_all(&corpus).unwrap();
    folder.run(&[&all[..], &["--dry-run"]].concat()).succeeded();
    assert_eq!(count(), WORLD.len() - 1);
    folder.run(&all).failed_with(&["--yes"]);
    let told = folder.run(&[&all[..], &["--yes"]].concat()).succeeded();
    assert!(!told.stdout.contains("still there"), "{told:?}");
    assert_eq!(count(), 0);
}

#[test]
fn names_that_no_url_or_collection_can_have_are_refused() {
    let folder = with_world();
    let note = folder.write("note.md", "A lantern.");
    let note = note.to_str().unwrap();
    for name in ["a b/c", "../../etc", "a//b", "x/y/z"] {
        folder.run(&["ingest", note, "--collection", name]).failed_with(&["cannot name a collection", "TENANT/NAME"]);
    }
    folder.run(&["ingest", note, "--collection", "acme/notes"]).succeeded();
    folder.run(&["ingest", note, "--collection", ""]).failed_with(&["is empty"]);
    folder.run(&["ingest", note, "--collection", "a\tb/c"]).failed_with(&["control characters"]);
    for command in
        [&["documents", "list", "--collection", ".."][..], &["keys", "revoke", "..", "--yes"], &["pml", "show", ".."]]
    {
        folder.run(command).failed_with(&["`..` can be no name"]);
    }
    folder.run(&["keys", "add", "x", "--tenant", "a b"]).failed_with(&["cannot name a tenant"]);
    let records = folder.write("records.jsonl", "{\"id\": \"..\", \"text\": \"A kite.\"}\n{\"text\": \"A lamp.\"}\n");
    let told = folder.run(&["ingest", records.to_str().unwrap(), "--collection", "lamps"]).succeeded();
    assert!(told.stderr.contains("line 1: a document's id is one that no URL can carry"), "{told:?}");
    assert!(told.stdout.contains("1 document added"), "{told:?}");
}

#[test]
fn evicting_takes_yes_which_is_no_filter() {
    let folder = with_world();
    folder.run(&["cache", "evict"]).failed_with(&["--all", "--collection"]);
    assert_eq!(folder.json(&["cache", "evict", "--all", "--dry-run", "--json"])["dry_run"], true);
    folder.run(&["cache", "evict", "--yes"]).failed_with(&["--all"]);
    folder.run(&["cache", "evict", "--all", "--yes"]).succeeded();
    folder.run(&["cache", "evict", "--collection", "world", "--yes"]).succeeded();
}

#[test]
fn a_model_that_is_not_there_is_refused_before_anything_listens() {
    let folder = Folder::new();
    for arguments in
        [["--model", "/nosuch"], ["--model", "no such thing"], ["--embedder", "/nosuch"], ["--reranker", "/nosuch"]]
    {
        let serve = [&["serve", "--listen", "127.0.0.1:0"], &arguments[..]].concat();
        let ran = folder.run(&serve).failed_with(&[arguments[1]]);
        assert_eq!(ran.stdout, "", "{arguments:?}");
        assert!(!folder.data().exists(), "refused before anything is touched");
    }
    let away = ["serve", "--listen", "127.0.0.1:0", "--offline", "--model", "nobody/nothing-at-all"];
    assert_eq!(folder.run(&away).failed_with(&["nobody/nothing-at-all", "switched off"]).stdout, "");
}

#[test]
fn what_other_programs_call_otherwise_is_answered_with_our_word() {
    let folder = Folder::new();
    for (arguments, tip) in [
        (&["serve", "--port", "8080"][..], "--listen 127.0.0.1:PORT"),
        (&["export", "backup"], "ragstone cache export"),
        (&["import", "notes"], "ragstone ingest PATH"),
    ] {
        let ran = folder.run(arguments);
        assert!(ran.code == Some(2) && ran.stderr.contains("tip: ") && ran.stderr.contains(tip), "{ran:?}");
    }
    assert!(!folder.data().exists());
}

/// The same form for all: heads, and columns below them, also where no terminal is.
#[test]
fn lists_have_heads_and_say_when_they_are_empty() {
    let folder = with_world();
    let said = |arguments: &[&str]| folder.run(arguments).succeeded().stdout;
    assert_eq!(said(&["collections", "list"]), "name   documents  passages\nworld          4         4\n");
    let documents = said(&["documents", "list", "--collection", "world"]);
    let heads: Vec<&str> = documents.lines().next().unwrap().split_whitespace().collect();
    assert_eq!((heads, documents.lines().count()), (vec!["id", "passages", "title", "source"], 5), "{documents}");
    let path = folder.path().join("corpus/Calbet Works.md");
    assert!(documents.contains(path.to_str().unwrap()), "{documents}");
    assert!(said(&["keys", "list"]).contains("ragstone keys add NAME"));
    assert!(said(&["pml", "list"]).contains("ragstone pml add SCHEMA"));
    assert!(said(&["cache", "warm", "--list"]).contains("no warm-up is unfinished"));
    folder.run(&["keys", "add", "alice"]).succeeded();
    assert_eq!(said(&["keys", "list"]), "name   role  tenant  collections\nalice  read\n");
    folder.run(&["collections", "delete", "world", "--yes"]).succeeded();
    assert!(said(&["collections", "list"]).contains("ragstone ingest PATH"));
    // Programs get what they got.
    assert_eq!(folder.json(&["collections", "list", "--json"]), json!([]));
}

/// What `ops/run` asks: the demo model, and the default model.
fn questions(script: &str) -> [[&str; 2]; 2] {
    let of = |name: &str| -> Vec<&str> {
        script.lines().filter_map(|line| line.trim().strip_prefix(&format!("{name}='"))?.strip_suffix('\'')).collect()
    };
    let ([demo, default], [demos, defaults]) = (of("first").try_into().unwrap(), of("second").try_into().unwrap());
    [[demo, demos], [default, defaults]]
}

/// The answer that a page shows below a question of `ops/run`.
fn shown<'a>(page: &'a str, number: usize, question: &str) -> &'a str {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&format!("== question {number}")));
    assert!(lines.next().is_some_and(|line| line.ends_with(question)), "another question {number} is shown");
    lines.next().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// What somebody who begins with `ops/run --model demo` sees is what the corpus' page says.
#[tokio::test]
async fn the_questions_of_ops_run_have_the_answers_that_its_page_shows() {
    let (script, pages) = (read("ops/run"), [read("examples/world/README.md"), read("README.md")]);
    let [of_demo, _] = questions(&script);
    let folder = Folder::new();
    let service = Service::start_unready(folder.serve_command(&[]));
    service.wait_until_ready().await;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/world/corpus");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "world"]).succeeded();
    for (index, question) in of_demo.into_iter().enumerate() {
        let said = folder.run(&["ask", question, "--collection", "world"]).succeeded();
        for page in &pages {
            assert_eq!(said.stdout.lines().next().unwrap(), shown(page, index + 1, question), "{question}: {said:?}");
        }
    }
}

/// What a reader of the README does first is answered right, over real prose. In which words depends on the processor.
#[tokio::test]
async fn the_default_model_answers_the_questions_of_ops_run_right() {
    let script = read("ops/run");
    let [_, of_default] = questions(&script);
    let all = |file: &str| -> Vec<serde_json::Value> { serde_json::from_str(&read(file)).unwrap() };
    let known = ["examples/house/questions.json", "examples/house/choosing.json"].map(all).concat();
    let is_right = |question: &str, text: &str| {
        let entry = known.iter().find(|entry| entry["question"] == question);
        let entry = entry.unwrap_or_else(|| panic!("questions.json does not know {question:?}"));
        entry["answers"].as_array().unwrap().iter().any(|answer| text.contains(answer.as_str().unwrap()))
    };
    let is_known = |question: &&str| known.iter().any(|entry| entry["question"] == **question);
    assert!(of_default.iter().all(is_known), "{of_default:?}");
    let Some(model) = from_outside("MODEL_TEST_FILE", "GGUF file of the default model") else { return };
    let folder = Folder::new();
    let service = Service::start_unready(folder.serve_command(&[
        ("RAGSTONE_MODEL", model.to_str().unwrap()),
        // As it has by itself where nobody names a model.
        ("RAGSTONE_ADAPTER", "reader"),
    ]));
    service.wait_until_ready().await;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/house/papers");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "house"]).succeeded();
    let mut reused = 0;
    for question in of_default {
        let said = folder.json(&["ask", question, "--collection", "house", "--json"]);
        assert!(is_right(question, said["answer"].as_str().unwrap()), "{question}: {said}");
        assert_eq!(said["grounding"]["state"], "supported", "{said}");
        let tokens = &said["report"]["tokens"];
        reused = tokens["exact"].as_u64().unwrap() + tokens["blended"].as_u64().unwrap();
    }
    assert!(reused > 0, "the second question finds KV of the first");
}

/// The numbers stand in the answer, of a stream as of a whole one, and nowhere where something else is told of its text.
#[tokio::test]
async fn an_answer_cites_the_passages_of_its_sentences_where_that_is_asked_for() {
    let folder = Folder::new();
    let service = folder.serve(&["--model", "demo"]).await;
    let documents = json!([
        { "title": "Harbour", "text": "The road was closed in March." },
        { "title": "Calnix Bakery", "text": "Calnix Bakery makes candles. Calnix Bakery employs 34 people." },
    ]);
    let asked = |cite: bool, more: Value| {
        let question = json!([{ "role": "user", "content": "What is made by Calnix Bakery?" }]);
        let mut body =
            json!({ "messages": question, "ragstone": { "documents": documents, "cite": cite, "sampling": "model" } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let chat = "/v1/chat/completions";
    let plain = service.ask(chat, &asked(false, json!({}))).await;
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let said = text(&plain);
    let grounding = &plain["ragstone"]["grounding"];
    let number = grounding["passages"][0].as_u64().unwrap_or_else(|| panic!("{plain}"));
    let cited = service.ask(chat, &asked(true, json!({}))).await;
    assert_eq!(text(&cited), format!("{said} [{number}]"), "{cited}");
    assert_eq!(&cited["ragstone"]["grounding"], grounding);
    assert_eq!(cited["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
    let streamed = service.stream(chat, &asked(true, json!({ "stream": true }))).await;
    let pieces = streamed.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pieces = pieces.filter_map(|piece| Some(piece["choices"][0]["delta"]["content"].as_str()?.to_owned()));
    assert_eq!(pieces.collect::<String>(), text(&cited));
    let told = service.ask(chat, &asked(true, json!({ "logprobs": true }))).await;
    assert_eq!(text(&told), said, "each token is told");
    assert_eq!(service.stop(), 0);
}
