"""All metrics of a ledger as text, from the ledger alone, and from sources where they are asked."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.core.clock import WallClock, wall_clock_ms
from headrace.errors import LedgerError
from headrace.ledger import Ledger
from headrace.metrics.flows import flow_families
from headrace.metrics.gates import lag_families, open_families, rate_families
from headrace.metrics.partitions import partition_families
from headrace.metrics.text import Family, gauge, labels_text, render
from headrace.metrics.totals import Totals
from headrace.status.lags import LagWatch


@dataclass(slots=True)
class MetricsMemory:
    """What one scrape leaves for the next: only what has changed is read again then.

    For one thread at a time.

    Attributes:
        lags: How far gates are behind. By default it goes by the ledger alone.
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
    """The metrics of a ledger; of one that cannot be read, ``headrace_ledger_up`` alone, as 0.

    Args:
        ledger: The ledger, or what opens it.
        memory: What the scrape before has left. Without it each scrape counts all batches again,
            and no source is asked.
        openmetrics: Whether it is OpenMetrics' text (`OPENMETRICS_TYPE`), else Prometheus'
            (`PROMETHEUS_TYPE`).
        per_partition: Whether the lag of each partition is in it too.
        kafka_exporter_names: Whether it is there as ``kafka_consumergroup_lag`` too.
        wait_s: How long to wait for sources that were not asked before (s). Default: 0, which
            leaves their answers to the next scrape.
        clock: What time it is.
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
    up.add("", bool(families))
    return render([*families, up], openmetrics=openmetrics)


@dataclass(slots=True)
class _Scrape:
    """One collection of all families."""

    memory: MetricsMemory
    wait_s: float
    now_ms: int
    took: Family = field(
        default_factory=lambda: gauge(
            "ledger_operation_seconds", "Time that reading the ledger took in this scrape."
        )
    )

    def families(
        self, ledger: Ledger, *, per_partition: bool, kafka_exporter_names: bool
    ) -> list[Family]:
        memory, now_ms = self.memory, self.now_ms
        with self.timed("gates"):
            gates = ledger.metrics.gates()
        labels = {gate.name: labels_text(gate=gate.name) for gate in gates}
        with self.timed("open_batches"):
            open_batches = ledger.metrics.open_batches()
            letters = ledger.metrics.waiting_letters()
        with self.timed("lags"):
            lags = memory.lags.of(ledger, gates, now_ms, wait_s=self.wait_s)
        answers = memory.lags.answers()
        with self.timed("totals"):
            totals = memory.totals.collect(ledger, gates, open_batches, labels)
        with self.timed("flows"):
            flows = flow_families(ledger, gates, now_ms)
        partitions: list[Family] = []
        if per_partition or kafka_exporter_names:
            with self.timed("partitions"):
                partitions = partition_families(
                    ledger,
                    gates,
                    answers,
                    per_partition=per_partition,
                    kafka_exporter_names=kafka_exporter_names,
                )
        return [
            *lag_families(gates, lags, labels),
            *rate_families(gates, labels, now_ms),
            *open_families(gates, open_batches, letters, labels, now_ms),
            *totals,
            *flows,
            *partitions,
            self.took,
        ]

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.took.add(labels_text(operation=operation), time.perf_counter() - began_s)
