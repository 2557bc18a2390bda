"""Signals of one stage to and from the other stages of its flow, over any transport.

A signal carries the present throttle level and replaces the previous signal, so lost or repeated
signals do no harm. A notification, such as a watch of ZooKeeper, only triggers another read. Each
pair of stages has one row or node for its signal. If the row or node cannot be deleted after a
read, the signal's sequence number and lease make a second read harmless.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from headrace.core.options import require_name
from headrace.core.timing import WarnOnce, wall_clock_ms
from headrace.errors import OptionError, SignalError
from headrace.flow.signal_codec import (
    RawSignal,
    StageState,
    Transport,
    UnreachableError,
    decode_signal,
    decode_state,
)
from headrace.gate import PressureSignal

RETRY_S: Final = 1.0
"""Time from a failed delivery or poll to the next poll (s)."""

_CLOSE_S: Final = 5.0
"""Maximum time that `Signals.close` waits for the transport (s)."""

_LOG: Final = logging.getLogger("headrace.flow")


@dataclass(slots=True)
class _Queued:
    item: PressureSignal | StageState
    queued_s: float
    is_due: bool = True


class Outbox:
    """Newest signal to each stage, and newest state, until their leases expire. Thread-safe.

    The number of items is bounded by the number of receivers. An item that cannot be delivered
    within its lease is dropped. Times are monotonic (s).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str | None, _Queued] = {}

    def put(self, item: PressureSignal | StageState, now_s: float) -> None:
        """Queue an item; it replaces an earlier signal to the same stage, or an earlier state."""
        with self._lock:
            self._newest[_address(item)] = _Queued(item, now_s)

    def due(self, now_s: float) -> list[PressureSignal | StageState]:
        """Drop items whose leases have expired; return the items that are not delivered yet."""
        with self._lock:
            for address, queued in list(self._newest.items()):
                if (now_s - queued.queued_s) * 1000 >= queued.item.lease_ms:
                    del self._newest[address]
            return [queued.item for queued in self._newest.values() if queued.is_due]

    def delivered(self, item: PressureSignal | StageState) -> None:
        """Mark an item as delivered, but keep it: it must be sent again after a lost session."""
        with self._lock:
            queued = self._newest.get(_address(item))
            if queued is not None and queued.item is item:
                queued.is_due = False

    def resend(self) -> None:
        """Mark all items as not delivered, so that they are sent again."""
        with self._lock:
            for queued in self._newest.values():
                queued.is_due = True


def _address(item: PressureSignal | StageState) -> str | None:
    return item.receiver if isinstance(item, PressureSignal) else None


class KnownStates:
    """Newest received state of each stage of a flow, until its lease expires. Thread-safe.

    Times are monotonic (s).
    """

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._forged = WarnOnce(_LOG)
        self._lock = threading.Lock()
        self._until_s: dict[StageState, float] = {}

    def update(
        self, found: Iterable[RawSignal], now_s: float, names: Collection[str] | None = None
    ) -> None:
        """Replace the known states of the named stages (default: all) with the states in ``found``.

        Invalid states are ignored and logged once.
        """
        until_s = {}
        for raw in found:
            try:
                state = self._decode(raw)
            except OptionError as error:
                self._forged.warn(
                    f"The state that stage {raw.stage[:100]!r} of flow {self._flow!r} seems to"
                    f" publish is ignored: {error}",
                    about=raw.stage,
                )
            else:
                if raw.is_current(state.lease_ms):
                    until_s[state] = now_s + (state.lease_ms - raw.age_ms) / 1000
        with self._lock:
            if names is not None:
                kept = {s: until for s, until in self._until_s.items() if s.stage not in names}
                until_s = kept | until_s
            self._until_s = until_s

    def current(self, now_s: float, names: Collection[str] | None = None) -> dict[str, StageState]:
        """Return the unexpired states of the named stages (default: all), by stage name."""
        with self._lock:
            return {
                state.stage: state
                for state, until_s in self._until_s.items()
                if now_s < until_s and (names is None or state.stage in names)
            }

    def _decode(self, found: RawSignal) -> StageState:
        if found.fault is not None:
            raise OptionError(found.fault)
        state = decode_state(found.text)
        if (state.flow, state.stage) != (self._flow, found.stage):
            raise OptionError(f"Its text names stage {state.stage!r} of flow {state.flow!r}.")
        return state


class Signals:
    """Signals of one stage to and from the other stages of its flow. Thread-safe.

    One thread sends signals and polls for them. So methods do not wait for the transport, except
    `states`, and `receive` with ``wait_s``. While the transport is unreachable, the newest signal
    to each stage is kept until it is delivered or its lease expires. Received texts are checked
    before use. An invalid text is ignored and logged once.

    Signals are accepted only from the stages in ``downstream``, directly after this stage. Do not
    share ``transport`` between stages.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """

    def __init__(
        self, transport: Transport, flow: str, stage: str, downstream: Collection[str]
    ) -> None:
        require_name("The name of a flow", flow)
        for name in (stage, *downstream):
            require_name("The name of a stage", name)
        self._transport = transport
        self._flow = flow
        self._stage = stage
        self._downstream = frozenset(downstream)
        self._outbox = Outbox()
        self._came = threading.Condition()
        self._last: dict[str, PressureSignal] = {}
        self._waiting: dict[str, PressureSignal] = {}
        self._failures = WarnOnce(_LOG)
        self._forged = WarnOnce(_LOG)
        self._known = KnownStates(flow)
        self._session: object = None
        self._poll_due_s = 0.0
        self._must_poll = False
        self._is_closed = False
        self._woken = threading.Event()
        transport.wake = self._wake
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-signals-{stage}", daemon=True
        )
        self._thread.start()

    def send(self, signal: PressureSignal) -> None:
        """Queue a signal for delivery; it replaces an undelivered signal to the same stage."""
        self._queue(signal, "a signal", signal.sender)

    def receive(self, wait_s: float = 0) -> list[PressureSignal]:
        """Return the newest signal of each downstream stage since the last call.

        Each signal is returned once. If a newer signal arrives before the call, only the newer
        signal is returned.

        Args:
            wait_s: The time to wait if there is no signal (s). `close` ends the wait.
        """
        with self._came:
            self._came.wait_for(lambda: self._is_closed or bool(self._waiting), wait_s)
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def publish(self, state: StageState) -> None:
        """Queue this stage's state for publication; it replaces an earlier state."""
        self._queue(state, "a state", state.stage)

    def states(self, names: Collection[str] | None = None) -> Mapping[str, StageState]:
        """Return the unexpired states of the flow's stages, by name.

        Each call reads the transport, at a cost that grows with the number of stages. While the
        transport is unreachable, the last known unexpired states are returned.

        Args:
            names: The stages to read. Default: all stages.
        """
        self._try(
            "states",
            lambda: self._known.update(self._transport.states(names), time.monotonic(), names),
        )
        return self._known.current(time.monotonic(), names)

    @property
    def is_connected(self) -> bool:
        """Whether the transport responds at present."""
        return self._thread.is_alive() and self._transport.is_connected

    @property
    def is_delivered(self) -> bool:
        """Whether all unexpired signals and states are delivered."""
        return not self._outbox.due(time.monotonic())

    def close(self) -> None:
        """Try once to deliver queued items, withdraw this stage's state, and stop the thread."""
        with self._came:
            self._is_closed = True
            self._came.notify_all()
        self._woken.set()
        self._thread.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Signals({self._flow!r}, {self._stage!r}, {self._transport!r})"

    def _queue(self, item: PressureSignal | StageState, what: str, stage: str) -> None:
        if (item.flow, stage) != (self._flow, self._stage):
            raise OptionError(
                f"Stage {self._stage!r} of flow {self._flow!r} cannot send {what} of stage"
                f" {stage!r} of flow {item.flow!r}; a stage sends only its own signals and state."
            )
        if self._is_closed:
            raise SignalError(
                f"The signals of stage {self._stage!r} of flow {self._flow!r} are closed; open new"
                " ones."
            )
        self._outbox.put(item, time.monotonic())
        self._woken.set()

    def _wake(self) -> None:
        self._must_poll = True
        self._woken.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._woken.wait(max(0.0, self._poll_due_s - time.monotonic()))
            self._woken.clear()
            self._step()
        self._deliver()
        try:
            self._transport.publish(None)
        except SignalError as error:
            _LOG.debug("The state of stage %r could not be withdrawn: %s", self._stage, error)

    def _step(self) -> None:
        session = self._transport.session
        if session != self._session:
            self._session = session
            self._outbox.resend()
            self._must_poll = True
        is_done = self._deliver()
        if self._must_poll or time.monotonic() >= self._poll_due_s:
            self._must_poll = False
            is_done = self._take_all() and is_done
            wait_s = self._transport.poll_interval_s if is_done else RETRY_S
            self._poll_due_s = time.monotonic() + wait_s

    def _deliver(self) -> bool:
        """Deliver the queued items; return whether all were delivered."""
        is_done = True
        for item in self._outbox.due(time.monotonic()):
            delivered = self._try(f"to {_address(item)}", partial(self._put, item))
            if delivered is None:
                return False
            if delivered:
                self._outbox.delivered(item)
            is_done = is_done and delivered
        return is_done

    def _put(self, item: PressureSignal | StageState) -> None:
        if isinstance(item, PressureSignal):
            self._transport.send(item)
        else:
            self._transport.publish(item)

    def _take_all(self) -> bool:
        """Read the signals for this stage from the transport; return whether the read succeeded."""
        signals: list[RawSignal] = []
        is_done = bool(self._try("receive", lambda: signals.extend(self._transport.receive())))
        for raw in signals:
            self._take(raw)
        return is_done

    def _take(self, found: RawSignal) -> None:
        """Check a received signal, and pass it to `receive` if it is valid, new and not expired.

        If a signal could not be deleted from the transport, it is received again and ignored.
        """
        try:
            signal = self._decode(found)
        except OptionError as error:
            self._forged.warn(
                f"Stage {self._stage!r} of flow {self._flow!r} ignores a signal in the name of"
                f" {found.stage[:100]!r}: {error}",
                about=found.stage,
            )
            return
        with self._came:
            if found.is_current(signal.lease_ms) and self._last.get(signal.sender) != signal:
                self._last[signal.sender] = self._waiting[signal.sender] = signal
                self._came.notify_all()

    def _try(self, about: str, action: Callable[[], object]) -> bool | None:
        """Call ``action``; return whether it succeeded, or None if the transport is unreachable.

        ``about`` names the action. A `SignalError` is logged again only after a success.
        """
        try:
            action()
        except UnreachableError:
            return None
        except SignalError as error:
            self._failures.warn(str(error), about=about)
            return False
        self._failures.clear(about)
        return True

    def _decode(self, found: RawSignal) -> PressureSignal:
        if found.stage not in self._downstream:
            raise OptionError("The sender is not a stage directly after this stage.")
        if found.fault is not None:
            raise OptionError(found.fault)
        signal = decode_signal(found.text)
        signal.require_possible(wall_clock_ms())
        says = (signal.flow, signal.sender, signal.receiver)
        if says != (self._flow, found.stage, self._stage):
            raise OptionError(
                f"Its text names flow {says[0]!r}, sender {says[1]!r} and receiver {says[2]!r}."
            )
        return signal
