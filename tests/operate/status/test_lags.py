import math
from dataclasses import replace

import pytest

from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import OperatorLimits
from headrace.gate.ledger.records import GateMoment
from headrace.operate.status.lags import KEPT_MS, Lags
from headrace.operate.status.sources import PartitionAnswer, SourceAnswer
from headrace.testing import temporary_ledger

NOW_MS = 1_700_000_000_000
PLANNED = 100
EVERY_MS = 2_000


def gate(number: int, arrivals: int) -> GateMoment:
    """A gate after so many batches, one every two seconds, while records arrive between them."""
    return GateMoment(
        name="orders",
        source="kafka",
        interval_ms=1_000,
        estimator="pid",
        created_ms=0,
        rate_per_s=None,
        rate_time_ms=None,
        lost_offsets=0,
        pruned_totals=None,
        reported=None,
        begins=0,
        rate_limit=None,
        operator=OperatorLimits("orders", NOW_MS),
        has_query=True,
        capacity_per_s=None,
        position=(number + 1) * PLANNED,
        checkpoint_id="run",
        planned_ms=NOW_MS + number * EVERY_MS,
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


@pytest.mark.parametrize("age_ms", [None, KEPT_MS - 1, KEPT_MS])
@pytest.mark.parametrize("has_query", [True, False])
def test_nothing_waits_for_a_gate_without_a_query_only_if_its_source_says_so_now(
    has_query: bool, age_ms: int | None
) -> None:
    idle = replace(gate(0, 60), lag=PLANNED, has_query=has_query)
    now_ms = NOW_MS + 10 * KEPT_MS
    answers = {}
    if age_ms is not None:
        partition = PartitionAnswer(position=100, end=100, beginning=0)
        answers = {
            "orders": SourceAnswer(now_ms - age_ms, {TopicPartition("orders", 0): partition})
        }
    with temporary_ledger() as ledger:
        lag = Lags().of(ledger, [idle], answers, now_ms)["orders"]
    is_known = has_query or age_ms == KEPT_MS - 1
    expected = (0, 0.0, 0.0) if is_known else (None, None, None)
    assert (lag.records, lag.seconds, lag.drain_s) == expected
    assert lag.age_s is not None, "the age of the last figure is known"


def test_the_lag_of_a_gate_without_a_query_grows_and_is_never_drained() -> None:
    stopped, lags = [replace(gate(number, 60), has_query=False) for number in range(2)], Lags()
    with temporary_ledger() as ledger:
        lags.of(ledger, stopped[:1], {}, NOW_MS)
        first, later = (
            lags.of(ledger, stopped[1:], {}, NOW_MS + after_ms)["orders"]
            for after_ms in (10_000, 3_600_000)
        )
    assert first.records == later.records == 1_000 - 40 - PLANNED
    assert (first.drain_s, later.drain_s) == (None, None)
    assert first.seconds is not None
    assert later.seconds == first.seconds + 3_590
