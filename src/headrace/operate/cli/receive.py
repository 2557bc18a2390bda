"""``headrace receive``: writes records from senders into a journal, and acknowledges them."""

import contextlib
import inspect
import ipaddress
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from headrace.errors import OptionError
from headrace.journal.receivers import (
    RECEIVERS,
    TOKEN_VARIABLE,
    Hosting,
    Listener,
    Option,
    PlacedReceiver,
    SettingsFile,
    default_file,
    described_fields,
    event_of,
    host,
    make_receiver,
    option_of,
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
    """Values of the command line's options. The keys are names of fields of the settings.

    Call `complete` to add the fields for which there is no option.
    """

    def complete(self, kind: type) -> None:
        """Add the values of fields that are secrets, or that contain the journal's name and lane.

        Secrets come from files or environment variables. ``kind`` is the dataclass of the settings;
        each of its fields declares where its value comes from.
        """
        for item, _, _ in described_fields(kind):
            given_by = option_of(item)
            if given_by.pattern is not None:
                journal = self["journal"].rstrip("/").rpartition("/")[2]
                self[item.name] = given_by.pattern.format(journal=journal, lane=self["lane"])
            elif given_by.variable is not None:
                self[item.name] = self._secret(item.name, given_by, given_by.variable)

    def _secret(self, name: str, given_by: Option, variable: str) -> str | None:
        if given_by.instead is None:
            return secret_of(self[_file_of(name)], str(given_by.name), variable)
        return os.environ.get(variable) if self[given_by.instead] is None else None

    def with_file(self, file: SettingsFile) -> "OptionValues":
        """Return these values together with the values of a settings file."""
        return OptionValues({**self, **file.values})

    def make(self, kind: type[Settings], **others: Any) -> Settings:
        """Return settings of the dataclass ``kind`` from these values and from ``others``."""
        values = dict(others)
        for item, _, nested in described_fields(kind):
            if item.name not in values and (nested is not None or item.name in self):
                value = self.make(nested) if nested else self[item.name]
                values[item.name] = tuple(value) if isinstance(value, list) else value
        return kind(**values)


def options_from(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command.

    Each field of the dataclasses ``kinds``, and of dataclasses nested in them, can declare an
    option with `option`. The command takes the options' values, as `OptionValues`, as its first
    argument. A parameter of the command replaces an option of the same name.
    """
    made = [parameter for kind in kinds for parameter in _parameters(kind)]

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        return with_parameters(
            command, [parameter for parameter in made if parameter.name not in own], OptionValues
        )

    return give


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    helps = sentences(kind)
    for item, hint, nested in described_fields(kind):
        if nested is not None:
            yield from _parameters(nested)
        given_by = option_of(item)
        if given_by.name is None or given_by.instead is not None:
            continue
        if given_by.variable is not None:
            yield _secret_file(item.name, given_by)
            continue
        default = inspect.Parameter.empty if item.default is MISSING else item.default
        option = typer.Option(
            given_by.name,
            metavar="FILE" if item.name.endswith("_file") else None,
            help=helps[item.name],
        )
        several = hint == tuple[str, ...]
        yield inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[list[str] if several else hint, option],
        )


def _secret_file(name: str, given_by: Option) -> inspect.Parameter:
    """Return an option for the path of a file with the secret ``name``.

    No option takes the secret itself, because other users of the machine can read command lines.
    """
    text = f"A file with the {name}; or set {given_by.variable}."
    option = typer.Option(given_by.name, metavar="FILE", help=text)
    return inspect.Parameter(
        _file_of(name),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, option],
    )


def _file_of(secret: str) -> str:
    return f"{secret}_file"


receive = typer.Typer(
    help="Take records from senders into a journal, and acknowledge them when they are durable.",
    no_args_is_help=True,
    add_completion=False,
)


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
            help="Print a settings file with every key, its unit, range and default.",
        ),
    ] = False,
) -> None:
    """Declare the option ``--print-settings`` of the command group."""


SettingsPath = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="TOML file with all other settings; 'headrace receive --print-settings' prints an"
        " example.",
    ),
]

LogAsJson = Annotated[
    bool,
    typer.Option("--json", help="Write the log to standard output, one JSON object on each line."),
]


def _add_command(name: str, settings: Any) -> None:
    @receive.command(name, help=settings.command_help)
    @options_from(Hosting, settings)
    def run(
        given: OptionValues,
        *,
        context: typer.Context,
        ledger: LedgerUrl = DEFAULT_LEDGER,
        settings_file: SettingsPath = None,
        as_json: LogAsJson = False,
    ) -> None:
        given.complete(settings)
        file = SettingsFile.read(settings_file, name)
        receiver = make_receiver(name, given.with_file(file).make(settings))
        hosting = _hosting(context, given.with_file(file), ledger)
        _run(receiver, hosting, given, as_json)


for _name, (_, _settings) in RECEIVERS.items():
    _add_command(_name, _settings)


def _hosting(context: typer.Context, given: OptionValues, ledger: str) -> Hosting:
    """Return the settings of a receiver's journal, lane and rate limits.

    Raise OptionError if the command line has ``--ledger`` without ``--gate``, because the ledger
    would not be used.
    """
    source = context.get_parameter_source("ledger")
    if given["gate"] is None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(
            "--ledger is given without --gate, so the ledger would not be used; name the gate too."
        )
    return given.make(Hosting, ledger=ledger)


def _listen(receiver: Listener, given: OptionValues) -> str:
    receiver.listen()
    host_name: str = given["host"]
    try:
        loopback = ipaddress.ip_address(host_name).is_loopback
    except ValueError:
        loopback = host_name == "localhost"
    if not loopback:
        _warn_of_others(host_name, given)
    return receiver.address()


def _warn_of_others(host_name: str, given: OptionValues) -> None:
    """Log a warning if any client on the network can send records, or read tokens and records."""
    if "token_file" not in given:  # senders of this kind have no token
        _LOG.warning(
            "Every client that can reach %s can send records; let only senders reach it.", host_name
        )
    elif not any(given[name] for name in ("token", "token_file", "client_ca_file")):
        _LOG.warning(
            "Every client that can reach %s can send records; require a token with --token-file"
            " or %s, or a certificate with --tls-client-ca.",
            host_name,
            TOKEN_VARIABLE,
        )
    elif given["certificate_file"] is None:
        _LOG.warning(
            "Tokens and records travel to %s unencrypted; give a certificate with"
            " --tls-certificate.",
            host_name,
        )


def _run(receiver: PlacedReceiver, hosting: Hosting, given: OptionValues, as_json: bool) -> None:
    stream, lines = (sys.stdout, JsonLog()) if as_json else (sys.stderr, TextLines())
    with logged(stream, lines):
        if not isinstance(receiver, Listener):
            host(receiver, hosting, receiver.address)
            return
        with contextlib.closing(receiver):
            host(receiver, hosting, lambda: _listen(receiver, given))


class JsonLog(logging.Formatter):
    """Log formatter for JSON objects: ``time_ms``, ``level``, ``message``, and event fields."""

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
