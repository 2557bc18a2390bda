//! JSON objects into the columns of a flat schema.
//!
//! A value is decoded here if it surely fits the schema. Every other value is null in the result,
//! and its row number is returned: the caller decodes it by its own rules, which give the reason if
//! it does not fit. So results do not depend on this module.

use crate::exchange::{error, from_python, guarded, to_python};
use crate::scan::{unescape, Scanner, Sure, Unsure};
use crate::times::{date, time};
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Float32Array, Float64Array,
    Int16Array, Int32Array, Int64Array, Int8Array, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{NullBuffer, NullBufferBuilder};
use arrow_schema::{Field as ArrowField, Fields};
use pyo3::prelude::*;
use std::sync::Arc;

/// Largest double that rounds to a finite 32-bit float.
const LARGEST_FLOAT: f64 = 3.4028235677973362e38;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Boolean,
    Byte,
    Short,
    Int,
    Long,
    Float,
    Double,
    Date,
    Timestamp,
}

impl Kind {
    /// Return the kind of one of Spark's simple type names.
    fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "string" => Kind::Text,
            "boolean" => Kind::Boolean,
            "tinyint" => Kind::Byte,
            "smallint" => Kind::Short,
            "int" => Kind::Int,
            "bigint" => Kind::Long,
            "float" => Kind::Float,
            "double" => Kind::Double,
            "date" => Kind::Date,
            "timestamp" => Kind::Timestamp,
            _ => return None,
        })
    }

    /// Return the range of a whole number of this kind.
    fn range(self) -> (i64, i64) {
        match self {
            Kind::Byte => (i8::MIN.into(), i8::MAX.into()),
            Kind::Short => (i16::MIN.into(), i16::MAX.into()),
            Kind::Int => (i32::MIN.into(), i32::MAX.into()),
            _ => (i64::MIN, i64::MAX),
        }
    }
}

struct Field {
    name: String,
    kind: Kind,
    is_nullable: bool,
    /// Whether the result has this field's column.
    is_built: bool,
}

/// A field's value in the object that is decoded.
#[derive(Clone, Copy)]
enum Slot {
    Missing,
    Null,
    /// A whole number, a boolean, a date or a time.
    Integer(i64),
    Float(f64),
    /// A part of the object's text, from its begin to before its end.
    Text(usize, usize),
    /// A part of `Decoding::unescaped`.
    Unescaped(usize, usize),
}

/// A column that grows by one row for each object.
enum Column {
    Text(StringBuilder),
    Integers(Vec<i64>, NullBufferBuilder),
    Floats(Vec<f64>, NullBufferBuilder),
}

impl Column {
    fn new(kind: Kind, rows: usize, text_bytes: usize) -> Column {
        match kind {
            Kind::Text => Column::Text(StringBuilder::with_capacity(rows, text_bytes)),
            Kind::Float | Kind::Double => {
                Column::Floats(Vec::with_capacity(rows), NullBufferBuilder::new(rows))
            }
            _ => Column::Integers(Vec::with_capacity(rows), NullBufferBuilder::new(rows)),
        }
    }

    fn append(&mut self, slot: Slot, object: &[u8], unescaped: &[u8]) {
        match self {
            Column::Text(builder) => {
                let bytes = match slot {
                    Slot::Text(begin, end) => &object[begin..end],
                    Slot::Unescaped(begin, end) => &unescaped[begin..end],
                    _ => return builder.append_null(),
                };
                // Sound: `Decoding::read` has checked that the object is UTF-8, a string in it
                // begins and ends beside a quote, and `unescape` writes whole characters.
                builder.append_value(unsafe { std::str::from_utf8_unchecked(bytes) });
            }
            Column::Integers(numbers, validity) => {
                let number = if let Slot::Integer(number) = slot { Some(number) } else { None };
                numbers.push(number.unwrap_or_default());
                validity.append(number.is_some());
            }
            Column::Floats(numbers, validity) => {
                let number = if let Slot::Float(number) = slot { Some(number) } else { None };
                numbers.push(number.unwrap_or_default());
                validity.append(number.is_some());
            }
        }
    }

    fn finish(self, kind: Kind) -> ArrayRef {
        match self {
            Column::Text(mut builder) => Arc::new(builder.finish()),
            Column::Floats(numbers, mut validity) => floats(numbers, kind, validity.finish()),
            Column::Integers(numbers, mut validity) => integers(numbers, kind, validity.finish()),
        }
    }
}

fn floats(numbers: Vec<f64>, kind: Kind, validity: Option<NullBuffer>) -> ArrayRef {
    if kind == Kind::Double {
        return Arc::new(Float64Array::new(numbers.into(), validity));
    }
    let numbers: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
    Arc::new(Float32Array::new(numbers.into(), validity))
}

fn integers(numbers: Vec<i64>, kind: Kind, validity: Option<NullBuffer>) -> ArrayRef {
    // The numbers are within the kind's range, so that `as` loses nothing.
    macro_rules! narrowed {
        ($array:ident, $type:ty) => {{
            let numbers: Vec<$type> = numbers.iter().map(|&number| number as $type).collect();
            Arc::new($array::new(numbers.into(), validity))
        }};
    }
    match kind {
        Kind::Boolean => {
            let booleans: Vec<bool> = numbers.iter().map(|&number| number != 0).collect();
            Arc::new(BooleanArray::new(booleans.into(), validity))
        }
        Kind::Byte => narrowed!(Int8Array, i8),
        Kind::Short => narrowed!(Int16Array, i16),
        Kind::Int => narrowed!(Int32Array, i32),
        Kind::Date => narrowed!(Date32Array, i32),
        Kind::Timestamp => {
            Arc::new(TimestampMicrosecondArray::new(numbers.into(), validity).with_timezone("UTC"))
        }
        _ => Arc::new(Int64Array::new(numbers.into(), validity)),
    }
}

/// The state while the values of an array are decoded.
struct Decoding<'a> {
    fields: &'a [Field],
    slots: Vec<Slot>,
    unescaped: Vec<u8>,
}

impl Decoding<'_> {
    /// Fill the slots from an object's text.
    fn read(&mut self, object: &[u8]) -> Sure<()> {
        std::str::from_utf8(object).map_err(|_| Unsure)?;
        self.clear();
        self.unescaped.clear();
        let mut scanner = Scanner { text: object, at: 0 };
        scanner.expect(b'{')?;
        scanner.skip_space();
        if scanner.peek()? == b'}' {
            scanner.at += 1;
        } else {
            self.read_members(&mut scanner)?;
        }
        scanner.skip_space();
        let is_whole = |(slot, field): (&Slot, &Field)| {
            field.is_nullable || !matches!(slot, Slot::Missing)
        };
        if scanner.at == object.len() && self.slots.iter().zip(self.fields).all(is_whole) {
            Ok(())
        } else {
            Err(Unsure)
        }
    }

    fn clear(&mut self) {
        self.slots.fill(Slot::Missing);
    }

    fn read_members(&mut self, scanner: &mut Scanner<'_>) -> Sure<()> {
        let fields = self.fields;
        let mut next = 0; // members mostly come in the schema's order
        loop {
            let name = scanner.string()?;
            if name.has_escapes {
                return Err(Unsure);
            }
            scanner.expect(b':')?;
            let name = &scanner.text[name.begin..name.end];
            let is_named = |&number: &usize| fields[number].name.as_bytes() == name;
            match (next..fields.len()).chain(0..next).find(is_named) {
                Some(number) => {
                    if !matches!(self.slots[number], Slot::Missing) {
                        return Err(Unsure); // the same name again
                    }
                    self.slots[number] = self.value(scanner, &fields[number])?;
                    next = number + 1;
                }
                None => scanner.skip()?,
            }
            match scanner.next_mark()? {
                b',' => {}
                b'}' => return Ok(()),
                _ => return Err(Unsure),
            }
        }
    }

    fn value(&mut self, scanner: &mut Scanner<'_>, field: &Field) -> Sure<Slot> {
        scanner.skip_space();
        let first = scanner.peek()?;
        if first == b'n' {
            scanner.literal(b"null")?;
            return if field.is_nullable { Ok(Slot::Null) } else { Err(Unsure) };
        }
        match field.kind {
            Kind::Text => self.text(scanner),
            Kind::Boolean if first == b't' => scanner.literal(b"true").map(|()| Slot::Integer(1)),
            Kind::Boolean => scanner.literal(b"false").map(|()| Slot::Integer(0)),
            Kind::Byte | Kind::Short | Kind::Int | Kind::Long => {
                let number = scanner.integer()?;
                let (least, most) = field.kind.range();
                if (least..=most).contains(&number) { Ok(Slot::Integer(number)) } else { Err(Unsure) }
            }
            Kind::Double => scanner.float().map(Slot::Float),
            Kind::Float => match scanner.float()? {
                number if number.abs() <= LARGEST_FLOAT => Ok(Slot::Float(number)),
                _ => Err(Unsure),
            },
            Kind::Date | Kind::Timestamp => {
                let quoted = scanner.string()?;
                let text = &scanner.text[quoted.begin..quoted.end]; // an escape is no digit
                let number = if field.kind == Kind::Date { date(text)? } else { time(text)? };
                Ok(Slot::Integer(number))
            }
        }
    }

    fn text(&mut self, scanner: &mut Scanner<'_>) -> Sure<Slot> {
        let quoted = scanner.string()?;
        if !quoted.has_escapes {
            return Ok(Slot::Text(quoted.begin, quoted.end));
        }
        let begin = self.unescaped.len();
        unescape(&scanner.text[quoted.begin..quoted.end], &mut self.unescaped)?;
        Ok(Slot::Unescaped(begin, self.unescaped.len()))
    }
}

/// Decodes JSON objects into structs of a flat schema.
///
/// Args:
///     fields: For each field its name, its type as Spark's simple text, whether it may be null or
///         absent, and whether the structs have it.
#[pyclass(frozen)]
pub struct JsonColumns {
    fields: Vec<Field>,
}

impl JsonColumns {
    fn structs(&self, values: &BinaryArray) -> Result<(StructArray, Vec<usize>), String> {
        let rows = values.len();
        let text_bytes = values.value_data().len() / 4;
        let new_column = |field: &Field| Column::new(field.kind, rows, text_bytes);
        let mut columns: Vec<Option<Column>> =
            self.fields.iter().map(|field| field.is_built.then(|| new_column(field))).collect();
        let slots = vec![Slot::Missing; self.fields.len()];
        let mut decoding = Decoding { fields: &self.fields, slots, unescaped: Vec::new() };
        let mut validity = NullBufferBuilder::new(rows);
        let mut unsure = Vec::new();
        for row in 0..rows {
            let object = if values.is_valid(row) { values.value(row) } else { &[] };
            let fits = values.is_valid(row) && decoding.read(object).is_ok();
            if !fits {
                decoding.clear();
                if values.is_valid(row) {
                    unsure.push(row);
                }
            }
            validity.append(fits);
            for (column, &slot) in columns.iter_mut().zip(&decoding.slots) {
                if let Some(column) = column {
                    column.append(slot, object, &decoding.unescaped);
                }
            }
        }
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (field, column) in self.fields.iter().zip(columns) {
            if let Some(column) = column {
                let array = column.finish(field.kind);
                fields.push(ArrowField::new(&field.name, array.data_type().clone(), true));
                arrays.push(array);
            }
        }
        StructArray::try_new_with_length(Fields::from(fields), arrays, validity.finish(), rows)
            .map(|structs| (structs, unsure))
            .map_err(|error| error.to_string())
    }
}

#[pymethods]
impl JsonColumns {
    #[new]
    fn new(fields: Vec<(String, String, bool, bool)>) -> PyResult<Self> {
        let field = |(name, kind, is_nullable, is_built): (String, String, bool, bool)| {
            match Kind::of(&kind) {
                Some(kind) => Ok(Field { name, kind, is_nullable, is_built }),
                None => Err(error(format!("The field {name} is of {kind}, which is not flat."))),
            }
        };
        Ok(JsonColumns { fields: fields.into_iter().map(field).collect::<PyResult<_>>()? })
    }

    /// Return a struct for each value, and the numbers of the rows that the caller must decode.
    ///
    /// The struct is null in these rows, and where the value is null.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Vec<usize>)> {
        let values = from_python(values)?;
        let Some(values) = values.as_binary_opt::<i32>() else {
            return Err(error(format!("The values are {}, not binary.", values.data_type())));
        };
        let (structs, unsure) = py.detach(|| guarded("it decoded JSON", || self.structs(values))).map_err(error)?;
        Ok((to_python(py, "Array", &structs)?, unsure))
    }
}
