"""Schedules of backfill runs, and budgets that limit the records of each run."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol, Self

from cronsim import CronSim, CronSimError

from headrace.core.timing import WallClock
from headrace.errors import LedgerError, OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import RateSample

_UNITS_MS: Final = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_EVERY: Final = re.compile(r"every (?:(\d{1,9}) )?(second|minute|hour|day)s?")


class Schedule(Protocol):
    """Decides when a backfill run begins. Times are ms since the epoch."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int | None:
        """Return the time when the next run begins; None if only a command starts a run.

        Args:
            started_ms: The time when the scheduler started.
            last_ms: The time when the last run began; None before the first run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Spare:
    """The schedule ``spare``: a run is always due, and only the budget limits it."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return a time in the past, so that the next run is due at once."""
        return started_ms if last_ms is None else last_ms


@dataclass(frozen=True, slots=True)
class Every:
    """The schedule ``every ...``: a run begins at the start, and then once in each interval.

    Attributes:
        interval_ms: The time from the start of one run to the start of the next run (ms); above 0.
            Too long: failed batches wait, and Kafka may delete their records.
    """

    interval_ms: int

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return ``last_ms`` plus the interval; ``started_ms`` for the first run."""
        return started_ms if last_ms is None else last_ms + self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """The schedule ``cron ...``: runs begin at the times of a cron expression, in local time.

    When daylight saving time begins, a run in the skipped hour begins an hour later. When daylight
    saving time ends, no run begins in the repeated hour.

    Attributes:
        expression: Minute, hour, day of the month, month and day of the week, in the syntax of
            Debian's cron. It must match at least one time.
    """

    expression: str

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return the first matching time after the last run; for the first run, after the start."""
        after_ms = started_ms if last_ms is None else last_ms
        after = datetime.fromtimestamp(after_ms / 1000)
        # Local time may go back, so skip matches that are not later in absolute time.
        times_ms = (round(named.timestamp() * 1000) for named in CronSim(self.expression, after))
        return next(time_ms for time_ms in times_ms if time_ms > after_ms)


@dataclass(frozen=True, slots=True)
class Manual:
    """The schedule ``manual``: only the command ``headrace backfill`` starts a run."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> None:
        """Return None, because no run is ever due."""


class Timetable:
    """The state of a schedule's runs. A run begins when it is due, and lasts until `end` is called.

    ``started_ms`` is the time when the scheduler starts (ms since the epoch).
    """

    def __init__(self, schedule: Schedule, started_ms: int) -> None:
        self._schedule = schedule
        self._started_ms = started_ms
        self._last_ms: int | None = None
        self._on = False

    def is_on(self, now_ms: int) -> bool:
        """Begin a run if one is due at ``now_ms``. Return whether a run is in progress."""
        due_ms = self._schedule.due_ms(self._started_ms, self._last_ms)
        if not self._on and due_ms is not None and due_ms <= now_ms:
            self._on, self._last_ms = True, now_ms
        return self._on

    def end(self) -> None:
        """End the run in progress. Call this when no batch is ready."""
        self._on = False


def parse_schedule(text: str) -> Schedule:
    """Parse the text of a schedule option.

    >>> parse_schedule("every 10 minutes"), parse_schedule("cron 0 3 * * *")
    (Every(interval_ms=600000), Cron(expression='0 3 * * *'))
    >>> parse_schedule("spare"), parse_schedule("manual")
    (Spare(), Manual())

    Raises:
        OptionError: The text is not a schedule, or its cron expression never matches.
    """
    words = " ".join(text.lower().split())
    if words == "spare":
        return Spare()
    if words == "manual":
        return Manual()
    if words.startswith("cron "):
        return Cron(_cron_expression(text, words.removeprefix("cron ")))
    every = _EVERY.fullmatch(words)
    interval_ms = int(every[1] or 1) * _UNITS_MS[every[2]] if every else 0
    if interval_ms == 0:
        raise OptionError(
            f"The backfill's schedule is {text!r}; it must be 'spare', 'every 10 minutes' (or"
            " seconds, hours, days), 'cron 0 3 * * *' or 'manual'."
        )
    return Every(interval_ms)


def _cron_expression(text: str, expression: str) -> str:
    try:
        never = next(CronSim(expression, datetime(2000, 1, 1)), None) is None
    except CronSimError as error:
        raise OptionError(
            f"The backfill's schedule is {text!r}, which cron does not understand ({error}); it"
            " must have minute, hour, day of the month, month and day of the week, as in 'cron 0 3"
            " * * *'."
        ) from error
    if never:
        raise OptionError(
            f"The backfill's schedule is {text!r}, which matches no date; name a date that"
            " exists, as in 'cron 0 3 * * *'."
        )
    return expression


ASSUMED_RATE_PER_S: Final = 100.0
"""Assumed rate of a gate that has not learned a rate yet (records/s). It equals the default
minimum rate of the rate estimators."""

_SAFETY: Final = 0.8
"""A backfill run is planned for this fraction of the live stream's idle time, because some runs
take longer than expected."""

_SHORTEST_WINDOW: Final = 0.1
"""Shortest idle time of the live stream in which a backfill runs, as a fraction of the interval."""

HALF_LIFE_MS: Final = 60_000
"""Time (ms) in which the measured fixed cost of a backfill run is halved. So one slow run does not
prevent all later runs."""

_LOOK_BACK: Final = 10
"""Number of intervals over which the live stream's rate is measured."""


@dataclass(frozen=True, slots=True)
class LiveStream:
    """State of the live stream in the same application as the backfill.

    Attributes:
        rate_per_s: The rate in force (records/s); None without a rate.
        interval_ms: The trigger's interval (ms); the gate's interval if the trigger has none.
        running: Whether a batch of the stream is running now.
        start_ms: The time of the last batch's trigger (ms since the epoch); None before the first
            batch.
        end_ms: The time when the last batch ended (ms since the epoch); None if no batch has ended.
    """

    rate_per_s: float | None
    interval_ms: int
    running: bool = False
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Measurements of one backfill run.

    Attributes:
        records: Number of offsets that the run has processed.
        elapsed_ms: Duration of the run, with the reading and the handler (ms).
        end_ms: The time when the run ended (ms since the epoch).
        succeeded: Whether the run succeeded. The duration of a failed run does not count as a cost.
    """

    records: int
    elapsed_ms: int
    end_ms: int
    succeeded: bool = True


def records_beside(
    live: LiveStream, last: Cost | None, now_ms: int, half_life_ms: int = HALF_LIFE_MS
) -> int:
    """Return the number of records that a backfill may run now, next to a live stream.

    The stream and the backfill share the same cores, so a backfill runs while the stream is idle.
    The window is the time from the end of a batch to the next trigger. Triggers are at multiples of
    the interval. If the stream has been idle for more than an interval, the window is one interval.
    The result is ::

        rate · (window - fixed cost) · 0.8

    The rate is the stream's rate in force. Without a rate in force, it is the rate of the last run,
    or `ASSUMED_RATE_PER_S` before the first run. The fixed cost is the duration of the last run,
    minus the time for the run's records at this rate. The fixed cost is 0 before the first run has
    ended, and halves every minute. It does not count after a long idle time: more than an interval,
    and at least twice the fixed cost. A stream that was idle for long probably stays idle.

    Args:
        live: The state of the live stream.
        last: The last successful backfill run; None before the first success.
        now_ms: The current time (ms since the epoch).
        half_life_ms: Time after which the fixed cost is halved (ms). Default: 60 000.

    Returns:
        0 while a batch of the stream runs, or if the window is shorter than a tenth of the
        interval or shorter than twice the fixed cost. Otherwise at least 1, and at most the
        records of one interval at this rate.
    """
    window_ms = _window_ms(live, now_ms)
    rate_per_s = _rate_per_s(live, last)
    fixed_ms = _fixed_ms(last, rate_per_s, now_ms, half_life_ms)
    if 2 * fixed_ms <= _rest_ms(live, now_ms):
        fixed_ms = 0
    if window_ms < max(_SHORTEST_WINDOW * live.interval_ms, 2 * fixed_ms):
        return 0
    return max(1, int(rate_per_s * (window_ms - fixed_ms) / 1000 * _SAFETY))


def _window_ms(live: LiveStream, now_ms: int) -> int:
    if live.running:
        return 0
    if live.start_ms is None or live.end_ms is None or now_ms - live.end_ms > live.interval_ms:
        return live.interval_ms
    next_ms = (live.start_ms // live.interval_ms + 1) * live.interval_ms
    # After that time the next batch begins at once, or as soon as data arrives. The upper bound
    # holds even if the clock was set back.
    return min(max(0, next_ms - now_ms), live.interval_ms)


def _rest_ms(live: LiveStream, now_ms: int) -> int:
    """Return how long the live stream has been idle (ms); less than an interval counts as 0."""
    if live.running or live.end_ms is None or now_ms - live.end_ms <= live.interval_ms:
        return 0
    return now_ms - live.end_ms


def _rate_per_s(live: LiveStream, last: Cost | None) -> float:
    if live.rate_per_s is not None:
        return live.rate_per_s
    if last is not None and last.elapsed_ms > 0:
        return last.records / last.elapsed_ms * 1000
    return ASSUMED_RATE_PER_S


def _fixed_ms(last: Cost | None, rate_per_s: float, now_ms: int, half_life_ms: int) -> float:
    if last is None:
        return 0.0
    beyond_ms = max(0.0, last.elapsed_ms - last.records / rate_per_s * 1000)
    return float(beyond_ms * 0.5 ** (max(0, now_ms - last.end_ms) / half_life_ms))


@dataclass(frozen=True, slots=True)
class Account:
    """A credit account of records for a backfill in another application than the live stream.

    The two applications share the sink, but not the cores. The account is credited with the rate
    that the live stream does not use, and debited with the records of each run. So the live stream
    and the backfill together stay below the gate's rate. A run is allowed only while the credit is
    at least half of ``most``, so that batches are not cut into very small parts.

    Attributes:
        time_ms: The time of the last credit (ms since the epoch).
        balance: The credit (records).
        most: The largest credit: the records of one interval at the unused rate, at least 1; 0 if
            the live stream uses its whole rate.
    """

    time_ms: int
    balance: float = 0.0
    most: float = 0.0

    def paid_in(
        self, now_ms: int, *, rate_per_s: float | None, live_per_s: float, interval_ms: int
    ) -> Self:
        """Credit the rate that was unused since the last credit. Return the new account.

        Args:
            now_ms: The current time (ms since the epoch).
            rate_per_s: The gate's rate (records/s). None counts as `ASSUMED_RATE_PER_S`.
            live_per_s: The rate that the live stream uses (records/s).
            interval_ms: The gate's interval (ms).
        """
        rate = ASSUMED_RATE_PER_S if rate_per_s is None else rate_per_s
        spare_per_s = max(0.0, rate - live_per_s)
        most = max(1.0, spare_per_s * interval_ms / 1000) if spare_per_s > 0 else 0.0
        earned = spare_per_s * max(0, now_ms - self.time_ms) / 1000
        time_ms = max(self.time_ms, now_ms)
        return replace(self, time_ms=time_ms, balance=min(self.balance + earned, most), most=most)

    def spent(self, records: int) -> Self:
        """Debit the number of records in a run. Return the new account."""
        return replace(self, balance=self.balance - records)

    @property
    def records(self) -> int:
        """Number of records that a backfill may run now; 0 while the credit is too low."""
        return int(self.balance) if self.balance >= self.most / 2 else 0


def live_per_s(samples: Sequence[RateSample], now_ms: int, interval_ms: int) -> float:
    """Return the mean rate of the live stream over the last ten intervals (records/s).

    ``samples`` are the ledger's samples of finished batches, the newest first. If the samples cover
    less than ten intervals, the mean is over the time that they cover. The rate is 0 without a
    sample.
    """
    recent = [sample for sample in samples if now_ms - sample.time_ms < _LOOK_BACK * interval_ms]
    if not recent:
        return 0.0
    known_ms = now_ms - (recent[-1].time_ms - recent[-1].processing_delay_ms)
    return sum(sample.records for sample in recent) / max(1, known_ms) * 1000


class BackfillBudget(Protocol):
    """Limits the number of records in the next backfill run. Only one thread uses a budget."""

    def records(self) -> int:
        """Return the number of records that a backfill may run now; 0 if it must wait.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        ...

    def spent(self, cost: Cost) -> None:
        """Record the measurements of a run, whether it succeeded or failed."""
        ...


class UnlimitedBudget:
    """A budget without a limit: for a gate whose stream is not running, or may be delayed."""

    def records(self) -> int:
        """Return a number of records that no batch exceeds."""
        return sys.maxsize

    def spent(self, cost: Cost) -> None:
        """Do nothing, because this budget does not depend on earlier runs."""


class InProcessBudget:
    """The budget of a backfill in the same application as the live stream (`records_beside`).

    The cost of the first successful run does not count. This run starts Python workers and compiles
    plans, so its cost would delay the next runs for minutes.

    Args:
        live: Function that returns the state of the live stream.
        clock: Function that returns the time (ms since the epoch).
        half_life_ms: Time after which the fixed cost of a run is halved (ms). Default: 60 000.
    """

    def __init__(
        self,
        live: Callable[[], LiveStream],
        clock: WallClock,
        half_life_ms: int = HALF_LIFE_MS,
    ) -> None:
        self._live = live
        self._half_life_ms = half_life_ms
        self._clock = clock
        self._warm = False
        self._last: Cost | None = None

    def records(self) -> int:
        """Return the number of records that a backfill may run now, from `records_beside`."""
        return records_beside(self._live(), self._last, self._clock(), self._half_life_ms)

    def spent(self, cost: Cost) -> None:
        """Store the cost of a successful run, unless it is the first successful run."""
        if cost.succeeded and self._warm:
            self._last = cost
        self._warm = self._warm or cost.succeeded


class ExternalBudget:
    """The budget of a backfill in another application than the live stream.

    The budget is an `Account`. Its credit is computed from the gate's rate and the stream's
    measured rates, which are both in the ledger.
    """

    def __init__(self, ledger: Ledger, gate_name: str, clock: WallClock) -> None:
        self._ledger = ledger
        self._gate_name = gate_name
        self._clock = clock
        self._account = Account(clock())

    def records(self) -> int:
        """Credit the account up to now. Return the number of records that a backfill may run.

        Raises:
            LedgerError: The ledger cannot be read, or the gate is not declared in it.
        """
        gate, now_ms = self._ledger.gates.get(self._gate_name), self._clock()
        if gate is None:
            raise LedgerError(
                f"Gate {self._gate_name!r} is not declared in the ledger; name a gate that"
                " headrace status lists."
            )
        samples = self._ledger.rates.history(self._gate_name)
        self._account = self._account.paid_in(
            now_ms,
            rate_per_s=gate.rate_per_s,
            live_per_s=live_per_s(samples, now_ms, gate.interval_ms),
            interval_ms=gate.interval_ms,
        )
        return self._account.records

    def spent(self, cost: Cost) -> None:
        """Debit the account with the records of a run."""
        self._account = self._account.spent(cost.records)
