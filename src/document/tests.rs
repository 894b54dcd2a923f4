use std::fs;

use super::*;

/// Writes a file into a fresh folder and reads it.
fn read_as(name: &str, content: &[u8]) -> Result<Vec<Document>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    read(&path)
}

fn one(name: &str, content: &str) -> (String, String) {
    let documents = read_as(name, content.as_bytes()).expect("readable");
    assert_eq!(documents.len(), 1);
    (documents[0].title.clone(), documents[0].text.clone())
}

fn why(name: &str, content: &[u8]) -> String {
    let error = read_as(name, content).expect_err("unreadable").to_string();
    assert!(error.contains(name), "names the file: {error}");
    error
}

#[test]
fn text_takes_its_name_as_title_and_loses_its_byte_order_mark() {
    assert_eq!(one("herons.txt", "\u{feff}Seven herons."), ("herons".into(), "Seven herons.".into()));
}

#[test]
fn markdown_loses_its_marks_and_nothing_else() {
    let (title, text) = one("a.md", "# The *Works*\n\nIt has **26** [people](x).\n\n- one\n- two\n\n## Later\n\n`code`");
    assert_eq!(title, "The Works");
    for part in ["It has 26 people.", "one\n", "two\n", "Later", "code"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(!text.contains(['#', '*', '`']), "{text:?}");
}

#[test]
fn html_is_what_a_reader_sees() {
    let page = "<html><head><TITLE>A &amp; B</TITLE><script>no()</script></head><body><p>One &lt; two.</p><p>Three.</p>";
    let (title, text) = one("a.html", page);
    assert_eq!(title, "A & B");
    assert!(text.contains("One < two.") && text.contains("Three.") && !text.contains("no()"), "{text:?}");
}

#[test]
fn json_lines_keep_ids_and_other_fields() {
    let documents =
        read_as("a.jsonl", b"{\"id\":\"x\",\"title\":\"T\",\"text\":\"one\",\"year\":1906}\n\n{\"text\":\"two\"}\n").expect("readable");
    assert_eq!(documents[0].id.as_deref(), Some("x"));
    assert_eq!(documents[0].metadata["year"], 1906);
    assert!(documents[1].source.as_deref().is_some_and(|source| source.ends_with("a.jsonl#L3")));
}

#[test]
fn an_array_is_one_document_an_element() {
    assert_eq!(read_as("a.json", br#"[{"title":"","text":"one"},{"text":"two"}]"#).expect("readable").len(), 2);
}

#[test]
fn bad_input_names_the_place() {
    assert!(why("a.jsonl", b"{\"text\":\"one\"}\n{\"text\":").contains("line 2"));
    assert!(why("a.jsonl", b"{\"title\":\"x\"}").contains("`text` is missing"));
    assert!(why("a.json", b"{}").contains("array"));
    assert!(why("a.txt", b"ab\xff").contains("byte 2"));
    assert!(why("a.exe", b"").contains("not a format"));
    assert!(why("a.pdf", b"%PDF-1.4 damaged").contains("PDF"));
}

#[test]
fn folders_are_walked_in_order_and_nothing_is_dropped_in_silence() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("b")).expect("created");
    for name in ["b/2.txt", "a.txt", "c.bin", ".hidden.txt"] {
        fs::write(folder.path().join(name), "x").expect("written");
    }
    let missing = folder.path().join("missing");
    let found = find_files(&[folder.path().to_owned(), missing.clone()]);
    let names: Vec<_> = found.files.iter().map(|path| path.strip_prefix(folder.path()).expect("inside")).collect();
    assert_eq!(names, [Path::new("a.txt"), Path::new("b/2.txt")]);
    let unreadable: Vec<_> = found.unreadable.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(unreadable, [folder.path().join("c.bin"), missing]);
}
