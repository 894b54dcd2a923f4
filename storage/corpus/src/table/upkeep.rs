//! What keeps a table fast and small, and deleted text off the disk.
//!
//! A deletion of LanceDB marks rows; their text, metadata and vectors stay in data files until those are rewritten, in superseded
//! versions until those are removed, and their words in the full-text index until it is made again.

use lancedb::index::IndexConfig;
use lancedb::table::{CompactionOptions, Duration, OptimizeAction, OptimizeOptions};

use super::segments::is_behind;
use super::{Collection, Home, Shared, TERM_INDEX, TEXT_INDEX, Writer};
use crate::bucket::Lease;
use crate::disk::files;
use crate::folders::versions;
use crate::sharing::lease_of;
use crate::{Error, ErrorKind, Result};
use ragstone_env::lock::locked;

/// Rows whose vectors a search may compare beside their index before they are added to it: this many, and a share of the table, as adding them
/// rewrites much of an index. Words are added sooner (`segments.rs`).
const UNINDEXED_ROWS: usize = 256;
/// The share while somebody writes, and once nobody does.
const UNINDEXED_SHARE: usize = 64;
const UNINDEXED_SHARE_AT_REST: usize = 1024;
/// Every commit makes a fragment; past this many, and one for so many rows, they are merged. That the bound grows with the
/// table keeps what merging writes in proportion to what was added. Once nobody writes, it grows with what is not rewritten any more.
const FRAGMENTS: usize = 16;
const ROWS_PER_FRAGMENT: usize = 512;
/// A fragment of this size is not rewritten any more, which bounds what a small upsert into a large table may cost.
const FRAGMENT_ROWS: usize = 65_536;
/// Every commit makes a version; past this many the superseded ones are removed.
const VERSIONS: usize = 32;
/// Between two looks at a table in object storage: each costs requests, and what is not indexed yet is scanned.
const CARE: std::time::Duration = std::time::Duration::from_secs(10);

/// What a table of so many rows may leave undone.
struct Bounds {
    /// Rows whose vectors are in no index.
    unindexed: usize,
    fragments: usize,
}

impl Bounds {
    fn while_written(rows: usize) -> Self {
        let (unindexed, fragments) = (rows / UNINDEXED_SHARE, rows / ROWS_PER_FRAGMENT);
        Self { unindexed: UNINDEXED_ROWS + unindexed, fragments: FRAGMENTS + fragments }
    }

    fn at_rest(rows: usize) -> Self {
        let (unindexed, fragments) = (rows / UNINDEXED_SHARE_AT_REST, rows / FRAGMENT_ROWS);
        Self { unindexed: UNINDEXED_ROWS + unindexed, fragments: FRAGMENTS + fragments }
    }
}

/// What became of a table that was tidied.
#[derive(Clone, Copy, PartialEq)]
enum Tidied {
    Nothing,
    /// New rows were added to its indexes of words, and little of them was written anew.
    Indexed,
    /// Much was, so that what was there before is to go.
    Rewritten,
}

impl Writer<'_> {
    /// Brings the indexes up to date and removes what is superseded, where enough of it has gathered.
    ///
    /// It looks at the table and not at what was done just now, so that it also finishes what a kill cut off.
    pub async fn maintain(&self, vector_index_rows: usize) -> Result<()> {
        let Home::Bucket(shared) = &self.collection.home else {
            return self.tidy_folder(vector_index_rows, Bounds::while_written).await;
        };
        let is_early = locked(&shared.tidied).as_ref().is_some_and(|since| since.elapsed() < CARE);
        if is_early {
            return Ok(());
        }
        *locked(&shared.tidied) = Some(shared.bucket.env().stopwatch());
        // What another node does, or what fails because others wrote, is done by the next one who looks.
        let Some(mut lease) = lease_of(shared).await? else { return Ok(()) };
        let tidied = async {
            shared.refresh().await?;
            self.tidy(vector_index_rows, Bounds::while_written, Some(&mut lease)).await?;
            self.prune_shared(shared).await
        };
        if let Err(error) = tidied.await {
            tracing::debug!(collection = self.collection.name, %error, "a table is tidied by the next one who writes");
        }
        lease.give_back().await;
        Ok(())
    }

    /// As [`maintain`](Self::maintain), once nobody writes: then what searches pay for is worth more than what merging writes. Nothing of a table in
    /// object storage.
    pub async fn compact(&self, vector_index_rows: usize) -> Result<()> {
        match self.collection.shared() {
            Some(_) => Ok(()),
            None => self.tidy_folder(vector_index_rows, Bounds::at_rest).await,
        }
    }

    async fn tidy_folder(&self, vector_index_rows: usize, bounds: fn(usize) -> Bounds) -> Result<()> {
        let tidied = self.tidy(vector_index_rows, bounds, None).await?;
        if tidied != Tidied::Nothing {
            self.sync().await?;
        }
        if tidied == Tidied::Rewritten || self.has_many_versions() {
            self.prune().await?;
        }
        Ok(())
    }

    fn has_many_versions(&self) -> bool {
        self.collection.folder().is_some_and(|folder| versions(folder) > VERSIONS)
    }

    /// Brings indexes up to date and merges fragments. Ends where another node has the lease.
    async fn tidy(
        &self,
        vector_index_rows: usize,
        bounds: fn(usize) -> Bounds,
        mut lease: Option<&mut Lease>,
    ) -> Result<Tidied> {
        let Collection { table, .. } = self.collection;
        let failed = |doing: &str| self.collection.failed(doing);
        let indexes = table.list_indices().await.map_err(failed("look at the indexes of"))?;
        let has = |column: &str| indexes.iter().any(|index| index.columns == [column]);
        let rows = self.collection.rows().await?;
        let bounds = bounds(rows);
        let mut rewritten = false;
        if !indexes.iter().any(|index| index.name == TEXT_INDEX) {
            self.collection.create_text_index().await?;
            rewritten = true;
        }
        if self.collection.can_have_terms() && !indexes.iter().any(|index| index.name == TERM_INDEX) {
            self.collection.create_term_index().await?;
            rewritten = true;
        }
        if !has("vector") && rows >= vector_index_rows {
            self.collection.create_vector_index().await?;
            *locked(&self.collection.vectors_indexed) = Some(true);
            rewritten = true;
        }
        let vectors = indexes.iter().find(|index| index.columns == ["vector"]);
        let behind = vectors.and_then(|index| index.num_unindexed_rows).unwrap_or(0) as usize;
        if let Some(index) = vectors
            && behind > bounds.unindexed
            && may_go_on(&mut lease).await?
        {
            let options = OptimizeOptions::default().index_names(vec![index.name.clone()]);
            table.optimize(OptimizeAction::Index(options)).await.map_err(failed("update the indexes of"))?;
            rewritten = true;
        }
        let indexed = self.index_words(&indexes, &mut lease).await?;
        let fragments = match table.as_native() {
            Some(native) => native.count_fragments().await.map_err(failed("look at the files of"))?,
            None => 0,
        };
        if fragments > bounds.fragments && may_go_on(&mut lease).await? {
            let options = CompactionOptions { target_rows_per_fragment: FRAGMENT_ROWS, ..CompactionOptions::default() };
            let action = OptimizeAction::Compact { options, remap_options: None };
            table.optimize(action).await.map_err(failed("compact"))?;
            rewritten = true;
        }
        Ok(match (rewritten, indexed) {
            (true, _) => Tidied::Rewritten,
            (false, true) => Tidied::Indexed,
            (false, false) => Tidied::Nothing,
        })
    }

    /// Adds what is new to the indexes of words, where it is more than searches may cut into words themselves; whether it was.
    async fn index_words(&self, indexes: &[IndexConfig], lease: &mut Option<&mut Lease>) -> Result<bool> {
        let mut indexed = false;
        for index in indexes.iter().filter(|index| [TEXT_INDEX, TERM_INDEX].contains(&&*index.name)) {
            let behind = index.num_unindexed_rows.unwrap_or(0) as usize;
            // Terms that no passage has nobody asks for.
            let is_asked = index.name == TEXT_INDEX || behind > UNINDEXED_ROWS || self.collection.has_terms().await?;
            if is_behind(behind) && is_asked && may_go_on(lease).await? {
                self.collection.index_new(&index.name, behind).await?;
                indexed = true;
            }
        }
        Ok(indexed)
    }

    /// As far as [`maintain`](Self::maintain) adds words to their indexes, and no more: for between two commits of one upsert. In object storage
    /// nothing, as that costs requests.
    pub async fn index_new_words(&self) -> Result<()> {
        if self.collection.shared().is_some() {
            return Ok(());
        }
        let indexes = self.collection.table.list_indices().await;
        let indexes = indexes.map_err(self.collection.failed("look at the indexes of"))?;
        if self.index_words(&indexes, &mut None).await? { self.sync().await } else { Ok(()) }
    }

    /// Removes versions that nobody reads any more, once in a while.
    async fn prune_shared(&self, shared: &Shared) -> Result<()> {
        let is_early = locked(&shared.pruned).as_ref().is_some_and(|since| since.elapsed() < shared.bucket.readers());
        if is_early {
            return Ok(());
        }
        self.prune_older(shared).await?;
        *locked(&shared.pruned) = Some(shared.bucket.env().stopwatch());
        Ok(())
    }

    /// Removes versions that were superseded before any question began that may be answered still.
    async fn prune_older(&self, shared: &Shared) -> Result<()> {
        let action = OptimizeAction::Prune {
            older_than: Some(Duration::milliseconds(shared.bucket.readers().as_millis() as i64)),
            // Others may be about to commit theirs; they go after a week.
            delete_unverified: None,
            error_if_tagged_old_versions: None,
        };
        let pruned = self.collection.table.optimize(action).await;
        pruned.map(drop).map_err(self.collection.failed("remove superseded files of"))
    }

    /// Removes the files of superseded versions. The data folder's lock keeps other processes out, the writer's turn
    /// other writers, and `files` the readers: nobody has a transaction open, so even unverified files may go.
    pub async fn prune(&self) -> Result<()> {
        if let Home::Bucket(shared) = &self.collection.home {
            return self.prune_shared(shared).await;
        }
        let _files = self.collection.files.write().await;
        let action = OptimizeAction::Prune {
            older_than: Some(Duration::zero()),
            delete_unverified: Some(true),
            error_if_tagged_old_versions: None,
        };
        let pruned = self.collection.table.optimize(action).await;
        pruned.map_err(self.collection.failed("remove superseded files of"))?;
        self.collection.with_checks(|folder, checks| checks.retain_present(folder, &files(folder)?)).await
    }

    /// Removes what is superseded where there is much of it, and does nothing that takes long.
    pub async fn prune_if_many(&self) -> Result<()> {
        if self.has_many_versions() { self.prune().await } else { Ok(()) }
    }

    /// Rewrites what holds deleted or replaced text, metadata or vectors without them: on return, no file has them. Takes as long as
    /// indexing the collection does.
    pub async fn vacuum(&self, vector_index_rows: usize) -> Result<()> {
        if let Home::Bucket(shared) = &self.collection.home {
            return self.vacuum_shared(shared, vector_index_rows).await;
        }
        self.rewrite(vector_index_rows).await?;
        self.sync().await?;
        self.prune().await?;
        // What was removed does not come back with a power cut.
        self.sync().await
    }

    /// In two calls, as other nodes' questions read the files of before for a while: the first rewrites them, and says that some is left; one that
    /// comes later removes what was superseded.
    async fn vacuum_shared(&self, shared: &Shared, vector_index_rows: usize) -> Result<()> {
        let not_yet = |why: &str| {
            let name = &self.collection.name;
            let message = format!(
                "deleted text of collection `{name}` is still in older versions of its table: {why}; it is tried again"
            );
            Err(Error::new(ErrorKind::Unavailable, message))
        };
        let Some(lease) = lease_of(shared).await? else { return not_yet("another node rewrites it") };
        let vacuumed = async {
            let done = locked(&shared.rewritten).as_ref().map(|(since, removals)| (since.elapsed(), *removals));
            match done {
                Some((age, _)) if age < shared.bucket.readers() => not_yet("questions of other nodes may read them"),
                Some((_, removals)) => {
                    self.prune_older(shared).await?;
                    *locked(&shared.rewritten) = None;
                    if removals == shared.removals() {
                        return Ok(());
                    }
                    self.rewrite_shared(shared, vector_index_rows).await?;
                    not_yet("more was deleted meanwhile")
                }
                None => {
                    self.rewrite_shared(shared, vector_index_rows).await?;
                    not_yet("questions of other nodes may read them")
                }
            }
        };
        let vacuumed = vacuumed.await;
        lease.give_back().await;
        vacuumed
    }

    async fn rewrite_shared(&self, shared: &Shared, vector_index_rows: usize) -> Result<()> {
        let removals = shared.removals();
        shared.refresh().await?;
        self.rewrite(vector_index_rows).await?;
        *locked(&shared.rewritten) = Some((shared.bucket.env().stopwatch(), removals));
        Ok(())
    }

    /// Writes data and indexes anew without what was deleted.
    async fn rewrite(&self, vector_index_rows: usize) -> Result<()> {
        let Collection { table, .. } = self.collection;
        let options = CompactionOptions {
            target_rows_per_fragment: FRAGMENT_ROWS,
            materialize_deletions_threshold: 0.0,
            ..CompactionOptions::default()
        };
        let action = OptimizeAction::Compact { options, remap_options: None };
        table.optimize(action).await.map_err(self.collection.failed("compact"))?;
        // Made anew: rows of a data file that went as a whole are in no compaction, and their words would stay.
        self.collection.create_text_index().await?;
        self.collection.create_term_index().await?;
        let rows = self.collection.rows().await?;
        let indexes = table.list_indices().await.map_err(self.collection.failed("look at the indexes of"))?;
        for index in indexes.iter().filter(|index| index.columns == ["vector"]) {
            if rows >= vector_index_rows {
                self.collection.create_vector_index().await?;
                continue;
            }
            // So few that all are compared again.
            table.drop_index(&index.name).await.map_err(self.collection.failed("drop an index of"))?;
            *locked(&self.collection.vectors_indexed) = Some(false);
        }
        Ok(())
    }
}

/// Whether nobody else has the lease.
async fn may_go_on(lease: &mut Option<&mut Lease>) -> Result<bool> {
    match lease {
        Some(lease) => lease.renew().await,
        None => Ok(true),
    }
}
