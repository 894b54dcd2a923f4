//! `POST /mcp`: the Model Context Protocol over HTTP ("streamable HTTP"), without state. Every request is served by itself, as rmcp's
//! own server does it; the answer is JSON, or server-sent events where something comes before it.
//!
//! A client of the revision 2026-07-28 takes a request back by closing its connection. Older ones send
//! `notifications/cancelled` over another connection: they are given a session's name, under which running requests are found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use actix_web::http::StatusCode;
use actix_web::http::header::{ACCEPT, CACHE_CONTROL, HeaderMap};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::Stream;
use rmcp::model::{
    ClientCapabilities, ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData, GetMeta,
    Implementation, InitializeRequestParams, JsonRpcMessage, JsonRpcRequest, ProtocolVersion, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::service::{RoleServer, RunningService, serve_directly_with_ct};
use rmcp::transport::OneshotTransport;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer::{HEARTBEAT, beating, comment};
use super::body::Incoming;
use super::within::{Caller, Paths, Within};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{InFlight, State, caller};
use crate::mcp::Server;

const VERSION: &str = "mcp-protocol-version";
const SESSION: &str = "mcp-session-id";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
/// What an absent header means.
const OLDEST_OVER_HTTP: ProtocolVersion = ProtocolVersion::V_2025_03_26;
/// Of a session's name; ours have 32.
const MAX_SESSION_BYTES: usize = 64;

/// Requests that run, of clients with a session, so that they can be taken back.
#[derive(Default)]
pub struct Running(Mutex<HashMap<(Session, RequestId), CancellationToken>>);

/// A client names its session; so that nobody's can be another's, it counts together with who sent it.
type Session = (ragstone_actors::Caller, String);

impl Running {
    /// Cancels a request that runs; nothing where none does.
    fn cancel(&self, session: Session, id: RequestId) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = running.get(&(session, id)) {
            end.cancel();
        }
    }
}

/// One of them; forgotten when this is dropped.
struct Entered {
    state: web::Data<State>,
    key: (Session, RequestId),
}

impl Entered {
    /// `None` where a request of this name runs already: which of the two is meant nobody could say.
    fn new(state: &web::Data<State>, session: Session, id: RequestId, end: &CancellationToken) -> Option<Self> {
        let key = (session, id);
        match state.running.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(end.clone());
                Some(Self { state: state.clone(), key })
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.state.running.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Takes one message of a client.
pub async fn post(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let message = match incoming.parse(|body| Ok(read(body))).await? {
        Ok(message) => message,
        Err(error) => return Ok(refusal(None, error)),
    };
    let session = session(request.headers()).map(|name| (caller(&request), name));
    match message {
        JsonRpcMessage::Request(message) => match check(request.headers(), &message) {
            Ok(()) => serve(state, &request, message, session).await,
            Err(error) => Ok(refusal(Some(message.id), error)),
        },
        JsonRpcMessage::Notification(message) => {
            if let (ClientNotification::CancelledNotification(cancelled), Some(session)) =
                (message.notification, session)
                && let Some(id) = cancelled.params.request_id
            {
                state.running.cancel(session, id);
            }
            Ok(HttpResponse::Accepted().finish())
        }
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {
            Ok(refusal(None, ErrorData::invalid_request("nothing was asked of this client", None)))
        }
    }
}

fn read(body: &[u8]) -> Result<ClientJsonRpcMessage, ErrorData> {
    serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            ErrorData::invalid_request(format!("the body is no message of the protocol: {error}"), None)
        } else {
            ErrorData::parse_error(format!("the body is no JSON: {error}"), None)
        }
    })
}

/// A client's session, where it has one.
fn session(headers: &HeaderMap) -> Option<String> {
    let session = headers.get(SESSION)?.to_str().ok()?;
    (1..=MAX_SESSION_BYTES).contains(&session.len()).then(|| session.to_owned())
}

/// The version that the header names; `None` where it names one that nobody knows.
fn version(headers: &HeaderMap) -> Option<ProtocolVersion> {
    match headers.get(VERSION) {
        None => Some(OLDEST_OVER_HTTP),
        Some(name) => {
            ProtocolVersion::KNOWN_VERSIONS.iter().find(|known| known.as_str().as_bytes() == name.as_bytes()).cloned()
        }
    }
}

/// Headers and message must say the same: what stands between may go by the headers.
fn check(headers: &HeaderMap, message: &JsonRpcRequest<ClientRequest>) -> Result<(), ErrorData> {
    let request = &message.request;
    let mismatch = |name: &str| ErrorData::header_mismatch(format!("the header {name} differs from the message"), None);
    let differs = |name: &str, said: &str| headers.get(name).is_some_and(|header| header.as_bytes() != said.as_bytes());
    if differs(METHOD, request.method()) {
        return Err(mismatch(METHOD));
    }
    let named = match request {
        ClientRequest::CallToolRequest(call) => Some(&*call.params.name),
        ClientRequest::ReadResourceRequest(read) => Some(&*read.params.uri),
        _ => None,
    };
    // What is no plain text comes in base 64; the message counts in any case.
    let is_plain = headers.get(NAME).is_none_or(|name| !name.as_bytes().starts_with(b"=?base64?"));
    if named.is_some_and(|named| is_plain && differs(NAME, named)) {
        return Err(mismatch(NAME));
    }
    if matches!(request, ClientRequest::InitializeRequest(_)) {
        return Ok(());
    }
    match request.get_meta().protocol_version() {
        // Whether it is served is said with the answer, which names those that are.
        Some(said) if headers.contains_key(VERSION) && !differs(VERSION, said.as_str()) => Ok(()),
        Some(_) => Err(mismatch(VERSION)),
        None => match version(headers) {
            Some(version) if version.has_initialize() => Ok(()),
            Some(_) => Err(ErrorData::invalid_params("the request's _meta lacks the protocol's version", None)),
            None => {
                let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
                Err(ErrorData::invalid_request(
                    format!("the header {VERSION} must be one of {}", known.join(", ")),
                    None,
                ))
            }
        },
    }
}

/// Serves one request; what it asks for ends when the client goes away.
async fn serve(
    state: web::Data<State>,
    request: &HttpRequest,
    message: JsonRpcRequest<ClientRequest>,
    session: Option<Session>,
) -> Answered {
    let paths = request.app_data::<Paths>().cloned().unwrap_or_default();
    let is_modern = message.request.get_meta().protocol_version().is_some();
    let (mut begun, mut peer) = (None, version(request.headers()).unwrap_or(OLDEST_OVER_HTTP));
    if let ClientRequest::InitializeRequest(initialize) = &message.request {
        peer = initialize.params.protocol_version.clone();
        begun = Some(fresh_session()?);
    }
    let peer = InitializeRequestParams::new(ClientCapabilities::default(), Implementation::default())
        .with_protocol_version(peer);
    let end = CancellationToken::new();
    let entered = session.and_then(|session| Entered::new(&state, session, message.id.clone(), &end));
    let routes = Within::new(state, paths, Caller::of(request));
    let (transport, mut received) = OneshotTransport::<RoleServer>::new(JsonRpcMessage::Request(message));
    let running = serve_directly_with_ct(Server::new(routes), transport, Some(peer), end);
    let streams = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let streams = streams.is_none_or(|accept| accept.contains("text/event-stream") || accept.contains("*/*"));
    loop {
        let first = received.recv().await.ok_or_else(|| Error::internal("the request was not answered"))?;
        if is_last(&first) {
            let mut response = HttpResponse::build(status(&first, is_modern));
            if let Some(session) = begun {
                response.insert_header((SESSION, session));
            }
            return Ok(response.json(first));
        }
        if streams {
            let sent = Sent {
                first: Some(first),
                received,
                _running: running,
                _entered: entered,
                _in_flight: InFlight::of(request),
            };
            return Ok(HttpResponse::Ok()
                .content_type("text/event-stream; charset=utf-8")
                .insert_header((CACHE_CONTROL, "no-cache"))
                .insert_header(("x-accel-buffering", "no"))
                .streaming(beating(events(sent), comment(), HEARTBEAT)));
        }
    }
}

/// What is still to be sent, and what ends when nobody reads it any more.
struct Sent {
    first: Option<ServerJsonRpcMessage>,
    received: mpsc::Receiver<ServerJsonRpcMessage>,
    _running: RunningService<RoleServer, Server>,
    _entered: Option<Entered>,
    _in_flight: Option<InFlight>,
}

fn events(sent: Sent) -> impl Stream<Item = std::io::Result<Bytes>> {
    futures::stream::unfold(Some(sent), |sent| async move {
        let mut sent = sent?;
        let message = match sent.first.take() {
            Some(first) => first,
            None => sent.received.recv().await?,
        };
        let is_last = is_last(&message);
        let event =
            serde_json::to_string(&message).map(|data| Bytes::from(format!("event: message\ndata: {data}\n\n")));
        Some((event.map_err(std::io::Error::other), (!is_last).then_some(sent)))
    })
}

fn is_last(message: &ServerJsonRpcMessage) -> bool {
    matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
}

/// Errors were answers like any other before the revision 2026-07-28.
fn status(message: &ServerJsonRpcMessage, is_modern: bool) -> StatusCode {
    match message {
        JsonRpcMessage::Error(error) if is_modern => match error.error.code {
            ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
            | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
            | ErrorCode::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        },
        _ => StatusCode::OK,
    }
}

/// A message that was not served.
fn refusal(id: Option<RequestId>, error: ErrorData) -> HttpResponse {
    HttpResponse::BadRequest().json(ServerJsonRpcMessage::error(error, id))
}

/// A name that nobody guesses.
fn fresh_session() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal(format!("no randomness for a session's name: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};
    use serde_json::json;

    use super::*;

    fn request(body: serde_json::Value) -> JsonRpcRequest<ClientRequest> {
        match read(body.to_string().as_bytes()).unwrap() {
            JsonRpcMessage::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn call() -> serde_json::Value {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "status", "arguments": {} } })
    }

    fn modern(version: &str) -> serde_json::Value {
        let mut call = call();
        call["params"]["_meta"] = json!({ "io.modelcontextprotocol/protocolVersion": version });
        call
    }

    #[test]
    fn headers_must_say_what_the_message_says() {
        for (message, given, allowed) in [
            (call(), vec![], true),
            (call(), vec![(VERSION, "2025-11-25")], true),
            (call(), vec![(VERSION, "1999-01-01")], false),
            (call(), vec![(VERSION, "2026-07-28")], false),
            (call(), vec![(METHOD, "tools/call"), (NAME, "status")], true),
            (call(), vec![(METHOD, "tools/list")], false),
            (call(), vec![(NAME, "add")], false),
            (call(), vec![(NAME, "=?base64?c3RhdHVz?=")], true),
            (modern("2026-07-28"), vec![], false),
            (modern("2026-07-28"), vec![(VERSION, "2026-07-28")], true),
            (modern("2026-07-28"), vec![(VERSION, "2025-11-25")], false),
            (modern("2099-01-01"), vec![(VERSION, "2099-01-01")], true),
        ] {
            assert_eq!(check(&headers(&given), &request(message)).is_ok(), allowed, "{given:?}");
        }
    }

    #[test]
    fn what_is_no_message_is_told_from_what_is_no_json() {
        for (body, code) in [
            ("{", ErrorCode::PARSE_ERROR),
            ("", ErrorCode::PARSE_ERROR),
            ("[]", ErrorCode::INVALID_REQUEST),
            ("{}", ErrorCode::INVALID_REQUEST),
            (r#"{"jsonrpc": "1.0", "id": 1, "method": "ping"}"#, ErrorCode::INVALID_REQUEST),
            (r#"{"jsonrpc": "2.0", "id": {}, "method": "ping"}"#, ErrorCode::INVALID_REQUEST),
        ] {
            assert_eq!(read(body.as_bytes()).unwrap_err().code, code, "{body}");
        }
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes()).is_err());
    }

    #[test]
    fn errors_have_a_status_of_their_own_since_the_last_revision() {
        let error = |code| ServerJsonRpcMessage::error(ErrorData::new(code, "no", None), None);
        assert_eq!(status(&error(ErrorCode::METHOD_NOT_FOUND), true), StatusCode::NOT_FOUND);
        assert_eq!(status(&error(ErrorCode::METHOD_NOT_FOUND), false), StatusCode::OK);
        assert_eq!(status(&error(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION), true), StatusCode::BAD_REQUEST);
        assert_eq!(status(&error(ErrorCode::INVALID_PARAMS), true), StatusCode::OK);
    }

    #[test]
    fn sessions_are_names_of_some_length() {
        assert_eq!(session(&headers(&[(SESSION, "abc")])).as_deref(), Some("abc"));
        assert_eq!(session(&headers(&[])), None);
        assert_eq!(session(&headers(&[(SESSION, &"x".repeat(65))])), None);
        let (one, two) = (fresh_session().unwrap(), fresh_session().unwrap());
        assert!(one.len() == 32 && one != two);
    }

    #[test]
    fn any_message_is_understood_or_refused() {
        let seeds = [
            call().to_string(),
            modern("2026-07-28").to_string(),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "a", "reason": "b" } }).to_string(),
            json!({ "jsonrpc": "2.0", "id": "x", "method": "initialize", "params": { "protocolVersion": "2025-06-18",
                "capabilities": { "roots": { "listChanged": true } }, "clientInfo": { "name": "n", "version": "1" } } }).to_string(),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": { "uri": "ragstone://a/b" } }).to_string(),
            json!({ "jsonrpc": "2.0", "id": 3, "result": {} }).to_string(),
        ];
        crate::fuzz::fuzz("mcp message", &seeds.map(String::into_bytes), |body| match read(body) {
            Ok(JsonRpcMessage::Request(message)) => {
                for given in [vec![], vec![(VERSION, "2026-07-28"), (METHOD, "tools/call"), (NAME, "status")]] {
                    if let Err(error) = check(&headers(&given), &message) {
                        assert!(!error.message.is_empty());
                    }
                }
                true
            }
            Ok(_) => true,
            Err(error) => {
                assert!([ErrorCode::PARSE_ERROR, ErrorCode::INVALID_REQUEST].contains(&error.code));
                false
            }
        });
    }
}
