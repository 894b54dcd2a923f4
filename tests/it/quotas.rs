//! Quotas of tenants over HTTP and the command line: what is refused and how, what of a tier is whose, and what is seen of it.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};
use crate::keys::{As, new_key, send};

const CHAT: &str = "/v1/chat/completions";
const DOCUMENTS: &str = "/v1/collections/notes/documents";
const SEARCH: &str = "/v1/collections/notes/search";
const SETTINGS: [&str; 6] =
    ["--keys", "required", "--set", "kv_admission=always", "--set", "calibrate_when_idle=false"];

/// Status, `retry-after` and body of a request with a key.
async fn asked(service: &Service, path: &str, key: &str, body: &Value) -> (u16, Option<u64>, Value) {
    let sent = reqwest::Client::new().post(service.url(path)).bearer_auth(key).json(body).send().await.unwrap();
    let wait = sent.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    (sent.status().as_u16(), wait, sent.json().await.unwrap())
}

async fn set(service: &Service, owner: &str, tenant: &str, quota: Value) -> Value {
    let body = json!({ "tenant": tenant, "quota": quota });
    let (status, text) = send(service, Method::POST, "/v1/quotas", As::Owner(owner), &body).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// What is used of a quota, as whoever asks is told.
async fn used(service: &Service, who: As<'_>, tenant: &str, name: &str) -> u64 {
    let (status, text) = send(service, Method::GET, "/v1/quotas", who, &Value::Null).await;
    assert_eq!(status, 200, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    let tenants = told["data"].as_array().unwrap();
    let of = tenants.iter().find(|of| of["tenant"] == tenant).unwrap_or_else(|| panic!("{told}"));
    let quotas = of["quotas"].as_array().unwrap();
    let quota = quotas.iter().find(|quota| quota["name"] == name).unwrap_or_else(|| panic!("{told}"));
    quota["used"].as_u64().unwrap()
}

fn question(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 4, "temperature": 0 })
}

fn documents(range: std::ops::Range<usize>) -> Value {
    let document =
        |n: usize| json!({ "id": format!("d{n}"), "title": "Note", "text": format!("The mill {n} grinds.") });
    json!({ "documents": range.map(document).collect::<Vec<_>>() })
}

async fn two_tenants(service: &Service, owner: &str) -> (String, String) {
    let key = async |tenant: &str| {
        new_key(service, owner, json!({ "name": tenant, "role": "write", "tenant": tenant })).await
    };
    (key("acme").await, key("blue").await)
}

#[tokio::test]
async fn a_rate_that_is_used_up_is_a_429_in_each_protocols_words_and_another_tenants_is_not() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let (acme, blue) = two_tenants(&service, &owner).await;
    set(&service, &owner, "acme", json!({ "requests_per_minute": 1 })).await;
    let (status, _, told) = asked(&service, CHAT, &acme, &question("Who is there?")).await;
    assert_eq!(status, 200, "{told}");
    let ollama = json!({ "messages": [{ "role": "user", "content": "?" }], "stream": false });
    let anthropic = json!({ "messages": [{ "role": "user", "content": "?" }], "max_tokens": 4, "model": "default" });
    for (path, body, at) in [
        (CHAT, question("?"), "/error/message"),
        ("/v1/embeddings", json!({ "input": "a" }), "/error/message"),
        ("/v1/messages", anthropic, "/error/message"),
        ("/api/chat", ollama, "/error"),
    ] {
        let (status, wait, told) = asked(&service, path, &acme, &body).await;
        assert_eq!(status, 429, "{path}: {told}");
        assert!((1..=60).contains(&wait.unwrap()), "{path}: {wait:?}");
        let message = told.pointer(at).and_then(Value::as_str).unwrap();
        assert!(message.contains("requests_per_minute") && message.contains("`acme`"), "{path}: {told}");
    }
    let (_, _, told) = asked(&service, CHAT, &acme, &question("?")).await;
    assert_eq!(
        (&told["error"]["code"], &told["error"]["param"]),
        (&json!("rate_limit_exceeded"), &json!("requests_per_minute"))
    );
    // Who may look is told all the same, and another tenant's is another.
    assert_eq!(used(&service, As::Key(&acme), "acme", "requests_per_minute").await, 1);
    assert_eq!(asked(&service, CHAT, &blue, &question("Who is there?")).await.0, 200);
    let (status, text) = send(&service, Method::GET, "/v1/quotas", As::Key(&blue), &Value::Null).await;
    assert!(status == 200 && !text.contains("acme"), "{text}");
    // More keys bring nobody more, and a revoked one is not known, whatever its tenant has used.
    let more = new_key(&service, &owner, json!({ "name": "more", "tenant": "acme" })).await;
    assert_eq!(asked(&service, CHAT, &more, &question("?")).await.0, 429);
    let revoked = send(&service, Method::DELETE, "/v1/keys/more", As::Owner(&owner), &Value::Null).await;
    assert_eq!(revoked.0, 200);
    assert_eq!(asked(&service, CHAT, &more, &question("?")).await.0, 401);
    // Taken away, nothing is refused; nothing lets nothing.
    set(&service, &owner, "acme", json!({ "requests_per_minute": null })).await;
    assert_eq!(asked(&service, CHAT, &acme, &question("?")).await.0, 200);
    set(&service, &owner, "acme", json!({ "requests_per_minute": 0 })).await;
    assert_eq!(asked(&service, CHAT, &acme, &question("?")).await.1, Some(60));
    set(&service, &owner, "acme", json!({ "requests_per_minute": u64::MAX, "tokens_per_minute": u64::MAX })).await;
    assert_eq!(asked(&service, CHAT, &acme, &question("?")).await.0, 200);
}

#[tokio::test]
async fn tokens_of_prompts_and_answers_are_used_up_and_what_asks_no_model_goes_on() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let (acme, _) = two_tenants(&service, &owner).await;
    assert_eq!(asked(&service, DOCUMENTS, &acme, &documents(0..2)).await.0, 200);
    set(&service, &owner, "acme", json!({ "tokens_per_minute": 10 })).await;
    let (status, _, told) = asked(&service, CHAT, &acme, &question("Who owns four boats, and where?")).await;
    assert_eq!(status, 200, "nobody knew how long it would be: {told}");
    let usage = told["usage"]["total_tokens"].as_u64().unwrap();
    assert!(usage > 12, "{told}");
    let spent = used(&service, As::Key(&acme), "acme", "tokens_per_minute").await;
    // Some may have run out meanwhile, on a slow machine.
    assert!(spent <= usage && spent > 0, "{spent} of {usage}");
    for path in ["/v1/completions", CHAT] {
        let body = if path == CHAT { question("?") } else { json!({ "prompt": "a", "max_tokens": 2 }) };
        let (status, wait, told) = asked(&service, path, &acme, &body).await;
        assert_eq!(status, 429, "{told}");
        assert!(wait.unwrap() > 0 && error_message(&told).contains("tokens_per_minute"), "{told}");
    }
    // Who reads to put in order has read as well.
    let pair = json!({ "text_1": "Who owns boats?", "text_2": "Anna owns four boats." });
    let ranked = json!({ "query": "Who owns boats?", "documents": ["Anna owns four boats."] });
    for (path, body) in [("/v1/score", &pair), ("/score", &pair), ("/v1/rerank", &ranked), ("/v2/rerank", &ranked)] {
        assert_eq!(asked(&service, path, &acme, body).await.0, 429, "{path}");
    }
    let search = |rerank: usize| json!({ "query": "Who owns boats?", "rerank": rerank });
    let (status, wait, told) = asked(&service, SEARCH, &acme, &search(2)).await;
    assert_eq!((status, &told["error"]["param"]), (429, &json!("tokens_per_minute")), "{told}");
    assert!(wait.unwrap() > 0, "{told}");
    assert_eq!(asked(&service, SEARCH, &acme, &search(0)).await.0, 200, "it asks no model");
    let (status, _, told) = asked(&service, "/v1/embeddings", &acme, &json!({ "input": "a" })).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(send(&service, Method::GET, "/v1/models", As::Key(&acme), &Value::Null).await.0, 200);
    set(&service, &owner, "acme", json!({ "tokens_per_minute": 500 })).await;
    let before = used(&service, As::Key(&acme), "acme", "tokens_per_minute").await;
    let (status, _, told) = asked(&service, "/v1/score", &acme, &pair).await;
    assert_eq!(status, 200, "{told}");
    let read = told["usage"]["prompt_tokens"].as_u64().unwrap();
    let after = used(&service, As::Key(&acme), "acme", "tokens_per_minute").await;
    // Some may have run out meanwhile.
    assert!(read > 0 && after > 0 && after <= before + read, "{before}, then {after}: {told}");
}

#[tokio::test]
async fn documents_beyond_the_quota_are_refused_whole_and_replacing_and_deleting_go_on() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let owner = folder.token();
    let (acme, blue) = two_tenants(&service, &owner).await;
    set(&service, &owner, "acme", json!({ "documents": 3 })).await;
    assert_eq!(asked(&service, DOCUMENTS, &acme, &documents(0..2)).await.0, 200);
    let full = async |told: (u16, Option<u64>, Value), has: u64| {
        let (status, wait, told) = told;
        assert_eq!((status, wait), (507, None), "{told}");
        assert_eq!((&told["error"]["code"], &told["error"]["param"]), (&json!("storage_full"), &json!("documents")));
        assert!(error_message(&told).contains(&format!("has {has} documents of the")), "{told}");
        assert_eq!(used(&service, As::Key(&acme), "acme", "documents").await, has, "nothing of it is stored");
    };
    full(asked(&service, DOCUMENTS, &acme, &documents(1..4)).await, 2).await;
    // In another collection, too.
    assert_eq!(asked(&service, "/v1/collections/more/documents", &acme, &documents(0..1)).await.0, 200);
    full(asked(&service, "/v1/collections/more/documents", &acme, &documents(1..2)).await, 3).await;
    let file = reqwest::Client::new().put(service.url("/v1/collections/more/files/a.txt")).bearer_auth(&acme);
    let sent = file.body("The heron stands.").send().await.unwrap();
    assert_eq!(sent.status().as_u16(), 507, "{}", sent.text().await.unwrap());
    let mut replaced = documents(0..2);
    replaced["documents"][0]["text"] = "The mill stands still.".into();
    assert_eq!(asked(&service, DOCUMENTS, &acme, &replaced).await.0, 200);
    // Lowered below what is there: what is there stays, and can be replaced.
    set(&service, &owner, "acme", json!({ "documents": 1 })).await;
    assert_eq!(asked(&service, DOCUMENTS, &acme, &documents(0..2)).await.0, 200);
    full(asked(&service, DOCUMENTS, &acme, &documents(5..6)).await, 3).await;
    // Neither another tenant's nor the owner's are meant.
    assert_eq!(asked(&service, DOCUMENTS, &blue, &documents(0..5)).await.0, 200);
    let own = "/v1/collections/acme%2Fmore/documents";
    assert_eq!(send(&service, Method::POST, own, As::Owner(&owner), &documents(7..8)).await.0, 200);
    assert_eq!(used(&service, As::Owner(&owner), "acme", "documents").await, 4);
    // All of it is deleted, and there is room again.
    for collection in ["notes", "more"] {
        let path = format!("/v1/collections/{collection}");
        assert_eq!(send(&service, Method::DELETE, &path, As::Key(&acme), &Value::Null).await.0, 200);
    }
    assert_eq!(used(&service, As::Owner(&owner), "acme", "documents").await, 0);
    assert_eq!(asked(&service, DOCUMENTS, &acme, &documents(9..10)).await.0, 200);
}

/// Asks until nothing is on its way into a tier any more.
async fn settled(service: &Service, owner: &str) {
    let begun = ragstone_env::Stopwatch::start();
    loop {
        let (_, text) = send(service, Method::GET, "/v1/cache/status", As::Owner(owner), &Value::Null).await;
        let status: Value = serde_json::from_str(&text).unwrap();
        if status["background"] == 0 && status["store"]["to_disk"]["entries"] == 0 {
            return;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Many questions of one tenant, each a prompt of its own; none fails.
async fn ask_much(service: &Service, key: &str, times: usize) {
    for number in 0..times {
        let text = format!("{number} boats lay in the harbour of Tarn. ").repeat(20);
        let (status, _, told) = asked(service, CHAT, key, &question(&text)).await;
        assert_eq!(status, 200, "{told}");
    }
}

#[tokio::test]
async fn kv_over_its_quota_fails_no_answer_and_a_share_is_not_evicted_for_another() {
    let folder = Folder::new();
    // What an answer leaves shows how small a tier has to be.
    let (one, blue, acme) = {
        let service = folder.serve(&SETTINGS).await;
        let owner = folder.token();
        let (acme, blue) = two_tenants(&service, &owner).await;
        set(&service, &owner, "acme", json!({ "host_bytes": u64::MAX })).await;
        ask_much(&service, &acme, 1).await;
        settled(&service, &owner).await;
        let one = used(&service, As::Owner(&owner), "acme", "host_bytes").await;
        assert!(one > 0);
        service.stop();
        (one, blue, acme)
    };
    let (host, disk) = (format!("host_bytes={}", 6 * one), format!("disk_bytes={}", 6 * one));
    let small = [&SETTINGS[..], &["--set", &host, "--set", &disk, "--set", "device_cache=false"]].concat();
    let service = folder.serve(&small).await;
    let owner = folder.token();
    let limits =
        json!({ "host_bytes": 2 * one, "disk_bytes": 2 * one, "host_share_bytes": one, "disk_share_bytes": one });
    set(&service, &owner, "acme", limits).await;
    ask_much(&service, &acme, 12).await;
    settled(&service, &owner).await;
    let held = async |name: &str| used(&service, As::Owner(&owner), "acme", name).await;
    let mut before = Vec::new();
    for name in ["host_bytes", "disk_bytes"] {
        before.push(held(name).await);
        assert!((1..=2 * one).contains(&before[before.len() - 1]), "{name}: its own leaves first: {before:?}");
    }
    // Another one fills both tiers many times over.
    ask_much(&service, &blue, 30).await;
    settled(&service, &owner).await;
    for (name, before) in ["host_share_bytes", "disk_share_bytes"].into_iter().zip(before) {
        let held = held(name).await;
        assert!(held >= one.min(before), "{name}: {held} of {before}");
    }
    let (_, text) = send(&service, Method::GET, "/v1/cache/status", As::Owner(&owner), &Value::Null).await;
    let status: Value = serde_json::from_str(&text).unwrap();
    assert!(status["store"]["host"]["evicted"].as_u64().unwrap() > 0, "{status}");
    // More than a tier has cannot be guaranteed.
    let body = json!({ "tenant": "blue", "quota": { "host_share_bytes": 6 * one } });
    let (status, text) = send(&service, Method::POST, "/v1/quotas", As::Owner(&owner), &body).await;
    assert!(status == 400 && text.contains("host_share_bytes"), "{text}");
    // A quota of nothing keeps nothing, and answers.
    set(&service, &owner, "blue", json!({ "host_bytes": 0, "disk_bytes": 0 })).await;
    ask_much(&service, &blue, 2).await;
}

#[tokio::test]
async fn quotas_are_seen_in_lists_metrics_and_after_a_restart() {
    let folder = Folder::new();
    let defaults = ["--set", "tenant_quota=[\"documents=50\"]"];
    let arguments = [&SETTINGS[..], &defaults].concat();
    let service = folder.serve(&arguments).await;
    let owner = folder.token();
    let added = folder.run(&["keys", "add", "ci", "--tenant", "acme", "--role", "write", "--quota", "documents=7"]);
    let key = added.succeeded().stdout.trim().to_owned();
    assert_eq!(asked(&service, DOCUMENTS, &key, &documents(0..2)).await.0, 200);
    let told = folder.json(&["keys", "set", "--tenant", "acme", "--quota", "disk_bytes=1GiB", "--json"]);
    assert_eq!(told["quotas"][0], json!({ "name": "documents", "limit": 7, "used": 2 }));
    assert_eq!(told["quotas"][1]["limit"], 1 << 30);
    new_key(&service, &owner, json!({ "name": "plain", "tenant": "blue" })).await;
    let list = folder.run(&["keys", "list"]).succeeded().stdout;
    for words in ["acme    documents", "1.0 GiB", "blue    documents"] {
        assert!(list.contains(words), "{words}: {list}");
    }
    let keys = folder.json(&["keys", "list", "--json"]);
    assert_eq!(
        (&keys[0]["name"], &keys[0]["quota"]),
        (&json!("ci"), &json!({ "documents": 7, "disk_bytes": 1 << 30 }))
    );
    assert_eq!(keys[1]["quota"], json!({ "documents": 50 }), "the default");
    let metrics = async |service: &Service, owner: &str| {
        let (status, text) = send(service, Method::GET, "/metrics", As::Owner(owner), &Value::Null).await;
        assert_eq!(status, 200);
        text
    };
    let text = metrics(&service, &owner).await;
    for line in [
        "ragstone_tenant_quota_used{tenant=\"acme\",quota=\"documents\"} 2",
        "ragstone_tenant_quota_limit{tenant=\"acme\",quota=\"documents\"} 7",
        "ragstone_tenant_quota_limit{tenant=\"blue\",quota=\"documents\"} 50",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    set(&service, &owner, "acme", json!({ "disk_bytes": null, "requests_per_minute": 0 })).await;
    assert_eq!(asked(&service, CHAT, &key, &question("?")).await.0, 429);
    let text = metrics(&service, &owner).await;
    let gone =
        text.lines().find(|line| line.starts_with("ragstone_tenant_quota_limit{tenant=\"acme\",quota=\"disk_bytes\"}"));
    assert!(gone.is_some_and(|line| line.to_lowercase().ends_with(" inf") || line.ends_with("+Inf")), "{gone:?}");
    assert!(text.contains("ragstone_quota_refused_total{quota=\"requests_per_minute\"} 1"), "{text}");
    for (arguments, words) in [
        (&["keys", "set", "--tenant", "acme", "--quota", "seconds=1"][..], "requests_per_minute"),
        (&["keys", "set", "--tenant", "a\nb", "--quota", "documents=1"], "tenant"),
        (&["keys", "set", "--tenant", "acme", "--quota", "documents=-1"], "whole number"),
        (&["keys", "add", "other", "--quota", "documents"], "NAME=NUMBER"),
    ] {
        folder.run(arguments).failed_with(&[words]);
    }
    // A quota is its tenant's, whoever has keys of it.
    folder.run(&["keys", "revoke", "ci", "--yes"]).succeeded();
    service.stop();
    let service = folder.serve(&arguments).await;
    let owner = folder.token();
    let key = new_key(&service, &owner, json!({ "name": "again", "role": "write", "tenant": "acme" })).await;
    assert_eq!(asked(&service, CHAT, &key, &question("?")).await.0, 429);
    assert_eq!(used(&service, As::Key(&key), "acme", "documents").await, 2);
}
