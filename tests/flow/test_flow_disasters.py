"""Three stages with their agents, whatever happens to ZooKeeper, and to the stages themselves."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.flow.stages import INTERVAL_MS, SETTINGS, RunningStage
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.gate.ledger.ledger import Ledger

TWO_LEASES_S = 2 * SETTINGS.lease_ms / 1_000
ALL_IS_WELL_S = 60.0
CHAIN = ("parse", "enrich", "store")


@pytest.fixture
def world(own_zookeeper: ZookeeperServer, flow: str) -> Iterator[ZookeeperWorld]:
    with ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as made:
        yield made


@pytest.fixture
def stages(world: ZookeeperWorld, tmp_path: Path) -> Iterator[Sequence[RunningStage]]:
    """The chain, whose stages go on beginning batches."""
    with ExitStack() as running:
        ledger = running.enter_context(Ledger.open(f"sqlite:///{tmp_path}/headrace.db"))
        made = [RunningStage(world, ledger, name, CHAIN) for name in CHAIN]
        for stage in made:
            running.callback(stage.close)
        done = threading.Event()

        def admit() -> None:
            while not done.wait(INTERVAL_MS / 1_000):
                for stage in made:
                    stage.admit()

        admitting = threading.Thread(target=admit)
        admitting.start()
        running.callback(admitting.join)
        running.callback(done.set)
        yield made


Disaster = tuple[Callable[[], None], Callable[[], None]]


def disasters(
    world: ZookeeperWorld, server: ZookeeperServer, names: Sequence[str]
) -> dict[str, Disaster]:
    """Return the disasters, each with the repair that ends it."""

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


def all_throttle(stages: Sequence[RunningStage], overloaded: Sequence[RunningStage]) -> bool:
    """Whether each of these throttles the one before it."""
    return all(
        stages[CHAIN.index(each.name) - 1].throttled_by() == each.name for each in overloaded
    )


def all_free(stages: Sequence[RunningStage]) -> bool:
    return not any(stage.throttled_by() for stage in stages)


def overload(stages: Sequence[RunningStage], overloaded: Sequence[RunningStage]) -> None:
    """Have more and more wait for these, until each throttles the one before it."""
    for stage in overloaded:
        stage.queue.flood()
    wait_until(partial(all_throttle, stages, overloaded), ALL_IS_WELL_S)
    for stage in overloaded:
        stage.queue.hold()


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_no_stage_stays_throttled_when_the_one_after_it_is_light_or_gone_and_none_is_cut_off(
    own_zookeeper: ZookeeperServer,
    world: ZookeeperWorld,
    stages: Sequence[RunningStage],
    rounds: int,
) -> None:
    chance = random.Random(rounds)
    happens = disasters(world, own_zookeeper, CHAIN)
    for number in range(rounds):
        wait_until(lambda: all(stage.signals.is_connected for stage in stages), ALL_IS_WELL_S)
        what = list(happens)[number % len(happens)]
        begin, end = happens[what]
        overloaded = [stage for stage in stages[1:] if chance.random() < 0.5] or [stages[-1]]
        ends_first, vanishes = chance.random() < 0.5, chance.random() < 0.5
        overload(stages, overloaded)
        begin()
        if ends_first:
            end()
            wait_until(partial(all_throttle, stages, overloaded), ALL_IS_WELL_S)
        for stage in overloaded:
            if vanishes:
                stage.vanish()
            stage.queue.drain()
        light_s = time.monotonic()
        wait_until(partial(all_free, stages), TWO_LEASES_S)
        free_s = time.monotonic() - light_s
        if not ends_first:
            end()
        if vanishes:  # and comes back, at the level that it had if that was a moment ago
            for stage in overloaded:
                stage.begin()
        names, how = [stage.name for stage in overloaded], "gone" if vanishes else "light"
        print(f"{number}: {what}, {names} {how}: free after {free_s:.1f} s")  # noqa: T201
    wait_until(partial(all_free, stages), ALL_IS_WELL_S)
    for stage in stages[1:]:
        wait_until(lambda: all(stage.signals.is_connected for stage in stages), ALL_IS_WELL_S)
        overload(stages, [stage])
        stage.queue.drain()
        wait_until(partial(all_free, stages), ALL_IS_WELL_S)
