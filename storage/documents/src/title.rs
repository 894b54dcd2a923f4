//! What a document is called: its own title, and what its file's name and folders say beside it.
//!
//! `People/Jane Marlow.md` may be headed "Contact": who it is about stands in its name alone. A title is searched and told to the model with
//! each passage, so that what is said twice, or says nothing, is left out.

use std::collections::HashSet;
use std::path::{Component, Path};

use super::name::shown;

/// Folders that are named.
const MOST_FOLDERS: usize = 2;
/// Of names before a document's own title.
const MOST_CHARS: usize = 80;
/// A shorter word of a name tells little: languages, versions, initials.
const LEAST_LETTERS: usize = 4;
/// Names that many files and folders have, whatever is in them.
const GENERIC: &[&str] = &[
    "article",
    "articles",
    "assets",
    "attachments",
    "content",
    "contents",
    "copy",
    "corpus",
    "data",
    "default",
    "doc",
    "docs",
    "document",
    "documents",
    "downloads",
    "draft",
    "export",
    "file",
    "files",
    "final",
    "folder",
    "home",
    "html",
    "index",
    "main",
    "markdown",
    "misc",
    "note",
    "notes",
    "page",
    "pages",
    "papers",
    "pdf",
    "posts",
    "public",
    "readme",
    "scan",
    "scans",
    "src",
    "static",
    "temp",
    "test",
    "text",
    "texts",
    "untitled",
    "upload",
    "uploads",
    "vault",
];

/// The title of a document that is a whole file. `own` is what the file says; `within` the file's path from the folder on that is ingested.
pub fn of_file(own: Option<String>, path: &Path, within: Option<&Path>) -> String {
    let own = own.filter(|title| !title.trim().is_empty());
    let stem = path.file_stem().map(|stem| shown(Path::new(stem))).unwrap_or_default();
    let mut known = words(own.as_deref().unwrap_or_default());
    let title = match own {
        None => {
            known.extend(words(&stem));
            stem
        }
        Some(own) if says_more(&stem, &known) => {
            known.extend(words(&stem));
            format!("{stem}: {own}")
        }
        Some(own) => own,
    };
    let folders = within.and_then(Path::parent).map(|folder| named(folder, &known)).unwrap_or_default();
    if folders.is_empty() { title } else { format!("{folders} / {title}") }
}

/// Folders that say more, outermost first, as far as there is room.
fn named(folder: &Path, known: &HashSet<String>) -> String {
    let names = folder.components().filter_map(|component| match component {
        Component::Normal(name) => Some(shown(Path::new(name))),
        _ => None,
    });
    let names: Vec<String> = names.filter(|name| says_more(name, known)).collect();
    let mut told = String::new();
    for name in names.iter().rev().take(MOST_FOLDERS) {
        let longer = if told.is_empty() { name.clone() } else { format!("{name} / {told}") };
        if longer.chars().count() > MOST_CHARS {
            break;
        }
        told = longer;
    }
    told
}

/// Whether a name has a word that tells something, and is not known.
fn says_more(name: &str, known: &HashSet<String>) -> bool {
    let tells = |word: &String| {
        let is_word = word.chars().filter(|c| c.is_alphabetic()).count() >= LEAST_LETTERS && !is_hexadecimal(word);
        is_word && !GENERIC.contains(&word.as_str()) && !known.contains(word)
    };
    name.chars().count() <= MOST_CHARS && words(name).iter().any(tells)
}

/// Of a program's own names: hashes.
fn is_hexadecimal(word: &str) -> bool {
    word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn words(text: &str) -> HashSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_name_alone_is_told() {
        let title = |own: &str, within: &str| {
            let own = (!own.is_empty()).then(|| own.to_owned());
            of_file(own, &Path::new("/notes").join(within), Some(Path::new(within)))
        };
        for (own, within, expected) in [
            ("Contact", "People/Jane Marlow.md", "People / Jane Marlow: Contact"),
            ("Stand", "Projekte/Brunnen Marktplatz/Stand.md", "Projekte / Brunnen Marktplatz / Stand"),
            ("", "Rooms/Music room/furniture.txt", "Rooms / Music room / furniture"),
            ("House rules", "house-rules.md", "House rules"),
            ("The rules of the house", "house-rules.md", "The rules of the house"),
            ("Wi-Fi", "docs/pages/index.html", "Wi-Fi"),
            ("Wi-Fi", "a/b/x1.html", "Wi-Fi"),
            ("Release", "deadbeef00.md", "Release"),
            ("Pump", "Manuals/2024/pump/VT-9.md", "Manuals / Pump"),
            ("", "one two/three four/five six/seven.txt", "three four / five six / seven"),
        ] {
            assert_eq!(title(own, within), expected, "{within}");
        }
        assert_eq!(
            of_file(Some("Contact".into()), Path::new("/a/People/Jane Marlow.md"), None),
            "Jane Marlow: Contact"
        );
        let long = "word ".repeat(40);
        assert_eq!(title("T", &format!("{long}/{long}.md")), "T");
    }
}
