//! Pages of the repository: every link leads somewhere, every page that a comment names is there, and so is every test that
//! docs/promises.md names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::packages::{broken, pages};
use crate::tree::{is_test_file, sources};

/// Rows of the table with which docs/results.md begins.
const MOST_FIGURES: usize = 40;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

#[test]
fn every_link_leads_somewhere() {
    let mut all = BTreeMap::new();
    pages(root(), &mut all);
    assert!(all.len() > 150, "only {} pages were found", all.len());
    let links = all.iter().flat_map(|(from, page)| page.links.iter().map(move |link| (from, link)));
    let nowhere: Vec<String> = links.filter_map(|(from, link)| broken(link, from, root(), &all)).collect();
    assert!(nowhere.is_empty(), "{nowhere:#?}");
}

#[test]
fn every_page_that_a_comment_names_is_there() {
    let mut found = 0;
    for (name, text) in sources() {
        for line in text.lines().filter(|line| line.trim_start().starts_with("//")) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"/_.-".contains(c));
            let named = words.map(|word| word.trim_end_matches('.'));
            for page in named.filter(|word| word.starts_with("docs/") && word.ends_with(".md")) {
                assert!(root().join(page).is_file(), "{name} names {page}, which is not there");
                found += 1;
            }
        }
    }
    assert!(found > 10, "only {found} pages were found in comments");
}

#[test]
fn results_begin_with_few_figures() {
    let text = read("docs/results.md");
    let table: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(!table.is_empty() && table.len() <= MOST_FIGURES, "docs/results.md begins with {} rows", table.len());
}

/// Lines of a folder of sources, tests apart, from which on the page names it.
const LARGE_ROOM: usize = 800;

#[test]
fn every_large_room_is_in_the_architecture() {
    let page = read("ARCHITECTURE.md");
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test_file(name)) {
        let Some((package, path)) = name.split_once("src/") else { continue };
        for (end, _) in path.match_indices('/') {
            *rooms.entry(format!("{package}src/{}/", &path[..end])).or_default() += text.lines().count();
        }
    }
    let large: Vec<_> = rooms.iter().filter(|(_, lines)| **lines >= LARGE_ROOM).collect();
    assert!(large.len() > 30, "the rooms were not found: {large:?}");
    let missing: Vec<_> = large.iter().filter(|(room, _)| !page.contains(&format!("`{room}`"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md says of these what they are for: {missing:?}");
}

/// The name of a test, as code: words with an underscore.
fn is_test_name(code: &str) -> bool {
    code.contains('_') && code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// A row names a file, and after it tests of that file; scripts of `ops` stand by themselves.
#[test]
fn every_test_that_a_promise_names_is_there() {
    let (mut tests, text) = (0, read("docs/promises.md"));
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let mut source = String::new();
        for code in line.split('`').skip(1).step_by(2) {
            if code.contains('/') && code.ends_with(".rs") {
                source = read(code);
            } else if code.starts_with("ops/") {
                let script = code.split(' ').next().unwrap_or(code);
                assert!(root().join(script).exists(), "docs/promises.md names {script}, which is not there");
            } else if !source.is_empty() && is_test_name(code) {
                assert!(source.contains(&format!("fn {code}(")), "no test is called {code}: {line}");
                tests += 1;
            }
        }
    }
    assert!(tests > 40, "only {tests} tests were found");
}
