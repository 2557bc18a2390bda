"""Gates without a Spark: what planners, handlers and listeners do in the ledger, at a pace."""

import heapq
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, cast

import sqlalchemy
from pyspark.sql import DataFrame

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.limits import BatchLimits
from headrace.gate.control.plan import plan
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.ledger.connection import OF_A_QUERY
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import RateSample
from headrace.gate.source.gate_ledger import GateIdentity, GateLedger
from headrace.gate.source.stream_offset import StreamOffset

RECORDS: Final = 1_000
"""Records of a batch in all of its partitions."""

_LIMITS: Final = BatchLimits(seconds_per_batch=1.0, initial_rate=RECORDS)


def drive(
    *, url: str, first: int, count: int, interval_s: float, seconds: float, partitions: int
) -> dict[str, Any]:
    """Run a batch of each gate once an interval, as the product does between planner and report.

    A line is written when all gates are claimed; the measurement begins with a line of the input.
    Each gate's first batch does not count. All gates share two ledgers, a planner's and a driver's,
    where in life each has its own; so there are fewer connections than in life.

    Args:
        url: The ledger's.
        first: The number of the first gate.
        count: Number of gates.
        interval_s: The interval of each gate.
        seconds: Duration of the measurement.
        partitions: Partitions of each gate's topic.
    """
    with (
        Ledger.open(url, timeouts=OF_A_QUERY) as planner,
        Ledger.open(url, timeouts=OF_A_QUERY) as driver,
    ):
        gates = [
            _Gate(f"gate-{number}", planner, driver, interval_s, partitions)
            for number in range(first, first + count)
        ]
        print("[]", flush=True)
        sys.stdin.readline()
        statements = _Statements()
        cpu_s = time.process_time()
        pace = _Pace(gates, interval_s)
        pace.keep(seconds)
        found = {
            "planner_ms": pace.planner_ms,
            "ledger_ms": pace.ledger_ms,
            "seconds": pace.measured_s,
            "statements": statements.count,
            "ran": pace.ran,
            "cpu_s": time.process_time() - cpu_s,
        }
        print(json.dumps(found), flush=True)
        sys.stdin.readline()
    return {}


class _Gate:
    """A gate with its planner and its driver."""

    def __init__(
        self, name: str, planner: Ledger, driver: Ledger, interval_s: float, partitions: int
    ) -> None:
        self._name = name
        self._partitions = [TopicPartition(f"topic-{name}", n) for n in range(partitions)]
        self._driver = driver
        self._run = 0
        interval_ms = round(interval_s * 1000)
        identity = GateIdentity(name, interval_ms, EstimatorSettings(), "kafka", "127.0.0.1:9092")
        self._pages = GateLedger(planner.url, identity, open_ledger=lambda *_, **__: planner)
        self._pages.claim()
        self._handler = GatedHandler(name, RunContext(ledger=driver, handler=self._process))
        self._began = dict.fromkeys(self._partitions, 0)
        self._key = ""

    def batch_ms(self) -> tuple[float, float]:
        """Run a batch; how long its planner was in the ledger, and all three of them (ms)."""
        began_s = time.perf_counter()
        self._plan()
        planned_s = time.perf_counter()
        self._handler(cast(DataFrame, None), self._run)
        self._report()
        self._run += 1
        return (planned_s - began_s) * 1000, (time.perf_counter() - began_s) * 1000

    def _plan(self) -> None:
        now = self._pages.admission()
        latest = {tp: start + RECORDS for tp, start in self._began.items()}
        planned = plan(self._began, latest, None if now is None else now.rate_per_s, _LIMITS)
        ranges = [OffsetRange(*tp, start, planned.until[tp]) for tp, start in self._began.items()]
        topic = self._partitions[0].topic
        end = StreamOffset(
            planned.until, self._name, checkpoint_id=f"of {self._name}", topic_ids={topic: topic}
        )
        self._pages.begin(end, ranges, planned, latest)
        self._began = planned.until

    def _report(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        sample = RateSample(
            gate=self._name,
            time_ms=now_ms,
            rate_per_s=float(RECORDS),
            records=RECORDS,
            processing_delay_ms=900,
            scheduling_delay_ms=0,
            query_batch_id=self._run,
            batch_key=self._key,
        )
        self._driver.rates.report(self._key, self._run, now_ms - 900, sample)

    def _process(self, _df: DataFrame, batch: Batch) -> None:
        """Run the job, which takes no time."""
        self._key = batch.key


class _Statements:
    """Counts what this process asks of the database."""

    def __init__(self) -> None:
        self.count = 0
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", self._one)

    def _one(self, *_: object) -> None:
        self.count += 1


class _Pace:
    """Has each gate run a batch once an interval, by a few threads.

    A batch that is late begins at once, and the one after it an interval later.
    """

    THREADS: Final = 5

    def __init__(self, gates: list[_Gate], interval_s: float) -> None:
        self._gates = gates
        self._interval_s = interval_s
        self._changing = threading.Lock()
        self._due: list[tuple[float, int]] = []
        self.planner_ms: list[float] = []
        self.ledger_ms: list[float] = []
        self.measured_s = 0.0
        self.ran = 0

    def keep(self, seconds: float) -> None:
        """Do so for one interval, and then measured for so many seconds."""
        now_s = time.monotonic()
        step_s = self._interval_s / len(self._gates)
        self._due = [(now_s + number * step_s, number) for number in range(len(self._gates))]
        measured_s = now_s + self._interval_s
        until_s = measured_s + seconds
        with ThreadPoolExecutor(self.THREADS) as threads:
            work = partial(self._work, measured_s, until_s)
            for done in [threads.submit(work) for _ in range(self.THREADS)]:
                done.result()
        self.measured_s = time.monotonic() - measured_s

    def _work(self, measured_s: float, until_s: float) -> None:
        while True:
            with self._changing:
                due_s, number = heapq.heappop(self._due) if self._due else (until_s, -1)
            if due_s >= until_s or time.monotonic() >= until_s:
                return
            time.sleep(max(0.0, due_s - time.monotonic()))
            began_s = time.monotonic()
            planner_ms, ledger_ms = self._gates[number].batch_ms()
            with self._changing:
                self.ran += 1
                if began_s >= measured_s:
                    self.planner_ms.append(planner_ms)
                    self.ledger_ms.append(ledger_ms)
                next_s = max(due_s + self._interval_s, time.monotonic())
                heapq.heappush(self._due, (next_s, number))
