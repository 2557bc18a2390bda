"""Checks of values that users, files or other machines wrote; each refusal is one sentence."""

import math
import re
from typing import Final

from headrace.errors import OptionError

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


def require_name(what: str, value: object) -> None:
    """Refuse what cannot be the name of a flow or a stage.

    Raises:
        OptionError: It is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """
    if not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise OptionError(
            f"{what} is {value!r}; it must be 1 to 100 letters, digits, '.', '_' or '-'."
        )


def require_whole(
    what: str, value: object, least: int, most: int | None = None, *, unit: str = ""
) -> None:
    """Refuse what is no whole number from ``least`` to ``most``.

    Raises:
        OptionError: It names the number, its unit and what is allowed.
    """
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < least
        or (most is not None and value > most)
    ):
        allowed = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise OptionError(f"{what} is {_shown(value, unit)}; it must be a whole number {allowed}.")


def require_number(
    what: str,
    value: object,
    unit: str = "",
    *,
    least: float = 0,
    most: float = math.inf,
    above: bool = False,
) -> None:
    """Refuse what is no finite number from ``least`` (or, with ``above``, above it) to ``most``.

    Raises:
        OptionError: It names the number, its unit and what is allowed.
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (value > least if above else value >= least)
        or not value <= most
        or value == math.inf
    ):
        to = f" and at most {most:g}" if math.isfinite(most) else ""
        allowed = f"above {least:g}{to}" if above else f"of {least:g} or more{to}"
        raise OptionError(f"{what} is {_shown(value, unit)}; it must be a finite number {allowed}.")


def _shown(value: object, unit: str) -> str:
    return f"{value!r} {unit}" if unit else repr(value)
