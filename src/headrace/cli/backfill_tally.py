"""What became of the batches that were chosen, and of their records."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from headrace.backfill.events import (
    BackfillEvent,
    Done,
    Failed,
    LeaseLost,
    MarkedDead,
    Skipped,
    Split,
)
from headrace.ledger import BatchRecord, Ledger, Status


class Outcome(IntEnum):
    """What became of a batch or a record; of a batch whose parts differ, the highest."""

    DONE = 0
    SKIPPED = 1
    """Somebody else has it now."""
    FAILED = 2
    DEAD = 3
    LEFT = 4
    """It was not run: the backfill has ended before."""


_OUTCOMES: Final = {
    Status.SUCCESS: Outcome.DONE,
    Status.FAILED: Outcome.FAILED,
    Status.DEAD: Outcome.DEAD,
}


class Tally:
    """Counts outcomes as events tell of them, and the ledger has them.

    A batch that is divided counts as one, and its records each by what became of their part.

    Args:
        ledger: Of the batches.
        chosen: Which are to be run.
    """

    def __init__(self, ledger: Ledger, chosen: Sequence[BatchRecord]) -> None:
        self._ledger = ledger
        self._planned = sum(batch.planned_records for batch in chosen)
        self._chosen_of = {batch.schedule_id: batch.schedule_id for batch in chosen}
        self._open = Counter(self._chosen_of.keys())
        self._leaves_of: dict[str, set[str]] = {key: set() for key in self._chosen_of}
        self._outcomes: dict[str, tuple[Outcome, int]] = {}

    def add(self, event: BackfillEvent) -> None:
        """Take in what an event tells.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        match event:
            case Split(batch, children):
                chosen = self._chosen_of[batch.schedule_id]
                self._chosen_of |= {part.schedule_id: chosen for part in children}
                self._open[chosen] += len(children) - 1
            case Skipped(schedule_id):
                self._settle(schedule_id)
            case Done() | Failed() | MarkedDead() | LeaseLost():
                self._settle(event.batch.schedule_id)

    @property
    def settled_records(self) -> int:
        """The records whose outcome is known."""
        return sum(records for _, records in self._outcomes.values())

    @property
    def records(self) -> dict[Outcome, int]:
        """How many records have come to each outcome."""
        found = Counter({Outcome.LEFT: self._planned - self.settled_records})
        for outcome, records in self._outcomes.values():
            found[outcome] += records
        return {each: found[each] for each in Outcome}

    @property
    def batches(self) -> dict[Outcome, int]:
        """How many of the chosen batches have come to each outcome."""
        found = Counter(map(self._outcome, self._leaves_of))
        return {each: found[each] for each in Outcome}

    @property
    def is_good(self) -> bool:
        """Whether nothing has failed again, is dead, or was left."""
        return not any(self.batches[each] for each in (Outcome.FAILED, Outcome.DEAD, Outcome.LEFT))

    def _outcome(self, chosen: str) -> Outcome:
        if self._open[chosen]:
            return Outcome.LEFT
        leaves = self._leaves_of[chosen]
        return max((self._outcomes[leaf][0] for leaf in leaves), default=Outcome.SKIPPED)

    def _settle(self, schedule_id: str) -> None:
        chosen = self._chosen_of[schedule_id]
        self._open[chosen] -= 1
        for leaf in self._leaves(schedule_id):
            outcome = _OUTCOMES.get(leaf.status, Outcome.SKIPPED)
            self._leaves_of[chosen].add(leaf.schedule_id)
            self._outcomes[leaf.schedule_id] = (outcome, leaf.planned_records)

    def _leaves(self, schedule_id: str) -> Iterator[BatchRecord]:
        """Where the outcome stands: in the smallest parts that a batch was split into, or in it."""
        parts = self._ledger.parts(schedule_id)
        for part in parts:
            yield from self._leaves(part.schedule_id)
        batch = None if parts else self._ledger.batch(schedule_id)
        if batch is not None:
            yield batch
