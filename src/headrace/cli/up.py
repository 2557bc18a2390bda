"""``headrace up``: a broker, a PostgreSQL and a journal on this machine, to try things with."""

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli import shared_options as opt
from headrace.cli.printing import print_json
from headrace.errors import OptionError, SetupError
from headrace.journal import Journal

PARTITIONS: Final = 3
_POLL_S: Final = 0.2
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Service(StrEnum):
    """Service that can be left out."""

    KAFKA = "kafka"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class Services:
    """Running services, in ``headrace up --json``. None is a service that was left out.

    Attributes:
        kafka: The brokers' address, for ``kafka.bootstrap.servers``.
        topics: The topics that are there, of 3 partitions each; others are made when they are used.
        ledger: The URL of an empty database, on PostgreSQL or, without it, in a file.
        journal: A journal's folder.
        folder: Where all of it is, and will be deleted.
    """

    kafka: str | None
    topics: tuple[str, ...]
    ledger: str
    journal: str
    folder: str


def up(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A topic that is made; can be repeated.",
            show_default="orders",
        ),
    ] = None,
    without: Annotated[
        list[Service] | None,
        typer.Option(metavar="SERVICE", help="Leave out kafka or postgresql; can be repeated."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run a Kafka broker and a PostgreSQL, with a journal, on this machine until Ctrl-C.

    They listen on 127.0.0.1 alone, and are gone with all of their data at the end.
    The first start fetches Kafka (about 43 MB) into the cache, and needs a Java.
    Ctrl-C and SIGTERM end it.
    Exit status 0: it was ended so.
    Exit status 1: one of them cannot be had; a sentence says which, and why.
    """
    left_out = set(without or ())
    topics = tuple(dict.fromkeys(topic or ["orders"]))
    for each in _SIGNALS:
        signal.signal(each, _end)
    try:
        with ExitStack() as cleanup:
            services = _start(cleanup, topics, left_out)
            # First of what is done at the end: what is closed then is not interrupted.
            cleanup.callback(_ignore_signals)
            if as_json:
                print_json(asdict(services))
            else:
                typer.echo("\n".join(_lines(services)))
            sys.stdout.flush()
            while True:
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return


def _start(cleanup: ExitStack, topics: tuple[str, ...], left_out: set[Service]) -> Services:
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-up-")))
    # A server of another user, as root's PostgreSQL is, gets to its own folder through this one.
    folder.chmod(0o711)
    ledger = f"sqlite:///{folder}/headrace.db"
    if Service.POSTGRESQL not in left_out:
        ledger = _postgresql(cleanup, folder)
    journal = folder / "journal"
    Journal.open(str(journal), create=True)
    kafka = None if Service.KAFKA in left_out else _kafka(cleanup, topics)
    return Services(kafka, topics if kafka else (), ledger, str(journal), str(folder))


def _postgresql(cleanup: ExitStack, folder: Path) -> str:
    from headrace.local.servers import local_postgresql  # noqa: PLC0415  (only where wanted)

    own = folder / "postgresql"
    own.mkdir()
    try:
        return cleanup.enter_context(local_postgresql(own))
    except SetupError as error:
        raise SetupError(f"{error} Or leave it out: --without postgresql.") from error


def _kafka(cleanup: ExitStack, topics: Sequence[str]) -> str:
    from confluent_kafka import KafkaException  # noqa: PLC0415  (only where it is wanted)
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    from headrace.local import KafkaBroker, ensure_java, kafka_server_jars  # noqa: PLC0415

    try:
        java = ensure_java()
        jars = kafka_server_jars(java, _say)
        settings = {"auto.create.topics.enable": "true", "num.partitions": str(PARTITIONS)}
        broker = cleanup.enter_context(KafkaBroker(java, jars, settings=settings))
    except SetupError as error:
        raise SetupError(f"{error} Or leave it out: --without kafka.") from error
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in topics])
    for name, each in made.items():
        try:
            each.result(30)
        except KafkaException as error:
            raise OptionError(
                f"The topic {name!r} cannot be made: {error.args[0].str()}; give a name of letters,"
                " digits, '.', '_' and '-'."
            ) from error
    return str(broker.bootstrap_servers)


def _lines(services: Services) -> list[str]:
    lines = [f"journal     {services.journal}", f"ledger      {services.ledger}"]
    if services.kafka is not None:
        names = ", ".join(services.topics)
        lines.insert(0, f"Kafka       {services.kafka}   topics of 3 partitions: {names}")
    lines += ["", "For the commands and your program:", ""]
    lines.append(f"  export HEADRACE_LEDGER='{services.ledger}'")
    if services.kafka is not None:
        first = f'.option("kafka.bootstrap.servers", "{services.kafka}")'
        lines.append(f'  {first}.option("subscribe", "{services.topics[0]}")')
    lines.append(f"  headrace receive http --journal {services.journal} --lane 0")
    return [*lines, "", "Ctrl-C ends it and deletes all of it."]


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _end(_number: int, _frame: object) -> None:
    sys.exit(0)


def _ignore_signals() -> None:
    for each in (signal.SIGINT, *_SIGNALS):
        signal.signal(each, signal.SIG_IGN)
