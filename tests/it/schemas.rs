//! Prompt Markup Language through the whole program: schemas that are kept, their modules in every tier, over restarts and changes.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};

const SCHEMA: &str = "<schema name=\"trip\">Nine boats lay in the harbour of Tarn this week, and three of them carried salt.\
    <module name=\"stay\">The boats stay for <parameter name=\"days\" length=\"6\"/> days in all, and then they leave the harbour again.</module>\
    <union><module name=\"lamps\">Calbet Works makes copper lanterns in the town of Orvik.</module>\
    <module name=\"boats\">Elka Dorman was born in Tarn, plays the lute, and owns four boats.</module></union></schema>";
const PROMPT: &str = "<prompt schema=\"trip\"><stay days=\"nine\"/><lamps/>How many boats lay in Tarn?</prompt>";

async fn run(service: &Service, prompt: &str, extension: Value) -> Value {
    let body = json!({ "prompt": prompt, "max_tokens": 6, "temperature": 0, "ragstone": extension });
    let (status, answer) = service.post("/v1/completions", &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn as_owner(folder: &Folder, url: String, method: Method, body: &Value) -> (u16, Value) {
    let request = reqwest::Client::new().request(method, url).header("x-ragstone-token", folder.token());
    let response = request.json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Computes modules ahead; how many were computed, and how many were there.
fn encoded(folder: &Folder, arguments: &[&str]) -> (u64, u64) {
    let done = folder.json(&[&["pml", "encode"], arguments, &["--json"]].concat());
    let number = |name: &str| done[name].as_u64().unwrap();
    assert_eq!(number("passages_done"), number("passages_total"), "{done}");
    (number("entries_computed"), number("entries_skipped"))
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

/// Tokens that were computed, and the tiers that others came from.
fn computed(answer: &Value) -> (u64, Vec<&str>) {
    let report = &answer["ragstone"]["report"];
    let tiers = report["segments"].as_array().unwrap().iter().filter_map(|segment| segment["tier"].as_str());
    (report["tokens"]["computed"].as_u64().unwrap(), tiers.collect())
}

#[tokio::test]
async fn a_schema_that_is_kept_serves_prompts_over_restarts_and_changes() {
    let folder = Folder::new();
    // So small a model computes faster than a disk is read.
    let all = ["--set", "kv_admission=always", "--set", "device_cache=false"];
    let service = folder.serve(&all).await;
    let (status, added) = service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA })).await;
    assert_eq!((status, &added["name"], &added["is_new"]), (200, &json!("trip"), &json!(true)), "{added}");
    let paths: Vec<&str> = added["modules"].as_array().unwrap().iter().filter_map(|it| it["path"].as_str()).collect();
    assert_eq!(paths, ["/", "stay", "boats", "lamps"]);
    let (_, again) = service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA })).await;
    assert_eq!((&again["version"], &again["is_new"]), (&added["version"], &json!(false)));

    // By name, and as it comes along: one prompt, one answer, and modules are computed once.
    assert_eq!(encoded(&folder, &["trip", "--module", "lamps"]), (1, 0));
    assert_eq!(encoded(&folder, &["trip"]), (4, 1));
    let first = run(&service, PROMPT, json!({ "pml": { "name": "trip" } })).await;
    let (alone, tiers) = computed(&first);
    assert!(tiers.len() == 4 && tiers.iter().all(|tier| *tier == "host"), "{tiers:?}");
    let sent = run(&service, PROMPT, json!({ "pml": { "schema": SCHEMA } })).await;
    assert_eq!((text(&sent), computed(&sent).0), (text(&first), alone));
    // Another tenant has neither the schema nor its KV.
    let body = json!({ "prompt": PROMPT, "ragstone": { "pml": { "name": "trip" }, "tenant": "other" } });
    let (status, refused) = service.post("/v1/completions", &body).await;
    assert!(status == 404 && refused["error"]["message"].as_str().unwrap().contains("`trip`"), "{refused}");
    assert_eq!(service.get("/v1/pml/schemas?tenant=other").await.1["data"], json!([]));
    assert_eq!(service.stop(), 0);

    // From the disk after a restart.
    let service = folder.serve(&all).await;
    let later = run(&service, PROMPT, json!({ "pml": { "name": "trip" } })).await;
    let (same, tiers) = computed(&later);
    assert_eq!((text(&later), same), (text(&first), alone));
    assert!(tiers.len() == 4 && tiers.iter().all(|tier| *tier == "disk"), "{tiers:?}");

    // Another tenant computes KV of his own, and takes nothing of others along.
    let (_, theirs) = service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA, "tenant": "other" })).await;
    assert_eq!(theirs["is_new"], true);
    assert_eq!(encoded(&folder, &["trip", "--tenant", "other"]), (5, 0));
    let small = json!({ "schema": "<schema name='trip'>Nothing.</schema>", "tenant": "other" });
    assert_eq!(service.post("/v1/pml/schemas", &small).await.1["entries_removed"], 5);
    assert_eq!(encoded(&folder, &["trip"]), (0, 5));

    // One module changes: its old KV goes, that of the others stays.
    let changed = SCHEMA.replace("copper lanterns", "iron lanterns");
    let (_, added) = service.post("/v1/pml/schemas", &json!({ "schema": changed })).await;
    assert_eq!((&added["is_new"], &added["entries_removed"]), (&json!(true), &json!(1)), "{added}");
    assert_eq!(encoded(&folder, &["trip"]), (1, 4));
    let (_, shown) = service.get("/v1/pml/schemas/trip").await;
    assert_eq!((&shown["version"], shown["schema"].as_str()), (&added["version"], Some(changed.as_str())));

    // What another schema says, too, stays.
    let other = "<schema name=\"other\"><module name=\"a\">Elka Dorman was born in Tarn, plays the lute, and owns four boats.</module></schema>";
    service.post("/v1/pml/schemas", &json!({ "schema": other })).await;
    let (status, removed) = as_owner(&folder, service.url("/v1/pml/schemas/trip"), Method::DELETE, &json!({})).await;
    assert_eq!((status, &removed["entries_removed"]), (200, &json!(4)), "{removed}");
    assert_eq!(service.get("/v1/pml/schemas/trip").await.0, 404);
    assert_eq!(encoded(&folder, &["other"]), (0, 1));
    assert_eq!(service.stop(), 0);
}

/// An answer over modules in the shape of chat.
#[tokio::test]
async fn a_chat_takes_a_prompt_of_modules() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let schema = "<schema name=\"talk\">Answer from what you read.<module name=\"boats\">Nine boats lay in Tarn.</module></schema>";
    service.post("/v1/pml/schemas", &json!({ "schema": schema })).await;
    let prompt = "<prompt schema=\"talk\"><boats/>How many boats lay in Tarn?</prompt>";
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let body = |messages: Value, extension: Value| json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "ragstone": extension });
    let pml = json!({ "pml": { "name": "talk" } });
    let chat = service.ask("/v1/chat/completions", &body(json!([message("user", prompt)]), pml.clone())).await;
    let completed = run(&service, prompt, pml.clone()).await;
    assert_eq!(chat["choices"][0]["message"]["content"].as_str(), Some(text(&completed)), "{chat}");
    assert_eq!(chat["object"], "chat.completion");
    assert!(chat["ragstone"]["report"]["tokens"]["blended"].as_u64().unwrap() > 0, "{chat}");
    let streamed = json!({ "messages": [message("user", prompt)], "max_tokens": 6, "temperature": 0, "stream": true, "ragstone": pml });
    assert!(!service.stream("/v1/chat/completions", &streamed).await.is_empty());

    for (body, words) in [
        (body(json!([message("system", "a"), message("user", prompt)]), pml.clone()), "one user message"),
        (body(json!([message("assistant", prompt)]), pml.clone()), "one user message"),
        (body(json!([message("user", "<prompt")]), pml.clone()), "line 1"),
        (body(json!([message("user", prompt)]), json!({ "pml": { "name": "talk" }, "collection": "c" })), "passages"),
    ] {
        let (status, answer) = service.post("/v1/chat/completions", &body).await;
        assert!(status == 400 && crate::harness::error_message(&answer).contains(words), "{body}: {answer}");
    }
    assert_eq!(service.stop(), 0);
}

/// What stands before each text of a scaffold is kept for it: the square of a small text.
fn many_scaffolds() -> String {
    let names: Vec<String> = (0..1000).map(|at| format!("m{at}")).collect();
    let modules: String = names.iter().map(|name| format!("<module name=\"{name}\">a</module>")).collect();
    let scaffolds = format!("<scaffold modules=\"{}\"/>", names.join(",")).repeat(20);
    format!("<schema name=\"big\">{modules}{scaffolds}</schema>")
}

#[tokio::test]
async fn what_is_wrong_with_a_schema_is_one_clear_error() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA })).await;
    for (path, body, status, words) in [
        ("/v1/pml/schemas", json!({}), 400, "schema"),
        ("/v1/pml/schemas", json!({ "schema": "<schema" }), 400, "line 1"),
        ("/v1/pml/schemas", json!({ "schema": "<schema name='a'/>", "tenant": "a\nb" }), 400, "tenant"),
        ("/v1/pml/schemas", json!({ "schema": format!("<schema name='{}'>a</schema>", "x".repeat(200)) }), 400, "128"),
        ("/v1/pml/schemas", json!({ "schema": SCHEMA, "extra": 1 }), 400, "extra"),
        ("/v1/pml/schemas", json!({ "schema": many_scaffolds() }), 400, "leave out scaffolds"),
        ("/v1/cache/warm", json!({ "schema": "none" }), 404, "none"),
        ("/v1/cache/warm", json!({ "schema": "trip", "modules": ["lamps", "no"] }), 400, "`no`"),
        ("/v1/cache/warm", json!({ "schema": "trip", "collection": "c" }), 400, "collection"),
        ("/v1/cache/warm", json!({ "schema": "trip", "tenants": ["", "other"] }), 400, "one at a time"),
        ("/v1/cache/pin", json!({ "schema": "none" }), 404, "none"),
        ("/v1/cache/pin", json!({ "schema": "trip", "module": "no" }), 400, "`no`"),
        ("/v1/cache/pin", json!({ "module": "lamps" }), 400, "schema"),
        ("/v1/completions", json!({ "prompt": PROMPT, "ragstone": { "pml": {} } }), 400, "either"),
        ("/v1/completions", json!({ "prompt": "<prompt", "ragstone": { "pml": { "name": "trip" } } }), 400, "line 1"),
        (
            "/v1/completions",
            json!({ "prompt": "<prompt schema='trip'><no/></prompt>", "ragstone": { "pml": { "name": "trip" } } }),
            400,
            "no",
        ),
    ] {
        let (got, answer) = as_owner(&folder, service.url(path), Method::POST, &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(got == status && message.contains(words), "{path} {body}: {got} {answer}");
    }
    // Deleting, and computing without being asked, is the owner's.
    assert_eq!(service.post("/v1/cache/warm", &json!({ "schema": "trip" })).await.0, 403);
    assert_eq!(service.get("/v1/pml/schemas").await.1["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(service.stop(), 0);
}

#[test]
fn the_commands_keep_a_schema_and_run_its_prompts() {
    let folder = Folder::new();
    let schema = folder.write(
        "trip.xml",
        SCHEMA
            .replace("Calbet Works makes copper lanterns in the town of Orvik.", "")
            .replace("<module name=\"lamps\">", "<module name=\"lamps\" src=\"lamps.txt\">"),
    );
    folder.write("lamps.txt", "Calbet Works makes copper lanterns in the town of Orvik.");
    let prompt = folder.write("prompt.xml", PROMPT);
    let prompt = prompt.to_str().unwrap();
    folder.run(&["pml", "add", schema.to_str().unwrap()]).succeeded();
    let listed = folder.json(&["pml", "list", "--json"]);
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["name"]), (Some(1), &json!("trip")));
    assert!(folder.run(&["pml", "show", "trip"]).succeeded().stdout.contains("lamps"));
    let kept = folder.json(&["pml", "run", "trip", prompt, "--max-tokens", "4", "--json"]);
    let sent = folder.json(&["pml", "run", schema.to_str().unwrap(), prompt, "--max-tokens", "4", "--json"]);
    assert_eq!(kept["answer"], sent["answer"]);
    folder.run(&["pml", "encode", "trip"]).succeeded();
    folder.run(&["pml", "remove", "trip"]).failed_with(&["--yes"]);
    folder.run(&["pml", "remove", "trip", "--yes"]).succeeded();
    folder.run(&["pml", "run", "trip", prompt]).failed_with(&["no schema `trip`"]);
}

/// What the cache verbs say of a schema's entries: named, pinned, evicted and warmed by schema and module.
#[tokio::test]
async fn the_cache_verbs_know_modules() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    for tenant in ["", "other"] {
        service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA, "tenant": tenant })).await;
    }
    // What would be computed, and what is once it is.
    let dry = folder.json(&["cache", "warm", "--schema", "trip", "--dry-run", "--json"]);
    assert_eq!((&dry["passages"], &dry["entries_missing"]), (&json!(5), &json!(5)), "{dry}");
    assert!(folder.run(&["cache", "warm", "--schema", "trip"]).succeeded().stdout.contains("5 texts of modules"));
    assert_eq!(encoded(&folder, &["trip", "--tenant", "other"]), (5, 0));
    crate::cache::settle(&service).await;

    let list = |arguments: &[&str]| {
        let found = folder.json(&[&["cache", "list", "--json"], arguments].concat());
        found["data"].as_array().unwrap().iter().map(|entry| entry["of"].clone()).collect::<Vec<_>>()
    };
    let of = |module: &str| json!({ "kind": "module", "schema": "trip", "module": module });
    let mut all = list(&["--schema", "trip"]);
    all.sort_by_key(ToString::to_string);
    assert_eq!(all, ["/", "boats", "lamps", "stay", "stay"].map(of));
    assert_eq!(list(&["--schema", "trip", "--tenant", "other"]).len(), 5);
    assert_eq!(list(&[]).len(), 10, "everybody's");
    assert_eq!(list(&["--schema", "trip", "--module", "lamps"]), [of("lamps")]);
    let shown = folder.run(&["cache", "list", "--schema", "trip"]).succeeded().stdout;
    assert!(shown.contains("module stay of schema trip") && shown.contains("text of schema trip"), "{shown}");

    // Pinned by module, it stays where the schema's others leave; of another tenant nothing moves.
    assert_eq!(folder.json(&["cache", "pin", "--schema", "trip", "--module", "lamps", "--json"])["changed"], 1);
    let gone = folder.json(&["cache", "evict", "--schema", "trip", "--json"]);
    assert_eq!((&gone["entries"], &gone["pinned"]), (&json!(4), &json!(1)), "{gone}");
    assert_eq!(list(&["--schema", "trip"]), [of("lamps")]);
    assert_eq!(list(&["--schema", "trip", "--tenant", "other"]).len(), 5);
    // A schema that goes takes along what is pinned, and the pin.
    folder.run(&["pml", "remove", "trip", "--yes"]).succeeded();
    assert_eq!(list(&[]).len(), 5);
    service.post("/v1/pml/schemas", &json!({ "schema": SCHEMA })).await;
    assert_eq!(encoded(&folder, &["trip"]), (5, 0));
    crate::cache::settle(&service).await;
    assert_eq!(folder.json(&["cache", "unpin", "--schema", "trip", "--json"])["changed"], 0);
    assert_eq!(service.stop(), 0);
}

/// A kill while modules are computed: the next start goes on, and what was computed is not computed again.
#[tokio::test]
async fn encoding_survives_a_kill() {
    let folder = Folder::new();
    let all = ["--set", "kv_admission=always"];
    let service = folder.serve_with(&all, &[("RAGSTONE_FAILPOINTS", "warm.after_entry=kill@20")]).await;
    let modules: String = (0..40)
        .map(|at| format!("<module name=\"m{at}\">Lantern {at} burns with a flame of colour {at}.</module>"))
        .collect();
    service.post("/v1/pml/schemas", &json!({ "schema": format!("<schema name=\"many\">{modules}</schema>") })).await;
    folder.run(&["pml", "encode", "many"]).failed_with(&["went away", "run the command again"]);
    service.wait();
    let service = folder.serve(&all).await;
    let done = encoded(&folder, &["many"]);
    assert!(done.0 + done.1 == 40 && done.1 >= 16, "{done:?}");
    assert_eq!(folder.json(&["cache", "warm", "--list", "--json"]), json!([]));
    assert_eq!(service.stop(), 0);
}
