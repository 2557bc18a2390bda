"""A gate that admits batches without Spark, to see whether it is held back."""

from headrace.control.ranges import OffsetRange
from headrace.ledger import Ledger, PlannedBatch, PlannedRange


class Admitting:
    """Of ten records each."""

    def __init__(self, ledger: Ledger, gate: str) -> None:
        self._ledger = ledger
        self._gate = gate
        self._next = 0

    def admit(self) -> None:
        """Begin one more batch."""
        offsets = OffsetRange("lane", 0, self._next, self._next + 10)
        self._next += 10
        planned = (PlannedRange(offsets),)
        self._ledger.begin(PlannedBatch(self._gate, "run", planned, "rate", ""))

    def held_by(self) -> str | None:
        """The stage that holds it back."""
        held = self._ledger.admission(self._gate).held
        return None if held is None else held.throttled_by
