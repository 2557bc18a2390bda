"""Signals over the ledger's database: the embedded default, for which nothing else must run."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from headrace.control.pressure import PressureSignal
from headrace.errors import LedgerError
from headrace.flow.carrier import AwayError, Found
from headrace.flow.known_states import KnownStates
from headrace.flow.outbox import Item
from headrace.flow.signals import Signals, StageState
from headrace.flow.stage_signals import StageSignals
from headrace.flow.told import Told
from headrace.flow.wire import text_of
from headrace.ledger import Ledger
from headrace.ledger.signals import Note

LOOK_S: Final = 0.5
"""How often a stage looks for what has come."""

_SILENT_S: Final = 5.0
"""After how long without an answer the ledger counts as away."""

_LOG: Final = logging.getLogger("headrace.flow")


def ledger_signals(
    ledger: Ledger, flow: str, stage: str, downstream: Collection[str] = ()
) -> Signals:
    """Take part in a flow's signals over the ledger's database.

    A signal is there half a second after it was sent. How old something is, the database's clock
    alone tells.

    Args:
        ledger: The flow's. Best one without patience: here everything is tried again, with the
            newest, and a patient ledger would deliver what was new when it was asked.
        flow: The flow's name.
        stage: The name of the stage that takes part.
        downstream: The stages directly after it, which may press it.

    Raises:
        OptionError: A name is none.
    """
    return StageSignals(_LedgerCarrier(ledger, flow, stage), flow, stage, downstream)


def ledger_states(ledger: Ledger, flow: str) -> Mapping[str, StageState]:
    """How the stages of a flow fare, by name, for one who only looks on.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    known, now_s = KnownStates(flow, Told(_LOG)), time.monotonic()
    known.see([_found(note) for note in ledger.shown_stages(flow)], now_s)
    return known.living(now_s)


class _LedgerCarrier:
    """See `headrace.flow.carrier.Carrier`."""

    look_every_s = LOOK_S
    session = None  # what a database has taken it keeps

    def __init__(self, ledger: Ledger, flow: str, stage: str) -> None:
        self._ledger = ledger
        self._flow = flow
        self._stage = stage
        self._shown: str | None = None
        self._lock = threading.Lock()
        self._is_away = False
        self._answered_s = time.monotonic()

    @property
    def is_connected(self) -> bool:
        return not self._is_away and time.monotonic() - self._answered_s < _SILENT_S

    def begin(self, wake: Callable[[], None]) -> None:
        """Nothing wakes: a database is asked."""

    def put(self, item: Item) -> None:
        text = text_of(item)
        with self._answering():
            if isinstance(item, PressureSignal):
                self._ledger.post_signal(item.flow, item.sender, item.receiver, text)
                return
            if self._shown is None:
                self._ledger.forget_notes(item.flow)
            self._ledger.show_stage(item.flow, item.stage, text)
            self._shown = text

    def look(self) -> Sequence[Found]:
        with self._answering():
            return [_found(note) for note in self._ledger.signals(self._flow, self._stage)]

    def drop(self, found: Found) -> None:
        with self._answering():
            self._ledger.take_signal(self._flow, found.stage, self._stage, found.mark)

    def states(self, names: Collection[str] | None = None) -> Sequence[Found]:
        with self._answering():
            return [
                _found(note)
                for note in self._ledger.shown_stages(self._flow)
                if names is None or note.stage in names
            ]

    def end(self) -> None:
        if self._shown is not None:
            with self._answering():
                self._ledger.hide_stage(self._flow, self._stage, self._shown)

    def __repr__(self) -> str:
        return repr(self._ledger)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            self._tell(is_away=True, why=error)
            raise AwayError(str(error)) from error
        self._answered_s = time.monotonic()
        self._tell(is_away=False)

    def _tell(self, *, is_away: bool, why: LedgerError | None = None) -> None:
        with self._lock:
            if is_away == self._is_away:
                return
            self._is_away = is_away
        if is_away:
            _LOG.warning(
                "Stage %r of flow %r can neither signal nor be signalled, and what is in force ends"
                " with its lease: %s",
                self._stage,
                self._flow,
                why,
            )
        else:
            _LOG.info("Stage %r of flow %r signals again.", self._stage, self._flow)


def _found(note: Note) -> Found:
    return Found(note.stage, note.text, note.age_ms, note.text)
