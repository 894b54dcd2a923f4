//! The service's paths, called from within it: what a tool asks for goes the way of a request that its client could have sent
//! itself, with the client's address and credentials, through the same checks, bounds and places. A connection to ourselves would take
//! places of others, and hide who asks.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::rc::Rc;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::Service;
use actix_web::http::Method;
use actix_web::http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
// The only builder of requests that actix-web has; nothing in it is for tests alone.
use actix_web::test::{TestRequest, init_service};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::future::{BoxFuture, LocalBoxFuture};
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::api::TOKEN_HEADER;
use crate::client::routes::{Reply, Request, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::http::identity::API_KEY_HEADER;
use crate::http::state::State;

/// Parts of an answer that wait for whoever reads it.
const PARTS: usize = 16;
/// Of a request's path and query. HTTP's own bound is a little higher, and a panic.
const MAX_TARGET_BYTES: usize = 32 << 10;

type Call = Rc<dyn Fn(TestRequest) -> LocalBoxFuture<'static, HttpResponse<BoxBody>>>;

/// All paths, once more, for the calls of one worker's clients.
#[derive(Clone, Default)]
pub struct Paths(Rc<OnceCell<Call>>);

impl Paths {
    async fn call(&self, state: &web::Data<State>) -> Call {
        if let Some(call) = self.0.get() {
            return call.clone();
        }
        let service = Rc::new(init_service(super::app(state.clone())).await);
        let call: Call = Rc::new(move |request| {
            let service = service.clone();
            let answered = async move {
                match service.call(request.to_request()).await {
                    Ok(response) => response.into_parts().1.map_into_boxed_body(),
                    Err(error) => error.error_response(),
                }
            };
            answered.boxed_local()
        });
        self.0.get_or_init(|| call).clone()
    }
}

/// Who asks: what the checks look at.
pub struct Caller {
    address: Option<SocketAddr>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Caller {
    /// The one who sent `request`.
    pub fn of(request: &HttpRequest) -> Self {
        let carried = [
            HOST,
            ORIGIN,
            AUTHORIZATION,
            HeaderName::from_static(API_KEY_HEADER),
            HeaderName::from_static(TOKEN_HEADER),
        ];
        let values = |name: &HeaderName| request.headers().get_all(name).cloned().collect::<Vec<_>>();
        let headers = carried.iter().flat_map(|name| values(name).into_iter().map(|value| (name.clone(), value)));
        Self { address: request.peer_addr(), headers: headers.collect() }
    }

    fn request(&self, request: &Request) -> Result<TestRequest> {
        let target = request.target();
        if target.len() > MAX_TARGET_BYTES {
            return Err(Error::invalid_input(format!(
                "a name has more than {MAX_TARGET_BYTES} bytes; use a shorter one"
            )));
        }
        let method = if request.body.is_some() { Method::POST } else { Method::GET };
        let mut sent = TestRequest::with_uri(&target).method(method);
        if let Some(address) = self.address {
            sent = sent.peer_addr(address);
        }
        for header in &self.headers {
            sent = sent.append_header(header.clone());
        }
        Ok(match &request.body {
            Some(body) => sent.set_json(body),
            None => sent,
        })
    }
}

struct Job {
    request: Request,
    reply: oneshot::Sender<Result<Reply>>,
}

/// Sends requests to the worker that answers them.
pub struct Within(mpsc::Sender<Job>);

impl Within {
    /// One whose requests are answered as `caller`'s, on this worker, for as long as it lives.
    pub fn new(state: web::Data<State>, paths: Paths, caller: Caller) -> Self {
        let (sender, jobs) = mpsc::channel(1);
        let answering = async move { answer(paths.call(&state).await, &caller, jobs).await };
        actix_web::rt::spawn(answering.in_current_span());
        Self(sender)
    }
}

impl Routes for Within {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply>> {
        let sender = self.0.clone();
        let stopping = || Error::new(ErrorKind::Unavailable, "the service is stopping");
        let answered = async move {
            let (reply, answered) = oneshot::channel();
            sender.send(Job { request, reply }).await.map_err(|_| stopping())?;
            answered.await.map_err(|_| stopping())?
        };
        answered.boxed()
    }
}

/// Answers until nobody can ask any more; one request after the other, as a tool has one at a time.
async fn answer(call: Call, caller: &Caller, mut jobs: mpsc::Receiver<Job>) {
    while let Some(Job { request, mut reply }) = jobs.recv().await {
        let sent = match caller.request(&request) {
            Ok(sent) => sent,
            Err(error) => {
                let _ = reply.send(Err(error));
                continue;
            }
        };
        let response = tokio::select! {
            response = call(sent) => response,
            // The tool was cancelled: dropped, the request ends as that of a client that goes away.
            () = reply.closed() => continue,
        };
        let status = response.status().as_u16();
        let (sender, parts) = mpsc::channel(PARTS);
        let body = futures::stream::unfold(parts, |mut parts| async move { Some((parts.recv().await?, parts)) });
        if reply.send(Ok(Reply { status, body: body.boxed() })).is_ok() {
            pass_on(response.into_body(), &sender).await;
        }
    }
}

/// Passes a body on, until its end or until nobody reads it.
async fn pass_on(body: BoxBody, sender: &mpsc::Sender<Result<Bytes>>) {
    let mut body = std::pin::pin!(body);
    loop {
        let part = tokio::select! {
            part = std::future::poll_fn(|context| body.as_mut().poll_next(context)) => part,
            () = sender.closed() => return,
        };
        let part = match part {
            None => return,
            Some(part) => part.map_err(|_| Error::new(ErrorKind::Unavailable, "the answer broke off; call again")),
        };
        let is_last = part.is_err();
        if sender.send(part).await.is_err() || is_last {
            return;
        }
    }
}
