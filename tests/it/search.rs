//! `ragstone search`: passages without an answer.

use crate::harness::Folder;

#[test]
fn passages_are_found_by_meaning_and_by_words_without_a_model_that_answers() {
    let folder = Folder::new();
    let roof = folder.write("notes/roof.md", "# Roof\n\nThe owners chose slate.\n\nMartha pays for it.");
    folder.write("notes/garden.md", "# Garden\n\nRye grows behind the shed.");
    let notes = roof.parent().unwrap().to_str().unwrap();
    folder.run(&["ingest", notes, "--collection", "notes"]).succeeded();

    let found = folder.run(&["search", "Which stone is above the house?"]).succeeded();
    let lines: Vec<&str> = found.stdout.lines().collect();
    assert!(lines[0].starts_with("[1] ") && lines[0].contains("Roof (") && lines[0].contains("roof.md"), "{found:?}");
    assert!(lines[1].contains("slate") && found.stdout.contains("[2] "), "{found:?}");
    let whole = folder.run(&["search", "slate", "--full", "--top-k", "1"]).succeeded().stdout;
    assert!(whole.contains("\n    Martha pays for it.\n") && !whole.contains("[2]"), "{whole}");

    let by = |by: &str| folder.json(&["search", "rye", "--by", by, "--collection", "notes", "--json"]);
    let of_words = by("full-text");
    assert_eq!(of_words["data"].as_array().unwrap().len(), 1, "{of_words}");
    assert_eq!(of_words["data"][0]["passage"]["title"], "Garden");
    assert_eq!(by("vector")["data"].as_array().unwrap().len(), 2);

    let none = folder.run(&["search", "rye", "--filter", "lang=xx"]).succeeded();
    assert_eq!(none.stdout, "nothing in `notes` was found\n");
    folder.run(&["search", "rye", "--collection", "mail"]).failed_with(&["`mail`", "`notes`"]);
    folder.run(&["search", "rye", "--top-k", "0"]).failed_with(&["`top_k`", "1 to 1000"]);
}
