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
    let encode = "/v1/pml/schemas/trip/encode";
    let (status, encoded) =
        as_owner(&folder, service.url(encode), Method::POST, &json!({ "modules": ["lamps"] })).await;
    assert_eq!((status, &encoded["computed"], &encoded["already_there"]), (200, &json!(1), &json!(0)), "{encoded}");
    let (_, encoded) = as_owner(&folder, service.url(encode), Method::POST, &json!({})).await;
    assert_eq!((&encoded["computed"], &encoded["already_there"]), (&json!(4), &json!(1)), "{encoded}");
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
    let (_, encoded) = as_owner(&folder, service.url(encode), Method::POST, &json!({ "tenant": "other" })).await;
    assert_eq!((&encoded["computed"], &encoded["already_there"]), (&json!(5), &json!(0)), "{encoded}");
    let small = json!({ "schema": "<schema name='trip'>Nothing.</schema>", "tenant": "other" });
    assert_eq!(service.post("/v1/pml/schemas", &small).await.1["entries_removed"], 5);
    let (_, encoded) = as_owner(&folder, service.url(encode), Method::POST, &json!({})).await;
    assert_eq!((&encoded["computed"], &encoded["already_there"]), (&json!(0), &json!(5)), "{encoded}");

    // One module changes: its old KV goes, that of the others stays.
    let changed = SCHEMA.replace("copper lanterns", "iron lanterns");
    let (_, added) = service.post("/v1/pml/schemas", &json!({ "schema": changed })).await;
    assert_eq!((&added["is_new"], &added["entries_removed"]), (&json!(true), &json!(1)), "{added}");
    let (_, encoded) = as_owner(&folder, service.url(encode), Method::POST, &json!({})).await;
    assert_eq!((&encoded["computed"], &encoded["already_there"]), (&json!(1), &json!(4)), "{encoded}");
    let (_, shown) = service.get("/v1/pml/schemas/trip").await;
    assert_eq!((&shown["version"], shown["schema"].as_str()), (&added["version"], Some(changed.as_str())));

    // What another schema says, too, stays.
    let other = "<schema name=\"other\"><module name=\"a\">Elka Dorman was born in Tarn, plays the lute, and owns four boats.</module></schema>";
    service.post("/v1/pml/schemas", &json!({ "schema": other })).await;
    let (status, removed) = as_owner(&folder, service.url("/v1/pml/schemas/trip"), Method::DELETE, &json!({})).await;
    assert_eq!((status, &removed["entries_removed"]), (200, &json!(4)), "{removed}");
    assert_eq!(service.get("/v1/pml/schemas/trip").await.0, 404);
    let (_, encoded) = as_owner(&folder, service.url("/v1/pml/schemas/other/encode"), Method::POST, &json!({})).await;
    assert_eq!((&encoded["computed"], &encoded["already_there"]), (&json!(0), &json!(1)), "{encoded}");
    assert_eq!(service.stop(), 0);
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
        ("/v1/pml/schemas/none/encode", json!({}), 404, "none"),
        ("/v1/pml/schemas/trip/encode", json!({ "modules": ["lamps", "no"] }), 400, "`no`"),
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
    assert_eq!(service.post("/v1/pml/schemas/trip/encode", &json!({})).await.0, 403);
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
