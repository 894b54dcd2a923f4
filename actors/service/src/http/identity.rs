//! Who sent a request: the data folder's owner, somebody with a key, or anybody. What they may do with a path is in
//! [`permissions`](crate::api::permissions); which tenant and which collections they may name is here.

use std::sync::Arc;

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actix_web::{HttpMessage, HttpRequest};
use ragstone_actors::Caller;
use ragstone_actors::admission::api_keys::{ApiKey, ApiKeys};
use ragstone_corpus::{full_name, shown_name};
use ragstone_storage::catalog::Role;

use crate::api::permissions::{Rank, wanted};
use crate::config::KeyMode;
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::Refusal;
use crate::http::state::{Audience, State};

/// Who sent a request.
#[derive(Debug, Clone)]
pub enum Visitor {
    /// Somebody of whom nothing is known, where there are no keys or the path is open.
    Anyone,
    /// Who can read the data folder.
    Owner,
    /// Who has this key.
    Key(Arc<ApiKey>),
}

/// Stands in the data of an app that only the data folder's owner may use.
#[derive(Debug, Clone, Copy)]
pub struct OwnersOnly;

/// Finds out who sent a request, and whether they may use its path, which is as the router has it: what a client writes for it can differ.
///
/// # Errors
/// `Unauthenticated` without a key where one is needed, `Forbidden` where that is not enough, `Unavailable` while the keys are being read.
pub fn admit(state: &State, request: &HttpRequest, path: &str) -> Result<Visitor> {
    if state.audience() != Audience::Public || request.app_data::<OwnersOnly>().is_some() {
        state.check_owner(request)?;
        return Ok(Visitor::Owner);
    }
    let least = wanted(request.method().as_str(), path, state.keys, state.metrics_open);
    let owner = state.check_owner(request);
    let visitor = match (state.keys, &owner) {
        (_, Ok(())) => Visitor::Owner,
        (KeyMode::Off, _) => Visitor::Anyone,
        (KeyMode::Required, _) if least == Rank::Anyone => Visitor::Anyone,
        (KeyMode::Required, _) => Visitor::Key(key(request.headers(), || Ok(state.opened()?.ragstone.api_keys()))?),
    };
    match &visitor {
        visitor if visitor.rank() >= least => Ok(visitor.clone()),
        Visitor::Key(key) => Err(too_little(key, least)),
        _ => owner.map(|()| visitor),
    }
}

/// Where Anthropic's clients send a key.
pub const API_KEY_HEADER: &str = "x-api-key";
const UNKNOWN_KEY: &str = "this API key is not known here, or was revoked; ask the service's owner for one";

/// The key that was sent. All of a wrong one is treated alike.
fn key<'a>(headers: &HeaderMap, keys: impl FnOnce() -> Result<&'a ApiKeys>) -> Result<Arc<ApiKey>> {
    let unknown = |message: &str| Err(Error::new(ErrorKind::Unauthenticated, message));
    let mut sent = headers.get_all(AUTHORIZATION);
    // As Anthropic's clients send it.
    let bare = headers.get(API_KEY_HEADER).filter(|_| !headers.contains_key(AUTHORIZATION));
    if let Some(key) = bare {
        return keys()?.find(key.as_bytes().trim_ascii()).map_or_else(|| unknown(UNKNOWN_KEY), Ok);
    }
    let Some(first) = sent.next() else {
        return unknown(
            "this service wants an API key: send it as `Authorization: Bearer …`; its owner makes one by `ragstone keys add`",
        );
    };
    if sent.next().is_some() {
        return unknown("the header authorization came twice");
    }
    let bytes = first.as_bytes();
    let scheme = b"bearer ";
    let Some((_, sent)) = bytes.split_at_checked(scheme.len()).filter(|(is, _)| is.eq_ignore_ascii_case(scheme)) else {
        return unknown("send the API key as `Authorization: Bearer …`");
    };
    match keys()?.find(sent.trim_ascii()) {
        Some(key) => Ok(key),
        None => unknown(UNKNOWN_KEY),
    }
}

fn not_its_own(given: &str, key: &ApiKey, why: &str) -> Error {
    let shown: String = given.escape_default().take(150).collect();
    let message = format!("collection `{shown}` is not tenant `{}`'s, {why}", key.record.tenant);
    Error::new(ErrorKind::Forbidden, message)
}

fn too_little(key: &ApiKey, least: Rank) -> Error {
    let wanted = match least {
        Rank::Anyone | Rank::Read => "a key that reads",
        Rank::Write => "a key that writes",
        Rank::Admin => "an admin's key",
        Rank::Owner => "the data folder's owner",
    };
    let message = format!("this is for {wanted}; key `{}` has the role {}", key.record.name, key.record.role.name());
    Error::new(ErrorKind::Forbidden, message)
}

impl Visitor {
    /// Who was found to have sent `request`.
    ///
    /// # Errors
    /// `Internal` where nobody looked.
    pub fn of(request: &HttpRequest) -> Result<Self> {
        let found = request.extensions().get::<Self>().cloned();
        found.ok_or_else(|| Error::internal(format!("nobody asked who may use {}", request.path())))
    }

    /// Whether it may begin what it was admitted for: a body takes its time, and so does a place.
    ///
    /// # Errors
    /// `Unauthenticated` where its key was revoked meanwhile.
    pub fn check_still(&self) -> Result<()> {
        match self {
            Self::Key(key) if key.is_revoked() => {
                Err(Error::new(ErrorKind::Unauthenticated, "this API key was revoked"))
            }
            _ => Ok(()),
        }
    }

    fn rank(&self) -> Rank {
        match self {
            Self::Anyone => Rank::Anyone,
            Self::Owner => Rank::Owner,
            Self::Key(key) => key.record.role.into(),
        }
    }

    /// The key, where it is one that is not shown what others have.
    pub fn bound(&self) -> Option<&ApiKey> {
        match self {
            Self::Key(key) if key.record.role < Role::Admin => Some(key),
            _ => None,
        }
    }

    /// An error as it may be told to this one, in a stream that has begun; a fault is `number`'s in the log.
    pub fn told(&self, error: Error, number: u64) -> Error {
        if self.bound().is_some() { Refusal(error).to_tenant(number).0 } else { error }
    }

    /// Who it is, as far as fairness goes; `None`: whoever comes from its address.
    pub fn caller(&self) -> Option<Caller> {
        match self {
            Self::Key(key) => Some(key.caller),
            _ => None,
        }
    }

    /// The tenant that it is of, where a request names none.
    pub fn own_tenant(&self) -> &str {
        match self {
            Self::Key(key) => &key.record.tenant,
            _ => "",
        }
    }

    /// The tenant of a request that names `asked`, in its field `param`: a key's own. Others may name any.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn tenant(&self, asked: Option<String>, param: &str) -> Result<String> {
        let own = self.own_tenant();
        match asked {
            Some(asked) if asked != own && self.bound().is_some() => {
                let message =
                    format!("the tenant follows from the key, which is of tenant `{own}`; leave `{param}` out");
                Err(Error::of_field(ErrorKind::Forbidden, param, message))
            }
            Some(asked) => Ok(asked),
            None => Ok(own.to_owned()),
        }
    }

    /// The full name of the collection that `given` means. Whether there is one is not looked at: the answer tells a key nothing about
    /// what others have.
    ///
    /// # Errors
    /// `Forbidden` for a collection of another tenant that was not granted.
    pub fn collection(&self, given: &str) -> Result<String> {
        let full = full_name(self.own_tenant(), given);
        match self.bound() {
            Some(key) if !key.may_read(&full) => Err(not_its_own(given, key, "and this key may not read it")),
            _ => Ok(full),
        }
    }

    /// As [`collection`](Self::collection), of one that is to be changed: others' are granted for reading alone.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn own_collection(&self, given: &str) -> Result<String> {
        let full = self.collection(given)?;
        match self.bound() {
            Some(key) if !key.owns(&full) => Err(not_its_own(given, key, "and others' collections are read alone")),
            _ => Ok(full),
        }
    }

    /// As [`collection`](Self::collection), of a name that may be missing.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn collection_if(&self, given: Option<String>) -> Result<Option<String>> {
        given.map(|given| self.collection(&given)).transpose()
    }

    /// What it calls a collection, by its full name; `None` where it may not know of it.
    pub fn shown(&self, collection: &str) -> Option<String> {
        let may_use = self.bound().is_none_or(|key| key.may_read(collection));
        may_use.then(|| shown_name(self.own_tenant(), collection))
    }
}

#[cfg(test)]
mod tests {
    use ragstone_storage::catalog::ApiKeyRecord;

    use super::*;

    fn visitor(role: Role, tenant: &str, collections: &[&str]) -> Visitor {
        let record = ApiKeyRecord {
            name: "k".into(),
            hash: String::new(),
            role,
            tenant: tenant.into(),
            collections: collections.iter().map(|name| (*name).to_owned()).collect(),
            added_unix_ms: 0,
        };
        Visitor::Key(Arc::new(ApiKey::new(record)))
    }

    #[test]
    fn a_tenant_follows_from_the_key() {
        let asks = |visitor: &Visitor, asked: Option<&str>| visitor.tenant(asked.map(str::to_owned), "tenant").ok();
        for role in [Role::Read, Role::Write] {
            let key = visitor(role, "acme", &[]);
            assert_eq!(asks(&key, None).as_deref(), Some("acme"));
            assert_eq!(asks(&key, Some("acme")).as_deref(), Some("acme"));
            assert_eq!((asks(&key, Some("other")), asks(&key, Some(""))), (None, None));
        }
        let admin = visitor(Role::Admin, "acme", &[]);
        assert_eq!(
            (asks(&admin, None).unwrap(), asks(&admin, Some("other")).unwrap()),
            ("acme".into(), "other".into())
        );
        for free in [Visitor::Anyone, Visitor::Owner] {
            assert_eq!(
                (asks(&free, None).unwrap(), asks(&free, Some("other")).unwrap()),
                (String::new(), "other".into())
            );
        }
    }

    #[test]
    fn a_key_knows_its_tenants_collections_and_what_was_granted() {
        let key = visitor(Role::Read, "acme", &["other/handbook", "public"]);
        for (given, full) in [
            ("notes", Some("acme/notes")),
            ("acme/notes", Some("acme/notes")),
            ("other/handbook", Some("other/handbook")),
            ("/public", Some("public")),
            ("public", Some("acme/public")),
            ("/notes", None),
            ("other/notes", None),
            ("/acme/notes", None),
            ("acme//notes", None),
        ] {
            assert_eq!(key.collection(given).ok().as_deref(), full, "{given}");
            let own = full.filter(|full| full.starts_with("acme/"));
            assert_eq!(key.own_collection(given).ok().as_deref(), own, "{given}");
        }
        for (full, shown) in [
            ("acme/notes", Some("notes")),
            ("other/handbook", Some("other/handbook")),
            ("public", Some("/public")),
            ("other/notes", None),
            ("notes", None),
        ] {
            assert_eq!(key.shown(full).as_deref(), shown, "{full}");
        }
        let admin = visitor(Role::Admin, "acme", &[]);
        assert_eq!(admin.collection("notes").unwrap(), "acme/notes");
        assert_eq!((admin.collection("/notes").unwrap(), admin.shown("x/y").unwrap()), ("notes".into(), "x/y".into()));
        assert_eq!(Visitor::Owner.collection("acme/notes").unwrap(), "acme/notes");
        assert_eq!(Visitor::Anyone.shown("acme/notes").unwrap(), "acme/notes");
        let error = key.collection(&"x/\u{1b}[2J".repeat(1000)).unwrap_err().to_string();
        assert!(error.is_ascii() && error.len() < 300 && !error.contains('\u{1b}'), "{error}");
    }
}
