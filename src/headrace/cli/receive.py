"""``headrace receive``: take records from senders into a journal, and acknowledge them."""

import ipaddress
import logging
from typing import Annotated, Final, Protocol

import typer

from headrace.cli.receive_log import log_to_terminal
from headrace.cli.receive_mqtt import mqtt
from headrace.cli.receive_options import (
    TOKEN_VARIABLE,
    AsJson,
    BlockBytes,
    BlockIntervalMs,
    BufferBytes,
    Gate,
    HostName,
    InitialRate,
    JournalUrl,
    Lane,
    LedgerUrl,
    MaxBytesRate,
    MaxConnections,
    MaxRate,
    Port,
    RememberedIds,
    TokenFile,
    refuse_a_ledger_alone,
    token_of,
)
from headrace.cli.status import DEFAULT_LEDGER
from headrace.receivers import (
    Hosting,
    HttpReceiver,
    HttpSettings,
    IntakeSettings,
    ReceiverLimits,
    TcpReceiver,
    TcpSettings,
)
from headrace.receivers.host import host

_LOG: Final = logging.getLogger("headrace.receivers")

receive = typer.Typer(
    help="Take records from senders into a journal, and acknowledge them when they are durable.",
    no_args_is_help=True,
    add_completion=False,
)

receive.command()(mqtt)

_INTAKE: Final = IntakeSettings()
_LIMITS: Final = ReceiverLimits()
_HTTP: Final = HttpSettings()
_TCP: Final = TcpSettings()


@receive.command()
def http(
    context: typer.Context,
    *,
    journal: JournalUrl,
    lane: Lane = 0,
    host_name: HostName = _HTTP.host,
    port: Port = _HTTP.port,
    gate: Gate = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    max_rate: MaxRate = None,
    max_bytes_rate: MaxBytesRate = None,
    initial_rate: InitialRate = _LIMITS.initial_rate,
    token_file: TokenFile = None,
    check_json: Annotated[
        bool, typer.Option(help="Whether each line of NDJSON must be JSON.")
    ] = _HTTP.check_json,
    wait_s: Annotated[
        float, typer.Option(help="How long a request may wait for the rate, before it is told 429.")
    ] = _HTTP.wait_s,
    max_header_bytes: Annotated[
        int, typer.Option(help="The longest request line and headers together.")
    ] = _HTTP.max_header_bytes,
    header_s: Annotated[float, typer.Option(help="How long they may take.")] = _HTTP.header_s,
    max_body_bytes: Annotated[
        int, typer.Option(help="The longest body as it is sent.")
    ] = _HTTP.max_body_bytes,
    max_decompressed_bytes: Annotated[
        int, typer.Option(help="The longest body after decompression.")
    ] = _HTTP.max_decompressed_bytes,
    body_s: Annotated[float, typer.Option(help="How long a body may take.")] = _HTTP.body_s,
    bodies_bytes: Annotated[
        int, typer.Option(help="What all bodies may take together while they are read.")
    ] = _HTTP.bodies_bytes,
    max_connections: MaxConnections = _HTTP.max_connections,
    block_interval_ms: BlockIntervalMs = _INTAKE.block_interval_ms,
    block_bytes: BlockBytes = _INTAKE.block_bytes,
    buffer_bytes: BufferBytes = _INTAKE.buffer_bytes,
    remembered_ids: RememberedIds = _INTAKE.remembered_ids,
    as_json: AsJson = False,
) -> None:
    """Take records by POST /records: JSON, NDJSON or raw bytes; 200 when they are durable.

    429 with Retry-After while more come than the gate's query processes.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """
    settings = HttpSettings(
        host=host_name,
        port=port,
        token=token_of(token_file),
        check_json=check_json,
        wait_s=wait_s,
        max_header_bytes=max_header_bytes,
        header_s=header_s,
        max_body_bytes=max_body_bytes,
        max_decompressed_bytes=max_decompressed_bytes,
        body_s=body_s,
        bodies_bytes=bodies_bytes,
        max_connections=max_connections,
    )
    intake = IntakeSettings(block_interval_ms, block_bytes, buffer_bytes, remembered_ids)
    limits = ReceiverLimits(max_rate, max_bytes_rate, initial_rate)
    refuse_a_ledger_alone(context, gate)
    receiver = HttpReceiver(settings)
    log_to_terminal(as_json=as_json)
    _warn_of_strangers(settings)
    host(
        receiver,
        Hosting(journal, lane, gate, ledger, limits, intake),
        lambda: f"http://{_place(host_name, receiver.listen().port)}/records",
    )


@receive.command()
def tcp(
    context: typer.Context,
    *,
    journal: JournalUrl,
    lane: Lane = 0,
    host_name: HostName = _TCP.host,
    port: Port = _TCP.port,
    gate: Gate = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    max_rate: MaxRate = None,
    max_bytes_rate: MaxBytesRate = None,
    initial_rate: InitialRate = _LIMITS.initial_rate,
    token_file: TokenFile = None,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--acknowledge", help="Tell senders 'ok <count>' for every so many lines, once durable."
        ),
    ] = _TCP.acknowledge,
    check_json: Annotated[
        bool, typer.Option("--check-json", help="Refuse lines that are not JSON.")
    ] = _TCP.check_json,
    max_line_bytes: Annotated[
        int, typer.Option(help="The longest line, its end not counted.")
    ] = _TCP.max_line_bytes,
    unfinished_bytes: Annotated[
        int, typer.Option(help="What the unfinished lines of all senders may take together.")
    ] = _TCP.unfinished_bytes,
    line_s: Annotated[
        float,
        typer.Option(
            help="How long a line may take from its first byte on, and its sender to read answers."
        ),
    ] = _TCP.line_s,
    max_connections: MaxConnections = _TCP.max_connections,
    block_interval_ms: BlockIntervalMs = _INTAKE.block_interval_ms,
    block_bytes: BlockBytes = _INTAKE.block_bytes,
    buffer_bytes: BufferBytes = _INTAKE.buffer_bytes,
    remembered_ids: RememberedIds = _INTAKE.remembered_ids,
    as_json: AsJson = False,
) -> None:
    """Take lines over TCP, each a record; with --acknowledge, tell senders what is durable.

    While more come than the gate's query processes nothing is read, and senders block.
    With a token, a sender's first line must be 'token', a space and the token.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """
    settings = TcpSettings(
        host=host_name,
        port=port,
        acknowledge=acknowledge,
        token=token_of(token_file),
        check_json=check_json,
        max_line_bytes=max_line_bytes,
        unfinished_bytes=unfinished_bytes,
        line_s=line_s,
        max_connections=max_connections,
    )
    intake = IntakeSettings(block_interval_ms, block_bytes, buffer_bytes, remembered_ids)
    limits = ReceiverLimits(max_rate, max_bytes_rate, initial_rate)
    refuse_a_ledger_alone(context, gate)
    receiver = TcpReceiver(settings)
    log_to_terminal(as_json=as_json)
    _warn_of_strangers(settings)
    host(
        receiver,
        Hosting(journal, lane, gate, ledger, limits, intake),
        lambda: f"tcp://{_place(host_name, receiver.listen().port)}",
    )


class _Guarded(Protocol):
    """Settings of whatever listens."""

    @property
    def host(self) -> str: ...
    @property
    def token(self) -> str | None: ...


def _warn_of_strangers(settings: _Guarded) -> None:
    if settings.token is None and not _is_loopback(settings.host):
        _LOG.warning(
            "Whoever can reach %s can send records; have them show a token: --token-file or %s.",
            settings.host,
            TOKEN_VARIABLE,
        )


def _is_loopback(host_name: str) -> bool:
    try:
        return ipaddress.ip_address(host_name).is_loopback
    except ValueError:
        return host_name == "localhost"


def _place(host_name: str, port: int) -> str:
    return f"[{host_name}]:{port}" if ":" in host_name else f"{host_name}:{port}"
