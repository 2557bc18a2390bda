"""Receiver that runs in a Spark task. It stops if the driver no longer answers.

This module does not import Spark.
"""

import asyncio
import contextlib
import logging
import pickle
import socket
from dataclasses import dataclass, field
from typing import Final, cast

from headrace.errors import (
    HeadraceError,
    JournalError,
    NoJournalError,
    OptionError,
    ReceiverError,
    SetupError,
)
from headrace.journal import Journal
from headrace.journal.receivers import Hosting, Intake, Receiver
from headrace.journal.receivers.hosting import Listener, serve
from headrace.journal.receivers.memory_budget import warm_up
from headrace.journal.receivers.spark.reporting import (
    MAX_LINE_BYTES,
    REPORT_S,
    SILENCE_S,
    Order,
    Report,
    decode_order,
    read_line,
)

_LOG: Final = logging.getLogger("headrace.receivers.spark")

_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """Receiver that a task must run, with the driver's address for the task's reports.

    ``driver`` is the host and port of the driver. ``token`` authenticates the task. ``hosting`` may
    contain the ledger's password. ``receiver`` is the pickled receiver, or a pickled function that
    takes the lane and returns the receiver. After ``silence_s`` without an answer, the task
    considers the driver lost.
    """

    driver: tuple[str, int]
    token: str = field(repr=False)
    hosting: Hosting = field(repr=False)
    journal_id: str
    receiver: bytes = field(repr=False)
    silence_s: float = SILENCE_S


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Outcome of a task: its error, or None if the receiver was stopped or has finished.

    ``is_permanent`` is true if a restart would fail with the same error.
    """

    error: str | None = None
    is_permanent: bool = False


def work(assignment: Assignment) -> TaskOutcome:
    """Run the receiver until the driver orders a stop, the driver is lost, or an error occurs.

    Before this function returns, the receiver accepts no more records, makes buffered records
    durable, acknowledges them, and releases the lane. Errors are returned and not raised, because
    Spark fails a job whose task raises errors ``spark.task.maxFailures`` times. So this limit
    counts only dead workers, and the supervisor decides about all other restarts.
    """
    warm_up()
    try:
        asyncio.run(_work(assignment))
    except (OptionError, SetupError) as error:
        return TaskOutcome(str(error), is_permanent=True)
    except HeadraceError as error:
        return TaskOutcome(str(error))
    except Exception as error:  # noqa: BLE001  # a user's receiver may raise anything
        _LOG.exception("The receiver of lane %d has failed.", assignment.hosting.lane)
        return TaskOutcome(f"{type(error).__name__}: {error}")
    return TaskOutcome()


async def _work(assignment: Assignment) -> None:
    reader, writer = await _connected(*assignment.driver)
    hosted = _Hosted(assignment, own_address=writer.get_extra_info("sockname")[0])
    try:
        while not hosted.has_ended:
            writer.write(hosted.report().encode())
            hosted.follow(decode_order(await read_line(reader, assignment.silence_s)))
            await hosted.until_changed(REPORT_S)
    except ReceiverError as error:
        raise ReceiverError(
            f"The receiver on {socket.gethostname()} has ended, because its driver was lost:"
            f" {error}"
        ) from error
    finally:
        try:
            await hosted.end()
        finally:
            writer.close()


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
    except OSError as error:  # TimeoutError is an OSError
        raise ReceiverError(
            f"The driver at {host}:{port} cannot be reached from {socket.gethostname()}"
            f" ({error or 'no answer'}); allow executors to connect to the driver at this port, or"
            " choose a port that they can reach: Receivers(spark, port=...)."
        ) from error


class _Hosted:
    """Receiver of an assignment, which starts and stops on the driver's orders."""

    def __init__(self, assignment: Assignment, own_address: str) -> None:
        self._assignment = assignment
        self._own_address = own_address
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._receiving = False
        self._address: str | None = None

    @property
    def has_ended(self) -> bool:
        return self._stop.is_set() if self._serving is None else self._serving.done()

    def report(self) -> Report:
        return Report(self._assignment.token, socket.gethostname(), self._receiving, self._address)

    def follow(self, order: Order) -> None:
        if order is Order.STOP:
            self._stop.set()
        elif order is Order.RECEIVE and self._serving is None:
            self._serving = asyncio.create_task(self._serve())
            self._serving.add_done_callback(lambda _: self._changed.set())

    async def until_changed(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        self._changed.clear()

    async def end(self) -> None:
        """Stop the receiver cleanly and wait until it has ended; raise its error if it failed."""
        self._stop.set()
        if self._serving is not None:
            await self._serving

    async def receive(self, intake: Intake) -> None:
        """Report to the driver that the lane is locked and the receiver starts; then run it."""
        self._receiving = True
        self._changed.set()
        await self._receiver.receive(intake)

    async def _serve(self) -> None:
        _check_journal(self._assignment)
        self._receiver = receiver = _made(self._assignment)

        if not isinstance(receiver, Listener):
            await serve(self, self._assignment.hosting, self._stop)
            return

        def listen() -> str:
            receiver.listen()
            self._address = receiver.address(self._own_address)
            return self._address

        with contextlib.closing(receiver):
            await serve(self, self._assignment.hosting, self._stop, listen)


def _check_journal(assignment: Assignment) -> None:
    """Check that the journal's URL refers to the driver's journal on this machine too.

    Raises:
        JournalError: The URL refers to another journal or to none, for instance on a local disk.
    """
    url = assignment.hosting.journal
    where = f"{url} on {socket.gethostname()}"
    remedy = "keep it on a file system that driver and executors share, in an object store or HDFS."
    try:
        journal_id = Journal.open(url).id
    except NoJournalError as error:
        raise JournalError(f"The driver's journal is not at {where}; {remedy}") from error
    if journal_id != assignment.journal_id:
        raise JournalError(f"The journal at {where} is not the driver's journal; {remedy}")


def _made(assignment: Assignment) -> Receiver:
    lane = assignment.hosting.lane
    try:
        made = pickle.loads(assignment.receiver)  # noqa: S301  # sent with the task by the driver
    except Exception as error:
        raise SetupError(
            f"The receiver cannot be unpickled on {socket.gethostname()} ({error}); install the"
            " modules that it needs there, or send them along: spark.submit.pyFiles."
        ) from error
    receiver = made if hasattr(made, "receive") else made(lane)
    if not hasattr(receiver, "receive"):
        raise OptionError(
            f"The function for the receiver of lane {lane} returned a {type(receiver).__name__}; it"
            " must return a receiver with a method receive (headrace.journal.receivers.Receiver)."
        )
    return cast("Receiver", receiver)
