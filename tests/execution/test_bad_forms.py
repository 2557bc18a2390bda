"""Batch after batch with records that make the handler raise, on a real broker and a real Spark."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.execution.queries import DEADLINE_S, read
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

import headrace
from headrace.control.isolation import TrialSize
from headrace.execution import Batch, Gate
from headrace.ledger import Ledger

pytestmark = pytest.mark.nightly

RECORDS = 100
BATCHES = 4
BAD_AT = (12, 91)
"""Where each batch has its bad records."""


class Strict:
    """A handler that takes amounts, and nothing else.

    Attributes:
        runs: how often it was called for a batch of the stream and its parts.
        kept: what it has taken.
    """

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.kept: list[int] = []

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        if not batch.parent_keys:
            self.runs.append(0)
        self.runs[-1] += 1
        rows = [json.loads(bytes(row.value)) for row in df.select("value").collect()]
        amounts = [row["id"] + 0 * int(row["amount"]) for row in rows]
        self.kept += amounts


def value(at: int) -> bytes:
    if at % RECORDS not in BAD_AT:
        return json.dumps({"id": at, "amount": 1}).encode()
    return b"\xffno JSON %d" % at if at % 2 == 0 else b'{"id": %d, "amount": "no"}' % at


def test_from_the_second_batch_on_bad_records_take_few_runs(
    spark: SparkSession, topic: TopicFactory, ledger_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    orders, handler, total = topic(), Strict(), RECORDS * BATCHES
    values = [value(at) for at in range(total)]
    orders.produce(*values)
    bad = {at: each for at, each in enumerate(values) if at % RECORDS in BAD_AT}
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    options = {"backpressure.initialRate": RECORDS, "maxOffsetsPerTrigger": RECORDS}
    df = read(gate, spark, orders, **options)
    policy = headrace.isolate(max_runs=1_000, max_time="10 minutes")
    writer = gate.write(df, handler, on_failure=policy, backfill="manual")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(
            lambda: (
                sorted(handler.kept)[-1:] == [total - 1]
                and len(ledger.dead_letters.oldest("orders", limit=1_000)) == len(bad)
            ),
            DEADLINE_S,
        )
    finally:
        query.stop()
    letters = ledger.dead_letters.oldest("orders", limit=1_000)
    assert {each.letter.offset: each.letter.value for each in letters} == bad
    assert sorted(handler.kept) == sorted(set(range(total)) - bad.keys())
    assert not ledger.batches.failed("orders")
    first, *others = handler.runs
    assert first > 30, "nothing was learnt before the first batch"
    test = TrialSize.for_suspects(len(BAD_AT))
    assert test is not None
    # The batch, each bad record, what is between them, a test, and the rest of the controls.
    assert [runs for runs in others if runs > 1 + 2 * len(BAD_AT) + test.runs + 4] == []
