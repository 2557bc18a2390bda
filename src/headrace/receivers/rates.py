"""The rate of a gate, shared among the receivers of its stream."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from headrace.control import Taker, catching_up, parts
from headrace.errors import LedgerError
from headrace.ledger import Ledger, ReceiverSeen, StreamRate
from headrace.receivers.settings import require_above_zero
from headrace.receivers.telling import event, number

POLL_S: Final = 0.5
"""How often the rate is looked up, so that a new one is everywhere within a second."""

_SEEN_S: Final = 0.9
"""After which the ledger is told again that this receiver is there, at the next look."""

_LEAVE_S: Final = 2.0
"""How long an end waits for a ledger that does not answer."""

_WORTH_TELLING: Final = 1.25
"""An even part that changes by less than this factor gets no line: it may every second."""

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one receiver lets in at most.

    Attributes:
        max_rate: Records/s at most, whatever its gate's rate is; a finite number above 0. Default:
            None, which leaves it to the gate.
        max_bytes_rate: Bytes/s at most, of keys, values and headers; a finite number above 0.
            Default: None, no limit.
        initial_rate: Records/s that all receivers of a gate let in together before that has learnt
            a rate; a finite number above 0. Default: 1000. Too large, and the first batches are
            larger than the job can take; too small, and senders wait while the first rate is being
            learnt.

    Raises:
        OptionError: A value is out of its range.
    """

    max_rate: float | None = None
    max_bytes_rate: float | None = None
    initial_rate: float = 1000.0

    def __post_init__(self) -> None:
        if self.max_rate is not None:
            require_above_zero("max_rate", self.max_rate, "records/s")
        if self.max_bytes_rate is not None:
            require_above_zero("max_bytes_rate", self.max_bytes_rate, "bytes/s")
        require_above_zero("initial_rate", self.initial_rate, "records/s")

    def share(self, stream: StreamRate, own: ReceiverSeen, end: int) -> "Share":
        """What one of the stream's receivers lets in.

        Args:
            stream: What they share.
            own: What this one has said last.
            end: Where its lane goes on.
        """
        rate_per_s = self.initial_rate if stream.rate_per_s is None else stream.rate_per_s
        lane = own.journal_id, own.lane
        others = [each for each in stream.receivers if (each.journal_id, each.lane) != lane]
        takers = [_taker(each) for each in (*others, own)]
        even_per_s, part_per_s = rate_per_s / len(takers), parts(rate_per_s, takers)[-1]
        backlog = max(0, end - stream.begun.get(own.lane, end))
        held_per_s = catching_up(part_per_s, backlog, stream.interval_ms or 0)
        return Share(
            held_per_s if self.max_rate is None else min(held_per_s, self.max_rate),
            even_per_s * held_per_s / part_per_s,
            len(takers),
            backlog if held_per_s < part_per_s else 0,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What one receiver lets in, and why.

    Attributes:
        limit_per_s: That (records/s).
        even_per_s: What it would be if each took the same (records/s).
        receivers: How many share the rate.
        backlog: How many records its query is behind in its lane, if that makes it less; else 0.
    """

    limit_per_s: float
    even_per_s: float
    receivers: int
    backlog: int


def _taker(seen: ReceiverSeen) -> Taker:
    limit_per_s = math.inf if seen.limit_per_s is None else seen.limit_per_s
    return Taker(limit_per_s, seen.records_per_s, seen.waiting_records > 0, seen.most_per_s)


class Rates:
    """Tells one receiver its part of its gate's rate, and the ledger how the receiver fares.

    Within ``with`` a thread looks twice a second. A ledger that cannot be reached changes nothing:
    the limit stays what it was; the log says so once, and once when the ledger is back.

    Args:
        ledger: Where the gate is.
        gate: Its name; it need not be declared yet.
        limits: See `Limits`.
        describe: Says how the receiver fares under this limit (records/s).
        end: Says where its lane goes on.
        apply: Puts a limit in force (records/s). All three are called from that thread, but at
            first by the one that enters.
    """

    def __init__(
        self,
        ledger: Ledger,
        gate: str,
        limits: Limits,
        *,
        describe: Callable[[float], ReceiverSeen],
        end: Callable[[], int],
        apply: Callable[[float], None],
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._limits = limits
        self._describe = describe
        self._end = end
        self._apply = apply
        self._limit_per_s = min(limits.initial_rate, limits.max_rate or math.inf)
        self._own = describe(self._limit_per_s)
        self._told: Share | None = None
        self._knows_rate = False
        self._seen_s = -math.inf
        self._is_away = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-rates", daemon=True)

    def __enter__(self) -> Self:
        self._apply(self._limit_per_s)
        self.look(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        self._thread.join(_LEAVE_S)

    def look(self, now_s: float) -> None:
        """Look once, at this time of a clock that always goes forward."""
        try:
            if now_s - self._seen_s >= _SEEN_S:
                self._own = self._describe(self._limit_per_s)
                self._ledger.see_receiver(self._own)
                self._seen_s = now_s
            stream = self._ledger.stream_rate(self._gate, self._own.journal_id)
        except LedgerError as error:
            self._tell_away(error)
            return
        if not self._done.is_set():  # whoever limits by it may be gone by then
            self._tell_back()
            self._follow(stream)

    def _run(self) -> None:
        while not self._done.wait(POLL_S):
            self.look(time.monotonic())
        try:
            self._ledger.leave(self._describe(self._limit_per_s))
        except LedgerError as error:
            self._tell_away(error)

    def _follow(self, stream: StreamRate) -> None:
        share = self._limits.share(stream, self._own, self._end())
        if share.limit_per_s != self._limit_per_s:
            self._limit_per_s = share.limit_per_s
            self._apply(share.limit_per_s)
        knows_rate = stream.rate_per_s is not None
        if knows_rate != self._knows_rate or self._told is None or _is_other(share, self._told):
            self._told, self._knows_rate = share, knows_rate
            self._tell_limit(share, stream.rate_per_s)

    def _tell_limit(self, share: Share, rate_per_s: float | None) -> None:
        has = (
            f"has no rate yet, and begins with {number(self._limits.initial_rate)}/s"
            if rate_per_s is None
            else f"has a rate of {number(rate_per_s)}/s"
        )
        less = f", less while its query has {number(share.backlog)} records of this lane to read"
        _LOG.info(
            "At most %s records/s: gate %r %s, for %d %s%s%s.",
            number(share.limit_per_s),
            self._gate,
            has,
            share.receivers,
            "receiver" if share.receivers == 1 else "receivers",
            less if share.backlog else "",
            ", and this one's own maximum is less"
            if share.limit_per_s == self._limits.max_rate
            else "",
            extra=event(
                "limit",
                gate=self._gate,
                limit_per_s=share.limit_per_s,
                rate_per_s=rate_per_s,
                receivers=share.receivers,
                backlog=share.backlog,
            ),
        )

    def _tell_away(self, error: LedgerError) -> None:
        if not self._is_away:
            self._is_away = True
            _LOG.warning(
                "The rate of gate %r is not known at present, and the limit stays at %s records/s:"
                " %s",
                self._gate,
                number(self._limit_per_s),
                error,
                extra=event("ledger-away", gate=self._gate, limit_per_s=self._limit_per_s),
            )

    def _tell_back(self) -> None:
        if self._is_away:
            self._is_away = False
            _LOG.info(
                "The rate of gate %r is known again.",
                self._gate,
                extra=event("ledger-back", gate=self._gate),
            )


def _is_other(share: Share, told: Share) -> bool:
    """Whether this is worth a line after what was told last."""
    if share.receivers != told.receivers:
        return True
    changed = share.even_per_s / told.even_per_s
    return not 1 / _WORTH_TELLING < changed < _WORTH_TELLING
