//! What packages have beside the program: pages whose links lead somewhere, and examples that are taken. `ops/test-packages` tries whole
//! packages.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::harness::Folder;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A page's links and images, and the names of its headings.
#[derive(Default)]
pub struct Page {
    pub links: Vec<String>,
    headings: Vec<String>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.headings.extend(heading.take().map(|text| anchor(&text))),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// As the usual viewers of Markdown make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>().replace(' ', "-")
}

/// Every Markdown file below a folder, what is hidden or built apart.
pub fn pages(folder: &Path, found: &mut BTreeMap<PathBuf, Page>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with('.') || ["target", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let page = Page::read(&std::fs::read_to_string(&path).unwrap());
            found.insert(path, page);
        }
    }
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Why a link of the page at `from` leads nowhere, if it does.
pub fn broken(link: &str, from: &Path, root: &Path, pages: &BTreeMap<PathBuf, Page>) -> Option<String> {
    let is_elsewhere = link.starts_with("https://") || link.starts_with("http://");
    // An address of mail.
    if is_elsewhere || link.contains('@') {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let to = if file.is_empty() { from.to_owned() } else { plain(&from.parent().unwrap().join(file)) };
    let says = |why: &str| Some(format!("{}: {link}: {why}", from.strip_prefix(root).unwrap().display()));
    if !to.starts_with(root) || !to.exists() {
        return says("no such file");
    }
    let heading = heading?;
    let is_there = pages.get(&to).is_some_and(|page| page.headings.iter().any(|found| found == heading));
    if is_there { None } else { says("no such heading") }
}

#[test]
fn every_link_of_the_packaged_pages_leads_somewhere() {
    let folder = Folder::new();
    let root = folder.path().canonicalize().unwrap().join("share");
    let laid_out = Command::new(repository().join("ops/packaging/documents")).arg(&root).status().unwrap();
    assert!(laid_out.success());
    let mut all = BTreeMap::new();
    pages(&root, &mut all);
    let readme = &all[&root.join("README.md")];
    assert!(all.len() > 20 && readme.links.len() > 8, "{} pages, {:?}", all.len(), readme.links);
    let links = all.iter().flat_map(|(from, page)| page.links.iter().map(move |link| (from, link)));
    let broken: Vec<String> = links.filter_map(|(from, link)| broken(link, from, &root, &all)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    // It is about the installed program.
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    for word in ["ops/", "target/debug", "cargo"] {
        let line = text.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "{word} is nothing that is installed");
    }
    assert!(root.join("examples/world/corpus").read_dir().unwrap().count() > 20);
    assert!(text.contains("/usr/share/ragstone/examples/world/corpus"));
}

#[test]
fn the_links_of_a_page_are_checked() {
    let folder = Folder::new();
    let root = folder.path().canonicalize().unwrap();
    let text = "# One `two`, three\n\n[a](#one-two-three) | [b](docs/x.md) | `[c](d.md)`\n";
    let (from, _) = (folder.write("README.md", text), folder.write("docs/x.md", "# X\n"));
    let from = from.canonicalize().unwrap();
    let mut all = BTreeMap::new();
    pages(&root, &mut all);
    assert_eq!(all[&from].links, ["#one-two-three", "docs/x.md"]);
    for link in ["#one-two-three", "docs/x.md", "docs/x.md#x", "docs/../README.md", "https://example.org/x"] {
        assert_eq!(broken(link, &from, &root, &all), None);
    }
    for (link, why) in [("docs/y.md", "file"), ("../README.md", "file"), ("docs/x.md#y", "heading"), ("#x", "heading")]
    {
        assert!(broken(link, &from, &root, &all).is_some_and(|told| told.contains(why)), "{link}");
    }
}

/// What the README says that its first question is answered with, over the corpus that is packaged.
#[test]
fn the_first_question_of_the_packaged_readme_has_the_answer_that_stands_beside_it() {
    let folder = Folder::new();
    let root = folder.path().join("share");
    assert!(Command::new(repository().join("ops/packaging/documents")).arg(&root).status().unwrap().success());
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let line = text.lines().find(|line| line.starts_with("ragstone ask \"") && line.contains(" # ")).unwrap();
    let (command, answer) = line.split_once(" # ").unwrap();
    let question = command.split('"').nth(1).unwrap();
    let corpus = root.join("examples/world/corpus");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "world"]).succeeded();
    let said = folder.run(&["ask", question, "--collection", "world"]).succeeded().stdout;
    assert_eq!(said.lines().next().unwrap(), answer, "{said}");
}

/// Whoever takes the marks before an example away has settings that the service takes.
#[test]
fn every_example_of_the_packaged_settings_is_taken() {
    let folder = Folder::new();
    let packaged = std::fs::read_to_string(repository().join("ops/packaging/ragstone.toml")).unwrap();
    let example = |line: &str| {
        let (key, value) = line.strip_prefix("# ")?.split_once(" = ")?;
        key.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| format!("{key} = {value}\n"))
    };
    let examples: Vec<String> = packaged.lines().filter_map(example).collect();
    for key in ["listen", "keys", "model", "embedder", "offline"] {
        assert!(examples.iter().any(|example| example.starts_with(&format!("{key} = "))), "{key}: {examples:?}");
    }
    let file = folder.write("ragstone.toml", packaged + &examples.concat());
    let given = folder.json(&["settings", "--given", "--json", "--config", file.to_str().unwrap()]);
    let keys: Vec<&str> = given.as_array().unwrap().iter().map(|setting| setting["key"].as_str().unwrap()).collect();
    for example in &examples {
        assert!(keys.contains(&example.split(' ').next().unwrap()), "{example} in {keys:?}");
    }
}

/// What is kept is said; the folders are those that the program uses.
#[test]
fn the_packages_readme_and_its_purge_name_what_is_left() {
    let read = |name: &str| std::fs::read_to_string(repository().join("ops/packaging").join(name)).unwrap();
    for text in [read("README.md"), read("deb/postrm")] {
        for folder in ["/var/lib/ragstone", "~/.local/share/ragstone", "~/.cache/ragstone", "~/.cache/huggingface"] {
            assert!(text.contains(folder), "{folder} is not named in {text}");
        }
    }
}
