"""Receivers on Spark's executors: what a program starts, watches and stops.

A receiver is a job of one task. Spark can only kill a Python task, not ask it to end, so the task
obeys orders of the driver. Its error is its result, not its failure: ``spark.task.maxFailures``
counts dead workers alone, and the driver decides what is restarted. A receiver that loses its
driver ends cleanly, so the lane on the far side of a network partition becomes free.
"""

import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Self

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from headrace.core.options import require_whole
from headrace.errors import OptionError, ReceiverError
from headrace.gate import normalize_url
from headrace.journal import Journal
from headrace.journal.layout import checked_lane
from headrace.journal.receivers import Hosting, Receiver
from headrace.journal.receivers.hosting import log_new_journal, open_journal
from headrace.journal.receivers.settings import require_port
from headrace.journal.receivers.spark.receiver_task import Assignment, TaskOutcome, work
from headrace.journal.receivers.spark.reporting import ReportServer
from headrace.journal.receivers.spark.supervisor import HostedState, LaneSupervisor, ReceiverStatus

MAX_REASON_CHARS: Final = 300
"""The longest reason that is shown of a task's failure."""


class SparkJobs:
    """Runs the tasks of one receiver, each with a token of its own.

    It is called from a thread of its own. Spark's pages show the description.
    """

    def __init__(self, context: SparkContext, assignment: Assignment, description: str) -> None:
        self._context = context
        self._assignment = assignment
        self._description = description
        self._group = f"headrace-receiver-{secrets.token_hex(8)}"
        self._cancelled = False

    def run(self, token: str) -> TaskOutcome:
        """Run a task that shows this token, and wait until it has ended, for whatever reason."""
        assignment = replace(self._assignment, token=token)
        try:
            self._context.setJobGroup(self._group, self._description)
            # It goes into the task's closure, and so through no file on the driver's disk.
            one = self._context.parallelize(range(1), 1)
            (outcome,) = one.mapPartitions(partial(_in_task, assignment)).collect()
        except Exception as error:  # noqa: BLE001  # a Java exception, or PySpark's own
            if self._cancelled:
                return TaskOutcome()
            if self._has_stopped():
                return TaskOutcome(
                    "The Spark application has been stopped under it; stop receivers first.",
                    is_permanent=True,
                )
            return TaskOutcome(f"Its task has died: {failure_reason(str(error))}")
        return outcome

    def cancel(self) -> None:
        """Kill the task that runs, if one does: `run` returns no error then."""
        self._cancelled = True
        if not self._has_stopped():
            self._context.cancelJobGroup(self._group)

    def _has_stopped(self) -> bool:
        """PySpark has no public name for it."""
        return self._context._jsc is None or self._context._jsc.sc().isStopped()


def _in_task(assignment: Assignment, _: Iterable[int]) -> Iterable[TaskOutcome]:
    return [work(assignment)]


def failure_reason(text: str) -> str:
    r"""The line of a Java exception's text that says why.

    For a Python exception in the task it is the last line of its trace, else the reason of the
    job's end.

    >>> failure_reason("An error occurred while calling x.\n: Job aborted: exit code 137\n\tat y.z")
    'Job aborted: exit code 137'
    """
    lines = [line.strip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return "the reason is unknown"
    if not any("Traceback (most recent call last)" in line for line in lines):
        lines = [line for line in lines if line.startswith(": ")][:1] or lines
    return lines[-1].removeprefix(": ")[:MAX_REASON_CHARS]


STOP_S: Final = 30.0
"""Time that a clean stop may take (s)."""

_LOG: Final = logging.getLogger("headrace.receivers.spark")


class HostedReceivers:
    """Receivers on executors; made by `Receivers.start`."""

    def __init__(
        self, lanes: Sequence[LaneSupervisor], threads: Sequence[threading.Thread]
    ) -> None:
        self._lanes = tuple(lanes)
        self._threads = tuple(threads)

    def status(self) -> tuple[ReceiverStatus, ...]:
        """State of each receiver, in the order of their lanes."""
        return tuple(lane.status for lane in self._lanes)

    def wait_until_receiving(self, timeout_s: float = 60.0) -> tuple[ReceiverStatus, ...]:
        """Wait until all of them receive.

        Returns how each of them is doing, with its address if it listens.

        Raises:
            ReceiverError: One does not within this time, or has ended; the others go on.
        """
        deadline_s = time.monotonic() + timeout_s
        found = []
        for lane in self._lanes:
            status = lane.wait_until_settled(max(0.0, deadline_s - time.monotonic()))
            if status.state is not HostedState.RECEIVING:
                why = status.last_error or "no core is free for it, or its executor is slow"
                raise ReceiverError(
                    f"The receiver of lane {status.lane} is not receiving but {status.state}: {why}"
                )
            found.append(status)
        return tuple(found)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End them cleanly, and return when they have ended; a second call does nothing.

        No more records are taken, those in the buffers are made durable and acknowledged, and the
        lanes are free for others. A receiver that has not ended after ``timeout_s`` is killed, as
        by a crash: its senders send unacknowledged records again. The log says so.
        """
        deadline_s = time.monotonic() + timeout_s
        self.ask_to_stop()
        for lane, thread in zip(self._lanes, self._threads, strict=True):
            if not lane.finish(thread, deadline_s):
                _LOG.warning(
                    "The receiver of lane %d did not end in time, and was killed; what was not"
                    " acknowledged is sent again by its senders.",
                    lane.lane,
                )

    def ask_to_stop(self) -> None:
        """Have all of them begin to end; returns at once."""
        for lane in self._lanes:
            lane.stop()


_POLL_S: Final = 0.2


class Receivers:
    """Hosts receivers on the executors of a Spark application.

    Each receiver is a Spark job of one task that does not end, and takes the place of one for as
    long. A receiver that fails is restarted, after 1 s, later up to 30; one whose executor died, on
    another; one that cannot succeed (an option is wrong, a package is missing) is not, and the log
    says so. Over a connection of its own each task reports to the driver: if the driver is gone, or
    silent for 30 s, the receiver ends cleanly. ::

        with headrace.Receivers(spark) as receivers:
            hosting = Hosting("s3://bucket/orders", gate="orders", ledger="postgresql://db/ledger")
            http = HttpReceiver(HttpSettings(host="0.0.0.0", port=0, token=token))
            hosted = receivers.start(http, 2, hosting)
            for each in hosted.wait_until_receiving():
                print(each.lane, each.address)
            query.awaitTermination()

    At the end of ``with`` all are stopped cleanly. Make one `Receivers` for an application.

    Args:
        spark: The session.
        port: The driver's port that tasks report to, which executors must be able to reach; it is
            opened on ``spark.driver.bindAddress``, with the first receiver. Default: 0, any that is
            free.
        executor_timeout_s: How long `start` waits for executors that are just coming, where there
            are too few cores (s). Default: 30.

    Raises:
        OptionError: The port is not 0 to 65535.
    """

    def __init__(
        self, spark: SparkSession, *, port: int = 0, executor_timeout_s: float = 30.0
    ) -> None:
        require_port(port)
        self._executor_timeout_s = executor_timeout_s
        self._context: SparkContext = spark.sparkContext
        self._port = port
        self._starting = threading.Lock()
        self._server: ReportServer | None = None
        self._hosted: list[HostedReceivers] = []
        self._taken: dict[tuple[str, int], LaneSupervisor] = {}

    def start(
        self, receiver: Receiver | Callable[[int], Receiver], n: int, hosting: Hosting
    ) -> HostedReceivers:
        """Start receivers, each on a lane of its own, and do not wait until they receive.

        Args:
            receiver: The receiver, of which each task gets a copy; or a function that is called on
                the executor with the lane, and makes it there: for what differs from lane to lane,
                such as the client id of an `MqttReceiver`, and for what cannot be sent. A receiver
                that listens does best with port 0: two may come to run on one machine.
            n: How many; fewer than there are cores, for each takes one.
            hosting: Of the first one; the others have the lanes that follow. The journal must be
                on a file system that driver and executors share, in an object store or HDFS; the
                ledger must be PostgreSQL's, unless Spark runs on this machine alone.

        Returns:
            To watch and to stop them.

        Raises:
            OptionError: There are not enough cores or lanes, one of the lanes has a receiver
                already, the receiver cannot be sent, or journal or ledger are not as they must be.
            JournalError: The journal cannot be opened.
            LedgerError: The ledger's URL is not one.
            ReceiverError: The port for reports cannot be opened.
        """
        require_whole("n", n, 1)
        lanes = [checked_lane(hosting.lane + number) for number in range(n)]
        pickled = _pickled(receiver)
        ledger = _ledger_url(hosting.ledger, self._setting("spark.master"))
        with self._starting:
            self._require_cores(n)
            journal, is_new = open_journal(hosting)
            if is_new:
                log_new_journal(journal)
            self._require_free(journal, lanes)
            server = self._opened()
            everywhere = replace(hosting, journal=journal.storage.url, ledger=ledger)
            driver = (_bare(self._setting("spark.driver.host")), server.port)
            supervisors = []
            for lane in lanes:
                of_lane = replace(everywhere, lane=lane)
                assignment = Assignment(driver, "", of_lane, journal.id, pickled)
                description = f"headrace receiver: journal {journal.name}, lane {lane}"
                jobs = SparkJobs(self._context, assignment, description)
                supervisor = LaneSupervisor(lane, journal.name, jobs.run, jobs.cancel, server)
                supervisors.append(supervisor)
                self._taken[journal.id, lane] = supervisor
            hosted = HostedReceivers(supervisors, [_run(each) for each in supervisors])
            self._hosted.append(hosted)
        return hosted

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop all that were started, as `HostedReceivers.stop` does."""
        with self._starting:
            deadline_s = time.monotonic() + timeout_s
            for hosted in self._hosted:
                hosted.ask_to_stop()
            for hosted in self._hosted:
                hosted.stop(deadline_s - time.monotonic())
            self._hosted.clear()
            self._taken.clear()
            if self._server is not None:
                self._server.close()
                self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def _setting(self, name: str) -> str:
        return self._context.getConf().get(name, "") or ""

    def _opened(self) -> ReportServer:
        if self._server is None:
            host = self._setting("spark.driver.bindAddress") or self._setting("spark.driver.host")
            self._server = ReportServer(_bare(host), self._port)
        return self._server

    def _require_cores(self, n: int) -> None:
        taken = sum(not lane.status.state.is_final for lane in self._taken.values())
        is_local = re.match(r"local(\[|$)", self._setting("spark.master"))
        deadline_s = time.monotonic() + (0 if is_local else self._executor_timeout_s)
        while taken + n >= (slots := self._slots()):
            if time.monotonic() >= deadline_s:
                raise _too_few(n, taken, slots)
            time.sleep(_POLL_S)

    def _slots(self) -> float:
        """Return the number of tasks that can run at a time, on the executors there are by now."""
        task_cores = int(self._setting("spark.task.cpus") or 1)
        if self._setting("spark.dynamicAllocation.enabled") != "true":
            return self._context.defaultParallelism // task_cores
        most = self._setting("spark.dynamicAllocation.maxExecutors")
        cores = int(self._setting("spark.executor.cores") or 1)
        return int(most) * (cores // task_cores) if most else math.inf

    def _require_free(self, journal: Journal, lanes: list[int]) -> None:
        for lane in lanes:
            supervisor = self._taken.get((journal.id, lane))
            if supervisor is not None and not supervisor.status.state.is_final:
                raise OptionError(
                    f"Lane {lane} of the journal {journal.name} has a receiver of this application"
                    " already; let the first lane in Hosting be one that is free, or stop that one."
                )


def _too_few(n: int, taken: int, slots: float) -> OptionError:
    running = f" beside the {taken} that run" if taken else ""
    free = slots - 1 - taken
    fewer = f"start {free} at most, or " if free > 0 else ""
    return OptionError(
        f"{n} receivers are to be started{running}, and this application can run {slots} tasks at"
        " the same time (its default parallelism, or its most executors); each receiver takes the"
        " place of one for as long as it runs, so that nothing else could ever run:"
        f" {fewer}give the application more cores."
    )


def _bare(host: str) -> str:
    """A host without the brackets that Spark has around an address of IPv6."""
    return host.removeprefix("[").removesuffix("]")


def _run(supervisor: LaneSupervisor) -> threading.Thread:
    # It inherits the caller's Spark properties, such as its scheduler pool.
    thread = InheritableThread(supervisor.run, name=f"headrace-lane-{supervisor.lane}", daemon=True)
    thread.start()
    return thread


def _pickled(receiver: Receiver | Callable[[int], Receiver]) -> bytes:
    if isinstance(receiver, type):
        raise OptionError(
            f"What is to be started is the class {receiver.__name__}; pass a receiver, or a"
            " function of the lane that makes one."
        )
    try:
        pickled: bytes = cloudpickle.dumps(receiver)  # type: ignore[no-untyped-call]
    except Exception as error:  # each kind of object has its own way of refusing
        raise OptionError(
            f"The receiver cannot be sent to executors ({error}); pass a function of the lane that"
            " makes it there: start(lambda lane: ..., n, hosting)."
        ) from error
    return pickled


def _ledger_url(url: str | None, master: str) -> str | None:
    if url is None:
        return None
    in_full = normalize_url(url)
    if in_full.startswith("sqlite") and not master.startswith("local"):
        raise OptionError(
            f"The ledger is a SQLite file, and Spark's master is {master}; executors of other"
            " machines cannot use the file: keep the ledger in PostgreSQL."
        )
    return in_full
