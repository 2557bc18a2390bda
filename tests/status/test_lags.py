import math

import pytest

from headrace.core.ranges import TopicPartition
from headrace.ledger.metric_rows import GateNow
from headrace.status.lags import KEPT_MS, Lags
from headrace.status.sources import PartitionAnswer, SourceAnswer
from headrace.testing import temporary_ledger

NOW_MS = 1_700_000_000_000
PLANNED = 100
EVERY_MS = 2_000


def gate(number: int, arrivals: int) -> GateNow:
    """A gate after so many batches, one every two seconds, while records arrive between them."""
    return GateNow(
        name="orders",
        source="kafka",
        interval_ms=1_000,
        rate_per_s=None,
        batch_cost=None,
        size_ceiling=None,
        lost_offsets=0,
        pruned_totals=None,
        held=False,
        sink_outage=None,
        has_query=True,
        capacity_per_s=None,
        limit_per_s=None,
        position=(number + 1) * PLANNED,
        checkpoint_id="run",
        created_ms=NOW_MS + number * EVERY_MS,
        ended_ms=None,
        status="success",
        lag=1_000 + number * (arrivals - PLANNED),
        planned=PLANNED,
    )


@pytest.mark.parametrize(
    ("arrivals", "drain_s"),
    [
        (60, (1_000 - 3 * 40 - PLANNED) / 20),  # 40 fewer every two seconds
        (100, math.inf),
        (130, math.inf),
    ],
)
def test_a_backlog_is_gone_after_what_is_left_over_what_is_gained_each_second(
    arrivals: int, drain_s: float
) -> None:
    lags = Lags()
    with temporary_ledger() as ledger:
        for number in range(4):
            now = gate(number, arrivals)
            lag = lags.of(ledger, [now], {}, NOW_MS + number * EVERY_MS)["orders"]
    assert lag.records == 1_000 + 3 * (arrivals - PLANNED) - PLANNED
    assert lag.drain_s == pytest.approx(drain_s)


def test_how_old_the_oldest_record_is_stays_what_the_source_said_though_batches_follow() -> None:
    """The ledger alone knows only since when replayed records wait here."""
    behind = gate(0, 60)
    partition = PartitionAnswer(position=50, end=950, beginning=0, next_ms=NOW_MS - 1_700_000)
    answers = {"orders": SourceAnswer(NOW_MS - 2_000, {TopicPartition("orders", 0): partition})}
    with temporary_ledger() as ledger:
        found = Lags().of(ledger, [behind], answers, NOW_MS)["orders"]
        assert (found.seconds, found.records) == (1_700.0, 900)
        later = Lags().of(ledger, [behind], answers, NOW_MS + KEPT_MS)["orders"]
    assert later.seconds != 1_700 + KEPT_MS / 1000
