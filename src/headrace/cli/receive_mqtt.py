"""``headrace receive mqtt``: take what is published to topics of an MQTT broker."""

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.receive_log import log_to_terminal
from headrace.cli.receive_options import (
    AsJson,
    BlockBytes,
    BlockIntervalMs,
    BufferBytes,
    Gate,
    InitialRate,
    JournalUrl,
    Lane,
    LedgerUrl,
    MaxBytesRate,
    MaxRate,
    RememberedIds,
    refuse_a_ledger_alone,
    secret_of,
)
from headrace.cli.status import DEFAULT_LEDGER
from headrace.receivers import IntakeSettings, MqttReceiver, MqttSettings, ReceiverLimits
from headrace.receivers.host import Hosting, host

_PASSWORD_VARIABLE: Final = "HEADRACE_MQTT_PASSWORD"  # noqa: S105  # its name
_INTAKE: Final = IntakeSettings()
_LIMITS: Final = ReceiverLimits()
_MQTT: Final = MqttSettings("mqtt://localhost", ("#",), "headrace")


def mqtt(
    context: typer.Context,
    *,
    journal: JournalUrl,
    url: Annotated[
        str, typer.Option(help="The broker: mqtt://host:1883, or mqtts://host:8883 for TLS.")
    ],
    topic: Annotated[
        list[str],
        typer.Option(help="What to subscribe to, such as 'sensors/#'; may be given repeatedly."),
    ],
    lane: Lane = 0,
    client_id: Annotated[
        str | None,
        typer.Option(
            help="What the broker keeps the session under; no other client may have it. "
            "headrace-JOURNAL-LANE unless told otherwise."
        ),
    ] = None,
    username: Annotated[str | None, typer.Option(help="As whom to connect.")] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"A file with the password; or set {_PASSWORD_VARIABLE}."
        ),
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Authorities to trust (PEM), instead of the system's own."
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="The certificate to show (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its key, where it is in another file.")
    ] = None,
    receive_maximum: Annotated[
        int, typer.Option(help="How many messages may be unacknowledged, 1 to 65535.")
    ] = _MQTT.receive_maximum,
    session_expiry_s: Annotated[
        int, typer.Option(help="How long the broker holds messages while nothing receives.")
    ] = _MQTT.session_expiry_s,
    keepalive_s: Annotated[
        int, typer.Option(help="After how long the broker is asked whether it is there.")
    ] = _MQTT.keepalive_s,
    gate: Gate = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    max_rate: MaxRate = None,
    max_bytes_rate: MaxBytesRate = None,
    initial_rate: InitialRate = _LIMITS.initial_rate,
    block_interval_ms: BlockIntervalMs = _INTAKE.block_interval_ms,
    block_bytes: BlockBytes = _INTAKE.block_bytes,
    buffer_bytes: BufferBytes = _INTAKE.buffer_bytes,
    remembered_ids: RememberedIds = _INTAKE.remembered_ids,
    as_json: AsJson = False,
) -> None:
    """Subscribe to topics of an MQTT 5 broker (QoS 1); PUBACK when a message is durable.

    While more come than the gate's query processes, the broker holds them back.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error; the broker refuses the user, for one.
    """
    settings = MqttSettings(
        url=url,
        topics=tuple(topic),
        client_id=_client_id(journal, lane) if client_id is None else client_id,
        username=username,
        password=secret_of(password_file, "--password-file", _PASSWORD_VARIABLE),
        ca_file=tls_ca,
        certificate_file=tls_certificate,
        key_file=tls_key,
        receive_maximum=receive_maximum,
        session_expiry_s=session_expiry_s,
        keepalive_s=keepalive_s,
    )
    intake = IntakeSettings(block_interval_ms, block_bytes, buffer_bytes, remembered_ids)
    limits = ReceiverLimits(max_rate, max_bytes_rate, initial_rate)
    refuse_a_ledger_alone(context, gate)
    receiver = MqttReceiver(settings)
    log_to_terminal(as_json=as_json)
    host(receiver, Hosting(journal, lane, gate, ledger, limits, intake), lambda: url)


def _client_id(journal: str, lane: int) -> str:
    return f"headrace-{journal.rstrip('/').rpartition('/')[2]}-{lane}"
