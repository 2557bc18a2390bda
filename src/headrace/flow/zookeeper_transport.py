"""Signals over ZooKeeper.

::

    /headrace/<flow>/taskmessage/<receiver>/<sender>    the newest signal, until it is taken
    /headrace/<flow>/taskstate/<stage>                  the state that a stage publishes
    /headrace/<flow>/taskpresence/<stage>               that its session is the stage's

All are ephemeral, so what a stage has written is gone soon after it: at once if it ends in good
order, and else when its session expires. Anybody may read them, and only their makers may change
them. A signal or a state counts only if it is of the session that the stage's presence is of:
servers say whose an ephemeral node is, and nobody can make one for another session. A stage whose
presence is not its own replaces it, and logs that.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from headrace.control.pressure import PressureSignal
from headrace.errors import SignalError
from headrace.flow.signal_codec import RawSignal, StageState, UnreachableError, encode
from headrace.flow.stage_signals import Signals
from headrace.flow.zookeeper_session import ZookeeperSession

POLL_S: Final = 5.0
"""Interval at which a stage polls for signals although no watch reports any (s)."""

CLOCK_S: Final = 60.0
"""Time for which the servers' clock is extrapolated after it was read (s)."""

MAX_STRANGERS: Final = 20
"""Most nodes that are not from a stage's downstreams and are removed at one poll."""

MAX_STATES: Final = 10_000
"""Most stages whose states are read."""

_ATTEMPTS: Final = 3
"""Number of tries of an action that others may undo at the same time."""

_ANY_VERSION: Final = -1

_NOT_EPHEMERAL: Final = "It would stay when its stage is gone, as nothing does that a stage writes."
_NOT_ITS: Final = "It is not of the session of that stage."

_LOG: Final = logging.getLogger("headrace.flow")


def zookeeper_signals(
    session: ZookeeperSession, flow: str, stage: str, downstream: Collection[str] = ()
) -> Signals:
    """Take part in a flow's signals over ZooKeeper.

    A signal arrives within milliseconds. The stages of a process best share a session, which must
    stay open until the signals are closed.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """
    transport = _ZookeeperTransport(session, flow, stage, downstream)
    return Signals(transport, flow, stage, downstream)


class _ZookeeperTransport:
    """The signals of one stage in nodes of ZooKeeper."""

    poll_interval_s = POLL_S

    def __init__(
        self, session: ZookeeperSession, flow: str, stage: str, downstream: Collection[str]
    ) -> None:
        self._session = session
        self._downstream = frozenset(downstream)
        root = f"{session.settings.chroot}/{flow}"
        self._messages = f"{root}/taskmessage"
        self._inbox = f"{self._messages}/{stage}"
        self._states = f"{root}/taskstate"
        self._state = f"{self._states}/{stage}"
        self._presences = f"{root}/taskpresence"
        self._presence = f"{self._presences}/{stage}"
        self._present_in: int | None = None
        self._wake: Callable[[], None] = lambda: None
        self._clock: tuple[int, float] | None = None

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def session(self) -> int | None:
        return self._session.id

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._session.add_listener(self._connected)

    def put(self, item: PressureSignal | StageState) -> None:
        data = encode(item).encode("ascii")
        self._be_present()
        if isinstance(item, PressureSignal):
            path = f"{self._messages}/{item.receiver}/{item.sender}"
            self._write(path, data, [self._create, self._set])
        else:
            self._write(self._state, data, [self._set, self._create])

    def poll(self) -> Sequence[RawSignal]:
        if self._present_in is not None:
            self._be_present()
        # Read the folder again, whatever the event says.
        names = self._children(self._inbox, watch=lambda _event: self._wake())
        strangers = [name for name in names if name not in self._downstream]
        return [
            *self._read(self._inbox, [name for name in names if name in self._downstream]),
            *(RawSignal(name, "", 0, _ANY_VERSION) for name in strangers[:MAX_STRANGERS]),
        ]

    def remove(self, found: RawSignal) -> None:
        try:
            self._delete(f"{self._inbox}/{found.stage}", found.version)
        except BadVersionError:  # a newer one, which calls no watch, for the node was there
            self._wake()

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        if names is None:
            names = sorted(self._children(self._states))[:MAX_STATES]
        return self._read(self._states, names)

    def stop(self) -> None:
        self._session.remove_listener(self._connected)
        if self._is_ours(self._session.request("exists", self._state)):
            self._delete(self._state)

    def __repr__(self) -> str:
        return repr(self._session)

    def _is_ours(self, stat: Any) -> bool:
        return stat is not None and bool(stat.ephemeralOwner == self._session.id)

    def _children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """The names under a node, which is made if it is not there."""
        for _ in range(_ATTEMPTS):
            try:
                names: list[str] = self._session.request("get_children", path, watch=watch)
            except NoNodeError:
                self._make(path)
            else:
                return names
        raise self._contended(path)

    def _be_present(self) -> None:
        """Make the presence one of this session."""
        session_id = self._session.id
        stat = self._session.request("exists", self._presence)
        if self._is_ours(stat):
            self._present_in = session_id
            return
        if stat is not None and self._present_in == session_id:
            _LOG.warning(
                "The node %s in ZooKeeper at %s was made by somebody else and is replaced; see"
                " that the stage runs once, and give the flow a user and a password.",
                self._presence,
                self._session.settings.servers,
            )
        self._write(self._presence, b"", [self._set, self._create])
        self._present_in = session_id

    def _read(self, folder: str, names: Iterable[str]) -> list[RawSignal]:
        """Return the contents of the nodes of these names that are still there."""
        submitted = [
            (
                name,
                self._session.submit("get", f"{folder}/{name}"),
                self._session.submit("exists", f"{self._presences}/{name}"),
            )
            for name in names
        ]
        found = (self._raw(folder, *each) for each in submitted)
        return [each for each in found if each is not None]

    def _raw(self, folder: str, name: str, node: Any, present: Any) -> RawSignal | None:
        try:
            data, stat = self._session.result(f"{folder}/{name}", node)
            presence = self._session.result(f"{self._presences}/{name}", present)
        except NoNodeError:
            return None
        except UnreachableError:
            raise
        except SignalError as error:
            return RawSignal(name, "", 0, _ANY_VERSION, fault=str(error))
        fault = None
        if not stat.ephemeralOwner:
            fault = _NOT_EPHEMERAL
        elif presence is None or presence.ephemeralOwner != stat.ephemeralOwner:
            fault = _NOT_ITS
        return RawSignal(name, data or b"", self._age_ms(stat.mtime), stat.version, fault)

    def _age_ms(self, written_ms: int) -> int:
        try:
            return self._now_ms() - written_ms
        except UnreachableError:
            raise
        except (SignalError, NoNodeError):
            return 0  # a stage that may not write cannot know

    def _now_ms(self) -> int:
        """The servers' time: when they last wrote a node for this stage, and since then ours."""
        clock = self._clock
        if clock is None or time.monotonic() - clock[1] > CLOCK_S:
            self._make(self._inbox)
            stat = self._session.request("set", self._inbox, b"")
            self._clock = clock = stat.mtime, time.monotonic()
        then_ms, then_s = clock
        return int(then_ms + (time.monotonic() - then_s) * 1000)

    def _write(self, path: str, data: bytes, writes: list[Callable[[str, bytes], bool]]) -> None:
        """Have this session's node at a path hold this, trying one write after the other."""
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
        except NoChildrenForEphemeralsError:  # no stage has made such a folder
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
        except SignalError:  # it is not this process's to change
            stat = None
        if not self._is_ours(stat):  # or it would end with another session
            self._delete(path)
            return False
        return True

    def _delete(self, path: str, version: int = _ANY_VERSION) -> None:
        try:
            self._session.request("delete", path, version)
        except NoNodeError:
            pass  # it is gone, as it should be
        except NotEmptyError as error:
            raise SignalError(
                f"The node {path} in ZooKeeper at {self._session.settings.servers} cannot be"
                " deleted, for it has children; remove it."
            ) from error

    def _make(self, path: str) -> None:
        try:
            self._session.request("ensure_path", path, acl=self._session.acl)
        except (NoNodeError, NoChildrenForEphemeralsError) as error:
            raise self._contended(path) from error

    def _contended(self, path: str) -> SignalError:
        return SignalError(
            f"The node {path} in ZooKeeper at {self._session.settings.servers} is made and deleted"
            " by somebody else all the time; see that each stage runs once."
        )

    def _connected(self) -> None:
        self._clock = None  # it may be another server's now
        self._wake()
