"""Signals as text: strict JSON, of which nothing is believed before it is checked."""

import json
from dataclasses import MISSING, asdict, fields
from typing import Any, Final, NoReturn

from headrace.control.pressure import Epoch, PressureSignal
from headrace.errors import OptionError
from headrace.flow.signals import StageState

MOST_BYTES: Final = 4096
"""The longest text that is looked at. Ours have a quarter of it at most."""

_TOO_LARGE: Final = 2**63


def text_of(value: PressureSignal | StageState) -> str:
    """An assertion or a state as text, in ASCII."""
    return json.dumps(asdict(value), allow_nan=False)


def assertion_of(text: str | bytes) -> PressureSignal:
    """The assertion that a text is.

    Raises:
        OptionError: It is none; the sentence says why.
    """
    given = _object(text, PressureSignal)
    given["epoch"] = Epoch(**_known(given["epoch"], Epoch))
    return PressureSignal(**given)


def state_of(text: str | bytes) -> StageState:
    """The state of a stage that a text is.

    Raises:
        OptionError: It is none; the sentence says why.
    """
    return StageState(**_object(text, StageState))


def _object(text: str | bytes, kind: type[Any]) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise OptionError(f"It has {len(text)} bytes; signals have {MOST_BYTES} at most.")
    try:
        found = json.loads(
            text if isinstance(text, str) else text.decode("ascii"),
            object_pairs_hook=_once,
            parse_int=_whole,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise OptionError(
            "It is not JSON in ASCII with each name once and no number beyond 64 bits."
        ) from error
    return _known(found, kind)


def _known(found: object, kind: type[Any]) -> dict[str, Any]:
    """The fields of a value, all of them that have no default, and no other."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(found, dict) or not needed <= found.keys() <= names:
        raise OptionError(f"It must have {', '.join(sorted(names))}, and nothing else.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) >= _TOO_LARGE:
        raise ValueError("a number of more than 64 bits")
    return number


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
