//! Agents' clients: the official Python client against the real program, over HTTP and over standard input and output, and what no
//! client of good will sends. `ops/test` installs the client and names its interpreter.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD};
use crate::outside::from_outside;

fn python() -> Option<PathBuf> {
    from_outside("MCP_TEST_PYTHON", "interpreter that has the mcp package").map(PathBuf::from)
}

/// Runs the client's script; with `command`, against that.
async fn client(python: &Path, mode: &str, what: &str, service: &Service, command: Option<Command>) {
    let mut script = Command::new(python);
    script.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_client.py")).args([mode, what, &service.address]);
    if let Some(command) = command {
        script.arg(command.get_program()).args(command.get_args());
    }
    let output = tokio::task::spawn_blocking(move || script.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{mode} {what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The program on the folder's data. The Python client hands on next to nothing of its own variables.
fn command(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragstone"));
    command.arg("mcp").arg("--data").arg(folder.data());
    command
}

#[tokio::test]
async fn the_official_client_works_over_http() {
    let Some(python) = python() else { return };
    for mode in ["auto", "legacy"] {
        let folder = Folder::new();
        let service = folder.serve(&[]).await;
        service.add("world", WORLD).await;
        client(&python, mode, "everything", &service, None).await;
    }
}

#[tokio::test]
async fn the_official_client_works_over_standard_input_and_output() {
    let Some(python) = python() else { return };
    for mode in ["auto", "legacy"] {
        let folder = Folder::new();
        let service = folder.serve(&[]).await;
        service.add("world", WORLD).await;
        client(&python, mode, "everything", &service, Some(command(&folder))).await;
    }
}

#[tokio::test]
async fn what_a_client_takes_back_ends() {
    let Some(python) = python() else { return };
    let folder = Folder::new();
    let endless = [("RAGSTONE_FAILPOINTS", "corpus.probe=delay:65000")];
    let service = folder.serve_with(&["--set", "max_queued=1"], &endless).await;
    service.add("world", WORLD).await;
    for mode in ["auto", "legacy"] {
        client(&python, mode, "cancel", &service, None).await;
        client(&python, mode, "cancel", &service, Some(command(&folder))).await;
    }
}

/// `ragstone mcp`, spoken to line by line.
struct Pipe {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Pipe {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn begun(folder: &Folder) -> Self {
        let mut pipe = Self::start(folder.ragstone(&["mcp"]));
        let client = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "0" } });
        let answer = pipe.ask("initialize", client);
        assert_eq!(answer["result"]["serverInfo"]["name"], "ragstone", "{answer}");
        pipe.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
        pipe
    }

    fn send(&mut self, line: &str) {
        self.to.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The next line: a message of the protocol, whatever it is.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params }).to_string());
        loop {
            let message = self.read();
            if message["id"] == method {
                return message;
            }
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Closes its input, and waits for its end; the exit status and what it wrote last.
    fn end(self) -> (Option<i32>, String) {
        let Self { mut child, to, from } = self;
        drop(to);
        let last = from.lines().map(Result::unwrap).collect::<Vec<_>>().join("\n");
        (child.wait().unwrap().code(), last)
    }
}

#[test]
fn without_a_service_the_folder_is_opened_and_shared() {
    let folder = Folder::new();
    let mut one = Pipe::begun(&folder);
    let added = one.call("add", json!({ "collection": "notes", "id": "roof", "text": "We take slate for the roof." }));
    assert_eq!(added["structuredContent"]["outcome"], "added", "{added}");
    // A second client, and a command, reach the folder through the first.
    let mut two = Pipe::begun(&folder);
    let found = two.call("search", json!({ "query": "roof", "collection": "notes" }));
    assert_eq!(found["structuredContent"]["passages"][0]["document"], "roof", "{found}");
    assert_eq!(folder.json(&["collections", "list", "--json"])[0]["name"], "notes");
    assert_eq!(one.end(), (Some(0), String::new()));
    // The first has gone: a call says so, and the next opens the folder.
    let mut lost = 0;
    loop {
        let found = two.call("search", json!({ "query": "roof", "collection": "notes" }));
        if found["isError"] != true {
            assert_eq!(found["structuredContent"]["passages"][0]["document"], "roof", "{found}");
            break;
        }
        assert!(found["content"][0]["text"].as_str().unwrap().contains("call again"), "{found}");
        lost += 1;
        assert!(lost < 20, "{found}");
    }
    assert!(lost > 0, "the first service answered although it had gone");
    assert_eq!(two.end(), (Some(0), String::new()));
}

#[test]
fn a_store_that_cannot_be_opened_is_a_tools_error_that_says_why() {
    let folder = Folder::new();
    let mut pipe = Pipe::start(folder.ragstone(&["mcp", "--model", "/nowhere/at-all"]));
    pipe.ask(
        "initialize",
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "0" } }),
    );
    let result = pipe.call("status", json!({}));
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("/nowhere/at-all") && text.contains("next call tries again"), "{text}");
    let (code, last) = pipe.end();
    assert!(code.is_some_and(|code| code != 0) && last.is_empty(), "{code:?} {last}");
}

#[test]
fn what_is_no_message_does_not_end_the_conversation() {
    let folder = Folder::new();
    let mut pipe = Pipe::begun(&folder);
    for line in [
        "",
        "{",
        "nonsense",
        "null",
        "[]",
        "{}",
        "\u{0}\u{1b}[2J",
        &"[".repeat(100_000),
        r#"{"jsonrpc":"2.0","method":5}"#,
    ] {
        pipe.send(line);
    }
    // Longer than a message may be: dropped, not kept.
    let most = 16 << 20;
    for _ in 0..3 {
        pipe.send(&"x".repeat(most + 1));
    }
    pipe.send(&json!({ "jsonrpc": "2.0", "id": 7, "result": {} }).to_string());
    let unknown = pipe.ask("tools/forget", json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let wrong = pipe.ask("tools/call", json!({ "name": 5 }));
    assert!(wrong["error"]["code"].as_i64().is_some_and(|code| code < -32000), "{wrong}");
    let called = pipe.call("search", json!({ "query": { "deep": [[[]]] } }));
    assert_eq!(called["isError"], true, "{called}");
    assert_eq!(pipe.call("status", json!({}))["isError"], false);
    assert_eq!(pipe.end(), (Some(0), String::new()));
}

async fn send(service: &Service, method: Method, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
    let mut request = reqwest::Client::new().request(method, service.url("/mcp")).body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

#[tokio::test]
async fn http_refuses_what_other_paths_refuse() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "body_bytes=65536"]).await;
    let status =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "status" } }).to_string();
    let json = ("content-type", "application/json");
    let (code, answer) = send(&service, Method::POST, &[json], &status).await;
    assert_eq!((code, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
    // Pages and names of others.
    for header in [("origin", "https://evil.example"), ("host", "evil.example")] {
        let (code, answer) = send(&service, Method::POST, &[json, header], &status).await;
        assert_eq!((code, &answer["error"]["code"]), (403, &json!("forbidden")), "{answer}");
    }
    let own = service.address.clone();
    let (code, answer) = send(&service, Method::POST, &[("origin", &own)], &status).await;
    assert_eq!(code, 403, "a form of our own page: {answer}");
    assert_eq!(send(&service, Method::POST, &[json, ("origin", &own)], &status).await.0, 200);
    // There is no stream of the service's own, and no session to end.
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        assert_eq!(send(&service, method, &[], "").await.0, 405);
    }
    for (body, code, error) in [
        ("{", 400, -32700),
        ("", 400, -32700),
        ("[]", 400, -32600),
        ("{\"jsonrpc\": \"2.0\"}", 400, -32600),
        (r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#, 400, -32600),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "no/such"}"#, 200, -32601),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "none"}}"#, 200, -32602),
    ] {
        let (status, answer) = send(&service, Method::POST, &[json], body).await;
        assert_eq!((status, &answer["error"]["code"]), (code, &json!(error)), "{body}: {answer}");
    }
    let (code, answer) = send(&service, Method::POST, &[json], &" ".repeat(65_537)).await;
    assert_eq!((code, &answer["error"]["code"]), (413, &json!("body_too_large")), "{answer}");
    let (code, answer) = send(&service, Method::POST, &[json, ("mcp-protocol-version", "1999-01-01")], &status).await;
    assert_eq!((code, &answer["error"]["code"]), (400, &json!(-32600)), "{answer}");
    let notice =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }).to_string();
    assert_eq!(send(&service, Method::POST, &[json, ("mcp-session-id", "guessed")], &notice).await.0, 202);
    // A client that takes no events gets the answer alone.
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "status", "arguments": {}, "_meta": { "progressToken": 1 } } });
    let (code, answer) = send(&service, Method::POST, &[json, ("accept", "application/json")], &ask.to_string()).await;
    assert_eq!((code, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
}
