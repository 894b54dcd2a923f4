//! Requests of the HTTP surface, answered by a running service over a connection, or within it. Agents' tools are made of them: so
//! an agent can do what the same caller could do over HTTP, and nothing else; keys, bounds and places are those of the paths.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{error_of, events};
use crate::error::{Error, Result};

/// A request of a path in `docs/http.md`: POST where it has a body, else GET.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The path's segments, as they are.
    pub path: Vec<String>,
    pub query: Vec<(&'static str, String)>,
    /// A JSON object.
    pub body: Option<Value>,
}

impl Request {
    /// GET of a path, given by its segments.
    pub fn get(path: &[&str]) -> Self {
        Self { path: path.iter().map(|&part| part.to_owned()).collect(), query: Vec::new(), body: None }
    }

    /// POST of JSON.
    pub fn post(path: &[&str], body: impl Serialize) -> Self {
        // Requests are structs with text for keys, which become JSON.
        Self { body: serde_json::to_value(body).ok(), ..Self::get(path) }
    }

    /// Path and query as a request's first line has them.
    pub fn target(&self) -> String {
        let mut target: String = self.path.iter().map(|part| format!("/{}", escaped(part))).collect();
        for (index, (name, value)) in self.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(&format!("{name}={}", escaped(value)));
        }
        target
    }
}

/// What stands in a part of a path or a query as it is (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A part of a path or a query, with everything escaped that means something there.
pub fn escaped(part: &str) -> PercentEncode<'_> {
    utf8_percent_encode(part, UNRESERVED)
}

/// An answer as it comes. Dropping it tells the path that nobody waits any more.
pub struct Reply {
    pub status: u16,
    pub body: BoxStream<'static, Result<Bytes>>,
}

impl Reply {
    /// The whole answer.
    ///
    /// # Errors
    /// The path's own error where the status is none of success.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T> {
        let (status, mut body) = (self.status, self.body);
        let mut bytes = Vec::new();
        while let Some(part) = body.next().await {
            bytes.extend_from_slice(&part?);
        }
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes)
                .map_err(|error| Error::internal(format!("the service answered something unexpected: {error}")));
        }
        Err(error_of(&serde_json::from_slice(&bytes).unwrap_or_default(), status)
            .unwrap_or_else(|| Error::internal(format!("the service answered with status {status}"))))
    }

    /// Server-sent events, up to `[DONE]`.
    ///
    /// # Errors
    /// The path's own error where the status is none of success; one on the way ends the stream.
    pub async fn events<T: DeserializeOwned>(self) -> Result<impl Stream<Item = Result<T>> + Send + use<T>> {
        if !(200..300).contains(&self.status) {
            return Err(match self.json::<Value>().await {
                Err(error) => error,
                Ok(_) => Error::internal("the service answered with neither success nor error"),
            });
        }
        Ok(events(self.body))
    }
}

/// Where requests are answered.
pub trait Routes: Send + Sync + 'static {
    /// Sends a request; the work it asks for ends when the answer is dropped.
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn reply(status: u16, parts: &'static [&'static str]) -> Reply {
        let parts = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes())));
        Reply { status, body: futures::stream::iter(parts).boxed() }
    }

    #[test]
    fn a_request_names_what_it_means() {
        let mut request = Request::get(&["v1", "collections", "notes", "documents", "a/b ?#ä"]);
        assert_eq!(request.target(), "/v1/collections/notes/documents/a%2Fb%20%3F%23%C3%A4");
        request.query = vec![("offset", "0".into()), ("limit", "a&b".into())];
        assert!(request.target().ends_with("?offset=0&limit=a%26b"), "{}", request.target());
    }

    #[tokio::test]
    async fn answers_and_errors_come_out_whole() {
        assert_eq!(reply(200, &["{\"a\"", ":1}"]).json::<Value>().await.unwrap()["a"], 1);
        let error = reply(429, &["{\"error\": {\"message\": \"full\", ", "\"code\": \"rate_limit_exceeded\"}}"]);
        let error = error.json::<Value>().await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Overloaded, "full"));
        assert_eq!(reply(502, &["<html>"]).json::<Value>().await.unwrap_err().kind(), ErrorKind::Internal);
        assert_eq!(reply(200, &["nothing"]).json::<Value>().await.unwrap_err().kind(), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn events_end_with_done_or_an_error() {
        let events =
            reply(200, &["data: {\"a\":1}\n", "\ndata: [DONE]\n\n", "data: {}\n\n"]).events::<Value>().await.unwrap();
        assert_eq!(events.map(Result::unwrap).collect::<Vec<_>>().await, [serde_json::json!({ "a": 1 })]);
        let broken = "data: {\"error\": {\"message\": \"lost\", \"code\": \"unavailable\"}}\n\n";
        let parts = [Ok(Bytes::from_static(broken.as_bytes()))];
        let broken = Reply { status: 200, body: futures::stream::iter(parts).boxed() };
        let events: Vec<_> = broken.events::<Value>().await.unwrap().collect().await;
        assert_eq!(events[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(reply(404, &["{\"error\": {\"message\": \"no\"}}"]).events::<Value>().await.is_err());
    }
}
