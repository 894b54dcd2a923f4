//! The rows of a collection's table, format 1.
//!
//! ```text
//! document_id  utf8            who the document is
//! version      utf8            hash of the document's content; all rows of a document have the same
//! ordinal      uint32          the passage's place in the document, 0..passages
//! passages     uint32          how many the document has
//! id           utf8            hash of the passage's title and text
//! title        utf8            the document's title
//! content      utf8            title, blank line, passage (without a title: the passage); embedded and full-text indexed
//! source       utf8, nullable  where the document came from
//! metadata     utf8            a JSON object
//! page         uint32, nullable  the page that the passage begins on; tables of earlier versions have no such column
//! generation   uint64, nullable  in object storage alone: when its document was claimed; of two copies the later one counts
//! tokenizer    utf8            whose ids `token_ids` are
//! token_ids    list<uint32>    the passage as it stands in a prompt
//! vector       float32[d]      embedding of `content`, unit length
//! terms        utf8, nullable  words that the text index does not have, see `scripts.rs`; null where there are none; tables of earlier versions have no such
//!                              column
//! ```
//! The schema's metadata names the format (`ragstone.format`) and the embedding model (`ragstone.embedding`).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, ListBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::{Metadata, Passage, scripts};
use crate::{Error, ErrorKind, Result};

/// The only format so far.
pub(super) const FORMAT: &str = "1";
pub(super) const FORMAT_KEY: &str = "ragstone.format";
pub(super) const EMBEDDING_KEY: &str = "ragstone.embedding";

/// LanceDB's own column of row numbers.
const ROW: &str = "_rowid";

/// Everything of a passage but its vector and version.
pub(super) const PASSAGE_COLUMNS: [&str; 10] =
    ["document_id", "ordinal", "id", "title", "content", "source", "page", "metadata", "tokenizer", "generation"];

/// The columns that a table may lack: it is of an earlier version, and gets them when it is opened.
pub(super) fn added_later() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("page", DataType::UInt32, true), Field::new("terms", DataType::Utf8, true)]))
}

/// The schema of the column of terms alone.
pub(super) fn terms_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("terms", DataType::Utf8, true)]))
}

/// The column of terms of a batch that has the column `content`.
pub(super) fn terms_of(batch: &RecordBatch) -> Result<RecordBatch> {
    let terms = strings(batch, "content")?.iter().map(|content| content.and_then(scripts::stored));
    let terms: ArrayRef = Arc::new(terms.collect::<StringArray>());
    RecordBatch::try_new(terms_schema(), vec![terms])
        .map_err(|error| Error::new(ErrorKind::Internal, "terms do not fit their column").with_source(error))
}

/// LanceDB's numbers of a batch's rows, where they were asked for.
pub(super) fn row_numbers(batch: &RecordBatch) -> Option<&UInt64Array> {
    batch.column_by_name(ROW)?.as_primitive_opt::<UInt64Type>()
}

/// One row to write.
pub(super) struct Row {
    pub passage: Passage,
    pub version: String,
    pub passages: u32,
    pub tokenizer: String,
    pub vector: Vec<f32>,
    /// When its document was claimed, in object storage.
    pub generation: u64,
}

/// One passage read, and the tokenizer whose ids it has.
#[derive(Clone)]
pub(super) struct StoredPassage {
    pub passage: Passage,
    pub tokenizer: String,
    /// LanceDB's number of its row, where that was asked for: a row that was written earlier has a smaller one. 0 where it was not.
    pub row: u64,
    /// When its document was claimed; 0 in a folder.
    pub generation: u64,
}

impl StoredPassage {
    /// Whether its title and text are what they were when it was stored: its id is their hash.
    pub fn is_intact(&self) -> bool {
        self.passage.id == super::document::passage_id(&self.passage.title, &self.passage.text)
    }

    /// As [`is_intact`](Self::is_intact).
    ///
    /// # Errors
    /// `Corrupt`, which names the document.
    pub fn check(&self) -> Result<()> {
        if self.is_intact() {
            return Ok(());
        }
        let Passage { document_id, ordinal, collection, .. } = &self.passage;
        let message = format!(
            "passage {ordinal} of document `{document_id}` of collection `{collection}` is damaged: it is not what was stored; add the \
             document again, with one changed word, or put the collection's files back from a backup"
        );
        Err(Error::new(ErrorKind::Corrupt, message))
    }
}

/// What ranks a passage: all that a search reads of a candidate. Of the hits alone the rest is read.
#[derive(Debug, PartialEq)]
pub(super) struct Brief {
    pub document_id: String,
    pub ordinal: u32,
    pub title: String,
    pub text: String,
    /// As [`StoredPassage::row`].
    pub row: u64,
}

/// The columns of a [`Brief`].
pub(super) const BRIEF_COLUMNS: [&str; 4] = ["document_id", "ordinal", "title", "content"];

impl Brief {
    /// What is embedded and searched of it.
    pub fn content(&self) -> String {
        content(&self.title, &self.text)
    }

    /// A batch that has [`BRIEF_COLUMNS`], of rows of these numbers.
    pub fn decode(batch: &RecordBatch, rows: impl IntoIterator<Item = u64>) -> Result<Vec<Self>> {
        let (documents, ordinals) = (strings(batch, "document_id")?, numbers(batch, "ordinal")?);
        let (titles, contents) = (strings(batch, "title")?, strings(batch, "content")?);
        let brief = |(at, row)| Self {
            document_id: documents.value(at).to_owned(),
            ordinal: ordinals.value(at),
            title: titles.value(at).to_owned(),
            text: text_of(titles.value(at), contents.value(at)),
            row,
        };
        Ok((0..batch.num_rows()).zip(rows).map(brief).collect())
    }
}

/// The schema of a new table; one that nodes share says when a document was claimed.
pub(super) fn table_schema(dimension: usize, embedding: &str, is_shared: bool) -> SchemaRef {
    let text = |name| Field::new(name, DataType::Utf8, false);
    let number = |name| Field::new(name, DataType::UInt32, false);
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let mut fields = vec![
        text("document_id"),
        text("version"),
        number("ordinal"),
        number("passages"),
        text("id"),
        text("title"),
        text("content"),
        Field::new("source", DataType::Utf8, true),
        text("metadata"),
        text("tokenizer"),
        Field::new("token_ids", DataType::List(item(DataType::UInt32)), false),
        Field::new("vector", DataType::FixedSizeList(item(DataType::Float32), dimension as i32), false),
        // Last, as where it was added.
        Field::new("page", DataType::UInt32, true),
        Field::new("terms", DataType::Utf8, true),
    ];
    if is_shared {
        fields.push(Field::new("generation", DataType::UInt64, true));
    }
    let metadata =
        HashMap::from([(FORMAT_KEY.to_owned(), FORMAT.to_owned()), (EMBEDDING_KEY.to_owned(), embedding.to_owned())]);
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// The text that is embedded and searched: a passage without its document's title is often about nobody.
pub(super) fn content(title: &str, text: &str) -> String {
    if title.is_empty() { text.to_owned() } else { format!("{title}\n\n{text}") }
}

/// The inverse of [`content`].
fn text_of(title: &str, content: &str) -> String {
    let text = if title.is_empty() {
        Some(content)
    } else {
        content.strip_prefix(title).and_then(|rest| rest.strip_prefix("\n\n"))
    };
    text.unwrap_or(content).to_owned()
}

/// Rows as a batch of `schema`.
pub(super) fn encode(rows: &[Row], schema: &SchemaRef, dimension: usize) -> Result<RecordBatch> {
    let strings =
        |of: &dyn Fn(&Row) -> String| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(of))) };
    let numbers =
        |of: &dyn Fn(&Row) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(of))) };
    let mut token_ids = ListBuilder::new(UInt32Builder::new());
    let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), dimension as i32);
    for row in rows {
        token_ids.values().append_slice(&row.passage.token_ids);
        token_ids.append(true);
        if row.vector.len() != dimension {
            let message = format!("the embedding model gave {} numbers, not {dimension}", row.vector.len());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        vectors.values().append_slice(&row.vector);
        vectors.append(true);
    }
    let (token_ids, vectors): (ArrayRef, ArrayRef) = (Arc::new(token_ids.finish()), Arc::new(vectors.finish()));
    let contents = || rows.iter().map(|row| content(&row.passage.title, &row.passage.text));
    // By name: what was added to a table later stands where it was added, and some lack it.
    let column = |field: &Arc<Field>| -> Option<ArrayRef> {
        Some(match field.name().as_str() {
            "document_id" => strings(&|row| row.passage.document_id.clone()),
            "version" => strings(&|row| row.version.clone()),
            "ordinal" => numbers(&|row| row.passage.ordinal),
            "passages" => numbers(&|row| row.passages),
            "id" => strings(&|row| row.passage.id.clone()),
            "title" => strings(&|row| row.passage.title.clone()),
            "content" => Arc::new(StringArray::from_iter_values(contents())),
            "source" => Arc::new(rows.iter().map(|row| row.passage.source.clone()).collect::<StringArray>()),
            "metadata" => Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.passage.metadata.json()))),
            "tokenizer" => strings(&|row| row.tokenizer.clone()),
            "token_ids" => token_ids.clone(),
            "vector" => vectors.clone(),
            "page" => Arc::new(rows.iter().map(|row| row.passage.page).collect::<UInt32Array>()),
            "generation" => Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.generation))),
            "terms" => Arc::new(contents().map(|content| scripts::stored(&content)).collect::<StringArray>()),
            _ => return None,
        })
    };
    let columns = schema.fields().iter().map(|field| {
        column(field).ok_or_else(|| {
            Error::new(
                ErrorKind::Incompatible,
                format!("a table has the column `{}`, which this version does not know", field.name()),
            )
        })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|error| Error::new(ErrorKind::Internal, "passages do not fit their table").with_source(error))
}

/// The passages of a batch that has [`PASSAGE_COLUMNS`] and `token_ids`.
pub(super) fn decode(batch: &RecordBatch, collection: &str) -> Result<Vec<StoredPassage>> {
    let (documents, ordinals) = (strings(batch, "document_id")?, numbers(batch, "ordinal")?);
    let (ids, titles, contents) = (strings(batch, "id")?, strings(batch, "title")?, strings(batch, "content")?);
    let sources = strings(batch, "source")?;
    // A table that could not be given it has none.
    let pages = batch.column_by_name("page").and_then(|column| column.as_primitive_opt::<UInt32Type>());
    let metadata = strings(batch, "metadata")?;
    let tokenizers = strings(batch, "tokenizer")?;
    let token_ids = token_ids(batch)?;
    let rows = row_numbers(batch);
    let generations = generations(batch);
    let mut passages: Vec<StoredPassage> = Vec::with_capacity(batch.num_rows());
    for (row, token_ids) in token_ids.into_iter().enumerate() {
        let title = titles.value(row).to_owned();
        // Rows of a document stand together, and have the same.
        let json = metadata.value(row);
        let before = passages.last().map(|before| &before.passage.metadata);
        let metadata = match before.filter(|before| before.json() == json) {
            Some(same) => same.clone(),
            None => Metadata::stored(json),
        };
        passages.push(StoredPassage {
            passage: Passage {
                id: ids.value(row).to_owned(),
                document_id: documents.value(row).to_owned(),
                collection: collection.to_owned(),
                ordinal: ordinals.value(row),
                text: text_of(&title, contents.value(row)),
                title,
                source: optional(sources, row),
                page: pages.filter(|pages| !pages.is_null(row)).map(|pages| pages.value(row)),
                token_ids,
                metadata,
            },
            tokenizer: tokenizers.value(row).to_owned(),
            row: rows.map_or(0, |rows| rows.value(row)),
            generation: generations.map_or(0, |generations| generations.value(row)),
        });
    }
    Ok(passages)
}

/// The column `generation`, which tables in a folder have not.
pub(super) fn generations(batch: &RecordBatch) -> Option<&UInt64Array> {
    batch.column_by_name("generation")?.as_primitive_opt::<UInt64Type>()
}

/// The column `token_ids`, row by row.
pub(super) fn token_ids(batch: &RecordBatch) -> Result<Vec<Arc<[u32]>>> {
    let lists = column(batch, "token_ids")?.as_list_opt::<i32>().ok_or_else(|| wrong_type("token_ids"))?;
    let row = |row| {
        let ids = lists.value(row);
        let ids = ids.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong_type("token_ids"))?;
        Ok(ids.values().iter().copied().collect())
    };
    (0..batch.num_rows()).map(row).collect()
}

/// The column `vector`, row by row.
pub(super) fn vectors(batch: &RecordBatch) -> Result<Vec<Vec<f32>>> {
    let lists = column(batch, "vector")?.as_fixed_size_list_opt().ok_or_else(|| wrong_type("vector"))?;
    let row = |row| {
        let numbers = lists.value(row);
        let numbers = numbers.as_primitive_opt::<Float32Type>().ok_or_else(|| wrong_type("vector"))?;
        Ok(numbers.values().to_vec())
    };
    (0..batch.num_rows()).map(row).collect()
}

/// A column of strings, nulls included.
pub(super) fn strings<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    column(batch, name)?.as_string_opt::<i32>().ok_or_else(|| wrong_type(name))
}

/// A column of `uint32`.
pub(super) fn numbers<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a UInt32Array> {
    column(batch, name)?.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong_type(name))
}

/// A column of scores.
pub(super) fn scores(batch: &RecordBatch, name: &str) -> Result<Vec<f32>> {
    let array = column(batch, name)?.as_primitive_opt::<Float32Type>();
    Ok(array.ok_or_else(|| wrong_type(name))?.values().to_vec())
}

pub(super) fn optional(array: &StringArray, row: usize) -> Option<String> {
    (!array.is_null(row)).then(|| array.value(row).to_owned())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| {
        Error::new(ErrorKind::Incompatible, format!("the corpus has no column `{name}`: it is not of format {FORMAT}"))
    })
}

fn wrong_type(name: &str) -> Error {
    let message = format!("the corpus's column `{name}` has another type than format {FORMAT} says");
    Error::new(ErrorKind::Incompatible, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(title: &str, text: &str, source: Option<&str>) -> Row {
        let metadata = Metadata::stored(r#"{"page":3}"#);
        Row {
            passage: Passage {
                id: "0f".into(),
                document_id: "d'1".into(),
                collection: "c".into(),
                ordinal: 2,
                title: title.into(),
                text: text.into(),
                source: source.map(str::to_owned),
                page: source.map(|_| 3),
                token_ids: [7_u32, 8, 9].into(),
                metadata,
            },
            version: "v".into(),
            passages: 3,
            tokenizer: "t".into(),
            vector: vec![0.6, 0.8],
            generation: 0,
        }
    }

    #[test]
    fn rows_come_back_as_they_went() {
        let schema = table_schema(2, "model", false);
        let rows = [row("", "no title", None), row("Title", "Title\n\nof itself", Some("/a b"))];
        let read = decode(&encode(&rows, &schema, 2).unwrap(), "c").unwrap();
        assert_eq!(read.len(), 2);
        for (row, read) in rows.iter().zip(&read) {
            assert_eq!(row.passage, read.passage);
            assert_eq!(row.tokenizer, read.tokenizer);
        }
    }

    #[test]
    fn a_vector_of_another_length_is_refused() {
        let error = encode(&[row("", "x", None)], &table_schema(3, "model", false), 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}
