"""Signals over ZooKeeper, in these nodes.

::

    /headrace/<flow>/taskmessage/<receiver>/<sender>    the newest signal, until it is received
    /headrace/<flow>/taskstate/<stage>                  the state that a stage publishes

All nodes are ephemeral, so ZooKeeper deletes the nodes of a stage that ends: at once if the stage
ends normally, otherwise when the stage's session expires. Without a user in the settings, all
clients may read a node, and only its creator may change it.

Each text is signed with the flow's secret from the ledger, and the signature covers the id of the
writer's session. The servers report which session owns an ephemeral node, and no client can forge
this. So forged texts, and copies of a stage's own texts, are detected and ignored.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from headrace.core.timing import WarnOnce
from headrace.errors import SignalError
from headrace.flow.signal_codec import RawSignal, StageState, UnreachableError, encode
from headrace.flow.stage_signals import Signals
from headrace.flow.zookeeper_session import ZookeeperSession
from headrace.gate import PressureSignal

POLL_S: Final = 5.0
"""Interval between polls for signals, if no watch reports a change (s)."""

CLOCK_S: Final = 60.0
"""Time after which the servers' clock is read again (s)."""

MAX_STRANGERS: Final = 20
"""Maximum number of signals that one poll deletes because their senders are not downstream."""

MAX_STATES: Final = 10_000
"""Maximum number of published states that one call reads."""

_ATTEMPTS: Final = 3
"""Maximum number of attempts of an action that other clients may undo at the same time."""

_ANY_VERSION: Final = -1

_NOT_EPHEMERAL: Final = "The node is not ephemeral, so it would remain after its stage has ended."
_NOT_SIGNED: Final = "The text is not signed with the flow's secret for the session that wrote it."

_LOG: Final = logging.getLogger("headrace.flow")


def zookeeper_signals(
    session: ZookeeperSession,
    flow: str,
    stage: str,
    downstream: Collection[str] = (),
    *,
    secret: bytes,
) -> Signals:
    """Return a stage's signals over ZooKeeper.

    A signal arrives within milliseconds. The stages of a process should share a session. The
    session must stay open until the signals are closed. ``secret`` is the flow's secret from the
    ledger (`SignalStore.secret`); it is the same for all stages of the flow.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """
    transport = _ZookeeperTransport(session, flow, stage, downstream, secret)
    return Signals(transport, flow, stage, downstream)


class _ZookeeperTransport:
    """Transport of one stage's signals through nodes of ZooKeeper."""

    poll_interval_s = POLL_S

    def __init__(
        self,
        session: ZookeeperSession,
        flow: str,
        stage: str,
        downstream: Collection[str],
        secret: bytes,
    ) -> None:
        self._session = session
        self._secret = secret
        self._downstream = frozenset(downstream)
        root = f"{session.settings.chroot}/{flow}"
        self._messages = f"{root}/taskmessage"
        self._inbox = f"{self._messages}/{stage}"
        self._states = f"{root}/taskstate"
        self._state = f"{self._states}/{stage}"
        self._clock: tuple[int, float] | None = None
        self._failures = WarnOnce(_LOG)
        self.wake: Callable[[], None] = lambda: None
        session.add_listener(self._connected)

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def session(self) -> int | None:
        return self._session.id

    def publish(self, state: StageState | None) -> None:
        if state is not None:
            self._write(self._state, encode(state), [self._set, self._create])
            return
        self._session.remove_listener(self._connected)
        if self._is_ours(self._session.request("exists", self._state)):
            self._delete(self._state)

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        if names is None:
            names = sorted(self._children(self._states))[:MAX_STATES]
        return [raw for raw, _ in self._read(self._states, names)]

    def send(self, signal: PressureSignal) -> None:
        path = f"{self._messages}/{signal.receiver}/{signal.sender}"
        self._write(path, encode(signal), [self._create, self._set])

    def receive(self) -> Sequence[RawSignal]:
        # A watch's event only triggers another read, so a lost or repeated event does no harm.
        names = self._children(self._inbox, watch=lambda _event: self.wake())
        strangers = [name for name in names if name not in self._downstream]
        signals = [
            *self._read(self._inbox, [name for name in names if name in self._downstream]),
            *((RawSignal(name, "", 0), _ANY_VERSION) for name in strangers[:MAX_STRANGERS]),
        ]
        for raw, version in signals:
            # A stage that sends replaces a forged node at its path. The replacement begins at
            # version 0 again, so deleting the forged node here could delete the replacement.
            if raw.fault is None:
                self._remove(raw.stage, version)
        return [raw for raw, _ in signals]

    def _remove(self, sender: str, version: int) -> None:
        """Delete a signal after reading it. If this fails, the signal is read again and ignored."""
        try:
            self._delete(f"{self._inbox}/{sender}", version)
        except (BadVersionError, UnreachableError):
            self.wake()  # a newer signal triggers no watch, because the node existed
        except SignalError as error:
            self._failures.warn(str(error), about=sender)

    def __repr__(self) -> str:
        return repr(self._session)

    def _is_ours(self, stat: Any) -> bool:
        return stat is not None and bool(stat.ephemeralOwner == self._session.id)

    def _children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Return the names of a node's children; create the node if it is missing."""
        for _ in range(_ATTEMPTS):
            try:
                names: list[str] = self._session.request("get_children", path, watch=watch)
            except NoNodeError:
                self._make(path)
            else:
                return names
        raise self._contended(path)

    def _read(self, folder: str, names: Iterable[str]) -> list[tuple[RawSignal, int]]:
        """Return the texts and versions of the named nodes in ``folder``; skip missing nodes."""
        submitted = [(name, self._session.submit("get", f"{folder}/{name}")) for name in names]
        nodes = (self._raw(folder, *node) for node in submitted)
        return [node for node in nodes if node is not None]

    def _raw(self, folder: str, name: str, node: Any) -> tuple[RawSignal, int] | None:
        try:
            data, stat = self._session.result(f"{folder}/{name}", node)
        except NoNodeError:
            return None
        except UnreachableError:
            raise
        except SignalError as error:
            return RawSignal(name, "", 0, str(error)), _ANY_VERSION
        signature, _, text = (data or b"").partition(b" ")
        fault = None
        if not stat.ephemeralOwner:
            fault = _NOT_EPHEMERAL
        elif not hmac.compare_digest(signature, self._signature(stat.ephemeralOwner, text)):
            fault = _NOT_SIGNED
        return RawSignal(name, text, self._age_ms(stat.mtime), fault), stat.version

    def _signature(self, session: int, text: bytes) -> bytes:
        """Return the signature (hex) of a text that a stage of this flow writes in a session."""
        message = b"%d %b %b" % (session, self._states.encode("ascii"), text)
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest().encode("ascii")

    def _age_ms(self, written_ms: int) -> int:
        try:
            return self._now_ms() - written_ms
        except UnreachableError:
            raise
        except (SignalError, NoNodeError):
            return 0  # a stage without write access cannot read the servers' clock

    def _now_ms(self) -> int:
        """Return the servers' time (ms since the epoch).

        The result is the servers' time of a recent write, plus the local time since the write.
        """
        clock = self._clock
        if clock is None or time.monotonic() - clock[1] > CLOCK_S:
            self._make(self._inbox)
            stat = self._session.request("set", self._inbox, b"")
            self._clock = clock = stat.mtime, time.monotonic()
        then_ms, then_s = clock
        return int(then_ms + (time.monotonic() - then_s) * 1000)

    def _write(self, path: str, text: str, writes: list[Callable[[str, bytes], bool]]) -> None:
        """Store a signed text in a node at ``path`` that belongs to this session.

        ``writes`` are the ways to store the text, tried in order until one succeeds.
        """
        encoded = text.encode("ascii")
        data = b"%b %b" % (self._signature(self._session.id or 0, encoded), encoded)
        if not any(write(path, data) for write in writes * _ATTEMPTS):
            raise self._contended(path)

    def _create(self, path: str, data: bytes) -> bool:
        folder = path.rpartition("/")[0]
        try:
            self._session.request("create", path, data, acl=self._session.own_acl, ephemeral=True)
        except NodeExistsError:
            return False
        except NoNodeError:
            self._make(folder)
            return False
        except NoChildrenForEphemeralsError:  # an ephemeral folder, which no stage creates
            self._delete(folder)
            return False
        return True

    def _set(self, path: str, data: bytes) -> bool:
        try:
            stat = self._session.request("set", path, data)
        except NoNodeError:
            return False
        except UnreachableError:
            raise
        except SignalError:  # this process may not change the node
            stat = None
        if not self._is_ours(stat):  # the node would end with another session
            self._delete(path)
            return False
        return True

    def _delete(self, path: str, version: int = _ANY_VERSION) -> None:
        with suppress(NoNodeError):  # already deleted
            try:
                self._session.request("delete", path, version)
            except NotEmptyError as error:
                raise SignalError(
                    f"The node {path} in ZooKeeper at {self._session.settings.servers} cannot be"
                    " deleted, because it has child nodes, which no stage creates; delete the"
                    " child nodes."
                ) from error

    def _make(self, path: str) -> None:
        try:
            self._session.request("ensure_path", path, acl=self._session.acl)
        except (NoNodeError, NoChildrenForEphemeralsError) as error:
            raise self._contended(path) from error

    def _contended(self, path: str) -> SignalError:
        return SignalError(
            f"The node {path} in ZooKeeper at {self._session.settings.servers} is created and"
            " deleted again and again by another client; check that each stage runs only once."
        )

    def _connected(self) -> None:
        self._clock = None  # the new server's clock may differ
        self.wake()
