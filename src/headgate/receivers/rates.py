"""The rate of a gate, shared among the receivers of its stream."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from headgate.errors import LedgerError
from headgate.ledger import Ledger, ReceiverSeen, StreamRate
from headgate.receivers.settings import require_above_zero
from headgate.receivers.telling import event, number

POLL_S: Final = 0.5
"""How often the rate is looked up, so that a new one is everywhere within a second."""

_SEEN_S: Final = 0.9
"""After which the ledger is told again that this receiver is there, at the next look."""

_LEAVE_S: Final = 2.0
"""How long an end waits for a ledger that does not answer."""

_WORTH_TELLING: Final = 1.25
"""A limit that changes by less than this factor gets no line: it may change every second."""

_LOG: Final = logging.getLogger("headgate.receivers")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one receiver lets in at most.

    Attributes:
        max_rate: Records/s, whatever its gate's rate is; a finite number above 0. None, the
            default, leaves it to the gate.
        max_bytes_rate: Bytes/s of keys, values and headers; a finite number above 0. None, the
            default, is no limit.
        initial_rate: What all receivers of a gate let in together before that has learnt a rate
            (records/s); a finite number above 0, 1000 unless told otherwise. Too large, and the
            first batches are larger than the job can take; too small, and senders wait while the
            first rate is being learnt.

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

    def share(self, stream: StreamRate) -> float:
        """What one of the stream's receivers lets in (records/s): an even part, or its maximum."""
        rate_per_s = self.initial_rate if stream.rate_per_s is None else stream.rate_per_s
        share_per_s = rate_per_s / max(1, stream.receivers)
        return share_per_s if self.max_rate is None else min(share_per_s, self.max_rate)


class Rates:
    """Tells one receiver its part of its gate's rate, and the ledger how the receiver fares.

    Within ``with`` a thread looks twice a second. A ledger that cannot be reached changes nothing:
    the limit stays what it was; the log says so once, and once when the ledger is back.

    Args:
        ledger: Where the gate is.
        gate: Its name; it need not be declared yet.
        limits: See `Limits`.
        describe: Says how the receiver fares under this limit (records/s). Called from that thread.
        apply: Puts a limit in force (records/s). Called from that thread, but at first by the one
            that enters.
    """

    def __init__(
        self,
        ledger: Ledger,
        gate: str,
        limits: Limits,
        *,
        describe: Callable[[float], ReceiverSeen],
        apply: Callable[[float], None],
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._limits = limits
        self._describe = describe
        self._apply = apply
        self._limit_per_s = limits.share(StreamRate(None, 1))
        self._told: tuple[float, StreamRate] | None = None
        self._seen_s = -math.inf
        self._is_away = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-rates", daemon=True)

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
                self._ledger.see_receiver(self._describe(self._limit_per_s))
                self._seen_s = now_s
            stream = self._ledger.stream_rate(self._gate)
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
        limit_per_s = self._limits.share(stream)
        if limit_per_s != self._limit_per_s:
            self._limit_per_s = limit_per_s
            self._apply(limit_per_s)
        if self._told is None or _is_other(limit_per_s, stream, *self._told):
            self._told = limit_per_s, stream
            self._tell_limit(stream)

    def _tell_limit(self, stream: StreamRate) -> None:
        rate_per_s, limit_per_s = stream.rate_per_s, self._limit_per_s
        has = (
            f"has no rate yet, and begins with {number(self._limits.initial_rate)}/s"
            if rate_per_s is None
            else f"has a rate of {number(rate_per_s)}/s"
        )
        _LOG.info(
            "At most %s records/s: gate %r %s, for %d %s%s.",
            number(limit_per_s),
            self._gate,
            has,
            stream.receivers,
            "receiver" if stream.receivers == 1 else "receivers",
            ", and this one's own maximum is less" if limit_per_s == self._limits.max_rate else "",
            extra=event(
                "limit",
                gate=self._gate,
                limit_per_s=limit_per_s,
                rate_per_s=rate_per_s,
                receivers=stream.receivers,
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


def _is_other(limit_per_s: float, stream: StreamRate, told_per_s: float, told: StreamRate) -> bool:
    """Whether this is worth a line after what was told last."""
    known = stream.rate_per_s is not None
    if stream.receivers != told.receivers or known != (told.rate_per_s is not None):
        return True
    return not told_per_s / _WORTH_TELLING < limit_per_s < told_per_s * _WORTH_TELLING
