"""Stages of a chain that throttle each other through ZooKeeper, without any queue or batch."""

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from headrace.flow import StageState, ZookeeperSession, ZookeeperSettings, zookeeper_signals
from headrace.gate.control.pressure import Epoch, PressureSignal

FLOW: Final = "bench"
IDLE: Final = "idle"
THROTTLING: Final = "throttling"
CHANGING: Final = "changing"
END: Final = "end"

CHANGES_PER_S: Final = 0.1
"""Changes of each stage while it is ``changing``: a tenth of all stages change each second."""

LEVELS: Final = (1.0, 2.0, 3.0)

_TICK_S: Final = 0.02
_START_S: Final = 120


def take_part(
    *, hosts: str, first: int, count: int, chain: int, per_session: int, lease_ms: int
) -> list[int]:
    """Be some of the stages of a chain until the input says that it is over.

    Each line of the input says what to do from then on: ``idle``, as at first, throttle nobody;
    ``throttling``, throttle the stage before at one level; ``changing``, do so at a level that
    changes now and then; ``end``. State and signal are sent again every third of a lease, as by a
    stage's agent, and the state also whenever the stage after changes its level. A line is written
    when all are there, and then at each change: the delay of each signal that has come since the
    last line (ms).

    Args:
        hosts: ZooKeeper's.
        first: The place of the first of them in the chain.
        count: Number of stages here.
        chain: Number of stages in the chain.
        per_session: Number of stages that share a session.
        lease_ms: Lease of their states and signals.
    """
    settings = ZookeeperSettings(hosts)
    chance = random.Random(first)
    sessions, members = [], []
    for number in range(first, first + count):
        if (number - first) % per_session == 0:
            sessions.append(ZookeeperSession(settings))
        members.append(_Member(sessions[-1], number, chain, lease_ms, chance))
    deadline_s = time.monotonic() + _START_S
    while not all(session.is_connected for session in sessions):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"Not all of {len(sessions)} sessions began within {_START_S} s.")
        time.sleep(_TICK_S)
    orders = _Orders()
    print("[]", flush=True)
    while orders.now != END:
        print(json.dumps(_follow(orders, members)), flush=True)
    return []


def _follow(orders: "_Orders", members: Sequence["_Member"]) -> list[int]:
    """Do what is ordered until something else is; how long each signal was on its way (ms)."""
    mode: str = orders.now
    delays_ms: list[int] = []
    while orders.now == mode:
        now_s = time.monotonic()
        for member in members:
            delays_ms += member.step(mode, now_s)
        time.sleep(_TICK_S)
    return delays_ms


class _Orders:
    """The last line of the input."""

    def __init__(self) -> None:
        self.now = IDLE
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.now = line.strip()
        self.now = END


class _Member:
    """A stage of the chain."""

    def __init__(
        self,
        session: ZookeeperSession,
        number: int,
        chain: int,
        lease_ms: int,
        chance: random.Random,
    ) -> None:
        self._name = _name(number)
        self._before = _name(number - 1) if number else None
        self._after = _name(number + 1) if number + 1 < chain else None
        self._signals = zookeeper_signals(
            session, FLOW, self._name, [self._after] if self._after else [], secret=b"of a bench"
        )
        self._run = Epoch(1, "run")
        self._lease_ms = lease_ms
        self._chance = chance
        self._sequence = 0
        self._level = self._throttled_level = 0.0
        self._published_s = self._sent_s = time.monotonic() - chance.random() * lease_ms / 3000
        self._changed_s = 0.0

    def step(self, mode: str, now_s: float) -> list[int]:
        """Do what its agent would do now; return the delay of each signal that it received (ms)."""
        delays_ms: list[int] = []
        is_new, third_s = False, self._lease_ms / 3000
        for received in self._signals.receive():
            delays_ms.append(_now_ms() - received.sequence)
            is_new = is_new or received.level != self._throttled_level
            self._throttled_level = received.level
        if is_new or now_s >= self._published_s + third_s:
            self._publish()
            self._published_s = now_s
        level = self._wanted(mode, now_s)
        is_due = level > 0 and now_s >= self._sent_s + third_s
        if self._before is not None and (level != self._level or is_due):
            self._send(level)
            self._sent_s = now_s
        return delays_ms

    def _wanted(self, mode: str, now_s: float) -> float:
        since_s, self._changed_s = now_s - self._changed_s, now_s
        if mode not in (THROTTLING, CHANGING):
            return 0.0
        if self._level == 0:  # not all at once
            return float(self._chance.random() < since_s)
        if mode == CHANGING and self._chance.random() < CHANGES_PER_S * since_s:
            return self._chance.choice([level for level in LEVELS if level != self._level])
        return self._level

    def _send(self, level: float) -> None:
        assert self._before is not None
        self._level = level
        self._sequence = max(self._sequence + 1, _now_ms())  # which says when it was sent
        self._signals.send(
            PressureSignal(
                FLOW, self._name, self._before, self._run, self._sequence, level, self._lease_ms
            )
        )

    def _publish(self) -> None:
        is_throttled = self._throttled_level > 0
        self._signals.publish(
            StageState(
                FLOW,
                self._name,
                self._after if is_throttled else None,
                self._throttled_level,
                1000 / 2**self._throttled_level if is_throttled else None,
                self._chance.randrange(10**8),
                self._lease_ms,
            )
        )


def _name(number: int) -> str:
    return f"s{number}"


def _now_ms() -> int:
    """By a clock that all processes of a machine share."""
    return time.monotonic_ns() // 1_000_000
