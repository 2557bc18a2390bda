"""Records that cannot be processed, as values. Times are ms since the epoch."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.ledger.records import ErrorReport


class LetterStatus(StrEnum):
    """What became of a dead letter; ``sent`` and ``dropped`` are final."""

    WAITING = "waiting"
    SENT = "sent"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be processed, whole, and why."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    """In their order; None where they were not read."""
    timestamp_ms: int
    timestamp_type: int
    """Kafka's: 0 where the producer set the time, 1 where the broker did."""
    error: ErrorReport


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A row of ``dead_letter``."""

    dead_letter_id: int
    schedule_id: str
    """The batch, or part of one, that it was alone in."""
    gate: str
    letter: DeadLetter
    created_ms: int
    status: LetterStatus
    resolved_ms: int | None
    """When it was sent or dropped."""
    resolution: str | None
    """How it was sent, or why it was dropped."""
