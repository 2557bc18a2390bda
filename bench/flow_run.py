"""A flow of five stages that really runs, of which the fourth becomes slow and fast again."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.sides import DEADLINE_S, POLL_S, discard
from bench.simulation import RateLimitChange
from headrace.errors import HeadraceError
from headrace.flow import Flow, RunningFlow
from headrace.flow.kafka_channel import KafkaChannel, KafkaQueue
from headrace.gate.control.input_queue import InputQueue
from headrace.gate.control.pressure import HopSettings
from headrace.gate.execution.batch import Batch
from headrace.gate.kafka.kafka_options import KafkaOptions
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord

NAMES: Final = ("one", "two", "three", "four", "five")
SLOW: Final = "four"
SINK: Final = NAMES[-1]
CHANNELS: Final = ("raw", "a", "b", "c", "d")
"""The one that each stage reads."""

INTERVAL_MS: Final = 3_000
LOAD_PER_S: Final = 500
CAPACITY_PER_S: Final = 1_000.0
SLOW_PER_S: Final = CAPACITY_PER_S / 4

STEADY_S: Final = 20
SLOW_S: Final = 70
FAST_S: Final = 150
CALM_S: Final = 30
"""Time that all stages must be free for the run to end before its time is over (s)."""

_WATCH_S: Final = 0.2
_BATCHES: Final = 1_000


def now_ms() -> int:
    """The time by which the ledger's batches are planned, too."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, repr=False)
class Watched(KafkaChannel):
    """A channel, with what was waiting on it at each look of the stage that reads it.

    Attributes:
        looks: When that was (ms), and how much (bytes).
    """

    looks: list[tuple[int, int]] = field(default_factory=list, compare=False)

    def queue(self, gate: str, ledger: Ledger) -> KafkaQueue:
        """The channel's, whose looks are kept."""
        return _WatchedQueue(self._parsed(ledger), gate, ledger, self.looks)


class _WatchedQueue(KafkaQueue):
    def __init__(
        self, options: KafkaOptions, gate: str, ledger: Ledger, looks: list[tuple[int, int]]
    ) -> None:
        super().__init__(options, gate, ledger)
        self._looks = looks

    def measure(self) -> InputQueue:
        found = super().measure()
        self._looks.append((now_ms(), found.waiting_bytes))
        return found


@dataclass(frozen=True, slots=True)
class Trace:
    """Observations of one run; times in ms since the epoch.

    Attributes:
        steady_ms: Since when it had been running as it should.
        slow_ms: When the stage became slow.
        fast_ms: When it became fast again.
        end_ms: When it was over.
        changes: The changes of the stages' rate limits, in their order.
        looks: By stage, when it looked at its queue, and what waited (bytes).
        batches: By stage, the oldest first.
        fixed_ms: Time that a batch of the slow stage takes besides its handler's sleep.
        overload_bytes: The threshold.
    """

    steady_ms: int
    slow_ms: int
    fast_ms: int
    end_ms: int
    changes: Sequence[RateLimitChange]
    looks: Mapping[str, Sequence[tuple[int, int]]]
    batches: Mapping[str, Sequence[BatchRecord]]
    fixed_ms: float
    overload_bytes: int


class SlowedFlow:
    """Five stages, all alike: each takes its records over the capacity in time, and sleeps so long.

    Args:
        flow: Without channels and stages yet.
        servers: The brokers.
        topics: The five that the stages read, in their order; the first one is full.
        source_options: Options that limit the first stage to the load.
    """

    def __init__(
        self,
        flow: Flow,
        servers: str,
        topics: Sequence[str],
        source_options: Mapping[str, object],
    ) -> None:
        self._flow = flow
        self._watched = {
            name: Watched(topic, servers) for name, topic in zip(NAMES, topics, strict=True)
        }
        self._slow = threading.Event()
        self._slept_ms: dict[int, float] = {}
        """By the slow stage's batches, while it is slow."""
        for name, watched in zip(CHANNELS, self._watched.values(), strict=True):
            flow.channel(name, watched)
        for place, name in enumerate(NAMES):
            flow.stage(
                name,
                reads=CHANNELS[place],
                writes=CHANNELS[place + 1 : place + 2],
                interval=f"{INTERVAL_MS} ms",
                options={
                    "backpressure.initialRate": LOAD_PER_S,
                    **(source_options if place == 0 else {}),
                },
            )(self._handler(name))

    def run(self, spark: SparkSession, settings: HopSettings) -> Trace:
        """Run it: steady, slow, and fast again."""
        with Ledger.open(self._flow.ledger) as ledger, self._flow.start(spark) as running:
            with self._changes(ledger) as changes:
                _wait(running, lambda: self._batches(ledger, SINK) != [], DEADLINE_S)
                steady_ms = now_ms()
                _wait(running, _never, STEADY_S)
                self._slow.set()
                slow_ms = now_ms()
                _wait(running, _never, SLOW_S)
                self._slow.clear()
                fast_ms = now_ms()
                _wait(running, lambda: _is_calm(changes, fast_ms), FAST_S)
                end_ms = now_ms()
            fixed_ms = self._fixed_ms(running)
            batches = {name: self._batches(ledger, name) for name in NAMES}
        looks = {name: list(watched.looks) for name, watched in self._watched.items()}
        return Trace(
            *(steady_ms, slow_ms, fast_ms, end_ms, changes, looks, batches, fixed_ms),
            settings.overload_bytes,
        )

    def _handler(self, name: str) -> Callable[[DataFrame, Batch], DataFrame | None]:
        def handle(df: DataFrame, batch: Batch) -> DataFrame | None:
            records = sum(each.count for each in batch.ranges)
            is_slow = name == SLOW and self._slow.is_set()
            sleep_s = records / (SLOW_PER_S if is_slow else CAPACITY_PER_S)
            time.sleep(sleep_s)
            if is_slow and batch.id is not None:
                self._slept_ms[batch.id] = sleep_s * 1000
            if name != SINK:
                return df.select("key", "value")
            discard(df)
            return None

        return handle

    def _fixed_ms(self, running: RunningFlow) -> float:
        found = [
            progress.durationMs["triggerExecution"] - self._slept_ms[progress.batchId]
            for progress in running.queries[SLOW].recentProgress
            if progress.batchId in self._slept_ms and progress.numInputRows
        ]
        return median(found)

    def _batches(self, ledger: Ledger, stage: str) -> list[BatchRecord]:
        return list(reversed(ledger.batches.newest(self._flow.gate(stage), _BATCHES)))

    @contextmanager
    def _changes(self, ledger: Ledger) -> Iterator[list[RateLimitChange]]:
        """The changes of the stages' rate limits, as their planners find them."""
        changes: list[RateLimitChange] = []
        done = threading.Event()
        known: dict[str, RateLimitChange | None] = dict.fromkeys(NAMES)

        def watch() -> None:
            while not done.wait(_WATCH_S):
                for name in NAMES:
                    gate = ledger.gates.now(self._flow.gate(name))
                    limit = None if gate is None else gate.rate_limit
                    was = known[name]
                    limit_per_s = None if limit is None else limit.rate_per_s
                    if limit_per_s == (None if was is None else was.rate_limit_per_s):
                        continue
                    change = RateLimitChange(
                        now_ms(),
                        name,
                        None if limit is None else limit.throttled_by,
                        0.0 if limit is None else limit.level,
                        limit_per_s,
                    )
                    known[name] = change
                    changes.append(change)

        thread = threading.Thread(target=watch, name="bench-flow", daemon=True)
        thread.start()
        try:
            yield changes
        finally:
            done.set()
            thread.join()


def rate_per_s(batches: Sequence[BatchRecord], from_ms: int, until_ms: int) -> float:
    """Return a stage's rate between two times, from the end of one batch to that of another."""
    ended = [(b.end_time_ms, b.planned_records) for b in batches if b.end_time_ms is not None]
    within = [each for each in ended if from_ms <= each[0] < until_ms]
    records = sum(records for (_, (_, records)) in pairwise(within))
    return records * 1000 / (within[-1][0] - within[0][0]) if records else 0.0


def _is_calm(changes: Sequence[RateLimitChange], since_ms: int) -> bool:
    """Whether all stages have been free for a while."""
    last = {change.stage: change for change in changes}
    if any(change.throttled_by is not None for change in last.values()):
        return False
    since_ms = max([since_ms, *(change.time_ms for change in last.values())])
    return now_ms() - since_ms > CALM_S * 1000


def _never() -> bool:
    return False


def _wait(running: RunningFlow, condition: Callable[[], bool], at_most_s: float) -> None:
    """Return when the condition is met, or the time is over.

    Raises:
        HeadraceError: The flow has ended.
    """
    deadline_s = time.monotonic() + at_most_s
    while time.monotonic() < deadline_s and not condition():
        if running.await_termination(POLL_S):
            raise HeadraceError("The benchmark's flow has ended too soon; see its log.")
