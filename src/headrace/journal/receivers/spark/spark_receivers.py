"""Receivers on Spark's executors: classes with which a program starts and stops them.

Spark can kill a Python task, but cannot ask it to end. So each task keeps a connection to the
driver, sends a report twice a second, and gets an order for each report: continue, stop, or wait
if Spark has started two tasks for one receiver. If the connection ends, the receiver stops cleanly.
So after a network partition the receiver's lane is released, and no receiver runs without
supervision.
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
"""Maximum length of a failure reason in an error message (characters)."""


class SparkJobs:
    """Runner of Spark jobs for one receiver; each job has one task, with a token of its own.

    Use each instance in a thread of its own. Spark's web UI shows the ``description``.
    """

    def __init__(self, context: SparkContext, assignment: Assignment, description: str) -> None:
        self._context = context
        self._assignment = assignment
        self._description = description
        self._group = f"headrace-receiver-{secrets.token_hex(8)}"
        self._cancelled = False

    def run(self, token: str) -> TaskOutcome:
        """Run a Spark job of one task with this token, and return the task's outcome."""
        assignment = replace(self._assignment, token=token)
        try:
            self._context.setJobGroup(self._group, self._description)
            # The assignment is in the task's closure, so it is not written to the driver's disk.
            partition = self._context.parallelize(range(1), 1)
            (outcome,) = partition.mapPartitions(partial(_in_task, assignment)).collect()
        except Exception as error:  # noqa: BLE001  # a Java exception, or PySpark's own
            if self._cancelled:
                return TaskOutcome()
            if self._has_stopped():
                return TaskOutcome(
                    "The Spark application was stopped while the receiver ran; stop the receivers"
                    " first.",
                    is_permanent=True,
                )
            return TaskOutcome(f"The receiver's task has died: {failure_reason(str(error))}")
        return outcome

    def cancel(self) -> None:
        """Kill the running task, if any; `run` then returns an outcome without an error."""
        self._cancelled = True
        if not self._has_stopped():
            self._context.cancelJobGroup(self._group)

    def _has_stopped(self) -> bool:
        """Whether the Spark context is stopped, according to private attributes of PySpark."""
        return self._context._jsc is None or self._context._jsc.sc().isStopped()


def _in_task(assignment: Assignment, _: Iterable[int]) -> Iterable[TaskOutcome]:
    return [work(assignment)]


def failure_reason(text: str) -> str:
    r"""Return the line of a Java exception's text that has the reason of the failure.

    If a task raised a Python exception, this is the last line of its traceback. Otherwise it is the
    reason why Spark ended the job.

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
"""Default time limit for receivers to stop cleanly (s)."""

_LOG: Final = logging.getLogger("headrace.receivers.spark")


class HostedReceivers:
    """Receivers that one call of `Receivers.start` has started on executors."""

    def __init__(
        self, lanes: Sequence[LaneSupervisor], threads: Sequence[threading.Thread]
    ) -> None:
        self._lanes = tuple(lanes)
        self._threads = tuple(threads)

    def status(self) -> tuple[ReceiverStatus, ...]:
        """Return the status of each receiver, in the order of their lanes."""
        return tuple(lane.status for lane in self._lanes)

    def wait_until_receiving(self, timeout_s: float = 60.0) -> tuple[ReceiverStatus, ...]:
        """Wait until all receivers can receive records.

        Return the status of each receiver in the order of their lanes, with its URL if it listens.

        Raises:
            ReceiverError: A receiver does not receive within ``timeout_s``, or has ended. The other
                receivers continue.
        """
        deadline_s = time.monotonic() + timeout_s
        statuses = []
        for lane in self._lanes:
            status = lane.wait_until_settled(max(0.0, deadline_s - time.monotonic()))
            if status.state is not HostedState.RECEIVING:
                why = status.last_error or "no core is free for it, or its executor is slow"
                raise ReceiverError(
                    f"The receiver of lane {status.lane} does not receive; its state is"
                    f" {status.state}: {why}"
                )
            statuses.append(status)
        return tuple(statuses)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop all receivers cleanly, and return when they have ended; idempotent.

        The receivers accept no more records, make buffered records durable, acknowledge them, and
        release their lanes. A receiver that has not ended after ``timeout_s`` is killed, with a
        warning in the log. As after a crash, its senders repeat unacknowledged records.
        """
        deadline_s = time.monotonic() + timeout_s
        self.ask_to_stop()
        for lane, thread in zip(self._lanes, self._threads, strict=True):
            if not lane.finish(thread, deadline_s):
                _LOG.warning(
                    "The receiver of lane %d did not end in time, and was killed; its senders must"
                    " repeat unacknowledged records.",
                    lane.lane,
                )

    def ask_to_stop(self) -> None:
        """Order all receivers to stop cleanly, without waiting for their end."""
        for lane in self._lanes:
            lane.stop()


_POLL_S: Final = 0.2


class Receivers:
    """Host of receivers on the executors of a Spark application.

    Each receiver is a Spark job of one endless task, and occupies a core. A failed receiver is
    restarted, after 1 s at first, later after up to 30 s. If its executor died, it is restarted on
    another executor. If a restart cannot succeed, for instance because of a wrong option or a
    missing package, the receiver is not restarted, and an error is logged. Each task sends reports
    to the driver over a connection of its own. If the driver is lost or silent for 30 s, the
    receiver stops cleanly. ::

        with headrace.Receivers(spark) as receivers:
            hosting = Hosting("s3://bucket/orders", gate="orders", ledger="postgresql://db/ledger")
            http = HttpReceiver(HttpSettings(host="0.0.0.0", port=0, token=token))
            hosted = receivers.start(http, 2, hosting)
            for each in hosted.wait_until_receiving():
                print(each.lane, each.address)
            query.awaitTermination()

    At the end of ``with`` all receivers are stopped cleanly. Use one `Receivers` per application.

    Args:
        spark: The Spark session.
        port: Port of the driver for the tasks' reports; executors must be able to reach it. The
            first `start` opens it on ``spark.driver.bindAddress``. Default: 0, any free port.
        executor_timeout_s: Time for which `start` waits for more executors while there are too few
            cores (s). Default: 30.

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
        """Start receivers, each on a lane of its own, without waiting until they receive.

        Args:
            receiver: A receiver, which is copied to each task; or a function that takes the lane
                and returns a receiver, which the executor calls. Pass a function if settings differ
                between lanes, such as the client id of an `MqttReceiver`, or if the receiver cannot
                be pickled. A receiver that listens needs port 0, because two receivers may run on
                one machine.
            n: Number of receivers; less than the number of cores, as each receiver occupies a core.
            hosting: Hosting of the first receiver; the other receivers get the following lanes. The
                journal must be on a file system that driver and executors share, in an object store
                or in HDFS. The ledger must be in PostgreSQL, unless Spark runs on this machine
                alone.

        Returns:
            The started receivers.

        Raises:
            OptionError: There are too few cores or lanes, one of the lanes already has a receiver,
                the receiver cannot be pickled, or the ledger is a SQLite file in a cluster.
            JournalError: The journal cannot be opened.
            LedgerError: The ledger's URL is invalid.
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
        """Stop all receivers cleanly, within ``timeout_s`` together, and close the report port.

        A receiver that has not ended after this time is killed, with a warning in the log.
        """
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
        """Return the number of tasks that can run at the same time.

        With dynamic allocation, return the number of tasks on the maximum number of executors, or
        infinity if no maximum is set.
        """
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
                    f"Lane {lane} of the journal {journal.name} already has a receiver of this"
                    " application; set a free first lane in Hosting, or stop that receiver."
                )


def _too_few(n: int, taken: int, slots: float) -> OptionError:
    running = f" beside the {taken} that already run" if taken else ""
    free = slots - 1 - taken
    fewer = f"start {free} at most, or " if free > 0 else ""
    return OptionError(
        f"{n} receivers are to be started{running}, but this application can run {slots} tasks at"
        " the same time (by its default parallelism, or its largest number of executors). Each"
        " receiver occupies one task for as long as it runs, so no other task could run:"
        f" {fewer}give the application more cores."
    )


def _bare(host: str) -> str:
    """Remove the brackets that Spark puts around an IPv6 address, and return the host."""
    return host.removeprefix("[").removesuffix("]")


def _run(supervisor: LaneSupervisor) -> threading.Thread:
    # An InheritableThread inherits the caller's Spark properties, such as the scheduler pool.
    thread = InheritableThread(supervisor.run, name=f"headrace-lane-{supervisor.lane}", daemon=True)
    thread.start()
    return thread


def _pickled(receiver: Receiver | Callable[[int], Receiver]) -> bytes:
    if isinstance(receiver, type):
        raise OptionError(
            f"The receiver to start is the class {receiver.__name__}; pass an instance, or a"
            " function that takes the lane and returns a receiver."
        )
    try:
        pickled: bytes = cloudpickle.dumps(receiver)  # type: ignore[no-untyped-call]
    except Exception as error:  # objects raise errors of any type when pickled
        raise OptionError(
            f"The receiver cannot be pickled for the executors ({error}); pass a function that"
            " constructs it there from the lane: start(lambda lane: ..., n, hosting)."
        ) from error
    return pickled


def _ledger_url(url: str | None, master: str) -> str | None:
    if url is None:
        return None
    in_full = normalize_url(url)
    if in_full.startswith("sqlite") and not master.startswith("local"):
        raise OptionError(
            f"The ledger is a SQLite file, but Spark's master is {master}; executors on other"
            " machines cannot use this file, so keep the ledger in PostgreSQL."
        )
    return in_full
