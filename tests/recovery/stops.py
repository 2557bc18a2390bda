"""Points between every two durable steps of a query, at which it can be made to crash.

The steps are those of the ledger, and of Spark's checkpoint: Spark writes the offsets of a batch
between "after plan" and "before begin", and its commit between "after succeed" (or whatever settles
the batch) and the next "before plan". A process that comes to the point it is to stop at kills the
driver, its JVM and itself, all at once.

The planner is a process of Spark's. It gets this module with the class of the source, and what it
is to stop at from the environment.
"""

import functools
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from pyspark.sql.types import StructType

from headrace.gate.execution.connectors import CONNECTORS
from headrace.gate.kafka.kafka_source import KAFKA, KafkaSource
from headrace.gate.ledger.batches import BatchStore
from headrace.gate.ledger.rates import RateStore
from headrace.gate.source.readers import SourceStreamReader
from headrace.testing.memory import watch

_STOP: Final = "HEADRACE_TEST_STOP"

PLANNERS: Final = ("plan", "begin")
"""Steps of the planner: to decide where a batch ends, and to write it down."""

DRIVERS: Final[Mapping[str, type]] = {
    **dict.fromkeys(
        (
            "resolve_abandoned",
            "attach",
            "retry",
            "succeed",
            "fail",
            "keep_progress",
            "claim",
            "backfilled",
            "release",
        ),
        BatchStore,
    ),
    "report": RateStore,
}
"""Steps of the driver: the methods of the ledger's stores that write."""

POINTS: Final = tuple(
    f"{when} {step}" for step in (*PLANNERS, *DRIVERS) for when in ("before", "after")
)

_passed: Final[Counter[str]] = Counter()


class StoppingSource(KafkaSource):
    """The source, whose planner can be made to crash."""

    def streamReader(self, schema: StructType) -> SourceStreamReader:
        _watch_plans()
        _watch(BatchStore, "begin")
        return super().streamReader(schema)


def arm(point: str, times: int) -> None:
    """Crash at the passage of this number of a point: this process, its JVM and its planner.

    To be called before Spark is started; this process must lead a group of its own.
    """
    assert point in POINTS
    assert os.getpgid(0) == os.getpid()
    os.environ[_STOP] = json.dumps([os.getpid(), point, times])
    stopping = replace(KAFKA, source=StoppingSource)
    mock.patch.dict(CONNECTORS, {KAFKA.name: stopping}).start()
    for step, store in DRIVERS.items():
        _watch(store, step)


def _watch(store: type, step: str) -> None:
    """Have it noticed when a step is begun, and when it was done."""
    watch(store, step, lambda point, _arguments: _pass(point))


def _watch_plans() -> None:
    plan = SourceStreamReader.next_offset

    @functools.wraps(plan)
    def watched(
        reader: SourceStreamReader, start: dict[str, Any], *, everything: bool
    ) -> dict[str, Any]:
        _pass("before plan")
        end = plan(reader, start, everything=everything)
        if end != start:
            _pass("after plan")
        return end

    mock.patch.object(SourceStreamReader, "next_offset", watched).start()


def _pass(point: str) -> None:
    driver, stop, times = json.loads(os.environ[_STOP])
    _passed[point] += 1
    if (point, _passed[point]) == (stop, times):
        os.killpg(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
