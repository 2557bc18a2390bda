"""Reports of tasks on records that cannot be decoded, to the run of their batch.

A task adds to an accumulator of Spark's, which has merged it when the action returns that the
handler has called; failed tasks are not merged. A property names the run, and the jobs of the
handler's thread inherit it.

Over Spark Connect there is neither. There a task tells the handler's process directly, before it
ends, and is told the run with its format: that process has one run at a time.
"""

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from headrace.spark_versions import Py4JError, active_context, is_remote
from headrace.task_link import LinkAddress, TaskLink

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Report = tuple[str, str, int, int, str]
"""The run, topic, partition and offset of a record, and why it cannot be decoded."""

MAX_REPORTED: Final = 100_000
"""Records of a run that are kept; a batch with more of them has failed."""

_RUN: Final = "headrace.run"


class Reports:
    """Reports of tasks, by the runs of batches that wait for them."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._by_run: dict[str, dict[tuple[str, int, int], str]] = {}

    def open(self, run: str) -> None:
        """Keep what is reported to a run from now on."""
        with self._changing:
            self._by_run[run] = {}

    def add(self, reports: Iterable[Report]) -> None:
        """Keep these once, however often a record is decoded; nothing of a run that is over."""
        with self._changing:
            for run, topic, partition, offset, reason in reports:
                kept = self._by_run.get(run)
                if kept is not None and len(kept) <= MAX_REPORTED:
                    kept.setdefault((topic, partition, offset), reason)

    @property
    def only(self) -> str | None:
        """The run that is open; None where none is, or several are."""
        with self._changing:
            return next(iter(self._by_run)) if len(self._by_run) == 1 else None

    def take(self, run: str) -> dict[tuple[str, int, int], str]:
        """Return the reports since the last call, by topic, partition and offset."""
        with self._changing:
            taken = self._by_run.get(run, {})
            if taken:
                self._by_run[run] = {}
            return taken

    def close(self, run: str) -> None:
        """Forget a run."""
        with self._changing:
            self._by_run.pop(run, None)


REPORTS: Final = Reports()
"""Reports to this process."""


class ReportsParam(AccumulatorParam[Any]):
    """Merge for Spark: a task collects a list, the driver keeps it in `Reports`."""

    def zero(self, value: Any) -> list[Report]:
        """Return the first value of a task."""
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        """Add what a task has, or has reported."""
        if isinstance(value1, Reports):
            value1.add(value2)
        else:
            value1.extend(value2)
        return value1


_making: Final = threading.Lock()
_made: "list[tuple[SparkContext, Accumulator[Any]]]" = []


def accumulator_of(context: "SparkContext") -> "Accumulator[Any]":
    """The one accumulator of a Spark context, for every stream and batch in it."""
    with _making:
        for known, accumulator in _made:
            if known is context:
                return accumulator
        made: Accumulator[Any] = context.accumulator(REPORTS, ReportsParam())
        _made[:] = [(context, made)]
        return made


@contextmanager
def reported_to(run: str) -> Iterator[None]:
    """Have the jobs of this thread, within, report to a run; see `Reports.take`."""
    REPORTS.open(run)
    context = active_context()
    before = None if context is None else context.getLocalProperty(_RUN)
    try:
        if context is not None:
            context.setLocalProperty(_RUN, run)
        yield
    finally:
        if context is not None:
            with suppress(Py4JError, OSError):  # a JVM that has ended
                context.setLocalProperty(_RUN, before)
        REPORTS.close(run)


def new_run() -> str:
    """Name a run of a handler."""
    return uuid.uuid4().hex


def run_of_task() -> str | None:
    """The run that the task of this worker belongs to; None outside of a handler."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_RUN)


class Reporter(Protocol):
    """Channel for a task's reports; it is sent to the tasks."""

    def run(self) -> str | None:
        """The run that this task belongs to; None outside of a handler."""
        ...

    def add(self, reports: list[Report]) -> None:
        """Report these; they are known to the handler's process when the action returns."""
        ...


@dataclass(frozen=True)
class AccumulatedReporter:
    """By an accumulator of Spark's."""

    accumulator: "Accumulator[Any]"

    def run(self) -> str | None:
        """As the job's thread has inherited it."""
        return run_of_task()

    def add(self, reports: list[Report]) -> None:
        """Merged when the task has succeeded."""
        self.accumulator.add(reports)


@dataclass(frozen=True)
class LinkedReporter:
    """To the handler's process, over Spark Connect; without one, there is nobody to report to."""

    of_run: str | None
    address: LinkAddress | None

    def run(self) -> str | None:
        """The one that was open when the values were to be decoded."""
        return self.of_run

    def add(self, reports: list[Report]) -> None:
        """Kept there when this returns, though the task may fail later: it decodes alike again."""
        if self.address is not None:
            self.address.ask(reports)


_linked: list[TaskLink] = []


def reporter_of(spark: "SparkSession") -> Reporter:
    """Return the channel from a session's tasks to this process."""
    if not is_remote(spark):
        return AccumulatedReporter(accumulator_of(spark.sparkContext))
    run = REPORTS.only
    if run is None:
        return LinkedReporter(None, None)
    with _making:
        if not _linked:
            _linked.append(TaskLink(spark, _keep))
    return LinkedReporter(run, _linked[0].address)


def _keep(reports: list[list[Any]]) -> bool:
    REPORTS.add((str(r), str(t), int(p), int(o), str(why)) for r, t, p, o, why in reports)
    return True
