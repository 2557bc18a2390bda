"""Decoding of values in a source's own tasks: the column of values, and malformed values.

Decoding in the tasks that read the records avoids two transfers: raw bytes from Python to the JVM,
and back to a Python worker. Behind a gate, malformed values are reported and rejected, as by
``headrace.decode`` in a handler; without a gate, the option ``mode`` decides.

A batch that runs again is read as raw bytes, because an isolation splits the batch by offsets. The
handler's thread then decodes the values. If a job is started by a thread without a handler, the
first malformed value fails the job, because dropping the value would be a silent loss.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructField, StructType

from headrace.core.native import Engine, engine_of
from headrace.decoding import (
    HEADERS,
    MODE,
    OPTION,
    PLACE,
    DecodeTask,
    Format,
    Mode,
    Reporter,
    fitting,
    format_of,
    mode_of,
    nullable,
    places_of,
    reads_headers,
)
from headrace.errors import DecodeError, OptionError, SetupError

CORRUPT: Final = "_corrupt_record"
"""Name of the column with the bytes of a malformed value, in mode PERMISSIVE."""

_VALUE: Final = "value"


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Format of a source's values, and what happens to malformed values.

    Attributes:
        columns: Fields of a decoded value, from the format's schema.
        mode: Handling of malformed values; None behind a gate, which rejects them.
        engine: Engine that decodes JSON.
    """

    form: Format
    columns: StructType
    mode: Mode | None
    engine: Engine = Engine.NATIVE

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "DecodedValues | None":
        """Parse the decoding options (lower-case names); return None if values stay raw bytes.

        Raises:
            OptionError: An option is wrong, or contradicts another one.
            SetupError: The decoder of the format is not installed.
        """
        engine = engine_of(options)
        text, mode = options.get(OPTION), options.get(MODE)
        if mode is not None and (text is None or "headrace.gate" in options):
            why = "values are not decoded" if text is None else "a gate rejects what does not fit"
            raise OptionError(f"The option {MODE} is {mode!r}, but {why}; leave it out.")
        if text is None:
            return None
        form = format_of(text)
        without = None if "headrace.gate" in options else mode_of(mode or Mode.PERMISSIVE)
        return cls(form, form.columns(None), without, engine)

    def schema(self, of: StructType) -> StructType:
        """Return a source's columns with decoded values. PERMISSIVE adds the column `CORRUPT`."""
        typed = StructField(_VALUE, nullable(self.columns))
        fields = [typed if column.name == _VALUE else column for column in of.fields]
        if self.mode is Mode.PERMISSIVE:
            fields.append(StructField(CORRUPT, BinaryType()))
        return StructType(fields)

    def task(self, schema: StructType, reports: Reporter | None) -> "ValueTask | None":
        """Return the decoder for a read of these columns; None if no column needs the value.

        Raises:
            SetupError: The source is behind a gate, but the session has no receiver of reports.
        """
        names = tuple(schema.names)
        if not {_VALUE, CORRUPT} & set(names):
            return None
        if self.mode is None and reports is None:
            raise SetupError(
                "The source of a gate is to decode values, but its Spark session is not"
                " registered; call headrace.register(spark)."
            )
        kind: Any = schema[_VALUE].dataType if _VALUE in names else self.columns
        return ValueTask(self, names, tuple(kind.names), reports)


@dataclass(frozen=True, slots=True)
class ValueTask:
    """Decoder for one read. Spark sends it to the tasks.

    Attributes:
        names: Columns that the read returns, in order.
        asked: Names of the fields that the read returns from each value.
        reports: Receiver of reports on malformed values, which a gate rejects; None without a gate.
    """

    values: DecodedValues
    names: tuple[str, ...]
    asked: tuple[str, ...]
    reports: Reporter | None

    @property
    def stored(self) -> tuple[str, ...]:
        """Columns that must be read from the source, before decoding."""
        headers = (HEADERS,) if reads_headers(self.values.form) else ()
        needed = (*(name for name in self.names if name != CORRUPT), _VALUE, *PLACE, *headers)
        return tuple(dict.fromkeys(needed))

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the values of record batches. Yield each batch with the selected columns."""
        values = self.values
        task = DecodeTask(values.form, values.columns, self.reports, self.asked, values.engine)
        if self.values.mode is None:
            for batch in task(batches):
                yield batch.select(self.names)
            return
        for raw in batches:
            batch, reasons = task.decoded(raw)
            yield self._by_mode(batch, raw, reasons)

    def _by_mode(
        self, batch: pa.RecordBatch, raw: pa.RecordBatch, reasons: dict[int, str]
    ) -> pa.RecordBatch:
        mode = self.values.mode
        if reasons and mode is Mode.FAILFAST:
            topic, partition, offset, reason = places_of(raw, reasons)[0]
            raise DecodeError(
                f"The value of {topic}-{partition} at offset {offset} cannot be decoded: {reason};"
                f" the mode {Mode.PERMISSIVE} keeps the bytes of such a value in {CORRUPT}."
            )
        if reasons and mode is Mode.DROPMALFORMED:
            batch = batch.filter(fitting(batch, reasons))
        if mode is Mode.PERMISSIVE and CORRUPT in self.names:
            good = fitting(raw, reasons)
            corrupt = pc.if_else(good, pa.scalar(None, pa.binary()), raw.column(_VALUE))
            batch = batch.append_column(CORRUPT, corrupt)
        return batch.select(self.names)
