//! Requests to the hub.
//!
//! A file's place on the hub answers with its ETag, its length and, for large files, a redirect to where its bytes are. All
//! three are checked before anything is written; then as many bytes are taken as were promised, none more, after those that
//! an earlier attempt left (if the place still has the same: `If-Match`), and hashed where the ETag is their SHA-256.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use futures::StreamExt;
use ragstone_terminal::progress::{Progress, Unit};
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, IF_MATCH, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use sha2::{Digest, Sha256};

use super::cache::{Repository, is_etag, is_path};
use super::plan::{Info, RemoteFile};
use super::{
    CONNECT_TIMEOUT, FILE_BYTES, HubId, INFO_BYTES, INFO_TIMEOUT, READ_TIMEOUT, WEIGHTS_BYTES, root_cause, untrusted,
};
use crate::error::{Error, ErrorKind, Result};
use crate::machine;

/// Redirects that are followed.
const MOST_HOPS: usize = 10;

/// The hub as the environment names it.
pub struct Hub {
    endpoint: String,
    /// As people may see it.
    shown: String,
    client: Client,
    token: Option<String>,
}

/// What the hub says of a file before its bytes come.
struct Promise {
    etag: String,
    bytes: u64,
    /// Of the last place of its redirects: what it calls these bytes, where that is a strong ETag.
    place: Option<Place>,
}

/// A step of a request, and the ETag that it has.
#[derive(Clone)]
struct Place {
    hop: usize,
    etag: String,
}

impl Hub {
    /// `token` is shown to this hub alone, and to no place that it redirects to.
    pub fn from_environment(token: Option<String>) -> Result<Self> {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        Self::at(endpoint.as_deref().unwrap_or("https://huggingface.co"), token)
    }

    fn at(endpoint: &str, token: Option<String>) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(Policy::none())
            .user_agent(concat!("ragstone/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::internal(error.to_string()))?;
        Ok(Self { shown: shown(&endpoint), endpoint, client, token })
    }

    /// What the repository holds.
    pub async fn info(&self, id: &HubId) -> Result<Info> {
        match tokio::time::timeout(INFO_TIMEOUT, self.described(id)).await {
            Ok(info) => info,
            Err(_) => Err(self.unreachable("no answer")),
        }
    }

    async fn described(&self, id: &HubId) -> Result<Info> {
        let revision = id.revision.replace('/', "%2F");
        // With what their blobs are: lengths and hashes.
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, id.name);
        let (response, _) = self.get(&url, None, None).await?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(id, "", &response));
        }
        let text = match bounded(response, INFO_BYTES).await {
            Ok(Some(text)) => text,
            Ok(None) => {
                return Err(untrusted(id, &format!("describes more files than {} MiB can name", INFO_BYTES >> 20)));
            }
            Err(why) => return Err(self.unreachable(&why)),
        };
        serde_json::from_slice(&text).map_err(|error| untrusted(id, &format!("is no description of a model ({error})")))
    }

    /// A file's bytes, or so many of them from a first one on, without keeping them.
    pub async fn read(&self, id: &HubId, commit: &str, name: &str, part: Option<(u64, u64)>) -> Result<Vec<u8>> {
        let url = self.place_of(id, commit, name)?;
        let (most_bytes, range) = match part {
            Some((begin, bytes)) => (bytes, Some(format!("bytes={begin}-{}", begin + bytes.saturating_sub(1)))),
            None => (FILE_BYTES, None),
        };
        let (response, _) = self.get(&url, range.as_deref(), None).await?;
        let begins = range_of(response.headers()).map(|(begin, _)| begin);
        match (response.status(), part) {
            (StatusCode::OK, None) => {}
            (StatusCode::PARTIAL_CONTENT, Some((begin, _))) if begins == Some(begin) => {}
            (StatusCode::OK | StatusCode::PARTIAL_CONTENT, _) => {
                return Err(untrusted(id, &format!("for {name} is another part than was asked for")));
            }
            _ => return Err(self.refusal(id, name, &response)),
        }
        match bounded(response, most_bytes).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(untrusted(id, &format!("gives {name} more than {most_bytes} bytes"))),
            Err(why) => Err(self.unreachable(&why)),
        }
    }

    fn place_of(&self, id: &HubId, commit: &str, name: &str) -> Result<String> {
        if !is_path(name) {
            return Err(untrusted(id, &format!("names the file {name:?}")));
        }
        Ok(format!("{}/{}/resolve/{commit}/{name}", self.endpoint, id.name))
    }

    /// Fetches a file of a commit into the cache, unless it is there.
    pub async fn fetch(&self, id: &HubId, repository: &Repository, commit: &str, file: &RemoteFile) -> Result<()> {
        let name = file.name.as_str();
        let url = self.place_of(id, commit, name)?;
        if repository.file(commit, name).is_some() {
            return Ok(());
        }
        let failed = |why: String| {
            let message =
                format!("cannot fetch {name} of {id} from the Hugging Face hub: {why}; run again to continue");
            Error::new(ErrorKind::Unavailable, message)
        };
        let (response, seen) = self.get(&url, Some("bytes=0-0"), None).await?;
        if !response.status().is_success() {
            return Err(self.refusal(id, name, &response));
        }
        let promise =
            promise(&seen, response.headers()).map_err(|what| untrusted(id, &format!("for {name} {what}")))?;
        drop(response);
        check(file, &promise).map_err(|what| untrusted(id, &format!("for {name} {what}")))?;
        let blob = repository.blob(&promise.etag);
        if !blob.metadata().is_ok_and(|found| found.is_file() && found.len() == promise.bytes) {
            let bar = Progress::new(format!("fetching {id} {name}"), Unit::Bytes);
            let part = Part::open(&repository.part(&promise.etag), promise.bytes)
                .map_err(|error| failed(format!("cannot write to the cache: {error}")))?;
            machine::check_room(repository.folder(), promise.bytes - part.has, &format!("{name} of {id}"), "HF_HOME")?;
            self.take(&url, &promise, part, &blob, &bar).await.map_err(failed)?;
        }
        repository.link(commit, name, &promise.etag)
    }

    /// Takes the bytes that are missing of a part, and makes it the blob.
    async fn take(
        &self,
        url: &str,
        promise: &Promise,
        mut part: Part,
        blob: &Path,
        bar: &Progress,
    ) -> Result<(), String> {
        if part.has < promise.bytes {
            let range = format!("bytes={}-", part.has);
            // What is there must be of the same bytes as what comes.
            let place = promise.place.as_ref().filter(|_| part.has > 0);
            let (response, seen) = self.get(url, Some(&range), place).await.map_err(|error| error.to_string())?;
            let begin = match response.status() {
                StatusCode::PARTIAL_CONTENT => range_of(response.headers()).map(|(begin, _)| begin),
                StatusCode::OK => Some(0),
                StatusCode::PRECONDITION_FAILED => return Err("it was changed meanwhile".to_owned()),
                _ => return Err(refused(&response)),
            };
            if seen_etag(&seen).is_some_and(|etag| etag != promise.etag) {
                return Err("it was changed meanwhile".to_owned());
            }
            match begin {
                Some(begin) if begin == part.has => {}
                Some(0) => part.restart().map_err(|error| error.to_string())?,
                _ => return Err("the hub sends another part than it was asked for".to_owned()),
            }
            let mut stream = response.bytes_stream();
            while let Some(piece) = stream.next().await {
                let piece = piece.map_err(|error| root_cause(&error))?;
                if piece.len() as u64 > promise.bytes - part.has {
                    part.discard();
                    return Err(format!("the hub sends more than the {} bytes that it promised", promise.bytes));
                }
                part.append(&piece).map_err(|error| format!("cannot write to the cache: {error}"))?;
                bar.set(part.has, promise.bytes);
            }
        }
        if part.has != promise.bytes {
            return Err(format!("the connection broke off after {} of {} bytes", part.has, promise.bytes));
        }
        part.finish(&promise.etag, blob)
    }

    /// A request, and where it redirects to, with the headers of each step before the last.
    async fn get(&self, url: &str, range: Option<&str>, only: Option<&Place>) -> Result<(Response, Vec<HeaderMap>)> {
        let mut at = Url::parse(url).map_err(|error| self.unreachable(&error.to_string()))?;
        let origin = at.origin();
        let mut seen = Vec::new();
        for hop in 0..MOST_HOPS {
            let mut request = self.client.get(at.clone());
            if let Some(only) = only.filter(|only| only.hop == hop) {
                request = request.header(IF_MATCH, &only.etag);
            }
            if let Some(range) = range {
                request = request.header(RANGE, range);
            }
            if let Some(token) = self.token.as_ref().filter(|_| at.origin() == origin) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.send().await.map_err(|error| self.unreachable(&root_cause(&error)))?;
            let to = response.headers().get(LOCATION).filter(|_| response.status().is_redirection());
            let Some(to) = to.cloned() else {
                seen.push(response.headers().clone());
                return Ok((response, seen));
            };
            let next = to.to_str().ok().and_then(|to| at.join(to).ok());
            let allowed = |next: &Url| next.scheme() == "https" || (next.scheme() == "http" && at.scheme() == "http");
            at = next.filter(allowed).ok_or_else(|| self.unreachable("it redirects to where nobody should follow"))?;
            seen.push(response.headers().clone());
        }
        Err(self.unreachable("it redirects without end"))
    }

    /// Why the hub does not give a repository, or a file of it, and what to do.
    fn refusal(&self, id: &HubId, name: &str, response: &Response) -> Error {
        let what = if name.is_empty() { id.to_string() } else { format!("{name} of {id}") };
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let (kind, message) = match response.status().as_u16() {
            401 => {
                let advice = "check the name, and log in with `hf auth login` if it is private or gated";
                (
                    ErrorKind::Unauthenticated,
                    format!("the hub does not give {what} to everybody (status 401): {advice}"),
                )
            }
            403 => {
                let page = format!("{}/{}", self.shown, id.name);
                let advice = format!("accept its terms at {page}, and log in with `hf auth login`");
                (ErrorKind::Forbidden, format!("the hub does not let you have {what} (status 403): {advice}"))
            }
            404 if code == "RevisionNotFound" => {
                (ErrorKind::NotFound, format!("{} on the hub has no revision {}; check it", id.name, id.revision))
            }
            404 if name.is_empty() => (ErrorKind::NotFound, format!("the hub has no model {id}; check the name")),
            404 => (ErrorKind::NotFound, format!("the hub has no {what}, though it lists it; try another revision")),
            429 => (ErrorKind::Overloaded, format!("{what} was not fetched: {}", refused(response))),
            _ => return self.unreachable(&format!("{} for {what}", refused(response))),
        };
        Error::new(kind, message)
    }

    fn unreachable(&self, why: &str) -> Error {
        let message = format!(
            "the Hugging Face hub at {} cannot be reached ({why}); run once online, or name a model that is on this machine",
            self.shown
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// An endpoint without the name and password that a mirror's may have: what is told of it goes to logs.
fn shown(endpoint: &str) -> String {
    match Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https")) {
        Some(url) if url.username().is_empty() && url.password().is_none() => endpoint.to_owned(),
        Some(mut url) => match (url.set_username(""), url.set_password(None)) {
            (Ok(()), Ok(())) => url.as_str().trim_end_matches('/').to_owned(),
            _ => "HF_ENDPOINT".to_owned(),
        },
        // It may have them all the same: somebody forgot `https://`.
        None => "HF_ENDPOINT".to_owned(),
    }
}

/// The ETag and length of a file, from the headers of every step of an answer; what is wrong with them.
fn promise(seen: &[HeaderMap], last: &HeaderMap) -> Result<Promise, String> {
    let etag = seen_etag(seen).ok_or("has no ETag")?;
    if !is_etag(&etag) {
        return Err(format!("has the ETag {etag:?}"));
    }
    let length = || last.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    let bytes = match range_of(last) {
        Some((_, total)) => Some(total),
        None => length(),
    };
    let strong = last.get(ETAG).and_then(|etag| etag.to_str().ok()).filter(|etag| etag.starts_with('"'));
    let place = strong.map(|etag| Place { hop: seen.len().saturating_sub(1), etag: etag.to_owned() });
    Ok(Promise { etag, bytes: bytes.ok_or("does not say how long it is")?, place })
}

/// Compares what is promised of a file with what the repository's description says, and with what such a file can be.
fn check(file: &RemoteFile, promise: &Promise) -> Result<(), String> {
    let Promise { etag, bytes, .. } = promise;
    let name = file.name.to_ascii_lowercase();
    let most_bytes = if name.ends_with(".safetensors") || name.ends_with(".gguf") { WEIGHTS_BYTES } else { FILE_BYTES };
    if *bytes > most_bytes {
        return Err(format!("promises {bytes} bytes, more than {most_bytes}"));
    }
    if let Some(described) = file.bytes().filter(|described| described != bytes) {
        return Err(format!("promises {bytes} bytes, and the repository's description {described}"));
    }
    if let Some(described) = file.sha256().filter(|described| !described.eq_ignore_ascii_case(etag)) {
        return Err(format!("promises SHA-256 {etag:?}, and the repository's description {described:?}"));
    }
    Ok(())
}

/// A status that is none of those that were hoped for, in words.
fn refused(response: &Response) -> String {
    let status = response.status().as_u16();
    let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok());
    // A number of seconds or a date, by RFC 9110; it is printed.
    let after = after.filter(|after| after.len() <= 40 && !after.chars().any(char::is_control));
    let after = after.map(|after| match after.parse::<u64>() {
        Ok(seconds) => format!(" in {seconds} s"),
        Err(_) => format!(" after {after}"),
    });
    match (status, after) {
        (429, after) => {
            format!("too many requests (status 429); try again{}", after.unwrap_or_else(|| " in some minutes".into()))
        }
        (status, Some(after)) => format!("status {status}; try again{after}"),
        (status, None) => format!("status {status}"),
    }
}

/// An answer's bytes; `None` where they are more than they may be.
async fn bounded(response: Response, most_bytes: u64) -> Result<Option<Vec<u8>>, String> {
    let mut stream = response.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(|error| root_cause(&error))?);
        if bytes.len() as u64 > most_bytes {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

/// The hub's own name of the bytes before that of the place where they are kept.
fn seen_etag(seen: &[HeaderMap]) -> Option<String> {
    let linked = seen.iter().find_map(|headers| headers.get("x-linked-etag"));
    let etag = linked.or_else(|| seen.iter().find_map(|headers| headers.get(ETAG)))?;
    let text = String::from_utf8_lossy(etag.as_bytes()).into_owned();
    Some(text.trim_start_matches("W/").trim_matches('"').to_owned())
}

/// Where a partial answer begins, and how long the whole is.
fn range_of(headers: &HeaderMap) -> Option<(u64, u64)> {
    let (range, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

/// A file that is being gathered; no other process gathers it meanwhile.
struct Part {
    file: File,
    path: std::path::PathBuf,
    has: u64,
    hash: Sha256,
}

impl Part {
    /// What an earlier attempt left of a file of `whole` bytes.
    fn open(path: &Path, whole: u64) -> io::Result<Self> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another process is fetching the same file")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut part = Self { file, path: path.to_owned(), has: 0, hash: Sha256::new() };
        if part.file.metadata()?.len() > whole {
            part.restart()?;
        }
        let mut buffer = vec![0; 1 << 18];
        loop {
            match part.file.read(&mut buffer)? {
                0 => return Ok(part),
                read => {
                    part.hash.update(&buffer[..read]);
                    part.has += read as u64;
                }
            }
        }
    }

    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.hash.update(piece);
        self.has += piece.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.has, self.hash) = (0, Sha256::new());
        Ok(())
    }

    /// What is not to be gone on with.
    fn discard(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a download that is of no use was not removed");
        }
    }

    /// Everything is there: compares its hash, where the ETag is one, and gives it its name.
    fn finish(self, etag: &str, blob: &Path) -> Result<(), String> {
        let found = hex::encode(self.hash.clone().finalize());
        if etag.len() == found.len()
            && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
            && !etag.eq_ignore_ascii_case(&found)
        {
            self.discard();
            return Err(format!("its SHA-256 is {found} and not {etag}, so that nothing of it is used"));
        }
        let named = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, blob));
        named.map_err(|error| format!("cannot write to the cache: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[tokio::test]
    async fn nobody_is_told_the_password_of_a_mirror() {
        for (endpoint, told) in [
            ("https://somebody:hunter2@hub.example/hf/", "https://hub.example/hf"),
            ("https://hunter2@hub.example", "https://hub.example"),
            ("http://hub.example:8080/", "http://hub.example:8080"),
            ("somebody:hunter2@hub.example/hf", "HF_ENDPOINT"),
            ("hunter2@hub.example", "HF_ENDPOINT"),
        ] {
            let hub = Hub::at(endpoint, None).unwrap();
            let error = hub.unreachable("no route").to_string();
            assert!(
                error.contains(&format!("hub at {told} cannot be reached")) && !error.contains("hunter2"),
                "{error}"
            );
        }
        // What is no address, and what nobody answers at.
        for endpoint in ["hunter2@hub.example", "http://somebody:hunter2@127.0.0.1:1"] {
            let hub = Hub::at(endpoint, None).unwrap();
            let error = hub.info(&HubId::parse("a/b").unwrap()).await.err().unwrap().to_string();
            assert!(error.contains("cannot be reached") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_promise_is_read_or_refused() {
        let linked = headers(&[("x-linked-etag", "\"abc\""), ("etag", "\"other\"")]);
        let last = headers(&[("etag", "W/\"cdn\""), ("content-range", "bytes 0-0/17")]);
        let Promise { etag, bytes, .. } = promise(&[linked, last.clone()], &last).unwrap();
        assert_eq!((etag.as_str(), bytes), ("abc", 17));
        assert_eq!(promise(std::slice::from_ref(&last), &last).unwrap().etag, "cdn");
        for bad in ["\"../../../../tmp/x\"", "", "\"\"", "a/b", "a.lock", ".."] {
            let mut last = last.clone();
            last.insert(ETAG, bad.parse().unwrap());
            assert!(promise(std::slice::from_ref(&last), &last).is_err(), "{bad}");
        }
        for bad in ["bytes 0-0/*", "bytes 0-0/-1", "0/17", "bytes 0-0/99999999999999999999999"] {
            let mut last = headers(&[("etag", "x")]);
            last.insert(CONTENT_RANGE, bad.parse().unwrap());
            assert!(promise(std::slice::from_ref(&last), &last).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_an_earlier_attempt_left_counts_and_a_wrong_hash_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, blob) = (dir.path().join("x.incomplete"), dir.path().join("x"));
        Part::open(&path, 6).unwrap().append(b"abc").unwrap();
        let mut part = Part::open(&path, 6).unwrap();
        assert_eq!(part.has, 3);
        assert!(Part::open(&path, 6).is_err(), "one at a time");
        part.append(b"def").unwrap();
        let right = hex::encode(Sha256::digest(b"abcdef"));
        assert!(part.finish(&"0".repeat(64), &blob).unwrap_err().contains(&right));
        assert!(!path.exists() && !blob.exists());
        let mut part = Part::open(&path, 6).unwrap();
        part.append(b"abcdef").unwrap();
        part.finish(&right, &blob).unwrap();
        assert_eq!(std::fs::read(&blob).unwrap(), b"abcdef");
        std::fs::write(&path, b"longer than it can be").unwrap();
        assert_eq!(Part::open(&path, 6).unwrap().has, 0);
    }
}
