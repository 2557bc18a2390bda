"""Receivers on Spark's executors: what a program starts, watches and stops."""

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from headrace.errors import OptionError
from headrace.journal import Journal
from headrace.journal.names import checked_lane
from headrace.ledger import normalize_url
from headrace.receivers import Hosting, Receiver
from headrace.receivers.settings import require_at_least, require_port
from headrace.tracker.channel import Channel
from headrace.tracker.hosted import STOP_S, HostedReceivers
from headrace.tracker.jobs import SparkJobs
from headrace.tracker.lane import TrackedLane
from headrace.tracker.status import State
from headrace.tracker.task import Assignment

_ENDED: Final = (State.STOPPED, State.FAILED)

_REGISTER_S: Final = 30.0
"""How long executors may take to come, when there are too few cores; Spark's own default."""

_LOOK_S: Final = 0.2


class Receivers:
    """Hosts receivers on the executors of a Spark application: the tracker.

    Each receiver is a Spark job of one task that does not end, and takes the place of one for as
    long. A receiver that goes wrong is started again, after 1 s, later up to 30; one whose executor
    died, on another; one that cannot succeed (an option is wrong, a package is missing) is not, and
    the log says so. Over a connection of its own each task reports to the driver: if the driver is
    gone, or cannot be heard for 30 s, the receiver ends cleanly. ::

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
        port: The driver's port that tasks report to, which executors must be able to reach; 0, the
            default, for any that is free. It is opened on ``spark.driver.bindAddress``, with the
            first receiver.

    Raises:
        OptionError: The port is none.
    """

    def __init__(self, spark: SparkSession, *, port: int = 0) -> None:
        require_port(port)
        self._context: SparkContext = spark.sparkContext
        self._port = port
        self._starting = threading.Lock()
        self._channel: Channel | None = None
        self._hosted: list[HostedReceivers] = []
        self._taken: dict[tuple[str, int], TrackedLane] = {}

    def start(
        self, receiver: Receiver | Callable[[int], Receiver], n: int, hosting: Hosting
    ) -> HostedReceivers:
        """Start receivers, each on a lane of its own, and do not wait until they receive.

        Where there are too few cores, it waits up to 30 s for executors that are just coming.

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
        require_at_least("n", n, 1)
        lanes = [checked_lane(hosting.lane + number) for number in range(n)]
        pickled = _pickled(receiver)
        ledger = _ledger_url(hosting.ledger, self._setting("spark.master"))
        with self._starting:
            self._require_cores(n)
            journal = Journal.open(hosting.journal, create=True)
            self._require_free(journal, lanes)
            channel = self._opened()
            everywhere = replace(hosting, journal=journal.storage.url, ledger=ledger)
            tracker = (_bare(self._setting("spark.driver.host")), channel.port)
            tracked = []
            for lane in lanes:
                of_lane = replace(everywhere, lane=lane)
                assignment = Assignment(tracker, "", of_lane, journal.id, pickled)
                description = f"headrace receiver: journal {journal.name}, lane {lane}"
                jobs = SparkJobs(self._context, assignment, description)
                tracked.append(TrackedLane(lane, journal.name, jobs, channel))
                self._taken[journal.id, lane] = tracked[-1]
            hosted = HostedReceivers(tracked, [_run(lane) for lane in tracked])
            self._hosted.append(hosted)
        return hosted

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop all that were started; see `HostedReceivers.stop`."""
        with self._starting:
            deadline_s = time.monotonic() + timeout_s
            for hosted in self._hosted:
                hosted.ask_to_stop()
            for hosted in self._hosted:
                hosted.stop(deadline_s - time.monotonic())
            self._hosted.clear()
            self._taken.clear()
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def _setting(self, name: str) -> str:
        return self._context.getConf().get(name, "") or ""

    def _opened(self) -> Channel:
        if self._channel is None:
            host = self._setting("spark.driver.bindAddress") or self._setting("spark.driver.host")
            self._channel = Channel(_bare(host), self._port)
        return self._channel

    def _require_cores(self, n: int) -> None:
        taken = sum(lane.status.state not in _ENDED for lane in self._taken.values())
        is_local = re.match(r"local(\[|$)", self._setting("spark.master"))
        deadline_s = time.monotonic() + (0 if is_local else _REGISTER_S)
        while taken + n >= (slots := self._slots()):
            if time.monotonic() >= deadline_s:
                raise _too_few(n, taken, slots)
            time.sleep(_LOOK_S)

    def _slots(self) -> float:
        """How many tasks can run at the same time, as far as executors have come by now."""
        task_cores = int(self._setting("spark.task.cpus") or 1)
        if self._setting("spark.dynamicAllocation.enabled") != "true":
            return self._context.defaultParallelism // task_cores
        most = self._setting("spark.dynamicAllocation.maxExecutors")
        cores = int(self._setting("spark.executor.cores") or 1)
        return int(most) * (cores // task_cores) if most else math.inf

    def _require_free(self, journal: Journal, lanes: list[int]) -> None:
        for lane in lanes:
            tracked = self._taken.get((journal.id, lane))
            if tracked is not None and tracked.status.state not in _ENDED:
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


def _run(lane: TrackedLane) -> threading.Thread:
    # It inherits the caller's Spark properties, such as its scheduler pool.
    thread = InheritableThread(lane.run, name=f"headrace-lane-{lane.lane}", daemon=True)
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
