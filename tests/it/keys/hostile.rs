//! Headers that no client of ours sends.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{As, SETTINGS, new_key, send};
use crate::harness::{Folder, Service};

/// The status of a request with these bytes as its headers; 0: the connection was closed without one.
async fn status(address: &str, headers: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).await.unwrap();
    let request = [b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", headers, b"\r\n"].concat();
    // It may be refused before all of it was sent.
    let _ = stream.write_all(&request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// What begins before its key is revoked, and comes to work behind that, does nothing.
#[tokio::test]
async fn a_body_that_is_slower_than_the_revocation_is_refused() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    // What changes, what asks, and what asks others in the sender's name.
    for (path, body) in [
        ("/v1/collections/c/documents", r#"{"documents": [{"text": "We take slate for the roof."}]}"#),
        ("/v1/completions", r#"{"prompt": "Hello", "max_tokens": 1}"#),
        ("/mcp", r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status"}}"#),
    ] {
        slower(&folder, &service, path, body).await;
    }
    assert_eq!(folder.json(&["collections", "list", "--json"]), serde_json::json!([]));
}

async fn slower(folder: &Folder, service: &Service, path: &str, body: &str) {
    let key = new_key(service, &folder.token(), serde_json::json!({ "name": "slow", "role": "write" })).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Expect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(service.address.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // It was let in: the service wants its body.
    let mut heard = [0; 25];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard[..12], b"HTTP/1.1 100");
    folder.run(&["keys", "revoke", "slow", "--yes"]).succeeded();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
}

#[tokio::test]
async fn hostile_headers_are_no_keys_and_hurt_nobody() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let key = new_key(&service, &folder.token(), serde_json::json!({ "name": "a" })).await;
    let line = |value: &[u8]| [b"Authorization: ", value, b"\r\n"].concat();
    let good = line(format!("Bearer {key}").as_bytes());
    assert_eq!(status(&service.address, &good).await, 200);
    assert_eq!(status(&service.address, &line(format!("bearer   {key}  ").as_bytes())).await, 200);
    assert_eq!(
        status(&service.address, format!("X-Api-Key: {key}\r\n").as_bytes()).await,
        200,
        "as Anthropic's clients send it"
    );
    let long = [b"Bearer ".to_vec(), b"x".repeat(50_000)].concat();
    for (what, headers) in [
        ("empty", line(b"")),
        ("no scheme", line(key.as_bytes())),
        ("another scheme", line(format!("Basic {key}").as_bytes())),
        ("no key", line(b"Bearer ")),
        ("no key", line(b"Bearer")),
        ("not ASCII", line("Bearer rag_\u{e9}\u{1f600}".as_bytes())),
        ("not UTF-8", line(b"Bearer rag_\xff\xfe\x80")),
        ("long", line(&long)),
        ("prefix alone", line(b"Bearer rag_")),
        ("more than the key", line(format!("Bearer {key}0").as_bytes())),
        ("two keys", line(format!("Bearer {key} {key}").as_bytes())),
        ("twice", [good.clone(), good.clone()].concat()),
        ("many", line(b"Bearer x").repeat(50)),
        ("the key elsewhere", format!("X-Key: {key}\r\nCookie: key={key}\r\n").into_bytes()),
        ("no key as Anthropic's clients send it", format!("X-Api-Key: {key}0\r\n").into_bytes()),
        ("the scheme where there is none", format!("X-Api-Key: Bearer {key}\r\n").into_bytes()),
        ("a wrong key beside a right one", format!("X-Api-Key: {key}\r\nAuthorization: Bearer x\r\n").into_bytes()),
        ("a wrong owner's token", b"x-ragstone-token: \xff\xff\r\n".to_vec()),
    ] {
        assert_eq!(status(&service.address, &headers).await, 401, "{what}");
    }
    // Beyond what the HTTP library reads.
    let huge = [b"Bearer ".to_vec(), b"x".repeat(4 << 20)].concat();
    for (what, headers) in [
        ("huge", line(&huge)),
        ("very many", line(b"Bearer x").repeat(5000)),
        ("a zero", line(b"Bearer a\0b")),
        ("a folded line", b"Authorization: Bearer\r\n x\r\n".to_vec()),
    ] {
        let status = status(&service.address, &headers).await;
        assert!(matches!(status, 0 | 400..=499), "{what}: {status}");
    }
    assert_eq!(send(&service, reqwest::Method::GET, "/v1/models", As::Key(&key), &Value::Null).await.0, 200);
}

/// What a key may not read is the request's fault, and no defect of the service's.
#[tokio::test]
async fn an_agent_hears_that_another_tenants_document_is_not_for_it() {
    let folder = Folder::new();
    let service = folder.serve(&SETTINGS).await;
    let key =
        new_key(&service, &folder.token(), serde_json::json!({ "name": "b", "role": "read", "tenant": "blue" })).await;
    let read = serde_json::json!({
        "jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": { "uri": "ragstone://acme%2Fvault/x" }
    });
    let (status, text) = send(&service, reqwest::Method::POST, "/mcp", As::Key(&key), &read).await;
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &answer["error"]["code"]), (200, &serde_json::json!(-32600)), "{text}");
}
