"""The options of ``headrace demo``."""

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

DEFAULT_SECONDS: Final = 90.0


def demo(
    *,
    broker: Annotated[
        bool, typer.Option("--broker", help="Start a Kafka broker, instead of a receiver.")
    ] = False,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Your own broker; nothing is started.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="An existing topic on your own broker; it is only read.")
    ] = None,
    produce: Annotated[
        bool, typer.Option("--produce", help="Write the demo's orders to that topic, too.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=10, help="About how long it lasts, start and end included.")
    ] = DEFAULT_SECONDS,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write the picture of its best moment to this file.", dir_okay=False),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="Keep the ledger at this URL, to look at it with headrace status while it runs."
        ),
    ] = None,
) -> None:
    """Watch a gated query: a backlog, a handler that gets slower, and no loss.

    Orders are sent over HTTP to a receiver, which keeps them in a journal and slows their sender
    down when the query cannot keep up; or, with --broker, to a Kafka broker.
    It ends by itself, counts what was produced and what arrived, and leaves nothing running. The
    exit status is 1 if a record is missing or came twice.
    """
    if (kafka is None) != (topic is None):
        raise typer.BadParameter("--kafka and --topic belong together; give both or neither.")
    if broker and kafka is not None:
        raise typer.BadParameter("--broker starts one, and --kafka names yours; give one of them.")
    if produce and kafka is None:
        raise typer.BadParameter("--produce is for a topic of yours; give --kafka and --topic.")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise typer.BadParameter(f"--svg is {svg}, in a folder that does not exist; make it.")
    # Half a second of imports, which the other commands do without.
    from headrace.cli.demo.places import TopicPlace  # noqa: PLC0415
    from headrace.cli.demo.play import Request, play  # noqa: PLC0415

    own = TopicPlace(kafka, topic) if kafka is not None and topic is not None else None
    request = Request(own, broker, produce, seconds, svg, ledger)
    if not play(request, Console(highlight=False)):
        raise typer.Exit(1)
