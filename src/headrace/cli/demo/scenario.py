"""The demo's course: what happens when, and what is counted at the end."""

import json
import logging
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.live import Live

from headrace.cli.demo.driver import GATE, INTERVAL_S
from headrace.cli.demo.lanes_view import Frame
from headrace.cli.demo.services import (
    OrderSender,
    PythonProcess,
    open_source,
    page_opener,
    show_dashboard,
)
from headrace.cli.demo.shop import GATED, UNGATED, Run, Shop, missing_and_twice
from headrace.cli.exits import ENDS, leave
from headrace.cli.printing import count, plural, write_picture
from headrace.errors import HeadraceError
from headrace.ledger import Ledger
from headrace.local import ensure_java

ORDERS_PER_S: Final = 1_100
"""Less than half of what a handler can process, and much more than it can when it is slow."""

BACKLOG: Final = 20_000
MOST_WAITING: Final = 25_000
"""Orders that wait behind the gate, on a machine so slow that no more are sent for a while."""

SLOWDOWN: Final = 4

ACTS: Final = (
    (
        "A backlog",
        f"{count(BACKLOG)} orders wait, and {count(ORDERS_PER_S)} more come each second. Without a"
        f" gate the first batch takes all; the gate learns what fits into {INTERVAL_S} s.",
    ),
    (
        "The handler becomes four times slower",
        "Without a gate each batch takes longer than the one before. With one the batches shrink,"
        f" and still take {INTERVAL_S} s.",
    ),
    (
        "A bad record",
        "The handler is fast again, and one order cannot be read. The gate's handler puts it"
        " aside as a dead letter; a plain query stops at it, sooner or later.",
    ),
    (
        "The driver is killed, and comes back",
        "kill -9, in the middle of a batch. The gate goes on with the rate that it had learnt;"
        " without one, the next batch takes all that has come meanwhile.",
    ),
    ("The proof", "No more orders come. What arrived is compared with what was sent."),
)

_HOLDS_S: Final = (13.0, 8.0, 0.0, 7.0)
"""Durations of the acts, and of both halves of the second one, last in a demo of `_WHOLE_S` (s)."""

_WHOLE_S: Final = 75.0
_START_S, _HAPPENS_S, _LOOK_S, _LINE_S = 180.0, 120.0, 0.25, 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of the lane with a gate, and its course.

    Attributes:
        sent: orders that could be read, by the count of who sent them.
        arrived: those that the handler has written.
        missing: those that it has not.
        twice: those that it has more than once, or that nobody sent.
        bad_sent: orders that could not be read.
        dead_letters: what was put aside.
        climb_s: from its first batch to the first that was 0.8 of what could be sustained.
        sustained: orders in a batch, on a backlog and before the handler became slow.
        after_restart: orders in the first batch of the driver that came back.
        acts_s: how long each act took (s).
    """

    sent: int
    arrived: int
    missing: int
    twice: int
    bad_sent: int
    dead_letters: int
    climb_s: float | None
    sustained: int | None
    after_restart: int | None
    acts_s: tuple[float, ...]

    @property
    def passed(self) -> bool:
        """Whether each order is there once, and each bad one was put aside."""
        return self.missing == self.twice == 0 and self.dead_letters == self.bad_sent

    @property
    def proof(self) -> str:
        """Counts, in two sentences."""
        return (
            f"{count(self.sent)} orders sent, {count(self.arrived)} arrived:"
            f" {count(self.missing) if self.missing else 'none'} missing,"
            f" {count(self.twice) if self.twice else 'none'} twice.\n"
            f"{plural(self.bad_sent, 'bad record')} sent, {count(self.dead_letters)} put aside."
        )

    def __str__(self) -> str:
        climb = f"{self.climb_s:.1f} s" if self.climb_s is not None else "unknown"
        return (
            f"{self.proof}\n"
            f"The climb to {count(self.sustained)} orders a batch took {climb}; the first batch"
            f" after the restart had {count(self.after_restart)}."
        )


def run_demo(
    *,
    broker: bool,
    seconds: float,
    picture: Path | None,
    ledger: str | None,
    open_browser: bool,
    console: Console,
) -> Outcome:
    """Run the demo. Nothing of it goes on running, and nothing of it is left.

    Raises:
        HeadraceError: something of it does not start, or stops.
    """
    for number in ENDS:
        signal.signal(number, leave)
    logging.getLogger().addHandler(logging.NullHandler())  # the screen is the demo's
    with ExitStack() as cleanup:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-")
            folder = Path(cleanup.enter_context(temporary))
            url = ledger or f"sqlite:///{folder}/headrace.db"
            book = cleanup.enter_context(Ledger.open(url))
            dashboard = PythonProcess(
                folder / "dashboard", "headrace", "dashboard", "--port", "0", "--ledger", url
            )
            cleanup.callback(dashboard.stop)
            show_dashboard(dashboard, console, page_opener(console, wanted=open_browser))
            ensure_java()
            source = cleanup.enter_context(open_source(console, folder, broker=broker))
            work = folder / "driver"
            driver = PythonProcess(work, "headrace.cli.demo.driver", str(work))
            settings = {"ledger": url, "source": source.kind, "options": dict(source.options)}
            (work / "driver.json").write_text(json.dumps(settings))
            shop = cleanup.enter_context(Shop(work))
            cleanup.callback(driver.stop)
            sender = cleanup.enter_context(OrderSender(source))
            scenario = Scenario(shop, book, driver, sender, console, seconds / _WHOLE_S)
            outcome = scenario.play()
            if picture is not None:
                write_picture(scenario.frame(outcome.proof), picture, "headrace demo")
        finally:
            # Closing goes on, however often the user presses Ctrl-C.
            for number in (signal.SIGINT, *ENDS):
                signal.signal(number, signal.SIG_IGN)
    return outcome


@dataclass(slots=True)
class Scenario:
    """The acts, one after the other, on the screen of a terminal or as lines."""

    shop: Shop
    ledger: Ledger
    driver: PythonProcess
    sender: OrderSender
    console: Console
    pace: float
    _live: Live | None = None
    _line_s: float = 0.0
    _marks: list[float] = field(default_factory=list)
    _killed_s: float = float("inf")

    def play(self) -> Outcome:
        """Play all acts; answers what was counted."""
        self.console.print("Starting Spark, with a query without a gate and one with a gate")
        self.sender.send_backlog(round(BACKLOG * self.pace))
        self.driver.start()
        self._until(lambda: bool(self._gated()), _START_S, "Spark has no first batch")
        with ExitStack() as shown:
            if self.console.is_terminal:
                live = Live(console=self.console, screen=True, auto_refresh=False)
                self._live = shown.enter_context(live)
            self._play()
        outcome = self._outcome()
        if self.console.is_terminal:
            self.console.print(self.frame(outcome.proof))
        return outcome

    def frame(self, proof: str | None = None) -> Frame:
        """The demo at this moment."""
        runs = self.shop.runs()
        began_s = runs[0].began_s if runs else time.time()
        number = max(len(self._marks), 1)
        name, caption = ACTS[number - 1]
        sent = self.sender.sent + self.sender.bad
        span_s = _WHOLE_S * self.pace - 10
        title = f"{number}/{len(ACTS)} {name}"
        return Frame(title, proof or caption, self._marks, runs, sent, began_s, time.time(), span_s)

    def _play(self) -> None:
        self._begin(0)
        # Spark starts the second query when the first has had a batch.
        self._until(lambda: {UNGATED, GATED} <= self._lanes(), _HAPPENS_S, "a query did not start")
        self.sender.start(ORDERS_PER_S)
        self._hold(0)
        self._begin(1)
        self.shop.slow_down(SLOWDOWN)
        self._hold(1)
        # It reaches the handlers after what waits.
        self.sender.send_bad()
        self._hold(1)
        self._begin(2)
        self.shop.slow_down(1)
        self._until(lambda: self._letters() > 0, _HAPPENS_S, "the bad record was not put aside")
        self._hold(2)
        self._begin(3)
        self._until(self._is_in_batch, _HAPPENS_S, "no batch began")
        self.driver.kill()
        self._killed_s = time.time()
        self.shop.end_all("killed")
        self.driver.start()
        self._until(lambda: bool(self._after_restart()), _HAPPENS_S, "no batch began again")
        self._hold(3)
        self._begin(4)
        self.sender.stop()
        self._until(lambda: self.frame().waiting(GATED) == 0, _HAPPENS_S, None)

    def _begin(self, act: int) -> None:
        self._marks.append(time.time())
        if self._live is None:
            name, caption = ACTS[act]
            self.console.print(f"{act + 1}/{len(ACTS)} {name}. {caption}", soft_wrap=True)

    def _hold(self, act: int) -> None:
        ends_s = time.monotonic() + _HOLDS_S[act] * self.pace
        self._until(lambda: time.monotonic() >= ends_s, 2 * _WHOLE_S * self.pace, None)

    def _until(self, done: Callable[[], bool], most_s: float, failure: str | None) -> None:
        """Show the demo until something has happened; if it does not, raise or go on."""
        ends_s = time.monotonic() + most_s
        while not done():
            self.driver.check()
            self.sender.check()
            if time.monotonic() > ends_s:
                if failure is None:
                    return
                raise HeadraceError(f"The demo stopped, because {failure} in {most_s:.0f} s.")
            frame = self.frame()
            self.sender.paused = frame.waiting(GATED) > MOST_WAITING
            self._show(frame)
            time.sleep(_LOOK_S)

    def _show(self, frame: Frame) -> None:
        if self._live is not None:
            self._live.update(frame, refresh=True)
        elif self._marks and time.monotonic() > self._line_s:
            self.console.print(frame.line(), soft_wrap=True)
            self._line_s = time.monotonic() + _LINE_S

    def _lanes(self) -> set[str]:
        return {run.lane for run in self.shop.runs()}

    def _gated(self) -> list[Run]:
        return [run for run in self.shop.runs() if run.lane == GATED]

    def _is_in_batch(self) -> bool:
        runs = self._gated()
        return bool(runs) and runs[-1].ended_s is None and runs[-1].orders > 0

    def _after_restart(self) -> list[Run]:
        """Batches of the driver that came back; the first of them repeats the one it was in."""
        return [run for run in self._gated() if run.began_s > self._killed_s and run.orders][1:]

    def _letters(self) -> int:
        return self.ledger.batches.count_unresolved(GATE).letters

    def _outcome(self) -> Outcome:
        times = self.shop.times(GATED)
        missing, twice = missing_and_twice(times, self.sender.sent)
        before = [run for run in self._gated() if run.began_s < self._marks[1] and run.ended_s]
        sustained = round(median(run.orders for run in before[-5:])) if before else None
        climbed = (run.began_s for run in before if run.orders >= 0.8 * (sustained or 0))
        first = next(iter(self._after_restart()), None)
        ends = [*self._marks[1:], time.time()]
        return Outcome(
            sent=self.sender.sent,
            arrived=len(times),
            missing=missing,
            twice=twice,
            bad_sent=self.sender.bad,
            dead_letters=self._letters(),
            climb_s=round(next(climbed) - before[0].began_s, 1) if before else None,
            sustained=sustained,
            after_restart=first.orders if first else None,
            acts_s=tuple(
                round(end - begin, 1) for begin, end in zip(self._marks, ends, strict=True)
            ),
        )
