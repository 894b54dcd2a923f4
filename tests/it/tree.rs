//! Holds the tree to its own rules: files that fit in a head, functions that fit on a screen, dependencies one way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const MOST_FILE_LINES: usize = 450;
const MOST_FUNCTION_LINES: usize = 80;
/// Files over the bound, with their length. The list only shrinks: an entry that is no longer needed, or larger than the
/// file, fails the test.
const LONG_FILES: &[(&str, usize)] = &[];
/// Functions over the bound, as `file: name`, with their length. The list only shrinks, too.
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

/// Which of our crates each may use.
const DIRECTION: &[(&str, &[&str])] = &[
    ("kernels/env", &[]),
    ("kernels", &["env"]),
    ("kernels/cuda", &["env", "kernels"]),
    ("kernels/bench", &["env", "kernels", "cuda", "terminal"]),
    ("storage/documents", &["env"]),
    ("storage/corpus", &["env", "documents"]),
    ("storage/sources", &["env", "documents", "storage"]),
    ("storage", &["env", "kernels"]),
    ("terminal", &["env"]),
    ("tests/power-cuts", &["env"]),
    ("kernels/models", &["env", "kernels", "terminal"]),
    ("migrations", &["env", "storage"]),
    ("actors/pml", &["env", "kernels", "storage"]),
    ("actors/kv_serve", &["env", "storage"]),
    ("actors", &["env", "kernels", "cuda", "documents", "corpus", "storage", "pml", "power-cuts"]),
    (
        "actors/service",
        &[
            "env",
            "kernels",
            "models",
            "terminal",
            "documents",
            "corpus",
            "sources",
            "storage",
            "pml",
            "actors",
            "migrations",
        ],
    ),
    (
        "ops/measure",
        &[
            "env",
            "kernels",
            "bench",
            "cuda",
            "models",
            "terminal",
            "documents",
            "corpus",
            "storage",
            "actors",
            "service",
        ],
    ),
    (
        ".",
        &[
            "env",
            "kernels",
            "cuda",
            "models",
            "terminal",
            "documents",
            "corpus",
            "storage",
            "pml",
            "kv-serve",
            "actors",
            "migrations",
            "service",
            "measure",
            "power-cuts",
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files of all packages, with paths from the root.
pub fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["src", "kernels", "storage", "actors", "migrations", "terminal", "tests", "examples", "ops/measure"]
    {
        collect(&root().join(folder), &mut files);
    }
    assert!(files.len() > 20, "the sources were not found");
    files.sort();
    let name = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Long tests live in files of their own, which may be long.
pub fn is_test_file(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    parts.contains(&"tests") || parts.last().is_some_and(|file| *file == "tests.rs" || file.ends_with("_tests.rs"))
}

/// The lines above a file's test module.
fn production(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    lines[..tests.unwrap_or(lines.len())].to_vec()
}

/// Every function with its length in lines. Relies on the format check: a body ends at the indentation it began at.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (begin, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some(name) = function_name(line.trim_start()) else { continue };
        let Some(head) = lines[begin..].iter().position(|line| line.ends_with(['{', '}', ';'])) else { continue };
        // A head that ends otherwise has its whole body on its line, or none.
        let body = if lines[begin + head].ends_with('{') {
            let closes = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}'));
            lines[begin + head + 1..].iter().position(closes).map_or(0, |end| end + 1)
        } else {
            0
        };
        found.push((name.to_owned(), head + 1 + body));
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line;
    for word in ["pub", "default", "const", "async", "unsafe", "extern \"C\""] {
        if let Some(after) = rest.strip_prefix(word) {
            let after = match after.strip_prefix('(') {
                Some(scope) => scope.split_once(')').map_or(after, |(_, after)| after),
                None => after,
            };
            rest = after.strip_prefix(' ').unwrap_or(rest);
        }
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// Compares what is over a bound with the list of known exceptions.
fn check(what: &str, over: &BTreeMap<String, usize>, known: &[(&str, usize)]) {
    let known: BTreeMap<String, usize> = known.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect();
    let new: Vec<_> = over.iter().filter(|(name, length)| known.get(*name).is_none_or(|most| *length > most)).collect();
    assert!(new.is_empty(), "{what} too long, split them: {new:?}");
    let stale: Vec<_> =
        known.iter().filter(|(name, most)| over.get(*name).is_none_or(|length| length < *most)).collect();
    assert!(stale.is_empty(), "{what} became shorter, lower or remove the exceptions: {stale:?}");
}

#[test]
fn files_fit_in_a_head() {
    let lengths = sources().into_iter().filter(|(name, _)| !is_test_file(name));
    let over =
        lengths.map(|(name, text)| (name, production(&text).len())).filter(|(_, length)| *length > MOST_FILE_LINES);
    check("files", &over.collect(), LONG_FILES);
}

#[test]
fn functions_fit_on_a_screen() {
    let mut over = BTreeMap::new();
    for (name, text) in sources() {
        for (function, length) in functions(&text) {
            if length > MOST_FUNCTION_LINES {
                over.insert(format!("{name}: {function}"), length);
            }
        }
    }
    check("functions", &over, LONG_FUNCTIONS);
}

#[test]
fn the_measure_measures() {
    let text = "pub(crate) async fn a(\n    x: u8,\n) -> u8 {\n    if x {\n        1;\n    }\n}\n\nimpl T {\n    fn b() {}\n    fn c(&self) -> u8;\n    const fn d<T>() {\n        2\n    }\n}\n";
    let expected = [("a", 7), ("b", 1), ("c", 1), ("d", 3)].map(|(name, length)| (name.to_owned(), length));
    assert_eq!(functions(text), expected);
    assert_eq!(production("a\nb\n#[cfg(test)]\nmod tests {\n}\n").len(), 2);
    assert_eq!(production("a\n#[cfg(test)]\nmod tests;\nb\n").len(), 4);
}

#[test]
fn dependencies_point_one_way() {
    for (package, allowed) in DIRECTION {
        let manifest = std::fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let in_dependencies = section.contains("dependencies") && !section.contains("workspace");
            let Some(name) = line.strip_prefix("ragstone-").filter(|_| in_dependencies) else { continue };
            let name = name.split(['.', ' ', '=']).next().unwrap();
            assert!(allowed.contains(&name), "{package} must not depend on {name}");
        }
    }
}

#[test]
fn lower_layers_know_nothing_of_the_upper_ones() {
    let forbidden: &[(&str, &[&str])] = &[
        ("kernels/src", &["tokio::", "actix", "ragstone_storage", "reqwest", "rocksdb"]),
        ("kernels/cuda", &["tokio", "actix", "ragstone_storage", "reqwest", "rocksdb"]),
        ("kernels/bench", &["tokio", "actix", "ragstone_storage", "ragstone_actors", "reqwest", "rocksdb"]),
        ("kernels/env", &["actix", "ragstone_kernels", "reqwest", "rocksdb"]),
        ("storage/documents", &["actix", "lancedb", "reqwest", "rocksdb"]),
        ("storage/corpus", &["actix", "reqwest", "rocksdb"]),
        ("storage/src", &["actix", "lancedb", "ragstone_actors", "ragstone_migrations", "reqwest"]),
        ("actors/pml", &["actix", "tokio", "reqwest"]),
        ("actors/kv_serve", &["actix", "tokio", "reqwest", "rocksdb::", "ragstone_actors"]),
        ("terminal", &["actix", "reqwest", "ragstone_kernels"]),
        ("kernels/models", &["actix", "ragstone_storage", "ragstone_actors"]),
        ("actors/service", &["clap::Subcommand", "clap::Args", "ragstone_measure", "rocksdb::", "lancedb::"]),
        ("src", &["actix_web", "rocksdb::", "lancedb::"]),
        ("actors/src", &["actix_web", "ragstone_migrations", "reqwest", "rocksdb::", "lancedb::"]),
    ];
    // An engine elsewhere is reached by HTTP.
    let is_allowed = |name: &str, word: &str| word == "reqwest" && name.starts_with("actors/src/upstream");
    for (name, text) in sources() {
        for (folder, words) in forbidden {
            for word in words.iter().filter(|word| name.starts_with(folder) && !is_allowed(&name, word)) {
                let used = text.lines().find(|line| !line.trim_start().starts_with("//") && line.contains(word));
                assert!(used.is_none(), "{name} must not know {word}: {used:?}");
            }
        }
    }
}

/// Segments and keys, the tiers and the store, what is resident, the plan: each knows those before it, and none those behind.
#[test]
fn the_way_of_a_prompt_goes_round_in_no_circle() {
    let (upper, residency, plan) = ("crate::prompt", "prompt::residency", "prompt::plan");
    let forbidden: &[(&str, &[&str])] = &[
        ("storage/src/segment.rs", &["crate::store", "crate::tier", residency, plan, "super::"]),
        ("storage/src/prompt/residency.rs", &[plan, "super::plan", "super::uses"]),
        ("storage/src/tier", &[residency, plan, "prompt::record_use"]),
        ("storage/src/store", &[upper]),
        ("storage/src/cost", &[upper]),
        ("storage/src/tree", &[upper]),
        ("storage/src/block", &[upper]),
        ("storage/src/entry", &[upper]),
    ];
    for (name, text) in sources().iter().filter(|(name, _)| !is_test_file(name)) {
        let uses = production(text).into_iter().filter(|line| !line.trim_start().starts_with("//"));
        let used: Vec<&str> = uses.collect();
        for (place, words) in forbidden.iter().filter(|(place, _)| name.starts_with(place)) {
            for word in *words {
                assert!(
                    !used.iter().any(|line| line.contains(word)),
                    "{name} must not know {word}, as {place} stands before it"
                );
            }
        }
    }
}

/// Calls that take files or rows away for good.
const REMOVALS: &[&str] = &[
    "remove_dir_all(",
    "remove_dir(",
    "remove_file(",
    "drop_table(",
    "drop_tree(",
    "delete_range_cf(",
    "delete_file_in_range",
    "DB::destroy(",
    "DB::repair(",
    "set_len(",
    "delete_unverified",
];
/// Where there may be one, how many lines have one, and why nothing of the owner's goes that somebody may miss.
const MAY_REMOVE: &[(&str, usize, &str)] = &[
    (
        "storage/corpus/src/folders.rs",
        2,
        "what was renamed into `deleted` before: deleted on request, empty, or derived; and a folder without files",
    ),
    ("storage/corpus/src/unfinished.rs", 1, "the mark of a table that was being made, once it is"),
    ("storage/corpus/src/changing.rs", 1, "calls the next, for whoever deletes a collection"),
    ("storage/corpus/src/table/writing.rs", 1, "renames into `deleted`"),
    ("storage/corpus/src/table/upkeep.rs", 2, "superseded versions, of which the newest needs nothing"),
    (
        "actors/src/upkeep/nodes.rs",
        2,
        "derived: stored KV, where nobody can say what of it was deleted meanwhile, and what was seen of that",
    ),
    (
        "storage/src/record_files.rs",
        6,
        "a record that somebody deleted, or whose time is over; what a write left that failed or was killed, which was told to nobody",
    ),
    ("storage/src/catalog/records.rs", 2, "what a write that failed left behind the last whole frame"),
    ("storage/src/tier/disk/quarantine.rs", 1, "derived: a damaged KV store, when another is moved aside"),
    ("storage/src/tier/disk/recovery.rs", 1, "derived: a damaged entry, copied into quarantine before"),
    (
        "actors/kv_serve/src/server.rs",
        2,
        "the daemon's own socket, as it ends, and the empty folder in which it was made",
    ),
    ("storage/sources/src/memory.rs", 1, "derived: what was noted of a source, where it is not so any more"),
    ("src/cli/models/remove.rs", 1, "a model that the owner named"),
    (
        "actors/service/src/ingest/fetching.rs",
        2,
        "copies of what is elsewhere, once they are read; what is noted of sources of collections that are not there any more",
    ),
    ("actors/service/src/data_folder.rs", 2, "the record of a service that ended, and the holder's name in the lock"),
    (
        "actors/service/src/conversations.rs",
        2,
        "what its setting says is too old or too much: answers that clients might have gone on from",
    ),
    ("actors/service/src/http/audit.rs", 1, "days of the audit log, but for as many as its setting keeps"),
    ("kernels/models/src/embedder_source.rs", 1, "which model is remembered"),
    ("kernels/models/src/hub/cache.rs", 1, "what a download left"),
    ("kernels/models/src/hub/fetch.rs", 2, "a download that is of no use"),
    ("kernels/models/src/hub/stored.rs", 4, "a model that the owner named"),
    ("ops/measure/src/eval/journal.rs", 1, "the line that a kill cut off, of answers that are asked for again"),
    ("kernels/models/src/need.rs", 1, "makes a file of its own larger"),
    ("kernels/models/src/model_source/bundle.rs", 1, "the demo model, which is inside this program"),
    ("kernels/models/src/wheel.rs", 2, "a download that lacks files, and what one left that was killed"),
];

/// Data that cannot be read is not data that is gone: whoever adds a removal says here why nobody misses what goes.
#[test]
fn files_are_removed_in_named_places_only() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in sources() {
        let is_ours = |package: &str| name.starts_with("src/") || name.starts_with(&format!("{package}/src/"));
        if is_test_file(&name) || !DIRECTION.iter().any(|(package, _)| is_ours(package)) {
            continue;
        }
        let code = production(&text).into_iter().map(|line| line.split("//").next().unwrap_or_default());
        let removing = code.filter(|line| REMOVALS.iter().any(|word| line.contains(word)));
        let lines: Vec<String> = removing.map(|line| line.trim().to_owned()).collect();
        if !lines.is_empty() {
            found.insert(name, lines);
        }
    }
    let known: BTreeMap<&str, usize> = MAY_REMOVE.iter().map(|(file, lines, _)| (*file, *lines)).collect();
    for (file, lines) in &found {
        let known = known.get(file.as_str()).copied().unwrap_or(0);
        assert_eq!(
            lines.len(),
            known,
            "{file} removes: rename what may be missed, and name the place in MAY_REMOVE: {lines:#?}"
        );
    }
    let stale: Vec<_> = known.keys().filter(|file| !found.contains_key(**file)).collect();
    assert!(stale.is_empty(), "these remove nothing any more: {stale:?}");
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!(")];
    for (name, text) in sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{name} contains {mark}");
        }
    }
}

/// The modules of a crate and those that each names by `crate::`, tests and comments apart.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test_file(name)) {
        let Some(within) = name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let module = within.split('/').next().unwrap().trim_end_matches(".rs");
        let code: Vec<&str> = production(text).iter().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        for after in code.split("crate::").skip(1) {
            let named = match after.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
                None => vec![after],
            };
            for path in named {
                let other: String = path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let is_module = other.starts_with(|first: char| first.is_ascii_lowercase());
                if is_module && other != module {
                    imports.entry(module.to_owned()).or_default().insert(other);
                }
            }
        }
    }
    imports
}

/// What is reached from a module.
fn reached(imports: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(module) = waiting.pop() {
        for other in imports.get(module).into_iter().flatten() {
            if found.insert(other.clone()) {
                waiting.push(other);
            }
        }
    }
    found
}

#[test]
fn modules_import_each_other_one_way() {
    let mut found = 0;
    for (package, _) in DIRECTION {
        let folder = if *package == "." { "src".to_owned() } else { format!("{package}/src") };
        let imports = imports(&folder);
        found += imports.len();
        let circle: Vec<&str> =
            imports.keys().filter(|module| reached(&imports, module).contains(*module)).map(String::as_str).collect();
        assert!(
            circle.is_empty(),
            "{folder}: {circle:?} import each other in a circle; put what they share into a module below them"
        );
    }
    assert!(found > 50, "the imports were not found");
}
