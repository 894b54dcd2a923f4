//! Power cuts of the real program: what it answered over HTTP is there when it starts again, whatever the disk kept of what was not synced.
//! Most moments are tried without starting all of it: `actors/src/upkeep/library/tests/power_cuts.rs`.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use ragstone_env::Env;
use ragstone_power_cuts::{Disk, Left, Recorder, Recording};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::keys::{As, ask, send};

/// Starts, unless `RAGSTONE_TEST_POWER_STARTS` says otherwise (`ops/power-cuts`).
const STARTS: usize = 3;
const DOCUMENTS: &str = "/v1/collections/world/documents";

/// A change, and what the recording had when it was asked for and when it was answered.
struct Change {
    name: String,
    value: Option<String>,
    asked: u64,
    answered: u64,
}

struct Client<'a> {
    service: &'a Service,
    token: String,
    recording: PathBuf,
    changes: Vec<Change>,
}

impl Client<'_> {
    fn recorded(&self) -> u64 {
        std::fs::metadata(&self.recording).unwrap().len()
    }

    /// One change; its answer.
    async fn change(&mut self, (method, path): (Method, &str), body: &Value, name: &str, value: Option<&str>) -> Value {
        let asked = self.recorded();
        let answer = ask(self.service, method, path, As::Owner(&self.token), body).await;
        let answered = self.recorded();
        self.changes.push(Change { name: name.into(), value: value.map(str::to_owned), asked, answered });
        answer
    }

    async fn add(&mut self, id: &str, text: &str) {
        let documents = json!({ "documents": [{ "id": id, "title": "Boats", "text": text }] });
        self.change((Method::POST, DOCUMENTS), &documents, &format!("document {id}"), Some(text)).await;
    }

    async fn remove(&mut self, path: &str, name: &str) {
        self.change((Method::DELETE, path), &Value::Null, name, None).await;
    }

    async fn work(&mut self) {
        for number in 0..4 {
            self.add(&format!("d{number}"), &format!("Boat {number} lay in the harbour of Tarn.")).await;
        }
        let key = json!({ "name": "reader", "role": "read" });
        self.change((Method::POST, "/v1/keys"), &key, "key reader", Some("read")).await;
        let key = json!({ "name": "writer", "role": "write", "tenant": "acme" });
        self.change((Method::POST, "/v1/keys"), &key, "key writer", Some("write")).await;
        self.add("d1", "Boat 1 left for Orvik, and carried salt.").await;
        self.remove("/v1/keys/reader", "key reader").await;
        self.remove(&format!("{DOCUMENTS}/d2"), "document d2").await;
        let schema = json!({ "schema": "<schema name=\"codex\">Nine boats lay in the harbour.</schema>" });
        self.change((Method::POST, "/v1/pml/schemas"), &schema, "schema codex", Some("")).await;
        let items = json!({ "items": [{ "role": "user", "content": "How many boats?" }] });
        let begun = self.change((Method::POST, "/v1/conversations"), &items, "conversations", Some("1")).await;
        let conversation = format!("/v1/conversations/{}", begun["id"].as_str().unwrap());
        let asked = json!({ "input": "What do boats carry?", "max_output_tokens": 4, "temperature": 0 });
        // Its name is known when it is there.
        let before = self.recorded();
        let answer = ask(self.service, Method::POST, "/v1/responses", As::Owner(&self.token), &asked).await;
        let name = format!("response {}", answer["id"].as_str().unwrap());
        self.changes.push(Change { name, value: Some(String::new()), asked: before, answered: self.recorded() });
        self.remove(&format!("{DOCUMENTS}/d0"), "document d0").await;
        self.add("d2", "Boat 2 was built anew.").await;
        self.remove(&conversation, "conversations").await;
        self.remove("/v1/pml/schemas/codex", "schema codex").await;
    }
}

/// What the service has of all that.
async fn observed(service: &Service, token: &str, changes: &[Change]) -> BTreeMap<String, String> {
    let get = async |path: &str| send(service, Method::GET, path, As::Owner(token), &Value::Null).await;
    let list = async |path: &str| {
        let (status, text) = get(path).await;
        assert!(status == 200 || status == 404, "{path}: {text}");
        let list: Value = serde_json::from_str(&text).unwrap();
        list["data"].as_array().cloned().unwrap_or_default()
    };
    let text_of = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let mut found = BTreeMap::new();
    for document in list(DOCUMENTS).await {
        let id = text_of(&document, "id");
        let (status, text) = get(&format!("{DOCUMENTS}/{id}")).await;
        assert_eq!(status, 200, "{text}");
        let whole: Value = serde_json::from_str(&text).unwrap();
        found.insert(format!("document {id}"), text_of(&whole["passages"][0], "text"));
    }
    for key in list("/v1/keys").await {
        found.insert(format!("key {}", text_of(&key, "name")), text_of(&key, "role"));
    }
    for schema in list("/v1/pml/schemas").await {
        found.insert(format!("schema {}", text_of(&schema, "name")), String::new());
    }
    for id in changes.iter().filter_map(|change| change.name.strip_prefix("response ")) {
        let (status, text) = get(&format!("/v1/responses/{id}")).await;
        assert!(status == 200 || status == 404, "{text}");
        found.extend((status == 200).then(|| (format!("response {id}"), String::new())));
    }
    let conversations = list("/v1/conversations").await.len();
    if conversations > 0 {
        found.insert("conversations".into(), conversations.to_string());
    }
    found
}

/// What the changes allow a start to have after so many records.
fn assert_allowed(
    changes: &[Change],
    found: &BTreeMap<String, String>,
    recorded: usize,
    recording: &Recording,
    case: &str,
) {
    let mut allowed: BTreeMap<&str, Vec<Option<&str>>> = BTreeMap::new();
    for Change { name, value, asked, answered } in changes {
        let at = allowed.entry(name).or_insert_with(|| vec![None]);
        if recording.records_in(*answered) <= recorded {
            *at = vec![value.as_deref()];
        } else if recording.records_in(*asked) < recorded {
            at.push(value.as_deref());
        }
    }
    for name in found.keys() {
        assert!(allowed.contains_key(name.as_str()), "{case}: {name} came from nowhere");
    }
    for (name, allowed) in allowed {
        let is = found.get(name).map(String::as_str);
        assert!(allowed.contains(&is), "{case}: {name} is {is:?}, and may be {allowed:?}");
    }
}

async fn recorded(folder: &Folder, recorder: &Recorder) -> (Recording, Vec<Change>) {
    let to = folder.path().join("recording");
    std::fs::create_dir(folder.data()).unwrap();
    let mut command = folder.serve_command(&[]);
    command.args(["--set", "calibrate_when_idle=false"]);
    recorder.watch(&mut command, &folder.data(), &to).unwrap();
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    let mut client = Client { service: &service, token: folder.token(), recording: to.clone(), changes: Vec::new() };
    client.work().await;
    let changes = client.changes;
    service.kill();
    (Recording::read(&to).unwrap(), changes)
}

async fn start_again(disk: &Disk, recording: &Recording, left: Left, changes: &[Change]) -> BTreeMap<String, String> {
    let folder = Folder::new();
    std::fs::create_dir(folder.data()).unwrap();
    disk.cut(recording, left, &folder.data()).unwrap();
    let service = folder.serve(&["--set", "calibrate_when_idle=false"]).await;
    let found = observed(&service, &folder.token(), changes).await;
    // It goes on as before.
    service.add("world", &[("New", "A new boat came to Tarn.")]).await;
    assert_eq!(service.stop(), 0);
    found
}

#[tokio::test]
async fn what_was_answered_is_there_when_the_power_comes_back() {
    let folder = Folder::new();
    let Some(recorder) = Recorder::compile(folder.path()).unwrap() else {
        println!("there is no C compiler: no power cuts are tried");
        return;
    };
    let (recording, changes) = recorded(&folder, &recorder).await;
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let starts = number("RAGSTONE_TEST_POWER_STARTS").map_or(STARTS, |starts| starts as usize);
    let seed = number("RAGSTONE_TEST_SEED").unwrap_or(5);
    let random = Env::seeded(seed, 0);
    let (all, begun) = (recording.records.len(), recording.records_in(changes[0].asked));
    for start in 0..starts {
        let at = begun + random.random_u64() as usize % (all - begun + 1);
        let left = if start % 3 == 0 { Left::Nothing } else { Left::Some(random.random_u64()) };
        let mut disk = Disk::default();
        recording.records[..at].iter().for_each(|record| disk.apply(&recording, record));
        let case = format!("start {start}, seed {seed}: a cut after {at} of {all} changes, {left:?}");
        let found = start_again(&disk, &recording, left, &changes).await;
        assert_allowed(&changes, &found, at, &recording, &case);
    }
    println!("{starts} starts after power cuts among {all} changes, seed {seed}: 0 acknowledged losses");
}
