"""Three stages with their agents, whatever happens to ZooKeeper, and to the stages themselves."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.flow.admitting import Admitting
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.control import HopSettings, InputQueue
from headrace.flow.agent import StageAgent, StageSpec
from headrace.ledger import Ledger

INTERVAL_MS = 100
SETTINGS = HopSettings(
    overload_bytes=10_000,
    light_load_bytes=1_000,
    overload_sensitivity_ms=300,
    light_load_sensitivity_ms=300,
    lease_ms=3_000,
)
TWO_LEASES_S = 2 * SETTINGS.lease_ms / 1_000
ALL_IS_WELL_S = 60.0
CHAIN = ("parse", "enrich", "store")


class Queue:
    """Nothing waits; or far too much, and more and more, until it is told that this is enough."""

    def __init__(self) -> None:
        self._flow_bytes = 0
        self._waiting = 0
        self._arrived = 0

    def flood(self) -> None:
        self._waiting, self._flow_bytes = 1_000 * SETTINGS.overload_bytes, 100

    def hold(self) -> None:
        """Go on with too much, but no longer with more and more."""
        self._flow_bytes = -1

    def drain(self) -> None:
        self._waiting = self._flow_bytes = 0

    def measure(self) -> InputQueue:
        self._arrived += 100
        self._waiting += self._flow_bytes
        return InputQueue(self._waiting, self._waiting, self._arrived)

    def close(self) -> None:
        pass


class Stage:
    """One stage: its batches, its queue and its agent, which can be gone from one moment on."""

    def __init__(self, world: ZookeeperWorld, ledger: Ledger, name: str) -> None:
        at = CHAIN.index(name)
        before, after = CHAIN[max(at - 1, 0) : at], CHAIN[at + 1 : at + 2]
        self.name = name
        self.queue = Queue()
        self._world = world
        self._ledger = ledger
        gate = f"{world.flow}.{name}"
        self._place = StageSpec(world.flow, name, gate, INTERVAL_MS, before, after, SETTINGS)
        self.admitting = Admitting(ledger, gate)
        ledger.declare_gate(gate, interval_ms=INTERVAL_MS, source="journal", estimator="{}")
        self.begin()

    def begin(self) -> None:
        """Run, from now on."""
        self.signals = self._world.join(self.name, self._place.downstream)
        self.agent = StageAgent(self._place, self._ledger, self.signals, self.queue).start()

    def vanish(self) -> None:
        """Be gone without a word, as when the process is killed."""
        self.agent._done.set()
        self.agent._thread.join()
        self._world.sessions[self.name].close()
        self.signals.close()

    def close(self) -> None:
        self.agent.close()


@pytest.fixture
def world(own_zookeeper: ZookeeperServer, flow: str) -> Iterator[ZookeeperWorld]:
    with ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as made:
        yield made


@pytest.fixture
def stages(world: ZookeeperWorld, tmp_path: Path) -> Iterator[Sequence[Stage]]:
    """The chain, whose stages go on beginning batches."""
    with ExitStack() as running:
        ledger = running.enter_context(Ledger.open(f"sqlite:///{tmp_path}/headrace.db"))
        made = [Stage(world, ledger, name) for name in CHAIN]
        for stage in made:
            running.callback(stage.close)
        done = threading.Event()

        def admit() -> None:
            while not done.wait(INTERVAL_MS / 1_000):
                for stage in made:
                    stage.admitting.admit()

        admitting = threading.Thread(target=admit)
        admitting.start()
        running.callback(admitting.join)
        running.callback(done.set)
        yield made


Disaster = tuple[Callable[[], None], Callable[[], None]]


def disasters(
    world: ZookeeperWorld, server: ZookeeperServer, names: Sequence[str]
) -> dict[str, Disaster]:
    """What goes wrong, and how it ends."""

    def expire(*names: str) -> None:
        for name in names:
            world.expire(name)

    def nothing() -> None:
        pass

    return {
        "all sessions expire": (partial(expire, *names), nothing),
        "the server is killed": (server.kill, server.start),
        "the server hangs": (server.freeze, server.thaw),
        "the server is stopped": (server.stop, server.start),
        **{f"the session of {name} expires": (partial(expire, name), nothing) for name in names},
    }


def press(stages: Sequence[Stage], pressing: Sequence[Stage]) -> bool:
    """Whether each of these holds the one before it."""
    return all(
        stages[CHAIN.index(each.name) - 1].admitting.held_by() == each.name for each in pressing
    )


def all_free(stages: Sequence[Stage]) -> bool:
    return not any(stage.admitting.held_by() for stage in stages)


def overload(stages: Sequence[Stage], pressing: Sequence[Stage]) -> None:
    """Have more and more wait for these, until each holds the one before it."""
    for stage in pressing:
        stage.queue.flood()
    wait_until(partial(press, stages, pressing), ALL_IS_WELL_S)
    for stage in pressing:
        stage.queue.hold()


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_no_stage_stays_throttled_when_the_one_after_it_is_light_or_gone_and_none_is_cut_off(
    own_zookeeper: ZookeeperServer, world: ZookeeperWorld, stages: Sequence[Stage], rounds: int
) -> None:
    chance = random.Random(rounds)
    happens = disasters(world, own_zookeeper, CHAIN)
    for number in range(rounds):
        wait_until(lambda: all(stage.signals.is_connected for stage in stages), ALL_IS_WELL_S)
        what = list(happens)[number % len(happens)]
        begin, end = happens[what]
        pressing = [stage for stage in stages[1:] if chance.random() < 0.5] or [stages[-1]]
        ends_first, vanishes = chance.random() < 0.5, chance.random() < 0.5
        overload(stages, pressing)
        begin()
        if ends_first:
            end()
            wait_until(partial(press, stages, pressing), ALL_IS_WELL_S)
        for stage in pressing:
            if vanishes:
                stage.vanish()
            stage.queue.drain()
        light_s = time.monotonic()
        wait_until(partial(all_free, stages), TWO_LEASES_S)
        free_s = time.monotonic() - light_s
        if not ends_first:
            end()
        if vanishes:  # and comes back, at the level that it had if that was a moment ago
            for stage in pressing:
                stage.begin()
        names, how = [stage.name for stage in pressing], "gone" if vanishes else "light"
        print(f"{number}: {what}, {names} {how}: free after {free_s:.1f} s")  # noqa: T201
    wait_until(partial(all_free, stages), ALL_IS_WELL_S)
    for stage in stages[1:]:
        wait_until(lambda: all(stage.signals.is_connected for stage in stages), ALL_IS_WELL_S)
        overload(stages, [stage])
        stage.queue.drain()
        wait_until(partial(all_free, stages), ALL_IS_WELL_S)
