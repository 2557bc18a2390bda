"""Settings classes of an intake and of each receiver, which validate their values on construction.

The first sentence of an attribute is also the help of its option or key, so it has unit and range.
"""

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
    """Settings of an intake: the size and interval of blocks, and the memory.

    Attributes:
        block_interval_ms: Longest time that a record waits until its block is written, while no
            other block is being written (ms); above 0. Default: 200. In a directory it applies only
            to records whose sender does not wait, such as lines over TCP without acknowledgements.
            In an object store or HDFS it applies to all records, because each block is a request.
            If too large, a crash loses more unacknowledged records, or acknowledgements come late;
            if too small, there are many small blocks.
        block_bytes: Size at which a block is written at once (bytes in memory); 1 or more. Default:
            8 MiB. If too large, tasks that each read one block take unequal times; if too small,
            the sync of each block costs throughput.
        max_memory_bytes: Memory that the receiver may use in addition to an idle receiver, whatever
            senders do (bytes in memory); at least four times ``block_bytes``. Default: 256 MiB.
            Records that are not durable may use a quarter, connections a quarter, HTTP bodies a
            quarter, and unfinished TCP lines a sixteenth. Remembered message ids may use 3/16,
            enough for about 100 000 ids of 36 characters. The rest is for parsing. If too large,
            the machine may run out of memory; if too small, senders wait during writes, or an id is
            forgotten before its sender repeats it.

    Raises:
        OptionError: A value is out of its range.
    """

    block_interval_ms: float = 200
    block_bytes: int = 8 * MIB
    # The sample allows a block of any size. The command checks both values again.
    max_memory_bytes: int = field(
        default=256 * MIB, metadata=option("--max-memory-bytes", sample=2**62)
    )

    def __post_init__(self) -> None:
        require_number("block_interval_ms", self.block_interval_ms, "ms", above=True)
        require_whole("block_bytes", self.block_bytes, 1)
        if self.buffer_bytes < self.block_bytes:
            raise OptionError(
                f"max_memory_bytes is {self.max_memory_bytes}, less than four blocks of"
                f" {self.block_bytes} bytes; raise max_memory_bytes, or lower block_bytes."
            )

    @property
    def buffer_bytes(self) -> int:
        """Memory limit for accepted records that are not durable yet (bytes)."""
        return self.max_memory_bytes // 4

    @property
    def bodies_bytes(self) -> int:
        """Memory limit for all HTTP bodies together while they are read and parsed (bytes)."""
        return self.max_memory_bytes // 4

    @property
    def unfinished_bytes(self) -> int:
        """Memory limit for the unfinished lines of all TCP senders together (bytes)."""
        return self.max_memory_bytes // 16

    @property
    def ids_bytes(self) -> int:
        """Memory limit for remembered message ids (bytes)."""
        return self.max_memory_bytes * 3 // 16

    def connections(self, max_connections: int, *, is_secured: bool = False) -> int:
        """Return the number of connections that fit into memory, at most ``max_connections``.

        A connection may take 80 KiB, and with TLS (``is_secured``) 256 KiB more for asyncio's
        buffer. 195 TLS connections fit into the default memory. But at least 16 connections are
        allowed, unless ``max_connections`` is less.
        """
        connection_bytes = _CONNECTION_BYTES + _TLS_BYTES * is_secured
        most = self.max_memory_bytes // 4 // connection_bytes
        return min(max_connections, max(_FEWEST_CONNECTIONS, most))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for the TLS connections of a listening receiver; without a certificate, no TLS is used.

    The receiver reads the files when it starts, and again when they change.

    Attributes:
        certificate_file: File with the receiver's certificate, followed by its intermediate
            certificates (PEM). Default: None, no TLS.
        key_file: File with the private key of the receiver's certificate, without a passphrase.
            Default: None, the certificate's file contains the key.
        client_ca_file: File with the CA certificates that must have signed every sender's
            certificate (PEM). Default: None, senders need no certificate.

    Raises:
        OptionError: A key file or a CA file is set without a certificate file.
    """

    certificate_file: str | None = field(default=None, metadata=option("--tls-certificate"))
    key_file: str | None = field(default=None, metadata=option("--tls-key"))
    client_ca_file: str | None = field(default=None, metadata=option("--tls-client-ca"))

    def __post_init__(self) -> None:
        if self.certificate_file is None and (self.key_file or self.client_ca_file):
            raise OptionError(
                "A key file, or a CA file for senders, is set without the receiver's certificate"
                " file; set the certificate file too."
            )


class ListeningSettings(Protocol):
    """Interface of the settings that all listening receivers have: address, tokens and TLS."""

    @property
    def host(self) -> str:
        """Host name or IP address on which the receiver listens."""
        ...

    @property
    def port(self) -> int:
        """TCP port on which the receiver listens; 0 for any free port."""
        ...

    @property
    def token(self) -> str | None:
        """Token that every sender must send; None for no token, or for a token file."""
        ...

    @property
    def token_file(self) -> str | None:
        """File with the tokens that senders may send, in place of one token; None for no file."""
        ...

    @property
    def tls(self) -> TlsFiles:
        """Files for TLS on the receiver's connections."""
        ...


TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"  # noqa: S105  # its name
_TOKEN: Final = option("--token-file", variable=TOKEN_VARIABLE, instead="token_file")


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """Settings of a receiver of lines over TCP.

    Attributes:
        host: Address on which the receiver listens. Default: 127.0.0.1, reachable from this machine
            only; 0.0.0.0 accepts connections from other machines.
        port: TCP port on which the receiver listens; 0 for any free port, which is logged. Default:
            7070.
        acknowledge: Whether the receiver sends ``ok <count>`` to a sender when that many more of
            its lines are durable. Default: off. A sender that does not read these answers is
            disconnected.
        proxy_protocol: Whether each connection begins with a header of the PROXY protocol, version
            1 or 2, before TLS. The receiver removes the header, and refuses a connection without
            it. Default: off.
        token: Token that a sender's first line must contain, after the word ``token`` and a space.
            Default: None, anyone who can reach the port may send, unless ``token_file`` is set.
        token_file: File with the tokens, each in a line of its own, after a name and a space. The
            receiver reads the file when it starts. `Tokens` describes the format.
        tls: Files for TLS. Default: none, connections are not encrypted.
        check_json: Whether every line must be JSON. Default: off. Checking a line of 200 bytes
            takes half a microsecond for an object, and two microseconds for any other value.
        id_field: Name of the JSON field with the message id of a line, a text of 1 to 200
            characters or a whole number. Every line must then be a JSON object. A line with a
            remembered id is acknowledged, but not stored again. Default: None, lines have no ids.
        max_line_bytes: Longest line, without its line end (bytes); 1 or more. Default: 1 MiB.
        line_s: Time limit of a line from its first byte, and of a sender's first line from the
            start of the connection (s); above 0. Default: 30. Between lines a sender may be silent
            for any time. The same limit applies to a sender that does not read its answers; then
            the receiver closes the connection.
        max_connections: Most senders that may be connected at a time; 1 or more. Default: 800. The
            number is lower if `IntakeSettings.max_memory_bytes` is too small for it. Further
            connections are refused.

    Raises:
        OptionError: A value is out of its range.
    """

    command_help: ClassVar[
        str
    ] = """Receive lines over TCP, each as a record; with --acknowledge, confirm durable lines.

    If records arrive faster than the gate's query processes them, reading pauses and senders block.
    With a token, a sender's first line must be 'token', a space and the token.
    SIGTERM and Ctrl-C stop it cleanly: it first makes all accepted records durable.
    Exit status 0: it was stopped cleanly.
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
            raise OptionError(
                "id_field is empty; it must be the name of the JSON field with a line's message id."
            )
        require_whole("max_line_bytes", self.max_line_bytes, 1)
        require_number("line_s", self.line_s, "s", above=True)
        require_whole("max_connections", self.max_connections, 1)
        require_tokens(self.token, self.token_file)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of a receiver of records over HTTP.

    Attributes:
        host: Address on which the receiver listens. Default: 127.0.0.1, reachable from this machine
            only; 0.0.0.0 accepts connections from other machines.
        port: TCP port on which the receiver listens; 0 for any free port, which is logged. Default:
            8080.
        token: Token that senders must send in the header ``Authorization: Bearer <token>``.
            Default: None, anyone who can reach the port may send, unless ``token_file`` is set.
        token_file: File with the tokens, each in a line of its own, after a name and a space. The
            receiver reads the file when it starts. `Tokens` describes the format.
        tls: Files for TLS. Default: none, connections are not encrypted.
        check_json: Whether each line of NDJSON must be JSON. Default: on. Checking a line of 200
            bytes takes half a microsecond for an object, and two microseconds for any other value.
        wait_s: Longest time for which a request may have to wait for the rate limit (s); 0 or more.
            The receiver answers 429 to a request that would wait longer. Default: 1. If too large,
            senders wait instead of doing other work; if too small, the rate is not fully used,
            because senders retry late.
        max_header_bytes: Largest size of the request line and the headers together (bytes); 1 or
            more. Default: 16 KiB.
        header_s: Time limit of a request's headers from their first byte (s); above 0. Default: 10.
            The same limit applies to the time between the start of the connection and the headers,
            and to the rest of a body whose request was answered early.
        max_body_bytes: Largest body as it is sent, possibly compressed (bytes); 1 or more. Default:
            8 MiB.
        max_decompressed_bytes: Largest body after decompression (bytes); 1 or more. Default:
            32 MiB.
        max_records: Most records in a request; 1 or more. Default: 200 000. A JSON array must have
            fewer than eight commas for each allowed record, nested commas included.
        body_s: Time limit of a request's body (s); above 0. Default: 30.
        max_connections: Most senders that may be connected at a time; 1 or more. Default: 800. The
            number is lower if `IntakeSettings.max_memory_bytes` is too small for it. Further
            connections are refused.

    Raises:
        OptionError: A value is out of its range.
    """

    command_help: ClassVar[
        str
    ] = """Receive records by POST /records: JSON, NDJSON or raw bytes; 200 when they are durable.

    If records arrive faster than the gate's query processes them, it answers 429 with Retry-After.
    SIGTERM and Ctrl-C stop it cleanly: it first makes all accepted records durable.
    Exit status 0: it was stopped cleanly.
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
        url: URL of the broker: ``mqtt://host``, or ``mqtts://host`` for TLS; with ``:port`` for a
            port other than 1883, or other than 8883 with TLS.
        topics: Topic filters to subscribe to, 1 or more, such as ``sensors/#``.
        client_id: Client id of the receiver's session in the broker; 1 or more characters. It must
            be the same after a restart, and no other client of the broker may use it.
        username: User name for the broker. Default: None, for brokers that require no user.
        password: Password of the user. Default: None, no password.
        ca_file: File with the CA certificates that the receiver trusts (PEM). Default: None, the CA
            certificates of the system. Only with TLS.
        certificate_file: File with the receiver's own certificate, for brokers that require one
            (PEM). Default: None, no certificate. Only with TLS.
        key_file: File with the private key of the receiver's certificate. Default: None, the
            certificate's file contains the key. Only with TLS.
        receive_maximum: Most unacknowledged messages that the broker may send; 1 to 65535. Default:
            1000. If too large, unacknowledged messages take memory. If too small, throughput
            suffers, because no more messages than this can be stored in one block interval or
            sync. The broker may apply a lower limit.
        session_expiry_s: Time for which the broker keeps the session and its messages while the
            receiver is disconnected (s); 1 to 4294967295, which means for ever. Default: a week.
        keepalive_s: Time without any packet after which the receiver pings the broker (s); 1 to
            65535. Default: 30.
        reconnect_s: Delay before the receiver connects to the broker again (s); above 0. Default:
            0.5. The delay doubles with each failed attempt, up to 30 s.

    Raises:
        OptionError: A value is out of its range, or contradicts another value.
    """

    command_help: ClassVar[
        str
    ] = """Subscribe to topics of an MQTT 5 broker (QoS 1); PUBACK when a message is durable.

    If messages arrive faster than the gate's query processes them, they wait in the broker.
    SIGTERM and Ctrl-C stop it cleanly: it first makes all accepted messages durable.
    Exit status 0: it was stopped cleanly.
    Exit status 1: there was an error, for instance because the broker refuses the user.
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
            raise OptionError("No topic is set; set one or more topics, such as 'sensors/#'.")
        for topic in self.topics:
            _require_topic_filter(topic)
        if not self.client_id:
            raise OptionError("client_id is empty; it must be 1 or more characters.")
        if self.password is not None and self.username is None:
            raise OptionError("A password is set without a user name; set the user name too.")
        if self.key_file and not self.certificate_file:
            raise OptionError(
                "A key file is set without its certificate file; set the certificate file too."
            )
        if not self.tls and (self.ca_file or self.certificate_file):
            raise OptionError(
                f"A file with certificates is set, but the broker's URL {self.url!r} is without"
                " TLS; use mqtts://, or remove the file."
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
        """Host name or IP address of the broker."""
        return self._parts.hostname or ""

    @property
    def port(self) -> int:
        """TCP port of the broker. Default: 1883, or 8883 with TLS."""
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
            f"The topic is {topic!r}; it must be a topic filter of MQTT of 1 to"
            f" {_MOST_TOPIC_BYTES:,} bytes, in which '+' is a whole level, and '#' the whole last"
            " level, such as 'sensors/+/temperature' or 'sensors/#'."
        )


def _require_broker(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "The broker's URL contains a user or a password, which others could read there; remove"
            " them from the URL, and set the user name and the password instead."
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in _MQTT_PORTS or not parts.hostname or port == 0 or rest:
        raise OptionError(
            f"The broker's URL is {url!r}; it must be mqtt://host or mqtts://host, with or without"
            " :port."
        )


def require_port(port: int, what: str = "port") -> None:
    """Raise OptionError for a number outside 0 to 65535; ``what`` is the setting's name."""
    if not 0 <= port <= 65_535:
        raise OptionError(f"{what} is {port}; it must be 1 to 65535, or 0 for any free port.")


def require_tokens(token: str | None, token_file: str | None) -> None:
    """Raise OptionError for an invalid token, or if both a token and a token file are set."""
    if token is not None:
        require_token(token, "The token")
        if token_file is not None:
            raise OptionError(
                f"Both a token and the token file {token_file} are set; set only one of them."
            )


def require_token(token: str, what: str) -> None:
    """Raise OptionError for a token that is empty or has other than visible ASCII characters.

    The message names the token by ``what``, and does not contain the token.
    """
    if not re.fullmatch("[!-~]+", token):
        raise OptionError(
            f"{what} is not valid; a token must be 1 or more visible ASCII characters, without"
            " spaces."
        )
