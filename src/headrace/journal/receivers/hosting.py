"""Run a receiver in this process: open its lane, apply its rate limit, and stop it cleanly."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Protocol, runtime_checkable

from headrace.core.system import needs_extra
from headrace.core.timing import wall_clock_ms
from headrace.errors import CorruptionError, NoJournalError, OptionError
from headrace.gate import Ledger, ReceiverReport
from headrace.journal import Journal
from headrace.journal.lane_writer import LaneWriter
from headrace.journal.receivers.deduplicator import newest_ids
from headrace.journal.receivers.event_log import event, readable
from headrace.journal.receivers.id_window import id_bytes
from headrace.journal.receivers.intake import Intake, IntakeStatistics
from headrace.journal.receivers.journal_cap import CapSettings, JournalCap
from headrace.journal.receivers.lane_health import LaneHealth
from headrace.journal.receivers.memory_budget import warm_up
from headrace.journal.receivers.option import option
from headrace.journal.receivers.settings import IntakeSettings, require_port
from headrace.journal.receivers.shared_rate import RateFollower, RateMeter, ReceiverLimits
from headrace.journal.storage import probe

Listen = Callable[[], str]
"""Function that opens a receiver's port, and returns the URL for senders. The URL is logged."""

_LOG: Final = logging.getLogger("headrace.receivers")

REJECTIONS_S: Final = 60.0
"""Interval at which the number of rejections is logged (s). It is long, so that no sender can fill
the log."""

_INTERRUPTED: Final = 130


class Receiver(Protocol):
    """Interface of receivers, which take records from senders and submit them to an intake.

    A receiver acknowledges records only after the intake has returned their receipt. While a call
    of the intake waits, the receiver reads no further records, so that the senders wait too. ::

        class Numbers:
            async def receive(self, intake: Intake) -> None:
                for number in itertools.count():
                    record = Records.of([str(number).encode()], timestamp_ms=now_ms())
                    await intake.submit(record)
                    print("stored", number)
    """

    async def receive(self, intake: Intake) -> None:
        """Receive records until cancelled, or until no more records can arrive.

        On cancellation the receiver accepts no more records, waits for the receipts of buffered
        records, acknowledges these records and returns. The intake stays open until `receive` has
        returned.

        Raises:
            ReceiverError: The receiver cannot receive, for instance because its port is in use or
                the broker refuses its client.
        """
        ...


class PlacedReceiver(Receiver, Protocol):
    """Interface of receivers that have a URL, as all receivers of ``headrace receive`` have."""

    def address(self, own_host: str | None = None) -> str:
        """Return the URL of the receiver, or of the broker from which it reads.

        ``own_host`` replaces a host that means all addresses, such as ``0.0.0.0``.
        """
        ...


@runtime_checkable
class Listener(PlacedReceiver, Protocol):
    """Interface of receivers that listen on a port, to which senders connect."""

    def listen(self) -> object:
        """Open the port before `receive` is called, so that the port number is known.

        Raises:
            OptionError: The token file, or a file with a certificate or key, cannot be used.
            ReceiverError: The port cannot be opened.
        """
        ...

    def close(self) -> None:
        """Close the port that `listen` opened, unless `receive` already uses it; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Hosting:
    """Settings of a receiver's journal, lane, rate limits and status port.

    Attributes:
        journal: Journal to write: a directory, s3://bucket/prefix or webhdfs://host:port/path. A
            missing journal is created, unless ``must_exist`` is set.
        lane: Lane to write, 0 to 99999; each receiver needs a lane of its own. Default: 0.
        gate: Gate whose rate limits the receiver; the gate's receivers share this rate. Default:
            None, only ``limits`` limits the rate.
        ledger: URL of the gate's ledger; required with a gate.
        limits: Rate limits of this receiver.
        intake: Settings of blocks and memory.
        cap: Limits of the journal's size and age, beyond which senders wait.
        must_exist: Whether to fail if the journal does not exist, instead of creating it. Set it if
            the journal is on a volume that may not be mounted. Default: off.
        status_port: HTTP port that serves ``/health``, ``/ready`` and ``/metrics``, in addition to
            a receiver's own port; 0 for any free port. Default: None, no additional port.
        status_host: Address of the status port. Default: 127.0.0.1, reachable from this machine
            only.

    Raises:
        OptionError: A gate is set without a ledger; ``max_unread_s`` is set without a gate; or
            ``max_journal_bytes`` is less than one block.
    """

    journal: str = field(metadata=option("--journal", sample="journal"))
    lane: int = field(default=0, metadata=option("--lane"))
    gate: str | None = field(default=None, metadata=option("--gate"))
    ledger: str | None = field(default=None, repr=False, metadata=option("--ledger"))
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    intake: IntakeSettings = field(default_factory=IntakeSettings)
    cap: CapSettings = field(default_factory=CapSettings)
    must_exist: bool = False
    status_port: int | None = None
    status_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.status_port is not None:
            require_port(self.status_port, "status_port")
        most_bytes = self.cap.max_journal_bytes
        if most_bytes is not None and most_bytes < self.intake.block_bytes:
            raise OptionError(
                f"max_journal_bytes is {most_bytes}, less than one block of"
                f" {self.intake.block_bytes} bytes; raise max_journal_bytes, or lower block_bytes."
            )
        if self.cap.max_unread_s is not None and self.gate is None:
            raise OptionError(
                "max_unread_s is set without a gate, but only a gate's ledger shows which records"
                " are unread; set the gate too."
            )
        if self.gate is not None and self.ledger is None:
            raise OptionError(
                f"The gate {self.gate!r} is set without a ledger, but only the ledger has the"
                " gate's rate; set the ledger's URL too."
            )


def open_journal(hosting: Hosting) -> tuple[Journal, bool]:
    """Open a receiver's journal; create a missing journal unless ``must_exist`` is set.

    Returns:
        The journal, and whether it is new.

    Raises:
        NoJournalError: The journal does not exist, and ``must_exist`` is set.
        JournalError: The journal cannot be opened or created.
    """
    try:
        journal = Journal.open(hosting.journal)
    except NoJournalError:
        if not hosting.must_exist:
            return Journal.open(hosting.journal, create=True), True
        raise NoJournalError(
            f"There is no journal {hosting.journal}, and must_exist is true, so the receiver does"
            " not create it; mount the journal's volume, or start once without must_exist."
        ) from None
    # Another receiver may be creating the journal: create=True makes sure that it is durable.
    return (journal if hosting.must_exist else Journal.open(hosting.journal, create=True)), False


def log_new_journal(journal: Journal) -> None:
    """Log a warning that a journal was created.

    The warning helps if a journal already exists, but its volume is not mounted.
    """
    _LOG.warning(
        "There was no journal %s, so the receiver begins a new journal.",
        journal.storage.url,
        extra=event("new-journal", journal=journal.name),
    )


def host(receiver: Receiver, hosting: Hosting, listen: Listen | None = None) -> None:
    """Run a receiver in the main thread until it ends, or until SIGTERM, SIGHUP or Ctrl-C.

    A signal stops the receiver cleanly: it accepts no more records, makes buffered records durable,
    acknowledges them, and releases the lane. A second Ctrl-C ends the process at once, with exit
    status 130. In this case senders repeat unacknowledged records, as after a crash.

    Args:
        receiver: The receiver.
        hosting: The receiver's journal, lane and limits.
        listen: Function that opens the receiver's port and returns its URL for the log. It is
            called after the lane is locked. Default: None, for a receiver that does not listen.

    Raises:
        LaneTakenError: Another process holds the lane, or appended to it while the receiver ran.
        JournalError: The journal cannot be opened, or a gate has read beyond the lane's end.
        LedgerError: The ledger cannot be opened. If the ledger becomes unreachable later, no error
            is raised, and the last rate stays in force.
        ReceiverError: The receiver cannot receive.
    """
    warm_up()
    stop = asyncio.Event()
    with (
        asyncio.Runner() as runner,
        _stopped_by_signals(runner.get_loop(), stop),
    ):
        runner.run(serve(receiver, hosting, stop, listen))


async def serve(
    receiver: Receiver,
    hosting: Hosting,
    stop: asyncio.Event,
    listen: Listen | None = None,
    *,
    rejections_s: float = REJECTIONS_S,
) -> None:
    """Run a receiver as `host` does, but until ``stop`` is set. Signals are not handled.

    The number of rejections is logged every ``rejections_s`` seconds. Default: 60.
    """
    journal, is_new = open_journal(hosting)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(
            journal.writer(hosting.lane, segment_bytes=hosting.cap.segment_bytes)
        )
        storage, folder = journal.storage, str(hosting.lane)
        health = LaneHealth(
            writer.append,
            lambda size_bytes: probe(storage, folder, size_bytes),
            journal=journal.name,
            lane=hosting.lane,
        )
        stack.callback(health.close)
        intake = Intake(
            writer.append,
            hosting.intake,
            settle=writer.settle,
            at_once=journal.is_in_directory,
            health=health,
        )
        most = hosting.intake.ids_bytes // id_bytes("")
        for ids, offsets in await newest_ids(journal, hosting.lane, most, stop):
            intake.restore(ids, offsets)
        if not stop.is_set():
            ledger = _follow_rates(stack, journal, hosting, writer, intake)
            async with (
                intake,
                _status_served(intake, hosting),
                _capped(journal, hosting, ledger, intake),
            ):
                _log_begin(journal, hosting, writer, listen() if listen else None)
                if is_new:
                    log_new_journal(journal)
                await _run(receiver, intake, stop, rejections_s)
        _log_rejections(intake)
        _log_end(writer, intake.statistics)


async def _run(
    receiver: Receiver, intake: Intake, stop: asyncio.Event, rejections_s: float
) -> None:
    running = asyncio.create_task(receiver.receive(intake))
    stopping = asyncio.create_task(stop.wait())
    losing = asyncio.create_task(intake.lost())
    logging_ = asyncio.create_task(_keep_logging(intake, rejections_s))
    tasks = (running, stopping, losing, logging_)
    try:
        await asyncio.wait((running, stopping, losing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for error in [task.exception() for task in (losing, running) if not task.cancelled()]:
        if error:
            raise error


async def _keep_logging(intake: Intake, rejections_s: float) -> None:
    while True:
        await asyncio.sleep(rejections_s)
        _log_rejections(intake)


def _log_rejections(intake: Intake) -> None:
    if rejected := intake.rejections.drain():
        _LOG.info(
            "Rejections since the last report: %s",
            rejected,
            extra=event("rejections", counts=rejected.counts, last=rejected.last),
        )


def _follow_rates(
    stack: contextlib.ExitStack,
    journal: Journal,
    hosting: Hosting,
    writer: LaneWriter,
    intake: Intake,
) -> Ledger | None:
    """Set the intake's rate limits, and follow the gate's rate until the stack is closed.

    Return the gate's ledger, or None without a gate.
    """
    limits = hosting.limits
    intake.set_rate(limits.max_rate, limits.max_bytes_rate)
    if hosting.gate is None or hosting.ledger is None:
        return None
    loop = asyncio.get_running_loop()

    def apply(limit_per_s: float) -> None:
        loop.call_soon_threadsafe(intake.set_rate, limit_per_s, limits.max_bytes_rate)

    def refuse(reason: str | None) -> None:
        loop.call_soon_threadsafe(intake.refuse, "gate", reason)

    ledger = stack.enter_context(Ledger.open(hosting.ledger))
    _check_end(ledger, journal, hosting, writer)
    describe = _description(journal, hosting, hosting.gate, intake)
    stack.enter_context(
        RateFollower(
            ledger,
            hosting.gate,
            limits,
            describe=describe,
            end=lambda: writer.end,
            apply=apply,
            refuse=refuse,
        )
    )
    return ledger


@contextlib.asynccontextmanager
async def _capped(
    journal: Journal, hosting: Hosting, ledger: Ledger | None, intake: Intake
) -> AsyncIterator[None]:
    if not hosting.cap.is_set:
        yield
        return
    cap = JournalCap(journal, hosting.lane, hosting.cap, ledger)
    await cap.apply(intake)
    keeping = asyncio.create_task(cap.keep(intake))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled():
            keeping.result()


@contextlib.asynccontextmanager
async def _status_served(intake: Intake, hosting: Hosting) -> AsyncIterator[None]:
    if hosting.status_port is None:
        yield
        return
    with needs_extra("receivers", "A receiver's status port"):
        from headrace.journal.receivers.http.status_routes import serving_status  # noqa: PLC0415

    host = hosting.status_host
    async with serving_status(intake, host, hosting.status_port) as port:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _LOG.info(
            "Serving health and metrics at http://%s/metrics.",
            authority,
            extra=event("status", address=f"http://{authority}"),
        )
        yield


def _check_end(ledger: Ledger, journal: Journal, hosting: Hosting, writer: LaneWriter) -> None:
    """Raise CorruptionError if a gate has read beyond the lane's end.

    This can happen after the journal was restored from a backup.
    """
    reached = ledger.history.reached(journal.id).get(hosting.lane, 0)
    if reached > writer.end:
        raise CorruptionError(
            f"Lane {hosting.lane} of the journal {hosting.journal} ends at offset {writer.end}, but"
            f" a gate of the ledger has read it up to offset {reached}, so the lane's last records"
            " are gone; restore them, or declare them lost with `headrace journal repair` and its"
            " option --ledger."
        )


def _description(
    journal: Journal, hosting: Hosting, gate: str, intake: Intake
) -> Callable[[float], ReceiverReport]:
    """Return a thread-safe function that builds the receiver's report for the ledger.

    The function takes the current rate limit (records/s).
    """
    owner = f"{socket.gethostname()}:{os.getpid()}/{secrets.token_hex(8)}"
    started_ms = wall_clock_ms()
    meter = RateMeter()

    def under(limit_per_s: float) -> ReceiverReport:
        statistics = intake.statistics
        return ReceiverReport(
            gate=gate,
            journal_id=journal.id,
            lane=hosting.lane,
            journal=journal.name,
            owner=owner,
            started_ms=started_ms,
            limit_per_s=limit_per_s,
            most_per_s=hosting.limits.max_rate,
            records_per_s=meter.rate_per_s(time.monotonic(), statistics.stored_records),
            records=statistics.stored_records,
            bytes=statistics.stored_bytes,
            buffered_bytes=statistics.reserved_bytes,
            waiting_records=statistics.waiting_records,
            refusing=intake.refusing,
            rejected=dict(intake.rejections.totals),
        )

    return under


def _log_begin(journal: Journal, hosting: Hosting, writer: LaneWriter, address: str | None) -> None:
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


def _log_end(writer: LaneWriter, done: IntakeStatistics) -> None:
    _LOG.info(
        "The receiver has ended; records stored: %s, with %s bytes; lane %d now ends at offset %d.",
        readable(done.stored_records),
        readable(done.stored_bytes),
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
            "Ending: the receiver first makes all accepted records durable; press Ctrl-C again to"
            " end at once.",
            extra=event("ending"),
        )
        stop.set()

    def ask(which: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked and which == signal.SIGINT:
            os._exit(_INTERRUPTED)  # a hanging disk would block every cleaner exit
        if not asked:
            asked = True
            loop.call_soon_threadsafe(end)

    before = {
        signal_number: signal.signal(signal_number, ask)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
