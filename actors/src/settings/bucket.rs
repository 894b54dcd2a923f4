//! The bucket, as the settings say.

use std::time::Duration;

use ragstone_storage::tier::object::{ConnectionOptions, ObjectOptions};

use super::Settings;
use crate::error::{Error, ErrorKind, Result};

impl Settings {
    /// Whether what is said of a bucket has one to be said of: a service's. A command may be given its own (`kv-serve --object-url`, `cache export URL`).
    ///
    /// # Errors
    /// `InvalidInput`; the message names the setting.
    pub fn check_bucket(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(ErrorKind::InvalidInput, format!("setting {why}")));
        let (object, corpus) = (self.object_url.is_some(), self.corpus_url.is_some());
        if !object && !corpus && self.object_options != ConnectionOptions::default() {
            return bad("`object_options` has no meaning without `object_url` or `corpus_url`");
        }
        if !object && (self.object_ttl_s > 0 || self.object_max_bytes > 0) {
            return bad("`object_ttl_s` and `object_max_bytes` have no meaning without `object_url`");
        }
        Ok(())
    }

    /// The bucket, if there is one.
    pub fn object(&self) -> Option<ObjectOptions> {
        self.object_url.as_ref().map(|url| self.object_at(url))
    }

    /// A bucket, used as these settings say.
    pub fn object_at(&self, url: &str) -> ObjectOptions {
        ObjectOptions {
            options: self.object_options.clone(),
            codec: self.object_codec,
            keys: self.object_keys.clone(),
            encrypt: self.object_encrypt,
            accept_unsealed: self.object_accept_unsealed,
            timeout: Duration::from_millis(self.object_timeout_ms),
            capacity_bytes: self.object_max_bytes,
            ..ObjectOptions::new(url)
        }
    }

    /// The bucket of the corpus, if it is in one.
    pub fn corpus(&self) -> Option<ObjectOptions> {
        let url = self.corpus_url.as_ref()?;
        let timeout = Duration::from_millis(self.object_timeout_ms);
        Some(ObjectOptions { options: self.object_options.clone(), timeout, ..ObjectOptions::new(url) })
    }

    /// The age at which entries leave the bucket; `None`: none leaves for its age.
    pub fn object_ttl(&self) -> Option<Duration> {
        (self.object_ttl_s > 0).then_some(Duration::from_secs(self.object_ttl_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kv-serve` and `cache export` bring a bucket of their own.
    #[test]
    fn what_is_said_of_a_bucket_wants_one_where_a_service_starts() {
        let options = ConnectionOptions([("endpoint".to_owned(), "http://127.0.0.1:9000".to_owned())].into());
        let with_options = Settings { object_options: options, ..Settings::default() };
        let with_ttl = Settings { object_ttl_s: 60, ..Settings::default() };
        for (settings, named) in [(with_options, "object_options"), (with_ttl, "object_ttl_s")] {
            settings.validate().unwrap();
            let error = settings.check_bucket().unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(named), "{error}");
            Settings { object_url: Some("s3://b".into()), ..settings }.check_bucket().unwrap();
        }
    }
}
