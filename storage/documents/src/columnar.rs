//! Data sets in columns: Parquet, and Arrow's IPC format as a file (Feather) or as a stream, which Hugging Face's `datasets` writes. Rows are
//! records, as lines of JSON are; columns of bytes, such as pictures, are left out.

use std::io::Cursor;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_json::ArrayWriter;
use arrow_schema::{ArrowError, DataType, Schema};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::json::{Bad, RecordFields, Records};
use crate::left_out::LeftOut;
use crate::parse::Each;

/// Rows that are in memory as JSON at a time.
const BATCH_ROWS: usize = 64;
/// How an Arrow file begins that is no stream.
const ARROW_FILE: &[u8] = b"ARROW1";
/// How the messages of a stream begin, which is followed by the length of the message's head.
const ARROW_STREAM: [u8; 4] = [0xff; 4];
/// How the first version of Feather begins, which is another format.
const FEATHER_1: &[u8] = b"FEA1";

/// Reads a Parquet file, one document a row; what it returns is wrong with some of them.
///
/// # Errors
/// Where it is none, or what `each` says.
pub fn parquet(bytes: Vec<u8>, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("not readable as Parquet: {error}");
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).map_err(|error| unreadable(&error))?;
    let (kept, left_out) = columns(builder.schema());
    let mask = ProjectionMask::roots(builder.parquet_schema(), kept);
    let reader = builder.with_projection(mask).with_batch_size(BATCH_ROWS).build();
    let reader = reader.map_err(|error| unreadable(&error))?;
    rows(reader, left_out, fields, each)
}

/// As [`parquet`], of Arrow's IPC format.
///
/// # Errors
/// As [`parquet`].
pub fn arrow(bytes: Vec<u8>, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    if bytes.starts_with(FEATHER_1) {
        return Err("the first version of Feather; write it anew by `df.to_feather(path)` of a current pandas".into());
    }
    let unreadable = |error: ArrowError| format!("not readable as Arrow: {error}");
    let is_file = bytes.starts_with(ARROW_FILE);
    // What is no stream would be taken for one with a head of gigabytes.
    if !is_file && !bytes.starts_with(&ARROW_STREAM) {
        return Err("not readable as Arrow: it begins neither as a file nor as a stream of it".into());
    }
    let bytes = Cursor::new(Bytes::from(bytes));
    if is_file {
        let whole = FileReader::try_new(bytes.clone(), None).map_err(unreadable)?;
        let (kept, left_out) = columns(&whole.schema());
        rows(FileReader::try_new(bytes, Some(kept)).map_err(unreadable)?, left_out, fields, each)
    } else {
        let whole = StreamReader::try_new(bytes.clone(), None).map_err(unreadable)?;
        let (kept, left_out) = columns(&whole.schema());
        rows(StreamReader::try_new(bytes, Some(kept)).map_err(unreadable)?, left_out, fields, each)
    }
}

/// The columns that are read, and a word on the others.
fn columns(schema: &Schema) -> (Vec<usize>, Vec<String>) {
    let (others, kept): (Vec<_>, Vec<_>) =
        schema.fields().iter().enumerate().partition(|(_, field)| has_bytes(field.data_type()));
    let others: Vec<String> = others.into_iter().map(|(_, field)| field.name().clone()).collect();
    let mut left_out = LeftOut::default();
    left_out.names("column of bytes", "columns of bytes", &others);
    (kept.into_iter().map(|(at, _)| at).collect(), left_out.into_notes())
}

fn has_bytes(kind: &DataType) -> bool {
    match kind {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_bytes(field.data_type())),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_bytes(item.data_type()),
        DataType::Dictionary(_, value) => has_bytes(value),
        _ => false,
    }
}

/// What cannot be read ends the file; the rows before it are handed out.
fn rows(
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    left_out: Vec<String>,
    fields: &RecordFields,
    each: Each<'_>,
) -> Result<Option<String>, String> {
    let (mut bad, mut records, mut row) = (Bad::default(), Records::of(fields, left_out), 0_u64);
    'batches: for batch in batches {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                bad.end(format!("from row {} on: {error}", row + 1));
                break;
            }
        };
        // A batch of an Arrow file is as long as whoever wrote it wished.
        for from in (0..batch.num_rows()).step_by(BATCH_ROWS) {
            let values = match values(&batch.slice(from, BATCH_ROWS.min(batch.num_rows() - from))) {
                Ok(values) => values,
                Err(error) => {
                    bad.end(format!("from row {} on: {error}", row + 1));
                    break 'batches;
                }
            };
            for value in values {
                row += 1;
                match records.take(value, format!("R{row}")) {
                    Ok(Some(parsed)) => each(parsed)?,
                    Ok(None) => {}
                    Err(why) => bad.note(|| format!("row {row}: {why}")),
                }
            }
        }
    }
    records.finish(&mut bad, each)?;
    Ok(bad.told("rows"))
}

/// Rows as objects, without what is null.
fn values(batch: &RecordBatch) -> Result<Vec<Value>, String> {
    let mut writer = ArrayWriter::new(Vec::new());
    writer.write(batch).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
    serde_json::from_slice(&writer.into_inner()).map_err(|error| error.to_string())
}
