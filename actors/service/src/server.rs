//! The listeners: one for everybody, and one for health and metrics, whose threads nothing else can keep busy.

mod tls;

use std::any::Any;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::dev::{Extensions, Server, ServerHandle};
use actix_web::rt::net::TcpStream;
use actix_web::{HttpServer, web};

pub use self::tls::Tls;
use crate::config::Surface;
use crate::error::{Error, ErrorKind, Result};
use crate::http;
use crate::http::identity::OwnersOnly;
use crate::http::state::{AbortOnDrop, Audience, State};

/// Threads that speak HTTP. They only pass on what others compute.
const HTTP_THREADS: usize = 2;
/// Connections of monitoring; there is no need for more.
const HEALTH_CONNECTIONS: usize = 64;
/// A client has this long to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is kept this long. It counts towards the bound on connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What the system holds, per connection, of what a client has not read, in bytes. Left alone it grows to several MiB: a client
/// that stops reading would be noticed only after its whole answer, and a thousand of them would hold gigabytes.
const SEND_BUFFER: usize = 256 << 10;

/// The running listeners.
pub struct Servers {
    main: ServerHandle,
    health: Option<ServerHandle>,
    local: Option<ServerHandle>,
    _certificate: Option<AbortOnDrop<()>>,
    /// `http://ADDR:PORT` of health and metrics.
    pub health_address: Option<String>,
    /// `http://ADDR:PORT` on the loopback interface, where the public listener speaks TLS: for the owner's commands, which neither know the name
    /// in its certificate nor have one of their own.
    pub local_address: Option<String>,
}

impl Servers {
    /// Starts to answer on `listener`, and, for a public service, on the address of `health_listen`.
    ///
    /// # Errors
    /// `Unavailable` where health cannot listen, `Internal` where threads cannot start.
    pub fn start(state: &Arc<State>, surface: &Surface, listener: TcpListener, audience: Audience) -> Result<Self> {
        let health = match audience {
            Audience::Public => Some(bind_health(surface)?),
            Audience::Owner | Audience::Passing | Audience::Private => None,
        };
        let tls = match audience {
            Audience::Public => Tls::of(surface)?,
            Audience::Owner | Audience::Passing | Audience::Private => None,
        };
        let data = web::Data::from(state.clone());
        let main = {
            let (data, patience) = (data.clone(), state.write_timeout);
            let server = HttpServer::new(move || http::app(data.clone()))
                .workers(HTTP_THREADS)
                .max_connections((surface.max_connections / HTTP_THREADS).max(1))
                .on_connect(move |connection, _: &mut Extensions| give_up_after(patience, connection))
                .client_request_timeout(HEAD_TIMEOUT)
                .keep_alive(KEEP_ALIVE)
                .disable_signals()
                // A client that closes its side has gone: its request is cancelled.
                .h1_allow_half_closed(false)
                .tls_handshake_timeout(HEAD_TIMEOUT)
                .shutdown_timeout(1);
            let server = match &tls {
                Some(tls) => server.listen_rustls_0_23(listener, tls.config()?),
                None => server.listen(listener),
            };
            server.map_err(failed)?.run()
        };
        let main = spawn(main);
        let mut servers =
            Self { main, health: None, local: None, _certificate: None, health_address: None, local_address: None };
        if let Some(tls) = tls {
            servers._certificate = Some(AbortOnDrop(tokio::spawn(tls.follow())));
            let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
            servers.local_address = Some(format!("http://{}", listener.local_addr().map_err(failed)?));
            let data = data.clone();
            let local = HttpServer::new(move || http::app(data.clone()).app_data(OwnersOnly))
                .workers(1)
                .max_connections(HEALTH_CONNECTIONS)
                .client_request_timeout(HEAD_TIMEOUT)
                .disable_signals()
                .h1_allow_half_closed(false)
                .shutdown_timeout(1)
                .listen(listener)
                .map_err(failed)?
                .run();
            servers.local = Some(spawn(local));
        }
        if let Some(listener) = health {
            servers.health_address = Some(format!("http://{}", listener.local_addr().map_err(failed)?));
            let health = HttpServer::new(move || http::health_app(data.clone()))
                .workers(1)
                .max_connections(HEALTH_CONNECTIONS)
                .client_request_timeout(HEAD_TIMEOUT)
                .disable_signals()
                .shutdown_timeout(1)
                .listen(listener)
                .map_err(failed)?
                .run();
            servers.health = Some(spawn(health));
        }
        Ok(servers)
    }

    /// Closes every connection.
    pub async fn stop(&self) {
        self.main.stop(false).await;
        for other in [&self.local, &self.health].into_iter().flatten() {
            other.stop(false).await;
        }
    }
}

fn spawn(server: Server) -> ServerHandle {
    let handle = server.handle();
    tokio::spawn(server);
    handle
}

fn failed(error: std::io::Error) -> Error {
    Error::internal(format!("the service cannot start: {error}"))
}

/// Whether the certificates of the settings can be used.
///
/// # Errors
/// `InvalidInput`, as a start would say.
pub fn try_tls(surface: &Surface) -> Result<()> {
    Tls::of(surface)?.map_or(Ok(()), |tls| tls.config().map(drop))
}

/// Whether health could listen where the settings say. It does not go on listening.
///
/// # Errors
/// `Unavailable`, as a start would say.
pub fn try_health(surface: &Surface) -> Result<()> {
    bind_health(surface).map(drop)
}

fn bind_health(surface: &Surface) -> Result<TcpListener> {
    let listen = surface.health_listen.as_deref().unwrap_or("127.0.0.1:0");
    TcpListener::bind(listen).map_err(|error| {
        let message = format!("health and metrics cannot listen on {listen}: {error}; change `health_listen`");
        Error::new(ErrorKind::Unavailable, message)
    })
}

/// Bounds what a client that stops reading costs: the bytes that wait for it, and how long the operating system keeps its connection.
/// Without the latter it keeps it for ever: the HTTP library waits for room to write without a bound.
fn give_up_after(patience: Duration, connection: &dyn Any) {
    let encrypted = || Some(connection.downcast_ref::<TlsStream<TcpStream>>()?.get_ref().0);
    let Some(stream) = connection.downcast_ref::<TcpStream>().or_else(encrypted) else { return };
    let socket = socket2::SockRef::from(stream);
    if let Err(error) = socket.set_send_buffer_size(SEND_BUFFER) {
        tracing::debug!(%error, "no bound for what waits to be sent on a connection");
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Err(error) = socket.set_tcp_user_timeout(Some(patience)) {
        tracing::debug!(%error, "no time-out for writing on a connection");
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = patience;
}
