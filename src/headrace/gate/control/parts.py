"""Parts of a batch: paths in a binary tree over its planned offsets, and what was done of them.

A part is a path of ``0`` and ``1``: ``""`` is the batch, ``"0"`` its first half, ``"01"`` the
second half of that. Halves are of what was planned, not of what is left, so they come out alike
after every restart, and offsets that have left the log move nothing. Each range is cut in its
middle, so a part has all partitions, and of each partition ``"0"`` has what comes before ``"1"``.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError

Ranges = tuple[OffsetRange, ...]

WHOLE: Final = ""
"""Path of the batch itself."""

_MAX_TEXT: Final = 1_000_000
"""Longest text of a progress (characters)."""


def size(records: int, path: str) -> int:
    """Return the offsets of a part of a batch with so many; 0 where there is no such part.

    >>> [size(7, path) for path in ("", "0", "1", "11", "111")]
    [7, 4, 3, 1, 0]
    """
    for half in path:
        records = (records + (half == "0")) // 2 if records > 1 else 0
    return records


def halves(path: str) -> tuple[str, str]:
    """The two halves of a part that has more than one offset."""
    return path + "0", path + "1"


def beside(part: str, inner: str) -> list[str]:
    """The parts that make up a part together with one within it, the largest first.

    >>> beside("1", "1011")
    ['11', '100', '1010']
    """
    return [inner[:at] + "10"[int(inner[at])] for at in range(len(part), len(inner))]


def above(path: str) -> list[str]:
    """The parts that a part is within, the smallest first, and the batch last."""
    return [path[:at] for at in range(len(path) - 1, -1, -1)]


def is_within(part: str, others: Iterable[str]) -> bool:
    """Whether a part is one of the others, or some of one."""
    return any(part.startswith(other) for other in others)


def ranges_of(planned: Sequence[OffsetRange], path: str) -> Ranges:
    """Return what a part reads of a batch's ranges, in their order.

    >>> both = [OffsetRange("orders", p, 0, 5) for p in (0, 1)]
    >>> [[str(r) for r in ranges_of(both, path)] for path in ("0", "1")]
    [['orders-0 [0, 3)', 'orders-1 [0, 2)'], ['orders-0 [3, 5)', 'orders-1 [2, 5)']]
    """
    ranges = tuple(planned)
    for half in path:
        ranges = _halved(ranges)[int(half)]
    return ranges


def path_of(planned: Sequence[OffsetRange], topic: str, partition: int, offset: int) -> str | None:
    """Return the part that is the one record at this place; None where the batch has none."""

    def is_in(ranges: Ranges) -> bool:
        return any(
            (r.topic, r.partition) == (topic, partition) and r.start <= offset < r.until
            for r in ranges
        )

    ranges, path = tuple(planned), WHOLE
    if not is_in(ranges):
        return None
    while sum(r.count for r in ranges) > 1:
        first, second = _halved(ranges)
        path, ranges = (path + "0", first) if is_in(first) else (path + "1", second)
    return path


def _halved(ranges: Ranges) -> tuple[Ranges, Ranges]:
    before, after = list[OffsetRange](), list[OffsetRange]()
    spare = 1
    for whole in ranges:
        cut = whole.start + (whole.count + spare) // 2
        spare ^= whole.count % 2
        if whole.start < cut:
            before.append(OffsetRange(whole.topic, whole.partition, whole.start, cut))
        if cut < whole.until:
            after.append(OffsetRange(whole.topic, whole.partition, cut, whole.until))
    return tuple(before), tuple(after)


def joined(parts: Iterable[str]) -> frozenset[str]:
    """The same offsets in as few parts as can be: two halves are their whole.

    >>> sorted(joined(["00", "01", "10"]))
    ['0', '10']
    """
    waiting, out = sorted(set(parts), key=len), set[str]()
    while waiting:
        path = waiting.pop()
        twin = path[:-1] + "10"[int(path[-1])] if path else None
        if twin in out:
            out.discard(twin)
            waiting.append(path[:-1])
            waiting.sort(key=len)
        else:
            out.add(path)
    return frozenset(out)


def rest(done: Collection[str], within: str = WHOLE) -> list[str]:
    """The largest parts that have nothing in common with these, in order.

    >>> rest(["01", "110"])
    ['00', '10', '111']
    """
    if within in done:
        return []
    below = [path for path in done if path.startswith(within)]
    if not below:
        return [within]
    return [part for half in halves(within) for part in rest(below, half)]


@dataclass(frozen=True, slots=True)
class Progress:
    """What was done of a batch that is run in parts.

    Attributes:
        done: Parts that have passed, or are dead letters, as few as can be.
        running: The part that the handler was called with, durable before the call.
        unknown: Parts that may be in the sink though they failed: their run was interrupted.
        halved: Parts that have failed, or of which a part has; none of them is run as one again.
        runs: Calls of the handler with parts.
        evidence: How far a test of suspects has come, as `Bisection.evidence`.
    """

    done: frozenset[str] = frozenset()
    running: str | None = None
    unknown: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()
    runs: int = 0
    evidence: str = ""

    @property
    def open(self) -> list[str]:
        """The largest parts that are to be run, in order; unknown ones stay apart."""
        waiting, parts = rest([*self.done, *self.unknown]), list(self.unknown)
        while waiting:
            part = waiting.pop()
            if part in self.halved:
                waiting += halves(part)
            else:
                parts.append(part)
        return sorted(parts)

    def with_done(self, part: str) -> Self:
        """The same once a part is done."""
        done = joined({*self.done, part})
        halved = frozenset(other for other in self.halved if not is_within(other, done))
        return replace(self, done=done, unknown=self.unknown - {part}, halved=halved)

    def records_left(self, records: int) -> int:
        """Return how many offsets of a batch with so many are not done."""
        return records - sum(size(records, path) for path in self.done)

    def to_text(self) -> str:
        """As text for the ledger."""
        return json.dumps(
            {
                "done": sorted(self.done),
                "running": self.running,
                "unknown": sorted(self.unknown),
                "halved": sorted(self.halved),
                "runs": self.runs,
                "evidence": self.evidence,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str, records: int, batch: str) -> Self:
        """Read what `to_text` wrote of a batch with so many offsets.

        Raises:
            LedgerError: It is no progress, or one of another batch.
        """
        try:
            values: Any = json.loads(text) if len(text) <= _MAX_TEXT else None
            done, running, unknown = values["done"], values["running"], values["unknown"]
            halved = values["halved"]
            found = cls(
                *(frozenset(done), running, frozenset(unknown), frozenset(halved)),
                *(values["runs"], values["evidence"]),
            )
            parts = sorted([*done, *unknown])
            is_whole = set(values) == set(cls.__slots__) and type(found.runs) is int
            is_whole &= isinstance(found.evidence, str)
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 0
                for part in [*parts, *([] if running is None else [running])]
            )
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 1
                for part in halved
            )
            # Each stands right before those that are within it.
            is_whole &= not any(second.startswith(first) for first, second in pairwise(parts))
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise LedgerError(
                f"The progress of batch {batch} in the ledger is {text[:200]!r}, which names no"
                f" parts of its {records} offsets, so the batch is not run; restore the ledger from"
                " a copy."
            )
        return found
