"""The limit that an operator asks for, as the command and the dashboard's form take it."""

from dataclasses import dataclass
from typing import Final, Self

from headrace.control import OperatorLimits
from headrace.core.options import age_ms
from headrace.errors import OptionError
from headrace.ledger import Ledger

OFF: Final = "off"
"""What ends a limit, in the place of a rate."""

NO_CEILING: Final = "no-ceiling"
"""What lifts a ceiling, in the place of a rate."""

LONGEST_MS: Final = 3650 * 24 * 3600 * 1000
"""The longest time that a limit can be given (ms)."""


@dataclass(frozen=True, slots=True)
class WantedLimit:
    """A limit of a gate's rate that is to be put in force, or the end of one.

    Attributes:
        records_per_s: The cap (records/s over all partitions); None ends the limit.
        lasts_ms: After which time it ends by itself (ms); None if it does not.
    """

    records_per_s: float | None
    lasts_ms: int | None = None

    @classmethod
    def parse(cls, rate: str, lasts: str | None, lasts_name: str) -> Self:
        """Understand what somebody wrote: a rate or ``off``, and a time with its unit or nothing.

        Raises:
            OptionError: One of them is of no such form; ``lasts_name`` names the time in it.
        """
        per_s = _rate_per_s(rate.strip())
        if lasts is None or not lasts.strip():
            return cls(per_s)
        if per_s is None:
            raise OptionError(
                f"{lasts_name} is the time of a limit, and {OFF!r} ends one; leave it out."
            )
        lasts_ms = age_ms(lasts_name, lasts)
        if lasts_ms > LONGEST_MS:
            raise OptionError(
                f"{lasts_name} is {lasts.strip()!r}; give at most 3650 days, or leave it out for a"
                " limit that holds until it is lifted."
            )
        return cls(per_s, lasts_ms)

    def put_in_force(self, ledger: Ledger, gate: str, by: str, why: str) -> OperatorLimits:
        """Write it into the ledger; what is in force for the gate then.

        Raises:
            OptionError: The rate is not a finite number above 0.
            LedgerError: The gate is not declared, or the ledger cannot be written.
        """
        if self.records_per_s is None:
            return ledger.operator_limits.unlimit(gate, by, why)
        until_ms = None
        if self.lasts_ms is not None:
            until_ms = ledger.database_time_ms() + self.lasts_ms
        return ledger.operator_limits.limit(gate, self.records_per_s, by, why, until_ms)


def _rate_per_s(text: str) -> float | None:
    if text.lower() == OFF:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(
            f"The limit is {text!r}; give a number of records/s above 0, or: {OFF}."
        ) from error
