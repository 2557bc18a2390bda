"""The receivers that a ledger knows: each has a lane, and says once a second how it fares."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.gate.ledger.database import Store
from headrace.gate.ledger.statements import execute, offsets_in, statements

PRESENT_MS: Final = 10_000
"""A receiver that was not seen for so long does not count: it has died, or cannot reach us."""

REMEMBERED_MS: Final = 24 * 3_600_000
"""Time for which a receiver that ended without deregistering is kept, to be looked into."""


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """Report of a receiver about itself.

    Attributes:
        gate: Gate whose rate it follows.
        journal_id: The journal that it writes.
        lane: The lane of it; a lane has one receiver at a time.
        journal: The journal's name, for people.
        owner: The process; another one that takes the lane has another.
        started_ms: When it began (ms since the epoch).
        limit_per_s: Highest rate that it admits (records/s); None is no limit.
        most_per_s: Highest rate that it admits whatever its gate's rate is (records/s); None for
            none.
        records_per_s: Rate of records that it has lately made durable (records/s).
        records: Number of records that it has made durable since it began.
        bytes: Their keys, values and headers.
        buffered_bytes: The memory that records take which are not durable yet.
        waiting_records: Number of them that wait for the limit.
        refusing: Why its senders wait whatever the limit, in a sentence; None if they need not.
        rejected: Number of requests and senders that it has rejected since it began, by kind, such
            as ``HTTP 429``.
    """

    gate: str
    journal_id: str
    lane: int
    journal: str
    owner: str
    started_ms: int
    limit_per_s: float | None
    most_per_s: float | None
    records_per_s: float
    records: int
    bytes: int
    buffered_bytes: int
    waiting_records: int
    refusing: str | None
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReceiverRecord(ReceiverReport):
    """A row of ``receiver``.

    Attributes:
        seen_ms: When that was said (ms since the epoch).
    """

    seen_ms: int

    def is_present(self, now_ms: int) -> bool:
        """Whether it counts among the receivers of its gate."""
        return now_ms - self.seen_ms <= PRESENT_MS


@dataclass(frozen=True, slots=True)
class StreamRate:
    """State that the receivers of a gate share.

    Attributes:
        rate_per_s: The gate's rate in force (records/s); None while none was learnt.
        interval_ms: The gate's interval; None while it is not declared.
        receivers: Active receivers.
        begun: Offset up to which the gate has begun to read, by the lanes of one journal.
        waits: Whether the gate waits for its sink, and admits nothing.
    """

    rate_per_s: float | None
    interval_ms: int | None
    receivers: tuple[ReceiverRecord, ...]
    begun: Mapping[int, int]
    waits: bool = False


_SQL: Final = statements("receiver")


class ReceiverStore(Store):
    """The receivers of a gate, which need not be declared yet: they may be there before its query.

    When a receiver was seen is compared with each process's own clock, as leases are.
    """

    def heartbeat(self, report: ReceiverReport) -> None:
        """Record a receiver's heartbeat and report; it has its lane alone."""
        values = asdict(report) | {"rejected": json.dumps(dict(report.rejected))}

        def heartbeat(connection: Connection) -> None:
            now_ms = self._clock()
            execute(connection, _SQL["heartbeat"], values | {"seen_ms": now_ms})
            old = {"gate": report.gate, "before_ms": now_ms - REMEMBERED_MS}
            execute(connection, _SQL["forget"], old)

        # The next heartbeat replaces a lost one.
        self._database.write(heartbeat, durable=False)

    def deregister(self, report: ReceiverReport) -> None:
        """Forget a receiver that ends, unless another one has its lane by now."""
        names = ("gate", "journal_id", "lane", "owner")
        self._database.change(_SQL["deregister"], {name: getattr(report, name) for name in names})

    def stream_rate(self, gate_name: str, journal_id: str) -> StreamRate:
        """Return the state that the receivers of a gate share, and its progress in this journal."""

        def stream_rate(connection: Connection) -> StreamRate:
            since_ms = self._clock() - PRESENT_MS
            values = {"gate": gate_name, "journal_id": journal_id, "since_ms": since_ms}
            receivers = receiver_records(execute(connection, _SQL["receivers"], values))
            row = execute(connection, _SQL["stream"], values).first()
            if row is None:
                return StreamRate(None, None, receivers, {})
            begun = offsets_in(row.until_offsets or "{}")
            waits = bool(row.waits)
            return StreamRate(row.rate_per_s, row.interval_ms, receivers, begun, waits)

        return self._database.read(stream_rate)


def receiver_records(rows: Iterable[Row[Any]]) -> tuple[ReceiverRecord, ...]:
    """The records of rows of ``receiver``."""
    return tuple(
        ReceiverRecord(**(row._asdict() | {"rejected": json.loads(row.rejected)})) for row in rows
    )
