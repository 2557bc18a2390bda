"""Whatever happens to ZooKeeper: a stage is held while it is pressed, and free soon after."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.control.hop import UpstreamThrottle
from headrace.control.pressure import Epoch, HopSettings, PressureSignal
from headrace.flow import Signals

LEASE_MS = 3_000
ALL_IS_WELL_S = 60.0


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Upstream:
    """Obeys whatever comes, as a stage's agent does."""

    def __init__(self, signals: Signals, flow: str) -> None:
        self._signals = signals
        self._throttle = UpstreamThrottle(flow, "a", ["b"], HopSettings(lease_ms=LEASE_MS))

    def is_held(self) -> bool:
        for assertion in self._signals.receive():
            self._throttle.apply(assertion, now_ms(), 1_000.0)
        return self._throttle.rate_limit(now_ms()) is not None


class Downstream:
    """Asserts its level every third of a lease, until it falls silent."""

    def __init__(self, signals: Signals, flow: str) -> None:
        self._signals = signals
        self._flow = flow
        self._sequence = 0

    def assert_level(self, level: float) -> None:
        self._sequence += 1
        run = Epoch(1, "run")
        self._signals.send(
            PressureSignal(self._flow, "b", "a", run, self._sequence, level, LEASE_MS)
        )

    @contextmanager
    def pressing(self) -> Iterator[None]:
        done = threading.Event()

        def press() -> None:
            self.assert_level(1)
            while not done.wait(LEASE_MS / 3_000):
                self.assert_level(1)

        thread = threading.Thread(target=press)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def disasters(
    world: ZookeeperWorld, server: ZookeeperServer
) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """What goes wrong, and how it ends."""

    def expire_both() -> None:
        world.expire("a")
        world.expire("b")

    def nothing() -> None:
        pass

    return {
        "the receiver's session expires": (partial(world.expire, "a"), nothing),
        "the sender's session expires": (partial(world.expire, "b"), nothing),
        "both sessions expire": (expire_both, nothing),
        "the server is killed": (server.kill, server.start),
        "the server is stopped": (server.stop, server.start),
        "the server hangs": (server.freeze, server.thaw),
    }


@pytest.mark.parametrize(
    "rounds", [8, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_nobody_stays_held_for_longer_than_two_leases_and_nobody_is_cut_off_for_good(
    own_zookeeper: ZookeeperServer, flow: str, rounds: int
) -> None:
    chance = random.Random(rounds)
    with ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as world:
        a, b = world.join("a", ["b"]), world.join("b")
        upstream, downstream = Upstream(a, flow), Downstream(b, flow)
        happens = disasters(world, own_zookeeper)
        for number in range(rounds):
            wait_until(lambda: a.is_connected and b.is_connected, ALL_IS_WELL_S)
            what = list(happens)[number % len(happens)]
            begin, end = happens[what]
            ends_first = chance.random() < 0.5
            with downstream.pressing():
                wait_until(upstream.is_held, ALL_IS_WELL_S)
                begin()
                if ends_first:
                    end()
                    wait_until(upstream.is_held, ALL_IS_WELL_S)
            # It is silent, and what it said last may have been delivered, or may be yet.
            wait_until(lambda: not upstream.is_held(), 2 * LEASE_MS / 1_000)
            if not ends_first:
                end()
            print(f"{number}: {what}: over")  # noqa: T201  # for whoever waits for all 50
