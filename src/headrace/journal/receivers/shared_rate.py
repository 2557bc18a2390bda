"""Sharing of a gate's rate among the receivers of its stream.

Each receiver reads the gate's rate from the ledger twice a second. Every second it sends a
heartbeat with its demand, and computes its own share from the heartbeats of all receivers
(`headrace.gate.fair_shares`). So no central process has to divide the rate, and if the ledger
becomes unreachable, each receiver keeps its rate.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from headrace.core.options import require_number
from headrace.core.timing import WarnOnce
from headrace.errors import LedgerError
from headrace.gate import Demand, Ledger, ReceiverReport, StreamRate, catch_up_rate, fair_shares
from headrace.journal.receivers.event_log import event, readable
from headrace.journal.receivers.option import option

POLL_S: Final = 0.5
"""Interval at which each receiver reads the gate's rate (s). So a new rate is in force in all
receivers within a second."""

_HEARTBEAT_S: Final = 0.9
"""A poll sends a heartbeat if the last heartbeat was sent at least this long ago (s)."""

DEREGISTER_S: Final = 2.0
"""Time for which an ending receiver waits to deregister from an unresponsive ledger (s)."""

_LOGGED_CHANGE: Final = 1.25
"""The share is logged again when `RateShare.even_per_s` has changed by this factor. Shares may
change every second, so smaller changes are not logged."""

_METER_S: Final = 5.0
"""Length of the window over which a rate is measured (s). In a shorter window, the rate would jump
with each block."""

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """Rate limits of one receiver.

    Attributes:
        max_rate: Rate limit of this receiver in addition to its share of the gate's rate
            (records/s); a finite number above 0. Default: None, only the gate's rate is the limit.
        max_bytes_rate: Rate limit for the bytes of keys, values and headers (bytes/s); a finite
            number above 0. Default: None, no limit.
        initial_rate: Rate of all receivers of a gate together, until the gate has measured a rate
            (records/s); a finite number above 0. Default: 1000. If too large, the first batches are
            larger than the job can process; if too small, senders wait until the gate has measured
            a rate.

    Raises:
        OptionError: A value is out of its range.
    """

    max_rate: float | None = field(default=None, metadata=option("--max-rate"))
    max_bytes_rate: float | None = None
    initial_rate: float = 1000.0

    def __post_init__(self) -> None:
        if self.max_rate is not None:
            require_number("max_rate", self.max_rate, "records/s", above=True)
        if self.max_bytes_rate is not None:
            require_number("max_bytes_rate", self.max_bytes_rate, "bytes/s", above=True)
        require_number("initial_rate", self.initial_rate, "records/s", above=True)

    def share(self, stream: StreamRate, own: ReceiverReport, end: int) -> "RateShare":
        """Compute a receiver's share of the rate of its stream.

        ``own`` is the heartbeat of the receiver, and ``end`` is the end offset of its lane.
        """
        rate_per_s = self.initial_rate if stream.rate_per_s is None else stream.rate_per_s
        lane = own.journal_id, own.lane
        reports = [
            report for report in stream.receivers if (report.journal_id, report.lane) != lane
        ]
        demands = [_demand(report) for report in (*reports, own)]
        even_per_s, part_per_s = rate_per_s / len(demands), fair_shares(rate_per_s, demands)[-1]
        backlog = max(0, end - stream.begun.get(own.lane, end))
        capped_per_s = catch_up_rate(part_per_s, backlog, stream.interval_ms or 0)
        return RateShare(
            capped_per_s if self.max_rate is None else min(capped_per_s, self.max_rate),
            even_per_s * capped_per_s / part_per_s,
            len(demands),
            backlog if capped_per_s < part_per_s else 0,
        )


@dataclass(frozen=True, slots=True)
class RateShare:
    """Share of one receiver in a gate's rate (records/s), with the values that explain it.

    ``limit_per_s`` is the share. ``even_per_s`` is the share if all receivers got the same rate.
    ``receivers`` is the number of receivers. ``backlog`` is the number of unread records in the
    receiver's lane if these records reduce the share; otherwise 0.
    """

    limit_per_s: float
    even_per_s: float
    receivers: int
    backlog: int


def _demand(seen: ReceiverReport) -> Demand:
    limit_per_s = math.inf if seen.limit_per_s is None else seen.limit_per_s
    return Demand(limit_per_s, seen.records_per_s, seen.waiting_records > 0, seen.most_per_s)


class RateMeter:
    """Meter of the rate at which a count increases (1/s), over the last 5 s."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate_per_s(self, now_s: float, count: int) -> float:
        """Add the count at the time ``now_s``, and return the rate (1/s); 0 at the first call."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - _METER_S:
            self._seen.popleft()
        self._seen.append((now_s, count))
        began_s, began = self._seen[0]
        return (count - began) / (now_s - began_s) if now_s > began_s else 0.0


class RateFollower:
    """Follower of a gate's rate that applies one receiver's share of the rate.

    Within ``with`` a thread polls the ledger twice a second, and sends the receiver's heartbeats.
    While the ledger is unreachable, the last limit stays in force. A line is logged when the ledger
    becomes unreachable, and when it is reachable again.

    The gate may be declared later. ``describe`` takes the limit (records/s), and returns the
    receiver's report. ``end`` returns the end offset of the receiver's lane. ``apply`` sets the
    rate limit (records/s). ``refuse`` makes senders wait for a reason, or with None lets them
    continue. These functions are called in the caller's thread on entering ``with``, and afterwards
    in the follower's thread. Leaving ``with`` waits up to ``deregister_s`` (s) for an unresponsive
    ledger. Default: 2.
    """

    def __init__(
        self,
        ledger: Ledger,
        gate: str,
        limits: ReceiverLimits,
        *,
        describe: Callable[[float], ReceiverReport],
        end: Callable[[], int],
        apply: Callable[[float], None],
        refuse: Callable[[str | None], None] = lambda _reason: None,
        deregister_s: float = DEREGISTER_S,
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._limits = limits
        self._describe = describe
        self._end = end
        self._apply = apply
        self._refuse = refuse
        self._waits = False
        self._deregister_s = deregister_s
        self._limit_per_s = min(limits.initial_rate, limits.max_rate or math.inf)
        self._own = describe(self._limit_per_s)
        self._logged: tuple[RateShare, bool] | None = None
        self._heartbeat_s = -math.inf
        self._outage = WarnOnce(_LOG)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-rates", daemon=True)

    def __enter__(self) -> Self:
        self._apply(self._limit_per_s)
        self.poll(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        self._thread.join(self._deregister_s)

    def poll(self, now_s: float) -> None:
        """Read the gate's rate once and apply the share; send a heartbeat first if one is due.

        ``now_s`` is the time of a monotonic clock (s).
        """
        try:
            if now_s - self._heartbeat_s >= _HEARTBEAT_S:
                self._own = self._describe(self._limit_per_s)
                self._ledger.receivers.heartbeat(self._own)
                self._heartbeat_s = now_s
            stream = self._ledger.receivers.stream_rate(self._gate, self._own.journal_id)
        except LedgerError as error:
            self._log_unreachable(error)
            return
        if not self._done.is_set():  # the intake may be closed after that
            self._log_reachable()
            self._follow(stream)

    def _run(self) -> None:
        while not self._done.wait(POLL_S):
            self.poll(time.monotonic())
        try:
            self._ledger.receivers.deregister(self._describe(self._limit_per_s))
        except LedgerError as error:
            self._log_unreachable(error)

    def _follow(self, stream: StreamRate) -> None:
        if stream.waits != self._waits:
            self._waits = stream.waits
            self._refuse_or_admit()
        share = self._limits.share(stream, self._own, self._end())
        if share.limit_per_s != self._limit_per_s:
            self._limit_per_s = share.limit_per_s
            self._apply(share.limit_per_s)
        knows_rate = stream.rate_per_s is not None
        logged, knew_rate = self._logged or (None, False)
        if logged is None or knows_rate != knew_rate or _is_other(share, logged):
            self._logged = share, knows_rate
            self._log_limit(share, stream.rate_per_s)

    def _refuse_or_admit(self) -> None:
        """Make senders wait if the gate's sink is unavailable; otherwise let them continue.

        While its sink is unavailable, the gate reads no records.
        """
        if not self._waits:
            self._refuse(None)
            _LOG.info(
                "The sink of gate %r is available again; senders continue.",
                self._gate,
                extra=event("released", gate=self._gate),
            )
            return
        reason = f"The sink of gate {self._gate} is away; senders wait."
        self._refuse(reason)
        _LOG.warning("%s", reason, extra=event("refusing", reason=reason, gate=self._gate))

    def _log_limit(self, share: RateShare, rate_per_s: float | None) -> None:
        why = (
            f"has no rate yet and uses the initial rate of {readable(self._limits.initial_rate)}/s"
            if rate_per_s is None
            else f"has a rate of {readable(rate_per_s)}/s"
        )
        why += f", for {share.receivers} receiver{'' if share.receivers == 1 else 's'}"
        if share.backlog:
            backlog = readable(share.backlog)
            why += f", less while its query has {backlog} records of this lane to read"
        if share.limit_per_s == self._limits.max_rate:
            why += ", and max_rate of this receiver is lower"
        _LOG.info(
            "The rate limit is %s records/s: gate %r %s.",
            readable(share.limit_per_s),
            self._gate,
            why,
            extra=event(
                "limit",
                gate=self._gate,
                limit_per_s=share.limit_per_s,
                rate_per_s=rate_per_s,
                receivers=share.receivers,
                backlog=share.backlog,
            ),
        )

    def _log_unreachable(self, error: LedgerError) -> None:
        self._outage.warn(
            "The rate of gate %r cannot be read from the ledger, so the limit stays at %s"
            " records/s: %s",
            self._gate,
            readable(self._limit_per_s),
            error,
            extra=event("ledger-unreachable", gate=self._gate, limit_per_s=self._limit_per_s),
        )

    def _log_reachable(self) -> None:
        if self._outage.clear() is not None:
            _LOG.info(
                "The rate of gate %r can be read from the ledger again.",
                self._gate,
                extra=event("ledger-reachable", gate=self._gate),
            )


def _is_other(share: RateShare, logged: RateShare) -> bool:
    if share.receivers != logged.receivers:
        return True
    changed = share.even_per_s / logged.even_per_s
    return not 1 / _LOGGED_CHANGE < changed < _LOGGED_CHANGE
