//! What operators of shared services ask first: TLS, clients' certificates, and who did what.

use std::path::{Path, PathBuf};

use ragstone_env::Stopwatch;
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::harness::{Folder, Service, get};
use crate::keys::{As, new_key, send};

fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// A client that trusts the tests' authority alone.
fn trusting(identity: Option<&str>) -> Client {
    let authority = Certificate::from_pem(&std::fs::read(certificate("ca.pem")).unwrap()).unwrap();
    let client = Client::builder().tls_built_in_root_certs(false).add_root_certificate(authority);
    let pem = |name: &str| {
        [std::fs::read(certificate(&format!("{name}.pem"))), std::fs::read(certificate(&format!("{name}.key")))]
            .map(Result::unwrap)
            .concat()
    };
    let client = match identity {
        Some(name) => client.identity(Identity::from_pem(&pem(name)).unwrap()),
        None => client,
    };
    client.build().unwrap()
}

async fn health(client: &Client, service: &Service) -> Result<u16, reqwest::Error> {
    client.get(service.url("/healthz")).send().await.map(|response| response.status().as_u16())
}

fn tls(folder: &Folder, more: &[&str]) -> Vec<String> {
    let copy = |name: &str| folder.write(name, std::fs::read(certificate(name)).unwrap()).display().to_string();
    let [chain, key] = ["localhost.pem", "localhost.key"].map(copy);
    let set = |setting: String| ["--set".to_owned(), setting];
    let own = [set(format!("tls_certificate={chain}")), set(format!("tls_key={key}"))].concat();
    own.into_iter().chain(more.iter().map(|argument| (*argument).to_owned())).collect()
}

/// A service that speaks TLS: whether it is ready is asked where health is answered.
async fn serve(folder: &Folder, arguments: &[String]) -> Service {
    let mut command = folder.serve_command(&[]);
    command.args(arguments);
    let service = Service::start_unready(command);
    let (begun, ready) = (Stopwatch::start(), format!("{}/readyz", folder.health_address()));
    while get(&ready).await.0 != 200 {
        assert!(begun.elapsed().as_secs() < 120, "the service does not become ready");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    service
}

#[tokio::test]
async fn the_service_speaks_tls_and_the_owners_commands_find_it() {
    let folder = Folder::new();
    let arguments = tls(&folder, &["--keys", "required"]);
    let service = serve(&folder, &arguments).await;
    assert!(service.address.starts_with("https://127.0.0.1:"), "{}", service.address);
    assert_eq!(health(&trusting(None), &service).await.unwrap(), 200);
    assert!(health(&Client::new(), &service).await.is_err(), "the authority is not known to everybody");
    let plain = service.address.replace("https://", "http://");
    assert!(Client::new().get(format!("{plain}/healthz")).send().await.is_err(), "nothing is said without TLS");

    // Commands go by the loopback interface; there everything is for the owner alone.
    folder.run(&["cache", "status"]).succeeded();
    let page = folder.run(&["page"]).succeeded();
    assert!(page.stdout.contains("https://"), "{}", page.stdout);
    let record: Value = serde_json::from_slice(&std::fs::read(folder.data().join("service.json")).unwrap()).unwrap();
    let local = record["address"].as_str().unwrap();
    let open = Client::new().get(format!("{local}/healthz")).send().await.unwrap();
    assert_eq!(open.status(), 403, "{local}");

    // An answer as it comes, to a client of the real protocol.
    let key = folder.json(&["keys", "add", "reader", "--role", "read", "--json"]);
    let asked = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4, "stream": true });
    let request = trusting(None).post(service.url("/v1/chat/completions")).bearer_auth(key["key"].as_str().unwrap());
    let told = request.json(&asked).send().await.unwrap().text().await.unwrap();
    assert!(told.ends_with("data: [DONE]\n\n"), "{told}");
}

#[tokio::test]
async fn clients_show_certificates_where_they_must() {
    let folder = Folder::new();
    let authority = format!("tls_client_ca={}", certificate("ca.pem").display());
    let arguments = tls(&folder, &["--set", &authority]);
    let service = serve(&folder, &arguments).await;
    assert!(health(&trusting(None), &service).await.is_err(), "who shows none is not let in");
    assert_eq!(health(&trusting(Some("client")), &service).await.unwrap(), 200);
    folder.run(&["cache", "status"]).succeeded();
}

#[tokio::test]
async fn who_did_what_is_written_without_their_texts() {
    let folder = Folder::new();
    let log = folder.path().join("audit");
    let setting = format!("audit_log={}", log.display());
    let service = folder.serve(&["--keys", "required", "--set", &setting]).await;
    let owner = folder.token();
    let key = new_key(&service, &owner, json!({ "name": "writer", "role": "write", "tenant": "acme" })).await;
    let by = As::Key(&key);
    let text = "The heron stands in the reeds.";
    let documents = json!({ "documents": [{ "id": "heron.md", "title": "Heron", "text": text }] });
    let at = "/v1/collections/notes/documents";
    assert_eq!(send(&service, Method::POST, at, by, &documents).await.0, 200);
    let asked = json!({
        "messages": [{ "role": "user", "content": "Where does the heron stand?" }], "max_tokens": 2, "ragstone": { "collection": "notes" },
    });
    assert_eq!(send(&service, Method::POST, "/v1/chat/completions", by, &asked).await.0, 200);
    assert_eq!(send(&service, Method::GET, at, by, &Value::Null).await.0, 200);
    assert_eq!(
        send(&service, Method::DELETE, "/v1/collections/notes/documents/heron.md", by, &Value::Null).await.0,
        200
    );
    let evict = json!({ "tenant": "acme" });
    assert_eq!(send(&service, Method::POST, "/v1/cache/evict", As::Owner(&owner), &evict).await.0, 200);
    assert_eq!(send(&service, Method::POST, "/v1/cache/evict", As::Key("wrong"), &evict).await.0, 401);

    let lines = lines(&log, 6).await;
    let shown = |line: &Value| {
        let of = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        (of("who"), of("key"), of("method"), line["status"].as_u64().unwrap())
    };
    let shown: Vec<_> = lines.iter().map(shown).collect();
    let is = |who: &str, key: &str, method: &str, status| (who.to_owned(), key.to_owned(), method.to_owned(), status);
    let wanted = [
        is("owner", "", "POST", 200),
        is("key", "writer", "POST", 200),
        is("key", "writer", "POST", 200),
        is("key", "writer", "DELETE", 200),
        is("owner", "", "POST", 200),
        is("refused", "", "POST", 401),
    ];
    assert_eq!(shown, wanted);
    assert_eq!(lines[1]["names"], json!({ "collection": "notes", "documents": ["heron.md"] }));
    assert_eq!((&lines[1]["tenant"], &lines[1]["from"]), (&json!("acme"), &json!("127.0.0.1")));
    assert_eq!(lines[3]["names"], json!({ "collection": "notes", "document": "heron.md" }));
    assert_eq!(lines[4]["names"]["filter"]["tenant"], "acme");
    let all = lines.iter().map(Value::to_string).collect::<String>();
    for secret in ["heron stands", "Where does", key.as_str(), owner.as_str()] {
        assert!(!all.contains(secret), "{secret} is in {all}");
    }
}

/// Whoever knows the id of a conversation or of a response may use it: the log has its beginning, by which its lines are found.
#[tokio::test]
async fn ids_that_open_something_are_in_no_log() {
    let folder = Folder::new();
    let log = folder.path().join("audit");
    let service = folder.serve(&["--set", &format!("audit_log={}", log.display())]).await;
    let begun = service.ask("/v1/conversations", &json!({})).await;
    let conversation = begun["id"].as_str().unwrap();
    let asked = json!({ "input": "Hello", "max_output_tokens": 6, "temperature": 0, "conversation": conversation });
    let answer = service.ask("/v1/responses", &asked).await;
    let (response, item) = (answer["id"].as_str().unwrap(), answer["output"][0]["id"].as_str().unwrap());
    let at = format!("/v1/conversations/{conversation}");
    service.ask(&format!("{at}/items"), &json!({ "items": [{ "role": "user", "content": "And?" }] })).await;
    for path in [format!("{at}/items/{item}"), format!("/v1/responses/{response}"), at.clone()] {
        let (status, text) = send(&service, Method::DELETE, &path, As::Nobody, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {text}");
    }
    let lines = lines(&log, 6).await;
    let all = lines.iter().map(Value::to_string).collect::<String>();
    for id in [conversation, response, item] {
        assert!(!all.contains(id), "{id} is in {all}");
        assert!(all.contains(&id[..13]), "{id} is not found in {all}");
    }
    assert_eq!(lines[3]["names"]["conversation"], format!("{}…", &conversation[..13]));
    // An item's id has that of its response in it.
    assert!(!all.contains(response.trim_start_matches("resp_")), "{all}");
}

/// What a client asks for is done although it does not wait for the answer: that is written, too, and a name is cut.
#[tokio::test]
async fn who_leaves_before_the_answer_is_written_down() {
    let folder = Folder::new();
    let log = folder.path().join("audit");
    let service = folder.serve(&["--set", &format!("audit_log={}", log.display())]).await;
    service.add("notes", &[("Heron", "The heron stands in the reeds.")]).await;
    let address = service.address.strip_prefix("http://").unwrap();
    for _ in 0..8 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "DELETE /v1/collections/notes HTTP/1.1\r\nhost: {address}\r\nx-ragstone-token: {}\r\n\r\n",
            folder.token()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
    }
    let lines = lines(&log, 9).await;
    let is_told =
        |line: &&Value| line["method"] == "DELETE" && line["who"] == "owner" && line["names"]["collection"] == "notes";
    assert_eq!(lines.iter().filter(is_told).count(), 8, "{lines:?}");

    let long =
        json!({ "messages": [{ "role": "user", "content": "a" }], "ragstone": { "collection": "x".repeat(5000) } });
    service.post("/v1/chat/completions", &long).await;
    let lines = self::lines(&log, 10).await;
    assert_eq!(lines[9]["names"]["collection"].as_str().unwrap().len(), 200);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

/// The lines of the log's only file, once there are so many.
async fn lines(folder: &Path, count: usize) -> Vec<Value> {
    let begun = Stopwatch::start();
    loop {
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        let text: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if lines.len() >= count {
            return lines;
        }
        assert!(begun.elapsed().as_secs() < 60, "{text}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
