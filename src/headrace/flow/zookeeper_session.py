"""Connection to ZooKeeper that reconnects by itself; the stages of a process share it."""

import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

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
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from headrace.certificates import client_context
from headrace.core.timing import WarnOnce
from headrace.errors import SignalError
from headrace.flow.signal_codec import UnreachableError
from headrace.flow.stage import ZookeeperSettings

_MAX_BACKOFF_S: Final = 1.0
"""Maximum wait between two attempts to connect (s)."""

_LOG_AFTER_S: Final = 1.0
"""Time without a connection after which an outage is logged (s)."""

_CHECK_S: Final = 0.2
"""Interval between two checks of the connection (s)."""

_CLOSE_S: Final = 5.0
"""Maximum time that `ZookeeperSession.close` waits for the end of the session (s)."""

_LOG: Final = logging.getLogger("headrace.flow")

# kazoo logs every attempt to connect, and the password at level DEBUG.
_KAZOO_LOG: Final = logging.getLogger("headrace.flow.kazoo")
_KAZOO_LOG.addFilter(lambda line: line.levelno >= logging.ERROR)

_ANSWERS: Final = (
    NoNodeError,
    NodeExistsError,
    BadVersionError,
    NotEmptyError,
    NoChildrenForEphemeralsError,
)
"""Exceptions of kazoo that callers of `result` handle: they are responses to a valid request."""

_LOST: Final = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, KazooTimeoutError)


class ZookeeperSession:
    """Connection of a process to ZooKeeper, which is restored after any loss. Thread-safe.

    If a session expires, a new session begins: the ephemeral nodes of the old session are gone, and
    the listeners are called. If a client has no connection for twice the session timeout, a new
    client replaces it. This helps after a failure within the client, and after servers have lost
    their data, because such servers refuse clients with newer transaction ids. Outages and
    reconnections are logged.

    ::

        settings = ZookeeperSettings("zk1:2181,zk2:2181", user="flows", password=secret)
        with ZookeeperSession(settings) as session:
            secret = ledger.signals.secret("clicks")
            signals = zookeeper_signals(session, "clicks", "enrich", ["store"], secret=secret)

    Args:
        settings: The servers and the credentials.
        answer_timeout_s: The time to wait for a response (s). Default: 3. Too short: a busy server
            counts as unreachable. Too long: a stage signals late.
        make_client: A function that creates a kazoo client.

    Raises:
        SetupError: The package kazoo is not installed.
        OptionError: The certificates cannot be read.
        SignalError: No server responds, and the setting ``unreachable`` is ``refuse``.
    """

    def __init__(
        self,
        settings: ZookeeperSettings,
        *,
        answer_timeout_s: float = 3.0,
        make_client: Callable[..., KazooClient] = KazooClient,
    ) -> None:
        self.settings: Final = settings
        self._where = f"ZooKeeper at {settings.servers}"
        self._answer_timeout_s = answer_timeout_s
        self._make_client = make_client
        files = settings.ca_file, settings.certificate_file, settings.key_file
        self._tls = client_context(self._where, *files) if settings.tls else None
        secret = secrets.token_hex(16)
        user, password = settings.user or f"headrace-{secret}", settings.password or secret
        self._credentials = user, password
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        self._done = threading.Event()
        self._unreachable_since_s: float | None = time.monotonic()
        self._outage = WarnOnce(_LOG)
        self._session_id: int | None = None
        self._client = self._new_client()
        self._client_since_s = time.monotonic()
        connected = self._client.start_async()
        if settings.unreachable == "refuse" and not connected.wait(settings.start_timeout_s):
            _end(self._client)
            raise SignalError(
                f"{self._where} did not respond within {settings.start_timeout_s:g} s; check that"
                " it runs and can be reached, or set unreachable to 'wait'."
            )
        self._keeper = threading.Thread(target=self._keep, name="headrace-zookeeper", daemon=True)
        self._keeper.start()

    @property
    def is_connected(self) -> bool:
        """Whether the process is connected to a server at present."""
        return self._unreachable_since_s is None

    @property
    def id(self) -> int | None:
        """Id of the current session; None before the first session. A new session has a new id."""
        return self._session_id

    @property
    def acl(self) -> list[Any]:
        """Access rights (ACL) of the folder nodes that this process creates."""
        if self.settings.user is None:
            return list(OPEN_ACL_UNSAFE)
        return [make_digest_acl(*self._credentials, all=True)]

    @property
    def own_acl(self) -> list[Any]:
        """Access rights (ACL) of the signal and state nodes that this process creates.

        Without a user, all clients may read a node, and only this process may change it. With a
        user, all stages have the user's rights. Any client that may write the parent node can
        replace the node, but the new node belongs to another session.
        """
        own = make_digest_acl(*self._credentials, all=True)
        if self.settings.user is not None:
            return [own]
        return [own, make_acl(ANYONE_ID_UNSAFE.scheme, ANYONE_ID_UNSAFE.id, read=True)]

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Register a function that is called after each new connection, and must not block."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Unregister a function that `add_listener` has registered."""
        with self._lock:
            self._listeners.remove(listener)

    def submit(self, method: str, path: str, *args: Any, **options: Any) -> AsyncResult:
        """Start a request for the node at ``path``; `result` waits for the response.

        ``method`` is the name of kazoo's method, such as ``get``. Raise `UnreachableError` if there
        is no connection.
        """
        if not self.is_connected:  # kazoo would otherwise queue the request until it reconnects
            raise UnreachableError(f"{self._where} is unreachable.")
        return getattr(self._client, f"{method}_async")(path, *args, **options)

    def result(self, path: str, pending: AsyncResult) -> Any:
        """Wait for the response to a request for the node at ``path``.

        Raises:
            UnreachableError: No response arrived, so the outcome of the request is unknown.
            KazooException: The response is `NoNodeError`, `NodeExistsError`, `BadVersionError`,
                `NotEmptyError` or `NoChildrenForEphemeralsError`.
            SignalError: The server refuses the request.
        """
        try:
            return pending.get(timeout=self._answer_timeout_s)
        except _ANSWERS:
            raise
        except _LOST as error:
            raise UnreachableError(
                f"{self._where} did not respond to a request for the node {path}."
            ) from error
        except NoAuthError as error:
            user = self.settings.user
            whom = "a client without a user" if user is None else f"user {user!r}"
            raise SignalError(
                f"{self._where} denies {whom} access to the node {path}; use the same user and"
                " password for all stages of the flow, or delete the node."
            ) from error
        except KazooException as error:
            raise SignalError(f"{self._where} refuses a request for {path}: {error!r}.") from error
        except Exception as error:  # after any other error in kazoo, it is unusable
            raise UnreachableError(
                f"{self._where} cannot be used because of an unexpected error: {error!r}."
            ) from error

    def request(self, method: str, path: str, *args: Any, **options: Any) -> Any:
        """Send a request and return its response; errors as in `submit` and `result`."""
        return self.result(path, self.submit(method, path, *args, **options))

    def close(self) -> None:
        """End the session; ZooKeeper then deletes all nodes that this process has published."""
        self._done.set()
        self._keeper.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ZookeeperSession({self.settings.hosts!r})"

    def _new_client(self) -> KazooClient:
        client = self._make_client(
            hosts=self.settings.servers,
            timeout=self.settings.session_timeout_s,
            auth_data=[("digest", ":".join(self._credentials))],
            connection_retry=KazooRetry(max_tries=-1, max_delay=_MAX_BACKOFF_S),
            handler=None if self._tls is None else TlsHandler(self._tls),
            logger=_KAZOO_LOG,
        )
        client.add_listener(lambda state: self._follow(client, state))
        return client

    def _follow(self, client: KazooClient, state: str) -> None:
        """Process a change of the connection's state; kazoo waits until this method returns."""
        with self._lock:
            if client is not self._client:
                return
            if state != KazooState.CONNECTED:
                self._unreachable_since_s = self._unreachable_since_s or time.monotonic()
                return
            self._log_reconnection(client.client_id[0])
            self._session_id = client.client_id[0]
            self._unreachable_since_s = None
            for listener in self._listeners:
                listener()

    def _keep(self) -> None:
        while not self._done.wait(_CHECK_S):
            since_s, now_s = self._unreachable_since_s, time.monotonic()
            if since_s is None:
                continue
            if now_s - since_s >= _LOG_AFTER_S:
                self._warn_unreachable()
            if now_s - max(since_s, self._client_since_s) >= 2 * self.settings.session_timeout_s:
                self._replace_client()
        _end(self._client)

    def _replace_client(self) -> None:
        with self._lock:
            if self._unreachable_since_s is None:  # just reconnected
                return
            old, self._client = self._client, self._new_client()
            self._client_since_s = time.monotonic()
            self._client.start_async()
        _end(old)

    def _warn_unreachable(self) -> None:
        with self._lock:
            if self._unreachable_since_s is not None:  # not just reconnected
                self._outage.warn(
                    "%s is unreachable: stages cannot exchange signals, and throttling ends when"
                    " its lease expires. Headrace tries to reconnect.",
                    self._where,
                )

    def _log_reconnection(self, session_id: int) -> None:
        if self._outage.clear() is not None and self._unreachable_since_s is not None:
            lasted_s = time.monotonic() - self._unreachable_since_s
            _LOG.info("%s is reachable again, after %.1f s.", self._where, lasted_s)
        if self._session_id not in (None, session_id):
            _LOG.info(
                "The session with %s was lost; the stages send their signals again.", self._where
            )


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except KazooException as error:  # the connection does not end within the session timeout
        _LOG.debug("A connection to ZooKeeper could not be closed: %r", error)


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Handler for kazoo that connects over TLS and verifies host names.

    kazoo's own TLS handler trusts the system's authorities besides the configured authority, and
    leaks sockets if a server's certificate is refused. This handler reads the certificates only
    once.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_others: Any
    ) -> ssl.SSLSocket:
        """Return a new TLS connection to a server; kazoo calls this method."""
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(plain, server_hostname=hostname)  # on failure, closes it
