"""What comes to a simulated stage: its channels, or its load from outside."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from headrace.control import TopicPartition
from headrace.simulation.disturbance import Spike
from headrace.simulation.gate import partitions_of, spread
from headrace.simulation.stage import SimulatedStage

OUTSIDE: Final = ""
"""The name of the channel that a source's load comes by."""

_SLICE_MS: Final = 100
"""What comes from outside is added up in slices of this length."""


class Inlet:
    """Counts what has come to a stage and what its batches have been given.

    Args:
        stage: The stage.
        spikes: Those of its load.
    """

    def __init__(self, stage: SimulatedStage, spikes: Sequence[Spike]) -> None:
        self.arrived = 0
        self.admitted = 0
        self._load = stage.load
        self._spikes = spikes
        self._partitions = {
            name: partitions_of(name, stage.partitions) for name in stage.after or (OUTSIDE,)
        }
        self._came = dict.fromkeys(self._partitions, 0)
        self._from_outside = float(stage.backlog)
        self._accrued_ms = 0
        self._waits_since: deque[tuple[int, int]] = deque()
        self.accrue(0)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those of all channels."""
        return [partition for names in self._partitions.values() for partition in names]

    @property
    def waiting(self) -> int:
        """The records that no batch has been given yet."""
        return self.arrived - self.admitted

    def latest(self) -> dict[TopicPartition, int]:
        """The latest offset of each partition."""
        latest: dict[TopicPartition, int] = {}
        for name, partitions in self._partitions.items():
            latest |= spread(self._came[name], partitions)
        return latest

    def take(self, channel: str, records: int, time_ms: int) -> None:
        """Take in what a stage before has made, or the outside."""
        if records:
            self._came[channel] += records
            self.arrived += records
            self._waits_since.append((time_ms, self.arrived))

    def accrue(self, time_ms: int) -> None:
        """Take in what has come from outside up to this time; nothing where there is no load."""
        if self._load is None:
            return
        while self._accrued_ms < time_ms:
            until_ms = min(time_ms, (self._accrued_ms // _SLICE_MS + 1) * _SLICE_MS)
            per_s = self._load.per_s(self._accrued_ms)
            for spike in self._spikes:
                per_s *= spike.factor if spike.holds(self._accrued_ms) else 1.0
            self._from_outside += per_s * (until_ms - self._accrued_ms) / 1000
            self._accrued_ms = until_ms
        self.take(OUTSIDE, int(self._from_outside) - self.arrived, time_ms)

    def admit(self, records: int) -> None:
        """Give records to a batch, those first that came first; below 0, take them back from it."""
        self.admitted += records
        while self._waits_since and self._waits_since[0][1] <= self.admitted:
            self._waits_since.popleft()

    def delay_s(self, time_ms: int) -> float:
        """How long the oldest record that waits has waited (s); 0 if none does."""
        return (time_ms - self._waits_since[0][0]) / 1000 if self._waits_since else 0.0
