"""Faults while batches are isolated and backfilled: no good record becomes a dead letter."""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from tests.gate.execution.readers import OrdersLog, Place, Poisoned, places
from tests.gate.execution.test_isolation import Scene, a_scene, owner_that_is_gone
from tests.services.examples import count_of

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.policy import isolate
from headrace.gate.ledger.records import PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryReader

pytestmark = pytest.mark.nightly

OFFSETS: Final = 4_000
"""In each partition of the log."""


@dataclass
class Fault:
    """A fault at random times; it heals after a while.

    Attributes:
        dice: The chance that decides when.
        calls: Calls of the handler so far.
        healed: Whether it is over.
    """

    dice: random.Random
    calls: int = 0
    healed: bool = False
    _is_on: bool = False
    _begins: int = 0
    _lasts: int = 0
    _rate: float = 0.5
    _dwell: float = 1

    def __post_init__(self) -> None:
        self._begins = self.dice.randrange(40)
        self._lasts = self.dice.randrange(1, 80)
        self._rate = self.dice.choice([0.1, 0.3, 0.5, 0.7])
        self._dwell = self.dice.choice([1, 2, 5, 20])

    @property
    def is_in_time(self) -> bool:
        """For a part of the story."""
        return not self.healed and self._begins <= self.calls < self._begins + self._lasts

    def comes_and_goes(self) -> bool:
        """On for some calls, off for some."""
        if self.dice.random() < 1 / self._dwell:
            self._is_on = self.dice.random() < self._rate
        return self._is_on and not self.healed

    def handle(self, _records: int) -> None:
        """Called in the handler."""

    def replay(self) -> None:
        """Called before the handler is, when Spark reads again."""

    def read(self) -> bool:
        """Whether a read in the handler finds no brokers."""
        return False

    def store(self) -> None:
        """Called when the ledger is to keep a batch's progress, or to count a run."""


class SinkDown(Fault):
    def handle(self, _records: int) -> None:
        if self.is_in_time:
            raise ConnectionError("the sink is down")


class SinkFlapping(Fault):
    def handle(self, _records: int) -> None:
        if self.comes_and_goes():
            raise ConnectionError("the sink is down for a moment")


class ReplayRefused(Fault):
    def replay(self) -> None:
        if self.comes_and_goes() or self.is_in_time:
            raise StreamingQueryException("the checkpoint is not one of this version")


class BrokerGone(Fault):
    def read(self) -> bool:
        return self.is_in_time or self.comes_and_goes()


class LedgerGone(Fault):
    def store(self) -> None:
        if self.comes_and_goes():
            raise LedgerError("The ledger cannot be reached.")


class DiskFull(Fault):
    def handle(self, _records: int) -> None:
        if self.is_in_time and self.dice.random() < 0.5:
            raise OSError(errno.ENOSPC, "No space left on device")

    def replay(self) -> None:
        if self.is_in_time:
            raise OSError(errno.ENOSPC, "No space left on device")


class EverySeventh(Fault):
    def handle(self, _records: int) -> None:
        if self.calls % 7 == 0:
            raise RuntimeError("the seventh call")


class OnlyBadRecords(Fault):
    pass


class SinkSlow(Fault):
    def handle(self, records: int) -> None:
        if (records > 20 and not self.healed) or self.comes_and_goes():
            raise TimeoutError("the sink takes too long")


class WarmingUp(Fault):
    """For its first calls in each process, of which there are some."""

    def handle(self, _records: int) -> None:
        if not self.healed and self.calls % (10 * self._lasts) < self._lasts:
            raise RuntimeError("not connected yet")


KINDS: Final = [
    *(SinkDown, SinkFlapping, ReplayRefused, BrokerGone, LedgerGone),
    *(DiskFull, EverySeventh, OnlyBadRecords, SinkSlow, WarmingUp),
]


class FaultyLog(OrdersLog):
    """Enough for each story, one of which is told at a time."""

    def __init__(self) -> None:
        super().__init__(lambda _places: self.fault is not None and self.fault.read())
        self.fault: Fault | None = None
        for partition in range(2):
            self.append(*[b"an order"] * OFFSETS, partition=partition)


LOG: Final = FaultyLog()


@dataclass(frozen=True)
class FaultyReader(MemoryReader):
    """Reads again where Spark does."""

    fault: Fault = field(default_factory=lambda: Fault(random.Random(0)))

    def run(self, ranges: Sequence[PlannedRange], use: Callable[[DataFrame], None]) -> None:
        self.fault.replay()
        super().run(ranges, use)


class Story:
    """A stream with bad records in it, and a fault."""

    def __init__(self, scene: Scene, fault: Fault, dice: random.Random) -> None:
        self.scene, self.fault, self.dice = scene, fault, dice
        LOG.fault = fault
        self.reader = FaultyReader(LOG, fault=fault)
        self.at = [0, 0]
        self.bad: set[Place] = set()
        self.planned: list[Place] = []
        self.kept: dict[str, list[Place]] = {}
        self.owner: str | None = None
        self._watch_ledger()

    def _watch_ledger(self) -> None:
        for name in ("keep_progress", "retry"):
            do = getattr(self.scene.ledger.batches, name)

            def watched(*args: object, do: Callable[..., object] = do, **more: object) -> object:
                self.fault.store()
                return do(*args, **more)

            setattr(self.scene.ledger.batches, name, watched)

    def handle(self, df: DataFrame, batch: Batch) -> None:
        df.collect()
        self.fault.calls += 1
        given = places(batch.ranges)
        self.fault.handle(len(given))
        found = [place for place in given if place in self.bad]
        if found:
            raise Poisoned(f"cannot keep {found[0]}")
        self.kept[batch.key] = given

    def next_ranges(self, records: int) -> list[OffsetRange]:
        """Return the ranges that the stream plans next."""
        counts = [records // 2, records - records // 2]
        ranges = [
            OffsetRange("orders-topic", p, self.at[p], self.at[p] + n)
            for p, n in enumerate(counts)
            if n
        ]
        for each in ranges:
            self.at[each.partition] = each.until
        self.planned += places(ranges)
        return ranges

    def stream(self, records: int, bad: int = 0) -> None:
        """A batch of the stream, which is begun again where that ended the query."""
        ranges = self.next_ranges(records)
        self.bad |= {*self.dice.sample(places(ranges), bad)}
        while True:
            owner = owner_that_is_gone()
            try:
                self.scene.run_live(
                    self.handle,
                    ranges=ranges,
                    owner=owner,
                    gone=self.owner,
                    reader=self.reader,
                    policy=isolate(max_runs=self.dice.choice([5, 60, 200])),
                )
            except LedgerError:
                self.owner = owner  # the query is started again
                continue
            self.owner = owner
            return

    def goes_on(self, _wait_s: float) -> None:
        """The stream goes on beside a backfill that waits."""
        self.stream(2)

    def backfill(self) -> None:
        """A backfill of each batch that has failed."""
        batches = self.scene.ledger.batches
        for row in batches.failed("orders", 1_000):
            if self.scene.row(row.batch_key).status is not Status.FAILED:
                continue  # the stream has taken it up again
            try:
                self.scene.backfill(
                    row.batch_key, self.handle, reader=self.reader, sleep=self.goes_on
                )
            except LedgerError:
                away = LedgerError("away")  # the lease of the backfill runs out
                batches.release(row.batch_key, "a backfill", away, is_dead=False)

    def tell(self) -> None:
        for _ in range(self.dice.randint(2, 5)):
            records = self.dice.choice([1, 2, 5, 13, 40, 150])
            self.stream(records, min(records, self.dice.choice([0, 0, 1, 1, 2, 3])))
            if self.dice.random() < 0.5:
                self.backfill()
        self.fault.healed = True
        for _ in range(80):
            self.stream(3)
            if not self.scene.ledger.batches.failed("orders"):
                return
            self.backfill()

    def problems(self) -> Iterator[str]:
        letters = set(self.scene.dead_letters)
        processed = [place for each in self.kept.values() for place in each]
        if letters - self.bad:
            yield f"good records are dead letters: {sorted(letters - self.bad)}"
        if self.bad - letters:
            yield f"bad records are none: {sorted(self.bad - letters)}"
        if sorted([*processed, *letters]) != sorted(self.planned):
            yield "something is missing, or there twice"
        if dead := set(self.scene.places(Status.DEAD)) - letters:
            yield f"batches are dead: {sorted(dead)}"


def tell(kind: type[Fault], seed: int, folder: Path) -> None:
    dice = random.Random(f"{kind.__name__} {seed}")
    folder = folder / str(seed)
    folder.mkdir()
    with a_scene(folder) as scene:
        story = Story(scene, kind(dice), dice)
        story.tell()
        assert list(story.problems()) == [], f"{kind.__name__}, seed {seed}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_good_record_is_a_dead_letter_and_each_bad_one_is_in_the_end(
    kind: type[Fault], tmp_path: Path
) -> None:
    for seed in range(count_of(5)):
        tell(kind, seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_of_a_thousand_faults(kind: type[Fault], tmp_path: Path) -> None:
    for seed in range(100):
        tell(kind, seed, tmp_path)
