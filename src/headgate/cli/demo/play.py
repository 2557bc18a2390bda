"""What surrounds every demo: its services, its end, and its summary."""

import logging
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from headgate.cli.demo.demos import (
    Outcome,
    Target,
    latest_offsets,
    orders_demo,
    own_broker,
    topic_demo,
)
from headgate.cli.demo.session import spark_session
from headgate.cli.demo.signals import ignore_signals, leave_in_good_order
from headgate.cli.demo.stage import Stage, told_of_batches
from headgate.local import ensure_java


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        target: The user's own topic; None for a broker that is there for the demo only.
        produce: Whether orders are written into that topic.
        seconds: How long it lasts, with all that is started for it.
        picture_file: Where the picture of its best moment is written; None for nowhere.
        ledger_url: A ledger that stays; None for one that goes with the demo.
    """

    target: Target | None
    produce: bool
    seconds: float
    picture_file: Path | None
    ledger_url: str | None


def play(request: Request, console: Console) -> bool:
    """Run a demo from its beginning to its summary; nothing of it runs on, however it ends.

    Returns:
        Whether every record arrived exactly once.

    Raises:
        HeadgateError: It cannot run.
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
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headgate-demo-")))
    ensure_java()
    if request.target is None:
        target = cleanup.enter_context(own_broker(console))
    else:
        target = request.target
        latest_offsets(target)  # before anything is started for a topic that is not there
    console.print("Starting Spark")
    stage = Stage(
        spark=cleanup.enter_context(spark_session(folder)),
        folder=folder,
        ledger_url=request.ledger_url or f"sqlite:///{folder}/headgate.db",
        console=console,
        picture_file=request.picture_file,
        ends_s=began_s + request.seconds,
    )
    if request.target is None or request.produce:
        outcome = orders_demo(stage, target)
    else:
        outcome = topic_demo(stage, target)
    return outcome, told_of_batches(stage.ledger_url)
