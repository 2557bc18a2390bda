"""Causes of a low rate: a sentence for each case, from the measurements."""

from dataclasses import replace

import pytest

from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.interval import IntervalLaw
from headrace.gate.control.laws import EstimatorSettings
from headrace.operate.status.trends import Measured, diagnose


def cost(fixed_s: float, record_s: float, *, off: float = 0.01) -> SourceCost:
    return SourceCost(fixed_s, record_s, (off * fixed_s) ** 2, 0.0, (off * record_s) ** 2)


SLOW = Measured(
    settings=EstimatorSettings(min_rate=100.0),
    interval_ms=1_000,
    rate_per_s=100.0,
    rates_per_s=(100.0, 100.0, 100.0),
    took_ms=(2_390, 2_400, 2_410),
    cost=None,
)
"""At its lowest rate, and batches take longer than the interval."""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            replace(SLOW, cost=cost(0.443, 0.0195)),
            "A record costs 20 ms, so at most 51/s fit whatever the interval, and minRate is 100/s:"
            " lower it, or make the handler faster.",
            id="the records cost too much",
        ),
        pytest.param(
            replace(SLOW, cost=cost(0.25, 0.008), took_ms=(1_100, 1_100, 1_100)),
            "A batch costs 250 ms before its first record and 8.0 ms a record, so 94/s fit into an"
            " interval of 1.00 s, and minRate is 100/s: an interval of 1.25 s carries that.",
            id="a longer interval carries the lowest rate",
        ),
        pytest.param(
            replace(
                SLOW,
                settings=EstimatorSettings("pid", min_rate=100.0),
                cost=cost(0.95, 0.0001),
                took_ms=(960, 960, 960),
            ),
            "A batch costs 0.95 s before its first record; the interval of 1 s is too short, and an"
            " interval of 5 s carries 16 times as many records.",
            id="the fixed cost is near the interval",
        ),
        pytest.param(SLOW, "is not known: they were all of one size.", id="nothing is known"),
        pytest.param(
            replace(SLOW, cost=cost(0.443, 0.0195, off=0.5)),
            "is not known: they were all of one size.",
            id="too little is known",
        ),
        pytest.param(replace(SLOW, cost=cost(0.1, 0.008)), None, id="it fits"),
        pytest.param(replace(SLOW, is_throttled=True), None, id="somebody holds it back"),
        pytest.param(
            replace(SLOW, rate_per_s=101.0),
            "The last 3 batches took 2.40 s, and the interval is 1.00 s, so each begins late: an"
            " interval of 3 s holds them, or make the handler faster.",
            id="much too long above the lowest rate",
        ),
        pytest.param(
            replace(SLOW, rate_per_s=101.0, took_ms=(2_400, 1_490, 2_400)),
            None,
            id="one of them is not much too long",
        ),
        pytest.param(
            replace(
                SLOW, settings=EstimatorSettings(auto=IntervalLaw()), rates_per_s=(9.0, 9.0, 9.0)
            ),
            None,
            id="the interval is auto",
        ),
        pytest.param(
            replace(SLOW, rates_per_s=(100.0, 150.0, 100.0), took_ms=(1_400, 1_400, 1_400)),
            None,
            id="not for long",
        ),
        pytest.param(replace(SLOW, took_ms=(200, 210, 220)), None, id="fast enough"),
        pytest.param(replace(SLOW, took_ms=(2_400, 2_400)), None, id="too few batches"),
        pytest.param(replace(SLOW, rate_per_s=None, took_ms=(960, 960, 960)), None, id="no rate"),
    ],
)
def test_the_cause_that_is_named_follows_from_what_was_measured(
    found: Measured, words: str | None
) -> None:
    sentence = diagnose(found)
    assert sentence is None if words is None else sentence is not None and words in sentence
