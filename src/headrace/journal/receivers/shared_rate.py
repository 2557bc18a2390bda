"""The rate of a gate, shared among the receivers of its stream.

Receivers read the rate from the ledger twice a second. Every second each sends a heartbeat with its
demand, and computes its own share from all heartbeats (`headrace.gate.fair_shares`). So no process
has to divide the rate, and an unreachable ledger changes no rate.
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
"""Interval at which the rate is read (s); a new rate is in force everywhere within a second."""

_HEARTBEAT_S: Final = 0.9
"""Age of a heartbeat from which the next poll sends another (s)."""

DEREGISTER_S: Final = 2.0
"""Time that the end of a receiver waits for an unresponsive ledger (s)."""

_LOGGED_CHANGE: Final = 1.25
"""Factor from which a changed even share is logged, because shares may change every second."""

_METER_S: Final = 5.0
"""Window of the measured rate (s). In a shorter window single blocks would show in the rate."""

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """Limits of one receiver's rate.

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
        """Return the share of the receiver with this heartbeat; its lane ends at ``end``."""
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
    """One receiver's share of a rate, with its reasons.

    ``even_per_s`` is the share under equal division. ``backlog`` is the number of unread records in
    the receiver's lane if the backlog reduces the share; else 0.
    """

    limit_per_s: float
    even_per_s: float
    receivers: int
    backlog: int


def _demand(seen: ReceiverReport) -> Demand:
    limit_per_s = math.inf if seen.limit_per_s is None else seen.limit_per_s
    return Demand(limit_per_s, seen.records_per_s, seen.waiting_records > 0, seen.most_per_s)


class RateMeter:
    """Rate at which a count rises (1/s), over the last 5 s."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate_per_s(self, now_s: float, count: int) -> float:
        """Return the rate at this time and count; 0 at the first call."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - _METER_S:
            self._seen.popleft()
        self._seen.append((now_s, count))
        began_s, began = self._seen[0]
        return (count - began) / (now_s - began_s) if now_s > began_s else 0.0


class RateFollower:
    """Applies one receiver's share of its gate's rate, and sends the ledger its heartbeats.

    Within ``with`` a thread polls the ledger twice a second. While the ledger is unreachable the
    limit stays; a line is logged when it becomes unreachable and when it is reachable again.

    The gate need not be declared yet. ``describe`` returns the receiver's report under a limit,
    ``end`` the end offset of its lane. ``apply`` puts a limit in force (records/s). ``refuse`` has
    senders wait, with a reason, or stops this with None. The caller's thread calls these functions
    on entry, later the follower's thread. Leaving ``with`` waits ``deregister_s`` for an
    unresponsive ledger. Default: 2.
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
        """Read the rate once, at this time of a monotonic clock."""
        try:
            if now_s - self._heartbeat_s >= _HEARTBEAT_S:
                self._own = self._describe(self._limit_per_s)
                self._ledger.receivers.heartbeat(self._own)
                self._heartbeat_s = now_s
            stream = self._ledger.receivers.stream_rate(self._gate, self._own.journal_id)
        except LedgerError as error:
            self._log_unreachable(error)
            return
        if not self._done.is_set():  # after that the intake may be closed
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
        """Make senders wait while the gate's sink is away, because the gate reads nothing then."""
        if not self._waits:
            self._refuse(None)
            _LOG.info("Gate %r goes on.", self._gate, extra=event("released", gate=self._gate))
            return
        reason = f"The sink of gate {self._gate} is away; senders wait."
        self._refuse(reason)
        _LOG.warning("%s", reason, extra=event("refusing", reason=reason, gate=self._gate))

    def _log_limit(self, share: RateShare, rate_per_s: float | None) -> None:
        why = (
            f"has no rate yet, and begins with {readable(self._limits.initial_rate)}/s"
            if rate_per_s is None
            else f"has a rate of {readable(rate_per_s)}/s"
        )
        why += f", for {share.receivers} receiver{'' if share.receivers == 1 else 's'}"
        if share.backlog:
            backlog = readable(share.backlog)
            why += f", less while its query has {backlog} records of this lane to read"
        if share.limit_per_s == self._limits.max_rate:
            why += ", and this one's own maximum is less"
        _LOG.info(
            "At most %s records/s: gate %r %s.",
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
            "The rate of gate %r cannot be looked up, and the limit stays at %s records/s: %s",
            self._gate,
            readable(self._limit_per_s),
            error,
            extra=event("ledger-unreachable", gate=self._gate, limit_per_s=self._limit_per_s),
        )

    def _log_reachable(self) -> None:
        if self._outage.clear() is not None:
            _LOG.info(
                "The rate of gate %r can be looked up again.",
                self._gate,
                extra=event("ledger-reachable", gate=self._gate),
            )


def _is_other(share: RateShare, logged: RateShare) -> bool:
    if share.receivers != logged.receivers:
        return True
    changed = share.even_per_s / logged.even_per_s
    return not 1 / _LOGGED_CHANGE < changed < _LOGGED_CHANGE
