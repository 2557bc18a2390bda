"""Channels: how a stage writes one, how a stage reads one, and what waits on it."""

from collections.abc import Iterator
from typing import Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from headrace.control.input_queue import InputQueue
from headrace.control.parts import above
from headrace.errors import OptionError
from headrace.ledger import Ledger, Status, part_key, part_of

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_HEADER_FIELDS: Final = [("key", StringType()), ("value", BinaryType())]

_FINAL: Final = (Status.SUCCESS, Status.DEAD)

_MAX_UNKNOWN: Final = 10
"""Batches kept of which the ledger has no row (their queries run only the last one again)."""


class ChannelQueue(Protocol):
    """Records that wait on a channel for one stage that reads it. For one thread."""

    def measure(self) -> InputQueue:
        """Measure the queue now; its rate is not known here (``takes_bytes_per_s`` is None)."""

    def close(self) -> None:
        """Release its connections."""


class Channel(Protocol):
    """Link from a stage that writes to the stages that read: each of these reads all of it, once.

    A value: it can be pickled, opens nothing until it is used, and shows no secret. Two are equal
    if they have one location, however they are read.
    """

    @property
    def location(self) -> str:
        """Kind and place of the channel, for people; it holds no secret."""

    @property
    def place(self) -> str:
        """Identity of the channel, as far as its address says that."""

    @property
    def written_place(self) -> str:
        """The same for what a stage writes: of a journal one lane."""

    def identity(self) -> str:
        """Return the id of the topic or of the journal that is there; it is asked for.

        It is what the ledger has as ``topic_id``.

        Raises:
            HeadraceError: It cannot be reached, or is not there.
        """

    @property
    def has_one_writer(self) -> bool:
        """Whether only one stage of a flow may write it, as with a lane of a journal."""

    @property
    def source(self) -> str:
        """Spark format that a gate reads it with, such as kafka."""

    def check_reachable(self) -> None:
        """See that it can be written, before any batch is; a journal is made."""

    def write(self, df: DataFrame, batch_key: str, ledger: Ledger) -> None:
        """Write what a batch has made, in the writing stage's handler.

        When it returns, no crash loses the records. However often it is called for one batch, by
        whatever process, and whatever ``df`` has then, readers have the records of one call, each
        once. If it raises, they have nothing of this call.

        Args:
            df: The columns of Spark's Kafka sink: ``value`` (binary or string), and where wanted
                ``key`` (the same) and ``headers``.
            batch_key: The same for every run of the same ranges, another for every other batch.
            ledger: The writing stage's ledger.

        Raises:
            OptionError: ``df`` has other columns, or lacks the value.
            HeadraceError: The channel cannot be written.
        """

    def read_options(self, ledger_url: str) -> dict[str, str]:
        """The options of its source with which all of it is read, each batch once."""

    def queue(self, gate: str, ledger: Ledger) -> ChannelQueue:
        """Return the queue of the stage whose gate this is, in this ledger."""


def output_columns(df: DataFrame, location: str) -> DataFrame:
    """The columns ``key`` and ``value``, both binary, and ``headers``; what is missing is null."""
    types = {field.name: field.dataType for field in df.schema.fields}
    if len(types) < len(df.columns):
        raise _wrong(location, "it names a column twice")
    for name, kind in types.items():
        if not _is_allowed(name, kind):
            raise _wrong(location, f"its column {name!r} is {kind.simpleString()}")
    if "value" not in types:
        raise _wrong(location, "it has no column 'value'")
    return df.select(
        *(
            (sql.col(name) if name in types else sql.lit(None)).cast("binary").alias(name)
            for name in ("key", "value")
        ),
        _headers(types),
    )


def _is_allowed(name: str, kind: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(kind, BinaryType | StringType)
    if name != "headers" or not isinstance(kind, ArrayType):
        return False
    pair = kind.elementType
    return isinstance(pair, StructType) and [_typed(each) for each in pair.fields] == _HEADER_FIELDS


def _typed(field: StructField) -> tuple[str, DataType]:
    return field.name, field.dataType


def _headers(types: dict[str, DataType]) -> Column:
    if "headers" not in types:
        return sql.lit(None).cast(_HEADERS).alias("headers")
    # A record without headers has null, as Kafka's source returns it.
    headers = sql.col("headers")
    return sql.when(sql.size(headers) > 0, headers).cast(_HEADERS).alias("headers")


def _wrong(location: str, what: str) -> OptionError:
    return OptionError(
        f"What is to be written to {location} is not what a channel takes: {what}; it takes value"
        f" (binary or string) and, if wanted, key (the same) and headers ({_HEADERS}): select"
        " these."
    )


def is_finished(key: str, ledger: Ledger) -> bool:
    """Whether a batch is done: whoever still runs it has lost it to another process."""
    return ledger.batches.is_over(key)


def ancestry(key: str) -> Iterator[str]:
    """A part, what it is within, and the batch: what was written as a whole is written."""
    batch, path = part_of(key)
    return (part_key(batch, part) for part in (path, *above(path)))


def never_run_again(written: tuple[str, ...], ledger: Ledger) -> list[str]:
    """Return the batches, and the parts of batches, the oldest first, that nobody will run again.

    Parts are not among them before their batch is over.
    """
    records = {key: ledger.batches.get(part_of(key)[0]) for key in written}
    done = [key for key, record in records.items() if record and record.status in _FINAL]
    unknown = [key for key, record in records.items() if record is None]
    return done + unknown[:-_MAX_UNKNOWN]
