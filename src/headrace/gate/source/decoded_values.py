"""Values that a source's own tasks decode: their column, and what becomes of other values.

Raw bytes do not reach the JVM then. Behind a gate, what does not fit is reported and rejected, as
by ``headrace.decode`` in a handler; without one, the option ``mode`` says what becomes of it.
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
"""The column with the bytes of a value that does not fit, in mode PERMISSIVE."""

_VALUE: Final = "value"


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """How values are decoded.

    Attributes:
        columns: the format's.
        mode: None behind a gate, which rejects what does not fit.
    """

    form: Format
    columns: StructType
    mode: Mode | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "DecodedValues | None":
        """Read the options by their names in lower case; None where values stay as they are.

        Raises:
            OptionError: one is wrong, or contradicts another.
            SetupError: what decodes the format is not installed.
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
        """The columns of a source, with typed values."""
        typed = StructField(_VALUE, nullable(self.columns))
        fields = [typed if each.name == _VALUE else each for each in of.fields]
        if self.mode is Mode.PERMISSIVE:
            fields.append(StructField(CORRUPT, BinaryType()))
        return StructType(fields)

    def task(self, schema: StructType, reports: Reporter | None) -> "ValueTask | None":
        """The task for some of these columns; None where they have nothing of a value.

        Raises:
            SetupError: nobody receives reports behind a gate.
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
    """Decodes in the tasks of one read; it is sent to them.

    Attributes:
        names: the columns to return, in their order.
        asked: names of the fields of values to return.
        reports: receives what a gate rejects.
    """

    values: DecodedValues
    names: tuple[str, ...]
    asked: tuple[str, ...]
    reports: Reporter | None

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns to read."""
        headers = (HEADERS,) if reads_headers(self.values.form) else ()
        needed = (*(name for name in self.names if name != CORRUPT), _VALUE, *PLACE, *headers)
        return tuple(dict.fromkeys(needed))

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the columns that were read."""
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
