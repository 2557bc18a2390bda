"""Policy for an exception in a handler: stop, retry, defer, isolate."""

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
"""The words of `OnOutage`."""

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._\-]{1,249}")


_A_SECOND: Final = Backoff(first_ms=1_000, most_ms=LONGEST_INTERVAL_MS)


@dataclass(frozen=True, slots=True)
class OnFailure:
    """A failure policy, created by `retry`, `isolate`, or from a word.

    Attributes:
        retries: Number of retries in place, before any other action.
        backoff: The wait before each retry.
        last: The action after the last failure. ``stop``: the query stops, and runs the batch again
            when it is started. ``defer``: the stream continues; a backfill runs the batch later.
            ``isolate``: the batch is halved until the records that cannot be processed stand alone.
        budget: The limits of an isolation; the remaining parts are deferred.
        topic: The topic for dead letters besides the ledger; None for none.
        outage: The reaction to an unreachable sink, before all other actions.
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
        """Whether the stream can continue without all records of a batch."""
        return self.last != "stop"


STOP: Final = OnFailure()
"""The policy of Spark itself."""


def retry(
    attempts: int, backoff: str = "1 second", *, then: "Last | OnFailure" = "stop"
) -> OnFailure:
    """Call the handler again, up to ``attempts`` times, before any other action.

    For temporary failures, such as a database restart or a lock. The stream waits meanwhile.

    >>> retry(3, "500 ms", then="defer").backoff.wait_ms(3)
    2000

    Args:
        attempts: Number of retries; 1 or more.
        backoff: The wait before the first retry; each later wait is twice as long.
        then: The next action: ``"stop"``, ``"defer"``, ``"isolate"``, or a result of `isolate`.

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
    """Halve a failed batch until the records that cannot be processed stand alone, within limits.

    Args:
        max_runs: Most runs of the handler on parts of the batch; 1 or more. Default: 200.
        max_time: Longest wait of the stream for the isolation. Default: 1 minute.
        topic: A Kafka topic, on the brokers of the stream, that also receives each dead letter,
            with headers for its origin and its reason. The ledger stores it first, and durably; a
            letter that the brokers refuse is logged, and not sent again.

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
    """Return the policy of a word; a policy is returned unchanged.

    Raises:
        OptionError: There is no such word.
    """
    match on_failure:
        case OnFailure():
            return on_failure
        case "stop" | "defer" | "isolate":
            return OnFailure(last=on_failure)
        case _:
            raise OptionError(
                f"on_failure is {on_failure!r}; it must be one of {', '.join(map(repr, _LAST))}, or"
                " what headrace.retry or headrace.isolate answers."
            )


def with_outages(policy: OnFailure, on_outage: str, settings: OutageSettings) -> OnFailure:
    """Return a policy with a reaction to an unreachable sink.

    Raises:
        OptionError: There is no such word, or it contradicts the policy.
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
            f"The options outage.retry, outage.maxRetry and outage.maxHold say how a gate waits for"
            f" its sink, and on_outage is {on_outage!r}, which does not; leave them out, or set it"
            " to 'hold'."
        )
    return replace(policy, outage=replace(settings, on_outage=chosen))
