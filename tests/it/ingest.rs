//! Folders of documents as people have them: files come, change and go, and not all are documents.

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
        ("Makefile", "all:"),
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
    assert!(!told.contains("gone"), "{told}");
    let report: Value = serde_json::from_str(&ingest(&["--json"])).unwrap();
    assert_eq!((&report["left_alone"], &report["files_skipped"]), (&json!({ "": 1, ".png": 2 }), &json!(0)));
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
    // A file that was named itself and is of no kind that is read is an error.
    let picture = notes.join("picture.png");
    folder.run(&["ingest", picture.to_str().unwrap(), "--collection", "notes"]).failed_with(&["not a format"]);
}
