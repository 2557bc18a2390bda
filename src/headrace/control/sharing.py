"""How much of a stream's rate each of its receivers lets in.

Every receiver works this out by itself, from what all of them have said last, so that all come to
the same parts without asking each other. Two laws follow one another:

1. The rate is shared by what each one takes: what one does not need is left to those that do.
2. Where the query is behind in a receiver's lane, the receiver lets in less than its part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_USES_UP: Final = 0.95
"""Who takes this much of its limit needs more, though at this moment nothing may wait for it."""

_SPARE: Final = 1.15
"""A part is so much larger than what is taken, so that small changes need no other parts."""

_FALL: Final = 0.8
"""A limit that is not used up falls to this in one step: what is taken is a mean of some seconds,
and would otherwise take away the limit of one that has just begun."""

_LEAST: Final = 0.1
"""The least that each keeps, of an even part: from nothing nobody could begin."""

_USUAL_INTERVALS: Final = 2.0
"""Records for so many intervals are unread at times though the query keeps up: what has come since
the last batch was planned, and while it ran."""

_FAR_INTERVALS: Final = 12.0
"""So far behind, the query gets as much of its own rate to catch up as it can get."""

_MOST_THROTTLED: Final = 0.5
"""Of a receiver's part. Senders need not stop because the query is away: the journal is there to
hold what comes; and a query that falls behind for an hour has caught up in about two."""

_SHORTEST_INTERVAL_MS: Final = 1_000
"""Parts are worked out about once a second; by shorter intervals they would swing."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a receiver has said last.

    Attributes:
        limit_per_s: What it let in at most (records/s).
        taken_per_s: What it took in, as a mean of some seconds (records/s).
        waits: Whether records waited for the limit.
        most_per_s: What it takes at most, whatever its part is (records/s); None for no maximum.
    """

    limit_per_s: float
    taken_per_s: float
    waits: bool
    most_per_s: float | None = None


def fair_shares(rate_per_s: float, takers: Sequence[Demand]) -> list[float]:
    """Share a rate among receivers (records/s), in their order; together the parts are the rate.

    What a receiver wants is 15 % more than it takes, but four fifths of its limit or more,
    and a tenth of an even part or more; without bound, if its limit holds it back; and never
    more than its own maximum. Nobody gets more than it wants while another one gets less: there is
    a level up to which all wants are met, and who wants more gets just that ("max-min fairness").
    So who wants an even part or more gets at least that. If all wants can be met, the rest is
    shared evenly.
    """
    even_per_s = rate_per_s / max(1, len(takers))
    wants = [_wanted(taker, even_per_s) for taker in takers]
    level_per_s, left_per_s = 0.0, rate_per_s
    for met, want_per_s in enumerate(sorted(wants)):
        level_per_s = left_per_s / (len(wants) - met)
        if want_per_s > level_per_s:
            return [min(want, level_per_s) for want in wants]
        left_per_s -= want_per_s
    return [want + left_per_s / len(wants) for want in wants]


def _wanted(taker: Demand, even_per_s: float) -> float:
    held_back = taker.waits or taker.taken_per_s >= _USES_UP * taker.limit_per_s
    wanted_per_s = (
        math.inf
        if held_back
        else max(_SPARE * taker.taken_per_s, _FALL * taker.limit_per_s, _LEAST * even_per_s)
    )
    return wanted_per_s if taker.most_per_s is None else min(wanted_per_s, taker.most_per_s)


def catch_up_rate(part_per_s: float, backlog: int, interval_ms: int) -> float:
    """What a receiver lets in of its part (records/s), so that the query catches up in its lane.

    With ``b`` intervals' worth of its part unread, it is::

        part * (1 - 0.5 * min(max((b - 2) / (12 - 2), 0), 1))

    The query goes on at its rate, so the backlog above two intervals' worth fades by about a
    twentieth in each interval; and however large it is, half of the rate is for what is behind.

    Args:
        part_per_s: Its part of the rate (records/s); above 0.
        backlog: The records of its lane that the query has not begun to read.
        interval_ms: The query's interval (ms); less than a second counts as one.
    """
    interval_s = max(interval_ms, _SHORTEST_INTERVAL_MS) / 1000
    behind = backlog / (part_per_s * interval_s)
    far = (behind - _USUAL_INTERVALS) / (_FAR_INTERVALS - _USUAL_INTERVALS)
    return part_per_s * (1 - _MOST_THROTTLED * min(max(far, 0.0), 1.0))
