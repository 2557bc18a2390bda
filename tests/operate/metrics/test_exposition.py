"""Metrics in a scrape of a ledger, read by the parsers of prometheus-client."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from tests.flow.samples import state_of_stage
from tests.gate.ledger.samples import a_sample, convict
from tests.operate.metrics.fleets import ERROR, done, letter, plan
from tests.services.examples import examples
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.flow.signal_codec import encode
from headrace.gate.control.size_ceiling import SizeCeiling
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.metrics.scrape import MetricsMemory, exposition
from headrace.operate.status.stages import BOTTLENECK, stages_of
from headrace.testing import ManualClock

_gates = itertools.count()

Sample = tuple[str, tuple[tuple[str, str], ...]]


def scrape(
    ledger: Ledger, clock: ManualClock, memory: MetricsMemory | None = None, **options: Any
) -> dict[Sample, float]:
    """The samples by name and labels, without those of time that passes; both texts agree."""
    text = exposition(ledger, memory=memory, clock=clock, **options).decode()
    found = dict(_samples(prometheus(text)))
    again = exposition(ledger, memory=memory, clock=clock, openmetrics=True, **options).decode()
    families = openmetrics(again)  # type: ignore[no-untyped-call]
    assert dict(_samples(families)).keys() == found.keys()
    return found


def _samples(families: Any) -> Iterator[tuple[Sample, float]]:
    for family in families:
        for sample in family.samples:
            if "operation" not in sample.labels:
                yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


def value(samples: dict[Sample, float], name: str, **labels: str) -> float | None:
    """A metric of the gate ``orders``, unless other labels are given."""
    labels = labels if {"gate", "flow", "consumergroup"} & labels.keys() else {
        "gate": "orders", **labels,
    }  # fmt: skip
    return samples.get((f"headrace_{name}", tuple(sorted(labels.items()))))


def test_an_empty_gate_has_no_lag_and_no_batch(ledger: Ledger, clock: ManualClock) -> None:
    samples = scrape(ledger, clock)
    assert samples["headrace_ledger_up", ()] == 1
    assert value(samples, "lag_records") is None
    assert value(samples, "batches_total", status="success") == 0
    assert value(samples, "batch_interval_seconds") == 1
    assert value(samples, "batch_duration_seconds_count") == 0


def test_a_ledger_that_cannot_be_read_is_down(clock: ManualClock) -> None:
    def away() -> Ledger:
        raise LedgerError("It is gone.")

    text = exposition(away, clock=clock).decode()
    assert [sample for family in prometheus(text) for sample in _samples([family])] == [
        (("headrace_ledger_up", ()), 0)
    ]


def claim_gate(ledger: Ledger, gate: str = "orders") -> None:
    """Have a query read behind a gate, for half a minute."""
    claim = GateClaim(gate, "a query", None, None, "a test", 1_000, "kafka", "pid")
    assert ledger.gates.claim(claim, 30_000) is None


def test_lag_in_seconds_is_the_time_since_what_is_read_next_was_the_newest(
    ledger: Ledger, clock: ManualClock
) -> None:
    claim_gate(ledger)
    memory = MetricsMemory()
    began_ms = clock()
    for start, latest in [(0, 100), (10, 150), (20, 200)]:
        done(ledger, clock, start, 10, latest)
        clock.now_ms += 600
    done(ledger, clock, 30, 120, 250)
    samples = scrape(ledger, clock, memory)
    assert value(samples, "lag_records") == 100
    # 150 was the newest offset as the second batch was planned, 1 s after the first.
    assert value(samples, "lag_seconds") == (clock() - began_ms - 1_000) / 1000
    assert value(samples, "lag_age_seconds") == 0.4
    clock.now_ms += 1_000
    done(ledger, clock, 150, 50, 250)
    samples = scrape(ledger, clock, memory)
    assert value(samples, "lag_seconds") == (clock() - began_ms - 2_000) / 1000
    done(ledger, clock, 200, 50, 250)
    samples = scrape(ledger, clock, memory)
    assert (value(samples, "lag_records"), value(samples, "lag_seconds")) == (0, 0)
    assert value(samples, "drain_seconds") == 0


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60), st.booleans()), max_size=8),
)
def test_the_lag_of_a_scrape_that_remembers_is_that_of_one_that_reads_all_where_it_saw_all(
    ledger: Ledger, clock: ManualClock, steps: list[tuple[int, int, bool]]
) -> None:
    gate = f"gate {next(_gates)}"
    ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
    claim_gate(ledger, gate)
    memory = MetricsMemory()
    position, latest, plans = 0, 0, list[tuple[int, int]]()
    for taken, arrived, scraped in steps:
        clock.now_ms += 1_000
        latest += arrived
        count = min(taken, latest - position)
        if count:
            plans.append((clock(), latest))
            batch = plan(ledger, position, count, latest, gate)
            ledger.batches.succeed(batch.batch_key)
            position += count
        if scraped:
            scrape(ledger, clock, memory)
    expected = None
    if plans:
        left = plans[-1][1] - position
        at = [time_ms for time_ms, seen in plans if seen <= position] or [plans[0][0]]
        expected = (clock() - max(at)) / 1000 if left else 0
    assert value(scrape(ledger, clock), "lag_seconds", gate=gate) == expected
    remembered = value(scrape(ledger, clock, memory), "lag_seconds", gate=gate)
    if all(scraped for *_, scraped in steps):
        assert remembered == expected
    elif expected:
        # It knows the batches that it has seen: it is as exact as scrapes are frequent.
        assert remembered is not None
        assert remembered >= expected
    else:
        assert remembered == expected


def test_totals_count_batches_by_end_and_reason_and_never_fall(
    ledger: Ledger, clock: ManualClock
) -> None:
    memory = MetricsMemory()
    for number in range(4):
        done(ledger, clock, number * 10, 10, 100, took_ms=400 * (number + 1))
    failed = plan(ledger, 40, 10, 100, reason="limited to 5 records/s by ops, since 10:14 UTC")
    ledger.batches.fail(failed.batch_key, ERROR)
    clock.now_ms += 7_000
    plan(ledger, 50, 10, 100)

    def check(memory: MetricsMemory, finished: int, dead: int = 0) -> None:
        samples = scrape(ledger, clock, memory)
        assert value(samples, "batches_total", status="success") == finished
        assert value(samples, "batches_total", status="dead") == dead
        assert value(samples, "records_total", outcome="processed") == 10 * finished
        assert value(samples, "batches_limited_total", reason="rate") == 5
        assert value(samples, "batches_limited_total", reason="limited") == 1
        assert value(samples, "batch_duration_seconds_count") == finished
        assert value(samples, "batch_duration_seconds_bucket", le="0.5") == finished - 3
        assert value(samples, "batch_duration_seconds_bucket", le="1") == finished - 2
        assert value(samples, "batch_duration_seconds_sum") == 4

    for _ in range(2):
        check(memory, 4)
    samples = scrape(ledger, clock, memory)
    assert value(samples, "batches_open", status="failed") == 1
    assert value(samples, "oldest_failed_batch_seconds") == 7
    assert ledger.history.prune(clock())[0] == 4
    check(memory, 4)
    check(MetricsMemory(), 4)
    ledger.batches.claim(failed.batch_key, "me", 30_000)
    ledger.batches.backfilled(failed.batch_key, "me", records=10)
    check(memory, 5)
    assert value(scrape(ledger, clock, memory), "oldest_failed_batch_seconds") == 0


def test_what_waits_for_somebody_is_counted(ledger: Ledger, clock: ManualClock) -> None:
    batch = plan(ledger, 0, 10, 10)
    ledger.batches.attach(batch.batch_key, 1, owner="me", lease_ms=30_000)
    convict(ledger, batch.batch_key, letter(3))
    ledger.history.record_losses("orders", [OffsetRange("orders", 0, 10, 17)])
    samples = scrape(ledger, clock)
    assert value(samples, "dead_letters_unresolved") == 1
    assert value(samples, "lost_records_total") == 7
    assert value(samples, "records_total", outcome="lost") == 7


def test_rates_and_controls_are_those_in_force(ledger: Ledger, clock: ManualClock) -> None:
    report_sample(ledger, a_sample(1, 250.5))
    samples = scrape(ledger, clock)
    assert value(samples, "rate_limit_records_per_second") == 250.5
    assert (value(samples, "paused"), value(samples, "query_running")) == (0, 0)
    ledger.operator_limits.limit("orders", 40, "ops", until_ms=clock() + 1_000)
    ledger.operator_limits.pause("orders", "ops")
    claim_gate(ledger)
    samples = scrape(ledger, clock)
    assert value(samples, "rate_limit_records_per_second") == 40
    assert (value(samples, "paused"), value(samples, "query_running")) == (1, 1)
    clock.now_ms += 1_000
    assert value(scrape(ledger, clock), "rate_limit_records_per_second") == 250.5


def test_the_stages_of_a_flow_say_what_they_do(ledger: Ledger, clock: ManualClock) -> None:
    for state in (
        state_of_stage("parse", "store", queue_bytes=700),
        state_of_stage("store"),
    ):
        ledger.signals.publish(state.flow, state.stage, encode(state))
    samples = scrape(ledger, clock)
    parse, store = ({"flow": state.flow, "stage": name} for name in ("parse", "store"))
    assert value(samples, "stage_throttle_level", **parse) == 1.5
    assert value(samples, "stage_queue_bytes", **parse) == 700
    assert value(samples, "stage_bottleneck", **store) == 1
    assert value(samples, "stage_time_ratio", **parse, state="throttled") == 1
    assert value(samples, "stage_time_ratio", **store, state="idle") == 1
    ledger.gates.declare(f"{state.flow}.store", interval_ms=1_000, source="kafka", estimator="pid")
    plan(ledger, 0, 10, 30, gate=f"{state.flow}.store")
    clock.now_ms += 5_000
    running = value(scrape(ledger, clock), "stage_time_ratio", **store, state="busy")
    assert running == 1, "the batch that runs counts up to now"


def test_a_limit_above_what_a_stage_does_by_itself_makes_no_bottleneck(
    ledger: Ledger, clock: ManualClock
) -> None:
    for state in (state_of_stage("parse", "store"), state_of_stage("store")):
        ledger.signals.publish(state.flow, state.stage, encode(state))
    gate = f"{state.flow}.parse"
    ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
    for time_ms, (rate, states) in enumerate(
        [(250.5, ("throttled", BOTTLENECK)), (250.4, ("free", "free"))], start=1
    ):
        report_sample(ledger, a_sample(time_ms, rate, gate=gate))
        found = {each.stage: each.state for each in stages_of(ledger, clock())}
        assert (found["parse"], found["store"]) == states


def test_partitions_are_there_where_they_are_asked_for(ledger: Ledger, clock: ManualClock) -> None:
    plan(ledger, 0, 10, 30)
    place = {"topic": "orders", "partition": "0"}
    assert value(scrape(ledger, clock), "partition_lag_records", **place) is None
    samples = scrape(ledger, clock, per_partition=True, kafka_exporter_names=True)
    assert value(samples, "partition_lag_records", **place) == 20
    labels = tuple(sorted({"consumergroup": "orders", **place}.items()))
    assert samples["kafka_consumergroup_lag", labels] == 20


def test_hostile_names_stay_names(ledger: Ledger, clock: ManualClock) -> None:
    name = 'a"b\\c\nd{e="f"} 5 # \u202eâ \x1b[31m'
    ledger.gates.declare(name, interval_ms=2_000, source="kafka", estimator="pid")
    assert value(scrape(ledger, clock), "batch_interval_seconds", gate=name) == 2


@pytest.mark.parametrize("per_scrape", [1, 7])
def test_the_totals_that_a_scrape_remembers_are_all_there_are(
    ledger: Ledger, clock: ManualClock, per_scrape: int
) -> None:
    memory = MetricsMemory()
    for number in range(20):
        done(ledger, clock, number * 10, 10, 1_000)
        if number % per_scrape == 0:
            scrape(ledger, clock, memory)
    remembered, fresh = scrape(ledger, clock, memory), scrape(ledger, clock)
    totals = {each: at for each, at in fresh.items() if "total" in each[0] or "_bucket" in each[0]}
    assert {each: remembered[each] for each in totals} == totals


def test_a_gate_with_a_ceiling_says_how_large_its_next_batch_may_be(
    ledger: Ledger, clock: ManualClock
) -> None:
    assert value(scrape(ledger, clock), "batch_ceiling_records") is None
    ceiling = SizeCeiling(288, 302)
    ledger.gates.change_ceiling("orders", None, ceiling.to_text())
    assert value(scrape(ledger, clock), "batch_ceiling_records") == 302
