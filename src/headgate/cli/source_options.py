"""Options of the source, given on the command line or in a file, for what reads or writes Kafka."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from headgate.errors import OptionError
from headgate.kafka.options import parse_options
from headgate.ledger import Ledger

Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the stream, such as kafka.security.protocol=SSL; can be repeated.",
    ),
]
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        help="A file with such options, one NAME=VALUE a line, # for comments: for secrets.",
    ),
]

_SERVERS: Final = "kafka.bootstrap.servers"

_WHAT_TO_READ: Final = frozenset({"subscribe", "subscribepattern", "assign"})


def source_options(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """The options of a file, and those given by themselves, which stand over the file's.

    Args:
        given: Each ``NAME=VALUE``.
        file: With one on each line.

    Returns:
        By name; names are the same in any case, and the last one stands.

    Raises:
        OptionError: The file cannot be read, or something is not of that form; no value is shown.
    """
    named = dict[str, tuple[str, str]]()
    for where, text in [*_lines(file), *(("--option", each) for each in given)]:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise OptionError(
                f"{where} is not NAME=VALUE; write it as kafka.security.protocol=SSL."
            )
        named[name.strip().lower()] = (name.strip(), value.strip())
    return dict(named.values())


def options_by_batch(
    ledger: Ledger, keys: Iterable[str], options: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The options with which what each batch reads is reached.

    Args:
        ledger: Where the brokers of each batch are written down.
        keys: The batches.
        options: As given; brokers that these name stand for all batches.

    Raises:
        OptionError: An option is not one that a stream can have.
        LedgerError: The ledger cannot be read.
    """
    servers = {key: ledger.servers(key) for key in keys}
    complete = {each: _with_servers(options, each) for each in set(servers.values())}
    return {key: complete[each] for key, each in servers.items()}


def _with_servers(options: Mapping[str, str], servers: str | None) -> dict[str, str]:
    named = {name.lower() for name in options}
    complete = dict(options)
    if _SERVERS not in named and servers is not None:
        complete[_SERVERS] = servers
    # What a stream also has to have, but nothing is read with here.
    rest = {"headgate.gate": "gate", "headgate.ledger": "sqlite:///headgate.db"}
    if not named & _WHAT_TO_READ:
        rest["subscribe"] = "topic"
    parse_options(rest | complete, streaming=True)
    return complete


def _lines(file: Path | None) -> Iterator[tuple[str, str]]:
    """Where each option of a file is, and its text."""
    if file is None:
        return
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(
            f"The file {file} of --options-file cannot be read: {reason}; name another one."
        ) from error
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"Line {number} of {file}", line
