//! What a web page, or somebody on the network, may not do to a service that runs on a person's machine.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};

async fn send(service: &Service, method: Method, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let mut request = reqwest::Client::new().request(method, service.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.body(body.to_string()).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

#[tokio::test]
async fn a_page_that_rebinds_its_name_reads_and_deletes_nothing() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "allowed_hosts=[\"kb.example.org\"]"]).await;
    service.add("world", WORLD).await;
    let evil = [("host", "evil.example:7411")];
    for (method, path) in [
        (Method::GET, "/v1/collections"),
        (Method::GET, "/v1/collections/world/documents"),
        (Method::GET, "/v1/cache/status"),
        (Method::DELETE, "/v1/collections/world"),
        (Method::POST, "/v1/collections/world/search"),
        (Method::GET, "/metrics"),
    ] {
        let (status, error) = send(&service, method.clone(), path, &evil, &json!({ "query": "boats" })).await;
        assert_eq!(status, 403, "{method} {path} {error}");
        assert!(error_message(&error).contains("allowed_hosts"), "{error}");
    }
    for host in ["kb.example.org", "localhost:7411", "ragstone"] {
        assert_eq!(
            send(&service, Method::GET, "/v1/collections", &[("host", host)], &json!({})).await.0,
            200,
            "{host}"
        );
    }
    assert_eq!(service.get("/v1/collections").await.1["data"][0]["name"], "world");
}

#[tokio::test]
async fn pages_of_other_sites_cannot_send() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "allowed_origins=[\"https://chat.example.org\"]"]).await;
    let (path, body) = ("/v1/collections/c/documents", json!({ "documents": [{ "text": "A planted sentence." }] }));
    let json_type = ("content-type", "application/json");
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let (status, error) = send(&service, Method::POST, path, &[("origin", origin), json_type], &body).await;
        assert_eq!(status, 403, "{error}");
        assert!(error_message(&error).contains("allowed_origins"), "{error}");
    }
    let own = service.address.clone();
    // A form of our own page: text may cross origins without a question, JSON may not.
    let form = [("origin", &*own), ("content-type", "text/plain")];
    assert_eq!(send(&service, Method::POST, path, &form, &body).await.0, 403);
    assert_eq!(service.get("/v1/collections").await.1["data"], json!([]));
    for origin in [&*own, "https://chat.example.org"] {
        assert_eq!(
            send(&service, Method::POST, path, &[("origin", origin), json_type], &body).await.0,
            200,
            "{origin}"
        );
    }
}

#[tokio::test]
async fn what_deletes_wants_the_owners_token() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let listed = service.get("/v1/collections/world/documents").await.1;
    let document = format!("/v1/collections/world/documents/{}", listed["data"][0]["id"].as_str().unwrap());
    for path in [&*document, "/v1/collections/world"] {
        for headers in [&[][..], &[("x-ragstone-token", "guess")]] {
            let (status, error) = send(&service, Method::DELETE, path, headers, &Value::Null).await;
            assert_eq!((status, &error["error"]["code"]), (403, &json!("forbidden")), "{error}");
        }
    }
    let token = folder.token();
    for path in [&*document, "/v1/collections/world"] {
        let (status, answer) =
            send(&service, Method::DELETE, path, &[("x-ragstone-token", &token)], &Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }
}

#[tokio::test]
async fn nobody_else_on_the_network_by_accident() {
    let folder = Folder::new();
    let refused = folder.run(&["serve", "--listen", "0.0.0.0:0"]);
    let refused = refused.failed_with(&["--allow-anyone", "127.0.0.1"]);
    assert_eq!(refused.stdout, "");
    let mut command = folder.ragstone(&["serve", "--listen", "0.0.0.0:0", "--allow-anyone"]);
    let service = Service::start_unready({
        command.env("RAGSTONE_LOG", "error");
        command
    });
    assert!(service.address.starts_with("http://0.0.0.0:"));
}

#[cfg(unix)]
#[tokio::test]
async fn the_data_folder_is_its_users_own() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    drop(folder.serve(&[]).await);
    assert_eq!(mode(&folder.data()), 0o700);
    // One that an earlier version made.
    std::fs::set_permissions(folder.data(), std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(folder.serve(&[]).await);
    assert_eq!(mode(&folder.data()), 0o700);
}

#[tokio::test]
async fn pages_that_are_allowed_ask_before_and_read_after() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "allowed_origins=[\"https://chat.example.org\"]"]).await;
    let answered = async |method: Method, origin: &str| {
        let request = reqwest::Client::new().request(method, service.url("/v1/models")).header("origin", origin);
        let asked = request.header("access-control-request-method", "GET");
        asked.header("access-control-request-headers", "authorization, content-type").send().await.unwrap()
    };
    let header = |response: &reqwest::Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let asked = answered(Method::OPTIONS, "https://chat.example.org").await;
    assert_eq!(asked.status(), 204);
    assert_eq!(header(&asked, "access-control-allow-headers"), "authorization, content-type");
    assert!(header(&asked, "access-control-allow-methods").contains("DELETE"));
    for response in [asked, answered(Method::GET, "https://chat.example.org").await] {
        assert_eq!(header(&response, "access-control-allow-origin"), "https://chat.example.org");
        assert!(header(&response, "vary").contains("origin"));
    }
    for method in [Method::OPTIONS, Method::GET] {
        let refused = answered(method, "https://evil.example").await;
        assert_eq!((refused.status().as_u16(), header(&refused, "access-control-allow-origin")), (403, String::new()));
    }
}
