"""Options that every ``headrace receive`` has, whatever it receives."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.errors import OptionError

TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"  # noqa: S105  # its name

JournalUrl = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="JOURNAL",
        help="Its directory, s3://bucket/prefix or webhdfs://host:port/path; made if need be.",
    ),
]
Lane = Annotated[
    int,
    typer.Option(help="The lane to write, 0 to 99999; each receiver has its own.", min=0),
]
HostName = Annotated[
    str, typer.Option("--host", help="Where to listen; 0.0.0.0 lets in other machines.")
]
Port = Annotated[int, typer.Option(help="The port; 0 for any that is free, which is told.", min=0)]
Gate = Annotated[
    str | None,
    typer.Option(help="Go by this gate's rate, shared with its other receivers."),
]
LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="HEADRACE_LEDGER",
        help="The gate's ledger: sqlite:///file.db or postgresql://user@host/database.",
    ),
]
MaxRate = Annotated[
    float | None, typer.Option(help="Records/s at most, whatever the gate's rate is.")
]
MaxBytesRate = Annotated[
    float | None, typer.Option(help="Bytes/s at most, of keys, values and headers.")
]
InitialRate = Annotated[
    float,
    typer.Option(
        help="Records/s of all receivers of the gate together, until it has learnt a rate."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"A file with the token that senders must show; or set {TOKEN_VARIABLE}. "
        "Without either, everybody who can reach the port may send.",
    ),
]
BlockIntervalMs = Annotated[
    float, typer.Option(help="The longest that a record waits for its block to be written (ms).")
]
BlockBytes = Annotated[
    int, typer.Option(help="The size at which a block is written at once (bytes in memory).")
]
BufferBytes = Annotated[
    int,
    typer.Option(help="The most that records take until they are durable (bytes in memory)."),
]
RememberedIds = Annotated[
    int,
    typer.Option(
        help="How many message ids are remembered, so that what comes twice is stored once."
    ),
]
MaxConnections = Annotated[int, typer.Option(help="How many senders may be connected.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="The log as one JSON object per line, on the standard output."),
]


def token_of(file: Path | None) -> str | None:
    """The token that senders must show: a file's, else the environment's, else none.

    Raises:
        OptionError: The file cannot be read.
    """
    return secret_of(file, "--token-file", TOKEN_VARIABLE)


def secret_of(file: Path | None, option: str, variable: str) -> str | None:
    """What is in the file of this option, else in this environment variable, else None.

    Raises:
        OptionError: The file cannot be read.
    """
    if file is None:
        return os.environ.get(variable)
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(
            f"The file {file} of {option} cannot be read: {reason}; name another one."
        ) from error


def refuse_a_ledger_alone(context: typer.Context, gate: str | None) -> None:
    """Refuse a ledger that was asked for, and would not be used.

    Raises:
        OptionError: There is one, and no gate.
    """
    source = context.get_parameter_source("ledger")
    if gate is None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(
            "--ledger is given without --gate, and would not be used; name the gate too."
        )
