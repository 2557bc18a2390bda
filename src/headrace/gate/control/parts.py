"""Parts of a batch: paths in a binary tree over its planned offsets, and the batch's progress.

A part is a path of ``0`` and ``1``: ``""`` is the batch, ``"0"`` its first half, ``"01"`` the
second half of that half. Halves divide the planned offsets, not the remaining ones. So they are
equal after every restart, and offsets that have left the log move nothing. Each range is cut in its
middle, so a part has all partitions, and in each partition ``"0"`` comes before ``"1"``.

Of two parts, one contains the other, or they are disjoint. So the key of a part, `<batch>.01`, and
the keys of the enclosing parts tell a sink everything. An owner that was frozen beyond its lease
finds the rows written meanwhile, however the rest was divided. A key has a point, not a slash,
because keys also name folders. An offset set that is no half, such as the rest beside a sample, is
several parts: some log2(n) more runs.
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
"""Path of the whole batch."""

_MAX_TEXT: Final = 1_000_000
"""Longest serialized progress (characters)."""


def size(records: int, path: str) -> int:
    """Return the offsets of a part of a batch with ``records`` offsets; 0 for no such part.

    >>> [size(7, path) for path in ("", "0", "1", "11", "111")]
    [7, 4, 3, 1, 0]
    """
    for half in path:
        records = (records + (half == "0")) // 2 if records > 1 else 0
    return records


def halves(path: str) -> tuple[str, str]:
    """Return the two halves of a part that has more than one offset."""
    return path + "0", path + "1"


def beside(part: str, inner: str) -> list[str]:
    """Return the parts that complete an inner part to the outer part, the largest first.

    >>> beside("1", "1011")
    ['11', '100', '1010']
    """
    return [inner[:at] + "10"[int(inner[at])] for at in range(len(part), len(inner))]


def above(path: str) -> list[str]:
    """Return the parts that enclose a part, the smallest first, and the batch last."""
    return [path[:at] for at in range(len(path) - 1, -1, -1)]


def is_within(part: str, others: Iterable[str]) -> bool:
    """Whether a part is equal to another part, or within it."""
    return any(part.startswith(path) for path in others)


def ranges_of(planned: Sequence[OffsetRange], path: str) -> Ranges:
    """Return the ranges of a part, in the order of the batch's ranges.

    >>> both = [OffsetRange("orders", p, 0, 5) for p in (0, 1)]
    >>> [[str(r) for r in ranges_of(both, path)] for path in ("0", "1")]
    [['orders-0 [0, 3)', 'orders-1 [0, 2)'], ['orders-0 [3, 5)', 'orders-1 [2, 5)']]
    """
    ranges = tuple(planned)
    for half in path:
        ranges = _halved(ranges)[int(half)]
    return ranges


def path_of(planned: Sequence[OffsetRange], topic: str, partition: int, offset: int) -> str | None:
    """Return the part that consists of one record; None if the batch does not have the record."""

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
    """Return the same offsets in the fewest parts: two halves become their whole.

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
    """Return the largest parts that are disjoint from the finished parts, in order.

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
    """The progress of a batch that is run in parts.

    Attributes:
        done: Parts that have passed, or are dead letters, merged into the fewest parts.
        running: The part of the current handler call, durable before the call.
        unknown: Parts that the sink may have though they failed: their run was interrupted.
        halved: Parts that have failed, or contain a failed part; none of them is run as a whole
            again.
        runs: Number of handler calls with parts.
        evidence: The state of a test of suspects, as in `Bisection.evidence`.
    """

    done: frozenset[str] = frozenset()
    running: str | None = None
    unknown: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()
    runs: int = 0
    evidence: str = ""

    @property
    def open(self) -> list[str]:
        """The largest parts still to be run, in order; unknown parts stay separate."""
        waiting, parts = rest([*self.done, *self.unknown]), list(self.unknown)
        while waiting:
            part = waiting.pop()
            if part in self.halved:
                waiting += halves(part)
            else:
                parts.append(part)
        return sorted(parts)

    def with_done(self, part: str) -> Self:
        """Return the progress after a part is done."""
        finished = joined({*self.done, part})
        halved = frozenset(path for path in self.halved if not is_within(path, finished))
        return replace(self, done=finished, unknown=self.unknown - {part}, halved=halved)

    def records_left(self, records: int) -> int:
        """Return the number of unfinished offsets of a batch with ``records`` offsets."""
        return records - sum(size(records, path) for path in self.done)

    def to_text(self) -> str:
        """Serialize the progress for the ledger."""
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
        """Parse a text of `to_text` for a batch with ``records`` offsets.

        Raises:
            LedgerError: The text is no progress, or the progress of another batch.
        """
        try:
            values: Any = json.loads(text) if len(text) <= _MAX_TEXT else None
            finished, running, unknown = values["done"], values["running"], values["unknown"]
            halved = values["halved"]
            progress = cls(
                *(frozenset(finished), running, frozenset(unknown), frozenset(halved)),
                *(values["runs"], values["evidence"]),
            )
            parts = sorted([*finished, *unknown])
            is_whole = set(values) == set(cls.__slots__) and type(progress.runs) is int
            is_whole &= isinstance(progress.evidence, str)
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 0
                for part in [*parts, *([] if running is None else [running])]
            )
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 1
                for part in halved
            )
            # In sorted order, a part stands right before the parts that it contains.
            is_whole &= not any(second.startswith(first) for first, second in pairwise(parts))
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise LedgerError(
                f"The progress of batch {batch} in the ledger is {text[:200]!r}, which names no"
                f" parts of its {records} offsets, so the batch is not run; restore the ledger from"
                " a copy."
            )
        return progress
