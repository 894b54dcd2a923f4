//! Folders of documents as people have them: files come, change and go, and not all are documents.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::Folder;

fn sources(folder: &Folder) -> Vec<String> {
    let listed = folder.json(&["documents", "list", "--collection", "notes", "--json"]);
    let name = |one: &Value| one["source"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let mut names: Vec<String> = listed.as_array().unwrap().iter().map(name).collect();
    names.sort();
    names
}

#[test]
fn what_is_gone_is_told_and_removed_where_that_is_asked() {
    let folder = Folder::new();
    let notes = folder.path().join("notes");
    for (name, text) in [
        ("roof.md", "We take slate."),
        ("old/garden.md", "The poppies are watered at night."),
        ("lines.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"),
        ("picture.png", "no text"),
        ("picture2.png", "no text"),
        ("engine", "\u{7f}ELF\0\0"),
        (".draft.md", "We take tiles."),
        (".git/readme.md", "We take thatch."),
    ] {
        folder.write(&format!("notes/{name}"), text);
    }
    folder.write("other/cellar.md", "The cellar is dry.");
    let ingest = |more: &[&str]| {
        let paths = ["ingest", notes.to_str().unwrap(), "--collection", "notes"];
        folder.run(&[&paths[..], more].concat()).succeeded().stdout
    };
    let told = ingest(&[]);
    assert!(told.contains("3 files of other kinds were left alone: 2 .png, 1 without an ending"), "{told}");
    assert!(told.contains("2 hidden files or folders were left out"), "{told}");
    assert!(!told.contains("gone"), "{told}");
    let report: Value = serde_json::from_str(&ingest(&["--json"])).unwrap();
    assert_eq!((&report["left_alone"], &report["files_skipped"]), (&json!({ "": 1, ".png": 2 }), &json!(0)));
    assert_eq!(report["hidden"], 2, "{report}");
    let other = folder.path().join("other");
    folder.run(&["ingest", other.to_str().unwrap(), "--collection", "notes"]).succeeded();
    let all = ["cellar.md", "garden.md", "lines.jsonl#L1", "lines.jsonl#L2", "roof.md"];
    assert_eq!(sources(&folder), all);

    // A file, a folder, and what is outside of the folder that is named.
    std::fs::remove_file(notes.join("lines.jsonl")).unwrap();
    std::fs::remove_dir_all(notes.join("old")).unwrap();
    std::fs::remove_file(other.join("cellar.md")).unwrap();
    let told = ingest(&[]);
    assert!(told.contains("3 documents of files that are gone can still be cited; --prune removes them"), "{told}");
    assert_eq!(sources(&folder), all);
    let report: Value = serde_json::from_str(&ingest(&["--prune", "--json"])).unwrap();
    assert_eq!((&report["documents_gone"], &report["documents_pruned"]), (&json!(3), &json!(3)), "{report}");
    assert_eq!(report["passages_removed"], 3, "{report}");
    assert_eq!(sources(&folder), ["cellar.md", "roof.md"]);
    assert!(!ingest(&["--prune"]).contains("gone"));
    // A folder in which nothing is any more.
    let others = folder.run(&["ingest", other.to_str().unwrap(), "--collection", "notes", "--prune"]);
    let other = other.canonicalize().unwrap();
    let kept = format!(
        "nothing is in {0}: its 1 document was kept; `ragstone documents delete {0}` removes it",
        other.display()
    );
    let others = others.failed_with(&["nothing was taken", &kept]);
    assert!(!others.stderr.contains("--prune removes"), "{others:?}");
    assert_eq!(sources(&folder), ["cellar.md", "roof.md"]);
    // A file that was named itself and is of no kind that is read is an error.
    let picture = notes.join("picture.png");
    folder.run(&["ingest", picture.to_str().unwrap(), "--collection", "notes"]).failed_with(&["not a format"]);
}

/// Files as other programs write them, by name; their words, and what stands beside these.
const KINDS: [(&str, &[u8], &str, &str); 11] = [
    (
        "works.docx",
        include_bytes!("../../storage/documents/src/fixtures/works.docx"),
        "which furnace burns charcoal",
        "The old furnace",
    ),
    (
        "herons.pptx",
        include_bytes!("../../storage/documents/src/fixtures/herons.pptx"),
        "seven herons speaker notes",
        "seven herons",
    ),
    (
        "stones.xlsx",
        include_bytes!("../../storage/documents/src/fixtures/stones.xlsx"),
        "granite weight",
        "| Stone | Weight |",
    ),
    ("owls.ods", include_bytes!("../../storage/documents/src/fixtures/owls.ods"), "owl Calbet mice", "| Calbet | 12 |"),
    (
        "orvik.epub",
        include_bytes!("../../storage/documents/src/fixtures/orvik.epub"),
        "lantern burns green mill",
        "The lantern",
    ),
    (
        "otter.eml",
        include_bytes!("../../storage/documents/src/fixtures/otter.eml"),
        "otter of T\u{e4}rn",
        "From: Ada Lind <ada@example.org>",
    ),
    (
        "otters.mbox",
        include_bytes!("../../storage/documents/src/fixtures/otters.mbox"),
        "Monday mussels",
        "| Monday | 40 |",
    ),
    (
        "cranes.pdf",
        include_bytes!("../../storage/documents/src/fixtures/cranes.pdf"),
        "crane of Mill dances",
        "The crane of Mill",
    ),
    (
        "library.txt",
        include_bytes!("../../storage/documents/src/fixtures/library.txt"),
        "\u{56f3}\u{66f8}\u{9928}",
        "\u{65e5}\u{66dc}\u{65e5}",
    ),
    (
        "cafe.csv",
        include_bytes!("../../storage/documents/src/fixtures/cafe.csv"),
        "M\u{fc}hle Lindenstra\u{df}e",
        "| Caf\u{e9} |",
    ),
    (
        "src/mill.rs",
        b"/// The wheel of the mill.\nfn turn_wheel() {\n    water();\n}\n",
        "turn_wheel water",
        "    water();",
    ),
];

#[tokio::test]
async fn a_folder_of_all_kinds_is_found_word_by_word() {
    let folder = Folder::new();
    for (name, bytes, ..) in KINDS {
        folder.write(&format!("all/{name}"), bytes);
    }
    let service = folder.serve(&[]).await;
    let all = folder.path().join("all").to_str().unwrap().to_owned();
    let report = folder.json(&["ingest", &all, "--collection", "all", "--json"]);
    // A mailbox is two.
    assert_eq!((&report["documents_added"], &report["files_skipped"]), (&json!(12), &json!(0)), "{report}");
    let again = folder.json(&["ingest", &all, "--collection", "all", "--json"]);
    assert_eq!((&again["documents_unchanged"], &again["passages_added"]), (&json!(12), &json!(0)), "{again}");
    for (name, _, query, words) in KINDS {
        let found = service.ask("/v1/collections/all/search", &json!({ "query": query, "top_k": 12 })).await;
        let data = found["data"].as_array().unwrap();
        // The same message is in the mailbox, too, and equal passages are found once.
        let places: &[&str] = if name == "otter.eml" { &[name, "otters.mbox"] } else { &[name] };
        let is_there = |source: &str| places.iter().any(|place| source.contains(&format!("/all/{place}")));
        let hit = data.iter().find(|hit| is_there(hit["passage"]["source"].as_str().unwrap()));
        let hit = hit.unwrap_or_else(|| panic!("{name}: {found}"));
        assert!(data.iter().any(|hit| hit["passage"]["text"].as_str().unwrap().contains(words)), "{name}: {found}");
        let expected = match name {
            "works.docx" | "herons.pptx" | "stones.xlsx" | "orvik.epub" | "cranes.pdf" => ("author", "Ada Lind"),
            "otter.eml" | "otters.mbox" => ("from", "Ada Lind <ada@example.org>"),
            "library.txt" => ("encoding", "Shift_JIS"),
            "cafe.csv" => ("encoding", "windows-1252"),
            _ => continue,
        };
        assert_eq!(hit["passage"]["metadata"][expected.0], expected.1, "{hit}");
    }
    let mill = service.ask("/v1/collections/all/search", &json!({ "query": "turn_wheel", "top_k": 12 })).await;
    assert!(mill["data"].as_array().unwrap().iter().any(|hit| hit["passage"]["title"] == "src/mill.rs"), "{mill}");
}

#[tokio::test]
async fn all_kinds_can_be_uploaded_and_long_ones_are_cut_by_their_headings() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "chunk_tokens=48"]).await;
    for (name, bytes, ..) in KINDS {
        let name = name.rsplit('/').next().unwrap();
        let (status, answer) = service.put(&format!("/v1/collections/up/files/{name}"), bytes).await;
        assert_eq!(status, 200, "{name}: {answer}");
    }
    let guide: String = ["Linux", "Windows"]
        .iter()
        .map(|system| {
            let steps: String = (1..8)
                .map(|step| format!("Step {step} on {system} turns the wheel of the mill once more.\n\n"))
                .collect();
            format!("## {system}\n\n{steps}")
        })
        .collect();
    let (status, answer) =
        service.put("/v1/collections/guide/files/guide.md", format!("# Guide\n\n{guide}").as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    let found = service.ask("/v1/collections/guide/search", &json!({ "query": "step wheel", "top_k": 20 })).await;
    let texts: Vec<&str> =
        found["data"].as_array().unwrap().iter().map(|hit| hit["passage"]["text"].as_str().unwrap()).collect();
    assert!(texts.len() > 2, "{texts:?}");
    for text in texts {
        let is_of = |system: &str| {
            text.starts_with(system) && !text.contains(if system == "Linux" { "Windows" } else { "Linux" })
        };
        assert!(is_of("Linux") || is_of("Windows"), "a passage knows its heading, and no other: {text}");
    }
    let (status, answer) = service.put("/v1/collections/up/files/a.docx", b"no archive").await;
    assert!(status == 400 && answer.to_string().contains("not readable as DOCX"), "{status} {answer}");
}

/// While nothing else runs it opens the store itself, and lets go of it in between; a service that starts is gone through.
#[tokio::test]
async fn a_watched_folder_is_followed() {
    let folder = Folder::new();
    let notes = folder.path().join("notes");
    folder.write("notes/roof.md", "We take slate.");
    folder.write("notes/garden.md", "The poppies are watered at night.");
    let mut command =
        folder.ragstone(&["ingest", notes.to_str().unwrap(), "--collection", "notes", "--watch", "--json"]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || {
        let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        ["files", "documents_added", "documents_replaced", "documents_pruned", "files_skipped"]
            .map(|name| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}")))
    };
    assert_eq!(next(), [2, 2, 0, 0, 0]);
    folder.write("notes/roof.md", "We take slate, or copper.");
    assert_eq!(next(), [1, 0, 1, 0, 0], "the other file is not read again");
    let service = folder.serve(&[]).await;
    // Each of them waits in the answer of the next: nobody is told when one has been looked at.
    folder.write("notes/.hidden.md", "Nobody's.");
    folder.write("notes/picture.png", "no text");
    folder.write("notes/broken.pdf", "no PDF");
    assert_eq!(next(), [1, 0, 0, 0, 1]);
    std::fs::rename(notes.join("garden.md"), notes.join("flowers.md")).unwrap();
    // Both at once, or first the one and then the other: it is looked at in between.
    let (mut added, mut pruned) = (0, 0);
    while (added, pruned) != (1, 1) {
        let [_, more, _, gone, skipped] = next();
        (added, pruned) = (added + more, pruned + gone);
        assert!(added <= 1 && pruned <= 1 && skipped == 0);
    }
    assert_eq!(sources(&folder), ["flowers.md", "roof.md"]);
    std::fs::remove_dir_all(&notes).unwrap();
    assert_eq!(next(), [0, 0, 0, 0, 0], "the folder is gone, as one of a disk that is not mounted");
    assert_eq!(sources(&folder), ["flowers.md", "roof.md"]);
    folder.write("notes/roof.md", "We take copper.");
    assert_eq!(next(), [1, 0, 1, 1, 0]);
    assert_eq!(service.stop(), 0);
    // SAFETY: it is a child of this process, and was not waited for yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(watching.id()).unwrap(), libc::SIGINT) }, 0);
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}

/// What is behind it was never looked at, and nothing went on with it.
#[test]
fn a_document_that_is_refused_ends_no_ingest() {
    let (folder, long) = (Folder::new(), "x".repeat(2000));
    let lines = format!("{}\n{}\n", json!({ "id": long, "text": "one" }), json!({ "text": "two" }));
    folder.write("notes/a.jsonl", &lines);
    folder.write("notes/b.md", "The cellar is dry.");
    let notes = folder.path().join("notes");
    let ran = folder.run(&["ingest", notes.to_str().unwrap(), "--collection", "notes"]);
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("a.jsonl"), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(sources(&folder), ["a.jsonl#L2", "b.md"]);
}
