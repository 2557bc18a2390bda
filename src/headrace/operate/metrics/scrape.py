"""Scrape of all metrics of a ledger, from the ledger's rows and the sources of its gates."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.core.timing import WallClock, wall_clock_ms
from headrace.errors import LedgerError
from headrace.gate import GateMoment, Ledger, OpenBatches, Status
from headrace.operate.metrics.families import Family, Totals, gauge, render
from headrace.operate.status.lags import GateLag, LagWatch, may_be_more
from headrace.operate.status.snapshot import GATE_METRICS
from headrace.operate.status.sources import SourceAnswer
from headrace.operate.status.stages import BOTTLENECK, stages_of

CONSUMER_LAG = "kafka_consumergroup_lag"
"""Lag metric of danielqsj's kafka_exporter. The gate takes the place of the consumer group."""


def partition_families(
    ledger: Ledger,
    gates: Sequence[GateMoment],
    answers: Mapping[str, SourceAnswer],
    now_ms: int,
    *,
    per_partition: bool,
    kafka_exporter_names: bool,
) -> list[Family]:
    """Return the families with the lag of each partition of each gate.

    If a gate's source has answered since the newest batch was planned, the answer gives the lags
    of all partitions that the gate has read. Otherwise the newest batch gives the lags of its own
    partitions.
    """
    own = gauge("partition_lag_records", "Records of a partition that no batch has begun yet.")
    theirs = Family(CONSUMER_LAG, "Records of a partition that no batch has begun yet.", "gauge")
    now = {gate.name: gate for gate in gates}
    fresh = {
        name: answer
        for name, answer in answers.items()
        if name in now and answer.asked_ms >= (now[name].planned_ms or 0)
    }

    def add(gate: str, topic: str, partition: int, lag: int) -> None:
        if not lag and may_be_more(now[gate], fresh.get(gate), now_ms):
            return
        place = {"topic": topic, "partition": str(partition)}
        if per_partition:
            own.add({"gate": gate, **place}, lag)
        if kafka_exporter_names and now[gate].source == "kafka":
            theirs.add({"consumergroup": gate, **place}, lag)

    for gate, topic, partition, until, latest, _ in ledger.moments.partitions():
        if gate in now and gate not in fresh and latest is not None:
            add(gate, topic, partition, max(latest - until, 0))
    for gate, answer in fresh.items():
        for place, position in answer.partitions.items():
            add(gate, place.topic, place.partition, position.lag)
    return [own, theirs]


def flow_families(ledger: Ledger, now_ms: int) -> list[Family]:
    """Return the metric families of all running stages that publish their state in the ledger."""
    ratio = gauge("stage_time_ratio", "Share of the last minute in which a stage had this state.")
    level = gauge("stage_throttle_level", "Level at which a later stage throttles it; 0: none.")
    queue = gauge("stage_queue_bytes", "Bytes that wait in the input channel of a stage.")
    bottleneck = gauge("stage_bottleneck", "1 for a stage that throttles and is not throttled.")
    for stage in stages_of(ledger, now_ms):
        own = {"flow": stage.flow, "stage": stage.stage}
        level.add(own, stage.throttle_level)
        bottleneck.add(own, stage.state == BOTTLENECK)
        if stage.queue_bytes is not None:
            queue.add(own, stage.queue_bytes)
        for state, part in (
            ("busy", stage.busy),
            ("throttled", stage.throttled),
            ("idle", stage.idle),
        ):
            ratio.add(own | {"state": state}, part)
    return [ratio, level, queue, bottleneck]


def fact_families(
    gates: Sequence[GateMoment], lags: Mapping[str, GateLag], now_ms: int
) -> Iterator[Family]:
    """Yield a gauge family for each metric in `GATE_METRICS`, with a sample for each gate.

    A gate without a value has no sample.
    """
    for metric in GATE_METRICS:
        family = gauge(metric.name, metric.help)
        for gate in gates:
            value = metric.value(gate, lags[gate.name], now_ms)
            if value is not None:
                family.add({"gate": gate.name}, value)
        yield family


def open_families(
    gates: Sequence[GateMoment], open_batches: OpenBatches, letters: Mapping[str, int], now_ms: int
) -> list[Family]:
    """Return the families of unfinished batches, unresolved dead letters, and the oldest failure.

    The last family has the age of each gate's oldest failed batch (s); 0 if there is none.
    """
    number = gauge("batches_open", "Batches that are not finished, by status.")
    unresolved = gauge("dead_letters_unresolved", "Dead letters that are not resolved yet.")
    oldest = gauge("oldest_failed_batch_seconds", "Age of the oldest failed batch; 0: none.")
    for gate in gates:
        own = {"gate": gate.name}
        for status in (Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING):
            count, since_ms = open_batches.get((gate.name, status), (0, now_ms))
            number.add(own | {"status": status}, count)
            if status is Status.FAILED:
                oldest.add(own, max(now_ms - since_ms, 0) / 1000)
        unresolved.add(own, letters.get(gate.name, 0))
    return [number, unresolved, oldest]


@dataclass(slots=True)
class MetricsMemory:
    """State that is kept between scrapes, so that the next scrape reads only changes.

    It is not thread-safe, so scrapes that share it must not overlap.

    Attributes:
        lags: Computes the gates' lags. Default: a `LagWatch` that reads the ledger and asks no
            source.
        totals: Totals of the gates' batches.
    """

    lags: LagWatch = field(default_factory=LagWatch)
    totals: Totals = field(default_factory=Totals)


def exposition(
    ledger: Ledger | Callable[[], Ledger],
    *,
    memory: MetricsMemory | None = None,
    openmetrics: bool = False,
    per_partition: bool = False,
    kafka_exporter_names: bool = False,
    wait_s: float = 0,
    clock: WallClock = wall_clock_ms,
) -> bytes:
    """Return the metrics of a ledger as text.

    For a ledger that cannot be read, return only ``headrace_ledger_up``, with the value 0.

    Args:
        ledger: The ledger, or a function that opens it.
        memory: State that is kept between scrapes. Default: None, so the scrape counts all batches
            and asks no source.
        openmetrics: Whether to return OpenMetrics' text format (`OPENMETRICS_TYPE`) instead of
            Prometheus' (`PROMETHEUS_TYPE`). Default: off.
        per_partition: Whether to include the lag of each partition. Default: off.
        kafka_exporter_names: Whether to include the lag of each Kafka partition under the name
            ``kafka_consumergroup_lag`` too. Default: off.
        wait_s: Time to wait for sources that are asked for the first time (s). Default: 0; the
            next scrape has their answers.
        clock: Function that returns the time (ms since the epoch).
    """
    memory = memory or MetricsMemory()
    scrape = _Scrape(memory, wait_s, clock())
    try:
        opened = ledger() if callable(ledger) else ledger
        families = scrape.families(
            opened, per_partition=per_partition, kafka_exporter_names=kafka_exporter_names
        )
    except LedgerError:
        families = []
    up = gauge("ledger_up", "Whether the ledger can be read.")
    up.add({}, bool(families))
    return render([*families, up], openmetrics=openmetrics)


@dataclass(slots=True)
class _Scrape:
    memory: MetricsMemory
    wait_s: float
    now_ms: int
    took: Family = field(
        default_factory=lambda: gauge(
            "ledger_operation_seconds", "Duration of each read of the ledger in this scrape."
        )
    )

    def families(
        self, ledger: Ledger, *, per_partition: bool, kafka_exporter_names: bool
    ) -> list[Family]:
        memory, now_ms = self.memory, self.now_ms
        with self.timed("gates"):
            gates = ledger.gates.all_now()
        with self.timed("open_batches"):
            open_batches = ledger.moments.open_batches()
            letters = ledger.moments.waiting_letters()
        with self.timed("lags"):
            lags = memory.lags.of(ledger, gates, now_ms, wait_s=self.wait_s)
        answers = memory.lags.answers()
        with self.timed("totals"):
            totals = memory.totals.collect(ledger, gates, open_batches)
        with self.timed("flows"):
            flows = flow_families(ledger, now_ms)
        partitions: list[Family] = []
        if per_partition or kafka_exporter_names:
            with self.timed("partitions"):
                partitions = partition_families(
                    ledger,
                    gates,
                    answers,
                    now_ms,
                    per_partition=per_partition,
                    kafka_exporter_names=kafka_exporter_names,
                )
        return [
            *fact_families(gates, lags, now_ms),
            *open_families(gates, open_batches, letters, now_ms),
            *totals,
            *flows,
            *partitions,
            self.took,
        ]

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.took.add({"operation": operation}, time.perf_counter() - began_s)
