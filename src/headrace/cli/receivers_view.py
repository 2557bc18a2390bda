"""The receivers of a gate at one moment, worked out for people and for ``--json``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.cli.words import count, duration, plural
from headrace.ledger import ReceiverRecord


class ReceiverState(StrEnum):
    """How a receiver fares, in the words of ``--json``."""

    RECEIVING = "receiving"
    """Records come, and none waits for the rate."""
    LIMITED = "limited"
    """Records wait for the rate: more come than it allows."""
    IDLE = "idle"
    """No records came lately."""
    SILENT = "silent"
    """It has not been seen for a while: it has died, or cannot reach the ledger."""


@dataclass(frozen=True, slots=True)
class ReceiverSnapshot:
    """A receiver, one for each lane.

    Attributes:
        journal: The journal's name.
        lane: Its lane of it.
        state: How it fares: a value of `ReceiverState`.
        limit_per_s: What it lets in at most (records/s); None is no limit.
        records_per_s: What it has made durable a second lately.
        records: What it has made durable since it began.
        bytes: Their keys, values and headers.
        buffered_bytes: The memory that records take which are not durable yet.
        waiting_records: Those of them that wait for the limit.
        started_ms: When it began (ms since the epoch).
        seen_ms: When it said all this.
    """

    journal: str
    lane: int
    state: ReceiverState
    limit_per_s: float | None
    records_per_s: float
    records: int
    bytes: int
    buffered_bytes: int
    waiting_records: int
    started_ms: int
    seen_ms: int

    @classmethod
    def of(cls, record: ReceiverRecord, now_ms: int) -> "ReceiverSnapshot":
        """Work out a snapshot from the ledger's record."""
        return cls(
            journal=record.journal,
            lane=record.lane,
            state=_state(record, now_ms),
            limit_per_s=record.limit_per_s,
            records_per_s=record.records_per_s,
            records=record.records,
            bytes=record.bytes,
            buffered_bytes=record.buffered_bytes,
            waiting_records=record.waiting_records,
            started_ms=record.started_ms,
            seen_ms=record.seen_ms,
        )


def _state(record: ReceiverRecord, now_ms: int) -> ReceiverState:
    if not record.is_present(now_ms):
        return ReceiverState.SILENT
    if record.waiting_records:
        return ReceiverState.LIMITED
    return ReceiverState.RECEIVING if record.records_per_s else ReceiverState.IDLE


def receivers_line(present: Sequence[ReceiverSnapshot]) -> str:
    """What receivers that are there take in together, and how they fare."""
    words = [f"taking in {count(sum(each.records_per_s for each in present))}/s"]
    limits = [each.limit_per_s for each in present if each.limit_per_s is not None]
    if len(limits) == len(present):
        words.append(f"at most {count(sum(limits))}/s")
    numbers = Counter(each.state for each in present)
    words += [
        str(state) if numbers[state] == len(present) else f"{numbers[state]} {state}"
        for state in (ReceiverState.LIMITED, ReceiverState.IDLE)
        if numbers[state]
    ]
    return " · ".join(words)


def silent_line(receivers: Sequence[ReceiverSnapshot], now_ms: int) -> str:
    """Which of them have not been seen for a while; nothing on a good day."""
    silent = [each for each in receivers if each.state is ReceiverState.SILENT]
    if not silent:
        return ""
    last = max(silent, key=lambda each: each.seen_ms)
    which = f"{last.journal} lane {last.lane} for {duration(now_ms - last.seen_ms)}"
    return f"{plural(len(silent), 'receiver')} not seen: {which}"
