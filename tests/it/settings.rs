//! One table says everything of every setting: docs/settings.md, help, variables and `ragstone settings` are held against it here. The structs are in
//! `actors/service/src/config/table.rs`.

use std::path::Path;

use serde_json::Value;

use crate::harness::Folder;

const BEGIN: &str = "<!-- settings: written by `ragstone settings --markdown` -->\n\n";
const BEGIN_ROWS: &str = "<!-- settings: rows of docs/settings.md -->\n\n";
const END: &str = "\n<!-- /settings -->";
/// Those that README has, too.
const COMMON: &[&str] = &[
    "model",
    "adapter",
    "embedder",
    "listen",
    "keys",
    "device_bytes",
    "host_bytes",
    "disk_bytes",
    "object_url",
    "top_k",
    "chunk_tokens",
    "weights",
    "threads",
    "device",
];

fn list(folder: &Folder) -> Vec<Value> {
    folder.json(&["settings", "--json"]).as_array().unwrap().clone()
}

fn words(text: &str) -> String {
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Puts `table` between the marks of a file, or sees that it stands there.
fn compare(name: &str, begin: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{name} has no mark before its settings"));
    let (found, after) = rest.split_once(END).unwrap_or_else(|| panic!("{name} has no mark after its settings"));
    if std::env::var_os("UPDATE_SETTINGS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            found, table,
            "UPDATE_SETTINGS=1 ops/test -p ragstone --test it the_docs_have_the_settings writes it"
        );
    }
}

/// `UPDATE_SETTINGS=1` writes them anew instead: all of them, and in README those that are asked for most.
#[test]
fn the_docs_have_the_settings() {
    let table = Folder::new().run(&["settings", "--markdown"]).succeeded().stdout;
    compare("docs/settings.md", BEGIN, &table);
    let row = |name: &&str| {
        let begin = format!("| `{name}` |");
        table.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no setting {name}")).to_owned()
    };
    let rows: Vec<String> = COMMON.iter().map(row).collect();
    compare("README.md", BEGIN_ROWS, &format!("| setting | default | |\n|---|---|---|\n{}\n", rows.join("\n")));
}

#[test]
fn help_says_of_flags_what_the_table_says() {
    let folder = Folder::new();
    let help = words(&folder.run(&["serve", "--help"]).succeeded().stdout);
    let flags: Vec<Value> = list(&folder).into_iter().filter(|setting| setting["flag"].is_string()).collect();
    assert!(flags.len() > 12, "{flags:?}");
    for setting in flags {
        let (flag, about) = (setting["flag"].as_str().unwrap(), words(setting["about"].as_str().unwrap()));
        let at = help.find(&format!("{flag} ")).unwrap_or_else(|| panic!("no {flag} in {help}"));
        assert!(help[at..].contains(&about), "{flag}: {about:?} is not in {}", &help[at..]);
    }
}

/// Its own default, given by its variable, is taken for every setting: the name is right, and so is the form.
#[test]
fn every_setting_has_the_variable_that_it_says() {
    let folder = Folder::new();
    let mut command = folder.ragstone(&["settings", "--json"]);
    let given: Vec<Value> = list(&folder).into_iter().filter(|setting| !setting["default"].is_null()).collect();
    assert!(given.len() > 50, "{given:?}");
    for setting in &given {
        let value = match &setting["default"] {
            // Quoted, lest a text that looks like something else is taken for that.
            Value::String(text) => serde_json::to_string(text).unwrap(),
            // Without an exponent, which variables are not read with.
            Value::Number(number) if number.is_f64() => number.as_f64().unwrap().to_string(),
            other => other.to_string(),
        };
        command.env(setting["variable"].as_str().unwrap(), value);
    }
    let ran = crate::harness::Ran::of(command.output().unwrap()).succeeded();
    let now: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    for setting in given {
        let found = now.iter().find(|now| now["key"] == setting["key"]).unwrap();
        assert_eq!((&found["source"], &found["value"]), (&setting["variable"], &setting["default"]), "{setting}");
    }
}

#[tokio::test]
async fn values_are_told_with_their_sources_with_and_without_a_service() {
    let folder = Folder::new();
    let file = folder.write("r.toml", "top_k = 3\n[prompt]\nsystem = \"Be brief.\"\n");
    let arguments = ["settings", "--config", file.to_str().unwrap(), "--set", "host_bytes=2GiB", "--threads", "1"];
    let given = folder.json(&[&arguments[..], &["--given", "--json"]].concat());
    let sources = ["data", "host_bytes", "prompt.system", "threads", "top_k"];
    let of = |key: &str| {
        given
            .as_array()
            .unwrap()
            .iter()
            .find(|setting| setting["key"] == key)
            .unwrap_or_else(|| panic!("{key}: {given}"))
    };
    let from = sources.map(|key| of(key)["source"].as_str().unwrap());
    assert_eq!(from, ["RAGSTONE_DATA", "--set", file.to_str().unwrap(), "--threads", file.to_str().unwrap()]);
    let text = folder.run(&arguments).succeeded().stdout;
    for line in [
        "top_k = 3  (",
        "default: 2 for models of 50 to 500 million weights",
        "host_bytes = 2 GiB  (--set; default: 1 GiB)",
        "RAGSTONE_PROMPT__SYSTEM",
        "threads = 1  (--threads; default: all cores)",
        "compute = bf16 where the processor is faster at it  (default)",
        "started like this",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    folder.run(&["settings", "--set", "top_k=0"]).failed_with(&["setting `top_k` must be at least 1"]);
    folder.run(&["settings", "--set", "rerank=100000"]).failed_with(&["setting `rerank` must be at most"]);
    folder.run(&["settings", "--set", "body_bytes=10"]).failed_with(&["setting `body_bytes` must be at least 1024"]);
    let _service = folder.serve(&["--set", "top_k=4"]).await;
    let text = folder.run(&["settings", "--given"]).succeeded().stdout;
    assert!(text.contains("top_k = 4") && text.contains("running service"), "{text}");
}
