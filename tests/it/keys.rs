//! API keys and tenants: every path of the service, what each role may do there, and that nothing of one tenant is found, listed or
//! evicted by another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::cache::list;
use crate::harness::{Folder, Service, error_message};

mod hostile;
pub mod paths;

use self::paths::{PROBES, Probe};

const CHAT: &str = "/v1/chat/completions";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const SETTINGS: [&str; 6] =
    ["--keys", "required", "--set", "kv_admission=always", "--set", "calibrate_when_idle=false"];

/// What a tenant stores; the same for all, so that whoever could find another's would.
const TITLE: &str = "Quixotry";
const TEXT: &str = "Zanzibar Lanterns makes copper lanterns in the town of Orvik. Its director is Elka Dorman.";
const SCHEMA: &str =
    "<schema name=\"codex\">Nine boats lay in the harbour of Tarn this week, and three of them carried salt.</schema>";
const QUESTION: &str = "What does Zanzibar Lanterns make?";

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub enum As<'a> {
    Nobody,
    Key(&'a str),
    Owner(&'a str),
}

pub async fn send(service: &Service, method: Method, path: &str, who: As<'_>, body: &Value) -> (u16, String) {
    let is_get = method == Method::GET;
    let request = reqwest::Client::new().request(method, service.url(path));
    let request = match who {
        As::Nobody => request,
        As::Key(key) => request.bearer_auth(key),
        As::Owner(token) => request.header("x-ragstone-token", token),
    };
    let request = match body {
        Value::Null => request,
        Value::String(text) => request.body(text.clone()),
        body => request.json(body),
    };
    let mut response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let is_endless = response.headers().get("content-type").is_some_and(|kind| kind == EVENTS) && is_get;
    if is_endless {
        // `/v1/events`: how it begins.
        let first = response.chunk().await.unwrap().unwrap_or_default();
        return (status, String::from_utf8(first.to_vec()).unwrap());
    }
    (status, response.text().await.unwrap())
}

/// What must succeed and be JSON.
pub async fn ask(service: &Service, method: Method, path: &str, who: As<'_>, body: &Value) -> Value {
    let (status, text) = send(service, method, path, who, body).await;
    assert_eq!(status, 200, "{path} {who:?}: {text}");
    serde_json::from_str(&text).unwrap()
}

pub async fn new_key(service: &Service, owner: &str, wanted: Value) -> String {
    let added = ask(service, Method::POST, "/v1/keys", As::Owner(owner), &wanted).await;
    added["key"].as_str().unwrap().to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_that_could_not_be_printed_is_none() {
    let folder = Folder::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = folder.ragstone(&["keys", "add", "lost"]).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!folder.run(&["keys", "list"]).succeeded().stdout.contains("lost"));
    folder.run(&["keys", "add", "lost"]).succeeded();
}

/// Waits until nothing is computed or written any more behind the answers.
async fn settle(service: &Service, owner: &str) {
    let begun = ragstone_env::Stopwatch::start();
    loop {
        let status = ask(service, Method::GET, "/v1/cache/status", As::Owner(owner), &Value::Null).await;
        if status["background"] == 0 && status["store"]["to_disk"]["entries"] == 0 {
            return;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn chat(collection: &str) -> Value {
    json!({
        "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "collection": collection },
    })
}

/// A tenant's collection, document, schema and KV.
async fn store(service: &Service, key: &str) {
    let document = json!({ "documents": [{ "id": "ledger", "title": TITLE, "text": TEXT }] });
    ask(service, Method::POST, "/v1/collections/vault/documents", As::Key(key), &document).await;
    ask(service, Method::POST, "/v1/pml/schemas", As::Key(key), &json!({ "schema": SCHEMA })).await;
    let encode = "/v1/pml/schemas/codex/encode";
    let (status, told) = send(service, Method::POST, encode, As::Key(key), &json!({})).await;
    assert!(status == 200 && told.contains("finished"), "{told}");
    ask(service, Method::POST, CHAT, As::Key(key), &chat("vault")).await;
}

/// Everything of an answer that is the same for the same question.
fn scrubbed(text: &str) -> Value {
    const CHANGING: &[&str] = &[
        "id",
        "created",
        "created_at",
        "unix_ms",
        "added_unix_ms",
        "ttft",
        "ms",
        "predicted",
        "without",
        "in_tiers",
        "why",
        "pid",
        "completed_at",
        "created_unix_ms",
        "total_duration",
        "prompt_eval_duration",
        "eval_duration",
        "modified_at",
        "expires_at",
        // So small a model computes what a disk may decline or not.
        "entries_computed",
        "entries_declined",
    ];
    fn scrub(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, _| !CHANGING.contains(&name.as_str()));
                map.values_mut().for_each(scrub);
            }
            Value::Array(values) => values.iter_mut().for_each(scrub),
            _ => {}
        }
    }
    let events = || {
        text.trim_end().split("\n\n").map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok()).collect()
    };
    let events: Option<Vec<Value>> = events();
    let mut value = serde_json::from_str(text).ok().or(events.map(Value::from)).unwrap_or_else(|| json!(text));
    scrub(&mut value);
    value
}

/// What a key hears of every path, naming what another tenant may have.
async fn tour(service: &Service, owner: &str, who: As<'_>) -> BTreeMap<String, (u16, Value)> {
    let mut heard = BTreeMap::new();
    for (at, Probe { method, path, body, .. }) in PROBES.iter().enumerate() {
        // Its own plans grow with its own prompts.
        if *path == "/v1/cache/plans" {
            continue;
        }
        settle(service, owner).await;
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let (status, text) = send(service, method.clone(), path, who, &body()).await;
        heard.insert(format!("{at:02} {method} {path}"), (status, scrubbed(&text)));
    }
    heard
}

/// The paths of the router, with their methods, from its source: every path is made by `resource(path, methods, …)`.
fn routes() -> BTreeSet<(String, String)> {
    fn read(folder: &Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut sources = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("actors/service/src/http"), &mut sources);
    assert_eq!(sources.matches("web::resource(").count(), 1, "paths are made by `resource` alone");
    assert!(!sources.contains("web::scope(") && !sources.contains(".route(\""));
    let mut routes = BTreeSet::new();
    for made in sources.split("resource(").skip(1).filter(|made| made.trim_start().starts_with('"')) {
        let texts: Vec<&str> = made.split('"').take(4).collect();
        for method in texts[3].split(", ") {
            routes.insert((method.to_owned(), texts[1].to_owned()));
        }
    }
    assert!(routes.len() > 40, "{routes:?}");
    routes
}

/// A path with letters encoded that need not be: its first of each part, and all of them.
fn written_otherwise(path: &str) -> [String; 2] {
    let (path, query) = path.split_once('?').map_or((path, String::new()), |(path, query)| (path, format!("?{query}")));
    let encode = |is_meant: &dyn Fn(usize) -> bool| {
        let part = |part: &str| {
            let mut encoded = String::new();
            let mut left = 0;
            for (at, letter) in part.chars().enumerate() {
                // What is encoded already stays so.
                left = if letter == '%' { 3_usize } else { left }.saturating_sub(1);
                if left == 0 && letter.is_ascii_alphabetic() && is_meant(at) {
                    encoded.push_str(&format!("%{:02x}", letter as u32));
                } else {
                    encoded.push(letter);
                }
            }
            encoded
        };
        path.split('/').map(part).collect::<Vec<_>>().join("/") + &query
    };
    [encode(&|at| at == 0), encode(&|_| true)]
}

#[test]
fn every_path_is_probed() {
    let probed: BTreeSet<(String, String)> =
        PROBES.iter().map(|probe| (probe.method.to_owned(), probe.route.to_owned())).collect();
    assert_eq!(
        routes(),
        probed,
        "a new path needs a probe in paths.rs, and a row in actors/service/src/api/permissions.rs"
    );
}

#[tokio::test]
async fn every_path_wants_its_role() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let mut keys = Vec::new();
    for (role, letter) in [("read", 'r'), ("write", 'w'), ("admin", 'd')] {
        keys.push((letter, new_key(&service, &owner, json!({ "name": role, "role": role, "tenant": "blue" })).await));
    }
    for Probe { method, path, least, body, .. } in PROBES {
        let at = Method::from_bytes(method.as_bytes()).unwrap();
        let (status, text) = send(&service, at.clone(), path, As::Nobody, &body()).await;
        assert_eq!(status == 401, *least != 'a', "{method} {path}: {status} {text}");
        // However it is written.
        for written in written_otherwise(path) {
            for who in [As::Nobody, As::Key("rag_0000"), As::Key(&keys[0].1)] {
                let (status, text) = send(&service, at.clone(), &written, who, &body()).await;
                let may = matches!(who, As::Key(_)) && *least == 'r' && status < 500;
                assert!(
                    *least == 'a' || may || matches!(status, 401 | 403 | 404),
                    "{written} {who:?}: {status} {text}"
                );
            }
        }
        let (status, text) = send(&service, at.clone(), path, As::Key("rag_0000"), &body()).await;
        assert_eq!(status == 401, *least != 'a', "{method} {path}: {status} {text}");
        for (letter, key) in &keys {
            let (status, text) = send(&service, at.clone(), path, As::Key(key), &body()).await;
            let may = "arwdo".find(*letter) >= "arwdo".find(*least);
            assert_eq!(text.contains("has the role"), !may, "{method} {path} as {letter}: {status} {text}");
            assert!(may || status == 403, "{method} {path} as {letter}: {status} {text}");
            assert_ne!(status, 401, "{method} {path} as {letter}: {text}");
        }
        let (status, text) = send(&service, at, path, As::Owner(&owner), &body()).await;
        assert!(!matches!(status, 401 | 403 | 405 | 500), "{method} {path} as owner: {status} {text}");
    }
    // In OpenAI's shape, and what to send.
    let response = reqwest::get(service.url("/v1/models")).await.unwrap();
    assert_eq!(response.headers()["www-authenticate"], "Bearer realm=\"ragstone\"");
    let error: Value = response.json().await.unwrap();
    assert_eq!(
        (&error["error"]["type"], &error["error"]["code"]),
        (&json!("invalid_request_error"), &json!("invalid_api_key"))
    );
    assert!(error_message(&error).contains("Authorization: Bearer"), "{error}");
    assert_eq!(service.get("/v1/nowhere").await.0, 404);
    // Official clients read their own protocol's form alone.
    for (path, status, at) in
        [("/api/chat", 401, "/error"), ("/api/pull", 404, "/error"), ("/v1/messages", 401, "/error/message")]
    {
        let (got, text) = send(&service, Method::POST, path, As::Nobody, &json!({})).await;
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(got == status && error.pointer(at).is_some_and(Value::is_string), "{path}: {got} {text}");
    }
    let (status, text) = send(&service, Method::GET, "/api/chat", As::Nobody, &Value::Null).await;
    assert!(status == 405 && serde_json::from_str::<Value>(&text).unwrap()["error"].is_string(), "{status} {text}");
    let (status, error) = send(&service, Method::PATCH, "/v1/collections", As::Nobody, &Value::Null).await;
    assert_eq!(status, 405, "{error}");
}

/// Whatever acme stores, blue hears the same on every path as before, and cannot take any of it away.
#[tokio::test]
async fn what_one_tenant_stores_changes_nothing_for_another() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let key = async |name: &str, tenant: &str| {
        new_key(&service, &owner, json!({ "name": name, "role": "write", "tenant": tenant })).await
    };
    let (acme, blue) = (key("acme-writer", "acme").await, key("blue-writer", "blue").await);
    // The first is a cold one. A prompt that is blended a second time is computed exactly behind the answer, and then counts as new again:
    // so tours take turns.
    tour(&service, &owner, As::Key(&blue)).await;
    let before = [tour(&service, &owner, As::Key(&blue)).await, tour(&service, &owner, As::Key(&blue)).await];
    let stored = "/v1/collections/vault/documents";
    store(&service, &acme).await;
    settle(&service, &owner).await;
    let theirs = list(&folder, &["--tenant", "acme"]);
    assert!(!theirs.is_empty());
    for before in &before {
        let after = tour(&service, &owner, As::Key(&blue)).await;
        for (path, heard) in before {
            assert_eq!(heard, &after[path], "{path}");
        }
    }
    // What it asked was served from its own KV, so that the reports had something to tell.
    let cached = |heard: &Value| heard["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    assert!(before[1].values().filter(|(_, heard)| cached(heard) > 0).count() > 2, "{before:?}");
    let plans = ask(&service, Method::GET, "/v1/cache/plans", As::Key(&blue), &Value::Null).await;
    let plans = plans["plans"].as_array().unwrap();
    assert!(!plans.is_empty() && plans.iter().all(|plan| plan["tenant"] == "blue" && plan.get("number").is_none()));

    // Nothing of acme's is gone: text, schema, KV entry by entry.
    let listed = ask(&service, Method::GET, stored, As::Key(&acme), &Value::Null).await;
    assert_eq!(listed["data"][0]["title"], TITLE, "{listed}");
    ask(&service, Method::GET, "/v1/pml/schemas/codex", As::Key(&acme), &Value::Null).await;
    let keys = |entries: &[Value]| entries.iter().map(|entry| entry["key"].to_string()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&list(&folder, &["--tenant", "acme"])), keys(&theirs));
    let again = ask(&service, Method::POST, CHAT, As::Key(&acme), &chat("vault")).await;
    assert!(cached(&again) > 0, "{again}");
}

/// Deleting what others have, too, tells nothing and takes nothing: each tenant's KV follows its own documents.
#[tokio::test]
async fn a_deletion_reaches_its_own_tenant() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let mut heard = Vec::new();
    let document = json!({ "documents": [{ "id": "ledger", "title": TITLE, "text": TEXT }] });
    let at = "/v1/collections/vault/documents";
    for tenant in ["acme", "blue"] {
        let key = new_key(&service, &owner, json!({ "name": tenant, "role": "write", "tenant": tenant })).await;
        ask(&service, Method::POST, at, As::Key(&key), &document).await;
        ask(&service, Method::POST, CHAT, As::Key(&key), &chat("vault")).await;
        settle(&service, &owner).await;
        heard.push(key);
    }
    let [acme, blue] = &heard[..] else { unreachable!("two keys") };
    let of = |tenant: &str| list(&folder, &["--tenant", tenant]).len();
    let (had, others) = (of("acme"), of("blue"));
    assert!(had > 0 && had == others);
    let gone = ask(&service, Method::DELETE, &format!("{at}/ledger"), As::Key(acme), &Value::Null).await;
    assert_eq!(gone["passages_removed"], 1, "{gone}");
    assert_eq!(gone["entries_removed"], had - of("acme"), "{gone}");
    assert!(gone["entries_removed"].as_u64().unwrap() > 0, "blue's document does not keep it: {gone}");
    assert_eq!(of("blue"), others);
    // What blue is told is the same as if it were alone.
    let blues = ask(&service, Method::DELETE, "/v1/collections/vault", As::Key(blue), &Value::Null).await;
    assert_eq!(blues["entries_removed"], gone["entries_removed"], "{blues}");
    // An empty collection stays its tenant's; another's is gone.
    let listed = ask(&service, Method::GET, "/v1/collections", As::Key(acme), &Value::Null).await;
    assert_eq!(listed["data"][0]["name"], "vault", "{listed}");
    let all = ask(&service, Method::GET, "/v1/collections", As::Owner(&owner), &Value::Null).await;
    assert_eq!(all["data"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all["data"][0]["name"], "acme/vault", "{all}");
}

#[tokio::test]
async fn a_collection_is_shared_by_grant_and_only_as_the_key_may() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let key = async |name: &str, role: &str, tenant: &str, collections: &[&str]| {
        let wanted = json!({ "name": name, "role": role, "tenant": tenant, "collections": collections });
        new_key(&service, &owner, wanted).await
    };
    // What the owner makes is the default tenant's.
    let document = |id: &str| json!({ "documents": [{ "id": id, "title": TITLE, "text": TEXT }] });
    ask(&service, Method::POST, "/v1/collections/public/documents", As::Owner(&owner), &document("a")).await;
    let acme = key("acme", "write", "acme", &[]).await;
    ask(&service, Method::POST, "/v1/collections/handbook/documents", As::Key(&acme), &document("b")).await;
    let reader = key("reader", "read", "blue", &["acme/handbook", "public"]).await;
    let writer = key("writer", "write", "green", &["acme/handbook"]).await;
    let names = async |key: &str| {
        let listed = ask(&service, Method::GET, "/v1/collections", As::Key(key), &Value::Null).await;
        listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&acme).await, ["handbook"]);
    assert_eq!(names(&reader).await, ["acme/handbook", "/public"]);
    assert_eq!(names(&writer).await, ["acme/handbook"]);
    for (name, status) in
        [("acme%2Fhandbook", 200), ("%2Fpublic", 200), ("public", 404), ("acme%2Fother", 403), ("%2Fother", 403)]
    {
        let path = format!("/v1/collections/{name}/search");
        let (heard, text) = send(&service, Method::POST, &path, As::Key(&reader), &json!({ "query": QUESTION })).await;
        assert_eq!(heard, status, "{name} {text}");
    }
    let answer = ask(&service, Method::POST, CHAT, As::Key(&reader), &chat("acme/handbook")).await;
    assert_eq!(answer["ragstone"]["citations"][0]["document_id"], "b", "{answer}");
    assert_eq!(send(&service, Method::POST, CHAT, As::Key(&reader), &chat("acme/other")).await.0, 403);
    let at = "/v1/collections/acme%2Fhandbook/documents";
    assert_eq!(send(&service, Method::POST, at, As::Key(&reader), &document("c")).await.0, 403);
    ask(&service, Method::POST, CHAT, As::Key(&writer), &chat("acme/handbook")).await;
    settle(&service, &owner).await;
    let of = |tenant: &str| list(&folder, &["--tenant", tenant]).len();
    let (readers, writers) = (of("blue"), of("green"));
    // A grant is for reading, whatever the key's role.
    let whole = Value::Null;
    for (method, path, body) in [
        (Method::POST, at.to_owned(), &document("c")),
        (Method::PUT, "/v1/collections/acme%2Fhandbook/files/a.md".to_owned(), &json!(TEXT)),
        (Method::DELETE, format!("{at}/b"), &whole),
        (Method::DELETE, "/v1/collections/acme%2Fhandbook".to_owned(), &whole),
    ] {
        let (status, heard) = send(&service, method.clone(), &path, As::Key(&writer), body).await;
        assert!(status == 403 && heard.contains("read alone"), "{method} {path}: {status} {heard}");
    }
    // The owner, and an admin who names a tenant that has nothing, ask over it, too.
    let admin = key("admin", "admin", "", &[]).await;
    let mut named = chat("acme/handbook");
    named["ragstone"]["tenant"] = json!("passing");
    ask(&service, Method::POST, CHAT, As::Owner(&owner), &chat("acme/handbook")).await;
    ask(&service, Method::POST, CHAT, As::Key(&admin), &named).await;
    settle(&service, &owner).await;
    let (owners, passing) = (of(""), of("passing"));
    assert!(owners > 0 && passing > 0);
    // When the text goes, everybody's KV of it does, but for those who may read it elsewhere; what others had is not counted.
    let own = "/v1/collections/handbook/documents/b";
    let gone = ask(&service, Method::DELETE, own, As::Key(&acme), &Value::Null).await;
    assert_eq!((&gone["passages_removed"], &gone["entries_removed"]), (&json!(1), &json!(0)), "{gone}");
    assert!(of("green") < writers && of("passing") < passing, "{writers} {passing}");
    assert_eq!((of(""), of("blue")), (owners, readers));
    // Also by a command that knows nothing of how the service was started.
    assert_eq!(service.stop(), 0);
    folder.run(&["cache", "invalidate", "--collection", "public", "--document", "a"]).succeeded();
    assert!(of("blue") < readers && of("") < owners, "{readers} {owners}");
}

#[tokio::test]
async fn a_tenant_follows_from_the_key() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let blue = new_key(&service, &owner, json!({ "name": "b", "role": "write", "tenant": "blue" })).await;
    let admin = new_key(&service, &owner, json!({ "name": "d", "role": "admin" })).await;
    let text = |tenant: Value| json!({ "prompt": "Hello", "max_tokens": 1, "ragstone": { "tenant": tenant } });
    let schema = |tenant: Value| json!({ "schema": SCHEMA, "tenant": tenant });
    for (path, body) in [("/v1/completions", &text as &dyn Fn(Value) -> Value), ("/v1/pml/schemas", &schema)] {
        for (who, tenant, status) in [
            (As::Key(&blue), json!("blue"), 200),
            (As::Key(&blue), Value::Null, 200),
            (As::Key(&blue), json!("acme"), 403),
            (As::Key(&blue), json!(""), 403),
            (As::Key(&admin), json!("acme"), 200),
            (As::Owner(&owner), json!("acme"), 200),
        ] {
            let (heard, answer) = send(&service, Method::POST, path, who, &body(tenant.clone())).await;
            assert_eq!(heard, status, "{path} {who:?} {tenant}: {answer}");
        }
    }
    assert_eq!(send(&service, Method::GET, "/v1/pml/schemas?tenant=acme", As::Key(&blue), &Value::Null).await.0, 403);
    let plans = ask(&service, Method::GET, "/v1/cache/plans", As::Key(&admin), &Value::Null).await;
    let of: BTreeSet<&str> =
        plans["plans"].as_array().unwrap().iter().filter_map(|plan| plan["tenant"].as_str()).collect();
    assert_eq!(of, BTreeSet::from(["acme", "blue"]));
    let status = ask(&service, Method::GET, "/v1/cache/status", As::Key(&blue), &Value::Null).await;
    assert_eq!(status["key"], json!({ "name": "b", "role": "write", "tenant": "blue", "collections": [] }));
    assert_eq!(status.as_object().unwrap().len(), 2, "{status}");
}

/// Every file below a folder holds none of `secrets`.
fn nowhere_below(folder: &Path, secrets: &[String]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            nowhere_below(&path, secrets);
        } else if let Ok(bytes) = std::fs::read(&path) {
            let text = String::from_utf8_lossy(&bytes);
            for secret in secrets {
                // Its first half would be too much already.
                assert!(!text.contains(&secret[4..36]), "{} holds a key", path.display());
            }
        }
    }
}

#[tokio::test]
async fn keys_survive_restarts_and_kills_and_are_written_nowhere() {
    let folder = Folder::new();
    let log = folder.write("log", "");
    let serve = || {
        let mut command = folder.serve_command(&[("RAGSTONE_LOG", "trace")]);
        command.args(SETTINGS).stderr(std::fs::OpenOptions::new().append(true).open(&log).unwrap());
        Service::start_unready(command)
    };
    // Without a service, too.
    let added = folder.json(&["keys", "add", "first", "--role", "write", "--tenant", "blue", "--json"]);
    let first = added["key"].as_str().unwrap().to_owned();
    let service = serve();
    service.wait_until_ready().await;
    let second = folder.run(&["keys", "add", "second", "--tenant", "blue"]).succeeded();
    assert!(second.stderr.contains("shown once"), "{second:?}");
    let second = second.stdout.trim().to_owned();
    store(&service, &first).await;
    for key in [&first, &second] {
        ask(&service, Method::POST, CHAT, As::Key(key), &chat("vault")).await;
    }
    service.kill();
    let service = serve();
    service.wait_until_ready().await;
    for key in [&first, &second] {
        ask(&service, Method::GET, "/v1/models", As::Key(key), &Value::Null).await;
    }
    // At once, and for good.
    folder.run(&["keys", "revoke", "first"]).failed_with(&["--yes"]);
    folder.run(&["keys", "revoke", "first", "--yes"]).succeeded();
    assert_eq!(send(&service, Method::GET, "/v1/models", As::Key(&first), &Value::Null).await.0, 401);
    folder.run(&["keys", "revoke", "first", "--yes"]).failed_with(&["no key `first`"]);
    assert_eq!(service.stop(), 0);
    let service = serve();
    service.wait_until_ready().await;
    assert_eq!(send(&service, Method::GET, "/v1/models", As::Key(&first), &Value::Null).await.0, 401);
    ask(&service, Method::GET, "/v1/models", As::Key(&second), &Value::Null).await;
    let listed = folder.run(&["keys", "list"]).succeeded();
    assert_eq!(listed.stdout, "name    role  tenant  collections\nsecond  read  blue\n", "{listed:?}");
    assert_eq!(folder.json(&["keys", "list", "--json"])[0]["name"], "second");
    assert_eq!(service.stop(), 0);
    let told = std::fs::metadata(&log).unwrap().len();
    assert!(told > 10_000, "the log has only {told} bytes");
    nowhere_below(folder.path(), &[first, second]);
}

#[tokio::test]
async fn the_command_line_works_where_keys_are_required() {
    let folder = Folder::new();
    let notes = folder.write("notes/boats.md", "# Boats\n\nNine boats lay in the harbour of Tarn this week.");
    let mut command = folder.ragstone(&["serve", "--listen", "0.0.0.0:0", "--keys", "required"]);
    command.env("RAGSTONE_LOG", "error");
    // Keys are enough to be reached from elsewhere.
    let service = Service::start_unready(command);
    let address = service.address.replace("0.0.0.0", "127.0.0.1");
    for collection in ["default", "acme/default"] {
        folder.run(&["ingest", notes.to_str().unwrap(), "--collection", collection]).succeeded();
    }
    let rows = folder.run(&["collections", "list"]).succeeded().stdout;
    let lines =
        ["name          documents  passages", "acme/default          1         1", "default               1         1"];
    assert_eq!(rows.lines().collect::<Vec<_>>(), lines);
    folder.run(&["ask", "How many boats?", "--collection", "acme/default"]).succeeded();
    folder.run(&["cache", "status"]).succeeded();
    folder.run(&["cache", "invalidate", "--collection", "acme/default", "--yes"]).succeeded();
    let get = async |path: &str| reqwest::get(format!("{address}{path}")).await.unwrap().status().as_u16();
    assert_eq!((get("/healthz").await, get("/readyz").await, get("/").await), (200, 200, 200));
    assert_eq!((get("/metrics").await, get("/v1/cache/status").await), (401, 401));
    let health = folder.health_address();
    let health_of = async |path: &str| reqwest::get(format!("{health}{path}")).await.unwrap().status().as_u16();
    assert_eq!((health_of("/healthz").await, health_of("/readyz").await, health_of("/metrics").await), (200, 200, 401));
    let token = folder.token();
    let metrics = reqwest::Client::new().get(format!("{health}/metrics")).header("x-ragstone-token", &token);
    assert_eq!(metrics.send().await.unwrap().status(), 200);
    drop(service);
    // With keys off they are made, listed and without effect.
    let folder = Folder::new();
    let service = folder.serve(&["--set", "metrics_open=true"]).await;
    folder.run(&["keys", "add", "early"]).succeeded();
    assert_eq!(service.get("/v1/keys").await.0, 403);
    assert_eq!(send(&service, Method::GET, "/v1/models", As::Key("anything"), &Value::Null).await.0, 200);
    drop(service);
    let service = folder.serve(&["--set", "metrics_open=true", "--keys", "required"]).await;
    assert_eq!((service.get("/metrics").await.0, service.get("/v1/models").await.0), (200, 401));
}

/// The message names what whoever asks may read, by the names that it calls it by, and nothing of others.
#[tokio::test]
async fn a_collection_that_is_not_there_is_answered_with_those_that_the_key_may_read() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let token = folder.token();
    let key = async |wanted: Value| new_key(&service, &token, wanted).await;
    let acme = key(json!({ "name": "a", "role": "write", "tenant": "acme" })).await;
    let blue = key(json!({ "name": "b", "role": "write", "tenant": "blue" })).await;
    let reader = key(json!({ "name": "c", "tenant": "blue", "collections": ["acme/vault"] })).await;
    let nobody = key(json!({ "name": "d", "tenant": "green" })).await;
    for key in [&acme, &blue] {
        store(&service, key).await;
    }
    let document = json!({ "documents": [{ "text": TEXT }] });
    ask(&service, Method::POST, "/v1/collections/secret/documents", As::Key(&acme), &document).await;
    let search = json!({ "query": QUESTION });
    for (who, known) in [
        (As::Key(&acme), ": `secret`, `vault`"),
        (As::Key(&blue), ": `vault`"),
        (As::Key(&reader), ": `acme/vault`, `vault`"),
        (As::Key(&nobody), "nor any other yet: `ragstone ingest PATH` begins one"),
        (As::Owner(&token), ": `acme/secret`, `acme/vault`, `blue/vault`"),
    ] {
        for (method, path, body) in [
            (Method::POST, CHAT, &chat("default")),
            (Method::POST, "/v1/collections/default/search", &search),
            (Method::GET, "/v1/collections/default/documents", &Value::Null),
        ] {
            let (status, text) = send(&service, method, path, who, body).await;
            let message = error_message(&serde_json::from_str(&text).unwrap());
            assert_eq!(status, 404, "{path} {who:?}: {text}");
            assert!(message.starts_with("there is no collection `default`"), "{path} {who:?}: {message}");
            assert!(message.ends_with(known), "{path} {who:?}: {message}");
        }
    }
    // Another's is no less forbidden, and nothing is named.
    let (status, text) = send(&service, Method::POST, CHAT, As::Key(&blue), &chat("acme/secret")).await;
    assert!(status == 403 && !text.contains("vault"), "{text}");
}

/// Also where an answer was stopped, so that what came of it was appended by itself.
#[tokio::test]
async fn what_is_appended_from_a_collection_is_for_keys_that_may_read_it() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let token = folder.token();
    let granted = json!({ "name": "a", "tenant": "blue", "collections": ["acme/vault"] });
    let reader = new_key(&service, &token, granted).await;
    let other = new_key(&service, &token, json!({ "name": "b", "tenant": "blue" })).await;
    let begun = ask(&service, Method::POST, "/v1/conversations", As::Key(&reader), &json!({})).await;
    let at = format!("/v1/conversations/{}", begun["id"].as_str().unwrap());
    let items = json!([
        { "role": "user", "content": QUESTION }, { "role": "assistant", "content": "Copper", "status": "incomplete" },
    ]);
    let (path, stopped) = (format!("{at}/items"), json!({ "items": items, "collection": "acme/vault" }));
    assert_eq!(send(&service, Method::POST, &path, As::Key(&other), &stopped).await.0, 403);
    ask(&service, Method::POST, &path, As::Key(&reader), &stopped).await;
    for (key, expected) in [(&reader, 200), (&other, 404)] {
        let (status, text) = send(&service, Method::GET, &format!("{at}/turns"), As::Key(key), &Value::Null).await;
        assert_eq!(status, expected, "{text}");
    }
    let listed = ask(&service, Method::GET, "/v1/conversations", As::Key(&other), &Value::Null).await;
    assert_eq!(listed["data"], json!([]));
}

/// What makes no key changes no quota of the tenant's others.
#[tokio::test]
async fn a_key_that_is_refused_changes_no_quota() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let token = folder.token();
    new_key(&service, &token, json!({ "name": "alice", "tenant": "acme", "quota": { "documents": 7 } })).await;
    for name in ["alice", "a/b"] {
        let wanted = json!({ "name": name, "tenant": "acme", "quota": { "documents": 0 } });
        let (status, text) = send(&service, Method::POST, "/v1/keys", As::Owner(&token), &wanted).await;
        assert_eq!(status, 400, "{text}");
    }
    let keys = ask(&service, Method::GET, "/v1/keys", As::Owner(&token), &Value::Null).await;
    assert_eq!(keys["data"][0]["quota"], json!({ "documents": 7 }));
}
