"""``headrace why``: a batch's size from the top, of a ledger that a planner could have written."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.operate.cli.conftest import Complain
from tests.operate.cli.outcomes import rows, told
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.law import Law, Shown
from headrace.gate.control.laws import LAWS, EstimatorSettings
from headrace.gate.control.size_ceiling import SizeCeiling
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, RateSample

NOW_MS = 1_700_000_000_000
ALL = "everything available"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two batches: the first by the initial rate, the second by PID and an operator's limit."""
    url, now_ms = f"sqlite:///{tmp_path}/headrace.db", NOW_MS

    def batch(start: int, until: int, reason: str, rate_per_s: float) -> PlannedBatch:
        ranges = (
            PlannedRange(OffsetRange("orders", 0, start, until), 9_000, reason),
            PlannedRange(
                OffsetRange("orders", 1, start, start + 5), start + 5, "everything available"
            ),
        )
        lag = 9_000 - start + 5
        return PlannedBatch("orders", "run", ranges, reason, "x:1", lag=lag, rate_per_s=rate_per_s)

    with new_ledger(url, clock=lambda: now_ms) as ledger:
        law = EstimatorSettings("pid").to_text()
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=law)
        first = ledger.batches.begin(batch(0, 1_000, "initial rate", 1_000.0)).batch_key
        ledger.batches.attach(first, 0)
        ledger.batches.succeed(first)
        now_ms += 500
        ledger.rates.report(
            first,
            0,
            now_ms,
            RateSample(
                *("orders", now_ms, 5_000.4, 1_000, 200, 0, 5_000.0, 40.0, -2.0, 0.0, 0, first)
            ),
            batch_cost=SourceCost(0.3, 50e-6, 1e-6, 0.0, 1e-12, noise=0.1).to_text(),
        )
        ledger.operator_limits.limit("orders", 200, "ops", "the sink's quota")
        now_ms = ledger.database_time_ms() + 1_000
        second = ledger.batches.begin(batch(1_000, 1_200, "limited", 200.0)).batch_key
        ledger.batches.attach(second, 1)
    return url


def test_the_last_batch_is_explained_from_the_top(url: str) -> None:
    (found,) = rows(url, "why orders")
    said = [(each["about"], each["sentence"]) for each in found["sentences"]]
    about = [each for each, _ in said]
    assert about == [
        *("size", "lag", "rate", "law", "batch cost"),
        *("caps", "caps", "throttle", "operators"),
    ]
    of = dict(said)
    assert of["size"].startswith("Batch 1 has 205 records, planned ")
    assert of["lag"] == "8,005 records waited, of which 7,800 are left."
    assert of["rate"] == ("200/s, the operator's limit: 200 records in an interval of 1.00 s.")
    assert of["law"] == (
        "pid learnt 5,000/s from batch 0, which processed 1,000 records in 0.20 s (5,000/s);"
        " 4,962/s before, P +40, I -2, D 0."
    )
    assert "a = 0.30 s before its first record, and b = 50 µs a record" in of["batch cost"]
    assert of["operators"].startswith("Then in force: limited to 200 records/s by ops: the sink's")
    shown = told(url, "why orders", width=80)
    assert "8,005 records waited" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("fixed_s", "ends"),
    [
        (0.65, "35 records fill the interval."),
        (
            0.8,
            "20 records fill the interval. Executors do not shorten a: an interval of 2.40 s"
            " carries at least as much as twice their number would.",
        ),
    ],
)
def test_more_executors_do_not_help_where_an_interval_is_short(
    url: str, fixed_s: float, ends: str
) -> None:
    with Ledger.open(url, clock=lambda: NOW_MS + 9_000) as ledger:
        law = EstimatorSettings("learned").to_text()
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=law)
        key = ledger.batches.begin(
            PlannedBatch(
                "orders",
                "run",
                (PlannedRange(OffsetRange("orders", 0, 1_200, 1_300), 9_000, "rate"),),
                "rate",
                "x:1",
            )
        ).batch_key
        ledger.batches.succeed(key)
        sample = RateSample("orders", NOW_MS, 500.0, 100, 900, 0, 111.0, None, None, None, 2, key)
        cost = SourceCost(fixed_s, 0.01, 1e-6, 0.0, 1e-12).to_text()
        ledger.rates.report(key, 2, NOW_MS + 10_000, sample, batch_cost=cost)
    (found,) = rows(url, "why orders")
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert of["batch cost"].endswith(ends)


def test_an_earlier_batch_is_explained_by_what_was_known_then(url: str) -> None:
    (found,) = rows(url, "why orders --batch 0")
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert (found["number"], found["learnt_per_s"], found["operator"]) == (0, None, None)
    assert "backpressure.initialRate, as none was learnt yet" in of["rate"]
    assert of["law"] == "The law, pid, had learnt no rate yet."
    assert of["operators"] == "None limited the gate."
    assert found["limiting"][0] == {
        "reason": "initial rate",
        "partitions": 1,
        "left_over": 8_000,
    }


def test_what_is_not_there_is_said_in_a_sentence(url: str, complain: Complain) -> None:
    assert "has no batch 7; `headrace batches orders`" in complain(
        url, "why", "orders", "--batch", "7"
    )
    assert "no gate 'unheard'" in complain(url, "why", "unheard")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ceiling: 302 records at once failed, 288 passed", "It made this batch as small as it is"),
        ("rate", "It did not limit this batch"),
    ],
)
def test_a_ceiling_is_explained(url: str, reason: str, said: str) -> None:
    with Ledger.open(url) as ledger:
        ceiling = SizeCeiling(288, 302)
        ledger.gates.change_ceiling("orders", None, ceiling.to_text())
        ranges = (PlannedRange(OffsetRange("orders", 0, 2_000, 2_288), 9_000, reason),)
        ledger.batches.begin(PlannedBatch("orders", "run", ranges, reason, "x:1"))
    (found,) = rows(url, "why orders")
    assert found["ceiling"] == "302 records at once failed, 288 passed"
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert of["ceiling"] == (
        "As known now, 302 records at once failed, 288 passed: the handler takes no larger batch."
        f" {said}. Batches grow by 5 % until one fails; `headrace limit no-ceiling orders` lifts"
        " it."
    )
    if reason.startswith("ceiling"):
        assert "limited by the ceiling, the largest batch that the handler takes" in of["caps"]


@pytest.mark.parametrize(
    ("reason", "caps", "size"),
    [
        (
            "limited to 10 records/s by root: quota",
            "1 partition is limited to 10 records/s by root: quota, and leaves 7,000 records.",
            "; limited to 10 records/s by root: quota.",
        ),
        (
            "throttled by parse",
            "1 partition is throttled by parse, and leaves 7,000 records.",
            "; throttled by parse.",
        ),
        (
            "rate",
            "1 partition is limited by its share of the rate, and leaves 7,000 records.",
            "; limited by: rate.",
        ),
    ],
)
def test_what_limits_is_said_once(url: str, reason: str, caps: str, size: str) -> None:
    with Ledger.open(url) as ledger:
        ranges = (PlannedRange(OffsetRange("orders", 0, 2_000, 3_000), 10_000, reason),)
        ledger.batches.begin(PlannedBatch("orders", "run", ranges, reason, "x:1"))
    (found,) = rows(url, "why orders")
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert of["caps"] == caps
    assert of["size"].endswith(size)


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (EstimatorSettings("pid").to_text().replace("pid", "vegas"), "The law learnt 5,000/s from"),
        ("of another version", "The law learnt 5,000/s from"),
        (EstimatorSettings("learned").to_text(), "learned learnt 5,000/s from"),
    ],
)
def test_a_sample_by_a_law_that_is_not_in_force_is_explained(url: str, law: str, said: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=law)
    (found,) = rows(url, "why orders")
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert of["law"].startswith(said)
    assert rows(url, "status orders")


def test_a_law_says_itself_what_a_rate_comes_from(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (Shown("asked for", 70.0), Shown("Q", -2.0, is_change=True))
    third = replace(LAWS["pid"], name="third", shown=lambda *_: shown)
    monkeypatch.setitem(cast("dict[str, Law]", LAWS), third.name, third)
    law = EstimatorSettings("third").to_text()
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=law)
    (found,) = rows(url, "why orders")
    of = {each["about"]: each["sentence"] for each in found["sentences"]}
    assert of["law"].endswith("(5,000/s); 70/s asked for, Q -2.")
