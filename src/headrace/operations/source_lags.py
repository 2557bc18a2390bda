"""What waits in the sources of gates now, asked of the brokers or the journal itself."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.ranges import OffsetRange
from headrace.errors import HeadraceError
from headrace.ledger import Ledger, PlannedRange
from headrace.operations.snapshot import GateHistory

WAIT_FOR_SOURCES_S: Final = 3.0
"""How long a picture waits for the sources' answers; a later one is in a later picture."""

ASK_AGAIN_S: Final = 10.0


class SourceLags:
    """What waits in the sources of gates now, asked of the brokers or the journal itself.

    The ledger knows the lag of the newest batch, when that was planned. Sources are asked without
    secrets, for the ledger has none: brokers that want some do not answer. Each is asked in its
    own thread, and not more often than needed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._answers: dict[str, tuple[float, int | None]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def of(
        self, histories: Sequence[GateHistory], wait_s: float = WAIT_FOR_SOURCES_S
    ) -> dict[str, int | None]:
        """How many records no batch has begun yet, by gate; None where that is not known."""
        for history in histories:
            gate = history.gate.name
            asked_s, _ = self._answers.get(gate, (-ASK_AGAIN_S, None))
            running = gate in self._threads and self._threads[gate].is_alive()
            if running or time.monotonic() - asked_s < ASK_AGAIN_S:
                continue
            # In threads that nobody waits for in the end: a broker that hangs holds up nothing.
            self._threads[gate] = threading.Thread(target=self._question(history), daemon=True)
            self._threads[gate].start()
        deadline = time.monotonic() + wait_s
        for history in histories:
            if history.gate.name not in self._answers:
                self._threads[history.gate.name].join(max(deadline - time.monotonic(), 0))
        return {
            each.gate.name: self._answers.get(each.gate.name, (0, None))[1] for each in histories
        }

    def _question(self, history: GateHistory) -> Callable[[], None]:
        """What asks where the partitions end that the gate has read; the ledger is read now."""
        servers = self._ledger.batches.servers(history.batches[0].schedule_id)
        begun = begun_ranges(self._ledger, history)
        until = {each.offsets.topic_partition: each.offsets.until for each in begun}

        def ask() -> None:
            # It imports pyspark, which takes a second; a gate that is at work does without.
            from headrace.execution.spark_session import connector_of  # noqa: PLC0415

            waiting = None
            try:
                connector = connector_of(history.gate.source)
                ends = connector.ends(connector.located({}, servers), begun)
            except HeadraceError:
                ends = {}
            if ends:
                waiting = sum(max(end - until[each], 0) for each, end in ends.items())
            self._answers[history.gate.name] = time.monotonic(), waiting

        return ask


def begun_ranges(ledger: Ledger, history: GateHistory) -> list[PlannedRange]:
    """Up to where the gate has begun to read, in the topics of its newest batch."""
    found = {each.offsets.topic_partition: each for each in history.ranges}
    for topic, topic_id in {(each.offsets.topic, each.topic_id) for each in history.ranges}:
        for number, until in ledger.receivers.stream_rate(
            history.gate.name, topic_id or ""
        ).begun.items():
            offsets = OffsetRange(topic, number, 0, until)
            known = found.get(offsets.topic_partition)
            if until and (known is None or known.offsets.until < until):
                found[offsets.topic_partition] = PlannedRange(offsets, topic_id=topic_id)
    return list(found.values())
