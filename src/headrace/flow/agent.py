"""What a stage does about pressure: it looks at its queue, presses, and obeys."""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Self

from headrace.control.hop import HopController, InputQueue, Upstream, UpstreamThrottle
from headrace.control.pressure import (
    MAX_CLOCK_AHEAD_MS,
    Epoch,
    HopSettings,
    PressureSignal,
    PressureState,
    RateLimit,
)
from headrace.errors import HeadraceError, OptionError
from headrace.flow.channels import ChannelQueue
from headrace.flow.memory import Memory
from headrace.flow.neighbours import Neighbours
from headrace.flow.pace import LOOK_S, LookPace
from headrace.flow.progress import StageProgress
from headrace.flow.signals import Signals, StageState
from headrace.flow.told import Told
from headrace.flow.wire import text_of
from headrace.ledger import Ledger
from headrace.ledger.base import wall_clock_ms

_SHOW_MS: Final = 1000
"""How often a stage shows a queue that has changed."""

_LOG: Final = logging.getLogger("headrace.flow")


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage as its agent needs it: its names, and its place in the flow.

    Attributes:
        flow: The flow's name.
        stage: The stage's.
        gate: Its gate's in the ledger.
        interval_ms: How long its batches should take.
        upstream: The stages directly before it.
        downstream: The stages directly after it.
        settings: When it presses, and by how much it slows down.
        leases_ms: By stage directly after it, the lease that this one has declared; its own, where
            nothing is said.
    """

    flow: str
    stage: str
    gate: str
    interval_ms: int
    upstream: tuple[str, ...]
    downstream: tuple[str, ...]
    settings: HopSettings
    leases_ms: Mapping[str, int] = field(default_factory=dict)

    def lease_ms(self, downstream: str) -> int:
        """For how long at most a stage after it is believed."""
        return self.leases_ms.get(downstream, self.settings.lease_ms)


class StageAgent:
    """Both sides of a stage's pressure, in one run of it.

    It tells the stages before it how hard they are pressed, and writes into the ledger what those
    after it leave of this one's rate: its planner obeys that, for the time of a lease, whatever
    becomes of the agent. Whatever cannot be read, written or sent is told once and tried again at
    the next look.

    Args:
        place: The stage.
        ledger: Its ledger, best without patience: what is late is of no use.
        signals: Its part in the flow's signals; closed with the agent.
        queue: What waits for it; closed with the agent.
        shows_in_ledger: Whether to show its state there as well, for those who look on and know of
            no other place; not needed where the signals are the ledger's.

    Raises:
        LedgerError: What the run before has left cannot be read.
    """

    def __init__(
        self,
        place: StagePlace,
        ledger: Ledger,
        signals: Signals,
        queue: ChannelQueue,
        *,
        shows_in_ledger: bool = False,
    ) -> None:
        self._place = place
        self._ledger = ledger
        self._signals = signals
        self._queue = queue
        self._shows_in_ledger = shows_in_ledger
        self._text_in_ledger: str | None = None
        settings, now_ms, wall_ms = place.settings, _monotonic_ms(), wall_clock_ms()
        self._progress = StageProgress(ledger, place.gate, place.interval_ms, wall_ms)
        self._told = Told(_LOG)
        self._neighbours = Neighbours(place.stage, {*place.upstream, *place.downstream}, signals)
        memory = self._memory()
        self._throttle = UpstreamThrottle(place.flow, place.stage, place.downstream, settings)
        self._throttle.restore(_possible(place, memory, wall_ms), now_ms)
        run = Epoch(wall_ms, uuid.uuid4().hex)
        self._controllers = {
            upstream: HopController(
                place.flow,
                place.stage,
                upstream,
                run,
                settings,
                level=memory.level(upstream, wall_ms, settings.lease_ms),
            )
            for upstream in place.upstream
        }
        self._pace = LookPace(settings.overload_bytes)
        self._written: RateLimit | None = None
        self._has_to_write = bool(memory.pressures)
        self._shown: StageState | None = None
        self._shown_ms = 0
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-agent-{place.stage}", daemon=True
        )

    def start(self) -> Self:
        """Look at the queue from now on."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Press nobody any longer, and end."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        now_ms = _monotonic_ms()
        for controller in self._controllers.values():
            released = controller.release(now_ms)
            if released is not None:
                self._has_to_write = True
                self._signals.send(released)
        if self._has_to_write:
            with self._trying("its bound"):
                self._write(self._throttle.rate_limit(now_ms), now_ms, wall_clock_ms())
        self._signals.close()
        self._queue.close()
        if self._text_in_ledger is not None:
            with self._trying("what it shows"):
                self._ledger.hide_stage(self._place.flow, self._place.stage, self._text_in_ledger)

    def step(self, now_ms: int, wall_ms: int, heard: list[PressureSignal]) -> None:
        """Look once: obey what was heard, look at the queue, press, show.

        Args:
            now_ms: Now, by a clock that never goes back.
            wall_ms: Now, by the clock that batches are planned by.
            heard: What has come since the last step.
        """
        with self._trying("its batches"):
            self._progress.look(now_ms)
        self._neighbours.look(now_ms)
        for assertion in heard:
            with self._trying(f"a signal of {assertion.sender}"):
                self._obey(assertion, now_ms)
        for sender in self._throttle.expire(now_ms):
            _LOG.warning(
                "Stage %r of flow %r is free of %r, which was not heard of within its lease.",
                self._place.stage,
                self._place.flow,
                sender,
            )
        bound, found = self._throttle.rate_limit(now_ms), None
        with self._trying("its queue"):
            found = self._look(bound, wall_ms)
            self._press(found, now_ms)
        if self._has_to_write or bound != self._written:
            with self._trying("its bound"):
                self._write(bound, now_ms, wall_ms)
        self._show(bound, found, now_ms)

    def next_look_s(self, now_ms: int) -> float:
        """How long to wait before the next step (s)."""
        due_ms = (controller.overload_due_ms for controller in self._controllers.values())
        return self._pace.next_s(now_ms, due_ms)

    def _run(self) -> None:
        wait_s = LOOK_S
        while not self._done.is_set():
            heard = self._signals.receive(wait_s)
            if not self._done.is_set():
                self.step(_monotonic_ms(), wall_clock_ms(), heard)
                wait_s = self.next_look_s(_monotonic_ms())

    def _memory(self) -> Memory:
        text = self._ledger.pressures(self._place.gate)
        if text is None:
            return Memory()
        try:
            return Memory.of_text(text)
        except OptionError as error:
            _LOG.warning("Gate %r begins without its memory: %s", self._place.gate, error)
            return Memory()

    def _obey(self, assertion: PressureSignal, now_ms: int) -> None:
        assertion = self._believed(assertion)
        obeyed = self._throttle.apply(assertion, now_ms, self._progress.emits_per_s(now_ms))
        _LOG.debug("%s is %s by stage %s.", assertion, obeyed, self._place.stage)
        self._has_to_write = True

    def _believed(self, assertion: PressureSignal) -> PressureSignal:
        """What counts of an assertion.

        Raises:
            OptionError: It presses, and its sender does not show that it runs.
        """
        sender, most_ms = assertion.sender, self._place.lease_ms(assertion.sender)
        is_ours = sender in self._place.downstream
        if is_ours and assertion.level > 0 and not self._neighbours.is_there(sender):
            raise OptionError(
                f"What stage {sender!r} seems to have sent is ignored, for that stage does not show"
                " that it runs."
            )
        if assertion.lease_ms <= most_ms:
            self._told.is_over(f"the lease of {sender}")
            return assertion
        self._told.tell(
            f"the lease of {sender}",
            f"Stage {sender!r} of flow {self._place.flow!r} says that it is to be believed for"
            f" {assertion.lease_ms} ms; it is for {most_ms} ms, which the flow has declared.",
        )
        return replace(assertion, lease_ms=most_ms)

    def _look(self, bound: RateLimit | None, wall_ms: int) -> InputQueue:
        found = self._queue.look()
        takes = self._progress.takes_bytes_per_s(found, bound, wall_ms)
        return replace(found, takes_bytes_per_s=takes, is_running=self._progress.is_running)

    def _press(self, found: InputQueue, now_ms: int) -> None:
        is_pressing = any(each.level for each in self._controllers.values())
        self._pace.saw(now_ms, found.waiting_bytes, is_pressing=is_pressing)
        for name, controller in self._controllers.items():
            said = controller.look(now_ms, found, self._neighbours.upstream(name))
            if said is not None:
                self._has_to_write = True
                self._signals.send(said)

    def _write(self, bound: RateLimit | None, now_ms: int, wall_ms: int) -> None:
        pressures = self._throttle.states()
        until_ms = {pressure.sender: pressure.until_ms for pressure in pressures}
        levels = {name: controller.level for name, controller in self._controllers.items()}
        self._ledger.hold(
            self._place.gate,
            bound,
            0 if bound is None else until_ms[bound.throttled_by] - now_ms,
            Memory(wall_ms, tuple(pressures), levels).to_text(),
        )
        self._written, self._has_to_write = bound, False

    def _show(self, bound: RateLimit | None, found: InputQueue | None, now_ms: int) -> None:
        place = self._place
        gone = (name for name in place.upstream if self._neighbours.upstream(name) is Upstream.GONE)
        state = StageState(
            place.flow,
            place.stage,
            bound.throttled_by if bound is not None else None,
            bound.level if bound is not None else 0.0,
            bound.rate_per_s if bound is not None else None,
            None if found is None else found.waiting_bytes,
            place.settings.lease_ms,
            next(gone, None),
        )
        since_ms, shown = now_ms - self._shown_ms, self._shown
        is_new = shown is None or (shown.held_by, shown.level) != (state.held_by, state.level)
        is_due = since_ms >= place.settings.lease_ms / 3
        if is_new or is_due or (state != shown and since_ms >= _SHOW_MS):
            self._signals.publish(state)
            self._shown, self._shown_ms = state, now_ms
            if self._shows_in_ledger:
                with self._trying("what it shows"):
                    self._show_in_ledger(state)

    def _show_in_ledger(self, state: StageState) -> None:
        if self._text_in_ledger is None:
            self._ledger.forget_notes(state.flow)
        text = text_of(state)
        self._ledger.show_stage(state.flow, state.stage, text)
        self._text_in_ledger = text

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Tell once what cannot be done; the next step tries it again."""
        try:
            yield
        except HeadraceError as error:
            self._told.tell(
                what,
                f"Stage {self._place.stage!r} of flow {self._place.flow!r} cannot see to {what} at"
                f" present: {error}",
            )
        else:
            self._told.is_over(what)


def _possible(place: StagePlace, memory: Memory, wall_ms: int) -> list[PressureState]:
    """What the run before had heard, as far as it can have been."""
    return [
        replace(each, lease_ms=min(each.lease_ms, place.lease_ms(each.sender)))
        for each in memory.heard_of(place.downstream)
        if each.epoch.started_ms <= wall_ms + MAX_CLOCK_AHEAD_MS
    ]


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
