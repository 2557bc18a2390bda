"""What runs in a Spark task: one receiver, for as long as its tracker is heard. Free of Spark."""

import asyncio
import contextlib
import logging
import pickle
import socket
from collections.abc import Callable
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
from headrace.receivers import Hosting, HttpReceiver, Intake, Receiver, TcpReceiver
from headrace.receivers.host import Listen, serve
from headrace.tracker.messages import (
    MAX_LINE_BYTES,
    REPORT_S,
    SILENCE_S,
    Order,
    Report,
    decode_order,
    read_line,
)

_LOG: Final = logging.getLogger("headrace.tracker")

_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task is to run, and whom it reports to.

    Attributes:
        tracker: The tracker's host and port.
        token: What the task shows there.
        hosting: Where the records go; it may hold the password of a ledger.
        journal_id: The identity of the journal as the driver sees it.
        receiver: The receiver, or a function of the lane that makes it; pickled.
    """

    tracker: tuple[str, int]
    token: str = field(repr=False)
    hosting: Hosting = field(repr=False)
    journal_id: str
    receiver: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended.

    Attributes:
        error: What went wrong; None if it was stopped, or nothing more was to come.
        lasting: Whether it would go wrong again.
    """

    error: str | None = None
    lasting: bool = False


def work(assignment: Assignment) -> Outcome:
    """Receive until the tracker says that it is enough, or is gone, or something goes wrong.

    In each case nothing more is taken, what is in the buffer is made durable and acknowledged, and
    the lane is free, before it returns. It raises nothing: a task that fails too often fails its
    job, and what went wrong here is the tracker's to judge.
    """
    try:
        asyncio.run(_work(assignment))
    except (OptionError, SetupError) as error:
        return Outcome(str(error), lasting=True)
    except HeadraceError as error:
        return Outcome(str(error))
    except Exception as error:  # noqa: BLE001  # a user's receiver may raise anything
        _LOG.exception("The receiver of lane %d has failed.", assignment.hosting.lane)
        return Outcome(f"{type(error).__name__}: {error}")
    return Outcome()


async def _work(assignment: Assignment) -> None:
    reader, writer = await _connected(*assignment.tracker)
    hosted = _Hosted(assignment, own_address=writer.get_extra_info("sockname")[0])
    try:
        while not hosted.has_ended:
            writer.write(hosted.report().encode())
            hosted.obey(decode_order(await read_line(reader, SILENCE_S)))
            await hosted.until_changed(REPORT_S)
    except ReceiverError as error:
        raise ReceiverError(
            f"The receiver on {socket.gethostname()} has ended, for its tracker was lost: {error}"
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
    except OSError as error:  # a timeout is one
        raise ReceiverError(
            f"The tracker at {host}:{port} cannot be reached from {socket.gethostname()}"
            f" ({error or 'no answer'}); let executors connect to the driver at this port, or"
            " choose one that they can: Receivers(spark, port=...)."
        ) from error


class _Hosted:
    """The receiver of an assignment: not begun, at work, or ended."""

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
        """Whether there is nothing more to report."""
        return self._stop.is_set() if self._serving is None else self._serving.done()

    def report(self) -> Report:
        """How it fares."""
        return Report(self._assignment.token, socket.gethostname(), self._receiving, self._address)

    def obey(self, order: Order) -> None:
        """Begin, go on, or begin to end."""
        if order is Order.STOP:
            self._stop.set()
        elif order is Order.RECEIVE and self._serving is None:
            self._serving = asyncio.create_task(self._serve())
            self._serving.add_done_callback(lambda _: self._changed.set())

    async def until_changed(self, timeout_s: float) -> None:
        """Wait until it receives, or has ended, but no longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def end(self) -> None:
        """End cleanly; raises what the receiver has ended with."""
        self._stop.set()
        if self._serving is not None:
            await self._serving

    async def _serve(self) -> None:
        assignment = self._assignment
        _check_journal(assignment)
        receiver = _made(assignment)
        announced = _Announced(receiver, self._begun)
        await serve(announced, assignment.hosting, self._stop, self._listen(receiver))

    def _begun(self) -> None:
        self._receiving = True
        self._changed.set()

    def _listen(self, receiver: Receiver) -> Listen | None:
        if not isinstance(receiver, HttpReceiver | TcpReceiver):
            return None

        def listen() -> str:
            self._address = _address(receiver.listen(), self._own_address)
            return self._address

        return listen


class _Announced:
    """A receiver that says when it begins: from then on it has its lane."""

    def __init__(self, receiver: Receiver, begun: Callable[[], None]) -> None:
        self._receiver = receiver
        self._begun = begun

    async def receive(self, intake: Intake) -> None:
        self._begun()
        await self._receiver.receive(intake)


def _check_journal(assignment: Assignment) -> None:
    """See that a path leads to the driver's journal here too, and not to a disk of this machine."""
    url = assignment.hosting.journal
    where = f"{url} on {socket.gethostname()}"
    remedy = "keep it on a file system that driver and executors share, in an object store or HDFS."
    try:
        found = Journal.open(url).id
    except NoJournalError as error:
        raise JournalError(f"The driver's journal is not at {where}; {remedy}") from error
    if found != assignment.journal_id:
        raise JournalError(f"The journal at {where} is another one than the driver's; {remedy}")


def _made(assignment: Assignment) -> Receiver:
    lane = assignment.hosting.lane
    try:
        given = pickle.loads(assignment.receiver)  # noqa: S301  # it came with the task
    except Exception as error:
        raise SetupError(
            f"The receiver cannot be loaded on {socket.gethostname()} ({error}); install there what"
            " it needs, or send it along: spark.submit.pyFiles."
        ) from error
    receiver = given if hasattr(given, "receive") else given(lane)
    if not hasattr(receiver, "receive"):
        raise OptionError(
            f"What was to make the receiver of lane {lane} made a {type(receiver).__name__}; it"
            " must have a method receive, as headrace.receivers.Receiver says."
        )
    return cast("Receiver", receiver)


def _address(receiver: HttpReceiver | TcpReceiver, own_address: str) -> str:
    """Where it listens, as senders write it: where it does so everywhere, at this machine."""
    host = receiver.settings.host
    if host in ("", "0.0.0.0", "::"):  # noqa: S104
        host = own_address
    place = f"[{host}]:{receiver.port}" if ":" in host else f"{host}:{receiver.port}"
    return f"http://{place}/records" if isinstance(receiver, HttpReceiver) else f"tcp://{place}"
