"""What surrounds every demo: its services, its end, and its summary."""

import logging
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from headrace.cli.demo.demos import (
    Outcome,
    orders_demo,
    topic_demo,
)
from headrace.cli.demo.places import Place, TopicPlace, own_broker, own_receiver
from headrace.cli.demo.session import spark_session
from headrace.cli.demo.signals import ignore_signals, leave_in_good_order
from headrace.cli.demo.stage import Stage, told_of_batches
from headrace.local import ensure_java


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        topic: The user's own topic; None for a place that is there for the demo only.
        with_broker: Whether that place is a Kafka broker, and not a receiver with a journal.
        produce: Whether orders are written into that topic.
        seconds: How long it lasts, with all that is started for it.
        picture_file: Where the picture of its best moment is written; None for nowhere.
        ledger_url: A ledger that stays; None for one that goes with the demo.
    """

    topic: TopicPlace | None
    with_broker: bool
    produce: bool
    seconds: float
    picture_file: Path | None
    ledger_url: str | None


def play(request: Request, console: Console) -> bool:
    """Run a demo from its beginning to its summary; nothing of it runs on, however it ends.

    Returns:
        Whether every record arrived exactly once.

    Raises:
        HeadraceError: It cannot run.
    """
    leave_in_good_order()
    logging.getLogger().addHandler(logging.NullHandler())  # the screen is the show's
    with ExitStack() as cleanup:
        try:
            outcome, told = _play(request, console, cleanup)
        finally:
            ignore_signals()
    console.print(outcome.sentence, soft_wrap=True)
    console.print(told, soft_wrap=True)
    return outcome.passed


def _play(request: Request, console: Console, cleanup: ExitStack) -> tuple[Outcome, str]:
    began_s = time.monotonic()
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
    ensure_java()
    ledger_url = request.ledger_url or f"sqlite:///{folder}/headrace.db"
    place: Place
    if request.topic is not None:
        place = request.topic
        place.ends()  # before anything is started for a topic that is not there
    elif request.with_broker:
        place = cleanup.enter_context(own_broker(console))
    else:
        place = cleanup.enter_context(own_receiver(console, folder, ledger_url))
    console.print("Starting Spark")
    stage = Stage(
        spark=cleanup.enter_context(spark_session(folder)),
        folder=folder,
        ledger_url=ledger_url,
        console=console,
        picture_file=request.picture_file,
        ends_s=began_s + request.seconds,
    )
    if request.topic is None or request.produce:
        outcome = orders_demo(stage, place)
    else:
        outcome = topic_demo(stage, place)
    return outcome, told_of_batches(stage.ledger_url)
