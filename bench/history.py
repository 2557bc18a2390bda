"""A ledger that has been in use for long: its history, written in bulk and not by its methods."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import sqlalchemy
from sqlalchemy import Table

from headrace.core.ranges import OffsetRange
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.error_report import ErrorReport, error_values
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import (
    DeadLetterStatus,
    PlannedBatch,
    PlannedRange,
    RateSample,
    range_rows,
)
from headrace.gate.ledger.statements import Values
from headrace.gate.ledger.tables import batch_range, batch_table, dead_letter, rate
from headrace.gate.ledger.transitions import Status

GATES: Final = ("bench", "other")
"""Nine batches in ten are the first one's."""

INTERVAL_MS: Final = 1_000
RECORDS: Final = 1_000
"""Records of a batch in each of its partitions."""

PARTITIONS: Final = 2
TOPIC_ID: Final = "the topic's id"
RUN: Final = "long ago"

OPEN: Final = 20
"""Batches that failed and wait for a backfill, and as many dead letters that wait for somebody.
There are no more of them in a long history than in a short one, for history is what is closed."""

_BATCHES_AT_ONCE: Final = 5_000
_ERROR: Final = ErrorReport("ValueError", "no number", "ValueError: no number\n" * 10)

_SAMPLE: Final = asdict(
    RateSample(
        gate="",
        time_ms=0,
        rate_per_s=1_000.0,
        records=PARTITIONS * RECORDS,
        processing_delay_ms=900,
        scheduling_delay_ms=0,
    )
)

_Row = tuple[Table, Values]


def fill(url: str, batches: int, newest_ms: int, *, isolated_every: int = 500) -> None:
    """Write the history of gates that have run so many batches, the last one at this time.

    Nearly all are ``success``; one in ``isolated_every`` has a dead letter, which is resolved. The
    newest failed, or are dead and have a dead letter that waits.
    """
    with Ledger.open(url) as ledger:
        for name in GATES:
            ledger.gates.declare(
                name,
                interval_ms=INTERVAL_MS,
                source="kafka",
                estimator=EstimatorSettings().to_text(),
            )
    engine = sqlalchemy.create_engine(normalize_url(url))
    oldest_ms = newest_ms - batches * INTERVAL_MS
    for first in range(0, batches, _BATCHES_AT_ONCE):
        rows: dict[Table, list[Values]] = defaultdict(list)
        for number in range(first, min(first + _BATCHES_AT_ONCE, batches)):
            is_isolated = number % isolated_every == 0
            created_ms = oldest_ms + number * INTERVAL_MS
            for table, row in _batch(
                number, batches - 1 - number, created_ms, is_isolated=is_isolated
            ):
                rows[table].append(row)
        with engine.begin() as connection:
            for table in (batch_table, batch_range, rate, dead_letter):
                if rows[table]:
                    connection.execute(table.insert(), rows[table])
    with engine.connect() as connection:
        # As PostgreSQL does by itself within minutes; SQLite does without.
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql("ANALYZE")
            connection.commit()
    engine.dispose()


def planned(gate: str, run: str, number: int, partitions: int) -> PlannedBatch:
    """The batch of this number: the next records of each partition."""
    return _planned(gate, run, range(number * RECORDS, (number + 1) * RECORDS), partitions)


def _planned(gate: str, run: str, offsets: range, partitions: int) -> PlannedBatch:
    return PlannedBatch(
        gate=gate,
        checkpoint_id=run,
        ranges=tuple(
            PlannedRange(
                OffsetRange("orders", partition, offsets.start, offsets.stop),
                offsets.stop,
                "rate",
                TOPIC_ID,
            )
            for partition in range(partitions)
        ),
        reason="rate",
        bootstrap_servers="127.0.0.1:9092",
        lag=len(offsets) * partitions,
        rate_per_s=1_000.0,
    )


def _batch(number: int, newer: int, created_ms: int, *, is_isolated: bool) -> Iterator[_Row]:
    # Every tenth batch is the other gate's; the numbers of each gate's batches have no gaps.
    tens, one = divmod(number, 10)
    gate, own = (GATES[1], tens) if one == 9 else (GATES[0], number - tens)
    batch = planned(gate, RUN, own, PARTITIONS)
    key = batch.batch_key
    if newer < OPEN:
        yield from _ended(batch, key, number, created_ms, Status.FAILED)
    elif newer < 2 * OPEN:
        yield from _ended(batch, key, number, created_ms, Status.DEAD)
        yield dead_letter, _letter(batch, key, created_ms, DeadLetterStatus.WAITING)
    else:
        yield from _ended(batch, key, number, created_ms, Status.SUCCESS)
        if is_isolated:
            yield dead_letter, _letter(batch, key, created_ms, DeadLetterStatus.DROPPED)
    yield (
        rate,
        _SAMPLE | {"gate": gate, "time_ms": created_ms + INTERVAL_MS, "batch_key": key},
    )


def _ended(
    batch: PlannedBatch, key: str, number: int, created_ms: int, status: Status
) -> Iterator[_Row]:
    row = {
        "batch_key": key,
        "gate": batch.gate,
        "checkpoint_id": batch.checkpoint_id,
        "attempts": 1,
        "created_time_ms": created_ms,
        "reason": batch.reason,
        "planned_records": batch.records,
        "planned_bytes": batch.bytes,
        "lag": batch.lag,
        "rate_per_s": batch.rate_per_s,
        "last_call": "long ago",
        "status": status,
        "query_batch_id": number,
        "start_time_ms": created_ms + 50,
        "end_time_ms": created_ms + 950,
        "records": batch.records,
        **error_values(None if status is Status.SUCCESS else _ERROR),
    }
    yield batch_table, row
    for each in range_rows(batch):
        yield batch_range, each


def _letter(batch: PlannedBatch, key: str, created_ms: int, status: DeadLetterStatus) -> Values:
    resolved = status is not DeadLetterStatus.WAITING
    return {
        "batch_key": key,
        "gate": batch.gate,
        "topic": "orders",
        "partition": 0,
        "offset": batch.ranges[0].offsets.start,
        "key": b"key",
        "value": b"no number",
        "headers": None,
        "timestamp_ms": created_ms,
        "timestamp_type": 0,
        **error_values(_ERROR),
        "created_ms": created_ms,
        "status": status,
        "resolved_ms": created_ms + 1 if resolved else None,
        "resolution": "as agreed" if resolved else None,
    }
