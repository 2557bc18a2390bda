"""Records that a handler rejects, collected until they are stored with the batch's success."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812
)

from headrace.core.ranges import OffsetRange, TopicPartition, merge
from headrace.decoding import MAX_REPORTED, REPORTS, new_run, reported_to
from headrace.errors import LedgerError, RejectionError, TooManyRejectedError
from headrace.gate.ledger.error_report import BAD_VALUE, REJECTED, ErrorReport
from headrace.gate.ledger.records import DeadLetter, PlannedRange
from headrace.gate.source.connector import DeadLetterSink
from headrace.gate.source.losses import OnLoss

MAX_REJECTED: Final = 10_000
"""Maximum number of records that a handler may reject in one run. They are held in memory."""

MAX_REJECTED_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of the records that a handler may reject in one run (bytes)."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""

_COLUMNS: Final = ("topic", "partition", "offset")
_REASON: Final = "reason"


class RecordReader(Protocol):
    """Interface of a reader that reads single records of a batch again, for dead letters."""

    def rejected(
        self,
        ranges: Sequence[PlannedRange],
        reasons: Mapping[Place, ErrorReport],
        on_loss: OnLoss | None = None,
    ) -> Iterable[DeadLetter]:
        """Read the records at these places. Return a dead letter for each, in no fixed order.

        Args:
            ranges: the batch's ranges, which contain the places.
            reasons: the reasons by topic, partition and offset.
            on_loss: function called with offsets that the source no longer has, if the stream skips
                lost offsets (``failOnDataLoss=false``). Default: None, which makes such offsets an
                error.

        Raises:
            DataLossError, CorruptionError: a record has left the source, or is damaged.
            BrokerError, JournalError: the source cannot be read now.
        """

    def dead_letter_topic(self, name: str | None) -> DeadLetterSink | None:
        """Return the topic for copies of dead letters; None if there is no such topic."""


class Rejections:
    """Rejections of one handler run. The rejected records are read from the source to be stored.

    Args:
        batch: the batch's key, for error messages.
        ranges: the batch's ranges; only records in these ranges can be rejected.
        reader: reader of the records; None if there is no source to read from.
        planned: function that returns the batch's ranges from the ledger, with the planned topic
            ids.
        on_loss: function called with rejected offsets that the source no longer has, so that their
            records cannot be stored. Default: None, which makes such offsets an error.
        check_fit: function that raises an exception if the schema is at fault and not the records.
            After the exception, no record is stored. Default: no check.

    Attributes:
        unfit: records that could not be decoded, with the reasons, as reported by tasks so far.
    """

    def __init__(
        self,
        batch: str,
        ranges: Sequence[OffsetRange],
        reader: RecordReader | None,
        planned: Callable[[], Sequence[PlannedRange]],
        on_loss: OnLoss | None = None,
        *,
        check_fit: "Callable[[Rejections], None]" = lambda _rejections: None,
    ) -> None:
        self._batch: Final = batch
        self._ranges: Final = merge(ranges)
        self._reader: Final = reader
        self._planned: Final = planned
        self._on_loss: Final = on_loss
        self._check_fit: Final = check_fit
        self._checked = 0
        self.unfit: Final[dict[Place, ErrorReport]] = {}
        self._changing: Final = threading.Lock()
        self._reasons: dict[Place, ErrorReport] = {}
        self._letters: dict[Place, DeadLetter] = {}
        self._run: Final = new_run()

    @contextmanager
    def of_jobs(self) -> Iterator[None]:
        """Reject values that this thread's Spark jobs in the ``with`` block cannot decode.

        See `headrace.decode`.
        """
        with reported_to(self._run):
            yield

    @property
    def kept(self) -> Sequence[DeadLetter]:
        """Dead letters read so far, sorted by topic, partition and offset."""
        return [self._letters[place] for place in sorted(self._letters)]

    def count(self) -> int:
        """Return the number of rejected records.

        Raises `TooManyRejectedError` if too many values could not be decoded.
        """
        self._take_reported()
        return len(self._reasons)

    def _take_reported(self) -> None:
        reported = REPORTS.take(self._run)
        if reported:
            unfit = {place: ErrorReport(BAD_VALUE, why, "") for place, why in reported.items()}
            self._add(unfit.items(), MAX_REPORTED)
            self.unfit.update(unfit)

    def add(self, rows: DataFrame | Iterable[object], reason: str | Column) -> None:
        """Reject all of these rows, or none if an exception is raised.

        Raises `RejectionError` for a row outside the batch, a row without topic, partition or
        offset, or an empty reason; `TooManyRejectedError` for too many rows; and `LedgerError` if
        there is no source to read from.
        """
        if self._reader is None:
            raise LedgerError(
                f"Batch {self._batch} was made without a reader of its source, so its records"
                " cannot be rejected."
            )
        self._add(
            _of_frame(rows, reason) if isinstance(rows, DataFrame) else _of_rows(rows, reason),
            MAX_REJECTED,
        )

    def _add(self, found: Iterable[tuple[Place, ErrorReport]], most: int) -> None:
        with self._changing:
            reasons = dict(self._reasons)
            for place, why in found:
                self._check_place(place)
                reasons.setdefault(place, why)
                if len(reasons) > most:
                    raise TooManyRejectedError(
                        f"More than {most:,} records of batch {self._batch} are rejected,"
                        f" the first with the reason {next(iter(reasons.values())).message!r}; if"
                        " so many are bad, raise an exception to fail the batch."
                    )
            self._reasons = reasons

    def read(self) -> Sequence[DeadLetter]:
        """Read the rejected records that were not read yet. Return all as sorted dead letters.

        Raises:
            RejectionError: there is no record at one of the offsets.
            TooManyRejectedError: the total size of the records is too large.
            OptionError: the schema is at fault, and not the records.
            DataLossError, CorruptionError: a record has left the source, or is damaged.
            BrokerError, JournalError: the source cannot be read now.
        """
        self._take_reported()
        if len(self.unfit) > self._checked:
            self._checked = len(self.unfit)
            self._check_fit(self)
        with self._changing:
            missing = {
                place: why for place, why in self._reasons.items() if place not in self._letters
            }
            if missing and self._reader is not None:
                size = sum(map(_size, self._letters.values()))
                gone: list[tuple[OffsetRange, str]] = []
                tell = None if self._on_loss is None else lambda *loss: gone.append(loss)
                for letter in self._reader.rejected(self._planned(), missing, tell):
                    self._letters[letter.topic, letter.partition, letter.offset] = letter
                    size += _size(letter)
                    if size > MAX_REJECTED_BYTES:
                        raise TooManyRejectedError(
                            f"The records of batch {self._batch} that are rejected have more than"
                            f" {MAX_REJECTED_BYTES >> 20} MiB; raise an exception instead, to fail"
                            " the batch."
                        )
                self._lose(missing, gone)
            for topic, partition, offset in missing.keys() - self._letters.keys():
                raise RejectionError(
                    f"{topic}-{partition} at {offset}, which the handler of batch {self._batch}"
                    " rejects, is no record of the source; reject rows that the batch has."
                )
            return self.kept

    def has_others(self) -> bool:
        """Return whether the batch has values that could be decoded.

        If fewer than half of the offsets have undecodable values, the result is True without a read
        of the batch.
        """
        ranges = [offsets for same in self._ranges.values() for offsets in same]
        gaps = sum(offsets.count for offsets in ranges) - len(self.unfit)
        if self._reader is None or gaps > len(self.unfit):
            return True
        why = ErrorReport(BAD_VALUE, "it is looked for", "")
        places = ((r.topic, r.partition, at) for r in ranges for at in range(r.start, r.until))
        candidates = {place: why for place in places if place not in self.unfit}
        letters = self._reader.rejected(self._planned(), candidates, lambda *_loss: None)
        return bool(candidates) and any(letter.value is not None for letter in letters)

    def _lose(
        self, missing: dict[Place, ErrorReport], gone: Sequence[tuple[OffsetRange, str]]
    ) -> None:
        """Report rejected records as lost if the source no longer has them.

        Other records in the missing ranges are no loss, because the handler has processed them.
        """
        for offsets, why in gone:
            unread = missing.keys() - self._letters.keys()
            lost = [place for place in unread if _is_in(place, offsets)]
            places = (OffsetRange(*place, place[2] + 1) for place in lost)
            for ranges in merge(places).values():
                for lost_range in ranges:
                    assert self._on_loss is not None  # noqa: S101  (without it no loss is reported)
                    self._on_loss(lost_range, why)
            for place in lost:
                del missing[place], self._reasons[place]

    def _check_place(self, place: Place) -> None:
        topic, partition, offset = place
        ranges = self._ranges.get(TopicPartition(topic, partition), ())
        if not any(offsets.start <= offset < offsets.until for offsets in ranges):
            raise RejectionError(
                f"The row {topic}-{partition} at {offset} is not of batch {self._batch}, so it is"
                f" not rejected; reject rows of the batch itself, which has {self._described()}."
            )

    def _described(self) -> str:
        ranges = [str(offsets) for same in self._ranges.values() for offsets in same]
        more = f" and {len(ranges) - 3} more ranges" if len(ranges) > 3 else ""
        return ", ".join(ranges[:3]) + more if ranges else "no records"


def letters_in(batch: pa.RecordBatch, reasons: Mapping[Place, ErrorReport]) -> Iterator[DeadLetter]:
    """Yield a dead letter for each record of a record batch whose place is in ``reasons``."""
    offsets = pa.array(sorted({offset for _, _, offset in reasons}), pa.int64())
    wanted = batch.filter(pc.is_in(batch.column("offset"), value_set=offsets))
    times_us = wanted.column("timestamp").cast(pa.int64()).to_pylist()
    # Python has no times past the year 9999, but Kafka accepts any time from a producer.
    for row, time_us in zip(wanted.drop_columns(["timestamp"]).to_pylist(), times_us, strict=True):
        why = reasons.get((row["topic"], row["partition"], row["offset"]))
        if why is not None:
            yield letter_from(row, time_us // 1000, why)


def letter_from(row: Mapping[str, Any], timestamp_ms: int, error: ErrorReport) -> DeadLetter:
    """Return the dead letter for a record, from its columns as Python values."""
    headers = row["headers"]
    return DeadLetter(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=None if headers is None else tuple((h["key"], _bytes(h["value"])) for h in headers),
        timestamp_ms=timestamp_ms,
        timestamp_type=row["timestampType"],
        error=error,
    )


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _is_in(place: Place, offsets: OffsetRange) -> bool:
    return place[:2] == offsets.topic_partition and offsets.start <= place[2] < offsets.until


def _size(letter: DeadLetter) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in letter.headers or ())
    return len(letter.key or b"") + len(letter.value or b"") + headers


def _of_frame(rows: Any, reason: str | Column) -> Iterator[tuple[Place, ErrorReport]]:
    """Compute a DataFrame. Yield the place and reason of at most MAX_REJECTED + 1 rows."""
    missing = [name for name in _COLUMNS if name not in rows.columns]
    if missing:
        raise RejectionError(
            f"The rows to reject have no column {missing[0]!r}, but {', '.join(rows.columns)}; keep"
            f" the columns {', '.join(_COLUMNS)}, which identify a record."
        )
    reasons = reason if isinstance(reason, Column) else F.lit(None)
    chosen = rows.select(*_COLUMNS, reasons.cast("string").alias(_REASON)).limit(MAX_REJECTED + 1)
    constant = None if isinstance(reason, Column) else _report(reason)
    for row in chosen.collect():
        yield _place(tuple(row[:3])), constant or _report(row[_REASON])


def _of_rows(rows: Any, reason: str | Column) -> Iterator[tuple[Place, ErrorReport]]:
    if isinstance(reason, Column):
        raise RejectionError(
            "The reason is a column, which only rows of a DataFrame can have; give a sentence."
        )
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise RejectionError(
            f"The rows to reject are a {type(rows).__name__}; give a DataFrame, or a list of rows,"
            f" dicts or tuples with {', '.join(_COLUMNS)}."
        )
    why = _report(reason)
    for row in rows:
        yield _place(_values(row)), why


def _values(row: object) -> tuple[object, ...]:
    try:
        if isinstance(row, Mapping):
            return tuple(row[name] for name in _COLUMNS)
        if isinstance(row, tuple) and hasattr(row, "__fields__"):
            named = dict(zip(row.__fields__, row, strict=True))
            return tuple(named[name] for name in _COLUMNS)
    except KeyError as error:
        raise RejectionError(
            f"A row to reject has no {error.args[0]!r}; keep {', '.join(_COLUMNS)}, which identify"
            " a record."
        ) from None
    return tuple(row) if isinstance(row, tuple | list) else (row,)


def _place(values: tuple[object, ...]) -> Place:
    match values:
        case (str(topic), int(partition), int(offset)) if bool not in map(type, values):
            return topic, partition, offset
        case _:
            kinds = ", ".join(type(value).__name__ for value in values)
            raise RejectionError(
                f"A row to reject has values of the types ({kinds}); give a topic (text), a"
                " partition and an offset (whole numbers)."
            )


def _report(reason: object) -> ErrorReport:
    if not isinstance(reason, str) or not reason.strip():
        raise RejectionError(
            f"The reason to reject rows is {reason!r}; give a sentence that says what is wrong with"
            " them."
        )
    return ErrorReport(REJECTED, reason.strip(), "")
