"""Failure policies, for exceptions of a handler: stop, retry, defer or isolate."""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from headrace.core.backoff import Backoff
from headrace.core.options import LONGEST_INTERVAL_MS, duration_ms
from headrace.errors import OptionError
from headrace.gate.control.bisection import IsolationBudget
from headrace.gate.control.dead import BackfillLimits
from headrace.gate.control.hold import OnOutage, OutageSettings

Last = Literal["stop", "defer", "isolate"]
_LAST: Final[tuple[str, ...]] = get_args(Last)
OutageWord = Literal["hold", "defer", "stop"]
"""Values of the argument ``on_outage`` of `Gate.write`."""

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._\-]{1,249}")


_A_SECOND: Final = Backoff(first_ms=1_000, most_ms=LONGEST_INTERVAL_MS)


@dataclass(frozen=True, slots=True)
class OnFailure:
    """Failure policy, created by `retry`, by `isolate`, or from a word such as "defer".

    Attributes:
        retries: Number of retries by the stream itself, before ``last`` applies.
        backoff: The wait before each retry.
        last: Action after the last retry has failed. ``stop``: the query stops, and runs the batch
            again when it is restarted. ``defer``: the stream continues; a backfill runs the batch
            later. ``isolate``: the batch is halved until each record that cannot be processed is
            alone in its part.
        budget: Limits of an isolation. When one is reached, the remaining parts are deferred.
        topic: Topic that receives copies of dead letters; None for the ledger alone.
        outage: What to do while the sink is unreachable, before all other actions.
        backfills: The limits after which a deferred batch is dead.
    """

    retries: int = 0
    backoff: Backoff = _A_SECOND
    last: Last = "stop"
    budget: IsolationBudget = field(default_factory=IsolationBudget)
    topic: str | None = None
    outage: OutageSettings = field(default_factory=OutageSettings)
    backfills: BackfillLimits = field(default_factory=BackfillLimits)

    @property
    def skips(self) -> bool:
        """Whether the stream may continue although records of a batch are not processed."""
        return self.last != "stop"


STOP: Final = OnFailure()
"""Default policy, as in Spark itself: an exception stops the query."""


def retry(
    attempts: int, backoff: str = "1 second", *, then: "Last | OnFailure" = "stop"
) -> OnFailure:
    """Call a failed handler again, up to ``attempts`` times, before any other action.

    Use it for temporary failures, such as a database restart or a lock. The stream waits meanwhile.

    >>> retry(3, "500 ms", then="defer").backoff.wait_ms(3)
    2000

    Args:
        attempts: Number of retries; 1 or more.
        backoff: The wait before the first retry; each later wait is twice as long.
        then: Action after the last retry has failed: ``"stop"``, ``"defer"``, ``"isolate"``, or a
            result of `isolate`.

    Raises:
        OptionError: A value is out of its range.
    """
    if attempts < 1:
        raise OptionError(f"retry's attempts is {attempts}; it must be 1 or more.")
    after = parse_on_failure(then)
    if after.retries:
        raise OptionError("A retry cannot be followed by a retry; give one with more attempts.")
    waits = Backoff(duration_ms("retry's backoff", backoff), most_ms=LONGEST_INTERVAL_MS)
    return replace(after, retries=attempts, backoff=waits)


def isolate(
    *, max_runs: int = 200, max_time: str = "1 minute", topic: str | None = None
) -> OnFailure:
    """Halve a failed batch, within limits, to find the records that cannot be processed.

    These records are stored as dead letters; all other records are processed.

    Args:
        max_runs: Maximum number of calls of the handler with parts of the batch; 1 or more.
            Default: 200.
        max_time: Maximum time for which the stream waits for an isolation. Default: 1 minute.
        topic: A Kafka topic, on the brokers of the stream, that also receives each dead letter,
            with headers for its origin and its reason. The ledger stores the dead letter first. If
            the brokers refuse the copy, the refusal is logged, and the copy is not sent again.

    Raises:
        OptionError: A value is out of its range.
    """
    if topic is not None and not _TOPIC.fullmatch(topic):
        raise OptionError(
            f"isolate's topic is {topic!r}; a topic's name has 1 to 249 letters, digits, '.', '_'"
            " and '-'."
        )
    budget = IsolationBudget(max_runs, duration_ms("isolate's max_time", max_time))
    return OnFailure(last="isolate", budget=budget, topic=topic)


def parse_on_failure(on_failure: str | OnFailure) -> OnFailure:
    """Return the policy for a word such as "defer"; return an `OnFailure` unchanged.

    Raises:
        OptionError: The word is not a failure policy.
    """
    match on_failure:
        case OnFailure():
            return on_failure
        case "stop" | "defer" | "isolate":
            return OnFailure(last=on_failure)
        case _:
            raise OptionError(
                f"on_failure is {on_failure!r}; it must be one of {', '.join(map(repr, _LAST))}, or"
                " a result of headrace.retry or headrace.isolate."
            )


def with_outages(policy: OnFailure, on_outage: str, settings: OutageSettings) -> OnFailure:
    """Add the settings for an unreachable sink to a policy. Return the new policy.

    Raises:
        OptionError: ``on_outage`` has no valid value, or contradicts the policy or the settings.
    """
    words = [reaction.value for reaction in OnOutage]
    if on_outage not in words:
        raise OptionError(
            f"on_outage is {on_outage!r}; it must be one of {', '.join(map(repr, words))}."
        )
    chosen = OnOutage(on_outage)
    if chosen is OnOutage.DEFER and not policy.skips:
        raise OptionError(
            "on_outage is 'defer', but on_failure is 'stop', which defers no batch; set on_failure"
            " to 'defer' or 'isolate', or on_outage to 'hold' or 'stop'."
        )
    if chosen is not OnOutage.HOLD and settings != OutageSettings():
        raise OptionError(
            "The options outage.retry, outage.maxRetry and outage.maxHold set how a gate waits for"
            f" its sink, but on_outage is {on_outage!r}, with which it does not wait; leave these"
            " options out, or set on_outage to 'hold'."
        )
    return replace(policy, outage=replace(settings, on_outage=chosen))
