//! Speaks to a running service: this program's commands, over its own HTTP surface.

pub mod routes;

use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::TOKEN_HEADER;
use crate::api::error::ErrorBody;
use crate::api::error::kind_of;
use crate::api::models::{Health, Ready};
use crate::data_folder::ServiceRecord;
use crate::error::{Error, ErrorKind, Result};

/// A service's client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    base: Url,
    token: String,
    http: reqwest::Client,
    passes: bool,
}

impl Client {
    /// For the service at `address` (`http://ADDR:PORT`), as the owner who knows `token`.
    pub fn new(address: &str, token: &str) -> Result<Self> {
        let base = Url::parse(address)
            .map_err(|error| Error::internal(format!("the service's address {address} cannot be read: {error}")))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(2))
            .build()
            .map_err(|error| Error::internal(error.to_string()))?;
        Ok(Self { base, token: token.to_owned(), http, passes: false })
    }

    /// For a running service that left this record, as the owner.
    pub fn of(record: &ServiceRecord) -> Result<Self> {
        Ok(Self { passes: record.passes, ..Self::new(&record.address, &record.token)? })
    }

    /// Whether it is another command's own service, which ends with that command.
    pub fn passes(&self) -> bool {
        self.passes
    }

    /// GET of a path, given by its segments.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        self.read(self.request(Method::GET, path)?).await
    }

    /// GET of a path with a query.
    pub async fn get_with<T: DeserializeOwned>(&self, path: &[&str], query: &impl Serialize) -> Result<T> {
        self.read(self.request(Method::GET, path)?.query(query)).await
    }

    /// GET of a path whose answer is text.
    pub async fn text(&self, path: &[&str]) -> Result<String> {
        let response = self.send(self.request(Method::GET, path)?).await?;
        response.text().await.map_err(|error| self.lost(&error))
    }

    /// DELETE of a path with a query.
    pub async fn delete_with<T: DeserializeOwned>(&self, path: &[&str], query: &impl Serialize) -> Result<T> {
        self.read(self.request(Method::DELETE, path)?.query(query)).await
    }

    /// DELETE of a path.
    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        self.read(self.request(Method::DELETE, path)?).await
    }

    /// POST of JSON.
    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T> {
        self.read(self.request(Method::POST, path)?.json(body)).await
    }

    /// POST whose answer comes as server-sent events.
    pub async fn events<T: DeserializeOwned, B: Serialize>(
        &self,
        path: &[&str],
        body: &B,
    ) -> Result<impl Stream<Item = Result<T>> + use<T, B>> {
        let response = self.send(self.request(Method::POST, path)?.json(body)).await?;
        Ok(events(self.body(response)))
    }

    /// Any request, and its answer as it comes, whatever its status.
    pub async fn reply(&self, request: routes::Request) -> Result<routes::Reply> {
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        let sent = match &request.body {
            Some(body) => self.request(Method::POST, &path)?.json(body),
            None => self.request(Method::GET, &path)?,
        };
        let response = sent.query(&request.query).send().await.map_err(|error| self.lost(&error))?;
        Ok(routes::Reply { status: response.status().as_u16(), body: self.body(response) })
    }

    /// What the service sends, as it comes.
    fn body(&self, response: Response) -> BoxStream<'static, Result<Bytes>> {
        let base = self.base.to_string();
        response.bytes_stream().map(move |part| part.map_err(|error| lost(&base, &error))).boxed()
    }

    /// Whether the process `pid` answers at this address.
    pub async fn is_process(&self, pid: u32) -> bool {
        let health = async { self.get::<Health>(&["healthz"]).await };
        matches!(tokio::time::timeout(Duration::from_secs(5), health).await, Ok(Ok(health)) if health.pid == pid)
    }

    /// Whether it is another command's own service, and ends now.
    pub async fn is_ending(&self) -> bool {
        self.passes && self.get::<Ready>(&["readyz"]).await.is_err()
    }

    /// Whether anybody answers at this address.
    pub async fn is_alive(&self) -> bool {
        self.get::<Health>(&["healthz"]).await.is_ok()
    }

    fn request(&self, method: Method, path: &[&str]) -> Result<RequestBuilder> {
        path.iter().try_for_each(|segment| check_segment(segment))?;
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Error::internal(format!("{} is no base for paths", self.base)))?
            .clear()
            .extend(path);
        Ok(self.http.request(method, url).header(TOKEN_HEADER, &self.token))
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::internal(format!("the service at {} answered something unexpected: {error}", self.base))
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.json::<Value>().await.unwrap_or_default();
        Err(error_of(&body, status.as_u16())
            .unwrap_or_else(|| Error::internal(format!("the service at {} answered with status {status}", self.base))))
    }

    fn lost(&self, error: &reqwest::Error) -> Error {
        lost(self.base.as_str(), error)
    }
}

/// A segment of a path that URLs can carry: they leave out the others, also where these are percent-encoded, and so mean another path.
fn check_segment(segment: &str) -> Result<()> {
    match segment {
        "" => Err(Error::invalid_input("a name or an id is empty: give the one that is meant")),
        "." | ".." => Err(Error::invalid_input(format!(
            "`{segment}` can be no name and no id here, as URLs cannot carry it: give another one"
        ))),
        // Tabs and ends of lines would be left out.
        _ if segment.contains(char::is_control) => {
            Err(Error::invalid_input("a name or an id has control characters: give it without them"))
        }
        _ => Ok(()),
    }
}

fn lost(base: &str, error: &reqwest::Error) -> Error {
    let why = ragstone_models::hub::root_cause(error);
    let message = format!("the service at {base} went away ({why}); run the command again");
    Error::new(ErrorKind::Unavailable, message)
}

/// The error in a body of OpenAI's shape.
fn error_of(body: &Value, status: u16) -> Option<Error> {
    let ErrorBody { error } = ErrorBody::deserialize(body).ok()?;
    Some(Error::new(kind_of(status, error.code.as_deref()), error.message))
}

/// The data of server-sent events, up to `[DONE]`; an event that holds an error ends them.
fn events<T: DeserializeOwned>(chunks: BoxStream<'static, Result<Bytes>>) -> impl Stream<Item = Result<T>> + Send {
    futures::stream::unfold(Some((chunks, Vec::new())), |state| async move {
        let (mut chunks, mut buffer) = state?;
        loop {
            match take_event(&mut buffer) {
                Some(Event::Done) => return None,
                Some(Event::Data(value)) => match read_event(value) {
                    Ok(event) => return Some((Ok(event), Some((chunks, buffer)))),
                    Err(error) => return Some((Err(error), None)),
                },
                None => {}
            }
            match chunks.next().await {
                Some(Ok(bytes)) => buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Some((Err(error), None)),
                None => return None,
            }
        }
    })
}

fn read_event<T: DeserializeOwned>(value: Value) -> Result<T> {
    match error_of(&value, 500) {
        Some(error) => Err(error),
        None => serde_json::from_value(value)
            .map_err(|error| Error::internal(format!("the service sent something unexpected: {error}"))),
    }
}

#[derive(Debug, PartialEq)]
enum Event {
    Data(Value),
    Done,
}

/// Takes the first whole event out of the buffer.
fn take_event(buffer: &mut Vec<u8>) -> Option<Event> {
    loop {
        let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
        let event: Vec<u8> = buffer.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&event);
        let Some(data) = text.trim().strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            return Some(Event::Done);
        }
        if let Ok(value) = serde_json::from_str(data) {
            return Some(Event::Data(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_come_out_whole_however_they_arrive() {
        let mut buffer = b"data: {\"a\":".to_vec();
        assert_eq!(take_event(&mut buffer), None);
        buffer.extend_from_slice(b"1}\n\n: comment\n\ndata: [DONE]\n\n");
        assert_eq!(take_event(&mut buffer), Some(Event::Data(json!({ "a": 1 }))));
        assert_eq!(take_event(&mut buffer), Some(Event::Done));
        assert_eq!(take_event(&mut buffer), None);
    }

    #[test]
    fn paths_are_escaped() {
        let client = Client::new("http://127.0.0.1:1", "t").unwrap();
        let request = client.request(Method::GET, &["v1", "a/b c"]).unwrap().build().unwrap();
        assert_eq!(request.url().as_str(), "http://127.0.0.1:1/v1/a%2Fb%20c");
        for segment in ["", ".", "..", "a\tb", "a\n"] {
            let error = client.request(Method::GET, &["v1", segment, "x"]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{segment}: {error}");
        }
    }
}
