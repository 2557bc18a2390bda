"""Cost of the dashboard, delay until a batch is on its page, and effect of viewers on batches."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from bench.figures import AtMost, Figure
from bench.history import GATES, fill, planned
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headrace.gate.ledger.ledger import Ledger

VIEWERS: Final = 10
HISTORY: Final = 1_000
"""Batches in the ledger before."""

TICKS_PER_S: Final = 100
"""Ticks a second of the processor time in `/proc`."""

PERIOD_S: Final = 1.0
"""Between two batches."""

TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Viewer:
    """Reads the events of the first page in a thread of its own."""

    port: int
    arrived_s: dict[int, float] = field(default_factory=dict)
    """When a lag came, by the lag."""
    closed: bool = False

    def seen_s(self, lag: int) -> float:
        """When a batch came with this lag, or one after it: a page may show two at once."""
        return min(at_s for arrived, at_s in self.arrived_s.items() if arrived >= lag)

    def read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        connection.request("GET", "/live?at=%2F")
        answer = connection.getresponse()
        while not self.closed:
            line = answer.readline()
            if line.startswith(b"data: {") and b'"regions"' in line:
                rows = json.loads(line[6:])["regions"]
                for html in rows.values():
                    self._note(html)
        connection.close()

    def _note(self, html: str) -> None:
        _, _, lag = html.partition('data-label="lag" class="num">')
        digits = lag.partition(" ")[0].partition("<")[0].replace(",", "")
        if digits.isdecimal():
            self.arrived_s.setdefault(int(digits), time.monotonic())


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """One gate with a batch a second, without viewers and with ten."""
    url = stage.fresh_ledger()
    fill(url, HISTORY, time.time_ns() // 1_000_000)
    batches = max(scale.repetitions // 2, 2)
    with Ledger.open(url) as ledger:
        alone_ms, _ = _run(ledger, 0, batches)
        with _dashboard(url) as (port, process_id, started_s), ExitStack() as stack:
            viewers = [stack.enter_context(_viewer(port)) for _ in range(VIEWERS)]
            _wait_until_seen(viewers)
            before_s, began_s = _processor_s(process_id), time.monotonic()
            beside_ms, ended_s = _run(ledger, batches, batches)
            _wait_for_lags(viewers, ended_s)
            passed_s = time.monotonic() - began_s
            used = (_processor_s(process_id) - before_s) / passed_s
            delays_s = [
                viewer.seen_s(lag) - at_s for viewer in viewers for lag, at_s in ended_s.items()
            ]
    yield Figure("from the command to the page", "s", Spread.of([started_s]), target=AtMost(2))
    yield Figure("a batch is on the page after", "s", Spread.of(delays_s), target=AtMost(1))
    yield Figure("the server, 10 viewers", "% of a core", Spread.of([100 * used]), target=AtMost(5))
    yield Figure(
        "the ledger's part of a batch beside 10 viewers, compared with none",
        "times",
        Spread.of([median(beside_ms) / median(alone_ms)]),
        details={"alone_ms": alone_ms, "beside_ms": beside_ms},
    )


def _run(ledger: Ledger, first: int, batches: int) -> tuple[list[float], dict[int, float]]:
    """Return the time of each batch in the ledger (ms), and when it was there (s), by its lag."""
    took_ms, there_s = [], {}
    for number in range(first, first + batches):
        batch = replace(planned(GATES[0], "bench", number, 4), lag=700_000 + number)
        began_s = time.monotonic()
        key = ledger.batches.begin(batch).batch_key
        ledger.batches.succeed(key)
        ended_s = time.monotonic()
        took_ms.append((ended_s - began_s) * 1_000)
        there_s[batch.lag or 0] = ended_s
        time.sleep(PERIOD_S)
    return took_ms, there_s


@contextmanager
def _dashboard(url: str) -> Iterator[tuple[int, int, float]]:
    """Its port, its process, and how long it took to the first page (s)."""
    command = [sys.executable, "-m", "headrace", "dashboard", "--ledger", url, "--port", "0"]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().rpartition(" at ")[2].strip()
            port = urlsplit(address).port or 0
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            connection.request("GET", "/")
            assert connection.getresponse().read()
            connection.close()
            yield port, process.pid, time.monotonic() - began_s
        finally:
            process.terminate()


@contextmanager
def _viewer(port: int) -> Iterator[_Viewer]:
    viewer = _Viewer(port)
    reading = threading.Thread(target=viewer.read)
    reading.start()
    try:
        yield viewer
    finally:
        viewer.closed = True
        reading.join()


def _wait_until_seen(viewers: list[_Viewer]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not all(viewer.arrived_s for viewer in viewers) and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _wait_for_lags(viewers: list[_Viewer], lags: dict[int, float]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(max(viewer.arrived_s, default=0) < max(lags) for viewer in viewers):
        assert time.monotonic() < deadline_s, "the last batch did not reach every viewer"
        time.sleep(0.05)


def _processor_s(process_id: int) -> float:
    """The processor time that a process has used (s)."""
    values = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / TICKS_PER_S
