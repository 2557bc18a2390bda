"""Receivers in the ledger. Each sends a heartbeat with a report every second."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.gate.ledger.database import Store
from headrace.gate.ledger.statements import execute, offsets_in, statements

PRESENT_MS: Final = 10_000
"""Time after the last heartbeat for which a receiver counts as active (ms). A receiver without a
later heartbeat has died, or cannot reach the ledger."""

REMEMBERED_MS: Final = 24 * 3_600_000
"""Time for which the row of a receiver is kept after its last heartbeat (ms), for diagnosis. A
receiver that deregisters deletes its row itself."""


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """State of a receiver, as the receiver reports it with each heartbeat.

    Attributes:
        gate: Name of the gate whose rate limits the receiver.
        journal_id: Id of the journal that the receiver writes.
        lane: Number of the journal's lane that the receiver writes; only one receiver writes a lane
            at a time.
        journal: Name of the journal for display.
        owner: Id of the receiver's process. A process that takes over the lane has another id.
        started_ms: Start of the receiver (ms since the epoch).
        limit_per_s: Rate limit in force (records/s); None for no limit.
        most_per_s: Configured upper bound of the rate limit, independent of the gate's rate
            (records/s); None for no bound.
        records_per_s: Current rate of durably written records (records/s).
        records: Number of records written durably since the receiver's start.
        bytes: Total size of the keys, values and headers of all records written durably since the
            receiver's start (bytes).
        buffered_bytes: Memory of the received records that are not durable yet (bytes).
        waiting_records: Number of buffered records that wait because of the rate limit.
        refusing: Reason, in a sentence, why the receiver accepts no records, other than the rate
            limit; None if it accepts records.
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
    """A row of ``receiver``: the newest report of a receiver, and its time.

    Attributes:
        seen_ms: Time of the last heartbeat, by the receiver's clock (ms since the epoch).
    """

    seen_ms: int

    def is_present(self, now_ms: int) -> bool:
        """Return whether the last heartbeat is at most `PRESENT_MS` old."""
        return now_ms - self.seen_ms <= PRESENT_MS


@dataclass(frozen=True, slots=True)
class StreamRate:
    """Rate, interval and position of a gate, and its active receivers.

    Attributes:
        rate_per_s: The gate's rate in force (records/s); None before the first rate is learnt.
        interval_ms: The gate's interval (ms); None if the gate is not declared.
        receivers: Receivers of the gate with a recent heartbeat.
        begun: Offset up to which the gate has planned batches, by lane of one journal.
        waits: Whether the gate holds its batch because its sink is unavailable. Receivers admit no
            records during this wait.
    """

    rate_per_s: float | None
    interval_ms: int | None
    receivers: tuple[ReceiverRecord, ...]
    begun: Mapping[int, int]
    waits: bool = False


_SQL: Final = statements("receiver")


class ReceiverStore(Store):
    """Receivers of gates. A receiver may start before the query that declares its gate.

    A heartbeat has the time of the receiver's clock. A reader of the ledger compares this time with
    the reader's own clock.
    """

    def heartbeat(self, report: ReceiverReport) -> None:
        """Store a receiver's heartbeat and report as the row of its lane."""
        values = asdict(report) | {"rejected": json.dumps(dict(report.rejected))}

        def heartbeat(connection: Connection) -> None:
            now_ms = self._clock()
            execute(connection, _SQL["heartbeat"], values | {"seen_ms": now_ms})
            old = {"gate": report.gate, "before_ms": now_ms - REMEMBERED_MS}
            execute(connection, _SQL["forget"], old)

        # The next heartbeat replaces a lost one.
        self._database.write(heartbeat, durable=False)

    def deregister(self, report: ReceiverReport) -> None:
        """Delete a receiver's row when the receiver ends, unless another process owns the lane."""
        names = ("gate", "journal_id", "lane", "owner")
        self._database.change(_SQL["deregister"], {name: getattr(report, name) for name in names})

    def stream_rate(self, gate_name: str, journal_id: str) -> StreamRate:
        """Return a gate's rate and active receivers, and its position in one journal."""

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
    """Convert rows of ``receiver`` to `ReceiverRecord` objects."""
    return tuple(
        ReceiverRecord(**(row._asdict() | {"rejected": json.loads(row.rejected)})) for row in rows
    )
