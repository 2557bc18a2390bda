"""Settings of an intake and of receivers, validated on construction."""

import re
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from headrace.core.options import require_number, require_whole
from headrace.errors import OptionError
from headrace.journal.receivers.option import option

MIB: Final = 1024 * 1024
_CONNECTION_BYTES: Final = 80 * 1024
_TLS_BYTES: Final = 256 * 1024
_FEWEST_CONNECTIONS: Final = 16
_MOST_TOPIC_BYTES: Final = 65_535
_MQTT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """Limits of an intake: gathering of records into blocks, and memory.

    Attributes:
        block_interval_ms: The longest that a record waits for its block to be begun while no other
            is being written (ms); above 0. Default: 200. In a directory this applies only to
            records without a waiting sender, such as lines over TCP without acknowledgements. In
            an object store or HDFS, where each block is a request, it applies to all records. Too
            large, a crash loses more unacknowledged records, or acknowledgements come late; too
            small, there are many small blocks.
        block_bytes: The size at which a block is written at once (bytes in memory); 1 or more.
            Default: 8 MiB. Too large, tasks that read a block each are uneven; too small, the sync
            of each block costs throughput.
        max_memory_bytes: What the receiver may take besides an idle one (bytes in memory), whatever
            senders do; at least four times ``block_bytes``. Default: 256 MiB. Records that are not
            durable, request bodies and connections have a quarter of the memory each, unfinished
            lines a sixteenth. Remembered message ids have 3/16: some 100 000 of 36 characters. The
            rest is for parsing. Too large, the machine may not have the memory; too small, senders
            wait during writes, or an id is forgotten before its sender repeats it.

    Raises:
        OptionError: A value is out of its range.
    """

    block_interval_ms: float = 200
    block_bytes: int = 8 * MIB
    # The sample has room for any block: the command checks both again, with the option's value.
    max_memory_bytes: int = field(
        default=256 * MIB, metadata=option("--max-memory-bytes", sample=2**62)
    )

    def __post_init__(self) -> None:
        require_number("block_interval_ms", self.block_interval_ms, "ms", above=True)
        require_whole("block_bytes", self.block_bytes, 1)
        if self.buffer_bytes < self.block_bytes:
            raise OptionError(
                f"max_memory_bytes is {self.max_memory_bytes}, less than four blocks of"
                f" {self.block_bytes} bytes; raise it, or lower block_bytes."
            )

    @property
    def buffer_bytes(self) -> int:
        """Most memory of records until they are durable, including waiting records (bytes)."""
        return self.max_memory_bytes // 4

    @property
    def bodies_bytes(self) -> int:
        """Most memory of all bodies while they are read and parsed (bytes)."""
        return self.max_memory_bytes // 4

    @property
    def unfinished_bytes(self) -> int:
        """Most memory of all senders' unfinished lines (bytes)."""
        return self.max_memory_bytes // 16

    @property
    def ids_bytes(self) -> int:
        """Most memory of remembered message ids (bytes)."""
        return self.max_memory_bytes * 3 // 16

    def connections(self, max_connections: int, *, is_secured: bool = False) -> int:
        """Return the number of connections that fit into memory, at most ``max_connections``.

        Each may take 80 KiB; 16 are always allowed. With TLS each takes 256 KiB more for asyncio's
        buffer: 195 of them fit into the default memory.
        """
        connection_bytes = _CONNECTION_BYTES + _TLS_BYTES * is_secured
        most = self.max_memory_bytes // 4 // connection_bytes
        return min(max_connections, max(_FEWEST_CONNECTIONS, most))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files of a listening receiver; without a certificate there is no TLS.

    The files are read when the receiver starts, and again when they change.

    Attributes:
        certificate_file: The receiver's certificate, then those that lead to its authority (PEM).
            Default: None, no TLS.
        key_file: The key of that certificate, without a passphrase, where it is in another file.
        client_ca_file: The authorities of which every sender must show a certificate (PEM).
            Default: None, senders need none.

    Raises:
        OptionError: A key or authorities are given without a certificate.
    """

    certificate_file: str | None = field(default=None, metadata=option("--tls-certificate"))
    key_file: str | None = field(default=None, metadata=option("--tls-key"))
    client_ca_file: str | None = field(default=None, metadata=option("--tls-client-ca"))

    def __post_init__(self) -> None:
        if self.certificate_file is None and (self.key_file or self.client_ca_file):
            raise OptionError(
                "A key or authorities of senders are given without the receiver's certificate; name"
                " that file too."
            )


class ListeningSettings(Protocol):
    """Settings of a receiver to which senders connect, with tokens and TLS."""

    @property
    def host(self) -> str:
        """The address to listen on."""
        ...

    @property
    def port(self) -> int:
        """The port; 0 for any free port."""
        ...

    @property
    def token(self) -> str | None:
        """The token that senders must send; None for no token."""
        ...

    @property
    def token_file(self) -> str | None:
        """A file with tokens, instead of a single token."""
        ...

    @property
    def tls(self) -> TlsFiles:
        """The TLS files of the receiver."""
        ...


TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"  # noqa: S105  # its name
_TOKEN: Final = option("--token-file", variable=TOKEN_VARIABLE, instead="token_file")


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """Settings of a receiver of lines over TCP.

    Attributes:
        host: Where to listen. Default: 127.0.0.1, this machine alone; 0.0.0.0 lets in other
            machines.
        port: The port; 0 for any that is free, which is logged. Default: 7070.
        acknowledge: Whether senders are answered ``ok <count>`` for every so many lines that are
            durable. Default: off. A sender that does not read the answers is disconnected.
        proxy_protocol: Whether each connection begins with a header of the PROXY protocol, of
            version 1 or 2, before TLS if there is any. The header is removed; a connection
            without a header is refused. Default: off.
        token: What the first line of a sender must be, after the word ``token`` and a space. None,
            the default, lets in everybody who can reach the port, unless there is a ``token_file``.
        token_file: A file with the tokens, each in a line of its own, after a name and a space. It
            is read when the receiver starts. `Tokens` describes its lines.
        tls: Its certificate. Default: none, the connections are not encrypted.
        check_json: Whether every line must be JSON. Default: off. Checking a line of 200 bytes
            takes half a microsecond for an object, two for any other value.
        id_field: The field of each line, which must be a JSON object then, that has its message id:
            a text of 1 to 200 characters, or a whole number. A line with a remembered id
            is acknowledged and not stored again. Default: None, lines have no ids.
        max_line_bytes: The longest line, its end not counted (bytes); 1 or more. Default: 1 MiB.
        line_s: How long a line may take from its first byte, and the first line from when its
            sender connected (s); above 0. Default: 30. Between lines a sender may be silent
            without a limit. An answer waits as long for a sender that does not read; then the
            connection is closed.
        max_connections: How many senders may be connected; 1 or more. Default: 800. Fewer if
            `IntakeSettings.max_memory_bytes` is too small. Further connections are refused.

    Raises:
        OptionError: A value is out of its range.
    """

    command_help: ClassVar[
        str
    ] = """Take lines over TCP, each a record; with --acknowledge, answer senders what is durable.

    While more come than the gate's query processes nothing is read, and senders block.
    With a token, a sender's first line must be 'token', a space and the token.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """

    host: str = field(default="127.0.0.1", metadata=option("--host"))
    port: int = field(default=7070, metadata=option("--port"))
    acknowledge: bool = field(default=False, metadata=option("--acknowledge"))
    proxy_protocol: bool = field(default=False, metadata=option("--proxy-protocol"))
    token: str | None = field(default=None, repr=False, metadata=_TOKEN)
    token_file: str | None = field(default=None, metadata=option("--token-file"))
    tls: TlsFiles = field(default_factory=TlsFiles)
    check_json: bool = False
    id_field: str | None = None
    max_line_bytes: int = MIB
    line_s: float = 30
    max_connections: int = 800

    def __post_init__(self) -> None:
        require_port(self.port)
        if self.id_field == "":
            raise OptionError("id_field is empty; it must be the name of a field of each line.")
        require_whole("max_line_bytes", self.max_line_bytes, 1)
        require_number("line_s", self.line_s, "s", above=True)
        require_whole("max_connections", self.max_connections, 1)
        require_tokens(self.token, self.token_file)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of a receiver of records over HTTP.

    Attributes:
        host: Where to listen. Default: 127.0.0.1, this machine alone; 0.0.0.0 lets in other
            machines.
        port: The port; 0 for any that is free, which is logged. Default: 8080.
        token: What senders must show as ``Authorization: Bearer <token>``. None, the default, lets
            in everybody who can reach the port, unless there is a ``token_file``.
        token_file: A file with the tokens, each in a line of its own, after a name and a space. It
            is read when the receiver starts. `Tokens` describes its lines.
        tls: Its certificate. Default: none, the connections are not encrypted.
        check_json: Whether each line of NDJSON must be JSON. Default: on. Checking a line
            of 200 bytes takes half a microsecond for an object, two for any other value.
        wait_s: How long a request may wait for the rate before it is answered 429 (s); 0 or more.
            Default: 1. Too large, senders wait that could do other work; too small, the rate is not
            used up, because senders retry late.
        max_header_bytes: The longest request line and headers together (bytes); 1 or more. Default:
            16 KiB.
        header_s: How long the headers may take from their first byte (s); above 0. Default: 10. The
            same limit applies between the connection and the headers, and to the rest of a body
            whose request was answered early.
        max_body_bytes: The longest body as it is sent (bytes); 1 or more. Default: 8 MiB.
        max_decompressed_bytes: The longest body after decompression (bytes); 1 or more. Default:
            32 MiB.
        max_records: The most records in a request; 1 or more. Default: 200 000. An array may have
            eight times as many commas, including nested ones.
        body_s: How long a body may take (s); above 0. Default: 30.
        max_connections: How many senders may be connected; 1 or more. Default: 800. Fewer if
            `IntakeSettings.max_memory_bytes` is too small. Further connections are refused.

    Raises:
        OptionError: A value is out of its range.
    """

    command_help: ClassVar[
        str
    ] = """Take records by POST /records: JSON, NDJSON or raw bytes; 200 when they are durable.

    429 with Retry-After while more come than the gate's query processes.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """

    host: str = field(default="127.0.0.1", metadata=option("--host"))
    port: int = field(default=8080, metadata=option("--port"))
    token: str | None = field(default=None, repr=False, metadata=_TOKEN)
    token_file: str | None = field(default=None, metadata=option("--token-file"))
    tls: TlsFiles = field(default_factory=TlsFiles)
    check_json: bool = True
    wait_s: float = 1
    max_header_bytes: int = 16 * 1024
    header_s: float = 10
    max_body_bytes: int = 8 * MIB
    max_decompressed_bytes: int = 32 * MIB
    max_records: int = 200_000
    body_s: float = 30
    max_connections: int = 800

    def __post_init__(self) -> None:
        require_port(self.port)
        require_tokens(self.token, self.token_file)
        require_number("wait_s", self.wait_s, "s")
        require_whole("max_header_bytes", self.max_header_bytes, 1)
        require_number("header_s", self.header_s, "s", above=True)
        require_whole("max_body_bytes", self.max_body_bytes, 1)
        require_whole("max_decompressed_bytes", self.max_decompressed_bytes, 1)
        require_whole("max_records", self.max_records, 1)
        require_number("body_s", self.body_s, "s", above=True)
        require_whole("max_connections", self.max_connections, 1)


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Settings of a receiver of records from an MQTT 5 broker.

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
            acknowledged; 1 to 65535. Default: 1000. Too large, unacknowledged messages
            take memory; too small, throughput suffers, because this is the number of messages per
            block interval and sync. The broker may apply a lower limit of its own.
        session_expiry_s: How long the broker keeps the session, and what it holds for it, while
            this receiver is away (s); 1 to 4294967295, which is for ever. Default: a week.
        keepalive_s: After how long without a word the broker is asked whether it is there (s); 1 to
            65535. Default: 30.
        reconnect_s: How long to wait before connecting again (s); above 0. Default: 0.5; twice as
            long after each time that was of no avail, up to 30.

    Raises:
        OptionError: A value is out of its range, or contradicts another value.
    """

    command_help: ClassVar[
        str
    ] = """Subscribe to topics of an MQTT 5 broker (QoS 1); PUBACK when a message is durable.

    While more come than the gate's query processes, they wait in the broker.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error; the broker refuses the user, for one.
    """

    url: str = field(metadata=option("--url", sample="mqtt://localhost"))
    topics: tuple[str, ...] = field(metadata=option("--topic", sample=("#",)))
    client_id: str = field(metadata=option(sample="headrace", pattern="headrace-{journal}-{lane}"))
    username: str | None = field(default=None, metadata=option("--username"))
    password: str | None = field(
        default=None,
        repr=False,
        metadata=option("--password-file", variable="HEADRACE_MQTT_PASSWORD"),
    )
    ca_file: str | None = field(default=None, metadata=option("--tls-ca"))
    certificate_file: str | None = field(default=None, metadata=option("--tls-certificate"))
    key_file: str | None = field(default=None, metadata=option("--tls-key"))
    receive_maximum: int = 1_000
    session_expiry_s: int = 7 * 24 * 3600
    keepalive_s: int = 30
    reconnect_s: float = 0.5

    def __post_init__(self) -> None:
        _require_broker(self.url)
        if not self.topics:
            raise OptionError("No topic is given; name one such as 'sensors/#'.")
        for topic in self.topics:
            _require_topic_filter(topic)
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
        require_whole("receive_maximum", self.receive_maximum, 1, most=65_535)
        require_whole("session_expiry_s", self.session_expiry_s, 1, most=2**32 - 1)
        require_whole("keepalive_s", self.keepalive_s, 1, most=65_535)
        require_number("reconnect_s", self.reconnect_s, "s", above=True)

    @property
    def tls(self) -> bool:
        """Whether the connection uses TLS and checks the broker's certificate."""
        return self._parts.scheme == "mqtts"

    @property
    def host(self) -> str:
        """Name or address of the broker."""
        return self._parts.hostname or ""

    @property
    def port(self) -> int:
        """Port of the broker."""
        return self._parts.port or _MQTT_PORTS[self._parts.scheme]

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)


def _require_topic_filter(topic: str) -> None:
    """Raise OptionError for a text that is not an MQTT topic filter (MQTT 5.0, 4.7)."""
    levels = topic.removeprefix("$share/").split("/")
    hash_is_last = "#" not in "".join(levels[:-1]) and ("#" not in levels[-1] or levels[-1] == "#")
    plus_is_alone = all("+" not in level or level == "+" for level in levels)
    fits = 0 < len(topic.encode(errors="replace")) <= _MOST_TOPIC_BYTES and "\0" not in topic
    if not (hash_is_last and plus_is_alone and fits):
        raise OptionError(
            f"The topic is {topic!r}; it must be a topic filter of MQTT, 1 to {_MOST_TOPIC_BYTES:,}"
            " bytes long, in which '+' stands alone between two '/', and '#' alone and last, such"
            " as 'sensors/+/temperature' or 'sensors/#'."
        )


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
    if parts.scheme not in _MQTT_PORTS or not parts.hostname or port == 0 or rest:
        raise OptionError(
            f"The broker's URL is {url!r}; it must be mqtt://host or mqtts://host, with :port or"
            " without."
        )


def require_port(port: int, what: str = "port") -> None:
    """Raise OptionError for a number that is not a TCP port."""
    if not 0 <= port <= 65_535:
        raise OptionError(f"{what} is {port}; it must be 1 to 65535, or 0 for any that is free.")


def require_tokens(token: str | None, token_file: str | None) -> None:
    """Raise OptionError for a token that cannot be sent, or a token besides a file of tokens."""
    if token is not None:
        require_token(token, "The token")
        if token_file is not None:
            raise OptionError(
                f"A token is given, and a file of tokens too, {token_file}; give one of them."
            )


def require_token(token: str, what: str) -> None:
    """Raise OptionError for a token with characters beyond visible ASCII, without quoting it."""
    if not re.fullmatch("[!-~]+", token):
        raise OptionError(
            f"{what} cannot be sent; it must be 1 or more visible characters of ASCII, without"
            " spaces."
        )
