"""Signals between stages over the ledger's database. This is the default transport."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from headrace.core.timing import WarnOnce
from headrace.errors import LedgerError
from headrace.flow.signal_codec import RawSignal, StageState, UnreachableError, encode
from headrace.flow.stage_signals import KnownStates, Signals
from headrace.gate import Ledger, PressureSignal, StoredSignal

POLL_S: Final = 0.5
"""Interval at which a stage reads its signals from the ledger (s)."""

_SILENT_S: Final = 5.0
"""Time without a response after which the ledger counts as unreachable (s)."""

_LOG: Final = logging.getLogger("headrace.flow")


def ledger_signals(
    ledger: Ledger, flow: str, stage: str, downstream: Collection[str] = ()
) -> Signals:
    """Return a stage's signals over the ledger's database.

    A signal arrives within 0.5 s. The age of a signal is measured by the database's clock. Use a
    ledger without a retry timeout: after a failure, `Signals` sends the newest signal, but a
    retrying ledger would send an old signal.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """
    return Signals(_LedgerTransport(ledger, flow, stage), flow, stage, downstream)


def ledger_states(ledger: Ledger, flow: str) -> Mapping[str, StageState]:
    """Return the states that a flow's stages have published in the ledger, by stage name.

    States whose leases have expired are left out.
    """
    states, now_s = KnownStates(flow), time.monotonic()
    states.update([_raw(stored) for stored in ledger.signals.published(flow)], now_s)
    return states.current(now_s)


class LedgerState:
    """Row of the ledger in which a stage publishes its state. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._published: tuple[str, str, str] | None = None

    def publish(self, state: StageState) -> None:
        """Replace the stage's published state."""
        if self._published is None:
            self._ledger.signals.prune(state.flow)
        published = state.flow, state.stage, encode(state)
        self._ledger.signals.publish(*published)
        self._published = published

    def withdraw(self) -> None:
        """Delete the published state, unless another process has replaced it."""
        if self._published is not None:
            self._ledger.signals.withdraw(*self._published)


class _LedgerTransport:
    """Transport of one stage's signals through tables of the ledger."""

    poll_interval_s = POLL_S
    session = None  # a database keeps committed rows after a reconnection
    wake: Callable[[], None]  # never called: a database is polled

    def __init__(self, ledger: Ledger, flow: str, stage: str) -> None:
        self._ledger = ledger
        self._flow = flow
        self._stage = stage
        self._state = LedgerState(ledger)
        self._outage = WarnOnce(_LOG)
        self._is_unreachable = False
        self._answered_s = time.monotonic()

    @property
    def is_connected(self) -> bool:
        return not self._is_unreachable and time.monotonic() - self._answered_s < _SILENT_S

    def publish(self, state: StageState | None) -> None:
        with self._answering():
            if state is None:
                self._state.withdraw()
            else:
                self._state.publish(state)

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        with self._answering():
            rows = self._ledger.signals.published(self._flow)
        return [_raw(stored) for stored in rows if names is None or stored.stage in names]

    def send(self, signal: PressureSignal) -> None:
        with self._answering():
            self._ledger.signals.send(signal.flow, signal.sender, signal.receiver, encode(signal))

    def receive(self) -> Sequence[RawSignal]:
        signals, flow, stage = self._ledger.signals, self._flow, self._stage
        with self._answering():
            rows = signals.sent_to(flow, stage)
        # A signal that could not be removed is read again, and `Signals` drops the duplicate.
        with suppress(UnreachableError), self._answering():
            for row in rows:
                signals.remove(flow, row.stage, stage, row.text)
        return [_raw(stored) for stored in rows]

    def __repr__(self) -> str:
        return repr(self._ledger)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            self._is_unreachable = True
            self._outage.warn(
                "Stage %r of flow %r cannot exchange signals, and throttling ends when its lease"
                " expires: %s",
                self._stage,
                self._flow,
                error,
            )
            raise UnreachableError(str(error)) from error
        self._answered_s = time.monotonic()
        self._is_unreachable = False
        if self._outage.clear() is not None:
            _LOG.info("Stage %r of flow %r can exchange signals again.", self._stage, self._flow)


def _raw(stored: StoredSignal) -> RawSignal:
    return RawSignal(stored.stage, stored.text, stored.age_ms)
