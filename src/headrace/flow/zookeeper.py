"""A session with ZooKeeper that comes back by itself, shared by the stages of a process."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from headrace.certificates import client_context
from headrace.errors import SetupError, SignalError
from headrace.flow.carrier import AwayError
from headrace.flow.zookeeper_settings import ZookeeperSettings

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        BadVersionError,
        ConnectionLoss,
        KazooException,
        NoAuthError,
        NoChildrenForEphemeralsError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
        OperationTimeoutError,
        SessionExpiredError,
    )
    from kazoo.handlers.threading import AsyncResult, KazooTimeoutError
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
    from kazoo.security import ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE, make_acl, make_digest_acl

    from headrace.flow.zookeeper_tls import TlsHandler
except ImportError as error:
    raise SetupError(
        "Signals over ZooKeeper need the package kazoo, which is not installed; run: "
        "pip install 'headrace[zookeeper]'."
    ) from error

ANSWER_S: Final = 3.0
"""How long an answer is waited for. A server that takes longer counts as away."""

_LONGEST_WAIT_S: Final = 1.0
"""Between two tries to connect."""

_TELL_S: Final = 1.0
"""A connection that is made again within this time is not told of."""

_LOOK_S: Final = 0.2
_CLOSE_S: Final = 5.0

_LOG: Final = logging.getLogger("headrace.flow")

# kazoo's own lines would tell of every try to connect, and show the password on level DEBUG.
_KAZOO_LOG: Final = logging.getLogger("headrace.flow.kazoo")
_KAZOO_LOG.addFilter(lambda line: line.levelno >= logging.ERROR)

ANSWERS: Final = (
    NoNodeError,
    NodeExistsError,
    BadVersionError,
    NotEmptyError,
    NoChildrenForEphemeralsError,
)
"""Errors that answer a question: how things stand."""

_AWAY: Final = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, KazooTimeoutError)


class ZookeeperSession:
    """What a process has in common with ZooKeeper: one connection, whatever becomes of it.

    A connection that is lost is made again, and a session that has expired is begun anew: the
    ephemeral nodes of the old one are gone then, and whoever listens is told. One that could not be
    used for twice its timeout is given up, for it would have expired; so neither servers that have
    lost their data, and refuse who knows more than they, nor a client that has ended in an error,
    are the end of it. The log says when ZooKeeper is away, and when it is back. Its methods can be
    called from any thread.

    ::

        settings = ZookeeperSettings("zk1:2181,zk2:2181", user="flows", password=secret)
        with ZookeeperSession(settings) as session:
            signals = zookeeper_signals(session, "clicks", "enrich", downstream=["store"])

    Args:
        settings: See `ZookeeperSettings`.

    Raises:
        SetupError: The package kazoo is not installed.
        OptionError: The certificates cannot be read.
        SignalError: No server answers, and `unreachable` is ``refuse``.
    """

    def __init__(self, settings: ZookeeperSettings) -> None:
        self.settings: Final = settings
        self._tls = (
            client_context(
                f"ZooKeeper at {settings.servers}",
                settings.ca_file,
                settings.certificate_file,
                settings.key_file,
            )
            if settings.tls
            else None
        )
        secret = secrets.token_hex(16)
        user, password = settings.user or f"headrace-{secret}", settings.password or secret
        self._credentials = user, password
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        self._done = threading.Event()
        self._away_since_s: float | None = time.monotonic()
        self._is_told = False
        self._session_id: int | None = None
        self._client = self._new_client()
        self._start()
        self._keeper = threading.Thread(target=self._keep, name="headrace-zookeeper", daemon=True)
        self._keeper.start()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to a server at present."""
        return self._away_since_s is None

    @property
    def id(self) -> int | None:
        """The session's; another one after a session was lost, and None while there was none."""
        return self._session_id

    @property
    def acl(self) -> list[Any]:
        """Who may do what with the folders that are made."""
        if self.settings.user is None:
            return list(OPEN_ACL_UNSAFE)
        return [make_digest_acl(*self._credentials, all=True)]

    @property
    def own_acl(self) -> list[Any]:
        """Who may do what with what this process says: all may read it, and only it may change it.

        With a user, all stages have its rights. Whoever may write the folder can delete a node and
        make another one; that one is not of this process's session.
        """
        own = make_digest_acl(*self._credentials, all=True)
        if self.settings.user is None:
            return [own, make_acl(*_anyone(), read=True)]
        return [own]

    def listen(self, listener: Callable[[], None]) -> None:
        """Have this called when a connection was made; it must not wait for anything."""
        with self._lock:
            self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Do not call this any more."""
        with self._lock:
            self._listeners.remove(listener)

    def begin(self, request: Callable[[KazooClient], AsyncResult]) -> AsyncResult:
        """Ask something, for the answer to be waited for with `answer`.

        Args:
            request: Calls one of the client's asynchronous methods, and returns what that returns.

        Raises:
            AwayError: There is no connection.
        """
        if not self.is_connected:  # or kazoo would keep it until there is one
            raise AwayError(f"ZooKeeper at {self.settings.servers} is away.")
        return request(self._client)

    def answer(self, path: str, pending: AsyncResult) -> Any:
        """Wait for the answer to something about the node at this path.

        Raises:
            AwayError: There is none, so nobody knows whether it was done.
            NoNodeError, NodeExistsError and the others of `ANSWERS`: That is the answer.
            SignalError: The server refuses.
        """
        servers = self.settings.servers
        try:
            return pending.get(timeout=ANSWER_S)
        except ANSWERS:
            raise
        except _AWAY as error:
            raise AwayError(f"ZooKeeper at {servers} did not answer for {path}.") from error
        except NoAuthError as error:
            raise SignalError(
                f"ZooKeeper at {servers} does not give {self._user()} the right to {path}; give"
                " all stages of the flow the same user and password, or remove that node."
            ) from error
        except KazooException as error:
            raise SignalError(
                f"ZooKeeper at {servers} refuses what was asked of {path}: {error!r}."
            ) from error
        except Exception as error:  # whatever kazoo stumbled over: its connection is not to be used
            raise AwayError(f"ZooKeeper at {servers} was not understood: {error!r}.") from error

    def ask(self, path: str, request: Callable[[KazooClient], AsyncResult]) -> Any:
        """Ask something about the node at this path, and wait for the answer.

        Raises:
            AwayError, SignalError, NoNodeError and others: See `answer`.
        """
        return self.answer(path, self.begin(request))

    def close(self) -> None:
        """End the session: what this process shows is gone."""
        self._done.set()
        self._keeper.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ZookeeperSession({self.settings.hosts!r})"

    def _new_client(self) -> KazooClient:
        settings = self.settings
        client = KazooClient(
            hosts=settings.servers,
            timeout=settings.session_timeout_s,
            auth_data=[("digest", ":".join(self._credentials))],
            connection_retry=KazooRetry(max_tries=-1, max_delay=_LONGEST_WAIT_S),
            handler=None if self._tls is None else TlsHandler(self._tls),
            logger=_KAZOO_LOG,
        )
        client.add_listener(lambda state: self._hear(client, state))
        return client

    def _start(self) -> None:
        self._client_since_s = time.monotonic()
        connected = self._client.start_async()
        settings = self.settings
        if settings.unreachable == "refuse" and not connected.wait(settings.start_timeout_s):
            _end(self._client)
            raise SignalError(
                f"ZooKeeper at {settings.servers} did not answer within"
                f" {settings.start_timeout_s:g} s; see that it runs and can be reached, or set"
                " unreachable to 'wait'."
            )

    def _hear(self, client: KazooClient, state: str) -> None:
        """Follow the connection; called by kazoo, which waits for it."""
        with self._lock:
            if client is not self._client:
                return
            if state != KazooState.CONNECTED:
                self._away_since_s = self._away_since_s or time.monotonic()
                return
            self._tell_it_is_back(client.client_id[0])
            self._session_id = client.client_id[0]
            self._away_since_s = None
            for listener in self._listeners:
                listener()

    def _keep(self) -> None:
        while not self._done.wait(_LOOK_S):
            since_s, now_s = self._away_since_s, time.monotonic()
            if since_s is None:
                continue
            if now_s - since_s >= _TELL_S:
                self._tell_it_is_away()
            if now_s - max(since_s, self._client_since_s) >= 2 * self.settings.session_timeout_s:
                self._give_up()
        _end(self._client)

    def _give_up(self) -> None:
        with self._lock:
            if self._away_since_s is None:  # it has just come back
                return
            old, self._client = self._client, self._new_client()
            self._client_since_s = time.monotonic()
            self._client.start_async()
        _end(old)

    def _tell_it_is_away(self) -> None:
        with self._lock:
            if self._is_told or self._away_since_s is None:
                return
            self._is_told = True
        _LOG.warning(
            "ZooKeeper at %s is away: stages can neither signal nor be signalled, and what is in"
            " force ends with its lease. It is tried again.",
            self.settings.servers,
        )

    def _tell_it_is_back(self, session_id: int) -> None:
        if self._is_told and self._away_since_s is not None:
            away_s = time.monotonic() - self._away_since_s
            _LOG.info("ZooKeeper at %s is there after %.1f s.", self.settings.servers, away_s)
        self._is_told = False
        if self._session_id not in (None, session_id):
            _LOG.info(
                "The session with ZooKeeper at %s was lost; what stages say is said anew.",
                self.settings.servers,
            )

    def _user(self) -> str:
        user = self.settings.user
        return "a client without a user" if user is None else f"user {user!r}"


def _anyone() -> tuple[str, str]:
    return ANYONE_ID_UNSAFE.scheme, ANYONE_ID_UNSAFE.id


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except KazooException as error:  # a connection that does not end within the session's timeout
        _LOG.debug("A connection to ZooKeeper did not end: %r", error)
