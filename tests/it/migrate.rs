//! Data folders of another format: upgraded by a command or by the next start, whole after a kill; a newer one is refused.

use std::io::{Cursor, Read};

use serde_json::{Value, json};

use crate::harness::Folder;

/// The `kv` folder of a store of format 1.
const FORMAT_1: &[u8] = include_bytes!("../../migrations/fixtures/format-1.zip");

fn format_1() -> Folder {
    let folder = Folder::new();
    let mut archive = zip::ZipArchive::new(Cursor::new(FORMAT_1)).unwrap();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let name = format!("data/kv/{}", file.name().unwrap());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        folder.write(&name, bytes);
    }
    stamp(&folder, 1);
    folder
}

fn stamp(folder: &Folder, format: u32) {
    folder.write("data/FORMAT", format!("{{\"format\":{format}}}\n"));
}

fn stamped(folder: &Folder) -> String {
    std::fs::read_to_string(folder.data().join("FORMAT")).unwrap()
}

fn status(folder: &Folder) -> Value {
    folder.json(&["migrate", "status", "--json"])
}

#[test]
fn an_older_folder_is_brought_up_by_the_command() {
    let folder = format_1();
    let found = status(&folder);
    assert_eq!((&found["found"], &found["wanted"], &found["steps"][0]["to"]), (&json!(1), &json!(2), &json!(2)));
    let text = folder.run(&["migrate", "status"]).succeeded().stdout;
    assert!(text.contains("format 1, wanted 2") && text.contains("ragstone migrate up"), "{text}");
    assert_eq!(folder.json(&["migrate", "up", "--dry-run", "--json"]), found);
    assert_eq!(stamped(&folder), "{\"format\":1}\n", "a dry run changes nothing");
    let taken = folder.json(&["migrate", "up", "--json"]);
    assert_eq!(taken["taken"], json!([{ "to": 2, "done": "3 entries were indexed" }]));
    assert_eq!(stamped(&folder), "{\"format\":2}\n");
    assert_eq!(status(&folder)["steps"], json!([]));
    assert_eq!(folder.json(&["migrate", "verify", "--json"])["ok"], true);
    assert!(folder.run(&["migrate", "up"]).succeeded().stdout.contains("nothing to do"));
}

#[test]
fn a_migration_that_was_killed_is_done_by_the_next() {
    for point in ["migrate.before_step", "migrate.after_step", "migrate.before_stamp"] {
        let folder = format_1();
        let mut command = folder.ragstone(&["migrate", "up"]);
        let output = command.env("RAGSTONE_FAILPOINTS", format!("{point}=kill")).output().unwrap();
        assert_eq!(output.status.code(), None, "{point}: not killed: {output:?}");
        assert_eq!(status(&folder)["found"], 1, "{point}");
        folder.run(&["migrate", "up"]).succeeded();
        let verified = folder.json(&["migrate", "verify", "--json"]);
        assert_eq!(verified["ok"], true, "{point}: {verified}");
        assert!(verified["checks"][0]["found"].as_str().unwrap().starts_with("3 entries, 0"), "{verified}");
    }
}

#[tokio::test]
async fn a_start_brings_an_older_folder_up_and_keeps_its_entries() {
    let folder = format_1();
    // Killed on its way first.
    let mut killed = folder.serve_command(&[("RAGSTONE_FAILPOINTS", "migrate.after_step=kill")]);
    assert_eq!(killed.output().unwrap().status.code(), None);
    let service = folder.serve(&[]).await;
    assert_eq!(stamped(&folder), "{\"format\":2}\n");
    assert_eq!(service.get("/v1/cache/status").await.1["store"]["disk"]["entries"], 3);
    folder.run(&["migrate", "verify"]).failed_with(&["in use", "`ragstone serve`"]);
    // What the stamp says can be seen while the folder is in use.
    assert_eq!(status(&folder)["found"], 2);
    assert_eq!(service.stop(), 0);
    assert_eq!(folder.json(&["migrate", "verify", "--json"])["ok"], true);
}

#[test]
fn a_newer_folder_is_refused_and_left_alone() {
    let folder = format_1();
    stamp(&folder, 3);
    let files = |folder: &Folder| {
        let names = std::fs::read_dir(folder.data().join("kv")).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = names.map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        files.sort_by(|a, b| a.1.cmp(&b.1));
        files
    };
    let before = files(&folder);
    for arguments in
        [&["serve"][..], &["cache", "status"], &["migrate", "status"], &["migrate", "up"], &["migrate", "verify"]]
    {
        folder.run(arguments).failed_with(&["format 3", "upgrade ragstone"]);
    }
    assert_eq!((stamped(&folder).as_str(), files(&folder)), ("{\"format\":3}\n", before));
}

#[test]
fn a_stamp_that_is_not_true_is_told() {
    let folder = format_1();
    stamp(&folder, 2);
    let ran = folder.run(&["migrate", "verify", "--json"]).failed_with(&["do not hold"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap()["ok"], false);
    // A start makes it true.
    folder.run(&["cache", "status"]).succeeded();
    assert_eq!(folder.json(&["migrate", "verify", "--json"])["ok"], true);
    let fresh = Folder::new();
    assert_eq!(status(&fresh)["found"], json!(null));
    assert!(fresh.run(&["migrate", "verify"]).succeeded().stdout.contains("nothing"));
}
