//! Where the bucket is: URLs, options and the clouds' environment variables made into a store.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::breaker::BreakerOptions;
use super::codec::Codec;
use super::keys::KeySources;
use crate::{Error, Result};

/// Requests are retried this often at most, with exponential back-off and jitter.
const MOST_RETRIES: usize = 3;
/// A single request has none to speak of: every operation has a deadline of its own.
const TIMEOUTS: [(&str, &str); 2] = [("connect_timeout", "3s"), ("timeout", "1day")];

/// Keys and values that say how to reach a cloud, as the crate `object_store` names them (`endpoint`, `region`,
/// `access_key_id`, `secret_access_key`, `allow_http`, `virtual_hosted_style_request`, …). Values may be secret: neither
/// `Debug` nor a serialisation has them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectionOptions(pub BTreeMap<String, String>);

impl fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Serialize for ConnectionOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.keys().map(|key| (key, "…")))
    }
}

impl<'de> Deserialize<'de> for ConnectionOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// `allow_http = true` reads better than `"true"`.
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "wanted is a text in quotes, a whole number, true or false")]
        enum Value {
            Text(String),
            Flag(bool),
            Number(i64),
        }
        let given = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let text = |value| match value {
            Value::Text(text) => text,
            Value::Flag(flag) => flag.to_string(),
            Value::Number(number) => number.to_string(),
        };
        Ok(Self(given.into_iter().map(|(key, value)| (key, text(value))).collect()))
    }
}

/// How an object tier is opened.
#[derive(Clone)]
pub struct ObjectOptions {
    /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///folder`, or `memory://name`, which is
    /// shared by name within the process.
    pub url: String,
    /// Of the cloud. They go before its environment variables (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    pub options: ConnectionOptions,
    /// How frames are written. What is read says itself how it was written.
    pub codec: Codec,
    /// What entries are sealed by, where any key is named: then what nobody with one of them wrote is not used.
    pub keys: KeySources,
    /// Whether what is written is encrypted, too; wants a key.
    pub encrypt: bool,
    /// Whether entries that are not sealed are used although there are keys: while a bucket changes over to them.
    pub accept_unsealed: bool,
    /// Larger entries are refused, and [`ObjectTier::collect`](super::ObjectTier::collect) goes below it; 0: no bound.
    pub capacity_bytes: u64,
    /// How long an operation may take, retries included; a second more for each MiB that it moves.
    pub timeout: Duration,
    /// Requests under way at once; at least 1.
    pub concurrency: usize,
    /// When the bucket is taken for dead.
    pub breaker: BreakerOptions,
}

impl ObjectOptions {
    /// The defaults for a URL: frames as they are, no bound, 10 s, 32 requests at once.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            options: ConnectionOptions::default(),
            codec: Codec::Plain,
            keys: KeySources::default(),
            encrypt: false,
            accept_unsealed: false,
            capacity_bytes: 0,
            timeout: Duration::from_secs(10),
            concurrency: 32,
            breaker: BreakerOptions::default(),
        }
    }
}

// Passwords have no place in a log line.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOptions")
            .field("url", &shown(&self.url))
            .field("options", &self.options)
            .field("codec", &self.codec)
            .field("keys", &self.keys)
            .field("encrypt", &self.encrypt)
            .field("accept_unsealed", &self.accept_unsealed)
            .field("capacity_bytes", &self.capacity_bytes)
            .field("timeout", &self.timeout)
            .field("concurrency", &self.concurrency)
            .field("breaker", &self.breaker)
            .finish()
    }
}

/// The URL without what may be secret in it: a user's password, a query.
pub(super) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match host.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => format!("{scheme}://…@{host}{path}"),
        _ => url.to_owned(),
    }
}

/// The store that the options name, and the prefix of all names in it: what else is kept in a bucket is reached in the same way.
///
/// # Errors
/// `InvalidInput` for a URL or an option that cannot be used; nothing is asked of the network.
pub fn connect(options: &ObjectOptions) -> Result<(Arc<dyn ObjectStore>, Path)> {
    let shown = shown(&options.url);
    let malformed = |why: &str| {
        Error::invalid_input(format!(
            "object store '{shown}': {why}; use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, \
             file:///folder or memory://name"
        ))
    };
    if options.url.contains(['?', '#']) {
        return Err(malformed("a query or fragment has no meaning here; give options beside the URL"));
    }
    let Some((scheme, rest)) = options.url.split_once("://") else { return Err(malformed("it is not a URL")) };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = Path::from_url_path(path).map_err(|error| malformed(&error.to_string()))?;
    let is_local = matches!(scheme, "file" | "memory");
    match (is_local, host.is_empty()) {
        (false, true) => return Err(malformed("it names no bucket")),
        (true, _) if !options.options.0.is_empty() => return Err(malformed("it takes no options")),
        _ => {}
    }
    let url = options.url.clone();
    match scheme {
        "s3" | "s3a" => Ok((cloud_s3(url, options)?, path)),
        "gs" => Ok((cloud_gs(url, options)?, path)),
        "az" | "azure" | "abfs" | "abfss" => Ok((cloud_az(url, options)?, path)),
        "file" if host.is_empty() && !path.as_ref().is_empty() => Ok((folder(&path)?, Path::default())),
        "file" => Err(malformed("a folder's URL has three slashes and a path")),
        "memory" => Ok((memory(host), path)),
        _ => Err(malformed("the scheme is unknown")),
    }
}

/// Builds a cloud's store: environment first, then the URL, then the options.
macro_rules! cloud {
    ($name:ident, $builder:ty) => {
        fn $name(url: String, options: &ObjectOptions) -> Result<Arc<dyn ObjectStore>> {
            let mut builder = <$builder>::from_env().with_url(url).with_retry(retries(options.timeout));
            let given = options.options.0.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            for (key, value) in TIMEOUTS.into_iter().chain(given) {
                let known = key.to_ascii_lowercase().parse().map_err(|_| {
                    Error::invalid_input(format!(
                        "object store option '{key}' is unknown for '{}'",
                        shown(&options.url)
                    ))
                })?;
                builder = builder.with_config(known, value);
            }
            // Not the cause itself: it may quote a value.
            let built = builder.build().map_err(|error| {
                let why = redacted(&error.to_string(), options);
                Error::invalid_input(format!("object store '{}': {why}", shown(&options.url)))
            })?;
            Ok(Arc::new(built))
        }
    };
}

cloud!(cloud_s3, AmazonS3Builder);
cloud!(cloud_gs, GoogleCloudStorageBuilder);
cloud!(cloud_az, MicrosoftAzureBuilder);

fn redacted(text: &str, options: &ObjectOptions) -> String {
    let secret = |key: &str| ["key", "secret", "token", "password", "credential"].iter().any(|word| key.contains(word));
    let secrets =
        options.options.0.iter().filter(|(key, value)| secret(&key.to_ascii_lowercase()) && !value.is_empty());
    secrets.fold(text.to_owned(), |text, (_, value)| text.replace(value, "…"))
}

fn retries(timeout: Duration) -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(50), max_backoff: Duration::from_secs(2), base: 2.0 };
    RetryConfig { backoff, max_retries: MOST_RETRIES, retry_timeout: timeout }
}

fn folder(path: &Path) -> Result<Arc<dyn ObjectStore>> {
    let path = PathBuf::from(format!("/{path}"));
    std::fs::create_dir_all(&path).map_err(|error| Error::io("create the folder", &path, error))?;
    let store = LocalFileSystem::new_with_prefix(&path)
        .map_err(|error| Error::invalid_input(format!("object store {}: {error}", path.display())))?;
    Ok(Arc::new(store))
}

/// Stays for as long as the process does, as a bucket outlives its nodes.
fn memory(name: &str) -> Arc<dyn ObjectStore> {
    static BUCKETS: Mutex<Option<HashMap<String, Arc<InMemory>>>> = Mutex::new(None);
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    buckets.get_or_insert_default().entry(name.to_owned()).or_default().clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn connect_to(url: &str, options: &[(&str, &str)]) -> Result<(Arc<dyn ObjectStore>, Path)> {
        let mut wanted = ObjectOptions::new(url);
        wanted.options =
            ConnectionOptions(options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
        connect(&wanted)
    }

    #[test]
    fn urls_name_a_store_and_a_prefix() {
        let dir = tempfile::TempDir::new().unwrap();
        let aws = [("region", "eu-west-1"), ("ACCESS_KEY_ID", "a"), ("secret_access_key", "b"), ("allow_http", "true")];
        let (store, prefix) = connect_to("s3://bucket/a/b%20c/", &aws).unwrap();
        assert_eq!((store.to_string(), prefix.as_ref()), ("AmazonS3(bucket)".to_owned(), "a/b c"));
        let (_, prefix) = connect_to("gs://bucket", &[("skip_signature", "true")]).unwrap();
        assert_eq!(prefix.as_ref(), "");
        let (_, prefix) = connect_to("az://box/x", &[("account_name", "me"), ("account_key", "a2V5")]).unwrap();
        assert_eq!(prefix.as_ref(), "x");
        let folder = dir.path().join("a b");
        connect_to(&format!("file://{}", folder.display().to_string().replace(' ', "%20")), &[]).unwrap();
        assert!(folder.is_dir());
        let (a, _) = connect_to("memory://urls/p", &[]).unwrap();
        let (b, prefix) = connect_to("memory://urls/p", &[]).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(prefix.as_ref(), "p");
        assert!(!Arc::ptr_eq(&a, &connect_to("memory://others", &[]).unwrap().0));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_do() {
        for (url, options) in [
            ("bucket/prefix", None),
            ("s3:///prefix", None),
            ("ftp://bucket", None),
            ("file://relative/path", None),
            ("file:///", None),
            ("s3://bucket/p?versionId=1", None),
            ("s3://bucket/../x", None),
            ("memory://m", Some(("region", "x"))),
            ("s3://bucket", Some(("colour", "blue"))),
            ("az://box", None),
        ] {
            let error = connect_to(url, options.as_slice()).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        }
    }

    #[test]
    fn options_are_read_from_text_flags_and_numbers() {
        let read: ConnectionOptions = serde_json::from_str(r#"{"a": "x", "allow_http": true, "n": 7}"#).unwrap();
        let expected = [("a", "x"), ("allow_http", "true"), ("n", "7")];
        assert!(read.0.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(expected));
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut options = ObjectOptions::new("s3://user:hunter2@bucket/p?sig=hunter2");
        options.options.0.insert("secret_access_key".into(), "hunter2".into());
        let text = format!("{options:?} {}", serde_json::to_string(&options.options).unwrap());
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("secret_access_key") && text.contains("bucket/p"), "{text}");
        assert!(!connect(&options).unwrap_err().to_string().contains("hunter2"));
        options.url = "az://box".into();
        options.options =
            serde_json::from_str(r#"{"account_name": "me", "account_key": "not base64 hunter2"}"#).unwrap();
        let error = connect(&options).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}
