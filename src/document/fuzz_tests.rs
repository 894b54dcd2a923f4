//! Files of any content. PDF is left out: its library is another's, slow, and known to panic, which costs its file only.

use std::fs;

use super::*;
use crate::fuzz::fuzz;

/// The documents of a file, or why it has none.
fn documents(path: &Path, bytes: &[u8]) -> Result<Vec<Document>> {
    fs::write(path, bytes).expect("written");
    read(path)
}

/// Refused with a message that names the file, or read: twice the same, and within what a file of its size can say.
fn try_files_named(name: &str, seeds: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    fuzz(name, &seeds, |bytes| match (documents(&path, bytes), read(&path)) {
        (Ok(found), again) => {
            assert!(again.is_ok_and(|again| again == found), "twice the same");
            // Lists within lists are indented by their depth.
            let bytes_of = |document: &Document| document.title.len() + document.text.len();
            assert!(found.iter().map(bytes_of).sum::<usize>() <= (8 + bytes.len()) * bytes.len() + name.len());
            true
        }
        (Err(error), _) => {
            assert!(error.to_string().contains(name), "{error}");
            false
        }
    });
}

#[test]
fn any_markdown_is_read_or_refused() {
    try_files_named(
        "a.md",
        &["---\nt: x\n---\n\n# The *Works*\n\nIt [has](x) `26`.\n\n- one\n- two\n\n|a|b|\n|-|-|\n|c|d|\n"],
    );
}

#[test]
fn any_html_is_read_or_refused() {
    let page = "<html><head><TITLE>A &amp; B</TITLE><script>no()</script></head><body><p>One &lt; two.</p><ul><li>x</ul>\
                <table><tr><td>Granite</td><td>2.7</td></tr></table><pre>a\n b</pre><!-- c --><a href=x>y</a></body></html>";
    try_files_named("a.html", &[page]);
}

#[test]
fn any_json_is_read_or_refused() {
    let one = r#"{"id":7,"title":"t","text":"a","source":"s","metadata":{"k":[1]},"more":null}"#;
    try_files_named("a.jsonl", &[&format!("{one}\n\n{one}\n")]);
    try_files_named("a.json", &[&format!("[{one},{{\"text\":\"b\"}}]")]);
}
