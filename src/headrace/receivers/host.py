"""A receiver at work in this process: its lane, its intake, its rate, and how it ends."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from headrace.errors import CorruptionError, OptionError
from headrace.journal import Journal
from headrace.journal.lane import LaneWriter
from headrace.ledger import Ledger, ReceiverSeen
from headrace.receivers.intake import Intake, IntakeStatistics
from headrace.receivers.meter import Meter
from headrace.receivers.protocol import Receiver
from headrace.receivers.rates import Limits, Rates
from headrace.receivers.remembering import remember
from headrace.receivers.settings import IntakeSettings
from headrace.receivers.telling import event, number

Listen = Callable[[], str]
"""Opens what senders connect to, and answers its address for the log."""

_LOG: Final = logging.getLogger("headrace.receivers")

_REFUSALS_S: Final = 60.0
"""How often the log says what was refused: rarely enough that no sender can fill it."""

_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Hosting:
    """Where a receiver's records go, and how fast.

    Attributes:
        journal: The journal: a directory, s3://bucket/prefix or webhdfs://host:port/path; it is
            made where there is none.
        lane: The lane to write, 0 to 99999; each receiver has its own. Default: 0.
        gate: The gate whose rate is the limit, shared with its other receivers. Default: None,
            which leaves it to ``limits`` alone.
        ledger: The URL of the gate's ledger; needed with a gate.
        limits: What it lets in at most.
        intake: How it gathers records.

    Raises:
        OptionError: There is a gate, and no ledger.
    """

    journal: str
    lane: int = 0
    gate: str | None = None
    ledger: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    intake: IntakeSettings = field(default_factory=IntakeSettings)

    def __post_init__(self) -> None:
        if self.gate is not None and self.ledger is None:
            raise OptionError(
                f"The rate of gate {self.gate!r} is to be gone by, and no ledger is named where it"
                " would be; name the ledger."
            )


def host(receiver: Receiver, hosting: Hosting, listen: Listen | None = None) -> None:
    """Run a receiver over a lane until it ends, or until SIGTERM or Ctrl-C; in the main thread.

    Then nothing more is taken, what is in the buffer is made durable and acknowledged, and the lane
    is free for others. A second Ctrl-C ends the process at once, with status 130; as after any
    crash, senders send again what was not acknowledged.

    Args:
        receiver: Receives.
        hosting: See `Hosting`.
        listen: Opens what senders connect to, where that is known before the receiver receives;
            called when the lane is taken.

    Raises:
        LaneTakenError: Another process has the lane, or has put a block of its own into it since.
        JournalError: The journal cannot be opened, or a gate has read beyond the lane's end.
        LedgerError: The ledger cannot be opened. Later it may be away: the last rate stays.
        ReceiverError: The receiver cannot receive.
    """
    stop = asyncio.Event()
    with asyncio.Runner() as runner, _stopped_by_signals(runner.get_loop(), stop):
        runner.run(serve(receiver, hosting, stop, listen))


async def serve(
    receiver: Receiver, hosting: Hosting, stop: asyncio.Event, listen: Listen | None = None
) -> None:
    """The same until the event is set, and without a hand on signals: for other hosts.

    Raises:
        LaneTakenError: As `host`.
        JournalError: As `host`.
        LedgerError: As `host`.
        ReceiverError: As `host`.
    """
    journal = Journal.open(hosting.journal, create=True)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(journal.writer(hosting.lane))
        intake = Intake(writer.append, hosting.intake, settle=writer.settle)
        await remember(journal, hosting.lane, intake, stop)
        if not stop.is_set():
            _follow_rates(stack, journal, hosting, writer, intake)
            async with intake:
                _tell_begin(journal, hosting, writer, listen() if listen else None)
                await _run(receiver, intake, stop)
        _tell_refusals(intake)
        _tell_end(writer, intake.statistics)


async def _run(receiver: Receiver, intake: Intake, stop: asyncio.Event) -> None:
    running = asyncio.create_task(receiver.receive(intake))
    stopping = asyncio.create_task(stop.wait())
    losing = asyncio.create_task(intake.lost())
    tasks = (running, stopping, losing, asyncio.create_task(_keep_telling_refusals(intake)))
    try:
        await asyncio.wait((running, stopping, losing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for error in [task.exception() for task in (losing, running) if not task.cancelled()]:
        if error:
            raise error


async def _keep_telling_refusals(intake: Intake) -> None:
    while True:
        await asyncio.sleep(_REFUSALS_S)
        _tell_refusals(intake)


def _tell_refusals(intake: Intake) -> None:
    if refused := intake.refusals.taken():
        _LOG.info(
            "Refused lately: %s",
            refused,
            extra=event("refusals", counts=refused.counts, last=refused.last),
        )


def _follow_rates(
    stack: contextlib.ExitStack,
    journal: Journal,
    hosting: Hosting,
    writer: LaneWriter,
    intake: Intake,
) -> None:
    """Have the intake go by its limits, and by its gate's rate if it has a gate, to the end."""
    limits = hosting.limits
    intake.set_rate(limits.max_rate, limits.max_bytes_rate)
    if hosting.gate is None or hosting.ledger is None:
        return
    loop = asyncio.get_running_loop()
    described = _Described(journal, hosting, hosting.gate, intake)

    def apply(limit_per_s: float) -> None:
        loop.call_soon_threadsafe(intake.set_rate, limit_per_s, limits.max_bytes_rate)

    ledger = stack.enter_context(Ledger.open(hosting.ledger))
    _check_end(ledger, journal, hosting, writer)
    rates = Rates(
        ledger,
        hosting.gate,
        limits,
        describe=described.under,
        end=lambda: writer.end,
        apply=apply,
    )
    stack.enter_context(rates)


def _check_end(ledger: Ledger, journal: Journal, hosting: Hosting, writer: LaneWriter) -> None:
    """Hold a lane to what its readers have read of it.

    Raises:
        CorruptionError: It ends before that, as after a backup that was put back.
    """
    reached = ledger.reached(journal.id).get(hosting.lane, 0)
    if reached > writer.end:
        raise CorruptionError(
            f"Lane {hosting.lane} of the journal {hosting.journal} ends at offset {writer.end}, but"
            f" a gate of the ledger has read it up to {reached}: its last records are gone; put"
            " them back, or let `headrace journal repair` with --ledger declare them lost."
        )


class _Described:
    """A receiver as its gate's ledger knows it."""

    def __init__(self, journal: Journal, hosting: Hosting, gate: str, intake: Intake) -> None:
        self._journal = journal
        self._hosting = hosting
        self._gate = gate
        self._intake = intake
        self._owner = f"{socket.gethostname()}:{os.getpid()}/{secrets.token_hex(8)}"
        self._started_ms = time.time_ns() // 1_000_000
        self._meter = Meter()

    def under(self, limit_per_s: float) -> ReceiverSeen:
        """How it fares under this limit; from any thread, for it only reads numbers."""
        done = self._intake.statistics
        return ReceiverSeen(
            gate=self._gate,
            journal_id=self._journal.id,
            lane=self._hosting.lane,
            journal=self._journal.name,
            owner=self._owner,
            started_ms=self._started_ms,
            limit_per_s=limit_per_s,
            most_per_s=self._hosting.limits.max_rate,
            records_per_s=self._meter.rate_per_s(time.monotonic(), done.stored_records),
            records=done.stored_records,
            bytes=done.stored_bytes,
            buffered_bytes=done.held_bytes,
            waiting_records=done.waiting_records,
        )


def _tell_begin(
    journal: Journal, hosting: Hosting, writer: LaneWriter, address: str | None
) -> None:
    _LOG.info(
        "Receiving%s into lane %d of the journal %s, from offset %d on.",
        "" if address is None else f" at {address}",
        hosting.lane,
        hosting.journal,
        writer.end,
        extra=event(
            "receiving",
            address=address,
            journal=journal.name,
            journal_id=journal.id,
            lane=hosting.lane,
            offset=writer.end,
        ),
    )


def _tell_end(writer: LaneWriter, done: IntakeStatistics) -> None:
    _LOG.info(
        "Ended; records stored: %s, of %s bytes; lane %d goes on at offset %d.",
        number(done.stored_records),
        number(done.stored_bytes),
        writer.lane,
        writer.end,
        extra=event(
            "ended",
            lane=writer.lane,
            offset=writer.end,
            stored_records=done.stored_records,
            stored_bytes=done.stored_bytes,
            failed_records=done.failed_records,
            duplicate_records=done.duplicate_records,
        ),
    )


@contextlib.contextmanager
def _stopped_by_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    asked = False

    def end() -> None:
        _LOG.info(
            "Ending: what was taken is made durable first; Ctrl-C once more ends at once.",
            extra=event("ending"),
        )
        stop.set()

    def ask(which: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked and which == signal.SIGINT:
            os._exit(_INTERRUPTED)  # a disk that hangs would hold up every other end
        if not asked:
            asked = True
            loop.call_soon_threadsafe(end)

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
