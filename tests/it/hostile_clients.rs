//! Clients that send slowly, send much, stop reading, or go away: what they take is bounded, and others are answered meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{Folder, Service, get};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Nothing that is waited for here takes longer on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(service: &Service) -> TcpStream {
    TcpStream::connect(service.address.strip_prefix("http://").unwrap()).await.unwrap()
}

/// The head of a POST whose body would have `length` bytes.
fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Everything until the service closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset ends it, too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("the connection stays open");
    String::from_utf8_lossy(&text).into_owned()
}

async fn short_answer(service: &Service) -> u16 {
    service.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).await.0
}

/// Asks until the status is `wanted`.
async fn eventually(wanted: u16, mut ask: impl AsyncFnMut() -> u16) {
    let begun = Stopwatch::start();
    while ask().await != wanted {
        assert!(begun.elapsed() < PATIENCE, "no {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_ends_with_408_and_costs_nobody_else_anything() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_timeout_s=1", "--set", "max_queued=2"]).await;
    let mut slow = Vec::new();
    for path in [TEXT, CHAT, "/v1/embeddings", "/v1/collections/c/documents"].repeat(8) {
        let mut stream = connect(&service).await;
        stream.write_all(head(path, 1000).as_bytes()).await.unwrap();
        stream.write_all(b"{").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(short_answer(&service).await, 200, "slow bodies hold no place");
    for stream in slow {
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_timeout_s"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_not_waited_for() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let mut stream = connect(&service).await;
    stream.write_all(head(TEXT, 1 << 40).as_bytes()).await.unwrap();
    let answer = rest(stream).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_bytes"), "{answer}");
}

#[tokio::test]
async fn great_bodies_share_a_budget_that_small_ones_do_not_need() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=1MiB", "--set", "bodies_bytes=1MiB"]).await;
    let mut holding = connect(&service).await;
    let most = 1 << 20;
    holding.write_all(head("/v1/collections/c/search", most).as_bytes()).await.unwrap();
    holding.write_all(&vec![b' '; most - 1]).await.unwrap();
    let great = format!("{{\"query\": \"{}\"}}", "x".repeat(400_000));
    let search = "/v1/collections/c/search";
    // The held body is charged as it comes in.
    eventually(429, async || service.post_bytes(search, great.as_bytes()).await.0).await;
    assert_eq!(short_answer(&service).await, 200);
    drop(holding);
    eventually(400, async || match service.post_bytes(search, great.as_bytes()).await.0 {
        // No such collection, or a query that is too long: the body was read.
        404 => 400,
        status => status,
    })
    .await;
}

/// Bodies of one caller that do not come to their end leave room for those of another. On Linux every address that begins with 127 is there.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn bodies_of_one_caller_leave_room_for_anothers() {
    let folder = Folder::new();
    let service =
        folder.serve(&["--set", "body_bytes=1MiB", "--set", "bodies_bytes=8MiB", "--set", "body_timeout_s=60"]).await;
    let search = "/v1/collections/c/search";
    let part = vec![b' '; 900_000];
    let great = format!("{{\"query\": \"{}\"}}", "x".repeat(1_000_000));
    let mut holding = Vec::new();
    // Several that grow at once may all be refused, and give back what they held: more follow until a share is full.
    eventually(429, async || {
        let mut stream = connect(&service).await;
        stream.write_all(head(search, 1 << 20).as_bytes()).await.unwrap();
        // One that has too much is told so, and cut off.
        let _ = stream.write_all(&part).await;
        holding.push(stream);
        service.post_bytes(search, great.as_bytes()).await.0
    })
    .await;
    let another = reqwest::Client::builder().local_address(std::net::IpAddr::from([127, 0, 0, 2])).build().unwrap();
    let answered = another.post(service.url(search)).body(great).send().await.unwrap();
    // It was read: its query is too long.
    assert!(matches!(answered.status().as_u16(), 400 | 404), "{}", answered.status());
}

/// A client with next to no room for what it does not read.
async fn connect_small(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test]
async fn clients_that_stop_reading_hold_no_places() {
    let folder = Folder::new();
    // One place: with two, the one that stalls first makes room while the other's answer still goes out.
    let service = folder.serve(&["--set", "max_queued=1", "--set", "write_timeout_s=1"]).await;
    let address: SocketAddr = service.address.strip_prefix("http://").unwrap().parse().unwrap();
    // More than the system's buffers hold: four thousand tokens, each with twenty alternatives.
    let body = json!({
        "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4000, "temperature": 0, "ignore_eos": true,
        "stream": true, "logprobs": true, "top_logprobs": 20,
    });
    let body = body.to_string();
    let mut stalled = connect_small(address).await;
    stalled.write_all(head("/v1/chat/completions", body.len()).as_bytes()).await.unwrap();
    stalled.write_all(body.as_bytes()).await.unwrap();
    // It began to answer.
    stalled.read_exact(&mut [0; 200]).await.unwrap();
    eventually(200, async || short_answer(&service).await).await;
    let text = rest(stalled).await;
    assert!(!text.contains("[DONE]"), "the answer was sent whole: this test tests nothing");
}

/// An answer of `/v1/responses` repeats its request, which is in memory until the client has it.
#[tokio::test]
async fn what_an_answer_repeats_is_charged_until_it_is_read() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=4MiB", "--set", "bodies_bytes=5MiB"]).await;
    let address: SocketAddr = service.address.strip_prefix("http://").unwrap().parse().unwrap();
    // Tools that may not be called are in no prompt. Their text is more than the system's buffers hold.
    let tool = json!({ "type": "function", "name": "f", "description": "x".repeat(3_900_000) });
    let body = json!({
        "input": "a", "max_output_tokens": 1, "store": false, "stream": true, "tool_choice": "none", "tools": [tool],
    });
    let body = body.to_string();
    let mut stalled = connect_small(address).await;
    stalled.write_all(head("/v1/responses", body.len()).as_bytes()).await.unwrap();
    stalled.write_all(body.as_bytes()).await.unwrap();
    // It began to answer: its body is let go of.
    let mut begun = [0; 200];
    stalled.read_exact(&mut begun).await.unwrap();
    assert!(begun.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun));
    let great = format!("{{\"query\": \"{}\"}}", "x".repeat(1_000_000));
    let search = "/v1/collections/c/search";
    assert_eq!(service.post_bytes(search, great.as_bytes()).await.0, 429);
    assert_eq!(short_answer(&service).await, 200);
    drop(stalled);
    eventually(400, async || match service.post_bytes(search, great.as_bytes()).await.0 {
        // It was read, and there is no such collection.
        404 => 400,
        status => status,
    })
    .await;
}

#[tokio::test]
async fn idle_connections_are_bounded_and_health_has_its_own() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "max_connections=8"]).await;
    let mut idle = Vec::new();
    for _ in 0..24 {
        idle.push(connect(&service).await);
    }
    let health = folder.health_address();
    for path in ["/healthz", "/health", "/readyz"] {
        let begun = Stopwatch::start();
        assert_eq!(get(&format!("{health}{path}")).await.0, 200);
        assert!(begun.elapsed() < Duration::from_secs(2), "{path} waited");
    }
    assert_eq!(get(&format!("{health}/v1/collections")).await.0, 404, "nothing but health");
    // Whoever sends nothing is cut off, and those behind have their turn.
    assert_eq!(short_answer(&service).await, 200);
    assert_eq!(service.get("/health").await.0, 200);
    for stream in idle {
        rest(stream).await;
    }
}

#[tokio::test]
async fn labels_of_metrics_are_not_for_clients_to_make_up() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for number in 0..30 {
        let method = reqwest::Method::from_bytes(format!("MADEUP{number}").as_bytes()).unwrap();
        let url = service.url(&format!("/made/up/{number}"));
        reqwest::Client::new().request(method, url).send().await.unwrap();
    }
    let text = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    assert!(!text.to_ascii_lowercase().contains("madeup") && !text.contains("/made/up"), "{text}");
    assert!(text.contains("ragstone_requests_total{path=\"other\",method=\"other\",status=\"404\"} 30"), "{text}");
}

#[tokio::test]
async fn upserts_are_bounded_and_end_with_their_client() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let path = "/v1/collections/c/documents";
    for empty in [json!([]), json!([{ "text": " " }])] {
        service.ask(path, &json!({ "documents": empty })).await;
    }
    assert_eq!(service.get("/v1/collections").await.1["data"], json!([]), "no collection for nothing");
    let many: Vec<Value> = (0..1001).map(|number| json!({ "text": format!("Number {number}.") })).collect();
    let (status, error) = service.post(path, &json!({ "documents": many })).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("documents")), "{error}");

    let words = "copper lantern mill garden harbour boat salt miller poppy lute ".repeat(12);
    let long = |number: usize| json!({ "id": format!("{number}"), "text": format!("{number} {words}") });
    let documents: Vec<Value> = (0..1000).map(long).collect();
    let body = json!({ "documents": documents }).to_string();
    let mut stream = connect(&service).await;
    stream.write_all(head(path, body.len()).as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let stored = async || match service.get("/v1/collections").await.1["data"][0]["documents"].as_u64() {
        Some(documents) if documents > 0 => 200,
        _ => 0,
    };
    eventually(200, stored).await;
    drop(stream);
    // Another change waits for the table until the abandoned one has ended.
    service.ask(path, &json!({ "documents": [long(0)] })).await;
    let documents = service.get("/v1/collections").await.1["data"][0]["documents"].as_u64().unwrap();
    assert!(documents < 1000, "it went on for nobody");
}
