//! A request's body, read within bounds of bytes, time and memory. Nobody is trusted to send what was announced.
//!
//! Memory is one budget, for bodies and for answers that wait for their readers, and callers share it: however much one takes, others find some.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::{FromRequest, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use ragstone_actors::Caller;
use ragstone_actors::admission::turns::{Place, Places};
use ragstone_env::Stopwatch;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::identity::Visitor;
use crate::config::Surface;
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::{Answered, Refusal};
use crate::http::state::{InFlight, State, caller};

/// Bodies up to this size are not charged: so that small requests get through while great ones fill the budget.
pub const FREE_BYTES: usize = 64 << 10;
/// What a body must come with a second, once its time is up.
const LEAST_BYTES_A_SECOND: usize = 64 << 10;
/// What a place of the budget stands for.
const PLACE_BYTES: usize = 1 << 10;
/// What a value of JSON takes besides its text, once it is read: a number of one digit as much as any.
const VALUE_BYTES: usize = size_of::<Value>();
/// What an array or object has room for as soon as it has one value.
const FIRST_VALUES: usize = 4;
/// No deeper does serde_json read.
const MOST_DEPTH: usize = 128;

/// The bounds on all bodies of a service.
#[derive(Debug)]
pub struct Bodies {
    /// The greatest single one, in bytes.
    limit: usize,
    /// How long one may take to come, besides a second for each [`LEAST_BYTES_A_SECOND`].
    timeout: Duration,
    /// All of them together, in [`PLACE_BYTES`].
    budget: Places,
    budget_bytes: usize,
    /// Great bodies are parsed one at a time: parsed JSON can take many times its text.
    parsing: Semaphore,
}

impl Bodies {
    /// As configured.
    pub fn new(surface: &Surface) -> Self {
        // The greatest one fits into what one caller may have.
        let least = surface.body_bytes + surface.body_bytes / 6 + FREE_BYTES;
        let budget_bytes = surface.bodies_bytes.max(least);
        Self {
            limit: surface.body_bytes,
            timeout: Duration::from_secs(surface.body_timeout_s),
            budget: Places::new("bodies", budget_bytes / PLACE_BYTES),
            budget_bytes,
            parsing: Semaphore::new(1),
        }
    }

    fn too_large(&self) -> Error {
        let message =
            format!("the request's body is larger than {} bytes; send less at once, or raise `body_bytes`", self.limit);
        Error::new(ErrorKind::TooLarge, message)
    }

    fn too_slow(&self, come: usize) -> Error {
        let message = format!(
            "only {come} bytes of the request's body came in time; send it within {} s, and a second more for each 64 KiB, or \
             raise `body_timeout_s`",
            self.timeout.as_secs()
        );
        Error::new(ErrorKind::TooSlow, message)
    }

    /// How long after its begin a body of which `come` bytes are there must have gone on.
    fn allowed(&self, come: usize) -> Duration {
        self.timeout + Duration::from_secs((come / LEAST_BYTES_A_SECOND) as u64)
    }

    /// Takes of the budget what bodies and answers of `caller` hold in memory.
    ///
    /// # Errors
    /// `Overloaded` where that is more than is free, or than the caller's share.
    pub fn charge(&self, caller: Caller, bytes: usize) -> Result<Place> {
        self.budget.take_many(caller, bytes.div_ceil(PLACE_BYTES)).map_err(|_| {
            let message = format!(
                "bodies and answers of all requests, or yours alone, would take more of the {} bytes of memory that there are for them than \
                 is left; try again, or raise `bodies_bytes`",
                self.budget_bytes
            );
            Error::new(ErrorKind::Overloaded, message)
        })
    }

    /// Refuses what would not fit if nothing else were there: a caller who is alone may have seven eighths.
    fn check_parsed(&self, bytes: usize) -> Result<()> {
        let most = self.budget_bytes / 8 * 7;
        if bytes <= most {
            return Ok(());
        }
        let message = format!(
            "the request's body would take {bytes} bytes of memory once it is read, and may take {most}; send fewer values at once, or raise \
             `bodies_bytes`"
        );
        Err(Error::new(ErrorKind::TooLarge, message))
    }
}

/// About what a body takes in memory once it is read as JSON: an array or object has room for four values at once, and grows by doubling.
fn parsed_bytes(body: &[u8]) -> usize {
    let (mut values, mut depth, mut in_string, mut is_escaped) = (0_usize, 0_usize, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b':' => values += 1,
            b'[' | b'{' => (values, depth) = (values + FIRST_VALUES, depth + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MOST_DEPTH {
            // It is refused there.
            break;
        }
    }
    body.len() + values.saturating_mul(VALUE_BYTES)
}

/// About what a value takes in memory, counted as for a body.
pub fn value_bytes(value: &Value) -> usize {
    let within: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_bytes).sum(),
        // A name takes a place as its value does.
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + VALUE_BYTES + value_bytes(value)).sum(),
        _ => 0,
    };
    VALUE_BYTES + within
}

/// A body that is still to be read.
pub struct Incoming {
    payload: web::Payload,
    announced: Option<usize>,
    bodies: Arc<Bodies>,
    sender: Visitor,
    caller: Caller,
    /// Holds what the body is charged, until the request is answered or lets go of it: what is parsed from it lives as long.
    in_flight: Option<InFlight>,
}

impl FromRequest for Incoming {
    type Error = Refusal;
    type Future = Ready<Answered<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let Some(state) = request.app_data::<web::Data<State>>() else {
            return ready(Err(Error::internal("the service has no state").into()));
        };
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let payload = match web::Payload::from_request(request, payload).into_inner() {
            Ok(payload) => payload,
            Err(error) => {
                return ready(Err(Error::internal(format!("the request has no body to read: {error}")).into()));
            }
        };
        let sender = match Visitor::of(request) {
            Ok(sender) => sender,
            Err(error) => return ready(Err(error.into())),
        };
        let (bodies, caller, in_flight) = (state.bodies.clone(), caller(request), InFlight::of(request));
        ready(Ok(Self { payload, announced, bodies, sender, caller, in_flight }))
    }
}

impl Incoming {
    /// Reads the body and makes something of it; great ones off the HTTP threads.
    pub async fn parse<T: Send + 'static>(self, parse: fn(&[u8]) -> Result<T>) -> Result<T> {
        let (bodies, caller, in_flight) = (self.bodies.clone(), self.caller, self.in_flight.clone());
        let bytes = self.bytes().await?;
        if bytes.len() <= FREE_BYTES {
            return parse(&bytes);
        }
        // Small ones are bounded by the connections, whatever becomes of them.
        let stopping = || Error::new(ErrorKind::Unavailable, "the service is stopping");
        let _turn = bodies.parsing.acquire().await.map_err(|_| stopping())?;
        let charging = bodies.clone();
        let parsed = tokio::task::spawn_blocking(move || {
            let becomes = parsed_bytes(&bytes);
            charging.check_parsed(becomes)?;
            let more = charging.charge(caller, becomes - bytes.len())?;
            if let Some(in_flight) = &in_flight {
                in_flight.charge(more);
            }
            parse(&bytes)
        });
        parsed.await.map_err(|_| stopping())?
    }

    /// The body as it is.
    pub async fn bytes(mut self) -> Result<Bytes> {
        let bodies = &self.bodies;
        if self.announced.is_some_and(|length| length > bodies.limit) {
            return Err(bodies.too_large());
        }
        let watch = Stopwatch::start();
        let mut body = BytesMut::new();
        let mut charged = FREE_BYTES;
        loop {
            let left = bodies.allowed(body.len()).saturating_sub(watch.elapsed());
            let chunk = match tokio::time::timeout(left, self.payload.next()).await {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => {
                    return Err(Error::invalid_input(format!("the request's body broke off: {error}")));
                }
                // A body takes its time, in which its key may be revoked.
                Ok(None) => return self.sender.check_still().map(|()| body.freeze()),
                Err(_) => return Err(bodies.too_slow(body.len())),
            };
            let whole = body.len().saturating_add(chunk.len());
            if whole > bodies.limit {
                return Err(bodies.too_large());
            }
            if whole > charged {
                // Rounded up, so that a great body is charged a few hundred times and not once a packet.
                let more = (whole - charged).next_multiple_of(FREE_BYTES);
                let place = bodies.charge(self.caller, more)?;
                if let Some(in_flight) = &self.in_flight {
                    in_flight.charge(place);
                }
                charged += more;
            }
            body.extend_from_slice(&chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_must_go_on_and_a_great_one_has_more_time() {
        let bodies = Bodies::new(&Surface::default());
        assert_eq!(bodies.allowed(0), Duration::from_secs(10));
        assert_eq!(bodies.allowed(1 << 20), Duration::from_secs(26));
    }

    #[test]
    fn the_budget_is_shared_by_callers_and_comes_back() {
        let bodies = Bodies::new(&Surface { body_bytes: 1 << 16, bodies_bytes: 1 << 20, ..Surface::default() });
        let [first, second] = [1, 2].map(|last| Caller::of([10, 0, 0, last].into()));
        let charge = |caller| bodies.charge(caller, 64 << 10);
        let mut held: Vec<Place> = std::iter::from_fn(|| charge(first).ok()).collect();
        assert_eq!(held.len(), 14, "one alone has seven eighths");
        assert_eq!(charge(first).unwrap_err().kind(), ErrorKind::Overloaded);
        let of_second = charge(second).unwrap();
        held.clear();
        drop(of_second);
        drop(bodies.charge(second, 1 << 20).unwrap());
    }

    #[test]
    fn the_greatest_body_fits_where_it_is_alone() {
        let surface = Surface { body_bytes: 1 << 20, bodies_bytes: 1 << 20, ..Surface::default() };
        let bodies = Bodies::new(&surface);
        let held: Result<Vec<Place>> =
            (0..16).map(|_| bodies.charge(Caller::of([10, 0, 0, 1].into()), FREE_BYTES)).collect();
        assert_eq!(held.unwrap().len() * FREE_BYTES, surface.body_bytes);
    }

    #[test]
    fn a_value_counts_for_no_more_than_its_body_did() {
        for text in [r#"{"a":[0,0,0],"b":"text","c":{}}"#, r#"[[[1]],"x",{"a":{"b":null}}]"#, "[0,0,0,0,0,0,0,0]"] {
            let value: Value = serde_json::from_str(text).unwrap();
            let counted = value_bytes(&value);
            assert!(counted <= parsed_bytes(text.as_bytes()) && counted > text.len(), "{text}: {counted}");
        }
        assert_eq!(value_bytes(&serde_json::json!([0, "four"])), 3 * VALUE_BYTES + 4);
    }

    #[test]
    fn what_a_body_becomes_is_known_before_it_is_read() {
        assert_eq!(parsed_bytes(b"\"text\""), 6);
        assert_eq!(parsed_bytes(br#"["a, b: [\\\", {", 0]"#), 21 + 5 * VALUE_BYTES);
        assert_eq!(parsed_bytes(br#"{"a":[0,0,0]}"#), 13 + 11 * VALUE_BYTES);
        let nested = |count: usize| format!("[[0]{}]", ",[0]".repeat(count - 1));
        let read: Vec<Vec<serde_json::Value>> = serde_json::from_str(&nested(1000)).unwrap();
        let inner: usize = read.iter().map(|inner| inner.capacity() * size_of::<serde_json::Value>()).sum();
        assert!(parsed_bytes(nested(1000).as_bytes()) >= inner + 1000 * size_of::<serde_json::Value>());
        let deep = "[".repeat(100_000);
        assert!(serde_json::from_str::<serde_json::Value>(&deep).is_err());
        assert!(parsed_bytes(deep.as_bytes()) < deep.len() + 1000 * VALUE_BYTES);
        let zeros = format!("[0{}]", ",0".repeat(99_999));
        let bodies = Bodies::new(&Surface { body_bytes: 1 << 16, bodies_bytes: 1 << 20, ..Surface::default() });
        assert_eq!(bodies.check_parsed(parsed_bytes(zeros.as_bytes())).unwrap_err().kind(), ErrorKind::TooLarge);
        // What is not refused for ever has a place where nobody else has one.
        let most = bodies.budget_bytes / 8 * 7;
        assert!(bodies.check_parsed(most).is_ok() && bodies.charge(Caller::default(), most).is_ok());
    }
}
