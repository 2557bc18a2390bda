"""Receivers on the executors of a cluster, one of which is killed, as is the driver in the end.

The senders, outside of the cluster, write down what was sent and what was acknowledged.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.journal.receivers.spark.driven import is_free
from tests.journal.receivers.spark.numbered import Sender, sending
from tests.journal.samples import values_of
from tests.services.spark_home import spark_home
from tests.services.waiting import wait_until

from headrace.journal import Journal, verify

pytestmark = pytest.mark.nightly

LANES = (0, 1)


class Application:
    """``driver.py`` at work."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "events"
        self._log = folder / "driver.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.journal.receivers.spark.driver"),
                    *("local-cluster[2,2,512]", str(self.journal)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "SPARK_HOME": str(spark_home(folder))},
                start_new_session=True,
            )

    def ask(self, what: str) -> list[dict[str, Any]]:
        """Send the driver a line; return its answer, the status of each lane."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self._log.read_text()[-3_000:]
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    def is_receiving(self, lane: int, restarts: int) -> bool:
        status = self.ask("status")[lane]
        return bool(status["state"] == "receiving" and status["restarts"] >= restarts)

    def worker(self, lane: int) -> int:
        """The process that has a lane's lock."""
        told = (self.journal / f"{lane}" / "lock").read_text()
        found = re.match(r"process (\d+) on ", told)
        assert found, told
        return int(found[1])

    def executor(self, lane: int) -> int:
        """The JVM that has started the daemon that has started this process."""
        return parent(parent(self.worker(lane)))


def parent(process: int) -> int:
    asked = ["ps", "-o", "ppid=", "-p", str(process)]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


@contextmanager
def application(folder: Path) -> Iterator[Application]:
    running = Application(folder)
    try:
        yield running
    finally:
        if running.process.poll() is None:  # executors are of its group, and take all else along
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.communicate()


def stored(journal: Journal, lane: int) -> list[bytes]:
    """A lane's values; its offsets are dense from 0 on."""
    assert journal.lane_bounds(lane)[0] == 0
    return values_of(journal, lane)


def problems(journal: Journal, senders: list[Sender]) -> list[str]:
    """Return the faults of the journal, by the records that were sent and acknowledged."""
    found = [] if verify(journal).whole else ["the journal is damaged"]
    for sender in senders:
        there = Counter(stored(journal, sender.lane))
        found += [f"{value!r} is lost" for value in sender.acknowledged if value not in there]
        found += [f"{value!r} is there twice" for value, times in there.items() if times > 1]
        if len(there) > sender.sent:
            found.append(f"lane {sender.lane} has more than was sent")
    return found


@pytest.mark.usefixtures("java")
def test_neither_a_dead_executor_nor_a_dead_driver_costs_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    with application(tmp_path) as app:
        assert [each["state"] for each in app.ask("start")] == ["receiving"] * 2
        journal = Journal.open(str(app.journal))
        with sending([lane["address"] for lane in app.ask("status")]) as senders:
            for sender in senders:
                sender.wait_for_more()
            killed = app.executor(0)
            lost = [lane for lane in LANES if app.executor(lane) == killed]
            os.kill(killed, signal.SIGKILL)
            for lane in lost:
                wait_until(partial(app.is_receiving, lane, restarts=1), 120)
                senders[lane].address = app.ask("status")[lane]["address"]
                assert app.executor(lane) != killed
            for sender in senders:
                sender.wait_for_more()
            told = app.ask("stop")
            assert [each["state"] for each in told] == ["stopped"] * 2
            assert all(is_free(str(app.journal), lane) for lane in LANES)
        assert problems(journal, senders) == []
        planted = senders[0]
        planted.acknowledged.append(b"never stored")
        assert problems(journal, senders) == ["b'never stored' is lost"]

        app.ask("start")
        assert not any(is_free(str(app.journal), lane) for lane in LANES)
        app.process.kill()
        wait_until(lambda: all(is_free(str(app.journal), lane) for lane in LANES), 120)
