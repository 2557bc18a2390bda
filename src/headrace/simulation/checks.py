"""The check of a number that a user wrote."""

import math

from headrace.errors import OptionError


def require_number(
    name: str,
    value: object,
    unit: str,
    least: float,
    *,
    most: float = math.inf,
    above: bool = False,
) -> None:
    """Refuse what is no finite number from ``least`` (or above it) to ``most``.

    Raises:
        OptionError: It names the number, its unit and what is allowed.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not isinstance(value, int | float)
        or not is_number
        or not math.isfinite(value)
        or not least <= value <= most
        or (above and value == least)
    ):
        to = f" and at most {most:g}" if math.isfinite(most) else ""
        allowed = f"above {least:g}{to}" if above else f"{least:g} or more{to}"
        raise OptionError(f"{name} is {value!r} {unit}; it must be a number {allowed}.")
