"""Agent of a stage: measures the stage's input queue, and sends and applies backpressure."""

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final, NamedTuple, Self

from headrace.core.timing import WarnOnce, wall_clock_ms
from headrace.errors import HeadraceError, OptionError
from headrace.flow.kafka_channel import KafkaQueue
from headrace.flow.ledger_transport import LedgerState
from headrace.flow.monitoring import POLL_S, Neighbours, PollInterval, StageProgress
from headrace.flow.signal_codec import MOST_UPSTREAM, StageState
from headrace.flow.stage_signals import Signals
from headrace.gate import (
    MAX_CLOCK_AHEAD_MS,
    Epoch,
    HopController,
    HopSettings,
    InputQueue,
    Ledger,
    PressureSignal,
    PressureState,
    RateLimit,
    Upstream,
    UpstreamThrottle,
    require_level,
)

_PUBLISH_MS: Final = 1000
"""Minimum interval between publications of a changed queue size (ms)."""

_LOG: Final = logging.getLogger("headrace.flow")


@dataclass(frozen=True, slots=True)
class SavedPressure:
    """Pressure that a run of a stage last received and sent, saved for the stage's next run.

    ``written_ms`` is the time of saving (ms since the epoch). ``pressures`` is the pressure
    received from downstream stages. ``levels`` is the throttle level sent to each upstream stage.
    """

    written_ms: int = 0
    pressures: tuple[PressureState, ...] = ()
    levels: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return this pressure as JSON text, which `of_json` parses."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Parse JSON text that `to_json` has returned; raise `OptionError` for any other text."""
        try:
            values = json.loads(text)
            pressures = [
                PressureState(**{**pressure, "epoch": Epoch(**pressure["epoch"])})
                for pressure in values["pressures"]
            ]
            for level in (*(pressure.level for pressure in pressures), *values["levels"].values()):
                require_level("A level", level)
            return cls(int(values["written_ms"]), tuple(pressures), values["levels"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError("The text is not a saved pressure in JSON.") from error

    def level(self, upstream: str, wall_ms: int, lease_ms: int) -> float:
        """Return the saved throttle level for an upstream stage; 0 if none is saved.

        A level that was saved more than ``lease_ms`` before ``wall_ms`` has expired, and counts as
        0.
        """
        is_fresh = 0 <= wall_ms - self.written_ms <= lease_ms
        return self.levels.get(upstream, 0.0) if is_fresh else 0.0


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Names, neighbours and settings of a stage, for its agent.

    ``settings`` has the stage's thresholds and its slowdown. ``leases_ms`` has the maximum lease of
    the signals of each downstream stage (ms). Default: the lease in ``settings``.
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
        """Return the maximum lease of a downstream stage's signals (ms)."""
        return self.leases_ms.get(downstream, self.settings.lease_ms)

    def restorable(self, state: SavedPressure, wall_ms: int) -> list[PressureState]:
        """Return the saved pressure that still applies; limit leases to the declared maximum.

        Pressure is left out if its sender is not a downstream stage any more, or seems to have
        started more than `MAX_CLOCK_AHEAD_MS` after ``wall_ms``.
        """
        return [
            replace(pressure, lease_ms=min(pressure.lease_ms, self.lease_ms(pressure.sender)))
            for pressure in state.pressures
            if pressure.sender in self.downstream
            and pressure.epoch.started_ms <= wall_ms + MAX_CLOCK_AHEAD_MS
        ]


class _Throttled(NamedTuple):
    """Throttling in force: the throttling stage, the start (ms since the epoch), and the level."""

    by: str
    since_ms: int
    level: int


class StageAgent:
    """Agent that sends and applies backpressure for one run of a stage.

    The agent sends a throttle level to each upstream stage. If downstream stages demand a rate
    limit, the agent writes the limit to the ledger. The stage's planner applies this limit for one
    lease, even if the agent dies. If an action fails, the agent logs the failure once and retries
    at the next step. Use a ledger without a retry timeout, because late signals are useless.

    With ``publishes_to_ledger``, the agent also publishes the stage's state in the ledger.
    `headrace status` needs this for a flow whose signals do not use the ledger. Closing the agent
    closes ``signals`` and ``queue``. Raise LedgerError if the saved pressure of the previous run
    cannot be read.
    """

    def __init__(
        self,
        spec: StageSpec,
        ledger: Ledger,
        signals: Signals,
        queue: KafkaQueue,
        *,
        publishes_to_ledger: bool = False,
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._signals = signals
        self._queue = queue
        self._ledger_state = LedgerState(ledger) if publishes_to_ledger else None
        settings, now_ms, wall_ms = spec.settings, _monotonic_ms(), wall_clock_ms()
        self._progress = StageProgress(ledger, spec.gate, spec.interval_ms, wall_ms)
        self._warnings = WarnOnce(_LOG)
        self._neighbours = Neighbours(spec.stage, {*spec.upstream, *spec.downstream}, signals)
        before = self._pressure_state()
        self._throttle = UpstreamThrottle(spec.flow, spec.stage, spec.downstream, settings)
        self._throttle.restore(spec.restorable(before, wall_ms), now_ms)
        run = Epoch(wall_ms, uuid.uuid4().hex)
        self._controllers = {
            upstream: HopController(
                spec.flow,
                spec.stage,
                upstream,
                run,
                settings,
                level=before.level(upstream, wall_ms, settings.lease_ms),
            )
            for upstream in spec.upstream
        }
        self._poll_interval = PollInterval(settings.overload_bytes)
        self._written: RateLimit | None = None
        self._must_write = bool(before.pressures)
        self._published: StageState | None = None
        self._published_ms = 0
        self._throttled: _Throttled | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-agent-{spec.stage}", daemon=True
        )

    def start(self) -> Self:
        """Start the thread that receives signals and measures the queue."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread, but keep the upstream stages throttled, as if the process was killed."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Stop the thread, release the upstream stages, and close the signals and the queue."""
        self.stop()
        now_ms = _monotonic_ms()
        for controller in self._controllers.values():
            self._send(controller.release(now_ms))
        if self._must_write:
            with self._trying("its rate limit"):
                self._write(self._throttle.rate_limit(now_ms), now_ms, wall_clock_ms())
        self._signals.close()
        self._queue.close()
        if self._ledger_state is not None:
            with self._trying("its state"):
                self._ledger_state.withdraw()

    def step(self, now_ms: int, wall_ms: int, received: list[PressureSignal]) -> None:
        """Apply received signals, measure the queue, send pressure, and publish the stage's state.

        ``now_ms`` is monotonic time. ``wall_ms`` is the wall clock with which batches are planned.
        """
        with self._trying("its batches"):
            self._progress.refresh(now_ms)
        self._neighbours.refresh(now_ms)
        for signal in received:
            with self._trying(f"a signal of {signal.sender}"):
                self._apply(signal, now_ms)
        for sender in self._throttle.expire(now_ms):
            _LOG.warning(
                "Stage %r of flow %r is no longer throttled by %r: no signal within the lease.",
                self._spec.stage,
                self._spec.flow,
                sender,
            )
        limit, queue = self._throttle.rate_limit(now_ms), None
        with self._trying("its queue"):
            queue = self._measure(limit, wall_ms)
            self._throttle_upstream(queue, now_ms)
        if self._must_write or limit != self._written:
            with self._trying("its rate limit"):
                self._write(limit, now_ms, wall_ms)
        self._publish(limit, queue, now_ms, wall_ms)

    def next_poll_s(self, now_ms: int) -> float:
        """Return the time until the agent's next step (s)."""
        due_ms = (controller.overload_due_ms for controller in self._controllers.values())
        return self._poll_interval.next_s(now_ms, due_ms)

    def _run(self) -> None:
        wait_s = POLL_S
        while not self._done.is_set():
            received = self._signals.receive(wait_s)
            if not self._done.is_set():
                self.step(_monotonic_ms(), wall_clock_ms(), received)
                wait_s = self.next_poll_s(_monotonic_ms())

    def _pressure_state(self) -> SavedPressure:
        text = self._ledger.gates.pressures(self._spec.gate)
        if text is None:
            return SavedPressure()
        try:
            return SavedPressure.of_json(text)
        except OptionError as error:
            _LOG.warning("Gate %r begins without its saved pressure: %s", self._spec.gate, error)
            return SavedPressure()

    def _apply(self, signal: PressureSignal, now_ms: int) -> None:
        signal = self._believed(signal)
        outcome = self._throttle.apply(signal, now_ms, self._progress.emits_per_s(now_ms))
        _LOG.debug("Stage %s handled the signal %s: %s.", self._spec.stage, signal, outcome)
        self._must_write = True

    def _believed(self, signal: PressureSignal) -> PressureSignal:
        """Check a received signal; return it with its lease limited to the declared maximum.

        Raise OptionError if a downstream stage sends a throttle level but publishes no state.
        """
        sender, max_ms = signal.sender, self._spec.lease_ms(signal.sender)
        is_ours = sender in self._spec.downstream
        if is_ours and signal.level > 0 and not self._neighbours.is_running(sender):
            raise OptionError(
                f"A signal under the name of stage {sender!r} is ignored, because stage"
                f" {sender!r} does not publish its state."
            )
        about = f"the lease of {sender}"
        if signal.lease_ms <= max_ms:
            self._warnings.clear(about)
            return signal
        self._warnings.warn(
            f"Stage {sender!r} of flow {self._spec.flow!r} sent a signal with a lease of"
            f" {signal.lease_ms} ms; the lease is cut to {max_ms} ms, as the flow declares.",
            about=about,
        )
        return replace(signal, lease_ms=max_ms)

    def _measure(self, limit: RateLimit | None, wall_ms: int) -> InputQueue:
        queue = self._queue.measure()
        takes = self._progress.takes_bytes_per_s(queue, limit, wall_ms)
        return replace(queue, takes_bytes_per_s=takes, is_running=self._progress.is_running)

    def _throttle_upstream(self, queue: InputQueue, now_ms: int) -> None:
        throttles = any(hop.level for hop in self._controllers.values())
        self._poll_interval.observe(now_ms, queue.waiting_bytes, throttles=throttles)
        for name, controller in self._controllers.items():
            self._send(controller.look(now_ms, queue, self._neighbours.upstream(name)))

    def _send(self, signal: PressureSignal | None) -> None:
        if signal is not None:
            self._must_write = True
            self._signals.send(signal)

    def _write(self, limit: RateLimit | None, now_ms: int, wall_ms: int) -> None:
        pressures = self._throttle.states()
        until_ms = {pressure.sender: pressure.until_ms for pressure in pressures}
        levels = {name: controller.level for name, controller in self._controllers.items()}
        self._ledger.gates.throttle(
            self._spec.gate,
            limit,
            0 if limit is None else until_ms[limit.throttled_by] - now_ms,
            SavedPressure(wall_ms, tuple(pressures), levels).to_json(),
        )
        self._written, self._must_write = limit, False

    def _publish(
        self, limit: RateLimit | None, queue: InputQueue | None, now_ms: int, wall_ms: int
    ) -> None:
        spec = self._spec
        gone = (name for name in spec.upstream if self._neighbours.upstream(name) is Upstream.GONE)
        state = StageState(
            spec.flow,
            spec.stage,
            None if limit is None else limit.throttled_by,
            0.0 if limit is None else limit.level,
            None if limit is None else limit.rate_per_s,
            None if queue is None else queue.waiting_bytes,
            spec.settings.lease_ms,
            next(gone, None),
            tuple(sorted(spec.upstream)[:MOST_UPSTREAM]),
            self._since_ms(limit, wall_ms),
        )
        since_ms, last = now_ms - self._published_ms, self._published
        is_new = last is None or (
            (last.throttled_by, last.throttle_level) != (state.throttled_by, state.throttle_level)
        )
        is_due = since_ms >= spec.settings.lease_ms / 3
        if is_new or is_due or (state != last and since_ms >= _PUBLISH_MS):
            self._signals.publish(state)
            self._published, self._published_ms = state, now_ms
            if self._ledger_state is not None:
                with self._trying("its state"):
                    self._ledger_state.publish(state)

    def _since_ms(self, limit: RateLimit | None, wall_ms: int) -> int | None:
        """Return the start of the present throttling (ms since the epoch); log each change.

        Return None if the stage is not throttled.
        """
        before, self._throttled = self._throttled, None
        by = None if limit is None else limit.throttled_by
        if limit is None or by is None:
            if before is not None:
                _LOG.info(
                    "Stage %r of flow %r is no longer throttled by %r, after %.1f s.",
                    self._spec.stage,
                    self._spec.flow,
                    before.by,
                    (wall_ms - before.since_ms) / 1000,
                )
            return None
        same = before is not None and before.by == by
        since_ms = before.since_ms if before is not None and same else wall_ms
        self._throttled = _Throttled(by, since_ms, round(limit.level))
        if before is None or (before.by, before.level) != (by, self._throttled.level):
            held_s = (wall_ms - since_ms) / 1000
            _LOG.info(
                "Stage %r of flow %r is throttled by %r%s at level %.2g: %.4g records/s at most.",
                self._spec.stage,
                self._spec.flow,
                by,
                f", for {held_s:.1f} s now," if held_s else "",
                limit.level,
                limit.rate_per_s,
            )
        return since_ms

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Log a HeadraceError in the ``with`` block once and suppress it; the next step retries."""
        try:
            yield
        except HeadraceError as error:
            self._warnings.warn(
                f"Stage {self._spec.stage!r} of flow {self._spec.flow!r} cannot process {what} now"
                f" and will retry: {error}",
                about=what,
            )
        else:
            self._warnings.clear(what)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
