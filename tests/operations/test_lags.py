import math

import pytest

from headrace.ledger.metric_rows import GateNow
from headrace.operations.lags import Lags
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
        lost_offsets=0,
        pruned_totals=None,
        held=False,
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
