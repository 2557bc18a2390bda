"""The planner of a gated stream: its rate comes from the ledger, its batches go there."""

import json
from pathlib import Path

import pytest
from tests.services.kafka import TopicFactory
from tests.services.ledgers import gate_now, report_sample
from tests.services.planners import gated, next_batch, planner_of

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.rate_law import Reason
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedRange, RateSample
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock


def report(ledger: Ledger, rate_per_s: float | None) -> None:
    """Report a batch, as the driver's listener does after it."""
    (last,) = ledger.batches.newest("orders", 1)
    ledger.batches.succeed(last.batch_key)
    report_sample(
        ledger,
        RateSample(
            "orders", last.created_time_ms, rate_per_s, 100, 500, 0, batch_key=last.batch_key
        ),
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


def count(ranges: list[OffsetRange]) -> int:
    return sum(r.count for r in ranges)


def test_the_first_batch_is_bounded_and_is_in_the_ledger_before_it_is_read(
    topic: TopicFactory, url: str
) -> None:
    orders = topic(2)
    orders.produce(*[b"x"] * 300)
    orders.produce(*[b"x"] * 100, partition=1)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        end, ranges = next_batch(planner, planner.initial())
        assert ranges == [OffsetRange(orders.name, 0, 0, 75), OffsetRange(orders.name, 1, 0, 25)]
        assert end["@gate"] == "orders"
        (batch,) = ledger.batches.newest("orders")
        assert (batch.status, batch.reason, batch.attempts) == (
            Status.IN_PROGRESS,
            Reason.INITIAL_RATE,
            1,
        )
        assert (batch.lag, batch.planned_records, batch.rate_per_s) == (400, 100, 100)
        assert batch.checkpoint_id == end["@checkpoint"]
        topic_id = end["@ids"][orders.name]
        assert ledger.batches.ranges(batch.batch_key) == (
            PlannedRange(ranges[0], 300, Reason.INITIAL_RATE, topic_id),
            PlannedRange(ranges[1], 100, Reason.INITIAL_RATE, topic_id),
        )


def test_the_rate_is_the_ledgers_and_without_a_report_stays_what_it_was(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 1_000)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        end, ranges = next_batch(planner, planner.initial())
        assert count(ranges) == 100
        end, ranges = next_batch(planner, end)
        assert count(ranges) == 100, "no rate is known, and no report came: still the initial one"
        report(ledger, 40.0)
        for _ in range(3):
            end, ranges = next_batch(planner, end)
            assert count(ranges) == 40
        assert [b.reason for b in ledger.batches.newest("orders")] == [Reason.RATE] * 3 + [
            Reason.INITIAL_RATE
        ] * 2


def test_the_rate_survives_a_restart(topic: TopicFactory, url: str) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 1_000)
    with planner_of(orders, gated(url)) as before, Ledger.open(url) as ledger:
        end, _ = next_batch(before, before.initial())
        report(ledger, 60.0)
    with planner_of(orders, gated(url)) as after:
        assert count(next_batch(after, end)[1]) == 60


def test_a_batch_run_again_has_the_same_ranges_and_its_row_another_attempt(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 500)
    with planner_of(orders, gated(url)) as before:
        first, _ = next_batch(before, before.initial())
        second, ranges = next_batch(before, first)
    with planner_of(orders, gated(url)) as after, Ledger.open(url) as ledger:
        assert after.begin(first, second).ranges == ranges
        newest, _oldest = ledger.batches.newest("orders")
        assert (newest.attempts, newest.status) == (2, Status.IN_PROGRESS)
        assert (newest.reason, newest.lag) == (Reason.INITIAL_RATE, 400)


def test_a_batch_planned_without_a_gate_and_run_again_under_one_is_in_its_ledger(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 5)
    native = {orders.name: {"0": 1}}, {orders.name: {"0": 3}}
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        assert planner.begin(*native).ranges == [OffsetRange(orders.name, 0, 1, 3)]
        (batch,) = ledger.batches.newest("orders")
        assert (batch.reason, batch.lag) == ("run again after a restart", None)
        end, ranges = next_batch(planner, native[1])
        assert (end["@gate"], ranges) == ("orders", [OffsetRange(orders.name, 0, 3, 5)])


def test_an_empty_first_batch_has_no_row(topic: TopicFactory, url: str) -> None:
    with planner_of(topic(), gated(url)) as planner, Ledger.open(url) as ledger:
        start = planner.initial()
        assert planner.advance(start, everything=False) != start
        assert next_batch(planner, start)[1] == []
        assert ledger.batches.newest("orders") == ()


def test_a_ledger_that_cannot_be_opened_stops_the_stream_before_it_plans(
    topic: TopicFactory, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/no-such-folder/headrace.db"
    with pytest.raises(LedgerError, match=r"no-such-folder/headrace\.db"):
        planner_of(topic(), gated(url))


def test_a_ledger_that_is_lost_stops_the_stream_before_the_batch_is_read(
    topic: TopicFactory, tmp_path: Path, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 10)
    with planner_of(orders, gated(url)) as planner:
        start = planner.initial()
        end = planner.advance(start, everything=False)
        for file in tmp_path.glob("headrace.db*"):
            file.unlink()
        for _ in range(2):
            with pytest.raises(LedgerError) as raised:
                planner.begin(start, end)
            assert str(raised.value) == (
                f"The ledger {tmp_path}/headrace.db was deleted or replaced while it was open; put"
                " the old file back and restart this program; if you replaced the file with a"
                " backup on purpose, only restart this program."
            )
        with pytest.raises(LedgerError):
            planner.advance(start, everything=False)


def test_an_auto_interval_is_waited_for_and_what_the_ledger_has_is_in_force(
    topic: TopicFactory, url: str
) -> None:
    orders, clock = topic(1), ManualClock()
    orders.produce(*[b"x"] * 5_000)
    options = gated(url, **{"headrace.interval": "auto", "headrace.maxDelay": "4 seconds"})
    with planner_of(orders, options, clock) as planner, Ledger.open(url) as ledger:
        first, ranges = next_batch(planner, planner.initial())
        assert count(ranges) == 100, "one second at the initial rate"
        assert next_batch(planner, first)[0] == first, "its second has not passed"
        (batch,) = ledger.batches.newest("orders")
        sample = RateSample("orders", 0, 200.0, 100, 900, 0, batch_key=batch.batch_key)
        ledger.rates.report(batch.batch_key, 0, 0, sample, interval_ms=2_000)
        clock.now_ms += 1_000
        second, ranges = next_batch(planner, first)
        assert count(ranges) == 400, "two seconds at the new rate"
        clock.now_ms += 1_900
        assert planner.advance(second, everything=False) == second
        clock.now_ms += 200
        assert planner.advance(second, everything=False) != second
        everything = planner.advance(second, everything=True)
        clock.now_ms += 2_000
        assert planner.advance(everything, everything=False) == everything, "nothing is new"
        orders.produce(b"x")
        clock.now_ms += 400
        assert planner.advance(everything, everything=False) == everything, "it is not looked at"
        clock.now_ms += 200
        assert planner.advance(everything, everything=False) != everything, "a quarter has passed"
    with planner_of(orders, options, clock) as planner:
        planner.advance(second, everything=False)
        with Ledger.open(url) as ledger:
            assert gate_now(ledger).interval_ms == 2_000, "a restart keeps it"


def test_a_checkpoint_that_is_an_older_copy_is_refused_before_anything_is_planned(
    topic: TopicFactory, url: str
) -> None:
    """Its next batch has been read already, and no sink would know the new keys."""
    orders = topic(2)
    orders.produce(*[b"x"] * 200)
    orders.produce(*[b"x"] * 200, partition=1)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        first, _ = next_batch(planner, planner.initial())
        last, _ = next_batch(planner, first)
        planned = ledger.batches.newest("orders")
    for _ in range(2):
        with planner_of(orders, gated(url)) as planner, pytest.raises(OptionError) as refused:
            planner.advance(first, everything=False)
        said = str(refused.value)
        assert f"is at offset 50 of {orders.name}-0 (and is behind in 1 more), but" in said
        assert "batches up to offset 100. So the checkpoint is an older copy" in said
        assert json.loads(said[said.index("{") : said.rindex("}") + 1]) == {
            orders.name: {"0": 100, "1": 100}
        }
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        assert ledger.batches.newest("orders") == planned
        assert count(next_batch(planner, last)[1]) == 100, "the newest copy goes on"
