"""The history of one gate as columns for its charts, over a span or a range of time."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from headrace.control import OperatorAction
from headrace.dashboard.pages import Query, refuse_no_gate, whole_number
from headrace.ledger import Ledger, SeriesPoint
from headrace.status.words import plural

SPANS: Final[Mapping[str, int | None]] = {
    "15 min": 900_000,
    "1 h": 3_600_000,
    "6 h": 21_600_000,
    "24 h": 86_400_000,
    "7 d": 604_800_000,
    "all": None,
}
"""Spans of the charts, up to now (ms); None is as far back as the ledger goes."""

SPAN: Final = "15 min"
"""The one that is shown if the address names none."""

POINTS: Final = 900
"""Points of a chart; batches of a longer time are drawn together."""

SHORTEST_MS: Final = 60_000
"""Shortest range of a chart (ms), for a gate that has just begun."""

SHORTEST_RANGE_MS: Final = 1_000
"""The shortest range that can be looked at."""

CLOCKS_APART_MS: Final = 60_000


def named_range(query: Query) -> tuple[int, int] | None:
    """The range that an address names (ms since the epoch); None if it names none.

    >>> named_range({"from": "60000", "until": "90000"})
    (60000, 90000)
    """
    since_ms, until_ms = whole_number(query.get("from", "")), whole_number(query.get("until", ""))
    if since_ms is None or until_ms is None or not since_ms < until_ms < 2**53:
        return None
    return since_ms, max(until_ms, since_ms + SHORTEST_RANGE_MS)


def chart_range(
    query: Query, now_ms: int, oldest_ms: Callable[[int], int | None]
) -> tuple[int, int]:
    """Return the range of the charts (ms since the epoch): a named one, or the span up to now.

    A span begins with the first batch in it: a gate that has run for three minutes fills its
    charts with them.

    Args:
        query: The address.
        now_ms: The time.
        oldest_ms: Answers when the first batch since a time was planned; None if there is none.
    """
    named = named_range(query)
    if named is not None:
        return named
    span_ms = SPANS.get(query.get("span", ""), SPANS[SPAN])
    earliest_ms = 0 if span_ms is None else now_ms - span_ms
    first_ms = oldest_ms(earliest_ms)
    since_ms = now_ms - SHORTEST_MS if first_ms is None else first_ms
    return max(min(since_ms, now_ms - SHORTEST_MS), earliest_ms), now_ms


def series_of(ledger: Ledger, name: str, query: Query, now_ms: int) -> dict[str, Any]:
    """The history of a gate as columns for charts, and the marks in it.

    ``from`` and ``until`` (ms since the epoch) name a range, ``span`` how far back it goes from now
    if they do not; ``after`` leaves out what is older than that.

    Raises:
        NotFoundError: The ledger has no such gate.
    """
    gate = refuse_no_gate(ledger, name)
    since_ms, until_ms = chart_range(query, now_ms, lambda ms: ledger.fleet.oldest_ms(name, ms))
    bucket_ms = max((until_ms - since_ms) // POINTS, 1)
    start_ms = max(since_ms, whole_number(query.get("after", "")) or 0)
    start_ms -= start_ms % bucket_ms
    # A batch that was planned by a clock ahead of this one's is there all the same.
    ahead_ms = CLOCKS_APART_MS if until_ms == now_ms else 0
    points = ledger.fleet.series(name, start_ms, until_ms + ahead_ms, bucket_ms)
    return {
        "since_ms": since_ms,
        "until_ms": until_ms,
        "interval_ms": gate.interval_ms,
        "time": [each.time_ms / 1000 for each in points],
        "lag": [each.lag for each in points],
        "rate": [each.rate_per_s for each in points],
        "capacity": [each.capacity_per_s for each in points],
        "batch": [None if p.duration_ms is None else p.duration_ms / 1000 for p in points],
        "marks": _marks(
            points,
            [
                each
                for each in ledger.operator_limits.history(name, 100)
                if start_ms <= each.time_ms <= until_ms
            ],
            (until_ms - since_ms) // 60,
        ),
    }


def _marks(
    points: Sequence[SeriesPoint],
    actions: Sequence[OperatorAction],
    apart_ms: int,
) -> list[dict[str, Any]]:
    """Return the changes: failures, restarts with another checkpoint, actions of operators."""
    marks = _failures(points, apart_ms)
    marks += [
        {"time": here.time_ms / 1000, "kind": "restart", "text": "another checkpoint"}
        for before, here in pairwise(points)
        if before.checkpoint_id != here.checkpoint_id
    ]
    marks += [
        {"time": each.time_ms / 1000, "kind": "action", "text": f"{each.kind} by {each.by}"}
        for each in actions
    ]
    return marks


def _failures(points: Sequence[SeriesPoint], apart_ms: int) -> list[dict[str, Any]]:
    """Return marks of failed batches; failures less apart than this have one mark."""
    groups: list[tuple[int, int, int]] = []
    for each in points:
        if not each.failed:
            continue
        if groups and each.time_ms - groups[-1][1] < apart_ms:
            first, _, number = groups.pop()
            groups.append((first, each.time_ms, number + each.failed))
        else:
            groups.append((each.time_ms, each.time_ms, each.failed))
    return [
        {"time": first / 1000, "kind": "failed", "text": f"{plural(number, 'batch')} failed"}
        for first, _, number in groups
    ]
