"""``headrace receive``: take records from senders into a journal, and acknowledge them."""

import inspect
import ipaddress
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from headrace.cli.printing import printable
from headrace.cli.shared_options import DEFAULT_LEDGER, LedgerUrl, secret_of
from headrace.errors import OptionError
from headrace.receivers import (
    Hosting,
    HttpReceiver,
    HttpSettings,
    MqttReceiver,
    MqttSettings,
    Receiver,
    TcpReceiver,
    TcpSettings,
)
from headrace.receivers.event_log import event_of
from headrace.receivers.host import host

_LOG: Final = logging.getLogger("headrace.receivers")


Settings = TypeVar("Settings")

_NO_NAMES: Final[Mapping[str, str]] = {}


class OptionValues(dict[str, Any]):
    """The values of options, by the names of the fields that they were made from."""

    def make(self, kind: type[Settings], **others: Any) -> Settings:
        """Settings of these values, and of others; fields that are settings are made, too.

        Raises:
            OptionError: A value is out of its range.
        """
        values = dict(others)
        for each, _, nested in _fields(kind):
            if each.name not in values and (nested is not None or each.name in self):
                values[each.name] = self.make(nested) if nested else self[each.name]
        return kind(**values)


def options_from(
    *kinds: type, leave_out: Collection[str] = (), names: Mapping[str, str] = _NO_NAMES
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of settings; it gets their `OptionValues` first.

    Args:
        kinds: The settings' dataclasses; fields that are dataclasses have options for theirs.
        leave_out: Fields without an option.
        names: The names of options that are not their field's, such as ``--tls-ca``.
    """
    made = [each for kind in kinds for each in _parameters(kind, leave_out, names)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**values: Any) -> None:
            command(OptionValues((each.name, values.pop(each.name)) for each in made), **values)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*made, *own]]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameters(
    kind: type, leave_out: Collection[str], names: Mapping[str, str]
) -> Iterator[inspect.Parameter]:
    helps = _helps(kind)
    for each, hint, nested in _fields(kind):
        if each.name in leave_out:
            continue
        if nested is not None:
            yield from _parameters(nested, leave_out, names)
            continue
        name = names.get(each.name, f"--{each.name.replace('_', '-')}")
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        option = typer.Option(
            f"{name}/--no{name[1:]}" if default is True else name,
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


def _fields(kind: Any) -> Iterator[tuple[Field[Any], Any, type | None]]:
    """Each field, its type, and that type again where it is a dataclass."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        yield each, hint, hint if is_dataclass(hint) and isinstance(hint, type) else None


def _helps(kind: type) -> dict[str, str]:
    """Return the first sentence of each attribute in the docstring."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    plain = {name: " ".join(text.replace("``", "'").split()) for name, text in described}
    return {name: re.split(r"(?<=\.) ", text)[0] for name, text in plain.items()}


TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"  # noqa: S105  # its name
PASSWORD_VARIABLE: Final = "HEADRACE_MQTT_PASSWORD"  # noqa: S105  # its name


receive = typer.Typer(
    help="Take records from senders into a journal, and acknowledge them when they are durable.",
    no_args_is_help=True,
    add_completion=False,
)

_TLS_NAMES: Final = {
    "certificate_file": "--tls-certificate",
    "key_file": "--tls-key",
    "client_ca_file": "--tls-client-ca",
}

LogAsJson = Annotated[
    bool,
    typer.Option("--json", help="The log as one JSON object per line, on the standard output."),
]


def _add_command(
    name: str,
    make: Callable[[Any], HttpReceiver | TcpReceiver],
    settings: type,
    address: str,
    text: str,
) -> None:
    """Add the command of a receiver that listens at such an address; ``text`` is its help."""

    @receive.command(name, help=text)
    @options_from(Hosting, settings, leave_out=("ledger", "token"), names=_TLS_NAMES)
    def run(
        given: OptionValues,
        *,
        context: typer.Context,
        ledger: LedgerUrl = DEFAULT_LEDGER,
        as_json: LogAsJson = False,
    ) -> None:
        token = os.environ.get(TOKEN_VARIABLE) if given["token_file"] is None else None
        receiver = make(given.make(settings, token=token))
        hosting = _hosting(context, given, ledger)
        _run(receiver, hosting, lambda: _listen(receiver, address, given), as_json)


_add_command(
    "http",
    HttpReceiver,
    HttpSettings,
    "http{}://{}/records",
    """Take records by POST /records: JSON, NDJSON or raw bytes; 200 when they are durable.

    429 with Retry-After while more come than the gate's query processes.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    SIGHUP has it read its tokens and certificates again.
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

    With --framing auto it takes messages as syslog senders frame them: '5 hello', or with an end.

    While more come than the gate's query processes nothing is read, and senders block.
    With a token, a sender's first line must be 'token', a space and the token.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    SIGHUP has it read its tokens and certificates again.
    Exit status 0: it was ended so.
    Exit status 1: there was an error.
    """,
)


@receive.command()
@options_from(
    Hosting,
    MqttSettings,
    leave_out=("ledger", "password", "client_id", "reconnect_s"),
    names={
        "topics": "--topic",
        "ca_file": "--tls-ca",
        "certificate_file": "--tls-certificate",
        "key_file": "--tls-key",
    },
)
def mqtt(
    given: OptionValues,
    *,
    context: typer.Context,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    client_id: Annotated[
        str | None,
        typer.Option(
            help="What the broker knows this receiver's session by; no other client may have it. "
            "Default: headrace-JOURNAL-LANE."
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A file with the password; or set {PASSWORD_VARIABLE}."),
    ] = None,
    as_json: LogAsJson = False,
) -> None:
    """Subscribe to topics of an MQTT 5 broker (QoS 1); PUBACK when a message is durable.

    While more come than the gate's query processes, they wait in the broker.
    SIGTERM and Ctrl-C end it cleanly: what was taken is made durable and acknowledged first.
    SIGHUP has it read its certificates again, and connect anew.
    Exit status 0: it was ended so.
    Exit status 1: there was an error; the broker refuses the user, for one.
    """
    if client_id is None:
        name = given["journal"].rstrip("/").rpartition("/")[2]
        client_id = f"headrace-{name}-{given['lane']}"
    settings = given.make(
        MqttSettings,
        topics=tuple(given["topics"]),
        client_id=client_id,
        password=secret_of(password_file, "--password-file", PASSWORD_VARIABLE),
    )
    hosting = _hosting(context, given, ledger)
    _run(MqttReceiver(settings), hosting, lambda: settings.url, as_json)


def _hosting(context: typer.Context, given: OptionValues, ledger: str) -> Hosting:
    """Return the records' destination; a ledger that was named and would not be used is refused."""
    source = context.get_parameter_source("ledger")
    if given["gate"] is None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(
            "--ledger is given without --gate, and would not be used; name the gate too."
        )
    return given.make(Hosting, ledger=ledger)


def _listen(receiver: HttpReceiver | TcpReceiver, place: str, given: OptionValues) -> str:
    """Begin to listen, with a warning if everybody may send; answers where."""
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
    """Run it, with its log as text on the standard error, or as JSON on the standard output."""
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(JsonLog() if as_json else TextLines())
    logging.getLogger().addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    try:
        host(receiver, hosting, listen)
    finally:
        logging.getLogger().removeHandler(handler)


class TextLines(logging.Formatter):
    """The local time, the level where it is more than information, and one line of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: D102
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        return f"{record.asctime} {level}{printable(record.message)}"


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
