"""Crashes as items of the input, and the steps of a batch before and after which one can happen."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import OptionError

STEPS: Final[Mapping[str, str]] = {
    "begin": "The ledger has the batch, in_progress; nothing of it was read.",
    "attach": "The batch belongs to the process that runs it.",
    "handle": "Your handler has returned: the sink has the batch.",
    "commit": "The transaction of batch.transaction() is committed, and with it the success.",
    "retry": "The next attempt of the batch is counted.",
    "succeed": "The batch is a success; Spark has not committed it yet.",
    "fail": "The batch has failed.",
    "split": "The ledger has the children of a batch that is isolated, or too large.",
    "add": "A record that cannot be processed is kept as a dead letter.",
    "report": "The ledger has the rate that was learnt from the batch.",
    "claim": "The failed batch belongs to the backfill that runs it.",
    "backfilled": "The batch is a success by a backfill.",
    "release": "A backfill of the batch has failed.",
    "mark_dead": "The batch is dead, for what it reads has left the log.",
}
"""The durable steps of a batch, and what holds after each; no batch comes to all of them."""

_SILENT: Final = frozenset({"report", "resolve_abandoned"})
"""Methods that are done even if they return nothing."""


class SimulatedCrash(BaseException):
    """The end of a tested process: nothing that it does afterwards reaches the ledger."""


@dataclass(frozen=True, slots=True)
class Crash:
    """An item of a `MemoryLog`: a process crashes with the record before it in hand.

    It does so once, when a batch with that record first comes to the point.

    Attributes:
        point: One of `STEPS`, with ``before`` or ``after``. Default: ``after handle``, where the
            sink has the batch and the ledger does not know.

    Raises:
        OptionError: There is no such point.
    """

    point: str = "after handle"

    def __post_init__(self) -> None:
        when, _, step = self.point.partition(" ")
        if when not in {"before", "after"} or step not in STEPS:
            raise OptionError(
                f"There is no point {self.point!r}; write 'before' or 'after' and one of"
                f" {', '.join(STEPS)}."
            )


def watch(owner: object, step: str, passed: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Have it noticed when a method is called, and when it has done something.

    Args:
        owner: A store of a ledger, or its class.
        step: The name of the method.
        passed: Called with ``"before <step>"`` or ``"after <step>"``, and the method's arguments.
            What it raises, the method raises.
    """
    do: Callable[..., Any] = getattr(owner, step)

    @functools.wraps(do)
    def watched(*arguments: Any, **options: Any) -> Any:
        passed(f"before {step}", arguments)
        done = do(*arguments, **options)
        if done or step in _SILENT:
            passed(f"after {step}", arguments)
        return done

    setattr(owner, step, watched)
