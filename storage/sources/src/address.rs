//! What somebody names instead of a path.

use std::fmt;

use url::Url;

use super::bucket::Bucket;
use super::refused;
use super::repository::Repository;
use ragstone_env::Result;

const WITH_NAME: &str = "an address with a name or a password in it would be kept with them: leave them out";
/// What addresses of buckets begin with.
const CLOUDS: [&str; 4] = ["s3://", "gs://", "az://", "abfss://"];
/// Hosts whose addresses of two names are repositories: `https://github.com/owner/name`.
const FORGES: [&str; 4] = ["github.com", "gitlab.com", "codeberg.org", "bitbucket.org"];

/// A web page, a feed, a repository or a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A page, and what lies below its folder; a feed, and its entries; a file.
    Site(Url),
    Repository(Repository),
    /// The files below a prefix.
    Bucket(Bucket),
}

impl Address {
    /// What `text` names, if it is no path.
    ///
    /// # Errors
    /// `InvalidInput` for an address that cannot be one, or that has a password in it, which would be kept.
    pub fn of(text: &str) -> Option<Result<Self>> {
        let has = |scheme: &str| text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme));
        if has("git+") || has("ssh://") || has("git@") {
            return Some(Repository::of(text).map(Self::Repository));
        }
        if CLOUDS.iter().any(|cloud| has(cloud)) {
            let authority = text.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
            if authority.contains('@') && !has("abfss://") {
                return Some(Err(refused(WITH_NAME.to_owned())));
            }
            return Some(Ok(Self::Bucket(Bucket::of(text))));
        }
        if !has("http://") && !has("https://") {
            return None;
        }
        Some(Self::of_url(text))
    }

    fn of_url(text: &str) -> Result<Self> {
        let mut url = Url::parse(text).map_err(|error| refused(format!("{text} is no address: {error}")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused(WITH_NAME.to_owned()));
        }
        let names: Vec<&str> = url.path().split('/').filter(|name| !name.is_empty()).collect();
        let is_of_forge = names.len() == 2 && url.host_str().is_some_and(|host| FORGES.contains(&host));
        if url.path().trim_end_matches('/').ends_with(".git") || is_of_forge {
            return Repository::of(text).map(Self::Repository);
        }
        url.set_fragment(None);
        Ok(Self::Site(url))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Site(url) => f.write_str(url.as_str()),
            Self::Repository(repository) => repository.fmt(f),
            Self::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths_and_from_each_other() {
        for path in ["notes", "/a/http:/x", "./https", "C:\\x", "git", "s3", "https:/x"] {
            assert!(Address::of(path).is_none(), "{path}");
        }
        let of = |text: &str| Address::of(text).unwrap().unwrap();
        assert_eq!(of("HTTPS://Example.org/a#b").to_string(), "https://example.org/a");
        for text in [
            "https://example.org/x.git",
            "https://github.com/ragstone/ragstone",
            "git@example.org:a/b.git",
            "git+https://example.org/x",
            "ssh://git@example.org/x",
        ] {
            assert!(matches!(of(text), Address::Repository(_)), "{text}");
        }
        assert!(matches!(of("https://github.com/ragstone/ragstone/wiki"), Address::Site(_)));
        assert!(matches!(of("s3://bucket/papers/"), Address::Bucket(bucket) if bucket.base() == "s3://bucket/papers/"));
        for (text, words) in [
            ("http://", "no address"),
            ("s3://AKIA:x@bucket/p", "leave them out"),
            ("https://ida:x@example.org/", "leave them out"),
        ] {
            let error = Address::of(text).unwrap().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains(":x@"), "{error}");
        }
    }
}
