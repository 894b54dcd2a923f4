//! Listing a bucket piece by piece, and reading the headers of a piece.

use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::ObjectTier;
use super::client::{Client, Operation, Pending, fault};
use super::names::Space;
use super::requests::Opened;
use crate::{Error, ErrorKind, Result};

/// Objects a piece: a page of the clouds.
const PIECE: usize = 1_000;

/// Names that are listed at once.
const LISTINGS: usize = 32;

/// Of a listing; a bucket may go on for ever.
const MOST_OBJECTS: u64 = 16 << 20;

/// Objects below a name. A piece is one operation, with its deadline.
pub(super) struct Listing<'a> {
    listed: u64,
    client: &'a Client,
    below: Path,
    rest: Option<Rest>,
}

type Rest = BoxStream<'static, object_store::Result<ObjectMeta>>;
type Piece = (Vec<ObjectMeta>, Option<Rest>);

impl Listing<'_> {
    /// The next piece; `None` at the end. BLOCKS.
    ///
    /// # Errors
    /// As the bucket says; then the listing is at its end.
    pub fn next(&mut self) -> Result<Option<Vec<ObjectMeta>>> {
        let Some(pending) = self.start() else { return Ok(None) };
        let (piece, rest) = pending.wait()?;
        self.listed += piece.len() as u64;
        if self.listed > MOST_OBJECTS {
            return Err(too_many(&self.below));
        }
        self.rest = rest;
        Ok((!piece.is_empty()).then_some(piece))
    }

    /// Starts reading the next piece; `None` at the end.
    fn start(&mut self) -> Option<Pending<Piece>> {
        let mut rest = self.rest.take()?;
        let (bucket, below) = (self.client.bucket.clone(), self.below.clone());
        let operation = Operation { doing: "list entries", failpoint: "object.list", bytes: 0 };
        Some(self.client.start(async move {
            let piece = async move {
                let mut piece = Vec::new();
                while piece.len() < PIECE {
                    match rest.next().await {
                        Some(Ok(object)) => piece.push(object),
                        Some(Err(error)) => return Err(fault("list", &below, error)),
                        None => return Ok((piece, None)),
                    }
                }
                Ok((piece, Some(rest)))
            };
            bucket.operate(operation, piece).await
        }))
    }
}

fn too_many(below: &Path) -> Error {
    let what =
        format!("object storage: more than {MOST_OBJECTS} objects are listed below {below}; look who writes them");
    Error::new(ErrorKind::Unavailable, what)
}

impl ObjectTier {
    /// Asks the bucket for one name: whether it is there, answers, and lets this node list. Opening a tier asks nothing.
    /// BLOCKS for the options' timeout at most.
    ///
    /// # Errors
    /// What the bucket says; `Unavailable` if it does not answer in time.
    pub fn probe(&self) -> Result<()> {
        let (bucket, below) =
            (self.client.bucket.clone(), self.names.model(self.names.written(Space::Exact), &self.fingerprint));
        let mut names = bucket.store.list(Some(&below));
        let operation = Operation { doing: "reach the bucket", failpoint: "object.list", bytes: 0 };
        self.client.wait(async move {
            let first = async move { names.next().await.transpose().map_err(|error| fault("list", &below, error)) };
            bucket.operate(operation, first).await.map(drop)
        })
    }

    /// Before requests that go out side by side: a bucket that was taken for dead is asked by one of its own, as all beside a probe are refused.
    ///
    /// # Errors
    /// As [`probe`](Self::probe)'s.
    pub(super) fn reach(&self) -> Result<()> {
        if self.client.bucket.is_up() { Ok(()) } else { self.probe() }
    }

    pub(super) fn listing(&self, below: Path) -> Listing<'_> {
        let rest = self.client.bucket.store.list(Some(&below));
        Listing { listed: 0, client: &self.client, below, rest: Some(rest) }
    }

    /// Everything below some names, many of them at once. BLOCKS.
    ///
    /// # Errors
    /// As the bucket says.
    pub(super) fn list_all(&self, below: Vec<Path>) -> Result<Vec<ObjectMeta>> {
        self.reach()?;
        let mut found = Vec::new();
        let mut below = below.into_iter().peekable();
        while below.peek().is_some() {
            let mut listings: Vec<_> = below.by_ref().take(LISTINGS).map(|below| self.listing(below)).collect();
            while !listings.is_empty() {
                let started: Vec<_> = listings.iter_mut().map(Listing::start).collect();
                for (listing, pending) in listings.iter_mut().zip(started) {
                    let Some((piece, rest)) = pending.map(Pending::wait).transpose()? else { continue };
                    listing.rest = rest;
                    found.extend(piece);
                    if found.len() as u64 > MOST_OBJECTS {
                        return Err(too_many(&listing.below));
                    }
                }
                listings.retain(|listing| listing.rest.is_some());
            }
        }
        Ok(found)
    }

    /// Reads the headers of listed objects, many at once; objects whose names are not ours are left out.
    pub(super) fn open_objects<'a>(
        &'a self,
        objects: &'a [ObjectMeta],
    ) -> impl Iterator<Item = (&'a ObjectMeta, Result<Option<Opened>>)> {
        // As many as can be under way, and not a page: each may hold the first bytes of its object.
        objects.chunks(64).flat_map(|some| {
            let named = some.iter().filter_map(|object| Some((object, self.names.parse(&object.location)?)));
            let started: Vec<_> = named.map(|(object, name)| (object, self.start_open(vec![name]))).collect();
            started.into_iter().map(|(object, pending)| (object, pending.map_or(Ok(None), |pending| pending.wait())))
        })
    }
}
