"""Events of a backfill: for progress bars, and, as sentences, for the log."""

import logging
from dataclasses import dataclass
from typing import ClassVar

from headrace.core.ranges import OffsetRange
from headrace.ledger import BatchRecord, ErrorReport


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch is this backfill's now."""

    level: ClassVar[int] = logging.DEBUG
    batch: BatchRecord

    def __str__(self) -> str:
        return f"{_name(self.batch)} is claimed (attempt {self.batch.attempts + 1})."


@dataclass(frozen=True, slots=True)
class Skipped:
    """A batch is not to be had: another backfill, or the live stream, has it or has finished it."""

    level: ClassVar[int] = logging.DEBUG
    batch_key: str

    def __str__(self) -> str:
        return f"Batch {self.batch_key} is not failed any more, and is left to whoever has it."


@dataclass(frozen=True, slots=True)
class Split:
    """A batch was split: its children are failed batches of their own now, it is ``success``."""

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    children: tuple[BatchRecord, ...]

    def __str__(self) -> str:
        return f"{_name(self.batch)} is split into {len(self.children)} batches."


@dataclass(frozen=True, slots=True)
class Done:
    """A batch is ``success``."""

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in {self.elapsed_ms} ms."


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch has failed again, and is ``failed``, to be run once more."""

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord
    error: ErrorReport
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} failed again: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class MarkedDead:
    """A batch is ``dead``: it will not be processed."""

    level: ClassVar[int] = logging.ERROR
    batch: BatchRecord
    error: ErrorReport

    def __str__(self) -> str:
        return f"{_name(self.batch)} is dead and will not be processed: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A batch was run, but its lease had run out meanwhile: its outcome is somebody else's."""

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord

    def __str__(self) -> str:
        return (
            f"{_name(self.batch)} was run, but not as its owner any more, so the outcome is not"
            " counted; whoever has it runs it again."
        )


@dataclass(frozen=True, slots=True)
class NearRetention:
    """Kafka may soon delete what a failed batch has still to read."""

    level: ClassVar[int] = logging.WARNING
    batch_key: str
    ranges: tuple[OffsetRange, ...]

    def __str__(self) -> str:
        return (
            f"Batch {self.batch_key} has failed, and Kafka may soon delete what it reads:"
            f" retention nears {', '.join(map(str, self.ranges))}; make the topic's retention"
            " longer, or see to it that the batch can be processed."
        )


BackfillEvent = Claimed | Skipped | Split | Done | Failed | MarkedDead | LeaseLost | NearRetention


def _name(batch: BatchRecord) -> str:
    number = batch.planned_records
    records = f"{number} record{'' if number == 1 else 's'}"
    return f"Batch {batch.batch_key} of gate {batch.gate!r} ({records})"


def _why(error: ErrorReport) -> str:
    first_line = error.message.partition("\n")[0]
    return f"{error.error_class}: {first_line}"
