"""What waits in a gate's source now, asked of the brokers or the journal itself.

The ledger knows the lag of the newest batch, when that was planned. Where no batch has come for a
while, the source is asked: without secrets, for the ledger has none. Brokers that want some do not
answer, and what is shown is what the ledger knows, with its age.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.cli.snapshot import GateHistory
from headrace.control.ranges import OffsetRange
from headrace.errors import HeadraceError
from headrace.ledger import Ledger, PlannedRange

PATIENCE_S: Final = 3.0
"""How long a picture waits for an answer; a later one is in a later picture."""

AGAIN_AFTER_S: Final = 10.0


Ask = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was answered, and when."""

    time_s: float
    records: int | None


class WaitingNow:
    """Asks the sources of gates, each in a thread of its own, and not more often than needed.

    Args:
        question: What answers how many records of a gate wait, as `question_of` makes it.
        clock: The time, in seconds.
    """

    def __init__(
        self,
        question: Callable[[GateHistory], Ask],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._question = question
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._threads: dict[str, threading.Thread] = {}

    def of(self, histories: list[GateHistory]) -> dict[str, int | None]:
        """How many records wait, by gate; None where that is not known."""
        for history in histories:
            gate = history.gate.name
            known = self._answers.get(gate)
            running = gate in self._threads and self._threads[gate].is_alive()
            if running or (known and self._clock() - known.time_s < AGAIN_AFTER_S):
                continue
            # In threads that nobody waits for in the end: a broker that hangs holds up nothing.
            thread = threading.Thread(
                target=self._find_out, args=(gate, self._question(history)), daemon=True
            )
            self._threads[gate] = thread
            thread.start()
        deadline = time.monotonic() + PATIENCE_S
        for history in histories:
            if history.gate.name not in self._answers:
                self._threads[history.gate.name].join(max(deadline - time.monotonic(), 0))
        found = {each.gate.name: self._answers.get(each.gate.name) for each in histories}
        return {gate: each.records if each else None for gate, each in found.items()}

    def _find_out(self, gate: str, ask: Ask) -> None:
        answer = ask()
        self._answers[gate] = _Answer(self._clock(), answer)


def question_of(ledger: Ledger, history: GateHistory) -> Ask:
    """What answers how many records no batch of a gate has begun yet.

    In the partitions that the gate has read; None where their source cannot be reached without
    secrets, or is not there any more. The ledger is read at once.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    # It imports pyspark, which takes a second; a gate that is at work does without.
    from headrace.execution.spark_session import connector_of  # noqa: PLC0415

    servers = ledger.servers(history.batches[0].schedule_id)
    begun = _begun(ledger, history)
    until = {each.offsets.topic_partition: each.offsets.until for each in begun}

    def ask() -> int | None:
        try:
            connector = connector_of(history.gate.source)
            ends = connector.ends(connector.located({}, servers), begun)
        except HeadraceError:
            return None
        return sum(max(end - until[tp], 0) for tp, end in ends.items()) if ends else None

    return ask


def _begun(ledger: Ledger, history: GateHistory) -> list[PlannedRange]:
    """Up to where the gate has begun to read, in the topics of its newest batch."""
    found = {each.offsets.topic_partition: each for each in history.ranges}
    for topic, topic_id in {(each.offsets.topic, each.topic_id) for each in history.ranges}:
        for number, until in ledger.stream_rate(history.gate.name, topic_id or "").begun.items():
            offsets = OffsetRange(topic, number, 0, until)
            known = found.get(offsets.topic_partition)
            if until and (known is None or known.offsets.until < until):
                found[offsets.topic_partition] = PlannedRange(offsets, topic_id=topic_id)
    return list(found.values())
