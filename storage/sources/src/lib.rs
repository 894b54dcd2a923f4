//! Fetches what is elsewhere into a folder of this machine, as files that are known by their addresses: web sites, feeds, Git repositories,
//! buckets.
//!
//! - [`Address`]: what somebody named instead of a path.
//! - [`Source`]: one that is reached, and says which documents are of it ([`Source::covered`]).
//! - [`Fetched`]: the files, and the addresses of what is gone.
//!
//! A site is asked as `robots.txt` says (RFC 9309), one page after another. What is named may be anywhere; what it leads to is public, or of the
//! host that was named ([`private`]): a page cannot have ragstone read its neighbours.
//!
//! ```
//! use ragstone_sources::Address;
//!
//! let address = Address::of("https://example.org/guide/install.html").expect("no path").expect("well formed");
//! assert_eq!(address.to_string(), "https://example.org/guide/install.html");
//! assert!(Address::of("notes/install.html").is_none());
//! ```

mod address;
mod bucket;
mod client;
mod crawl;
mod feed;
mod frontier;
mod keep;
mod memory;
mod name;
mod pages;
pub mod private;
mod repository;
mod robots;
mod scope;
mod site;
mod tags;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

pub use self::address::Address;
pub use self::bucket::Bucket;
pub use self::memory::Memory;
pub use self::repository::Repository;
pub use self::scope::Scope;
pub use self::site::Site;
use ragstone_storage::tier::object::ConnectionOptions;
use url::Url;

use ragstone_env::{Error, ErrorKind, Result};

/// How much of a source is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Pages of a site, at most.
    pub pages: usize,
    /// Links from the named page, at most; `None`: however far.
    pub depth: Option<u32>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { pages: 1000, depth: None }
    }
}

/// A file that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedFile {
    /// In the folder.
    pub path: PathBuf,
    /// What its documents are known by.
    pub source: String,
}

/// What came of a source.
#[derive(Debug, Default)]
pub struct Fetched {
    pub files: Vec<FetchedFile>,
    /// What is as it was when it was fetched last: those that are stored need not be read again.
    pub unchanged: usize,
    /// Stored documents that are not there any more.
    pub gone: HashSet<String>,
    /// What could not be fetched, or was not all, and why.
    pub left_out: Vec<(String, String)>,
    /// What is of no kind that is read, by the endings of names or the types of media.
    pub left_alone: BTreeMap<String, usize>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub files: usize,
    pub bytes: u64,
    /// Known and not asked for yet; `None` where that is not known.
    pub waiting: Option<usize>,
}

/// What a fetch goes by.
pub struct Wanted<'a> {
    /// Where the files go; it is there, and empty.
    pub folder: &'a Path,
    pub bounds: Bounds,
    /// Addresses of the source of which documents are stored.
    pub stored: HashSet<String>,
    /// What was noted at the last fetch; it is noted anew.
    pub memory: &'a mut Memory,
}

/// A source that is reached.
pub enum Source {
    Site(Box<Site>),
    Repository(Repository),
    Bucket(bucket::Opened),
}

impl Source {
    /// Asks for what the address names, so that it is known where it leads. A bucket is reached by `connection`, and the clouds' environment
    /// variables.
    ///
    /// # Errors
    /// `InvalidInput` for an address that leads nowhere, to nothing that is read, or where `robots.txt` forbids it; `Unavailable` where nobody
    /// answers.
    pub async fn open(address: &Address, connection: &ConnectionOptions) -> Result<Self> {
        Ok(match address {
            Address::Site(url) => Self::Site(Box::new(Site::open(url).await?)),
            Address::Repository(repository) => Self::Repository(repository.clone()),
            Address::Bucket(bucket) => Self::Bucket(bucket.open(connection)?),
        })
    }

    /// Which documents are of it.
    pub fn covered(&self) -> Covered {
        match self {
            Self::Site(site) => Covered::Pages(site.scope.clone()),
            Self::Repository(repository) => Covered::Below(repository.base.clone()),
            Self::Bucket(bucket) => Covered::Below(bucket.base()),
        }
    }

    /// Fetches it. Ends early when it is dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of writing files.
    pub async fn fetch(self, wanted: Wanted<'_>, told: &(dyn Fn(Progress) + Sync)) -> Result<Fetched> {
        match self {
            Self::Site(site) => site.fetch(wanted, told).await,
            Self::Repository(repository) => repository.fetch(wanted).await,
            Self::Bucket(bucket) => bucket.fetch(wanted, told).await,
        }
    }
}

/// Which documents are of a source, by what they are known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Covered {
    Pages(Scope),
    /// Whatever begins so.
    Below(String),
}

impl Covered {
    /// Whether a document that is known by `source` is.
    pub fn has(&self, source: &str) -> bool {
        match self {
            // A repository's files are seen as pages of its forge, and are none of a site.
            Self::Pages(scope) => {
                Url::parse(source).is_ok_and(|page| scope.has(&page) && !page.path().contains("/blob/"))
            }
            Self::Below(base) => source.starts_with(base),
        }
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

fn unreachable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
