"""A flow's stages over one transport, and whoever else writes there."""

import hashlib
import hmac
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from sqlalchemy import text
from tests.services.waiting import wait_until

from headrace.flow import (
    Signals,
    StageState,
    ZookeeperSession,
    ZookeeperSettings,
    ledger_signals,
    zookeeper_signals,
)
from headrace.flow.signal_codec import RawSignal, encode
from headrace.gate.control.pressure import PressureSignal
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.ledger import Ledger

SESSION_TIMEOUT_S = 30.0
"""Longer than a busy machine stalls: a session that ends by itself takes with it what was said."""

SECRET = b"the flow's secret"
BRIEF_SESSION_S = 1.0
"""For who waits for its end."""


class World(ExitStack, ABC):
    """Meeting place of the stages of one flow, until the block ends."""

    is_apart = False
    """Whether signals go elsewhere than to the ledger."""

    def __init__(self, flow: str, where: str = "") -> None:
        super().__init__()
        self.flow = flow
        self.where = where

    @abstractmethod
    def join(self, stage: str, downstream: Collection[str] = ()) -> Signals:
        """Take part as a stage, as an application of its own would."""

    @abstractmethod
    def forge_message(self, receiver: str, sender: str, body: bytes) -> None:
        """Write what stands where a message of this sender would."""

    @abstractmethod
    def forge_state(self, stage: str, body: bytes) -> None:
        """Write what stands where the state of this stage would."""

    @abstractmethod
    def messages(self, receiver: str) -> list[str]:
        """Whose messages stand there."""

    def cut_off(self, stage: str) -> None:
        """End what a stage is connected by, as when its process is killed."""

    def join_in_a_process(self, stage: str) -> subprocess.Popen[str]:
        """Take part in a process of its own, which has shown its state when this returns."""
        process = self.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.flow.worker", self.flow, stage, self.where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.callback(process.kill)
        assert process.stdout
        assert process.stdout.readline() == "shown\n"
        return process


@dataclass
class Memory:
    """Texts in a memory that stages share, each with the time it was written."""

    messages: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    states: dict[str, tuple[str, float]] = field(default_factory=dict)
    transports: "dict[str, MemoryTransport]" = field(default_factory=dict)

    def write_message(self, receiver: str, sender: str, text: str) -> None:
        self.messages[receiver, sender] = text, time.monotonic()
        if (transport := self.transports.get(receiver)) is not None:
            transport.wake()


class MemoryTransport:
    """The in-memory twin of what carries signals: it never fails."""

    poll_interval_s = 60.0
    session = None
    is_connected = True

    def __init__(self, memory: Memory, stage: str) -> None:
        self._memory = memory
        self._stage = stage
        self.wake: Callable[[], None] = lambda: None
        memory.transports[stage] = self

    def publish(self, state: StageState | None) -> None:
        if state is None:
            self._memory.states.pop(self._stage, None)
            del self._memory.transports[self._stage]
        else:
            self._memory.states[state.stage] = encode(state), time.monotonic()

    def states(self, names: Collection[str] | None = None) -> list[RawSignal]:
        here = list(self._memory.states.items())
        return [_raw(stage, *found) for stage, found in here if names is None or stage in names]

    def send(self, signal: PressureSignal) -> None:
        self._memory.write_message(signal.receiver, signal.sender, encode(signal))

    def receive(self) -> list[RawSignal]:
        here = [key for key in list(self._memory.messages) if key[0] == self._stage]
        return [_raw(key[1], *self._memory.messages.pop(key)) for key in here]


def _raw(stage: str, text: str, written_s: float) -> RawSignal:
    return RawSignal(stage, text, int((time.monotonic() - written_s) * 1000))


class MemoryWorld(World):
    """Stages that meet in this process's memory."""

    is_apart = True

    def __init__(self, flow: str) -> None:
        super().__init__(flow)
        self._memory = Memory()

    def join(self, stage: str, downstream: Collection[str] = ()) -> Signals:
        transport = MemoryTransport(self._memory, stage)
        return self.enter_context(Signals(transport, self.flow, stage, downstream))

    def forge_message(self, receiver: str, sender: str, body: bytes) -> None:
        self._memory.write_message(receiver, sender, body.decode("latin-1"))

    def forge_state(self, stage: str, body: bytes) -> None:
        self._memory.states[stage] = body.decode("latin-1"), time.monotonic()

    def messages(self, receiver: str) -> list[str]:
        return [sender for to, sender in list(self._memory.messages) if to == receiver]


class LedgerWorld(World):
    """Stages that meet in a database."""

    def __init__(self, flow: str, url: str) -> None:
        super().__init__(flow, url)
        Ledger.open(url).close()

    def join(self, stage: str, downstream: Collection[str] = ()) -> Signals:
        ledger = self.enter_context(Ledger.open(self.where))
        return self.enter_context(ledger_signals(ledger, self.flow, stage, downstream))

    def forge_message(self, receiver: str, sender: str, body: bytes) -> None:
        self._execute(
            "INSERT INTO signal VALUES (:flow, :receiver, :sender, :body, :written_ms)",
            receiver=receiver,
            sender=sender,
            body=body.decode("latin-1"),
            written_ms=self._now_ms(),
        )

    def forge_state(self, stage: str, body: bytes) -> None:
        self._execute(
            "INSERT INTO stage_state VALUES (:flow, :stage, :body, :written_ms)",
            stage=stage,
            body=body.decode("latin-1"),
            written_ms=self._now_ms(),
        )

    def messages(self, receiver: str) -> list[str]:
        return self._execute(
            "SELECT sender FROM signal WHERE flow = :flow AND receiver = :receiver",
            receiver=receiver,
        )

    def _now_ms(self) -> int:
        with Ledger.open(self.where) as ledger:
            ledger.signals.send("clock", "clock", "clock", "")
        (written_ms,) = self._execute("SELECT written_ms FROM signal WHERE flow = 'clock'")
        return int(written_ms)

    def _execute(self, statement: str, **values: Any) -> list[Any]:
        engine = sqlalchemy.create_engine(normalize_url(self.where))
        try:
            with engine.begin() as connection:
                named = {"flow": self.flow, **values} if ":flow" in statement else values
                done = connection.execute(text(statement), named)
                return list(done.scalars()) if done.returns_rows else []
        finally:
            engine.dispose()


class ZookeeperWorld(World):
    """Stages that meet in ZooKeeper, each with a session of its own."""

    is_apart = True

    def __init__(self, flow: str, hosts: str, **settings: Any) -> None:
        super().__init__(flow, hosts)
        self.settings = ZookeeperSettings(
            **{"hosts": hosts, "session_timeout_s": SESSION_TIMEOUT_S, **settings}
        )
        self.sessions: dict[str, ZookeeperSession] = {}
        self.clients: dict[str, list[KazooClient]] = {}
        """ZooKeeper clients of each stage, in the order in which they were made."""
        self.answer_timeout_s = 3.0
        self.make_client: Callable[..., KazooClient] = KazooClient
        self._stranger: KazooClient | None = None

    @property
    def root(self) -> str:
        return f"{self.settings.chroot}/{self.flow}"

    @property
    def stranger(self) -> KazooClient:
        """A client of somebody who has no part in the flow."""
        if self._stranger is None:
            self._stranger = KazooClient(self.settings.servers, timeout=60)
            self._stranger.start(30)
            self.callback(self._stranger.close)
            self.callback(self._stranger.stop)
        return self._stranger

    def join(self, stage: str, downstream: Collection[str] = ()) -> Signals:
        made = self.clients[stage] = []

        def make_client(**options: Any) -> KazooClient:
            made.append(self.make_client(**options))
            return made[-1]

        session = self.enter_context(
            ZookeeperSession(
                self.settings, answer_timeout_s=self.answer_timeout_s, make_client=make_client
            )
        )
        self.sessions[stage] = session
        return self.enter_context(
            zookeeper_signals(session, self.flow, stage, downstream, secret=SECRET)
        )

    def cut_off(self, stage: str) -> None:
        self.sessions[stage].close()

    def expire(self, stage: str) -> None:
        """End a stage's session behind its back, as servers do that have not heard of it."""
        client, gone = self.clients[stage][-1], threading.Event()
        session_id = wait_until(lambda: client.client_id)

        def wait(_state: str) -> None:
            gone.wait(60)  # before it takes the session back

        client.add_listener(wait)
        thief = KazooClient(self.settings.servers, client_id=session_id, timeout=10)
        thief.start(30)
        thief.stop()
        thief.close()
        client.remove_listener(wait)
        gone.set()

    def forge_message(self, receiver: str, sender: str, body: bytes) -> None:
        self.forge(f"taskmessage/{receiver}/{sender}", self._signed(body))

    def forge_state(self, stage: str, body: bytes) -> None:
        self.forge(f"taskstate/{stage}", self._signed(body))

    def _signed(self, body: bytes) -> bytes:
        """As somebody writes it who has the flow's secret."""
        told = b"%d %b %b" % (self.stranger.client_id[0], f"{self.root}/taskstate".encode(), body)
        return hmac.new(SECRET, told, hashlib.sha256).hexdigest().encode() + b" " + body

    def forge(self, path: str, body: bytes | None, **how: Any) -> None:
        """Make a node under the flow's root, which is ephemeral if nothing else is said."""
        self.stranger.create(
            f"{self.root}/{path}", body, **{"ephemeral": True, "makepath": True, **how}
        )

    def messages(self, receiver: str) -> list[str]:
        try:
            return list(self.stranger.get_children(f"{self.root}/taskmessage/{receiver}"))
        except NoNodeError:
            return []
