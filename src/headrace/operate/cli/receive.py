"""``headrace receive``: take records from senders into a journal, and acknowledge them."""

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
    """The values of options, by the names of the fields that they were made from.

    What a command does not show is among them after `complete`.
    """

    def complete(self, kind: type) -> None:
        """Add secrets of these settings, from their files or variables, and names of the lane's.

        Raises:
            OptionError: A file of a secret cannot be read.
        """
        for each, _, _ in described_fields(kind):
            given_by = option_of(each)
            if given_by.pattern is not None:
                journal = self["journal"].rstrip("/").rpartition("/")[2]
                self[each.name] = given_by.pattern.format(journal=journal, lane=self["lane"])
            elif given_by.variable is not None:
                self[each.name] = self._secret(each.name, given_by, given_by.variable)

    def _secret(self, name: str, given_by: Option, variable: str) -> str | None:
        if given_by.instead is None:
            return secret_of(self[_file_of(name)], str(given_by.name), variable)
        return os.environ.get(variable) if self[given_by.instead] is None else None

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
                value = self.make(nested) if nested else self[each.name]
                values[each.name] = tuple(value) if isinstance(value, list) else value
        return kind(**values)


def options_from(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for fields of settings; it gets their `OptionValues` first.

    Args:
        kinds: The settings' dataclasses, whose fields say their options (`option`); fields that are
            dataclasses have options for theirs. A parameter of the command's own replaces one.
    """
    made = [each for kind in kinds for each in _parameters(kind)]

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        return with_parameters(
            command, [each for each in made if each.name not in own], OptionValues
        )

    return give


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    helps = sentences(kind)
    for each, hint, nested in described_fields(kind):
        if nested is not None:
            yield from _parameters(nested)
        given_by = option_of(each)
        if given_by.name is None or given_by.instead is not None:
            continue
        if given_by.variable is not None:
            yield _secret_file(each.name, given_by)
            continue
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        option = typer.Option(
            given_by.name,
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


def _secret_file(name: str, given_by: Option) -> inspect.Parameter:
    """Return the parameter of a secret, which is no word of a command line, where others see it."""
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
    """Return the records' destination; a ledger that was named and would not be used is refused."""
    source = context.get_parameter_source("ledger")
    if given["gate"] is None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(
            "--ledger is given without --gate, and would not be used; name the gate too."
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
    """Log what others on the network can do to a receiver with these settings."""
    if "token_file" not in given:  # senders of this kind cannot show one
        _LOG.warning(
            "Whoever can reach %s can send records; let nobody reach it but senders.", host_name
        )
    elif not any(given[each] for each in ("token", "token_file", "client_ca_file")):
        _LOG.warning(
            "Whoever can reach %s can send records; have them show a token: --token-file or"
            " %s, or a certificate: --tls-client-ca.",
            host_name,
            TOKEN_VARIABLE,
        )
    elif given["certificate_file"] is None:
        _LOG.warning(
            "Tokens and records travel to %s unencrypted; name a certificate: --tls-certificate.",
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
