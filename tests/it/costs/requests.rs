//! Requests of every path, and what is done to each.

use serde_json::{Value, json};

use super::multiplied::variants;

/// A request, and what was done to its body.
pub struct Request {
    pub method: &'static str,
    /// As the service's description has it.
    pub route: String,
    pub path: String,
    pub text: String,
    pub how: String,
}

/// Paths whose work follows from the store and not from the request, or whose body is a few names of the owner's.
const LEFT_OUT: &[&str] = &[
    "/v1/collections/{collection}/ingest",
    "/v1/collections/{collection}/renewal",
    "/v1/keys",
    "/v1/cache/calibration",
    "/v1/cache/verify",
    "/v1/cache/gc",
    "/v1/cache/export",
    "/v1/cache/import",
    "/v1/quotas",
    // The same handler.
    "/v2/rerank",
    "/score",
];

/// Valid requests of each path.
const VALID: &str = include_str!("requests.json");

/// One of them.
#[derive(serde::Deserialize)]
struct Valid {
    /// As the service's description has it.
    route: String,
    /// As it is asked; the same where nothing is in braces.
    path: Option<String>,
    body: Value,
}

fn valid() -> Vec<Valid> {
    serde_json::from_str(VALID).unwrap()
}

const CHAT: &str = "/v1/chat/completions";
const DOCUMENTS: &str = "/v1/collections/{collection}/documents";
const FILES: &str = "/v1/collections/{collection}/files/{file}";

/// The plain ones.
pub fn plain() -> Vec<Request> {
    let plain = |Valid { route, path, body }| {
        let path = path.unwrap_or_else(|| route.clone());
        Request { method: "POST", route, path, text: body.to_string(), how: "plain".into() }
    };
    let mut requests: Vec<Request> = valid().into_iter().map(plain).collect();
    requests.push(upload("plain.txt", "A lantern.".into()));
    requests
}

fn upload(name: &str, text: String) -> Request {
    let path = format!("/v1/collections/f/files/{name}");
    Request { method: "PUT", route: FILES.into(), path, text, how: name.into() }
}

/// All that are multiplied, to about `bytes` bytes.
pub fn all(bytes: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    for Valid { route, path, body } in valid() {
        let path = path.unwrap_or_else(|| route.clone());
        requests.extend(variants(&body, bytes).into_iter().map(|(how, value)| Request {
            method: "POST",
            route: route.clone(),
            path: path.clone(),
            text: value.to_string(),
            how,
        }));
    }
    for (how, text) in languages(bytes) {
        let question = json!([{ "role": "user", "content": "q" }]);
        let value = match how.split_once(' ') {
            Some(("prompt", _)) => {
                let schema = "<schema name='a'><module name='b'>x</module></schema>";
                json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 1, "ragstone": { "pml": { "schema": schema } } })
            }
            Some(("schema", _)) => {
                let messages = json!([{ "role": "user", "content": "<prompt schema='a'>q</prompt>" }]);
                json!({ "messages": messages, "max_tokens": 1, "ragstone": { "pml": { "schema": text } } })
            }
            Some((field, _)) => json!({ "messages": question, "max_tokens": 1, field: text }),
            None => continue,
        };
        requests.push(Request { method: "POST", route: CHAT.into(), path: CHAT.into(), text: value.to_string(), how });
    }
    requests.extend(files(bytes).into_iter().map(|(name, text)| upload(name, text)));
    let long = "x".repeat(bytes.min(7 << 10));
    for (route, path) in [
        ("/v1/models/{model}", format!("/v1/models/{long}")),
        (DOCUMENTS, format!("/v1/collections/{long}/documents?offset=1&limit=2")),
        ("/v1/cache/entries", format!("/v1/cache/entries?{}", "a=b&".repeat(1500))),
    ] {
        requests.push(Request {
            method: "GET",
            route: route.into(),
            path,
            text: String::new(),
            how: "long path".into(),
        });
    }
    requests
}

/// Texts of a language of their own; the first word of each name says where they go.
fn languages(bytes: usize) -> Vec<(String, String)> {
    let schema = bytes.min(60 << 10);
    let many = |one: &dyn Fn(usize) -> String, bytes: usize| {
        let count = bytes / one(10_000).len();
        (0..count).map(one).collect::<String>()
    };
    let within = |open: &str, inner: String, close: &str| format!("{open}{inner}{close}");
    let prompt = |inner: String| within("<prompt schema='a'>", inner, "</prompt>");
    let stated = |inner: String| within("<schema name='a'>", inner, "</schema>");
    let module = |inner: &str| format!("<module name='m'>{inner}</module>");
    let rules = many(&|at| format!("r{at}: r{}\n", at + 1), schema);
    let last = rules.lines().count();
    [
        ("guided_regex repeat", "(a?b)?".repeat(schema / 6)),
        ("guided_regex nest", format!("{}a{}", "(".repeat(schema / 3), ")?".repeat(schema / 3))),
        ("guided_regex count", "(a{1000}b{1000}){1000}".repeat(20)),
        ("guided_regex classes", "\\w{200}".repeat(schema / 7)),
        ("guided_grammar chain", format!("start: r0\n{rules}r{last}: \"a\"\n")),
        ("guided_grammar wide", format!("start: {}", vec!["\"a\""; schema / 6].join(" | "))),
        ("guided_grammar optional", format!("start: {}", "\"a\"? ".repeat(schema / 6))),
        ("guided_grammar nest", format!("start: {}\"a\"{}", "(".repeat(3999), ")".repeat(3999))),
        ("guided_grammar count", "start: x{1,1000000}\nx: y{1,1000000}\ny: \"a\"{1,1000000}\n".to_owned()),
        ("guided_grammar ambiguous", "start: start start | \"a\" | \"a\" start | start \"a\"\n".to_owned()),
        ("prompt imports", prompt("<b/>".repeat(bytes / 4))),
        ("prompt other imports", prompt(many(&|at| format!("<b{at}/>"), bytes))),
        ("prompt nest", prompt(format!("{}{}", "<b>".repeat(bytes / 7), "</b>".repeat(bytes / 7)))),
        ("prompt attributes", prompt(format!("<b{}/>", many(&|at| format!(" a{at}=''"), bytes)))),
        (
            "prompt some attributes",
            prompt(format!("<b{}/>", many(&|at| format!(" a{at}=''"), 9000)).repeat(bytes / 9000)),
        ),
        ("prompt namespaces", prompt(many(&|at| format!("<b xmlns:a{at}=''/>"), bytes))),
        ("prompt comments", prompt("<!---->".repeat(bytes / 7))),
        ("prompt entities", prompt("&amp;".repeat(bytes / 5))),
        ("prompt texts", prompt("x<!---->".repeat(19_000.min(bytes / 8)))),
        ("schema modules", stated(many(&|at| format!("<module name='m{at}'/>"), bytes))),
        ("schema modules of text", stated(many(&|at| format!("<module name='m{at}'>x</module>"), bytes))),
        ("schema union", stated(within("<union>", many(&|at| format!("<module name='m{at}'/>"), bytes), "</union>"))),
        ("schema parameters", stated(module(&many(&|at| format!("x<parameter name='p{at}' length='1'/>"), bytes)))),
        (
            "schema great parameters",
            stated(within(
                "<union>",
                many(&|at| format!("<module name='m{at}'><parameter name='p' length='4000'/></module>"), bytes),
                "</union>",
            )),
        ),
        (
            "schema scaffolds",
            stated(format!(
                "<module name='c'>x</module><module name='d'>x</module>{}",
                "<scaffold modules='c d'/>".repeat(bytes / 25)
            )),
        ),
        ("schema roles", stated("<user>x</user>".repeat(bytes / 14))),
        (
            "schema long name",
            stated(format!(
                "<module name='{}'>{}</module>",
                "n".repeat(bytes / 2),
                "x<parameter name='p' length='1'/>"
            )),
        ),
        ("schema text", stated("word ".repeat(bytes / 5))),
    ]
    .map(|(how, text)| (how.to_owned(), text))
    .into()
}

/// Files of each kind that is text.
fn files(bytes: usize) -> Vec<(&'static str, String)> {
    let bytes = bytes / 4;
    vec![
        ("nest.html", format!("{}x", "<div>".repeat(bytes / 5))),
        ("tables.html", format!("<table>{}", "<tr><td>x".repeat(bytes / 9))),
        ("quotes.md", format!("{} x", "> ".repeat(bytes / 2))),
        ("lists.md", (0..(bytes / 100)).map(|at| format!("{}- x\n", " ".repeat(at % 100))).collect()),
        ("brackets.md", "[".repeat(bytes)),
        ("front.md", format!("---\n{}---\nx", "a: b\n".repeat(bytes / 5))),
        ("wide.csv", format!("{}\n{}\n", "a,".repeat(bytes / 4), "b,".repeat(bytes / 4))),
        ("long.csv", format!("text\n{}", "a\n".repeat(bytes / 20))),
        ("records.jsonl", "{\"text\":\"a\",\"m\":[0,0,0]}\n".repeat(bytes / 100)),
        ("deep.json", format!("[{{\"text\":\"a\",\"m\":{}{}}}]", "[".repeat(100), "]".repeat(100))),
        ("mail.eml", format!("Subject: x\n{}\n\nx", "Received: x\n".repeat(bytes / 12))),
        ("text.txt", "!?;:,.".repeat(bytes / 6)),
    ]
}

/// Whether every path of the service's description that takes a body is here, or left out on purpose.
pub fn check_complete(document: &Value) {
    let mut known: Vec<String> = valid().into_iter().map(|valid| valid.route).collect();
    known.extend(LEFT_OUT.iter().copied().chain([FILES]).map(str::to_owned));
    for (path, methods) in document["paths"].as_object().unwrap() {
        let takes_body = methods.as_object().unwrap().values().any(|method| !method["requestBody"].is_null());
        assert!(!takes_body || known.contains(path), "{path} is not multiplied: add a request of it");
    }
}
