//! Traces and metrics as an OpenTelemetry collector gets them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

use crate::harness::{Folder, Service, WORLD};

/// Whose trace the test's request belongs to.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
/// Longer than the test: what is sent is sent when the service stops.
const NEVER: &str = "3600000";

/// What a collector was sent.
#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    services: Vec<String>,
    keys: Vec<String>,
}

type Shared = web::Data<Mutex<Received>>;

/// A collector on a free port, and what it gets. It takes traces, and metrics where that is wanted.
fn collector(takes_metrics: bool) -> (String, Shared) {
    let received = Shared::new(Mutex::default());
    let shared = received.clone();
    let app = move || {
        let app = App::new().app_data(shared.clone()).app_data(web::PayloadConfig::new(64 << 20));
        let app = app.route("/in/v1/traces", web::post().to(take_traces));
        if takes_metrics { app.route("/in/v1/metrics", web::post().to(take_metrics)) } else { app }
    };
    let server = HttpServer::new(app).workers(1).disable_signals().bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/in", server.addrs()[0]);
    tokio::spawn(server.run());
    (url, received)
}

async fn take_traces(received: Shared, request: HttpRequest, body: Bytes) -> HttpResponse {
    let sent = ExportTraceServiceRequest::decode(body).unwrap();
    let mut received = received.lock().unwrap();
    for of_resource in sent.resource_spans {
        received.services.extend(text(&of_resource.resource.unwrap().attributes, "service.name"));
        received.spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    note(&mut received, &request)
}

async fn take_metrics(received: Shared, request: HttpRequest, body: Bytes) -> HttpResponse {
    let sent = ExportMetricsServiceRequest::decode(body).unwrap();
    let mut received = received.lock().unwrap();
    for of_resource in sent.resource_metrics {
        received.services.extend(text(&of_resource.resource.unwrap().attributes, "service.name"));
        received.metrics.extend(of_resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics));
    }
    note(&mut received, &request)
}

fn note(received: &mut Received, request: &HttpRequest) -> HttpResponse {
    assert_eq!(request.headers().get("content-type").unwrap(), "application/x-protobuf");
    received.keys.push(request.headers().get("api-key").unwrap().to_str().unwrap().to_owned());
    HttpResponse::Ok().finish()
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match attribute(attributes, key)? {
        Any::StringValue(text) => Some(text.clone()),
        other => panic!("{key} is {other:?}"),
    }
}

fn count(attributes: &[KeyValue], key: &str) -> i64 {
    match attribute(attributes, key) {
        Some(Any::IntValue(count)) => *count,
        other => panic!("{key} is {other:?}"),
    }
}

/// Asks a streamed question with passages, as a part of the test's trace.
async fn ask(service: &Service) {
    let body = json!({ "model": "ragstone-demo", "stream": true, "max_tokens": 8, "ragstone": { "collection": "world" },
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }] });
    let request = reqwest::Client::new().post(service.url("/v1/chat/completions")).json(&body);
    let response = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01")).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
}

/// The trace of a question that an agent asks.
const AGENTS_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn ask_as_an_agent(service: &Service) {
    let arguments = json!({ "question": "What does Calbet Works make?", "collection": "world" });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "ask", "arguments": arguments } });
    let request = reqwest::Client::new().post(service.url("/mcp")).header("content-type", "application/json");
    let request = request.header("traceparent", format!("00-{AGENTS_TRACE}-{PARENT}-01")).body(call.to_string());
    let answer = request.send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("\"isError\":false"), "{answer}");
}

#[tokio::test]
async fn a_collector_gets_the_steps_of_a_question_and_every_metric() {
    let (url, received) = collector(true);
    let folder = Folder::new();
    let variables = [
        ("OTEL_BSP_SCHEDULE_DELAY", NEVER),
        ("OTEL_METRIC_EXPORT_INTERVAL", NEVER),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20secret"),
        ("OTEL_SERVICE_NAME", "kb-of-the-test"),
    ];
    let service = folder.serve_with(&["--set", &format!("otlp_endpoint={url}")], &variables).await;
    service.add("world", WORLD).await;
    ask(&service).await;
    ask_as_an_agent(&service).await;
    let exposition = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    let stopped = tokio::task::spawn_blocking(move || service.stop());
    assert_eq!(stopped.await.unwrap(), 0);

    let received = std::mem::take(&mut *received.lock().unwrap());
    assert!(received.services.iter().all(|name| name == "kb-of-the-test") && received.services.len() > 1);
    assert!(received.keys.iter().all(|key| key == "a secret"));
    steps_are_whole(&received.spans);
    let of_agent = received.spans.iter().filter(|span| hex::encode(&span.trace_id) == AGENTS_TRACE);
    let of_agent: Vec<&str> = of_agent.map(|span| span.name.as_str()).collect();
    for name in ["POST /mcp", "POST /v1/chat/completions", "retrieve", "prefill", "decode"] {
        assert!(of_agent.contains(&name), "an agent's question is one trace: no {name} in {of_agent:?}");
    }
    metrics_are_those_shown(&received.metrics, &exposition);
}

fn steps_are_whole(spans: &[Span]) {
    let of_trace: Vec<&Span> = spans.iter().filter(|span| hex::encode(&span.trace_id) == TRACE).collect();
    let by_name: BTreeMap<&str, &Span> = of_trace.iter().map(|span| (span.name.as_str(), *span)).collect();
    let step = |name: &str| *by_name.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", by_name.keys()));
    let parent = |name: &str| hex::encode(&step(name).parent_span_id);
    let id = |name: &str| hex::encode(&step(name).span_id);

    let request = "POST /v1/chat/completions";
    assert_eq!(parent(request), PARENT, "the trace of whoever asks goes on");
    for (inner, outer) in [
        ("retrieve", request),
        ("assemble", request),
        ("fuse", request),
        ("look_up", "fuse"),
        ("plan", "fuse"),
        ("prefill", "fuse"),
        ("decode", request),
    ] {
        assert_eq!(parent(inner), id(outer), "{inner} is a step of {outer}");
        let (inner, outer) = (step(inner), step(outer));
        assert!(outer.start_time_unix_nano <= inner.start_time_unix_nano, "{}", inner.name);
        assert!(inner.end_time_unix_nano <= outer.end_time_unix_nano, "{} outlasts {}", inner.name, outer.name);
    }
    let asked = &step(request).attributes;
    assert_eq!(count(asked, "http.response.status_code"), 200);
    assert_eq!(text(asked, "http.route").as_deref(), Some("/v1/chat/completions"));
    assert_eq!(text(asked, "gen_ai.operation.name").as_deref(), Some("chat"));
    let sources = ["exact", "blended", "recomputed", "computed"];
    let tokens: i64 = sources.iter().map(|source| count(asked, &format!("ragstone.tokens.{source}"))).sum();
    assert_eq!(tokens, count(asked, "gen_ai.usage.input_tokens"), "every token of the prompt came from somewhere");
    assert_eq!(count(&step("decode").attributes, "tokens"), count(asked, "gen_ai.usage.output_tokens"));
    for span in spans {
        let words = format!("{span:?}");
        assert!(!words.contains("Calbet"), "{} tells what was asked or answered: {words}", span.name);
    }
}

fn metrics_are_those_shown(metrics: &[Metric], exposition: &str) {
    let shown: Vec<&str> = exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(shown.len() > 30, "{exposition}");
    for line in shown {
        let (name, kind) = line.split_once(' ').unwrap();
        let sent = metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} was not sent"));
        let sent_kind = match sent.data.as_ref().unwrap() {
            metric::Data::Sum(_) => "counter",
            metric::Data::Gauge(_) => "gauge",
            metric::Data::Histogram(_) => "histogram",
            other => panic!("{name} is {other:?}"),
        };
        assert_eq!(sent_kind, kind, "{name}");
        assert!(!sent.description.is_empty(), "{name}");
    }
    let generated = metrics.iter().find(|metric| metric.name == "ragstone_generated_tokens_total").unwrap();
    let Some(metric::Data::Sum(sum)) = &generated.data else { panic!("{generated:?}") };
    let value = format!(
        "\nragstone_generated_tokens_total {}\n",
        match sum.data_points[0].value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            ref other => panic!("{other:?}"),
        }
    );
    assert!(exposition.contains(&value), "{value}");
}

#[tokio::test]
async fn a_collector_that_is_away_is_told_of_once_and_costs_no_answer() {
    let folder = Folder::new();
    // A port that was free a moment ago, and where nobody listens.
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let variables = [("OTEL_BSP_SCHEDULE_DELAY", "5"), ("OTEL_METRIC_EXPORT_INTERVAL", "5")];
    let mut command = folder.serve_command(&variables);
    command.args(["--set", "log_steps=true", "--set", &format!("otlp_endpoint=http://user:hunter2@{away}")]);
    let log = folder.path().join("log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    service.add("world", WORLD).await;
    ask(&service).await;
    let (_, settings) = service.get("/v1/settings").await;
    assert!(!settings.to_string().contains("hunter2"), "{settings}");
    let stopped = tokio::task::spawn_blocking(move || service.stop());
    assert_eq!(stopped.await.unwrap(), 0);
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("the OpenTelemetry collector does not take it").count(), 2, "once for each signal: {log}");
    assert!(log.contains(&format!("trace_id={TRACE}")), "log lines name the trace: {log}");
    assert!(!log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn a_signal_that_is_not_taken_is_told_of_apart_and_json_lines_name_the_trace() {
    let (url, received) = collector(false);
    let folder = Folder::new();
    let variables = [
        ("OTEL_BSP_SCHEDULE_DELAY", "5"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "5"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k"),
    ];
    let mut command = folder.serve_command(&variables);
    command.args(["--log-format", "json", "--set", "log_steps=true", "--set", &format!("otlp_endpoint={url}")]);
    let log = folder.path().join("log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    service.add("world", WORLD).await;
    ask(&service).await;
    let stopped = tokio::task::spawn_blocking(move || service.stop());
    assert_eq!(stopped.await.unwrap(), 0);
    let log = std::fs::read_to_string(log).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("the OpenTelemetry collector")).collect();
    assert!(told.len() == 1 && told[0].contains("metrics") && told[0].contains("404"), "{told:?}");
    let step = log.lines().find(|line| line.contains("\"look_up\"") && line.contains("close")).unwrap();
    assert!(step.contains(TRACE), "{step}");
    assert!(received.lock().unwrap().spans.len() > 5);
}

#[test]
fn an_address_that_is_none_is_refused_before_anything_is_touched() {
    let folder = Folder::new();
    folder
        .run(&["serve", "--set", "otlp_endpoint=collector:4318"])
        .failed_with(&["otlp_endpoint", "http://127.0.0.1:4318"]);
    assert!(!folder.data().exists());
}
