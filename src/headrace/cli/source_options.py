"""Options of the source, given on the command line or in a file, for what reads it once more."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.errors import OptionError
from headrace.ledger import Ledger

if TYPE_CHECKING:
    from headrace.source.connector import Connector

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


class Reached(NamedTuple):
    """How what a batch reads is reached.

    Attributes:
        connector: Of its gate's source.
        options: The stream's, with where it is.
    """

    connector: "Connector"
    options: dict[str, str]


def reached(
    ledger: Ledger, gate_of: Mapping[str, str], options: Mapping[str, str]
) -> dict[str, Reached]:
    """How what each batch reads is reached, by the batch's key.

    Args:
        ledger: Where it is written down what kind of source it was, and where.
        gate_of: The gate of each batch, by the batch's key.
        options: As given; a place that these name stands for all batches.

    Raises:
        OptionError: An option is not one that a stream can have.
        LedgerError: The ledger cannot be read.
    """
    # It imports pyspark, which takes a second; those who only list do without.
    from headrace.execution.spark_session import connector_of  # noqa: PLC0415

    source_of = {gate.name: gate.source for gate in ledger.gates()}
    places = {key: (source_of[gate], ledger.servers(key)) for key, gate in gate_of.items()}
    complete = {}
    for source, servers in set(places.values()):
        connector = connector_of(source)
        complete[source, servers] = Reached(connector, connector.located(options, servers))
    return {key: complete[place] for key, place in places.items()}


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
