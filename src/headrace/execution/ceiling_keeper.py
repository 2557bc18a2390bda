"""Keeps a gate's ceiling in the ledger: what its batches say of the largest that its handler takes.

Only batches of the stream teach it: a backfill runs what other versions of the program have left.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from headrace.control.isolation import Isolated
from headrace.control.size_ceiling import (
    BatchSize,
    SizeCeiling,
    Split,
    known_ceiling,
    learn_from,
    split_of,
)
from headrace.errors import HeadraceError
from headrace.ledger import BatchRecord, Ledger, Status

_LOG: Final = logging.getLogger("headrace.execution")


class CeilingKeeper:
    """Tells the ceiling of one gate how its batches ended. It raises nothing: it logs.

    While there is no ceiling, a batch that passes costs no look into the ledger: whoever has the
    gate is the only one who makes one.

    Args:
        gate: The gate's name.
        ledger: The gate's.
    """

    def __init__(self, gate: str, ledger: Ledger) -> None:
        self._gate = gate
        self._ledger = ledger
        self._may_be_there = True
        self._largest = 0
        """Records of the largest batch that went through at once."""
        self._doubted = 0
        """Records of a batch that failed although as many had gone through; 0 for none."""

    def note_passed(self, batch: BatchRecord) -> None:
        """A batch of the stream went through at once."""
        self._largest = max(self._largest, batch.planned_records)
        if batch.planned_records >= self._doubted:
            self._doubted = 0
        if not self._may_be_there:
            return

        def passed(known: SizeCeiling | None) -> SizeCeiling | None:
            return None if known is None else known.after_pass(_size(batch))

        self._change(passed)

    def note_isolated(self, batch: BatchRecord, isolated: Isolated[Any]) -> None:
        """A batch failed, and was isolated in one go; one of the stream may say what was wrong."""
        split = split_of(_size(batch), isolated)
        if split is None or batch.status is not Status.IN_PROGRESS:
            return
        if split.failed <= self._largest and not self._doubted:
            # That many records have passed before: the cause may be over by now.
            self._doubted = split.failed
            return
        self._largest, self._doubted = split.passed, 0
        try:
            if self._ledger.dead_letters.count_rejected(self._parts(batch.batch_key)):
                return
        except HeadraceError as error:
            self._warn(error)
            return
        self._may_be_there = True
        self._log(batch, split)
        self._change(lambda known: learn_from(known, split))

    def _change(self, law: Callable[[SizeCeiling | None], SizeCeiling | None]) -> None:
        try:
            before = self._ledger.gates.ceiling(self._gate)
            after = law(known_ceiling(before))
            text = None if after is None else after.to_text()
            # An operator who lifts it meanwhile is right.
            if text != before:
                self._ledger.gates.change_ceiling(self._gate, before, text)
            self._may_be_there = text is not None
        except HeadraceError as error:
            self._warn(error)

    def _parts(self, key: str) -> list[str]:
        children = [each.batch_key for each in self._ledger.batches.children(key)]
        return [key, *(part for child in children for part in self._parts(child))]

    def _log(self, batch: BatchRecord, split: Split) -> None:
        _LOG.warning(
            "Batch %s of gate %r failed as a whole, and all of its parts passed: %d records at once"
            " failed, %d passed. So the next batches are smaller; `headrace why %s` shows the"
            " ceiling.",
            batch.batch_key,
            batch.gate,
            split.failed,
            split.passed,
            batch.gate,
        )

    def _warn(self, error: HeadraceError) -> None:
        _LOG.warning("The ceiling of gate %r was not written down: %s", self._gate, error)


def _size(batch: BatchRecord) -> BatchSize:
    return BatchSize(batch.planned_records, batch.planned_bytes)
