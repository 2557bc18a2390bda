"""What can be set of an MQTT receiver, checked when it is set."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.errors import OptionError
from headrace.receivers.settings import require_above_zero, require_at_least

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_WEEK_S: Final = 7 * 24 * 3600
_MOST_SESSION_S: Final = 2**32 - 1
_MOST_UNACKNOWLEDGED: Final = 65_535


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """How records are received from an MQTT 5 broker.

    Attributes:
        url: The broker: ``mqtt://host``, or ``mqtts://host`` for TLS; with ``:port`` if it is not
            1883, or 8883 with TLS.
        topics: What to subscribe to, 1 or more filters, such as ``sensors/#``.
        client_id: What the broker knows this receiver's session by; 1 or more characters. It must
            be the same after a restart, and no other client of the broker may have it.
        username: As whom to connect. Default: None, for brokers that let in everybody.
        password: What the user must show.
        ca_file: The certificates of authorities to trust (PEM). Default: None, the system's own.
            Only with TLS, as the two that follow.
        certificate_file: This receiver's own certificate (PEM), for brokers that ask for one.
        key_file: The key of that certificate, where it is in another file.
        receive_maximum: How many messages the broker may send before one of them must be
            acknowledged; 1 to 65535. Default: 1000. Too large, and so many messages take memory;
            too small, and throughput suffers: no more than so many are taken within a block
            interval and a sync. The broker may go by a lower one of its own.
        session_expiry_s: How long the broker keeps the session, and what it holds for it, while
            this receiver is away (s); 1 to 4294967295, which is for ever. Default: a week.
        keepalive_s: After how long without a word the broker is asked whether it is there (s); 1 to
            65535. Default: 30.
        reconnect_s: How long to wait before connecting again (s); above 0. Default: 0.5; twice as
            long after each time that was of no avail, up to 30.

    Raises:
        OptionError: A value is out of its range, or does not go with another.
    """

    url: str
    topics: tuple[str, ...]
    client_id: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    receive_maximum: int = 1_000
    session_expiry_s: int = _WEEK_S
    keepalive_s: int = 30
    reconnect_s: float = 0.5

    def __post_init__(self) -> None:
        _require_broker(self.url)
        if not self.topics or not all(self.topics):
            raise OptionError("No topic is given, or an empty one; name one such as 'sensors/#'.")
        if not self.client_id:
            raise OptionError("client_id is empty; it must be 1 or more characters.")
        if self.password is not None and self.username is None:
            raise OptionError("A password is given without a user; name the user too.")
        if self.key_file and not self.certificate_file:
            raise OptionError("A key is given without its certificate; name that file too.")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise OptionError(
                f"Certificates are given, and {self.url!r} is without TLS; use mqtts."
            )
        _require_within("receive_maximum", self.receive_maximum, _MOST_UNACKNOWLEDGED)
        _require_within("session_expiry_s", self.session_expiry_s, _MOST_SESSION_S)
        _require_within("keepalive_s", self.keepalive_s, 65_535)
        require_above_zero("reconnect_s", self.reconnect_s, "s")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted, and the broker's certificate checked."""
        return self._parts.scheme == "mqtts"

    @property
    def host(self) -> str:
        """The broker's name or address."""
        return self._parts.hostname or ""

    @property
    def port(self) -> int:
        """The broker's port."""
        return self._parts.port or _PORTS[self._parts.scheme]

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)


def _require_broker(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "The broker's URL has a user or a password in it, where others can read it; give them"
            " by themselves."
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in _PORTS or not parts.hostname or port == 0 or rest:
        raise OptionError(
            f"The broker's URL is {url!r}; it must be mqtt://host or mqtts://host, with :port or"
            " without."
        )


def _require_within(name: str, value: int, most: int) -> None:
    require_at_least(name, value, 1)
    if value > most:
        raise OptionError(f"{name} is {value}; it must be {most} or less.")
