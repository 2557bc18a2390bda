//! Columns of a record batch that grow by one record at a time.

use arrow_array::builder::{BinaryBuilder, Int32Builder, Int64Builder, StringBuilder};
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, StructArray, TimestampMicrosecondArray};
use arrow_buffer::{NullBufferBuilder, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use std::borrow::Cow;
use std::sync::Arc;

/// Spark's timestamps are microseconds in 64 bits, Kafka's milliseconds in 64 bits.
const MOST_MS: i64 = i64::MAX / 1000;

/// A header's name, in which U+FFFD stands for bytes that are not UTF-8, and its value.
pub type Header<'a> = (Cow<'a, str>, Option<&'a [u8]>);

pub struct Record<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// Type as librdkafka numbers it, and time (ms).
    pub timestamp: (i32, i64),
    pub headers: Vec<Header<'a>>,
}

struct Headers {
    names: StringBuilder,
    values: BinaryBuilder,
    ends: Vec<i32>,
    validity: NullBufferBuilder,
}

enum Column {
    Key(BinaryBuilder),
    Value(BinaryBuilder),
    Topic(StringBuilder),
    Partition(Int32Builder),
    Offset(Int64Builder),
    Timestamp(Vec<i64>),
    TimestampType(Int32Builder),
    Headers(Headers),
}

impl Column {
    /// Return the column of this name, with room for this many rows and bytes of values.
    fn new(name: &str, rows: usize, bytes: usize) -> Result<Column, String> {
        Ok(match name {
            "key" => Column::Key(BinaryBuilder::with_capacity(rows, 0)),
            "value" => Column::Value(BinaryBuilder::with_capacity(rows, bytes)),
            "topic" => Column::Topic(StringBuilder::with_capacity(rows, 0)),
            "partition" => Column::Partition(Int32Builder::with_capacity(rows)),
            "offset" => Column::Offset(Int64Builder::with_capacity(rows)),
            "timestamp" => Column::Timestamp(Vec::with_capacity(rows)),
            "timestampType" => Column::TimestampType(Int32Builder::with_capacity(rows)),
            "headers" => Column::Headers(Headers {
                names: StringBuilder::new(),
                values: BinaryBuilder::new(),
                ends: vec![0],
                validity: NullBufferBuilder::new(rows),
            }),
            _ => return Err(format!("There is no column {name}.")),
        })
    }

    /// Return the memory that a record takes in this column (bytes).
    fn size(&self, record: &Record<'_>) -> usize {
        let bytes = |data: Option<&[u8]>| 5 + data.map_or(0, <[u8]>::len);
        match self {
            Column::Key(_) => bytes(record.key),
            Column::Value(_) => bytes(record.value),
            Column::Topic(_) => 4 + record.topic.len(),
            Column::Partition(_) | Column::TimestampType(_) => 4,
            Column::Offset(_) | Column::Timestamp(_) => 8,
            Column::Headers(_) => {
                let sizes = record.headers.iter().map(|(name, value)| 9 + name.len() + bytes(*value));
                5 + sizes.sum::<usize>()
            }
        }
    }

    fn append(&mut self, record: &Record<'_>) {
        match self {
            Column::Key(builder) => builder.append_option(record.key),
            Column::Value(builder) => builder.append_option(record.value),
            Column::Topic(builder) => builder.append_value(record.topic),
            Column::Partition(builder) => builder.append_value(record.partition),
            Column::Offset(builder) => builder.append_value(record.offset),
            Column::Timestamp(times) => {
                times.push(record.timestamp.1.clamp(-MOST_MS, MOST_MS) * 1000);
            }
            // Java's client numbers the types from -1, librdkafka from 0.
            Column::TimestampType(builder) => builder.append_value(record.timestamp.0 - 1),
            Column::Headers(headers) => {
                for (name, value) in &record.headers {
                    headers.names.append_value(name);
                    headers.values.append_option(*value);
                }
                let end = headers.ends[headers.ends.len() - 1];
                headers.ends.push(end + record.headers.len() as i32);
                // A record without headers has null, not an empty list, as with Spark's connector.
                headers.validity.append(!record.headers.is_empty());
            }
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Column::Key(mut bytes) | Column::Value(mut bytes) => Arc::new(bytes.finish()),
            Column::Topic(mut builder) => Arc::new(builder.finish()),
            Column::Partition(mut ints) | Column::TimestampType(mut ints) => Arc::new(ints.finish()),
            Column::Offset(mut builder) => Arc::new(builder.finish()),
            Column::Timestamp(times) => {
                Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC"))
            }
            Column::Headers(headers) => headers.finish(),
        }
    }
}

impl Headers {
    fn finish(mut self) -> ArrayRef {
        let fields = Fields::from(vec![
            Field::new("key", DataType::Utf8, true),
            Field::new("value", DataType::Binary, true),
        ]);
        let arrays: Vec<ArrayRef> =
            vec![Arc::new(self.names.finish()), Arc::new(self.values.finish())];
        let element = Field::new("element", DataType::Struct(fields.clone()), true);
        let ends = OffsetBuffer::new(self.ends.into());
        let pairs = StructArray::new(fields, arrays, None);
        Arc::new(ListArray::new(Arc::new(element), ends, Arc::new(pairs), self.validity.finish()))
    }
}

/// The columns of one batch, and its size so far.
pub struct Columns {
    columns: Vec<Column>,
    pub rows: usize,
    pub bytes: usize,
}

impl Columns {
    /// Return empty columns with room for this many rows and bytes of values.
    pub fn new(names: &[String], rows: usize, bytes: usize) -> Result<Columns, String> {
        let columns = names.iter().map(|name| Column::new(name, rows, bytes));
        Ok(Columns { columns: columns.collect::<Result<_, _>>()?, rows: 0, bytes: 0 })
    }

    /// Append a record unless the batch would grow beyond `most_bytes`; return whether it fits.
    ///
    /// The first record always fits: a larger record is a batch of its own.
    pub fn append(&mut self, record: &Record<'_>, most_bytes: usize) -> bool {
        let size: usize = self.columns.iter().map(|column| column.size(record)).sum();
        if self.rows > 0 && self.bytes + size > most_bytes {
            return false;
        }
        self.columns.iter_mut().for_each(|column| column.append(record));
        self.rows += 1;
        self.bytes += size;
        true
    }

    pub fn finish(self, names: &[String]) -> Result<RecordBatch, String> {
        let arrays: Vec<ArrayRef> = self.columns.into_iter().map(Column::finish).collect();
        let fields = names.iter().zip(&arrays);
        let fields = fields.map(|(name, array)| Field::new(name, array.data_type().clone(), true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), arrays).map_err(|error| error.to_string())
    }
}
