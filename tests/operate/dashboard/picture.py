"""Makes the picture of ``docs/dashboard.md``: ``python -m tests.operate.dashboard.picture``.

It shows a ledger of four gates, as `histories` makes it, in the dashboard itself.
"""

import contextlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright
from tests.operate.dashboard.browsers import OFFLINE, find_browser
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, RateSample

PICTURE: Final = Path(__file__).parents[3] / "docs/images/dashboard.png"
GATES: Final = {"orders": -420, "payments": 0, "clicks": 310, "returns": -900}
"""Records by which the lag of each gate changes from batch to batch."""

PARTITIONS: Final = 6

FILLED_MS: Final = 20_000
"""Time from the start of the filling, which takes some seconds, to the last batch."""


def main() -> None:
    """Make it."""
    browser = find_browser()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/headrace.db"
        fill(url)
        command = [sys.executable, "-m", "headrace", "dashboard", "--ledger", url, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = process.stdout.readline().rpartition(" at ")[2].strip()
            with (
                sync_playwright() as playwright,
                contextlib.closing(
                    playwright.chromium.launch(executable_path=browser, args=list(OFFLINE))
                ) as running,
            ):
                page = running.new_page(viewport={"width": 1200, "height": 600})
                page.goto(address)
                wait_until(lambda: page.locator("#live").text_content() == "live")
                page.screenshot(path=PICTURE)
            process.terminate()


def fill(url: str, batches: int = 90) -> None:
    """A ledger whose gates have had batches until it returns."""
    chance, now_ms = random.Random(7), wall_clock_ms() + FILLED_MS
    times = [now_ms]
    with Ledger.open(url, clock=lambda: times[0]) as ledger:
        for gate, change in GATES.items():
            settings = EstimatorSettings().to_text()
            ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator=settings)
            lag, rate, start = 45_000 if change else 800, 1_600.0, 0
            for number in range(batches):
                times[0] = planned_ms = now_ms - (batches - number) * 1_000
                rate += chance.uniform(-40, 40)
                share = int(min(rate, lag) / PARTITIONS)
                lag = lag if lag > rate else share * PARTITIONS
                ranges = tuple(
                    PlannedRange(
                        OffsetRange(gate, each, start, start + share),
                        start + lag // PARTITIONS,
                        "rate",
                    )
                    for each in range(PARTITIONS)
                )
                start += share
                reason = "rate" if lag > rate else "all that was waiting"
                batch = PlannedBatch(gate, "run", ranges, reason, "localhost:9092", lag, rate)
                key = ledger.batches.begin(batch).batch_key
                took_ms = round(chance.uniform(700, 1_150 if change > 0 else 950))
                times[0] = min(planned_ms + took_ms, now_ms)
                if gate == "payments" and number in (40, 61):
                    ledger.batches.fail(key, ValueError("amount is '12,50', which is no number"))
                else:
                    ledger.batches.succeed(key, records=share * PARTITIONS)
                taken = share * PARTITIONS / took_ms * 1_000
                sample = RateSample(
                    gate, times[0], rate, share * PARTITIONS, took_ms, 0, taken, batch_key=key
                )
                ledger.rates.report(key, number, planned_ms, sample)
                lag = max(lag + change + chance.randint(-60, 60), 400)
    wait_until(lambda: wall_clock_ms() >= now_ms)


if __name__ == "__main__":
    main()
