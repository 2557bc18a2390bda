"""Receivers in the ledger: each has a lane, and sends a heartbeat with a report every second."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.gate.ledger.database import Store
from headrace.gate.ledger.statements import execute, offsets_in, statements

PRESENT_MS: Final = 10_000
"""Time without a heartbeat after which a receiver does not count (ms): it has died, or cannot
reach the ledger."""

REMEMBERED_MS: Final = 24 * 3_600_000
"""Time for which the row of a receiver that ended without deregistering is kept (ms), for
diagnosis."""


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """Report of a receiver about itself.

    Attributes:
        gate: Gate whose rate the receiver follows.
        journal_id: The journal that the receiver writes.
        lane: Lane of the journal; a lane has one receiver at a time.
        journal: The journal's name, for people.
        owner: The receiver's process; another process that takes over the lane is another owner.
        started_ms: Start of the receiver (ms since the epoch).
        limit_per_s: Highest rate that the receiver admits (records/s); None is no limit.
        most_per_s: Highest rate that the receiver admits whatever its gate's rate is (records/s);
            None for none.
        records_per_s: Rate of records that the receiver has lately made durable (records/s).
        records: Number of records made durable since the start.
        bytes: Size of their keys, values and headers.
        buffered_bytes: Memory of the records that are not durable yet.
        waiting_records: Number of buffered records that wait for the limit.
        refusing: Reason, in a sentence, why senders wait whatever the limit is; None if they need
            not.
        rejected: Number of rejected requests and senders since the start, by kind, such as ``HTTP
            429``.
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
        seen_ms: Time of the last heartbeat (ms since the epoch).
    """

    seen_ms: int

    def is_present(self, now_ms: int) -> bool:
        """Return whether the receiver counts among the receivers of its gate."""
        return now_ms - self.seen_ms <= PRESENT_MS


@dataclass(frozen=True, slots=True)
class StreamRate:
    """State that the receivers of a gate share.

    Attributes:
        rate_per_s: The gate's rate in force (records/s); None before a rate is learnt.
        interval_ms: The gate's interval; None if the gate is not declared.
        receivers: Active receivers.
        begun: For each lane of one journal, the end offset of the newest batch that the gate began.
        waits: Whether the gate waits for its sink, and admits nothing.
    """

    rate_per_s: float | None
    interval_ms: int | None
    receivers: tuple[ReceiverRecord, ...]
    begun: Mapping[int, int]
    waits: bool = False


_SQL: Final = statements("receiver")


class ReceiverStore(Store):
    """Receivers of gates. A gate need not be declared yet: receivers may start before its query.

    The time of a receiver's heartbeat is compared with each process's own clock.
    """

    def heartbeat(self, report: ReceiverReport) -> None:
        """Store a receiver's heartbeat and report; a receiver is the only one in its lane."""
        values = asdict(report) | {"rejected": json.dumps(dict(report.rejected))}

        def heartbeat(connection: Connection) -> None:
            now_ms = self._clock()
            execute(connection, _SQL["heartbeat"], values | {"seen_ms": now_ms})
            old = {"gate": report.gate, "before_ms": now_ms - REMEMBERED_MS}
            execute(connection, _SQL["forget"], old)

        # The next heartbeat replaces a lost one.
        self._database.write(heartbeat, durable=False)

    def deregister(self, report: ReceiverReport) -> None:
        """Delete the row of a receiver that ends, unless another one has taken over the lane."""
        names = ("gate", "journal_id", "lane", "owner")
        self._database.change(_SQL["deregister"], {name: getattr(report, name) for name in names})

    def stream_rate(self, gate_name: str, journal_id: str) -> StreamRate:
        """Return the shared state of a gate's receivers, with its progress in this journal."""

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
    """Return the records of rows of ``receiver``."""
    return tuple(
        ReceiverRecord(**(row._asdict() | {"rejected": json.loads(row.rejected)})) for row in rows
    )
