"""Blocks that are damaged and repaired while a gated query reads the journal, again and again.

The test keeps the records that it sent; each arrives once, or a row of ``lost`` explains it.
"""

import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import finish
from tests.journal.samples import damage
from tests.services.queries import sentence

from headrace.errors import CorruptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.journal import Journal, Records, repair

pytestmark = pytest.mark.nightly

LANES = 2


class Journalist:
    """A journal that is written, damaged and repaired, and what was sent to it."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.sent: set[str] = set()
        self._reached: dict[int, int] = {}
        self.damages = 0
        self._chance = chance
        self._journal = Journal.open(str(path), create=True)

    def send(self) -> None:
        """Write a few blocks to each lane; what is acknowledged counts as sent."""
        for lane in range(LANES):
            try:
                with self._journal.writer(lane) as writer:
                    for _ in range(self._chance.randint(1, 3)):
                        until = writer.end + self._chance.randint(3, 12)
                        values = [f"{lane}/{offset}" for offset in range(writer.end, until)]
                        writer.append(Records.of([v.encode() for v in values], timestamp_ms=1))
                        self.sent.update(values)
                        self._reached[lane] = until
            except CorruptionError:
                self.repair()

    def damage(self) -> None:
        """Change a byte of a block; of the last one of a lane that is taken for a torn tail."""
        blocks = [
            (lane, block) for lane in range(LANES) for block in self._journal.blocks(lane)[:-1]
        ]
        if not blocks:
            return
        lane, block = self._chance.choice(blocks)
        at = self._chance.randrange(block.stored_bytes)
        damage(self._journal, block.first, at=at, lane=lane)
        self.damages += 1

    def repair(self) -> None:
        """Repair the journal, as an operator does, who knows what was acknowledged.

        A damaged header at a lane's end does not say how many records it had.
        """
        repair(self._journal, self._reached)


class Sink:
    """Keeps each batch under its key; meddles with the journal before it reads, at times."""

    def __init__(self, journalist: Journalist, chance: random.Random) -> None:
        self.batches: dict[str, list[str]] = {}
        self.meddles = True
        self._journalist = journalist
        self._chance = chance

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        if self.meddles and self._chance.random() < 0.5:
            self._journalist.damage()
            if self._chance.random() < 0.5:
                self._journalist.repair()
        rows = df.collect()
        self.batches[batch.key] = [bytes(row.value).decode() for row in rows]


def run(gate: Gate, spark: SparkSession, journalist: Journalist, sink: Sink, folder: Path) -> bool:
    """Run the query on what is there; whether it came to its end, or a damaged block stopped it."""
    reader = gate.read(spark, "journal").option("failOnDataLoss", "false")
    df = reader.option("maxOffsetsPerTrigger", 20).load(str(journalist.path))
    writer = gate.write(df, sink).option("checkpointLocation", str(folder / "checkpoint"))
    try:
        finish(writer.trigger(availableNow=True).start())
    except StreamingQueryException as error:
        assert sentence(error).startswith("CorruptionError: "), sentence(error)
        return False
    return True


@pytest.mark.parametrize(
    "rounds", [4, pytest.param(150, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_each_record_arrives_once_or_is_explained_however_often_blocks_are_damaged_and_repaired(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    url = f"sqlite:///{tmp_path}/headrace.db"
    gate = Gate("orders", interval="1 second", ledger=url)
    journalist = Journalist(tmp_path / "orders", chance)
    sink = Sink(journalist, chance)
    for number in range(rounds):
        journalist.send()
        if number == 2 or chance.random() < 0.5:
            journalist.damage()
        if not run(gate, spark, journalist, sink, tmp_path):
            journalist.repair()
    sink.meddles = False
    journalist.repair()
    assert run(gate, spark, journalist, sink, tmp_path)

    arrived = Counter(value for values in sink.batches.values() for value in values)
    assert [value for value, times in arrived.items() if times > 1] == []
    with sqlite3.connect(tmp_path / "headrace.db") as file:
        rows = file.execute("SELECT partition, from_offset, until_offset FROM lost").fetchall()
    explained = {f"{lane}/{n}" for lane, begin, until in rows for n in range(begin, until)}
    assert journalist.sent - arrived.keys() - explained == set()
    assert arrived.keys() - journalist.sent == set()
    assert journalist.damages > 0
    with Ledger.open(url, create=False) as ledger:
        proof = ledger.proofs.verify("orders")
    assert proof.verdict is Verdict.PROVEN
    # A record that was read before its block was damaged is both, and counts as lost.
    assert sum(span.processed for span in proof.spans) == len(journalist.sent - explained)
