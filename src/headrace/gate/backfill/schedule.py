"""The schedules and the budgets by which failed batches are run again."""

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
    """Decides the times of backfill runs. Times are ms since the epoch."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int | None:
        """Return the time of the next run; None if only a command starts a run.

        Args:
            started_ms: The start of the scheduler.
            last_ms: The start of its last run; None before the first.
        """
        ...


@dataclass(frozen=True, slots=True)
class Spare:
    """Run at once, whenever there is spare capacity."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return the time of the next run."""
        return started_ms if last_ms is None else last_ms


@dataclass(frozen=True, slots=True)
class Every:
    """Run at the start, and then once an interval, from the start of one run to the next one's.

    Attributes:
        interval_ms: Above 0. Too long: failed batches wait, and Kafka may delete them.
    """

    interval_ms: int

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return the time of the next run."""
        return started_ms if last_ms is None else last_ms + self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """Run at the times of a cron expression, in the local time of the machine.

    When clocks go forward, the times in the skipped hour are due an hour later. When they go back,
    nothing is due in the second pass through the hour.

    Attributes:
        expression: Minute, hour, day of the month, month, day of the week, with the syntax of
            Debian's cron; it matches at least one time.
    """

    expression: str

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """Return the time of the next run."""
        after_ms = started_ms if last_ms is None else last_ms
        after = datetime.fromtimestamp(after_ms / 1000)
        # Local times may go back: select the first match that is later in absolute time.
        times_ms = (round(named.timestamp() * 1000) for named in CronSim(self.expression, after))
        return next(time_ms for time_ms in times_ms if time_ms > after_ms)


@dataclass(frozen=True, slots=True)
class Manual:
    """Run only by the command ``headrace backfill``."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> None:
        """Return None: no run is due."""


class Timetable:
    """Tracks the runs of a schedule: a run lasts from its due time until `end`.

    ``started_ms`` is the present time (ms since the epoch).
    """

    def __init__(self, schedule: Schedule, started_ms: int) -> None:
        self._schedule = schedule
        self._started_ms = started_ms
        self._last_ms: int | None = None
        self._on = False

    def is_on(self, now_ms: int) -> bool:
        """Whether a run is in progress; a due run begins."""
        due_ms = self._schedule.due_ms(self._started_ms, self._last_ms)
        if not self._on and due_ms is not None and due_ms <= now_ms:
            self._on, self._last_ms = True, now_ms
        return self._on

    def end(self) -> None:
        """End the present run, when no batch is ready."""
        self._on = False


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule.

    >>> parse_schedule("every 10 minutes"), parse_schedule("cron 0 3 * * *")
    (Every(interval_ms=600000), Cron(expression='0 3 * * *'))
    >>> parse_schedule("spare"), parse_schedule("manual")
    (Spare(), Manual())

    Raises:
        OptionError: The text is no schedule, or its cron expression never matches.
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
            f"The backfill's schedule is {text!r}, a time that never comes; name a day that there"
            " is, as in 'cron 0 3 * * *'."
        )
    return expression


ASSUMED_RATE_PER_S: Final = 100.0
"""The rate that is assumed before one has been learnt: the lowest default of an estimator
(records/s)."""

_SAFETY: Final = 0.8
"""Fraction of the unused time that is planned: a run of a backfill takes longer now and then."""

_SHORTEST_WINDOW: Final = 0.1
"""The fraction of the interval below which unused time is not worth a run."""

HALF_LIFE_MS: Final = 60_000
"""The time after which half of a run's cost is forgotten, so that one slow run does not end all
later runs."""

_LOOK_BACK: Final = 10
"""The number of intervals over which the live stream's records are counted."""


@dataclass(frozen=True, slots=True)
class LiveStream:
    """State of the live stream of this application.

    Attributes:
        rate_per_s: The rate in force (records/s); None without one.
        interval_ms: The trigger's interval or, for a trigger without one, the gate's (ms).
        running: Whether a batch is running now.
        start_ms: The time of the last batch's trigger (ms since the epoch); None before the first.
        end_ms: The end of the last batch; None before the first batch has ended.
    """

    rate_per_s: float | None
    interval_ms: int
    running: bool = False
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run of a backfill.

    Attributes:
        records: Number of offsets in its ranges.
        elapsed_ms: Duration of the run, including the reading and the handler (ms).
        end_ms: The end of the run (ms since the epoch).
        succeeded: Whether the run went through: the time of a failed run is no measure.
    """

    records: int
    elapsed_ms: int
    end_ms: int
    succeeded: bool = True


def records_beside(
    live: LiveStream, last: Cost | None, now_ms: int, half_life_ms: int = HALF_LIFE_MS
) -> int:
    """Return the number of records a backfill may take now, beside the live stream.

    Both share the same cores, so a backfill runs while the stream rests: from the end of a batch to
    the next trigger, at a multiple of the interval. When the stream has had no batch for more than
    an interval, the backfill gets an interval's worth at a time. The result is ::

        rate · (window - fixed cost) · 0.8

    where the fixed cost is the excess of the last run's time over its records at that rate. The
    fixed cost is 0 before the first run has ended, and halves every minute. A stream that has
    rested for twice as long as the cost is expected to rest for as long again: the rest pays for
    the cost, which then no longer counts.

    Args:
        live: The live stream.
        last: The last successful run of a backfill; None before there is one.
        now_ms: The time (ms since the epoch).
        half_life_ms: The half-life of a fixed cost (ms). Default: 60 000.

    Returns:
        0 while a batch of the stream runs, while the stream takes all of its time, and if the
        window is under a tenth of the interval, or under twice the fixed cost: the run would be
        more cost than work. Else 1 or more, and never more than the rate allows in one interval.
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
    # After that time the next batch begins at once, or as soon as there is data. A clock that was
    # set back makes no window longer than an interval.
    return min(max(0, next_ms - now_ms), live.interval_ms)


def _rest_ms(live: LiveStream, now_ms: int) -> int:
    """Return the rest of the live stream so far (ms); 0 within an interval of its last batch."""
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
    """Budget of a backfill in another application, which shares the sink, but not the cores.

    The rate that the live stream does not use is credited, up to one interval's worth, and each run
    pays for its records. Nothing is granted below half of an interval's worth, so that batches are
    not cut into splinters. So no more is ever granted than was credited: live stream and backfill
    together stay below the rate.

    Attributes:
        time_ms: The time of the last credit (ms since the epoch).
        balance: The balance (records).
        most: One interval's worth of the unused rate, and 1 at least (records); 0 if the live
            stream uses all.
    """

    time_ms: int
    balance: float = 0.0
    most: float = 0.0

    def paid_in(
        self, now_ms: int, *, rate_per_s: float | None, live_per_s: float, interval_ms: int
    ) -> Self:
        """Return the account at a later time."""
        rate = ASSUMED_RATE_PER_S if rate_per_s is None else rate_per_s
        spare_per_s = max(0.0, rate - live_per_s)
        most = max(1.0, spare_per_s * interval_ms / 1000) if spare_per_s > 0 else 0.0
        earned = spare_per_s * max(0, now_ms - self.time_ms) / 1000
        time_ms = max(self.time_ms, now_ms)
        return replace(self, time_ms=time_ms, balance=min(self.balance + earned, most), most=most)

    def spent(self, records: int) -> Self:
        """Return the account after a run."""
        return replace(self, balance=self.balance - records)

    @property
    def records(self) -> int:
        """Number of records a backfill may take now."""
        return int(self.balance) if self.balance >= self.most / 2 else 0


def live_per_s(samples: Sequence[RateSample], now_ms: int, interval_ms: int) -> float:
    """Return the rate of the live stream over the last ten intervals (records/s).

    The ledger's samples come newest first. If they cover less time, that time is used.
    """
    recent = [sample for sample in samples if now_ms - sample.time_ms < _LOOK_BACK * interval_ms]
    if not recent:
        return 0.0
    known_ms = now_ms - (recent[-1].time_ms - recent[-1].processing_delay_ms)
    return sum(sample.records for sample in recent) / max(1, known_ms) * 1000


class BackfillBudget(Protocol):
    """Limits the size of a backfill's next run. Used by one thread."""

    def records(self) -> int:
        """Return the number of records that may be run now; 0 for none.

        Raises `LedgerError` if the ledger cannot be read.
        """
        ...

    def spent(self, cost: Cost) -> None:
        """Record the cost of a run, whatever its outcome."""
        ...


class UnlimitedBudget:
    """A budget without a limit, for a gate whose stream is not running, or may wait."""

    def records(self) -> int:
        """Return a number larger than any batch."""
        return sys.maxsize

    def spent(self, cost: Cost) -> None:
        """Ignore the cost."""


class InProcessBudget:
    """The budget that the live stream of the same application leaves.

    The first successful run is no measure of cost: it starts Python workers and compiles plans, and
    its cost would delay the next runs for minutes.
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
        """Return the grant of `records_beside`."""
        return records_beside(self._live(), self._last, self._clock(), self._half_life_ms)

    def spent(self, cost: Cost) -> None:
        """Record the cost of a run."""
        if cost.succeeded and self._warm:
            self._last = cost
        self._warm = self._warm or cost.succeeded


class ExternalBudget:
    """The budget that a stream in another application leaves, by its rates in the ledger."""

    def __init__(self, ledger: Ledger, gate_name: str, clock: WallClock) -> None:
        self._ledger = ledger
        self._gate_name = gate_name
        self._clock = clock
        self._account = Account(clock())

    def records(self) -> int:
        """Return the account's grant, by the stream's rates in the ledger.

        Raises:
            LedgerError: The ledger cannot be read, or does not know the gate.
        """
        gate, now_ms = self._ledger.gates.get(self._gate_name), self._clock()
        if gate is None:
            raise LedgerError(
                f"Gate {self._gate_name!r} is not declared in the ledger; name one that is, as"
                " headrace status lists them."
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
        """Record the cost of a run."""
        self._account = self._account.spent(cost.records)
