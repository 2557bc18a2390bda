"""Delay of a signal, and of the throttling of a stage by a queue that is too long after it."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from tests.services.zookeeper import ZookeeperServer

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.signal_load import SERVER
from bench.stage import Stage
from headrace.core.ranges import OffsetRange
from headrace.errors import HeadraceError
from headrace.flow import (
    Signals,
    ZookeeperSession,
    ZookeeperSettings,
    ledger_signals,
    zookeeper_signals,
)
from headrace.flow.agent import StageAgent, StageSpec
from headrace.flow.kafka_channel import KafkaQueue
from headrace.flow.ledger_transport import POLL_S as LEDGER_POLL_S
from headrace.flow.monitoring import POLL_S as QUEUE_POLL_S
from headrace.gate.control.input_queue import InputQueue
from headrace.gate.control.pressure import Epoch, HopSettings, PressureSignal
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.local import ensure_java

FLOW: Final = "bench"
SETTINGS: Final = HopSettings()
ALLOWED_MS: Final = SETTINGS.overload_sensitivity_ms + 100
INTERVAL_MS: Final = 100
PAIRS: Final = 2
"""Pairs of stages that are measured at the same time, each with a ledger of its own."""

GROWTH_S: Final = 1.0
"""In which a queue grows to what is too much: 50 MB, or 250 000 records of 200 bytes."""

WITHOUT_LOOKING_S: Final = 0.9 * SETTINGS.overload_sensitivity_ms / 1000
POLL_S: Final = 0.002
"""Resolution of a moment; looks at shorter intervals, or before the gate can be throttled,
would slow down the stages."""

WAIT_S: Final = 60
SEED: Final = 6

Join = Callable[[Ledger, str, str, list[str]], AbstractContextManager[Signals]]
"""Takes part: with a ledger, a flow, a stage and those after it."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Over ZooKeeper and over a ledger in SQLite."""
    with ZookeeperServer(ensure_java(), settings=SERVER, quick_start=False) as server:
        settings = ZookeeperSettings(server.hosts)

        @contextmanager
        def over_zookeeper(
            _ledger: Ledger, flow: str, name: str, after: list[str]
        ) -> Iterator[Signals]:
            with (
                ZookeeperSession(settings) as session,
                zookeeper_signals(session, flow, name, after, secret=b"of a bench") as signals,
            ):
                yield signals

        for carrier, join, looks_s in (
            ("ZooKeeper", over_zookeeper, 0.0),
            ("SQLite", ledger_signals, LEDGER_POLL_S),
        ):
            bare_ms = _bare(stage, join, scale.signals)
            yield Figure(f"sent until received, {carrier}", "ms", Spread.of(bare_ms))
            delays_ms = _throttled(stage, join, scale.signals)
            details = {"delays_ms": delays_ms}
            yield Figure(
                f"too long until throttled, {carrier}", "ms", Spread.of(delays_ms), details=details
            )
            worst, allowed_ms = Spread.of([max(delays_ms)]), ALLOWED_MS + looks_s * 1000
            name = f"too long until throttled, {carrier}: worst"
            yield Figure(name, "ms", worst, target=AtMost(allowed_ms))


def _bare(stage: Stage, join: Join, times: int) -> list[float]:
    """Return the delays of assertions, each sent at a random moment (ms)."""
    chance, delays_ms = random.Random(SEED), []
    with (
        Ledger.open(stage.fresh_ledger()) as ledger,
        join(ledger, FLOW, "a", ["b"]) as a,
        join(ledger, FLOW, "b", []) as b,
    ):
        _wait_until(lambda: a.is_connected and b.is_connected)
        for sequence in range(times + 1):
            time.sleep(chance.uniform(0, LEDGER_POLL_S))
            said = PressureSignal(FLOW, "b", "a", Epoch(1, "run"), sequence, 1.0, 10_000)
            began_s = time.perf_counter()
            b.send(said)
            if a.receive(WAIT_S) != [said]:
                raise HeadraceError(f"The signal {sequence} of the benchmark did not come.")
            delays_ms.append((time.perf_counter() - began_s) * 1000)
    return delays_ms[1:]  # the first one makes the nodes


def _throttled(stage: Stage, join: Join, times: int) -> list[float]:
    """Return the delays from a queue that is too long to the throttling of the gate before (ms)."""
    with ExitStack() as running, ThreadPoolExecutor(PAIRS) as threads:
        pairs = [
            running.enter_context(_Pair(stage.fresh_ledger(), f"{FLOW}-{number}", join))
            for number in range(PAIRS)
        ]
        shares = [len(range(number, times, PAIRS)) for number in range(PAIRS)]
        return [
            delay_ms
            for delays_ms in threads.map(_Pair.delays_ms, pairs, shares, range(PAIRS))
            for delay_ms in delays_ms
        ]


class _Queue(KafkaQueue):
    """Nothing waits, until it begins to grow."""

    def __init__(self) -> None:
        self.looks = 0
        self._grows_since_s: float | None = None

    def grow(self) -> float:
        """Grow from now on; when there is too much in it (s)."""
        self._grows_since_s = time.perf_counter()
        return self._grows_since_s + GROWTH_S

    def measure(self) -> InputQueue:
        self.looks += 1
        since_s, now_s = self._grows_since_s, time.perf_counter()
        part = 0.0 if since_s is None else (now_s - since_s) / GROWTH_S
        waiting = int(SETTINGS.overload_bytes * part)
        return InputQueue(waiting, waiting, waiting)

    def close(self) -> None:
        """Nothing is open."""


class _Pair(ExitStack):
    """Two stages; the one before goes on admitting batches."""

    def __init__(self, url: str, flow: str, join: Join) -> None:
        super().__init__()
        self._flow = flow
        self._gate = f"{flow}.before"
        self._join = join
        self._ledger = self.enter_context(Ledger.open(url))
        self._ledger.gates.declare(
            self._gate, interval_ms=INTERVAL_MS, source="journal", estimator="{}"
        )
        done = threading.Event()
        admitting = threading.Thread(target=self._admit, args=(done,))
        admitting.start()
        self.callback(admitting.join)
        self.callback(done.set)
        _, agent = self._agent(self, "before", (), ("after",), _Queue())
        self.callback(agent.close)

    def delays_ms(self, times: int, seed: int) -> list[float]:
        """Have the queue of the stage after be too long, so often, each time for a new one."""
        chance = random.Random(seed)
        time.sleep(10 * INTERVAL_MS / 1000)  # by then it is known what the stage before emits
        return [self._delay_ms(chance) for _ in range(times)]

    def _delay_ms(self, chance: random.Random) -> float:
        with ExitStack() as entered:
            queue = _Queue()
            signals, agent = self._agent(entered, "after", ("before",), (), queue)
            _wait_until(lambda: signals.is_connected and queue.looks > 1)
            time.sleep(chance.uniform(0, QUEUE_POLL_S))
            passed_s = queue.grow()
            time.sleep(GROWTH_S + WITHOUT_LOOKING_S)
            _wait_until(self._is_throttled)
            delay_ms = (time.perf_counter() - passed_s) * 1000
            agent.close()
            _wait_until(lambda: not self._is_throttled())  # before its session is gone
        return delay_ms

    def _is_throttled(self) -> bool:
        gate = self._ledger.gates.now(self._gate)
        return gate is not None and gate.rate_limit is not None

    def _agent(
        self,
        until: ExitStack,
        name: str,
        before: tuple[str, ...],
        after: tuple[str, ...],
        queue: _Queue,
    ) -> tuple[Signals, StageAgent]:
        signals = until.enter_context(self._join(self._ledger, self._flow, name, list(after)))
        gate = f"{self._flow}.{name}"
        spec = StageSpec(self._flow, name, gate, INTERVAL_MS, before, after, SETTINGS)
        return signals, StageAgent(spec, self._ledger, signals, queue).start()

    def _admit(self, done: threading.Event) -> None:
        number = 0
        while not done.wait(INTERVAL_MS / 1000):
            offsets = OffsetRange("lane", 0, 10 * number, 10 * (number + 1))
            ranges = (PlannedRange(offsets),)
            self._ledger.batches.begin(PlannedBatch(self._gate, "run", ranges, "rate", ""))
            number += 1


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + WAIT_S
    while not condition():
        if time.perf_counter() > deadline_s:
            raise HeadraceError(f"The benchmark waited {WAIT_S} s for what did not happen.")
        time.sleep(POLL_S)
