//! What keeps a table fast and small, and deleted text off the disk.
//!
//! A deletion of LanceDB marks rows; their text, metadata and vectors stay in data files until those are rewritten, in superseded
//! versions until those are removed, and their words in the full-text index until it is made again.

use lancedb::table::{CompactionOptions, Duration, OptimizeAction, OptimizeOptions};

use super::{Collection, Writer};
use crate::Result;
use crate::disk::files;
use crate::folders::versions;
use ragstone_env::lock::locked;

/// Rows that a search may scan beside the full-text and vector indexes before they are added to them: this many, and a
/// 64th of the table, as adding them rewrites much of an index.
const UNINDEXED_ROWS: usize = 256;
const UNINDEXED_SHARE: usize = 64;
/// Every commit makes a fragment; past this many, and one for 512 rows, they are merged. That the bound grows with the
/// table keeps what merging writes in proportion to what was added.
const FRAGMENTS: usize = 16;
const ROWS_PER_FRAGMENT: usize = 512;
/// A fragment of this size is not rewritten any more, which bounds what a small upsert into a large table may cost.
const FRAGMENT_ROWS: usize = 65_536;
/// Every commit makes a version; past this many the superseded ones are removed.
const VERSIONS: usize = 32;

impl Writer<'_> {
    /// Brings the indexes up to date and removes what is superseded, where enough of it has gathered.
    ///
    /// It looks at the table and not at what was done just now, so that it also finishes what a kill cut off.
    pub async fn maintain(&self, vector_index_rows: usize) -> Result<()> {
        let Collection { table, folder, .. } = self.collection;
        let failed = |doing: &str| self.collection.failed(doing);
        let indexes = table.list_indices().await.map_err(failed("look at the indexes of"))?;
        let has = |column: &str| indexes.iter().any(|index| index.columns == [column]);
        let rows = self.collection.rows().await?;
        let mut rewritten = false;
        if !indexes.iter().any(|index| index.name == super::TEXT_INDEX) {
            self.collection.create_text_index().await?;
            rewritten = true;
        }
        if self.collection.can_have_terms() && !indexes.iter().any(|index| index.name == super::TERM_INDEX) {
            self.collection.create_term_index().await?;
            rewritten = true;
        }
        if !has("vector") && rows >= vector_index_rows {
            self.collection.create_vector_index().await?;
            *locked(&self.collection.vectors_indexed) = Some(true);
            rewritten = true;
        }
        let behind = indexes.iter().filter_map(|index| index.num_unindexed_rows).max().unwrap_or(0);
        if behind as usize > UNINDEXED_ROWS + rows / UNINDEXED_SHARE {
            let action = OptimizeAction::Index(OptimizeOptions::default());
            table.optimize(action).await.map_err(failed("update the indexes of"))?;
            rewritten = true;
        }
        let fragments = match table.as_native() {
            Some(native) => native.count_fragments().await.map_err(failed("look at the files of"))?,
            None => 0,
        };
        if fragments > FRAGMENTS + rows / ROWS_PER_FRAGMENT {
            let options = CompactionOptions { target_rows_per_fragment: FRAGMENT_ROWS, ..CompactionOptions::default() };
            let action = OptimizeAction::Compact { options, remap_options: None };
            table.optimize(action).await.map_err(failed("compact"))?;
            rewritten = true;
        }
        if rewritten || versions(folder) > VERSIONS {
            self.sync().await?;
            self.prune().await?;
        }
        Ok(())
    }

    /// Removes the files of superseded versions. The data folder's lock keeps other processes out, the writer's turn
    /// other writers, and `files` the readers: nobody has a transaction open, so even unverified files may go.
    pub async fn prune(&self) -> Result<()> {
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
        if versions(&self.collection.folder) > VERSIONS { self.prune().await } else { Ok(()) }
    }

    /// Rewrites what holds deleted or replaced text, metadata or vectors without them: on return, no file has them. Takes as long as
    /// indexing the collection does.
    pub async fn vacuum(&self, vector_index_rows: usize) -> Result<()> {
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
        self.sync().await?;
        self.prune().await?;
        // What was removed does not come back with a power cut.
        self.sync().await
    }
}
