//! A table's indexes of words and of vectors.

use lancedb::DistanceType;
use lancedb::index::{Index, scalar::FtsIndexBuilder, vector::IvfFlatIndexBuilder};

use super::Collection;
use crate::Result;

/// Passages in a cell of the vector index, about.
const CELL_ROWS: u32 = 1024;
/// The name of the index of its words. Another one stands for another way to cut texts into words, and is built anew.
pub(in super::super) const TEXT_INDEX: &str = "words_2";
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

    /// Names of the indexes of its words: [`TEXT_INDEX`] if it is of this version.
    pub(in super::super) async fn text_indexes(&self) -> Result<Vec<String>> {
        let indexes = self.table.list_indices().await.map_err(self.failed("look at the indexes of"))?;
        Ok(indexes.into_iter().filter(|index| index.columns == ["content"]).map(|index| index.name).collect())
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
