//! Whole answers on the way to clients that read slowly. An answer that fits into what is sent at once is left alone. A longer one is handed
//! on in pieces by a task of its own, within a time for all of it: the HTTP library asks for no more of a body whose client does not read,
//! and would keep it for as long as the client takes a byte now and then. Until it is sent it is charged to the budget for bodies.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::ResponseError;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::ServiceResponse;
use actix_web::web;
use bytes::Bytes;
use ragstone_actors::admission::turns::Place;
use ragstone_env::Stopwatch;
use tokio::sync::mpsc;

use super::body::FREE_BYTES;
use super::error::Refusal;
use super::state::{State, caller};

/// A piece's length. One waits, one is with the HTTP library.
const PIECE_BYTES: usize = 32 << 10;
/// What a client must take a second, once its time is up.
const LEAST_BYTES_A_SECOND: usize = 64 << 10;

/// An answer's body.
pub enum Outgoing {
    /// As it was made.
    Plain(BoxBody),
    /// In pieces.
    Pieces {
        /// Of the whole.
        bytes: usize,
        left: usize,
        pieces: mpsc::Receiver<Bytes>,
    },
}

/// The response, with a body that lets go of what its client does not read; a refusal where too much waits already.
pub fn paced(
    state: &web::Data<State>,
    response: ServiceResponse<impl MessageBody + 'static>,
) -> ServiceResponse<Outgoing> {
    if !matches!(response.response().body().size(), BodySize::Sized(bytes) if bytes > FREE_BYTES as u64) {
        return response.map_body(|_, body| Outgoing::Plain(body.boxed()));
    }
    let charged = match state.bodies.charge(caller(response.request()), announced(&response)) {
        Ok(place) => place,
        Err(error) => {
            let refused = response.into_response(Refusal(error).error_response());
            return refused.map_body(|_, body| Outgoing::Plain(body));
        }
    };
    response.map_body(|_, body| match body.try_into_bytes() {
        Ok(whole) => {
            let (bytes, (sender, pieces)) = (whole.len(), mpsc::channel(1));
            state.spawn(hand_on(whole, sender, state.write_timeout, charged));
            Outgoing::Pieces { bytes, left: bytes, pieces }
        }
        Err(body) => Outgoing::Plain(body.boxed()),
    })
}

fn announced(response: &ServiceResponse<impl MessageBody>) -> usize {
    match response.response().body().size() {
        BodySize::Sized(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
        BodySize::None | BodySize::Stream => 0,
    }
}

/// How long after its begin an answer of which `taken` bytes were read must have gone on.
fn allowed(patience: Duration, taken: usize) -> Duration {
    patience + Duration::from_secs((taken / LEAST_BYTES_A_SECOND) as u64)
}

/// Hands an answer on, until its end or until its client has had its time.
async fn hand_on(mut whole: Bytes, sender: mpsc::Sender<Bytes>, patience: Duration, _charged: Place) {
    let (watch, mut taken) = (Stopwatch::start(), 0);
    while !whole.is_empty() {
        // Its own memory, so that the rest of the answer can go.
        let piece = Bytes::copy_from_slice(&whole.split_to(whole.len().min(PIECE_BYTES)));
        let left = allowed(patience, taken).saturating_sub(watch.elapsed());
        taken += piece.len();
        if sender.send_timeout(piece, left).await.is_err() {
            tracing::debug!(taken, left = whole.len(), "the client does not read its answer");
            return;
        }
    }
}

impl MessageBody for Outgoing {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        match self {
            Self::Plain(body) => body.size(),
            Self::Pieces { bytes, .. } => BodySize::Sized(*bytes as u64),
        }
    }

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_next(context),
            Self::Pieces { left, pieces, .. } => pieces.poll_recv(context).map(|piece| match piece {
                Some(piece) => {
                    *left -= piece.len();
                    Some(Ok(piece))
                }
                None if *left == 0 => None,
                // What broke off must not look like what ended.
                None => Some(Err(io::Error::other("the client did not read its answer in time").into())),
            }),
        }
    }

    fn try_into_bytes(self) -> Result<Bytes, Self> {
        match self {
            Self::Plain(body) => body.try_into_bytes().map_err(Self::Plain),
            pieces @ Self::Pieces { .. } => Err(pieces),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use ragstone_actors::Caller;

    use super::*;
    use crate::config::Surface;
    use crate::http::body::Bodies;

    fn parts(bytes: usize) -> (Bodies, Place, Bytes) {
        let bodies = Bodies::new(&Surface::default());
        let charged = bodies.charge(Caller::default(), bytes).unwrap();
        let whole: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        (bodies, charged, whole.into())
    }

    async fn next(body: &mut Outgoing) -> Option<Result<Bytes, String>> {
        let next = poll_fn(|context| Pin::new(&mut *body).poll_next(context)).await;
        next.map(|piece| piece.map_err(|error| error.to_string()))
    }

    #[tokio::test]
    async fn an_answer_that_is_read_comes_whole_and_gives_its_memory_back() {
        let (bodies, charged, whole) = parts(100_000);
        let (sender, pieces) = mpsc::channel(1);
        let handing = tokio::spawn(hand_on(whole.clone(), sender, Duration::from_secs(3600), charged));
        let mut body = Outgoing::Pieces { bytes: whole.len(), left: whole.len(), pieces };
        assert!(matches!(body.size(), BodySize::Sized(100_000)));
        let mut read = Vec::new();
        while let Some(piece) = next(&mut body).await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(read, whole);
        handing.await.unwrap();
        drop(bodies.charge(Caller::default(), Surface::default().bodies_bytes).unwrap());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_let_go_of_and_looks_broken_off() {
        let (bodies, charged, whole) = parts(1 << 20);
        let (sender, pieces) = mpsc::channel(1);
        let mut body = Outgoing::Pieces { bytes: whole.len(), left: whole.len(), pieces };
        // It ends by itself, and with it the memory.
        hand_on(whole, sender, Duration::ZERO, charged).await;
        drop(bodies.charge(Caller::default(), Surface::default().bodies_bytes).unwrap());
        assert_eq!(next(&mut body).await.unwrap().unwrap().len(), PIECE_BYTES);
        assert!(next(&mut body).await.unwrap().unwrap_err().contains("in time"));
    }

    #[test]
    fn a_reader_has_its_time_and_a_second_more_for_what_it_took() {
        assert_eq!(allowed(Duration::from_secs(30), 0), Duration::from_secs(30));
        assert_eq!(allowed(Duration::from_secs(30), 1 << 20), Duration::from_secs(46));
    }
}
