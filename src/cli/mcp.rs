//! `ragstone mcp`
//!
//! A client gives a server little time to say who it is, and a model takes longer to load: the protocol is spoken at once, and calls
//! wait for the store. A client cannot run a command again, either: where a service goes away, or the folder was in use, the
//! next call finds the store anew.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ragstone_service::access;
use ragstone_service::client::Client;
use ragstone_service::client::routes::{Reply, Request, Routes};
use ragstone_service::config::Config;
use ragstone_service::mcp::Server;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};

/// How far the store is.
#[derive(Clone)]
enum Store {
    Opening,
    /// Reached by this client, the so many-th.
    Open(Client, u64),
    /// Why it cannot be opened, as the so many-th try found.
    Failed(ErrorKind, Arc<str>, u64),
}

/// Speaks the protocol on standard input and output until the client closes them.
pub async fn run(config: &Config) -> Result<()> {
    let (store, seen) = watch::channel(Store::Opening);
    // Which try is not good any more.
    let (stale, found_stale) = watch::channel(0);
    let server = Server::new(Through { store: seen, stale });
    let ended = CancellationToken::new();
    let speaking = tokio::spawn(speak(server, config.surface.body_bytes, ended.clone()));
    let opened = tokio::select! {
        opened = keep_open(config, &store, found_stale, &ended) => opened,
        () = ended_while_opening(&ended, &store) => Ok(()),
    };
    ended.cancel();
    match (opened, speaking.await) {
        (Err(error), _) => Err(error),
        (Ok(()), Ok(spoken)) => spoken,
        (Ok(()), Err(error)) => Err(Error::internal(format!("the protocol's task ended: {error}"))),
    }
}

/// Answers the client until it has gone. A message may be as long as a request's body.
async fn speak(server: Server, most: usize, ended: CancellationToken) -> Result<()> {
    let _gone = ended.clone().drop_guard();
    let transport = AsyncRwTransport::new_server(tokio::io::stdin(), tokio::io::stdout()).with_max_line_length(most);
    match server.serve_with_ct(transport, ended).await {
        Ok(running) => match running.waiting().await {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::internal(format!("the protocol's task ended: {error}"))),
        },
        // It left before it had begun.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(Error::invalid_input(format!("the client does not begin as the protocol says: {error}"))),
    }
}

/// An opening need not be waited for; the closing of what is open must be.
async fn ended_while_opening(ended: &CancellationToken, store: &watch::Sender<Store>) {
    ended.cancelled().await;
    if !matches!(*store.borrow(), Store::Opening) {
        std::future::pending::<()>().await;
    }
}

/// Has the store open until the client has gone, and opens it again when it is lost.
async fn keep_open(
    config: &Config,
    store: &watch::Sender<Store>,
    mut stale: watch::Receiver<u64>,
    ended: &CancellationToken,
) -> Result<()> {
    for attempt in 1.. {
        let mut lost = stale.clone();
        let opened = access::sharing(config, access::asking("mcp"), async |client: &Client| {
            store.send_replace(Store::Open(client.clone(), attempt));
            tokio::select! {
                () = ended.cancelled() => {}
                _ = lost.wait_for(|stale| *stale >= attempt) => {}
            }
            Ok(())
        });
        match opened.await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                tracing::error!(%error, "the store cannot be opened; the next call tries again");
                store.send_replace(Store::Failed(error.kind(), error.to_string().into(), attempt));
                let asked_again = tokio::select! {
                    () = ended.cancelled() => false,
                    asked = stale.wait_for(|stale| *stale >= attempt) => asked.is_ok(),
                };
                if !asked_again {
                    return Err(error);
                }
            }
        }
        // Without a sender there is nobody left who could call.
        if ended.is_cancelled() || stale.has_changed().is_err() {
            break;
        }
        store.send_replace(Store::Opening);
    }
    Ok(())
}

/// Sends requests to the store, as soon as it is open.
struct Through {
    store: watch::Receiver<Store>,
    stale: watch::Sender<u64>,
}

impl Routes for Through {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply>> {
        let (mut store, stale) = (self.store.clone(), self.stale.clone());
        let give_up = move |attempt: u64| {
            stale.send_if_modified(|stale| std::mem::replace(stale, attempt.max(*stale)) < attempt);
        };
        let answered = async move {
            let failed = match &*store.borrow() {
                Store::Failed(.., attempt) => Some(*attempt),
                _ => None,
            };
            if let Some(attempt) = failed {
                give_up(attempt);
            }
            let is_outcome = |store: &Store| match store {
                Store::Opening => false,
                Store::Open(..) => true,
                Store::Failed(.., attempt) => failed.is_none_or(|failed| *attempt > failed),
            };
            let found = store.wait_for(is_outcome).await;
            let found = found.map_err(|_| Error::new(ErrorKind::Unavailable, "ragstone is stopping"))?.clone();
            match found {
                Store::Open(client, attempt) => {
                    let reply = client.reply(request).await;
                    if reply.is_err() && !client.is_alive().await {
                        give_up(attempt);
                        let message =
                            "the service of the data folder went away; call again, and the store is opened anew";
                        return Err(Error::new(ErrorKind::Unavailable, message));
                    }
                    reply
                }
                Store::Failed(kind, why, _) => Err(Error::new(kind, format!("{why} (the next call tries again)"))),
                Store::Opening => Err(Error::internal("the store is open and is not")),
            }
        };
        answered.boxed()
    }
}
