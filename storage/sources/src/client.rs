//! Asks one host for one page after another, as politely as a person would.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use ragstone_documents::MAX_FILE_BYTES;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RETRY_AFTER,
};
use reqwest::{Response, StatusCode, redirect};
use url::{Host, Url};

use super::memory::Page as Known;
use super::private::is_public;
use super::robots::{self, Robots};
use super::scope::Scope;
use ragstone_env::{Error, Result, Stopwatch};

/// Who asks, as the site's log has it.
const USER_AGENT: &str = concat!("ragstone/", env!("CARGO_PKG_VERSION"));
const CONNECT: Duration = Duration::from_secs(10);
/// Between two pieces of an answer.
const SILENCE: Duration = Duration::from_secs(30);
/// A whole page.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between the ends and the beginnings of two requests to a public host that says nothing of it. One of one's own network is not spared.
const PAUSE: Duration = Duration::from_millis(250);
/// Where a host asks to be left alone for a while, or has a bad moment.
const MOST_TRIES: usize = 4;
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Of one address.
pub const MOST_REDIRECTS: usize = 10;

/// What a server answered.
pub enum Answer {
    Page(Box<Page>),
    /// As it was noted.
    Unchanged,
    /// It is not there (any more).
    Gone,
    /// It is elsewhere, for good or for now: whoever is not let in is often sent to a page that asks for a password.
    Elsewhere {
        to: Url,
        is_permanent: bool,
    },
    /// It cannot be had now, or not by us; why.
    Not(String),
    /// Its server wants to be left alone for longer than anybody waits; what it said.
    Later(String),
}

impl Answer {
    /// Whether the server refuses the page for good, by why it cannot be had. One that is asked too often (429) does not.
    pub fn is_refusal(why: &str) -> bool {
        why.starts_with("HTTP 4") && !why.starts_with("HTTP 429")
    }
}

/// A page, or a file.
pub struct Page {
    pub url: Url,
    /// What its server says it is, such as `text/html; charset=utf-8`.
    pub media: Option<String>,
    pub etag: Option<String>,
    pub modified: Option<String>,
    /// What its server says of it to whoever fetches sites.
    pub robots: Vec<String>,
    response: Response,
}

impl Page {
    /// What it says.
    ///
    /// # Errors
    /// Why it could not be read whole.
    pub async fn bytes(self) -> std::result::Result<Vec<u8>, String> {
        self.bytes_up_to(MAX_FILE_BYTES).await
    }

    /// As [`bytes`](Self::bytes), of what has so many at most.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub async fn bytes_up_to(self, most: u64) -> std::result::Result<Vec<u8>, String> {
        read(self.response, most).await
    }
}

/// Asks for pages of one site, and of what it leads to.
pub struct Client {
    client: reqwest::Client,
    /// The host that was named: it may be anywhere.
    named: Scope,
    /// Between two pages.
    pause: Duration,
    last: Option<Stopwatch>,
}

impl Client {
    /// For the site of an address that somebody named.
    ///
    /// # Errors
    /// What keeps the system from it.
    pub fn of(named: &Url) -> Result<Self> {
        let host = named.host_str().unwrap_or_default().to_owned();
        let builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            // Each is looked at.
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // A proxy would look names up itself.
            .no_proxy()
            .dns_resolver(Arc::new(Guarded { named: host }));
        let client = builder.build().map_err(|error| Error::internal(format!("no client for a site: {error}")))?;
        let is_own = match named.host() {
            Some(Host::Ipv4(ip)) => !is_public(IpAddr::V4(ip)),
            Some(Host::Ipv6(ip)) => !is_public(IpAddr::V6(ip)),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        let pause = if is_own { Duration::ZERO } else { PAUSE };
        Ok(Self { client, named: Scope::of(named), pause, last: None })
    }

    /// Waits so long between two pages from here on, if that is longer.
    pub fn spare(&mut self, pause: Option<Duration>) {
        self.pause = self.pause.max(pause.unwrap_or_default());
    }

    /// The rules of a page's host.
    ///
    /// # Errors
    /// Where they cannot be had now: then nothing may be fetched.
    pub async fn robots(&mut self, page: &Url) -> std::result::Result<Robots, String> {
        let mut url = page.join("/robots.txt").map_err(|error| error.to_string())?;
        for _ in 0..MOST_REDIRECTS {
            return match self.ask(&url, None).await? {
                Answer::Page(page) => {
                    let response = page.response;
                    // What is longer is cut, as the RFC allows.
                    Ok(Robots::of(&read_some(response, robots::MOST_BYTES).await?))
                }
                Answer::Elsewhere { to, .. } => {
                    url = to;
                    continue;
                }
                Answer::Gone | Answer::Unchanged => Ok(Robots::none()),
                // Whoever may not even see the rules is bound by none.
                Answer::Not(why) if Answer::is_refusal(&why) => Ok(Robots::none()),
                Answer::Not(why) | Answer::Later(why) => Err(format!("its robots.txt cannot be had: {why}")),
            };
        }
        Ok(Robots::none())
    }

    /// Asks for a page, if it is not as it is `known`.
    ///
    /// # Errors
    /// Why nobody answered, or may be asked.
    pub async fn ask(&mut self, page: &Url, known: Option<&Known>) -> std::result::Result<Answer, String> {
        self.check(page)?;
        let mut wait = FIRST_WAIT;
        for turn in 1.. {
            self.wait_for_turn().await;
            let asked = tokio::time::timeout(PATIENCE, self.send(page, known)).await;
            self.last = Some(Stopwatch::start());
            if let Some(why) = asked.as_ref().ok().and_then(|asked| too_long(asked.as_ref().ok()?)) {
                return Ok(Answer::Later(why));
            }
            let is_last = turn == MOST_TRIES;
            let (why, told) = match asked {
                Ok(Ok(response)) if !is_last && is_passing(response.status()) => {
                    (format!("HTTP {}", response.status()), retry_after(response.headers()))
                }
                Ok(Ok(response)) => return answer(page, response),
                // Nobody is there: that does not pass within seconds, and somebody may wait.
                Ok(Err(error)) if error.is_connect() => return Err(reason(&error)),
                Ok(Err(error)) => (reason(&error), None),
                Err(_) => (format!("no answer within {} s", PATIENCE.as_secs()), None),
            };
            if is_last {
                return Err(why);
            }
            tracing::debug!(page = %page, why, "asking again");
            tokio::time::sleep(told.unwrap_or(wait).min(LONGEST_WAIT)).await;
            wait *= 2;
        }
        Err("no answer".to_owned())
    }

    async fn send(&self, page: &Url, known: Option<&Known>) -> reqwest::Result<Response> {
        let mut request = self.client.get(page.clone());
        let validators = known.map(|known| [(IF_NONE_MATCH, &known.etag), (IF_MODIFIED_SINCE, &known.modified)]);
        for (name, value) in validators.into_iter().flatten() {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.send().await
    }

    /// Refuses what a page of somebody else may not lead to.
    fn check(&self, page: &Url) -> std::result::Result<(), String> {
        if self.named.is_of_host(page) {
            return Ok(());
        }
        // Another port of a named host is somebody else.
        let is_refused = self.named.is_named_as(page)
            || match page.host() {
                Some(Host::Ipv4(ip)) => !is_public(IpAddr::V4(ip)),
                Some(Host::Ipv6(ip)) => !is_public(IpAddr::V6(ip)),
                // Looked up by [`Guarded`].
                Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
                None => true,
            };
        let why = "it is of a network of one's own, to which a page cannot lead; name it itself to read it";
        if is_refused { Err(why.to_owned()) } else { Ok(()) }
    }

    async fn wait_for_turn(&self) {
        if let Some(last) = &self.last {
            tokio::time::sleep(self.pause.saturating_sub(last.elapsed())).await;
        }
    }
}

/// Finds the addresses of hosts: of others than the one that was named, public ones alone. It is the look-up that the connection is made
/// by, so that no second one can differ.
struct Guarded {
    named: String,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let is_named = name.as_str().eq_ignore_ascii_case(&self.named);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.into_iter().filter(|at| is_named || is_public(at.ip())).collect();
            if allowed.is_empty() {
                return Err(format!("{} is of a network of one's own", name.as_str()).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Whether an address has neither a name nor a password in it, which would be kept, and sent.
pub fn is_plain(page: &Url) -> bool {
    page.username().is_empty() && page.password().is_none()
}

/// What a status means.
fn answer(page: &Url, response: Response) -> std::result::Result<Answer, String> {
    let status = response.status();
    let told = |name: HeaderName| response.headers().get(name)?.to_str().ok().map(str::to_owned);
    if status == StatusCode::NOT_MODIFIED {
        return Ok(Answer::Unchanged);
    }
    if status.is_redirection() {
        let Some(mut to) = told(LOCATION).and_then(|to| page.join(&to).ok()).filter(is_plain) else {
            return Ok(Answer::Not(format!("HTTP {status}")));
        };
        to.set_fragment(None);
        let is_permanent = matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT);
        return Ok(Answer::Elsewhere { to, is_permanent });
    }
    Ok(match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Answer::Gone,
        _ if status.is_success() => Answer::Page(Box::new(Page {
            url: page.clone(),
            media: told(CONTENT_TYPE),
            etag: told(ETAG),
            modified: told(LAST_MODIFIED),
            robots: {
                let all = response.headers().get_all(HeaderName::from_static("x-robots-tag"));
                all.iter().filter_map(|value| value.to_str().ok().map(str::to_owned)).collect()
            },
            response,
        })),
        _ => Answer::Not(format!("HTTP {status}")),
    })
}

/// Whether it may be better in a moment.
fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// What a server said that wants to be asked again after a longer time than anybody waits: sooner it would only say so again.
fn too_long(response: &Response) -> Option<String> {
    let status = response.status();
    let wait = retry_after(response.headers()).filter(|wait| is_passing(status) && *wait > LONGEST_WAIT)?;
    Some(format!("HTTP {status}, to be asked again in {} s", wait.as_secs()))
}

/// In how many seconds to come again; a date is not looked at.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The innermost reason: the outer ones only say that there was one.
fn reason(error: &reqwest::Error) -> String {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    if error.is_timeout() { format!("no answer: {why}") } else { why.to_string() }
}

async fn read(response: Response, most: u64) -> std::result::Result<Vec<u8>, String> {
    let bytes = read_some(response, most + 1).await?;
    let is_larger = bytes.len() as u64 > most;
    if is_larger { Err(format!("more than the {} MiB that one file may have", most >> 20)) } else { Ok(bytes) }
}

/// Up to so many bytes.
async fn read_some(response: Response, most: u64) -> std::result::Result<Vec<u8>, String> {
    let whole = async {
        let (mut bytes, mut pieces) = (Vec::new(), response.bytes_stream());
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| format!("the answer broke off: {}", reason(&error)))?;
            let room = usize::try_from(most).unwrap_or(usize::MAX) - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() >= room {
                break;
            }
        }
        Ok(bytes)
    };
    let slow = |_| format!("it did not come whole within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, whole).await.map_err(slow)?
}
