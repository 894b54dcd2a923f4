//! The fields of a JSON request, taken one by one, so that each error names its field and no field is lost unseen.

mod of_struct;

use actix_web::HttpResponse;
use actix_web::http::header::{HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::body::Incoming;
use crate::error::{Error, Result};
use crate::http::error::Answered;

/// Names what was ignored of a request.
const IGNORED_HEADER: HeaderName = HeaderName::from_static("x-ragstone-ignored");
/// The most names in it, and the bytes of each.
const MAX_IGNORED: usize = 32;
const MAX_IGNORED_BYTES: usize = 64;

/// What is left of a request's top-level object.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads the body of a request.
    pub async fn read(incoming: Incoming) -> Result<Self> {
        incoming.parse(Self::parse).await
    }

    /// Reads an object from text.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|error| {
            Error::invalid_input(format!("the request's body is not valid UTF-8 (byte {})", error.valid_up_to()))
        })?;
        if text.trim().is_empty() {
            return Err(Error::invalid_input("the request's body is empty; send a JSON object"));
        }
        let read = serde_json::from_str(text).or_else(|error| match without_lone_surrogates(text) {
            Some(mended) => serde_json::from_str(&mended),
            None => Err(error),
        });
        match read {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(Error::invalid_input("the request's body must be a JSON object")),
            Err(error) => Err(Error::invalid_input(format!("the request's body is not valid JSON: {error}"))),
        }
    }

    /// Fields that another request was turned into.
    pub fn of(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// These, and others.
    pub fn with(mut self, others: Map<String, Value>) -> Self {
        self.0.extend(others);
        self
    }

    /// A copy of those of these names that are there.
    pub fn said(&self, names: &[&str]) -> Map<String, Value> {
        let one = |name: &&str| Some(((*name).to_owned(), self.0.get(*name).filter(|value| !value.is_null())?.clone()));
        names.iter().filter_map(one).collect()
    }

    /// Takes a field; `None` where it is missing or null.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| Error::invalid_field(name, format!("`{name}` cannot be read: {error}"))),
        }
    }

    /// Takes a field as it stands, without copying it; `None` where it is missing or null.
    pub fn take_value(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Takes the fields of a struct, which has no flattened ones; the others stay.
    ///
    /// # Errors
    /// One that names its field, for one that is missing or cannot be read.
    pub fn take_all<T: DeserializeOwned>(&mut self) -> Result<T> {
        of_struct::take(&mut self.0)
    }

    /// Reads the body of a request as a struct, which has no flattened ones. Fields that it does not name are refused.
    ///
    /// # Errors
    /// As [`take_all`](Self::take_all).
    pub async fn whole<T: DeserializeOwned>(incoming: Incoming) -> Result<T> {
        let mut fields = Self::read(incoming).await?;
        let whole = fields.take_all()?;
        fields.finish()?;
        Ok(whole)
    }

    /// A field, which stays.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Whether a field is given, and not null.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        self.take(name)?.ok_or_else(|| Error::invalid_field(name, format!("`{name}` is missing")))
    }

    /// Takes out what is not known: clients of OpenAI's endpoints send what other servers understand.
    pub fn ignore_unknown(&mut self, is_known: impl Fn(&str) -> bool) -> Ignored {
        let mut ignored = Ignored(Vec::new());
        self.0.retain(|name, value| {
            let stays = is_known(name);
            if !stays && !value.is_null() {
                ignored.add(name);
            }
            stays
        });
        ignored.0.sort_unstable();
        ignored
    }

    /// Drops fields that change nothing about an answer.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Refuses a field with any value but those that mean "nothing special".
    pub fn refuse_unless(&mut self, name: &str, harmless: impl Fn(&Value) -> bool) -> Result<()> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if harmless(&value) => Ok(()),
            Some(_) => Err(Error::invalid_field(name, format!("`{name}` is not supported; leave it out"))),
        }
    }

    /// Refuses what nobody took: a misspelt field must not be silently without effect.
    pub fn finish(self) -> Result<()> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::invalid_field(name.as_str(), format!("unrecognized request argument: `{name}`"))),
        }
    }
}

/// The names of a request's fields that were ignored.
#[derive(Debug, PartialEq, Eq)]
pub struct Ignored(Vec<String>);

impl Ignored {
    /// Only what can stand in a header, and not more than fits into one.
    fn add(&mut self, name: &str) {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let is_fit = !name.is_empty() && name.len() <= MAX_IGNORED_BYTES && name.bytes().all(allowed);
        if is_fit && self.0.len() < MAX_IGNORED {
            self.0.push(name.to_owned());
        }
    }

    /// These, and others.
    pub fn and(mut self, others: &[String]) -> Self {
        others.iter().for_each(|name| self.add(name));
        self.0.sort_unstable();
        self
    }

    /// The response, with a header that names them, also where it is an error's.
    pub fn note(&self, answered: Answered) -> HttpResponse {
        // With the error in it: a tenant is told less of some.
        let mut response = answered.unwrap_or_else(HttpResponse::from_error);
        if let Ok(value) = HeaderValue::from_str(&self.0.join(", "))
            && !value.is_empty()
        {
            response.headers_mut().insert(IGNORED_HEADER, value);
        }
        response
    }
}

/// A value that counts as not given: false, 0, or empty.
pub fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// JSON in which each half of a pair of surrogates that stands alone is the replacement character; `None` where there is none. Scripts that cut a
/// text within an emoji send such.
fn without_lone_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let (mut mended, mut kept, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        at += found;
        match unit(at) {
            Some(0xd800..=0xdbff) if unit(at + 6).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => at += 12,
            Some(0xd800..=0xdfff) => {
                mended.push_str(&text[kept..at]);
                mended.push_str("\\ufffd");
                at += 6;
                kept = at;
            }
            // What is escaped may be a backslash.
            _ => at = text.ceil_char_boundary(at + 2),
        }
        if at >= text.len() {
            break;
        }
    }
    (kept > 0).then(|| mended + &text[kept..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &[u8]) -> String {
        Fields::parse(body).unwrap_err().to_string()
    }

    #[test]
    fn half_an_emoji_is_no_reason_to_refuse_a_request() {
        let read = |body: &str| Fields::parse(body.as_bytes()).unwrap().take::<String>("a").unwrap().unwrap();
        assert_eq!(read(r#"{"a": "x \ud83d"}"#), "x \u{fffd}");
        assert_eq!(read(r#"{"a": "\udc00\ud83d\ude00\ud83d é"}"#), "\u{fffd}\u{1f600}\u{fffd} é");
        assert_eq!(read(r#"{"a": "\\ud83d"}"#), r"\ud83d");
        assert!(without_lone_surrogates(r#"{"a": "\\ud83d \ud83d\ude00 \"}"#).is_none());
        assert!(Fields::parse(br#"{"a": "\ud83d"#).is_err());
    }

    #[test]
    fn bad_bodies_are_told_apart() {
        assert!(error(b"").contains("empty"));
        assert!(error(b"[1]").contains("object"));
        assert!(error(b"{\"a\":").contains("not valid JSON"));
        assert!(error(b"{\"a\":\"\xff\"}").contains("UTF-8 (byte 6)"));
        assert!(error(b"{\"a\":\"\\ud8\"}").contains("not valid JSON"));
    }

    #[test]
    fn errors_name_their_field_and_nothing_is_lost() {
        let mut fields = Fields::parse(br#"{"n":"x","t":[],"u":1,"z":null}"#).unwrap();
        assert_eq!(fields.take::<u32>("n").unwrap_err().at_field(), Some("n"));
        assert_eq!(fields.take::<u32>("z").unwrap(), None);
        assert_eq!(fields.need::<u32>("gone").unwrap_err().at_field(), Some("gone"));
        fields.refuse_unless("t", is_nothing).unwrap();
        assert_eq!(fields.finish().unwrap_err().at_field(), Some("u"));
        let mut fields = Fields::parse(br#"{"tools":[{}]}"#).unwrap();
        assert_eq!(fields.refuse_unless("tools", is_nothing).unwrap_err().at_field(), Some("tools"));
    }

    #[test]
    fn a_struct_takes_its_own_fields_and_errors_name_them() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Wanted {
            n: u32,
            #[serde(rename = "t")]
            text: Option<String>,
            #[serde(default)]
            list: Vec<u8>,
        }
        let taken = |body: &str| {
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            fields.take_all::<Wanted>().map(|wanted| (wanted, fields.0.len()))
        };
        let wanted =
            |text: Option<&str>, list: &[u8]| Wanted { n: 7, text: text.map(str::to_owned), list: list.to_vec() };
        assert_eq!(taken(r#"{"n": 7, "other": 1, "list": null}"#).unwrap(), (wanted(None, &[]), 1));
        assert_eq!(taken(r#"{"n": 7, "t": "x", "list": [1]}"#).unwrap(), (wanted(Some("x"), &[1]), 0));
        for (body, param, words) in [
            (r#"{"t": "x"}"#, "n", "`n` is missing"),
            (r#"{"n": null}"#, "n", "`n` is missing"),
            (r#"{"n": "7"}"#, "n", "`n` cannot be read: invalid type"),
            (r#"{"n": 7, "t": 1}"#, "t", "`t` cannot be read"),
            (r#"{"n": 7, "list": [300]}"#, "list", "`list` cannot be read"),
        ] {
            let error = taken(body).unwrap_err();
            assert_eq!(error.at_field(), Some(param), "{body}");
            assert!(error.to_string().starts_with(words), "{error}");
        }
    }

    #[test]
    fn unknown_fields_are_named_in_a_header_that_stays_small() {
        let body = r#"{"a":1,"b":2,"z":null,"no_stop_trim":false,"x\r\ny: z":1,"":1,"\u00e9":1,"c.d-e":{}}"#;
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let ignored = fields.ignore_unknown(|name| ["a", "b"].contains(&name));
        let header = |response: HttpResponse| {
            response.headers().get(IGNORED_HEADER).map(|value| value.to_str().unwrap().to_owned())
        };
        for answered in [Ok(HttpResponse::Ok().finish()), Err(Error::invalid_input("no").into())] {
            assert_eq!(header(ignored.note(answered)).as_deref(), Some("c.d-e, no_stop_trim"));
        }
        assert_eq!((fields.take::<u8>("a").unwrap(), fields.take::<u8>("b").unwrap()), (Some(1), Some(2)));
        fields.finish().unwrap();

        let many: Map<String, Value> = (0..100).map(|i| (format!("{i:064}"), Value::Bool(true))).collect();
        let mut fields = Fields(many);
        fields.0.insert("y".repeat(65), Value::Bool(true));
        let ignored = fields.ignore_unknown(|_| false);
        assert_eq!(ignored.0.len(), MAX_IGNORED);
        assert_eq!(header(ignored.note(Ok(HttpResponse::Ok().finish()))).unwrap().len(), 32 * 64 + 31 * 2);
        let none = Fields(Map::new()).ignore_unknown(|_| false);
        assert_eq!(header(none.note(Ok(HttpResponse::Ok().finish()))), None);
    }
}
