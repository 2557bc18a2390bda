"""A process that uses a ledger: it obeys its standard input, and answers each line with one line.

A test starts one with `Worker`; the process itself runs `main`.
"""

import itertools
import json
import subprocess
import sys
from typing import Any, Self

import alembic.command  # noqa: F401  (a ledger's file is locked where it would be imported else)
from tests.gate.ledger.samples import a_batch, a_sample
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch

RANGES = 20


def wide_batch(number: int) -> PlannedBatch:
    """One of a sequence of batches, with enough ranges to be interrupted among them."""
    first = number * 10
    return a_batch(*[OffsetRange("orders", p, first, first + p + 1) for p in range(RANGES)])


class Worker:
    """The test's end of the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gate.ledger.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, call: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self) -> list[Any]:
        """End the process with SIGKILL, and gather the answers that nobody has read yet."""
        assert self._process.stdout is not None
        self._process.kill()
        whole = [line for line in self._process.stdout if line.endswith("\n")]
        self._process.wait()
        return [json.loads(line) for line in whole]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def tell(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def go_on_from(ledger: Ledger, number: int) -> None:
    """Run one batch after the other, for ever, and tell what is done as soon as it is."""
    for n in itertools.count(number):
        key = ledger.batches.begin(wide_batch(n)).batch_key
        tell(["begun", key])
        ledger.batches.attach(key, n)
        report_sample(ledger, a_sample(n, batch_key=key))
        ledger.batches.succeed(key)
        tell(["succeeded", key])


def main() -> None:
    """Obey until there is nothing more to read."""
    ledger: Ledger
    for line in sys.stdin:
        match json.loads(line):
            case ["open", url]:
                ledger = Ledger.open(url)
                tell("opened")
            case ["declare", gate]:
                ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
                tell("declared")
            case ["begin", number]:
                tell(ledger.batches.begin(wide_batch(number)).attempts)
            case ["succeed", key]:
                tell(ledger.batches.succeed(key))
            case ["fail", key]:
                tell(ledger.batches.fail(key, ErrorReport("ValueError", "no", "")))
            case ["take", key, owner]:
                tell(ledger.batches.claim(key, owner, 60_000) is not None)
            case ["attach", key, owner]:
                tell(ledger.batches.attach(key, 1, owner=owner, lease_ms=60_000) is not None)
            case ["begin and look", number]:
                tell(ledger.batches.begin(wide_batch(number)).status)
            case ["go on from", number]:
                go_on_from(ledger, number)


if __name__ == "__main__":
    main()
