//! `/v1/events`: what a tenant's key hears, what an operator hears, and that a stopping service ends the streams.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::keys::{As, new_key, send};

const SETTINGS: [&str; 6] =
    ["--keys", "required", "--set", "kv_admission=always", "--set", "calibrate_when_idle=false"];
const SCHEMA: &str = "<schema name=\"codex\">Nine boats lay in the harbour of Tarn this week.</schema>";

/// A client's events.
struct Events {
    response: Response,
    text: String,
}

impl Events {
    /// Connected once the first bytes are there.
    async fn of(service: &Service, who: As<'_>) -> Self {
        let request = reqwest::Client::new().get(service.url("/v1/events"));
        let request = match who {
            As::Nobody => request,
            As::Key(key) => request.bearer_auth(key),
            As::Owner(token) => request.header("x-ragstone-token", token),
        };
        let mut response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        let first = response.chunk().await.unwrap().expect("a heartbeat, or the tiers");
        Self { response, text: String::from_utf8(first.to_vec()).unwrap() }
    }

    /// The next event; `None`: the stream has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.strip_prefix("data: ").map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
                continue;
            }
            let more = self.response.chunk().await.ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&more).unwrap());
        }
    }

    /// The next one of this type; those before it.
    async fn until(&mut self, is_meant: impl Fn(&Value) -> bool) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let event = self.next().await.expect("the stream goes on");
            if is_meant(&event) {
                return (event, before);
            }
            before.push(event);
        }
    }
}

async fn ask(service: &Service, key: &str) {
    let body = json!({ "messages": [{ "role": "user", "content": "Who?" }], "temperature": 0, "max_tokens": 2 });
    let (status, text) = send(service, Method::POST, "/v1/chat/completions", As::Key(key), &body).await;
    assert_eq!(status, 200, "{text}");
}

/// A schema's modules are computed: a job of the key's tenant.
async fn encode(service: &Service, key: &str) {
    let (status, text) =
        send(service, Method::POST, "/v1/pml/schemas", As::Key(key), &json!({ "schema": SCHEMA })).await;
    assert_eq!(status, 200, "{text}");
    let (status, told) = send(service, Method::POST, "/v1/pml/schemas/codex/encode", As::Key(key), &json!({})).await;
    assert!(status == 200 && told.contains("finished"), "{told}");
}

fn is(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["type"] == kind
}

fn is_finished(event: &Value) -> bool {
    event["type"] == "job" && event["state"] == "finished"
}

#[tokio::test]
async fn two_tenants_hear_nothing_of_each_other_and_the_owner_hears_both() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let mut keys = Vec::new();
    for tenant in ["acme", "blue"] {
        keys.push(new_key(&service, &owner, json!({ "name": tenant, "role": "write", "tenant": tenant })).await);
    }
    let [acme, blue] = &keys[..] else { panic!("two keys") };
    let mut of_acme = Events::of(&service, As::Key(acme)).await;
    let mut of_blue = Events::of(&service, As::Key(blue)).await;
    let mut of_owner = Events::of(&service, As::Owner(&owner)).await;
    let tiers = of_owner.next().await.unwrap();
    assert!(tiers["type"] == "tiers" && tiers["tiers"]["host"]["capacity_bytes"].is_u64(), "{tiers}");

    ask(&service, acme).await;
    encode(&service, acme).await;
    ask(&service, blue).await;
    encode(&service, blue).await;

    for (events, tenant) in [(&mut of_acme, "acme"), (&mut of_blue, "blue")] {
        let (answer, before) = events.until(is("answer")).await;
        assert_eq!((&answer["tenant"], &before[..]), (&json!(tenant), &[][..]), "{answer}");
        assert!(answer["report"]["tokens"].is_object() && answer.get("number").is_none(), "{answer}");
        let (job, before) = events.until(is_finished).await;
        assert!(before.iter().all(is("job")), "{before:?}");
        assert_eq!((&job["kind"], &job["schema"], &job["done"]), (&json!("warm_up"), &json!("codex"), &job["total"]));
        assert!(job.get("id").is_none() && !job.to_string().contains("tenant"), "{job}");
    }
    let mut heard = Vec::new();
    for _ in 0..2 {
        let (answer, _) = of_owner.until(is("answer")).await;
        heard.push((answer["tenant"].clone(), answer["number"].clone()));
        of_owner.until(|event| is_finished(event) && event["id"].is_u64()).await;
    }
    assert_eq!(heard, [(json!("acme"), json!(1)), (json!("blue"), json!(2))]);

    // What is taken out on demand is told to the owner alone.
    let all = json!({ "all": true, "tier": "host" });
    let (status, evicted) = send(&service, Method::POST, "/v1/cache/evict", As::Owner(&owner), &all).await;
    assert_eq!(status, 200, "{evicted}");
    let (evictions, _) = of_owner.until(is("evictions")).await;
    let copies = serde_json::from_str::<Value>(&evicted).unwrap()["copies"].clone();
    assert!(copies != 0 && evictions["tiers"]["host"] == copies, "{evictions} {evicted}");
    ask(&service, acme).await;
    let (_, before) = of_acme.until(is("answer")).await;
    assert!(before.iter().all(is("job")), "{before:?}");

    // A key that is revoked hears nothing more, and a stopping service ends the streams.
    let (status, text) = send(&service, Method::DELETE, "/v1/keys/blue", As::Owner(&owner), &Value::Null).await;
    assert_eq!(status, 200, "{text}");
    ask(&service, acme).await;
    assert!(of_blue.next().await.is_none());
    assert_eq!(service.stop(), 0);
    while of_owner.next().await.is_some() {}
    while of_acme.next().await.is_some() {}
}

#[tokio::test]
async fn who_may_not_watch_is_told_so() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "calibrate_when_idle=false"]).await;
    let (status, error) = service.get("/v1/events").await;
    assert!(status == 403 && error["error"]["message"].as_str().unwrap().contains("token"), "{error}");
    // An ingest is a job, too.
    let mut events = Events::of(&service, As::Owner(&folder.token())).await;
    let file = folder.write("roof.md", "We take slate.");
    folder.run(&["ingest", file.to_str().unwrap(), "--collection", "notes"]).succeeded();
    let (job, _) = events.until(is_finished).await;
    assert_eq!((&job["kind"], &job["collection"], &job["done"]), (&json!("ingest"), &json!("notes"), &json!(1)));
}
