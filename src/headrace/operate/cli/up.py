"""``headrace up``: runs a Kafka broker and PostgreSQL, with a journal, on this machine."""

import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.errors import SetupError
from headrace.journal import Journal
from headrace.operate.cli import shared_options as opt
from headrace.operate.cli.exits import ENDS

PARTITIONS: Final = 3


class Service(StrEnum):
    """Service that ``--without`` can leave out."""

    KAFKA = "kafka"
    POSTGRESQL = "postgresql"


def up(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Topic to create; can be repeated.", show_default="orders"
        ),
    ] = None,
    without: Annotated[
        list[Service] | None,
        typer.Option(metavar="SERVICE", help="Leave out kafka or postgresql; can be repeated."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run a Kafka broker, a PostgreSQL server and a journal on this machine until Ctrl-C.

    The services listen on 127.0.0.1 only. All their data is deleted at the end.
    The first start downloads Kafka (about 43 MB) into the cache. Kafka needs Java.
    Ctrl-C and SIGTERM end the services.
    Exit status 0: Ctrl-C or SIGTERM ended the services.
    Exit status 1: a service cannot be started; the error names it and the reason.
    """
    for number in ENDS:
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with ExitStack() as cleanup:
            services = _start(cleanup, list(dict.fromkeys(topic or ["orders"])), set(without or ()))
            # Entered last, so called first: Ctrl-C does not interrupt the closing of the services.
            for number in (signal.SIGINT, *ENDS):
                cleanup.callback(signal.signal, number, signal.SIG_IGN)
            typer.echo(json.dumps(services) if as_json else "\n".join(_lines(services)))
            while True:
                time.sleep(0.2)
    except KeyboardInterrupt:
        return


def _start(cleanup: ExitStack, topics: list[str], left_out: set[Service]) -> dict[str, Any]:
    """Start the services that are not in ``left_out``. Return the values for ``--json``.

    The value ``kafka`` is the broker's address, or None if Kafka is left out.
    """
    from headrace.operate.local.servers import local_postgresql, start_kafka  # noqa: PLC0415

    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-up-")))
    # PostgreSQL runs as another user if this user is root, and has to traverse this folder.
    folder.chmod(0o711)
    kafka, ledger, journal = None, f"sqlite:///{folder}/headrace.db", str(folder / "journal")
    Journal.open(journal, create=True)
    service = Service.POSTGRESQL
    try:
        if service not in left_out:
            (folder / service).mkdir()
            ledger = cleanup.enter_context(local_postgresql(folder / service))
        service = Service.KAFKA
        if service not in left_out:
            progress = lambda line: typer.echo(line, err=True)  # noqa: E731
            kafka = start_kafka(cleanup, topics, PARTITIONS, progress)
    except SetupError as error:
        raise SetupError(f"{error} Or leave {service} out: --without {service}.") from error
    values = {"kafka": kafka, "topics": topics if kafka else [], "ledger": ledger}
    return values | {"journal": journal, "folder": str(folder)}


def _lines(services: dict[str, Any]) -> list[str]:
    kafka, topics = services["kafka"], services["topics"]
    lines = [f"journal     {services['journal']}", f"ledger      {services['ledger']}"]
    if kafka is not None:
        lines.insert(0, f"Kafka       {kafka}   topics of 3 partitions: {', '.join(topics)}")
    lines += ["", "For the commands and your program:", ""]
    lines.append(f"  export HEADRACE_LEDGER='{services['ledger']}'")
    if kafka is not None:
        first = f'.option("kafka.bootstrap.servers", "{kafka}")'
        lines.append(f'  {first}.option("subscribe", "{topics[0]}")')
    lines.append(f"  headrace receive http --journal {services['journal']} --lane 0")
    return [*lines, "", "Ctrl-C ends the services and deletes their data."]
