//! A table's indexes of words and of vectors.

use lancedb::DistanceType;
use lancedb::index::{Index, scalar::FtsIndexBuilder, vector::IvfFlatIndexBuilder};

use futures::TryStreamExt;
use lance::index::DatasetIndexExt;
use lancedb::datafusion::error::DataFusionError;
use lancedb::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use lancedb::query::{QueryBase, Select};
use lancedb::table::NewColumnTransform;
use ragstone_env::lock::locked;

use super::Collection;
use crate::disk::failed;
use crate::schema::{terms_of, terms_schema};
use crate::{Error, ErrorKind, Result};

/// Passages in a cell of the vector index, about.
const CELL_ROWS: u32 = 1024;
/// The name of the index of its words. Another one stands for another way to cut texts into words, and is built anew.
pub(in super::super) const TEXT_INDEX: &str = "words_2";
/// The name of the index of its terms, as `scripts.rs` finds them. Another one stands for another way to find them: all are written anew.
pub(in super::super) const TERM_INDEX: &str = "terms_1";
/// Longer words are not indexed: hashes and names of code are, encoded pictures are not.
const MOST_WORD_BYTES: usize = 160;

impl Collection {
    pub(in super::super) async fn create_text_index(&self) -> Result<()> {
        let job = self.table.create_index(&["content"], Index::FTS(text_index())).name(TEXT_INDEX.to_owned());
        job.execute().await.map_err(self.failed("index the words of"))?;
        // Of an earlier version: it was asked until now.
        for older in self.text_indexes().await?.iter().filter(|name| *name != TEXT_INDEX) {
            self.table.drop_index(older).await.map_err(self.failed("drop an index of"))?;
        }
        Ok(())
    }

    /// Indexes the terms of scripts without blanks. A table whose terms another version found, or none, gets them first. For whoever has the turn
    /// to write.
    pub(in super::super) async fn create_term_index(&self) -> Result<()> {
        if !self.can_have_terms() {
            return Ok(());
        }
        // Nodes share only tables that had the column from the first: it is never away while another node writes.
        let is_old = self.shared().is_none() && !self.indexes_of("terms").await?.iter().any(|name| name == TERM_INDEX);
        if is_old && self.rows().await? > 0 {
            self.find_terms().await?;
        }
        let job = self.table.create_index(&["terms"], Index::FTS(term_index())).name(TERM_INDEX.to_owned());
        job.execute().await.map_err(self.failed("index the terms of"))?;
        self.forget_terms();
        Ok(())
    }

    /// Writes the column of terms anew. It is there all the time but for a moment, in which a kill leaves a table of an earlier version.
    async fn find_terms(&self) -> Result<()> {
        let failed = || self.failed("find the terms of");
        let contents = self.stream(self.table.query().select(Select::columns(&["content"]))).await?;
        let terms = contents.map_err(outside).and_then(async |batch| terms_of(&batch).map_err(outside));
        let terms = Box::pin(RecordBatchStreamAdapter::new(terms_schema(), terms));
        self.table.drop_columns(&["terms"]).await.map_err(failed())?;
        let adding = self.table.add_columns().transform(NewColumnTransform::Stream(terms)).execute();
        adding.await.map(drop).map_err(failed())
    }

    /// Whether there is a column for them: a table of an earlier version has none where it could not be written into.
    pub(in super::super) fn can_have_terms(&self) -> bool {
        self.schema.field_with_name("terms").is_ok()
    }

    /// Whether some passage has terms, and they are indexed.
    pub(in super::super) async fn has_terms(&self) -> Result<bool> {
        if let Some(known) = *locked(&self.terms_indexed) {
            return Ok(known);
        }
        let before = self.commits();
        let is_indexed = self.indexes_of("terms").await?.iter().any(|name| name == TERM_INDEX);
        let has = is_indexed && self.has_some_terms().await?;
        // Where somebody wrote meanwhile, or another node may, the next one looks again.
        let is_still_so = before.is_multiple_of(2) && self.commits() == before && self.shared().is_none();
        if has || is_still_so {
            *locked(&self.terms_indexed) = Some(has);
        }
        Ok(has)
    }

    /// Stops at the first, and reads little where there is none: an empty column is hardly stored.
    async fn has_some_terms(&self) -> Result<bool> {
        let some = self.table.query().only_if("terms IS NOT NULL").select(Select::columns(&["ordinal"])).limit(1);
        Ok(self.run(some).await?.iter().any(|batch| batch.num_rows() > 0))
    }

    /// They were indexed.
    fn forget_terms(&self) {
        *locked(&self.terms_indexed) = None;
    }

    /// Some were written. Where there were others, nothing changes.
    pub(super) fn note_terms(&self) {
        let mut known = locked(&self.terms_indexed);
        *known = known.filter(|has| *has);
    }

    /// Names of the indexes of its words: [`TEXT_INDEX`] if it is of this version.
    pub(in super::super) async fn text_indexes(&self) -> Result<Vec<String>> {
        self.indexes_of("content").await
    }

    /// Whether all words are indexed as this version does it.
    pub(in super::super) async fn has_own_word_indexes(&self) -> Result<bool> {
        let has_terms = !self.can_have_terms() || self.indexes_of("terms").await?.iter().any(|name| name == TERM_INDEX);
        Ok(has_terms && self.text_indexes().await?.iter().all(|name| name == TEXT_INDEX))
    }

    async fn indexes_of(&self, column: &str) -> Result<Vec<String>> {
        let indexes = self.table.list_indices().await.map_err(self.failed("look at the indexes of"))?;
        Ok(indexes.into_iter().filter(|index| index.columns == [column]).map(|index| index.name).collect())
    }

    /// Whether its vectors are indexed: only then does a search look at some of them before others.
    pub(in super::super) async fn has_vector_index(&self) -> Result<bool> {
        if self.shared().is_some() {
            return self.has_vector_index_now().await;
        }
        if let Some(known) = *locked(&self.vectors_indexed) {
            return Ok(known);
        }
        let is_indexed = !self.indexes_of("vector").await?.is_empty();
        // Whoever made one meanwhile knows better.
        Ok(*locked(&self.vectors_indexed).get_or_insert(is_indexed))
    }

    /// As the version says that this node reads: another node may just have indexed them, or dropped the index. LanceDB keeps the list of a version's
    /// indexes in memory.
    async fn has_vector_index_now(&self) -> Result<bool> {
        let failed = || failed(format!("look at the indexes of collection `{}`", self.name));
        let Some(dataset) = self.table.dataset() else {
            return Err(Error::new(ErrorKind::Internal, "a table of ours is none of LanceDB's own"));
        };
        let dataset = dataset.get().await.map_err(failed())?;
        let Some(field) = dataset.schema().field("vector").map(|field| field.id) else { return Ok(false) };
        let indexes = dataset.load_indices().await.map_err(|error| failed()(error.into()))?;
        Ok(indexes.iter().any(|index| index.fields == [field]))
    }

    /// Full vectors in cells: no quantisation, so that whatever cell is searched gives exact similarities.
    pub(in super::super) async fn create_vector_index(&self) -> Result<()> {
        let index = Index::IvfFlat(
            IvfFlatIndexBuilder::default().distance_type(DistanceType::Cosine).target_partition_size(CELL_ROWS),
        );
        let job = self.table.create_index(&["vector"], index);
        job.execute().await.map(drop).map_err(self.failed("index the vectors of"))
    }
}

/// English stemming and stop words, folded accents; other languages are matched by their words as they stand.
pub(in super::super) fn text_index() -> FtsIndexBuilder {
    FtsIndexBuilder::default().max_token_length(Some(MOST_WORD_BYTES))
}

/// Terms as they stand: they were found, and made alike, before.
pub(in super::super) fn term_index() -> FtsIndexBuilder {
    let whole =
        FtsIndexBuilder::default().base_tokenizer("whitespace".to_owned()).max_token_length(Some(MOST_WORD_BYTES));
    whole.stem(false).remove_stop_words(false).ascii_folding(false).lower_case(false)
}

fn outside(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
