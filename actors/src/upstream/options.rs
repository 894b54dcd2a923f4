//! Which engine answers, if not the model of this process.

use reqwest::Url;

use super::{Served, Upstream};
use crate::error::{Error, Result};

/// The settings `engine`, `engine_model` and `engine_key`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpstreamOptions {
    /// Where it is, such as `http://127.0.0.1:8000`; of several, with commas. None given: the model of this process answers.
    pub url: Option<String>,
    /// The model that is asked there; none given: the only one that it serves.
    pub model: Option<String>,
    /// Where its API key stands, as `file:PATH` or `env:VARIABLE`; none given: it wants none.
    pub key: Option<String>,
}

impl UpstreamOptions {
    /// Whether an engine elsewhere answers.
    pub fn is_set(&self) -> bool {
        self.url.is_some()
    }

    /// # Errors
    /// `InvalidInput`, which names the setting.
    pub fn validate(&self) -> Result<()> {
        if !self.is_set() && (self.model.is_some() || self.key.is_some()) {
            return Err(Error::invalid_input(
                "settings `engine_model` and `engine_key` have no meaning without `engine`: name the engine",
            ));
        }
        self.bases()?;
        match self.key.as_deref().map(|key| key.split_once(':')) {
            None | Some(Some(("file" | "env", _))) => Ok(()),
            _ => Err(Error::invalid_input(
                "setting `engine_key` must be `file:PATH` or `env:VARIABLE`, so that the key itself stands in no settings",
            )),
        }
    }

    /// Asks it what it serves, and says so in a line.
    ///
    /// # Errors
    /// As a start's: what is wrong, and what to do.
    pub async fn look(&self) -> Result<String> {
        let Some(upstream) = Upstream::connect(self).await? else { return Ok("none".to_owned()) };
        let Served { id, make, context } = upstream.served();
        let context = context.map_or_else(String::new, |tokens| format!(", {tokens} tokens of context"));
        Ok(format!("{id} at {}{context} ({})", upstream.shown(), make.name()))
    }

    /// The addresses that paths are added to.
    pub(super) fn bases(&self) -> Result<Vec<String>> {
        self.url.iter().flat_map(|urls| urls.split(',')).map(|url| base(url.trim())).collect()
    }

    /// The key itself.
    pub(super) fn secret(&self) -> Result<Option<String>> {
        let Some((kind, place)) = self.key.as_deref().and_then(|key| key.split_once(':')) else { return Ok(None) };
        let read = match kind {
            "env" => std::env::var(place).map_err(|error| error.to_string()),
            _ => std::fs::read_to_string(place).map_err(|error| error.to_string()),
        };
        let secret = read.map_err(|error| {
            Error::invalid_input(format!("setting `engine_key`: {kind}:{place} cannot be read: {error}"))
        })?;
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(Error::invalid_input(format!("setting `engine_key`: {kind}:{place} is empty")));
        }
        Ok(Some(secret.to_owned()))
    }
}

fn base(text: &str) -> Result<String> {
    let wrong = |why: &str| {
        let message = format!(
            "setting `engine`: \"{text}\" {why}; write it as http://HOST:PORT, such as http://127.0.0.1:8000, several with commas"
        );
        Error::invalid_input(message)
    };
    let url = Url::parse(text).map_err(|error| wrong(&format!("is no address ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("is no address of HTTP"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid_input(
            "setting `engine` has a password in an address, which logs would show: name a key in `engine_key`",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has more than a path"));
    }
    let base = url.as_str().trim_end_matches('/');
    // Both spellings are common; one of a proxy ends with something else.
    Ok(if url.path() == "/" { format!("{base}/v1") } else { base.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> UpstreamOptions {
        UpstreamOptions { url: Some(url.into()), ..UpstreamOptions::default() }
    }

    #[test]
    fn an_address_may_have_its_path_or_not() {
        for (text, base) in [
            ("http://10.0.0.2:8000", "http://10.0.0.2:8000/v1"),
            ("http://10.0.0.2:8000/", "http://10.0.0.2:8000/v1"),
            ("http://10.0.0.2:8000/v1", "http://10.0.0.2:8000/v1"),
            ("https://models.example.org/openai/v1/", "https://models.example.org/openai/v1"),
        ] {
            assert_eq!(of(text).bases().unwrap(), [base]);
        }
        assert_eq!(of("http://a:1, http://b:2").bases().unwrap(), ["http://a:1/v1", "http://b:2/v1"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_settings_name() {
        let with = |url: Option<&str>, model: Option<&str>, key: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            UpstreamOptions { url: own(url), model: own(model), key: own(key) }
        };
        let good = Some("http://a:1");
        for (options, word) in [
            (with(Some("localhost:8000"), None, None), "engine"),
            (with(Some("file:///x"), None, None), "engine"),
            (with(Some("http://me:secret@a"), None, None), "engine_key"),
            (with(Some("http://a/v1?x=1"), None, None), "engine"),
            (with(None, Some("m"), None), "engine_model"),
            (with(None, None, Some("env:X")), "engine_key"),
            (with(good, None, Some("sk-123")), "engine_key"),
        ] {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(word), "{options:?}: {error}");
            assert!(!error.contains("sk-123"), "a key is told to nobody: {error}");
        }
        with(good, Some("m"), Some("env:X")).validate().unwrap();
        UpstreamOptions::default().validate().unwrap();
    }

    #[test]
    fn a_key_is_read_from_where_it_stands() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = |key: String| UpstreamOptions { key: Some(key), ..of("http://a") }.secret();
        let named = format!("file:{}", file.path().display());
        assert!(key(named.clone()).unwrap_err().to_string().contains("is empty"));
        std::fs::write(file.path(), "abc\n").unwrap();
        assert_eq!(key(named).unwrap().as_deref(), Some("abc"));
        assert!(key("env:RAGSTONE_NO_SUCH_VARIABLE".into()).unwrap_err().to_string().contains("engine_key"));
        assert_eq!(of("http://a").secret().unwrap(), None);
    }
}
