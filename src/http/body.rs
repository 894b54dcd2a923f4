//! A request's body, read within bounds of bytes, time and memory. Nobody is trusted to send what was announced.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::{FromRequest, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use ragstone_storage::env::Stopwatch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::identity::Visitor;
use crate::config::Surface;
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::{Answered, Refusal};
use crate::http::state::{InFlight, State};

/// Bodies up to this size are not charged: so that small requests get through while great ones fill the budget.
pub const FREE_BYTES: usize = 64 << 10;
/// What a body must come with a second, once its time is up.
const LEAST_BYTES_A_SECOND: usize = 64 << 10;
/// What a permit of the budget stands for.
const PERMIT_BYTES: usize = 1 << 10;

/// The bounds on all bodies of a service.
#[derive(Debug)]
pub struct Bodies {
    /// The greatest single one, in bytes.
    limit: usize,
    /// How long one may take to come, besides a second for each [`LEAST_BYTES_A_SECOND`].
    timeout: Duration,
    /// All of them together, in [`PERMIT_BYTES`].
    budget: Arc<Semaphore>,
    budget_bytes: usize,
    /// Great bodies are parsed one at a time: parsed JSON can take many times its text.
    parsing: Semaphore,
}

impl Bodies {
    /// As configured.
    pub fn new(surface: &Surface) -> Self {
        Self {
            limit: surface.body_bytes,
            timeout: Duration::from_secs(surface.body_timeout_s),
            budget: Arc::new(Semaphore::new((surface.bodies_bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS))),
            budget_bytes: surface.bodies_bytes,
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

    fn charge(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        self.budget.clone().try_acquire_many_owned(permits).map_err(|_| {
            metrics::counter!("ragstone_shed_total", "worker" => "bodies").increment(1);
            let message = format!(
                "the bodies of all requests together would take more than {} bytes of memory; try again, or raise `bodies_bytes`",
                self.budget_bytes
            );
            Error::new(ErrorKind::Overloaded, message)
        })
    }
}

/// A body that is still to be read.
pub struct Incoming {
    payload: web::Payload,
    announced: Option<usize>,
    bodies: Arc<Bodies>,
    sender: Visitor,
    /// Holds what the body is charged, for as long as the request lives: what is parsed from it lives as long.
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
        ready(Ok(Self { payload, announced, bodies: state.bodies.clone(), sender, in_flight: InFlight::of(request) }))
    }
}

impl Incoming {
    /// Reads the body and makes something of it; great ones off the HTTP threads.
    pub async fn parse<T: Send + 'static>(self, parse: fn(&[u8]) -> Result<T>) -> Result<T> {
        let bodies = self.bodies.clone();
        let bytes = self.bytes().await?;
        if bytes.len() <= FREE_BYTES {
            return parse(&bytes);
        }
        let stopping = || Error::new(ErrorKind::Unavailable, "the service is stopping");
        let _turn = bodies.parsing.acquire().await.map_err(|_| stopping())?;
        tokio::task::spawn_blocking(move || parse(&bytes)).await.map_err(|_| stopping())?
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
                let permit = bodies.charge(more)?;
                if let Some(in_flight) = &self.in_flight {
                    in_flight.charge(permit);
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
    fn the_budget_is_shared_and_comes_back() {
        let bodies = Bodies::new(&Surface { bodies_bytes: 1 << 20, ..Surface::default() });
        let most = bodies.charge(1 << 20).unwrap();
        assert_eq!(bodies.charge(1).unwrap_err().kind(), ErrorKind::Overloaded);
        drop(most);
        drop(bodies.charge(1).unwrap());
    }
}
