"""Queries with state that are killed between their durable steps: each result is there once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.recovery.job import Job
from tests.recovery.states import STATES
from tests.recovery.stories import fill, in_turn
from tests.services.kafka import TopicFactory

PARTITIONS = 2
RECORDS_PER_STOP = 60  # in each partition: two batches or more

STOPS = ("after attach", "after succeed")
EVERY_STOP = tuple(
    f"{when} {step}"
    for step in ("plan", "begin", "attach", "succeed", "report")
    for when in ("before", "after")
)


def arrived(job: Job) -> list[str]:
    """The values that the sink has, in the order of their batches."""
    runs = map(json.loads, (job.path / "runs").read_text().splitlines())
    keys = {run["id"]: run["key"] for run in runs}
    files = (job.path / "sink" / f"{keys[number]}.json" for number in sorted(keys))
    return [value for file in files for value, _ in json.loads(file.read_text())]


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(STOPS, marks=pytest.mark.nightly, id="some"),
        pytest.param(EVERY_STOP, marks=[pytest.mark.soak, pytest.mark.timeout(0)], id="every"),
    ],
)
@pytest.mark.parametrize("kind", STATES)
def test_each_result_is_there_once(
    topic: TopicFactory, tmp_path: Path, kind: str, stops: tuple[str, ...]
) -> None:
    orders, count = topic(PARTITIONS), len(stops)
    common = Job(orders.bootstrap_servers, orders.name, str(tmp_path / "job"), hurried=True)
    jobs = [
        replace(
            common,
            state=kind,
            stop=None if number == count else (stops[number], 1),
            records=min(number + 1, count) * RECORDS_PER_STOP * PARTITIONS,
        )
        for number in range(count + 1)
    ]
    with in_turn(jobs) as drivers:
        for number, point in enumerate(stops):
            print(point)  # noqa: T201  (the last one is shown if the test fails)
            fill(orders, (number + 1) * RECORDS_PER_STOP, number * RECORDS_PER_STOP)
            driver = next(drivers)
            driver.let_go()
            driver.crash()
        last = next(drivers)
        last.let_go()
        last.finish()
    assert STATES[kind].faults(arrived(jobs[-1]), PARTITIONS, count * RECORDS_PER_STOP) == []


def test_what_is_missing_or_twice_is_found() -> None:
    counts, values = STATES["count"].faults, STATES["join"].faults
    assert counts(["0=1", "1=2", "0=2"], 2, 2) == []
    assert counts(["0=1", "1=2", "0=1"], 2, 2) == ["partition 0 was counted [1, 1]"]
    assert values(["0/0"], 1, 1) == []
    assert values(["0/0", "0/0"], 1, 2) != []
