//! What a document is called: its own title, and what its file's name and folders say beside it.
//!
//! `People/Jane Marlow.md` may be headed "Contact": who it is about stands in its name alone. A title is searched and told to the model with
//! each passage, so that what is said twice, or says nothing, is left out.

use std::collections::HashSet;
use std::path::{Component, Path};

use super::document::MAX_TITLE_BYTES;
use super::name::shown;

/// Folders that are named.
const MOST_FOLDERS: usize = 2;
/// Of names before a document's own title.
const MOST_CHARS: usize = 80;
/// Between folders, and between them and the rest.
const BETWEEN: &str = " / ";
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
/// Where all of it is too long for a title, the folders are left out.
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
    if folders.is_empty() || folders.len() + BETWEEN.len() + title.len() > MAX_TITLE_BYTES {
        return cut(title, MAX_TITLE_BYTES);
    }
    format!("{folders}{BETWEEN}{title}")
}

/// The title of source code: the way to it. Of a long way it is the end.
pub fn of_code(way: &Path) -> String {
    let whole = shown(way);
    let start = whole.ceil_char_boundary(whole.len().saturating_sub(MAX_TITLE_BYTES));
    match whole[start..].split_once('/') {
        // A name that is cut says little.
        Some((_, names)) if start > 0 => names.to_owned(),
        _ => whole[start..].to_owned(),
    }
}

/// A title's beginning, of at most so many bytes.
pub fn cut(mut title: String, most_bytes: usize) -> String {
    if title.len() > most_bytes {
        title.truncate(title.floor_char_boundary(most_bytes));
        title.truncate(title.trim_end().len());
    }
    title
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
        let longer = if told.is_empty() { name.clone() } else { format!("{name}{BETWEEN}{told}") };
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

    #[test]
    fn no_file_has_too_long_a_title() {
        let own = "図".repeat(300);
        let title = |own: &str, within: &str| {
            let title = of_file(Some(own.to_owned()), Path::new(within), Some(Path::new(within)));
            assert!(title.len() <= MAX_TITLE_BYTES, "{}", title.len());
            title
        };
        assert_eq!(title(&own, "People/Jane Marlow.md"), format!("People / Jane Marlow: {own}"));
        // The folders go first.
        let (folder, stem) = ("蔵書".repeat(20), "目録の写し".repeat(8));
        assert_eq!(title(&own, &format!("{folder}/{stem}.md")), format!("{stem}: {own}"));
        let long = "図".repeat(333);
        assert_eq!(title(&long, &format!("{folder}/{stem}.md")), format!("{stem}: {}", &own[..900]));
        assert_eq!(title(&long, "index.md"), long);
        // A name may be told in more bytes than it has.
        let name = "\u{1b}".repeat(250);
        let told = of_file(None, Path::new(&name), None);
        assert!(told.starts_with("\\u{1b}") && told.len() <= MAX_TITLE_BYTES, "{}", told.len());
    }

    #[test]
    fn a_long_way_to_code_is_told_by_its_end() {
        assert_eq!(of_code(Path::new("src/mill.rs")), "src/mill.rs");
        let deep = "größe/".repeat(300) + "mill.rs";
        let told = of_code(Path::new(&deep));
        assert!(told.len() <= MAX_TITLE_BYTES && told.len() > MAX_TITLE_BYTES - 10, "{}", told.len());
        assert!(told.starts_with("größe/") && told.ends_with("/mill.rs") && deep.ends_with(&told), "{told}");
        assert_eq!(of_code(Path::new(&"x".repeat(2000))).len(), MAX_TITLE_BYTES);
    }
}
