"""Values that a source's own tasks decode: their column, and the handling of malformed values.

Decoding in the tasks that read the records avoids two transfers: raw bytes from Python to the JVM,
and back to a Python worker. Behind a gate, malformed values are reported and rejected, as by
``headrace.decode`` in a handler; without a gate, the option ``mode`` decides.

A repeated batch is read raw, because an isolation cuts the batch by its offsets. The handler's
thread then decodes the batch. Without a handler in the job's thread, the first malformed value
fails the job, because dropping the value would be a silent loss.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructField, StructType

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
    """Decoding of a source's values.

    Attributes:
        columns: Columns of the format.
        mode: Handling of malformed values; None behind a gate, which rejects them.
    """

    form: Format
    columns: StructType
    mode: Mode | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "DecodedValues | None":
        """Parse options with lower-case names; return None if values are not decoded.

        Raises:
            OptionError: An option is wrong, or contradicts another one.
            SetupError: The decoder of the format is not installed.
        """
        text, mode = options.get(OPTION), options.get(MODE)
        if mode is not None and (text is None or "headrace.gate" in options):
            why = "values are not decoded" if text is None else "a gate rejects what does not fit"
            raise OptionError(f"The option {MODE} is {mode!r}, but {why}; leave it out.")
        if text is None:
            return None
        form = format_of(text)
        without = None if "headrace.gate" in options else mode_of(mode or Mode.PERMISSIVE)
        return cls(form, form.columns(None), without)

    def schema(self, of: StructType) -> StructType:
        """Return the columns of a source, with typed values."""
        typed = StructField(_VALUE, nullable(self.columns))
        fields = [typed if column.name == _VALUE else column for column in of.fields]
        if self.mode is Mode.PERMISSIVE:
            fields.append(StructField(CORRUPT, BinaryType()))
        return StructType(fields)

    def task(self, schema: StructType, reports: Reporter | None) -> "ValueTask | None":
        """Return the task for some of these columns; None if no column depends on the value.

        Raises:
            SetupError: Behind a gate, the session has no receiver of reports.
        """
        names = tuple(schema.names)
        if not {_VALUE, CORRUPT} & set(names):
            return None
        if self.mode is None and reports is None:
            raise SetupError(
                "Values are to be decoded by the source of a gate, whose session does not know"
                " Headrace; call headrace.register(spark)."
            )
        kind: Any = schema[_VALUE].dataType if _VALUE in names else self.columns
        return ValueTask(self, names, tuple(kind.names), reports)


@dataclass(frozen=True, slots=True)
class ValueTask:
    """Decoder in the tasks of one read, which is sent to the tasks.

    Attributes:
        names: Columns to return, in their order.
        asked: Names of the fields of values to return.
        reports: Receiver of values that a gate rejects.
    """

    values: DecodedValues
    names: tuple[str, ...]
    asked: tuple[str, ...]
    reports: Reporter | None

    @property
    def stored(self) -> tuple[str, ...]:
        """Columns to read."""
        headers = (HEADERS,) if reads_headers(self.values.form) else ()
        needed = (*(name for name in self.names if name != CORRUPT), _VALUE, *PLACE, *headers)
        return tuple(dict.fromkeys(needed))

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with decoded values and the selected columns."""
        task = DecodeTask(self.values.form, self.values.columns, self.reports, self.asked)
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
                f"{topic}-{partition} at {offset} cannot be decoded, for {reason}; the mode"
                f" {Mode.PERMISSIVE} keeps such a value's bytes in {CORRUPT}."
            )
        if reasons and mode is Mode.DROPMALFORMED:
            batch = batch.filter(fitting(batch, reasons))
        if mode is Mode.PERMISSIVE and CORRUPT in self.names:
            good = fitting(raw, reasons)
            corrupt = pc.if_else(good, pa.scalar(None, pa.binary()), raw.column(_VALUE))
            batch = batch.append_column(CORRUPT, corrupt)
        return batch.select(self.names)
