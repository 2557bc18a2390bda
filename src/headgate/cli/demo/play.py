"""What surrounds every demo: its services, its end, and its summary."""

import logging
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from headgate.cli.demo.audit import Finding
from headgate.cli.demo.demos import Target, latest_offsets, orders_demo, own_broker, topic_demo
from headgate.cli.demo.session import spark_session
from headgate.cli.demo.stage import Stage, told_of_batches
from headgate.cli.words import count
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
    _leave_in_good_order()
    with ExitStack() as cleanup:
        try:
            finding, told = _play(request, console, cleanup)
        finally:
            _ignore_further_signals()
    console.print(
        f"{count(finding.expected)} produced, {count(finding.arrived)} arrived: {finding}."
    )
    console.print(told)
    return finding.passed


def _play(request: Request, console: Console, cleanup: ExitStack) -> tuple[Finding, str]:
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
        finding = orders_demo(stage, target)
    else:
        finding = topic_demo(stage, target)
    return finding, told_of_batches(stage.ledger_url)


def _leave_in_good_order() -> None:
    """Be ended from outside as by Ctrl-C; and keep what runs below from writing over the screen."""

    def leave(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    for name in ("py4j", "headgate"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def _ignore_further_signals() -> None:
    """What has been started is ended first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
