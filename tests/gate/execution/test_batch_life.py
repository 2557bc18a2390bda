"""Lives of batches under one seed: crashes, frozen owners, faults of the sink; each record once.

Planner, loop, ledger and backfill are the real ones; Spark's two logs and the source are the test
harness's. A process may crash before or after each durable step, and be frozen in its handler for
longer than its lease, while another one takes its batch over. The sink is a database that is asked
(`batch.once`): what it has is what was committed.

A life of a program here has some twenty of batches: 60 of them, 1 100.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from sqlalchemy.pool import StaticPool
from tests.gate.execution.readers import Poisoned
from tests.services.examples import count_of

from headrace.core.ranges import OffsetRange
from headrace.core.timing import LEASE_MS
from headrace.errors import BatchSplitError, LedgerError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.policy import OnFailure, isolate
from headrace.gate.ledger.proof import DEFECTS
from headrace.gate.ledger.records import PlannedRange
from headrace.testing import Crash, MemoryLog, MemoryReader, StreamHarness
from headrace.testing.memory import STEPS

GATE = "tested"
SPARED = ("begin", "report")
"""Steps of the planner and the listener; they are the harness's own tests'."""
POINTS = [f"{when} {step}" for step in STEPS if step not in SPARED for when in ("before", "after")]

ROWS = sqlalchemy.Table(
    "rows", sqlalchemy.MetaData(), sqlalchemy.Column("value", sqlalchemy.Integer, nullable=False)
)


class Sink:
    """A database that is asked, with faults until it is healed.

    Attributes:
        bad: values that it never takes.
        most: rows that it takes at once.
        freeze: called by an owner that sleeps in a call for longer than its lease.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)
        ROWS.create(self._engine)
        self._away = 0
        self.bad: set[int] = set()
        self.most = dice.choice([3, 10_000, 10_000])
        self.flaps = dice.choice([0.0, 0.05, 0.3])
        self.freezes = dice.choice([0.0, 0.0, 0.1])
        self.freeze: Any = lambda: None
        self._is_frozen = False

    def heal(self) -> None:
        self.flaps = self.freezes = 0.0
        self._away, self.most = 0, 10_000

    def __call__(self, df: Any, batch: Batch) -> None:
        values = [int(row.value) for row in df.collect()]
        dice = self._dice
        self._away = max(self._away - 1, 0) or (dice.random() < self.flaps / 3) * dice.randint(1, 9)
        if self._away:
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        if len(values) > self.most:
            raise ValueError("413 Payload Too Large")
        if dice.random() < self.flaps:
            raise RuntimeError("deadlock detected")
        if dice.random() < self.freezes and not self._is_frozen and batch.ranges:
            self._is_frozen = True
            self.freeze()
            self._is_frozen = False
        with self._engine.begin() as connection:
            if batch.once(connection):
                if not self.bad.isdisjoint(values):
                    raise Poisoned("it cannot be kept")
                if values:
                    rows = [{"value": value} for value in values]
                    connection.execute(ROWS.insert(), rows)
        if dice.random() < self.flaps / 2:
            raise ConnectionResetError("the answer to the commit was lost")

    @property
    def values(self) -> Counter[int]:
        with self._engine.connect() as connection:
            return Counter(connection.scalars(sqlalchemy.select(ROWS.c.value)))


class Life:
    """A topic, a query that may crash, and its backfills."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.sink = Sink(self.dice)
        self.log = MemoryLog(partitions=2)
        self.sent = 0
        policy: OnFailure = isolate(max_runs=self.dice.choice([4, 30, 200]))
        self.policy = self.dice.choice([policy, policy, OnFailure(last="defer")])
        self.stream = StreamHarness(
            self.sink,
            self.log,
            on_failure=self.policy,
            options={"maxOffsetsPerTrigger": self.dice.choice([1, 5, 40])},
        )
        self.sink.freeze = self.freeze

    def freeze(self) -> None:
        """The owner sleeps for longer than its lease; somebody else backfills meanwhile."""
        self.stream.clock.now_ms += LEASE_MS + 1
        self.run_elsewhere()

    def run_elsewhere(self) -> None:
        program, self.stream._program = self.stream._program, None
        try:
            self.stream.backfill(once=True)
        except (LedgerError, BatchSplitError):
            pass
        finally:
            self.stream.stop()
            self.stream._program = program

    def send(self) -> None:
        for _ in range(self.dice.choice([1, 3, 12, 60])):
            if self.policy.last == "isolate" and self.dice.random() < 0.03:
                self.sink.bad.add(self.sent)
            partition = self.dice.randrange(2)
            self.log.append(str(self.sent), partition=partition)
            self.sent += 1
            if self.dice.random() < 0.03:
                self.log.append(Crash(self.dice.choice(POINTS)), partition=partition)

    def tell(self) -> None:
        for _ in range(self.dice.randint(1, 5)):
            self.send()
            self.attempt(self.stream.run)
            if self.dice.random() < 0.5:
                self.attempt(lambda: self.stream.backfill(once=True))
        self.sink.heal()
        for _ in range(200):
            self.log.append(str(self.sent), partition=0)
            self.sent += 1
            self.attempt(self.stream.run)
            if not self.stream.ledger.batches.failed(GATE):
                break
            self.attempt(lambda: self.stream.backfill(max_backfills=20))

    def attempt(self, work: Any) -> None:
        try:
            work()
        except (LedgerError, Poisoned, RuntimeError, OSError):
            self.stream.stop()  # the query ended, and is started again

    def judge(self) -> None:
        letters = [
            int(kept.letter.value or b"-1")
            for kept in self.stream.ledger.dead_letters.oldest(GATE, limit=100_000)
        ]
        assert sorted(letters) == sorted(self.sink.bad)
        assert self.sink.values == Counter(set(range(self.sent)) - self.sink.bad)
        proof = self.stream.ledger.proofs.verify(GATE)
        assert not DEFECTS & {finding.kind for finding in proof.findings}
        assert [batch.status for batch in self.stream.ledger.batches.unresolved()] == []


def tell(seed: int, fault: "Fault | None" = None) -> None:
    life = Life(seed)
    with life.stream as stream:
        if fault is not None:
            stream.reader = fault(stream.reader)
        life.tell()
        life.judge()


Fault = Callable[[MemoryReader], MemoryReader]
"""A defect of the code that reads parts of a batch again."""


def narrowed(to: Callable[[Sequence[OffsetRange]], Sequence[OffsetRange]]) -> Fault:
    """Have replay options made of fewer offsets than were asked for."""

    def fault(reader: MemoryReader) -> MemoryReader:
        connector = reader.connector

        def replay_options(
            options: Mapping[str, str], ranges: Sequence[OffsetRange]
        ) -> dict[str, str]:
            return connector.replay_options(options, to(ranges))

        faulty = replace(reader)
        vars(faulty)["connector"] = replace(connector, replay_options=replay_options)
        return faulty

    return fault


def one_of_each_partition(ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
    return list({offsets.topic_partition: offsets for offsets in ranges}.values())


def without_the_last_offset(ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
    *others, last = ranges
    return [*others, last.split_at(last.until - 1)[0]]


def of_the_first_partition(ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
    return [offsets for offsets in ranges if offsets.partition == 0]


class ReadsTwice(MemoryReader):
    def read_again(self, ranges: Sequence[PlannedRange]) -> pa.Table:
        rows = super().read_again(ranges)
        return pa.concat_tables([rows, rows])


def twice(reader: MemoryReader) -> MemoryReader:
    return ReadsTwice(**{field.name: getattr(reader, field.name) for field in fields(reader)})


@pytest.mark.integration
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(narrowed(one_of_each_partition), id="one range of each partition"),
        pytest.param(narrowed(without_the_last_offset), id="the last offset cut off"),
        pytest.param(narrowed(of_the_first_partition), id="the second partition dropped"),
        pytest.param(twice, id="read twice"),
    ],
)
def test_lives_find_a_reader_that_loses_or_doubles_records_of_parts(fault: Fault) -> None:
    with pytest.raises(AssertionError):
        for seed in range(60):
            tell(seed, fault)


@pytest.mark.integration
def test_each_record_is_in_the_sink_once_or_a_dead_letter() -> None:
    for seed in range(count_of(60)):
        tell(seed)


@pytest.mark.soak
def test_the_same_of_ten_thousand_lives() -> None:
    """Of 190 000 batches."""
    for seed in range(1_000, 11_000):
        tell(seed)
