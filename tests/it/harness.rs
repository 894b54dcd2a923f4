//! Starts the real program and speaks to it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use serde_json::{Value, json};

/// Nothing in these tests takes longer on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that goes away with the test.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The program on this folder's data, without the settings of whoever runs the tests. The demo model answers, whose answers are known,
    /// and nothing is asked for outside this machine.
    pub fn ragstone(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ragstone"));
        let is_setting = |name: &str| ["RAGSTONE_", "OTEL_"].iter().any(|prefix| name.starts_with(prefix));
        for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name) && name != "RAGSTONE_EMBEDDER") {
            command.env_remove(name);
        }
        command.env_remove("RUST_LOG").env("RAGSTONE_DATA", self.data()).args(arguments).stdin(Stdio::null());
        command.env("HF_ENDPOINT", "http://127.0.0.1:1").env("PIP_NO_INDEX", "1");
        // A service has the model that it was started with, and what is measured is of random weights.
        if !self.is_served() && arguments.first() != Some(&"bench") {
            command.env("RAGSTONE_MODEL", "demo");
        }
        command
    }

    /// Whether the process of the folder's service is there.
    fn is_served(&self) -> bool {
        let record = std::fs::read(self.data().join("service.json")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        record["pid"].as_u64().is_some_and(|pid| signal("0", pid as u32))
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.ragstone(arguments).output().unwrap())
    }

    /// Runs a command that must succeed and print JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(arguments).succeeded();
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
    }

    /// Starts the service and waits until it answers questions.
    pub async fn serve(&self, arguments: &[&str]) -> Service {
        self.serve_with(arguments, &[]).await
    }

    /// As [`serve`](Self::serve), with variables.
    pub async fn serve_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Service {
        let mut command = self.serve_command(variables);
        command.args(arguments);
        let service = Service::start_unready(command);
        service.wait_until_ready().await;
        service
    }

    /// What the running service tells its owner.
    fn record(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.data().join("service.json")).unwrap()).unwrap()
    }

    /// The owner's token.
    pub fn token(&self) -> String {
        self.record()["token"].as_str().unwrap().to_owned()
    }

    /// Where the running service answers about health and metrics on a thread of their own.
    pub fn health_address(&self) -> String {
        self.record()["health"].as_str().unwrap().to_owned()
    }

    /// The command that starts the service, with variables.
    pub fn serve_command(&self, variables: &[(&str, &str)]) -> Command {
        let mut command = self.ragstone(&["serve", "--listen", "127.0.0.1:0"]);
        command.envs(variables.iter().copied());
        command
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It failed with one clear message that holds all of `words`, not with a panic.
    pub fn failed_with(self, words: &[&str]) -> Self {
        assert!(matches!(self.code, Some(1 | 2)), "{self:?}");
        assert!(self.stderr.contains("ragstone: "), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
        self
    }
}

/// A running service; killed when dropped.
pub struct Service {
    child: Child,
    pub address: String,
}

impl Service {
    /// Starts the service; it may not answer yet, or never.
    pub fn start_unready(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        // Keeps the pipe open and empty.
        Env::spawn("output", move || lines.read_to_end(&mut Vec::new())).unwrap();
        Self { child, address }
    }

    pub async fn wait_until_ready(&self) {
        let begun = Stopwatch::start();
        while get(&self.url("/readyz")).await.0 != 200 {
            assert!(begun.elapsed() < PATIENCE, "the service does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        get(&self.url(path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = reqwest::Client::new().post(self.url(path)).json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let response = reqwest::Client::new().post(self.url(path)).body(body.to_vec()).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub async fn put(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let response = reqwest::Client::new().put(self.url(path)).body(body.to_vec()).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Posts what must succeed.
    pub async fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Adds documents of one passage each.
    pub async fn add(&self, collection: &str, texts: &[(&str, &str)]) {
        let documents: Vec<Value> = texts.iter().map(|(title, text)| json!({ "title": title, "text": text })).collect();
        self.ask(&format!("/v1/collections/{collection}/documents"), &json!({ "documents": documents })).await;
    }

    /// The data of a stream's events, `[DONE]` included.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let response = reqwest::Client::new().post(self.url(path)).json(body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        let text = response.text().await.unwrap();
        text.split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| event.strip_prefix("data: ").unwrap().to_owned())
            .collect()
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(mut self) -> i32 {
        assert!(signal("TERM", self.pid()));
        let begun = Stopwatch::start();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < PATIENCE, "the service does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `kill -9`
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for a service that ends by itself.
    pub fn wait(mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal, such as `TERM`; whether the process was there.
pub fn signal(name: &str, pid: u32) -> bool {
    Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap().success()
}

/// Status and JSON; null where the body is none. 0 where nobody answers.
pub async fn get(url: &str) -> (u16, Value) {
    match reqwest::get(url).await {
        Ok(response) => (response.status().as_u16(), response.json().await.unwrap_or_default()),
        Err(_) => (0, Value::Null),
    }
}

/// Checks OpenAI's error shape; the message.
pub fn error_message(body: &Value) -> String {
    let error = &body["error"];
    assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{body}");
    error["message"].as_str().unwrap().to_owned()
}

/// Short passages about invented things.
pub const WORLD: &[(&str, &str)] = &[
    ("Calbet Works", "Calbet Works makes copper lanterns in the town of Orvik. Its director is Elka Dorman."),
    ("Garden letter", "The garden behind the mill grows blue poppies, and the miller waters them at night."),
    ("Harbour report", "Nine boats lay in the harbour of Tarn this week; three of them carried salt."),
    ("Elka Dorman", "Elka Dorman was born in Tarn, plays the lute, and owns four boats."),
];
