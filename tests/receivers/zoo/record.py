"""Record of a good sender: when each record was sent first, and the time until its answer."""

import json
from pathlib import Path
from typing import NamedTuple

PREFIX = "good-"


class Entry(NamedTuple):
    """A record that was acknowledged: the clock is the machine's monotonic one.

    ``refused`` has the statuses of the answers before, 0 for a connection that was lost.
    """

    began_s: float
    took_s: float
    value: str
    refused: list[int]


class Record:
    """The good sender's own record, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._count = 0

    def next_value(self) -> str:
        self._count += 1
        return f"{PREFIX}{self._count}"

    def note(self, entry: Entry) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def read(path: Path) -> list[Entry]:
    """The entries so far."""
    whole = path.read_text().rpartition("\n")[0]
    return [Entry(*json.loads(line)) for line in whole.splitlines()]


def quantile_s(entries: list[Entry], share: float = 0.99) -> float:
    """The time within which this share of them was answered; 0 if there are none."""
    times = sorted(entry.took_s for entry in entries)
    return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0
