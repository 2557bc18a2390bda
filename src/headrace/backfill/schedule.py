"""The schedules by which failed batches are run again."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from cronsim import CronSim, CronSimError

from headrace.errors import OptionError

_UNITS_MS: Final = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_EVERY: Final = re.compile(r"every (?:(\d{1,9}) )?(second|minute|hour|day)s?")


class Schedule(Protocol):
    """Says when failed batches are run. Times are ms since the epoch."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int | None:
        """When the next run is due; None where only a command starts one.

        Args:
            started_ms: When the scheduler began.
            last_ms: When its last run began; None before the first.
        """
        ...


@dataclass(frozen=True, slots=True)
class Spare:
    """At once, whenever there is capacity to spare."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """When the next run is due."""
        return started_ms if last_ms is None else last_ms


@dataclass(frozen=True, slots=True)
class Every:
    """At the start, and then once an interval, from the beginning of one run to the next one's.

    Attributes:
        interval_ms: Above 0. Too long, and failed batches wait, and Kafka may forget them.
    """

    interval_ms: int

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """When the next run is due."""
        return started_ms if last_ms is None else last_ms + self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """At the times that a cron expression names, in the local time of the machine.

    Where clocks go forward, what falls into the hour that is left out is due an hour later; where
    they go back, nothing is due in the hour's second turn.

    Attributes:
        expression: Minute, hour, day of the month, month, day of the week, as Debian's cron reads
            them; there is a time that it names.
    """

    expression: str

    def due_ms(self, started_ms: int, last_ms: int | None) -> int:
        """When the next run is due."""
        after_ms = started_ms if last_ms is None else last_ms
        after = datetime.fromtimestamp(after_ms / 1000)
        # Local times do not always grow as time does: of those named, the first that is later.
        times_ms = (round(named.timestamp() * 1000) for named in CronSim(self.expression, after))
        return next(time_ms for time_ms in times_ms if time_ms > after_ms)


@dataclass(frozen=True, slots=True)
class Manual:
    """Only by the command ``headrace backfill``."""

    def due_ms(self, started_ms: int, last_ms: int | None) -> None:
        """When the next run is due."""


class Timetable:
    """Which run of a schedule is on: a run lasts from when it is due until somebody ends it.

    Args:
        schedule: Says when runs are due.
        started_ms: The time (ms since the epoch).
    """

    def __init__(self, schedule: Schedule, started_ms: int) -> None:
        self._schedule = schedule
        self._started_ms = started_ms
        self._last_ms: int | None = None
        self._on = False

    def is_on(self, now_ms: int) -> bool:
        """Whether a run is on; one that is due begins."""
        due_ms = self._schedule.due_ms(self._started_ms, self._last_ms)
        if not self._on and due_ms is not None and due_ms <= now_ms:
            self._on, self._last_ms = True, now_ms
        return self._on

    def end(self) -> None:
        """Say that there is nothing more to do in this run."""
        self._on = False


def parse_schedule(text: str) -> Schedule:
    """A schedule from its words.

    >>> parse_schedule("every 10 minutes"), parse_schedule("cron 0 3 * * *")
    (Every(interval_ms=600000), Cron(expression='0 3 * * *'))
    >>> parse_schedule("spare"), parse_schedule("manual")
    (Spare(), Manual())

    Raises:
        OptionError: It is none, or its cron expression names no time.
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
