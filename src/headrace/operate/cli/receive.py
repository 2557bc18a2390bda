"""``headrace receive``: take records from senders into a journal, and acknowledge them."""

import inspect
import ipaddress
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from headrace.errors import OptionError
from headrace.journal.receivers import (
    OPTIONS,
    Hosting,
    HttpReceiver,
    HttpSettings,
    MqttReceiver,
    MqttSettings,
    Receiver,
    SettingsFile,
    TcpReceiver,
    TcpSettings,
    default_file,
    described_fields,
    event_of,
    host,
    sentences,
)
from headrace.operate.cli.printing import TextLines, logged
from headrace.operate.cli.shared_options import (
    DEFAULT_LEDGER,
    LedgerUrl,
    secret_of,
    with_parameters,
)

_LOG: Final = logging.getLogger("headrace.receivers")


Settings = TypeVar("Settings")


class OptionValues(dict[str, Any]):
    """The values of options, by the names of the fields that they were made from."""

    def with_file(self, file: SettingsFile) -> "OptionValues":
        """Return these values and those of a settings file."""
        return OptionValues({**self, **file.values})

    def make(self, kind: type[Settings], **others: Any) -> Settings:
        """Settings of these values, and of others; fields that are settings are made, too.

        Raises:
            OptionError: A value is out of its range.
        """
        values = dict(others)
        for each, _, nested in described_fields(kind):
            if each.name not in values and (nested is not None or each.name in self):
                values[each.name] = self.make(nested) if nested else self[each.name]
        return kind(**values)


def options_from(
    *kinds: type, names: Mapping[str, str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for fields of settings; it gets their `OptionValues` first.

    Args:
        kinds: The settings' dataclasses; fields that are dataclasses have options for theirs.
        names: The names of the options, by their fields.
    """
    made = [each for kind in kinds for each in _parameters(kind, names)]

    return lambda command: with_parameters(command, made, OptionValues)


def _parameters(kind: type, names: Mapping[str, str]) -> Iterator[inspect.Parameter]:
    helps = sentences(kind)
    for each, hint, nested in described_fields(kind):
        if nested is not None:
            yield from _parameters(nested, names)
        if (name := names.get(each.name)) is None:
            continue
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        option = typer.Option(
            name,
            metavar="FILE" if each.name.endswith("_file") else None,
            help=helps[each.name],
        )
        several = hint == tuple[str, ...]
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[list[str] if several else hint, option],
        )


TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"  # noqa: S105  # its name
PASSWORD_VARIABLE: Final = "HEADRACE_MQTT_PASSWORD"  # noqa: S105  # its name


receive = typer.Typer(
    help="Take records from senders into a journal, and acknowledge them when they are durable.",
    no_args_is_help=True,
    add_completion=False,
)

_OWN: Final = ("ledger", "token", "password")
"""Settings whose options are written out here."""
_NAMES: Final = {field: name for field, name in OPTIONS.items() if field not in _OWN}


def _print_settings(is_asked: bool) -> None:
    if is_asked:
        typer.echo(default_file(), nl=False)
        raise typer.Exit


@receive.callback()
def _receive(
    *,
    print_settings: Annotated[
        bool,
        typer.Option(
            "--print-settings",
            callback=_print_settings,
            is_eager=True,
            help="Print a settings file, with every key, its unit, range and default.",
        ),
    ] = False,
) -> None:
    """Only for its option."""


SettingsPath = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="A file (TOML) with all other settings; 'headrace receive --print-settings' prints"
        " one.",
    ),
]

LogAsJson = Annotated[
    bool,
    typer.Option("--json", help="The log as one JSON object per line, on the standard output."),
]


def _add_command(
    name: str,
    make: Callable[..., HttpReceiver | TcpReceiver],
    settings: type,
    address: str,
    text: str,
) -> None:
    @receive.command(name, help=text)
    @options_from(Hosting, settings, names=_NAMES)
    def run(
        given: OptionValues,
        *,
        context: typer.Context,
        ledger: LedgerUrl = DEFAULT_LEDGER,
        settings_file: SettingsPath = None,
        as_json: LogAsJson = False,
    ) -> None:
        token = os.environ.get(TOKEN_VARIABLE) if given["token_file"] is None else None
        file = SettingsFile.read(settings_file, name)
        receiver = make(given.with_file(file).make(settings, token=token))
        hosting = _hosting(context, given.with_file(file), ledger)
        _run(receiver, hosting, lambda: _listen(receiver, address, given), as_json)


_add_command(
    "http",
    HttpReceiver,
    HttpSettings,
    "http{}://{}/records",
    """Take records by POST /records: JSON, NDJSON or raw bytes; 200 when they are durable.

    429 with Retry-After while more come than the gate's query processes.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """,
)
_add_command(
    "tcp",
    TcpReceiver,
    TcpSettings,
    "tcp{}://{}",
    """Take lines over TCP, each a record; with --acknowledge, answer senders what is durable.

    While more come than the gate's query processes nothing is read, and senders block.
    With a token, a sender's first line must be 'token', a space and the token.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """,
)


@receive.command()
@options_from(
    Hosting,
    MqttSettings,
    names=_NAMES,
)
def mqtt(
    given: OptionValues,
    *,
    context: typer.Context,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A file with the password; or set {PASSWORD_VARIABLE}."),
    ] = None,
    settings_file: SettingsPath = None,
    as_json: LogAsJson = False,
) -> None:
    """Subscribe to topics of an MQTT 5 broker (QoS 1); PUBACK when a message is durable.

    While more come than the gate's query processes, they wait in the broker.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    Exit status 0: it was ended so.
    Exit status 1: there was an error; the broker refuses the user, for one.
    """
    name = given["journal"].rstrip("/").rpartition("/")[2]
    own = {
        "topics": tuple(given["topics"]),
        "password": secret_of(password_file, "--password-file", PASSWORD_VARIABLE),
    }
    given["client_id"] = f"headrace-{name}-{given['lane']}"
    file = SettingsFile.read(settings_file, "mqtt")
    settings = given.with_file(file).make(MqttSettings, **own)
    receiver = MqttReceiver(settings)
    hosting = _hosting(context, given.with_file(file), ledger)
    _run(receiver, hosting, lambda: settings.url, as_json)


def _hosting(context: typer.Context, given: OptionValues, ledger: str) -> Hosting:
    """Return the records' destination; a ledger that was named and would not be used is refused."""
    source = context.get_parameter_source("ledger")
    if given["gate"] is None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(
            "--ledger is given without --gate, and would not be used; name the gate too."
        )
    return given.make(Hosting, ledger=ledger)


def _listen(receiver: HttpReceiver | TcpReceiver, place: str, given: OptionValues) -> str:
    host_name: str = given["host"]
    port = receiver.listen().port
    try:
        loopback = ipaddress.ip_address(host_name).is_loopback
    except ValueError:
        loopback = host_name == "localhost"
    settings = receiver.settings
    if settings.token is None and settings.token_file is None and not settings.tls.client_ca_file:
        if not loopback:
            _LOG.warning(
                "Whoever can reach %s can send records; have them show a token: --token-file or"
                " %s, or a certificate: --tls-client-ca.",
                host_name,
                TOKEN_VARIABLE,
            )
    elif settings.tls.certificate_file is None and not loopback:
        _LOG.warning(
            "Tokens and records travel to %s unencrypted; name a certificate: --tls-certificate.",
            host_name,
        )
    authority = f"[{host_name}]:{port}" if ":" in host_name else f"{host_name}:{port}"
    return place.format("" if settings.tls.certificate_file is None else "s", authority)


def _run(receiver: Receiver, hosting: Hosting, listen: Callable[[], str], as_json: bool) -> None:
    stream, lines = (sys.stdout, JsonLog()) if as_json else (sys.stderr, TextLines())
    with logged(stream, lines):
        host(receiver, hosting, listen)


class JsonLog(logging.Formatter):
    """One JSON object: ``time_ms``, ``level``, ``event``, ``message`` and what the event has."""

    def format(self, record: logging.LogRecord) -> str:  # noqa: D102
        values = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            **event_of(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["trace"] = self.formatException(record.exc_info)
        return json.dumps(values)
