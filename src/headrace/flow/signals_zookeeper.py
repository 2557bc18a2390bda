"""Signals over ZooKeeper.

::

    /headrace/<flow>/taskmessage/<receiver>/<sender>    the newest assertion, until it is taken
    /headrace/<flow>/taskstate/<stage>                  what a stage shows, kept and updated
    /headrace/<flow>/taskpresence/<stage>               that its session is the stage's

All are ephemeral, so what a stage has said is gone soon after it: at once if it ends in good
order, and else when its session expires. Anybody may read them, and only who made them may change
them. An assertion or a state counts only if it is of the session that the stage's presence is of:
servers say whose an ephemeral node is, and nobody can make one for another session. A stage whose
presence is not its own makes it anew, and says so.
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
from headrace.flow.carrier import AwayError, Found
from headrace.flow.outbox import Item
from headrace.flow.signals import Signals
from headrace.flow.stage_signals import StageSignals
from headrace.flow.wire import text_of
from headrace.flow.zookeeper import ZookeeperSession

LOOK_S: Final = 5.0
"""How often a stage looks for what has come although no watch says that something has."""

CLOCK_S: Final = 60.0
"""How long to go by what the servers' clock was asked last."""

MOST_STRANGERS: Final = 20
"""How many nodes that are not from a stage's downstreams are removed at one look."""

MOST_STATES: Final = 10_000
"""How many stages' states are read at most."""

_ROUNDS: Final = 3
"""How often to try what others may undo at the same time."""

_ANY: Final = -1
"""Whichever version a node has, where it was not read."""

_NOT_EPHEMERAL: Final = "It would stay when its stage is gone, as nothing does that a stage writes."
_NOT_ITS: Final = "It is not of the session of that stage."

_LOG: Final = logging.getLogger("headrace.flow")

_Way = Callable[[str, bytes], bool]


def zookeeper_signals(
    session: ZookeeperSession, flow: str, stage: str, downstream: Collection[str] = ()
) -> Signals:
    """Take part in a flow's signals over ZooKeeper.

    A signal is there within milliseconds. The stages of a process best share a session.

    Args:
        session: It must stay open until the signals are closed.
        flow: The flow's name.
        stage: The name of the stage that takes part; of one name there is to be one.
        downstream: The stages directly after it, which may press it.

    Raises:
        OptionError: A name is none.
    """
    return StageSignals(
        _ZookeeperCarrier(session, flow, stage, downstream), flow, stage, downstream
    )


class _ZookeeperCarrier:
    """See `headrace.flow.carrier.Carrier`."""

    look_every_s = LOOK_S

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
        self._wake: Callable[[], None] = _nobody
        self._clock: tuple[int, float] | None = None

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def session(self) -> int | None:
        return self._session.id

    def begin(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._session.listen(self._connected)

    def put(self, item: Item) -> None:
        data = text_of(item).encode("ascii")
        self._be_present()
        if isinstance(item, PressureSignal):
            path = f"{self._messages}/{item.receiver}/{item.sender}"
            self._write(path, data, [self._create, self._set])
        else:
            self._write(self._state, data, [self._set, self._create])

    def look(self) -> Sequence[Found]:
        if self._present_in is not None:
            self._be_present()
        names = self._children(self._inbox, watch=self._changed)
        strangers = [name for name in names if name not in self._downstream]
        return [
            *self._read(self._inbox, [name for name in names if name in self._downstream]),
            *(Found(name, "", 0, _ANY) for name in strangers[:MOST_STRANGERS]),
        ]

    def drop(self, found: Found) -> None:
        try:
            self._delete(f"{self._inbox}/{found.stage}", found.mark)
        except BadVersionError:  # a newer one, of which no watch tells, for the node was there
            self._wake()

    def states(self, names: Collection[str] | None = None) -> Sequence[Found]:
        if names is None:
            names = sorted(self._children(self._states))[:MOST_STATES]
        return self._read(self._states, names)

    def end(self) -> None:
        self._session.forget(self._connected)
        stat = self._session.ask(self._state, lambda client: client.exists_async(self._state))
        if stat is not None and stat.ephemeralOwner == self._session.id:
            self._delete(self._state)

    def __repr__(self) -> str:
        return repr(self._session)

    def _children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """The names under a node, which is made if it is not there."""
        for _ in range(_ROUNDS):
            try:
                names: list[str] = self._session.ask(
                    path, lambda client: client.get_children_async(path, watch=watch)
                )
            except NoNodeError:
                self._make(path)
            else:
                return names
        raise self._contended(path)

    def _be_present(self) -> None:
        """See that the presence is of this session."""
        session_id = self._session.id
        stat = self._session.ask(self._presence, lambda client: client.exists_async(self._presence))
        if stat is not None and stat.ephemeralOwner == session_id:
            self._present_in = session_id
            return
        if stat is not None and self._present_in == session_id:
            _LOG.warning(
                "The node %s in ZooKeeper at %s was made by somebody else and is made anew; see"
                " that the stage runs once, and give the flow a user and a password.",
                self._presence,
                self._session.settings.servers,
            )
        self._write(self._presence, b"", [self._set, self._create])
        self._present_in = session_id

    def _read(self, folder: str, names: Iterable[str]) -> list[Found]:
        """What the nodes of these names hold that are still there."""
        paths = {name: f"{folder}/{name}" for name in names}
        asked = {
            name: (
                self._session.begin(_get(path)),
                self._session.begin(_exists(f"{self._presences}/{name}")),
            )
            for name, path in paths.items()
        }
        return [
            found
            for name, (pending, present) in asked.items()
            if (found := self._found(paths[name], name, pending, present)) is not None
        ]

    def _found(self, path: str, name: str, pending: Any, present: Any) -> Found | None:
        try:
            data, stat = self._session.answer(path, pending)
            presence = self._session.answer(f"{self._presences}/{name}", present)
        except NoNodeError:
            return None
        except AwayError:
            raise
        except SignalError as error:
            return Found(name, "", 0, _ANY, fault=str(error))
        fault = None
        if not stat.ephemeralOwner:
            fault = _NOT_EPHEMERAL
        elif presence is None or presence.ephemeralOwner != stat.ephemeralOwner:
            fault = _NOT_ITS
        return Found(name, data or b"", self._age_ms(stat.mtime), stat.version, fault)

    def _age_ms(self, written_ms: int) -> int:
        try:
            return self._now_ms() - written_ms
        except AwayError:
            raise
        except (SignalError, NoNodeError):
            return 0  # who may not write cannot know

    def _now_ms(self) -> int:
        """The servers' time: when they last wrote a node because we asked, and since then ours."""
        clock = self._clock
        if clock is None or time.monotonic() - clock[1] > CLOCK_S:
            self._make(self._inbox)
            stat = self._session.ask(self._inbox, lambda client: client.set_async(self._inbox, b""))
            self._clock = clock = stat.mtime, time.monotonic()
        then_ms, then_s = clock
        return int(then_ms + (time.monotonic() - then_s) * 1000)

    def _write(self, path: str, data: bytes, ways: list[_Way]) -> None:
        """Have this session's node at a path hold this, trying one way after the other."""
        if not any(way(path, data) for way in ways * _ROUNDS):
            raise self._contended(path)

    def _create(self, path: str, data: bytes) -> bool:
        def create(client: Any) -> Any:
            return client.create_async(path, data, acl=self._session.own_acl, ephemeral=True)

        try:
            self._session.ask(path, create)
        except NodeExistsError:
            return False
        except NoNodeError:
            self._make(path.rpartition("/")[0])
            return False
        except NoChildrenForEphemeralsError:  # nobody of ours has made such a folder
            self._delete(path.rpartition("/")[0])
            return False
        return True

    def _set(self, path: str, data: bytes) -> bool:
        try:
            stat = self._session.ask(path, lambda client: client.set_async(path, data))
        except NoNodeError:
            return False
        except AwayError:
            raise
        except SignalError:  # it is not this process's to change
            self._delete(path)
            return False
        if stat.ephemeralOwner == self._session.id:
            return True
        self._delete(path)  # it would end with another session
        return False

    def _delete(self, path: str, version: int = _ANY) -> None:
        try:
            self._session.ask(path, lambda client: client.delete_async(path, version))
        except NoNodeError:
            pass  # it is gone, as it should be
        except NotEmptyError as error:
            raise SignalError(
                f"The node {path} in ZooKeeper at {self._session.settings.servers} cannot be"
                " deleted, for it has children; remove it."
            ) from error

    def _make(self, path: str) -> None:
        acl = self._session.acl
        try:
            self._session.ask(path, lambda client: client.ensure_path_async(path, acl=acl))
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

    def _changed(self, _event: Any) -> None:
        """Whatever has happened, the truth is to be read again."""
        self._wake()


def _get(path: str) -> Callable[[Any], Any]:
    return lambda client: client.get_async(path)


def _exists(path: str) -> Callable[[Any], Any]:
    return lambda client: client.exists_async(path)


def _nobody() -> None:
    """Wakes nobody: nobody is there yet."""
